//! Reranking: how well documents answer a query.

use mlxcel_core::{CancelToken, Capabilities, Error, Result, RowResult, TokenId};
use mlxcel_models::text_head::TextHead;

use crate::model::Model;
use crate::texts::{self, TextAnswer, TextRow, wrong_kind};

const OPERATION: &str = "rerank";

/// The instruction of Qwen3-Reranker for searches, in the words of its authors.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Options of [`Model::rerank`]; start from [`RerankOptions::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RerankOptions {
    /// Whether scores are probabilities, the sigmoid of what the model computes. Defaults to false: scores
    /// are logits. The order is the same.
    pub probabilities: bool,
    /// The instruction for decoders that answer yes or no; defaults to the checkpoint's default prompt, or
    /// else to that of Qwen3-Reranker for searches. Encoders have none: a default prompt is before the query.
    pub instruction: Option<String>,
    /// Cancels the computation at the next pass.
    pub cancel: Option<CancelToken>,
}

impl RerankOptions {
    mlxcel_core::setters! {
        /// Sets whether scores are probabilities.
        with_probabilities(probabilities: bool) => probabilities = probabilities;
        /// Sets the instruction.
        with_instruction(instruction: impl Into<String>) => instruction = Some(instruction.into());
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
    }
}

/// How a model scores pairs.
pub(crate) enum Scorer<'a> {
    /// By a classifier's head.
    Head(&'a TextHead),
    /// By the logits of two tokens.
    YesOrNo { yes: TokenId, no: TokenId },
}

impl Model {
    /// How well each document answers the query: one score for each, in order, higher for better ones.
    ///
    /// Rerankers are encoders with a classifier of one class (`BertForSequenceClassification` and those of
    /// RoBERTa, XLM-RoBERTa and ModernBERT) and decoders with one (`LlamaForSequenceClassification`), which
    /// read query and document as a pair, and decoders that answer yes or no to the prompt of Qwen3-Reranker,
    /// or score it with a classifier. Documents share passes over the weights, as the texts of
    /// [`embed_all`](Self::embed_all) do.
    ///
    /// ```no_run
    /// use mlxcel_session::{Model, RerankOptions};
    ///
    /// let model = Model::open("cross-encoder/ms-marco-MiniLM-L6-v2")?;
    /// let documents = ["Harbours protect ships.", "Cats sleep a lot."];
    /// let scores = model.rerank("where are ships safe?", &documents, &RerankOptions::default())?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a model that is not a reranker,
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for one without tokenizer,
    /// [`ErrorKind::CapacityExceeded`](crate::ErrorKind::CapacityExceeded) for a pair longer than the context
    /// (texts are never truncated), [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and errors of the
    /// engine.
    pub fn rerank(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
    ) -> Result<Vec<f32>> {
        let rows = self.rows_to_rerank(query, documents, options)?;
        let results = texts::run(self, &rows, options.cancel.as_ref())?;
        self.rerank_scores(&rows, results, options)
    }

    fn scorer(&self) -> Result<Scorer<'_>> {
        if let Some(head) = &self.texts().classifier {
            if head.outputs() == 1 {
                return Ok(Scorer::Head(head));
            }
            let message = "rerankers have one class; this model classifies texts otherwise";
            return Err(Error::unsupported(OPERATION, message).with_context("classes", head.outputs()));
        }
        let tokenizer = self.tokenizer()?;
        match (tokenizer.token_id("yes"), tokenizer.token_id("no")) {
            (Some(yes), Some(no)) if self.capabilities().generation => {
                Capabilities::require(self.capabilities().logits, OPERATION, "logits")?;
                Ok(Scorer::YesOrNo { yes, no })
            }
            _ => Err(Error::unsupported(
                OPERATION,
                "the model is not a reranker: it has neither a classifier nor tokens for yes and no",
            )),
        }
    }

    /// The rows whose results [`rerank_scores`](Self::rerank_scores) reads.
    pub(crate) fn rows_to_rerank(
        &self,
        query: &str,
        documents: &[impl AsRef<str>],
        options: &RerankOptions,
    ) -> Result<Vec<TextRow>> {
        let scorer = self.scorer()?;
        documents.iter().map(|document| self.pair(query, document.as_ref(), &scorer, options)).collect()
    }

    fn pair(
        &self,
        query: &str,
        document: &str,
        scorer: &Scorer<'_>,
        options: &RerankOptions,
    ) -> Result<TextRow> {
        let (tokenizer, context) = (self.tokenizer()?, self.capabilities().context);
        let knows = |token: &str| tokenizer.token_id(token).is_some();
        let answer = match scorer {
            // The prompt is written with these tokens; other decoders read pairs as encoders do.
            Scorer::Head(head)
                if self.capabilities().generation
                    && (self.texts().answers || (knows("<|im_start|>") && knows("<think>"))) =>
            {
                TextAnswer::of(head)
            }
            Scorer::YesOrNo { .. } => TextAnswer::Logits,
            Scorer::Head(head) => {
                let query = format!("{}{query}", self.texts().default_prompt()?);
                let (tokens, types) = tokenizer.encode_pair(&query, document, context)?;
                let types = if self.capabilities().token_types > 1 { types } else { Vec::new() };
                return Ok(TextRow { types, ..TextRow::new(tokens, TextAnswer::of(head)) });
            }
        };
        let prompt = Some(self.texts().default_prompt()?).filter(|prompt| !prompt.is_empty());
        let instruction = options.instruction.as_deref().or(prompt).unwrap_or(INSTRUCTION);
        let body = format!("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}");
        let parts = [
            tokenizer.encode(
                "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
                 provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
                false,
            )?,
            tokenizer.encode_prompt(&body, false, context)?,
            tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", false)?,
        ];
        Ok(TextRow::new(parts.concat(), answer))
    }

    /// The scores that `results` of `rows` are.
    pub(crate) fn rerank_scores(
        &self,
        rows: &[TextRow],
        results: Vec<RowResult>,
        options: &RerankOptions,
    ) -> Result<Vec<f32>> {
        let scorer = self.scorer()?;
        let score = |(row, result): (&TextRow, RowResult)| {
            let logit = match (&scorer, result) {
                (Scorer::Head(head), RowResult::Hidden(state)) => {
                    head.apply(&state, row.tokens.len(), 0)?.first().copied()
                }
                (&Scorer::YesOrNo { yes, no }, result) => {
                    let logits = result.into_logits()?;
                    let of = |token: TokenId| logits.get(token as usize).copied();
                    of(yes).zip(of(no)).map(|(yes, no)| yes - no)
                }
                _ => None,
            };
            let logit = logit.ok_or_else(wrong_kind)?;
            Ok(if options.probabilities { (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32 } else { logit })
        };
        rows.iter().zip(results).map(score).collect()
    }
}
