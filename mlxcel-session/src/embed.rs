//! Embeddings: texts as vectors.

use mlxcel_core::{CancelToken, Error, ErrorKind, Pooling, Result, RowResult, TokenId};
use mlxcel_models::text_head::{TextHead, normalized};

use crate::model::Model;
use crate::texts::{self, TextAnswer, TextRow, only, wrong_kind};

const OPERATION: &str = "embed text";

/// Options of embeddings; start from [`EmbedOptions::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// How the hidden states are pooled. Defaults to what the checkpoint's `modules.json` says, with the
    /// layers that it lists behind, or else to their mean. A pooling that is set leaves those layers
    /// out.
    pub pooling: Option<Pooling>,
    /// Whether vectors are scaled to length 1, so that the dot product of two is their cosine similarity.
    /// Defaults to what `modules.json` says, or else to true.
    pub normalize: Option<bool>,
    /// The prompt before each text; defaults to the checkpoint's default prompt.
    pub prompt: EmbedPrompt,
    /// How many elements of a vector are kept, the first ones, for models that were trained for it (Kusupati
    /// et al., 2022, "Matryoshka Representation Learning"). Vectors that are normalized are normalized
    /// again. Defaults to all.
    pub dimensions: Option<usize>,
    /// Whether the tokenizer adds its special tokens (such as BOS) around a text. Defaults to true.
    pub special_tokens: bool,
    /// Cancels the computation at the next chunk.
    pub cancel: Option<CancelToken>,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            pooling: None,
            normalize: None,
            prompt: EmbedPrompt::Default,
            dimensions: None,
            special_tokens: true,
            cancel: None,
        }
    }
}

/// The prompt before texts that are embedded. Those by name are the `prompts` of the checkpoint's
/// `config_sentence_transformers.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EmbedPrompt {
    /// The checkpoint's `default_prompt_name`; none without one.
    #[default]
    Default,
    /// No prompt.
    None,
    /// The prompt called `query`; none without one.
    Query,
    /// The prompt called `document`, `passage` or `corpus`; none without one.
    Document,
    /// The prompt of this name.
    Named(String),
    /// This text.
    Text(String),
}

impl EmbedOptions {
    mlxcel_core::setters! {
        /// Sets how the hidden states are pooled.
        with_pooling(pooling: Pooling) => pooling = Some(pooling);
        /// Sets whether vectors are scaled to length 1.
        with_normalize(normalize: bool) => normalize = Some(normalize);
        /// Sets the prompt.
        with_prompt(prompt: EmbedPrompt) => prompt = prompt;
        /// Sets the number of elements that are kept.
        with_dimensions(dimensions: usize) => dimensions = Some(dimensions);
        /// Sets whether the tokenizer adds its special tokens around a text.
        with_special_tokens(special_tokens: bool) => special_tokens = special_tokens;
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
    }
}

/// Texts to embed.
#[derive(Debug)]
pub(crate) struct EncodedTexts {
    pub(crate) texts: Vec<Vec<TokenId>>,
    /// How many tokens of each are a prompt that is not pooled.
    pub(crate) prompt_tokens: usize,
}

impl Model {
    /// The embedding of a text, pooled from the hidden states of its tokens ([`Pooling`]). Similar texts have
    /// vectors with a high cosine similarity, as far as the model was trained for it. Needs
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states).
    ///
    /// Checkpoints of sentence-transformers say how: the modules of `modules.json` (pooling, dense layers,
    /// normalization) and the prompts of `config_sentence_transformers.json` are applied.
    ///
    /// ```no_run
    /// use mlxcel_session::{EmbedOptions, EmbedPrompt, Model};
    ///
    /// let model = Model::open("google/embeddinggemma-300m")?;
    /// let options = EmbedOptions::default().with_prompt(EmbedPrompt::Query).with_dimensions(256);
    /// let vector = model.embed("where are ships safe?", &options)?;
    /// # Ok::<(), mlxcel_session::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`embed_all`](Self::embed_all).
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        only(self.embed_all(&[text], options)?)
    }

    /// The embeddings of several texts, in order. Each step computes as many texts as the engine has
    /// sequences ([`LoadOptions::sequences`](crate::LoadOptions::sequences)), and short texts share
    /// passes over the weights.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer or a prompt that it does not have, and the
    /// errors of [`embed_tokens`](Self::embed_tokens).
    pub fn embed_all(&self, texts: &[impl AsRef<str>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        self.embed_encoded(&self.encode_to_embed(texts, options)?, options)
    }

    /// Encodes texts for [`rows_to_embed`](Self::rows_to_embed).
    pub(crate) fn encode_to_embed(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
    ) -> Result<EncodedTexts> {
        let tokenizer = self.tokenizer()?;
        let (context, settings) = (self.capabilities().context, self.texts());
        let prompt = match &options.prompt {
            EmbedPrompt::Default => settings.default_prompt()?,
            EmbedPrompt::None => "",
            EmbedPrompt::Query => settings.first_prompt(&["query"]).unwrap_or_default(),
            EmbedPrompt::Document => {
                settings.first_prompt(&["document", "passage", "corpus"]).unwrap_or_default()
            }
            EmbedPrompt::Named(name) => settings.prompt(name)?,
            EmbedPrompt::Text(text) => text,
        };
        let encode = |text: &str| match settings.most_tokens {
            Some(most) => tokenizer.encode_part(text, options.special_tokens, most, settings.cuts_left),
            None => tokenizer.encode_prompt(text, options.special_tokens, context),
        };
        let prompt_tokens = match self.embedding_head(options) {
            Some(head) if !head.includes_prompt && !prompt.is_empty() => {
                let tokens = encode(prompt)?;
                // As many as sentence-transformers leaves out: those of the prompt alone, but for the end.
                let ends = tokens.last().is_some_and(|&last| tokenizer.is_special(last));
                tokens.len() - usize::from(ends)
            }
            _ => 0,
        };
        let texts = texts.iter().map(|text| encode(&format!("{prompt}{}", text.as_ref())));
        Ok(EncodedTexts { texts: texts.collect::<Result<_>>()?, prompt_tokens })
    }

    /// As [`embed_all`](Self::embed_all), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine does not return hidden states, [`ErrorKind::InvalidInput`]
    /// for more [dimensions](EmbedOptions::dimensions) than vectors have, an empty text or a token
    /// outside the vocabulary, [`ErrorKind::CapacityExceeded`] for a text longer than the context
    /// (texts are never truncated), [`ErrorKind::Cancelled`], and errors of the engine.
    pub fn embed_tokens(&self, texts: &[Vec<TokenId>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        self.embed_encoded(&EncodedTexts { texts: texts.to_vec(), prompt_tokens: 0 }, options)
    }

    fn embed_encoded(&self, texts: &EncodedTexts, options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        let results = texts::run(self, &self.rows_to_embed(texts, options)?, options.cancel.as_ref())?;
        self.vectors(texts, results, options)
    }

    /// The rows that texts of these tokens are.
    pub(crate) fn rows_to_embed(&self, texts: &EncodedTexts, options: &EmbedOptions) -> Result<Vec<TextRow>> {
        let Some(hidden) = self.capabilities().hidden_states else {
            let message =
                "the engine does not return hidden states; write a bundle with hidden states enabled";
            return Err(Error::unsupported(OPERATION, message).with_context("capability", "hidden_states"));
        };
        let head = self.embedding_head(options);
        let most = head.map_or(hidden, TextHead::outputs);
        if let Some(dimensions) = options.dimensions.filter(|&wanted| wanted == 0 || wanted > most) {
            let message = "vectors can be cut to from 1 to all of their elements";
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                .with_context("field", "dimensions")
                .with_context("value", dimensions)
                .with_context("limit", most));
        }
        let answer = match head {
            Some(head) => TextAnswer::of(head),
            None => TextAnswer::Hidden(options.pooling.unwrap_or(Pooling::Mean)),
        };
        Ok(texts.texts.iter().map(|tokens| TextRow::new(tokens.clone(), answer)).collect())
    }

    /// The layers behind the pooled states.
    fn embedding_head(&self, options: &EmbedOptions) -> Option<&TextHead> {
        self.texts().embedding.as_ref().filter(|_| options.pooling.is_none())
    }

    /// The embeddings of `texts` that `results` are.
    pub(crate) fn vectors(
        &self,
        texts: &EncodedTexts,
        results: Vec<RowResult>,
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<f32>>> {
        let head = self.embedding_head(options);
        let normalizes = options.normalize.unwrap_or(head.is_none_or(TextHead::normalizes));
        let vector = |(tokens, result): (&Vec<TokenId>, RowResult)| {
            let RowResult::Hidden(mut vector) = result else { return Err(wrong_kind()) };
            if let Some(head) = head {
                vector = head.apply(&vector, tokens.len(), texts.prompt_tokens)?;
            }
            vector.truncate(options.dimensions.unwrap_or(usize::MAX));
            Ok(if normalizes { normalized(vector) } else { vector })
        };
        texts.texts.iter().zip(results).map(vector).collect()
    }
}
