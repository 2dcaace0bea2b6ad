//! Prompts that a completion repeats, with the log probabilities of their tokens.

use std::sync::Arc;

use mlxcel_session::{CancelToken, ScoreOptions, Share, TokenId};

use crate::completions::OwnedPrompt;
use crate::failure::ApiError;
use crate::logprobs::{self, TextLogprobs};
use crate::served::ServedModel;
use crate::work::CancelledOnDrop;

/// A prompt as its answers repeat it.
pub(crate) struct Echo {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) text: String,
    /// If they are wanted.
    pub(crate) logprobs: Option<TextLogprobs>,
}

/// Those of `prompts`, with log probabilities of `top` tokens beside each, if wanted. They are scored one after another,
/// by the thread that embeds texts, which clients take turns at.
pub(crate) async fn echoes(
    app: &Arc<ServedModel>,
    share: Share,
    prompts: &[OwnedPrompt],
    top: Option<u16>,
) -> Result<Vec<Echo>, ApiError> {
    if top.is_some() {
        app.expect_no_adapter("log probabilities of a prompt")?;
    }
    let left = CancelledOnDrop(CancelToken::new());
    let mut echoes = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let (prompt, of, cancel) = (prompt.clone(), Arc::clone(app), left.0.clone());
        echoes.push(app.server.embedding.run(share.client, move || echo(&of, &prompt, top, cancel)).await??);
    }
    Ok(echoes)
}

fn echo(
    app: &ServedModel,
    prompt: &OwnedPrompt,
    top: Option<u16>,
    cancel: CancelToken,
) -> Result<Echo, ApiError> {
    let (model, tokenizer) = (app.engine.model(), app.tokenizer()?);
    let (tokens, text) = match prompt {
        OwnedPrompt::Text(text) => {
            // A text that no context holds is refused before it is encoded.
            if text.is_empty() || text.len() / LONGEST_TOKEN > model.capabilities().context {
                return Err(ApiError::invalid("prompt", "the prompt is empty, or longer than the context"));
            }
            let mut tokens = tokenizer.tokens_before().to_vec();
            tokens.extend(tokenizer.encode(text, false)?);
            (tokens, text.clone())
        }
        OwnedPrompt::Tokens(tokens) => (tokens.clone(), tokenizer.decode(tokens, false)?),
    };
    if tokens.len() > model.capabilities().context {
        return Err(ApiError::invalid("prompt", "the prompt is longer than the context"));
    }
    let logprobs = match top {
        None => None,
        // The first token has none.
        Some(_) if tokens.len() < 2 => Some(logprobs::of_prompt(tokenizer, &tokens, &[None], &[])),
        Some(top) => {
            let mut options = ScoreOptions::default();
            (options.top, options.cancel) = (top, Some(cancel));
            let score = model.score_tokens(&tokens, &options)?;
            Some(logprobs::of_prompt(tokenizer, &tokens, &score.logprobs, &score.top))
        }
    };
    Ok(Echo { tokens, text, logprobs })
}

/// The most bytes that a token is taken for.
const LONGEST_TOKEN: usize = 64;
