//! Texts as vectors.

use mlxcel_core::{
    CancelToken, Error, ErrorKind, Pooling, Result, Row, RowResult, SessionOptions, StepOutput, TokenId,
};

use crate::Model;
use crate::score::control;

const OPERATION: &str = "embed text";

/// How texts become vectors; start from [`EmbedOptions::default`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// Which hidden states make the vector; their mean by default.
    pub pooling: Pooling,
    /// Whether the vector is scaled to length 1, so that the products of two are the cosine of their angle; it is by default.
    pub normalize: bool,
    /// Whether the tokens that the model wants around a text are put there; they are by default.
    pub special_tokens: bool,
    /// Stops at the next chunk.
    pub cancel: Option<CancelToken>,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self { pooling: Pooling::Mean, normalize: true, special_tokens: true, cancel: None }
    }
}

impl EmbedOptions {
    /// Sets which hidden states make the vector.
    #[must_use]
    pub fn with_pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets whether the vector is scaled to length 1.
    #[must_use]
    pub fn with_normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }

    /// Sets whether the tokens that the model wants around a text are put there.
    #[must_use]
    pub fn with_special_tokens(mut self, special_tokens: bool) -> Self {
        self.special_tokens = special_tokens;
        self
    }

    /// Sets what stops the work.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

impl Model {
    /// The vector of a text, pooled from the hidden states of its tokens ([`Pooling`]): texts that mean the like have vectors
    /// with a small angle between them, as far as the model was trained for that. Needs
    /// [`Capabilities::hidden_states`](crate::Capabilities::hidden_states), which says how many elements there are.
    ///
    /// # Errors
    ///
    /// Those of [`embed_all`](Self::embed_all).
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        only(self.embed_all(&[text], options)?)
    }

    /// The vectors of several texts, in their order, computed in steps of as many as the engine takes at once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a model without tokenizer, and those of [`embed_tokens`](Self::embed_tokens).
    pub fn embed_all(&self, texts: &[impl AsRef<str>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        let tokenizer = self.tokenizer()?;
        let context = self.capabilities().context;
        let encode = |text: &str| tokenizer.encode_prompt(text, options.special_tokens, context);
        let texts = texts.iter().map(|text| encode(text.as_ref())).collect::<Result<Vec<_>>>()?;
        self.embed_tokens(&texts, options)
    }

    /// As [`embed_all`](Self::embed_all), of token ids as they are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the engine gives no hidden states, [`ErrorKind::InvalidInput`] for a text without tokens and a
    /// token beyond the vocabulary, [`ErrorKind::CapacityExceeded`] for one that is longer than the context: nothing is cut;
    /// [`ErrorKind::Cancelled`], and those of the engine.
    pub fn embed_tokens(&self, texts: &[Vec<TokenId>], options: &EmbedOptions) -> Result<Vec<Vec<f32>>> {
        let claimed = self.capabilities();
        if claimed.hidden_states.is_none() {
            let message =
                "the engine gives no hidden states; a bundle has them where it was written with them";
            return Err(Error::unsupported(OPERATION, message).with_context("capability", "hidden_states"));
        }
        let mut session = self.engine().open_session(&SessionOptions::default())?;
        let mut vectors = Vec::with_capacity(texts.len());
        let mut out = StepOutput::new();
        for texts in texts.chunks(claimed.sequences) {
            let sequences = texts.iter().map(|_| session.open()).collect::<Result<Vec<_>>>()?;
            let rows = texts.iter().zip(&sequences);
            let rows: Vec<_> =
                rows.map(|(tokens, &sequence)| Row::hidden(sequence, tokens, options.pooling)).collect();
            session.step(&rows, &control(options.cancel.as_ref()), &mut out)?;
            for row in out.take() {
                vectors.push(match row? {
                    RowResult::Hidden(vector) if options.normalize => normalized(vector),
                    RowResult::Hidden(vector) => vector,
                    _ => return Err(no_vector()),
                });
            }
            sequences.into_iter().try_for_each(|sequence| session.close(sequence))?;
        }
        Ok(vectors)
    }
}

/// The vector at length 1; zeros stay as they are.
fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&element| f64::from(element).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|element| *element = (f64::from(*element) / length) as f32);
    }
    vector
}

fn only(mut vectors: Vec<Vec<f32>>) -> Result<Vec<f32>> {
    vectors.pop().ok_or_else(no_vector)
}

fn no_vector() -> Error {
    Error::new(ErrorKind::Internal, OPERATION, "the engine answered with something else than was wanted")
}
