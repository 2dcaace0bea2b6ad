//! Embeddings: texts as vectors.

use mlxcel_core::{CancelToken, Error, ErrorKind, Pooling, Result, RowResult, TokenId};

use crate::Model;
use crate::texts::{self, TextAnswer, TextRow};

const OPERATION: &str = "embed text";

/// Options of embeddings; start from [`EmbedOptions::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// How the hidden states are pooled; defaults to their mean.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1, so that the dot product of two is their cosine similarity. Defaults to
    /// true.
    pub normalize: bool,
    /// Whether the tokenizer adds its special tokens (such as BOS) around a text. Defaults to true.
    pub special_tokens: bool,
    /// Cancels the computation at the next chunk.
    pub cancel: Option<CancelToken>,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self { pooling: Pooling::Mean, normalize: true, special_tokens: true, cancel: None }
    }
}

impl EmbedOptions {
    /// Sets how the hidden states are pooled.
    #[must_use]
    pub fn with_pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets whether vectors are scaled to length 1.
    #[must_use]
    pub fn with_normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }

    /// Sets whether the tokenizer adds its special tokens around a text.
    #[must_use]
    pub fn with_special_tokens(mut self, special_tokens: bool) -> Self {
        self.special_tokens = special_tokens;
        self
    }

    /// Sets the cancel token.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

impl Model {
    /// The embedding of a text, pooled from the hidden states of its tokens ([`Pooling`]). Similar texts have vectors
    /// with a high cosine similarity, as far as the model was trained for it. Needs
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states), which is the number of elements.
    ///
    /// # Errors
    ///
    /// The errors of [`embed_all`](Self::embed_all).
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        only(self.embed_all(&[text], options)?)
    }

    /// The embeddings of several texts, in order. Each step computes as many texts as the engine has sequences
    /// ([`LoadOptions::sequences`](crate::LoadOptions::sequences)), and short texts share passes over the weights.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer, and the errors of [`embed_tokens`](Self::embed_tokens).
    pub fn embed_all(&self, texts: &[impl AsRef<str>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        self.embed_tokens(&self.encode_to_embed(texts, options)?, options)
    }

    /// Encodes texts for [`embed_tokens`](Self::embed_tokens).
    pub(crate) fn encode_to_embed(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<TokenId>>> {
        let tokenizer = self.tokenizer()?;
        let context = self.capabilities().context;
        let encode = |text: &str| tokenizer.encode_prompt(text, options.special_tokens, context);
        texts.iter().map(|text| encode(text.as_ref())).collect()
    }

    /// As [`embed_all`](Self::embed_all), for token ids, which are used as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine does not return hidden states, [`ErrorKind::InvalidInput`] for an empty
    /// text or a token outside the vocabulary, [`ErrorKind::CapacityExceeded`] for a text longer than the context
    /// (texts are never truncated), [`ErrorKind::Cancelled`], and errors of the engine.
    pub fn embed_tokens(&self, texts: &[Vec<TokenId>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        let results = texts::run(self, &self.rows_to_embed(texts, options)?, options.cancel.as_ref())?;
        vectors(results, options)
    }

    /// The rows that texts of these tokens are.
    pub(crate) fn rows_to_embed(
        &self,
        texts: &[Vec<TokenId>],
        options: &EmbedOptions,
    ) -> Result<Vec<TextRow>> {
        if self.capabilities().hidden_states.is_none() {
            let message =
                "the engine does not return hidden states; write a bundle with hidden states enabled";
            return Err(Error::unsupported(OPERATION, message).with_context("capability", "hidden_states"));
        }
        let answer = TextAnswer::Hidden(options.pooling);
        let row = |tokens: &Vec<TokenId>| TextRow { before: Vec::new(), tokens: tokens.clone(), answer };
        Ok(texts.iter().map(row).collect())
    }
}

/// The embeddings that `results` are.
pub(crate) fn vectors(results: Vec<RowResult>, options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
    let vector = |result| match result {
        RowResult::Hidden(vector) if options.normalize => Ok(normalized(vector)),
        RowResult::Hidden(vector) => Ok(vector),
        _ => Err(no_vector()),
    };
    results.into_iter().map(vector).collect()
}

/// The vector at length 1; zeros stay as they are.
fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&element| f64::from(element).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|element| *element = (f64::from(*element) / length) as f32);
    }
    vector
}

pub(crate) fn only(mut vectors: Vec<Vec<f32>>) -> Result<Vec<f32>> {
    vectors.pop().ok_or_else(no_vector)
}

fn no_vector() -> Error {
    Error::new(ErrorKind::Internal, OPERATION, "the engine returned a result of the wrong kind")
}
