//! Prompts that a completion repeats, with the log probabilities of their tokens.

use std::sync::Arc;

use mlxcel_session::{CancelToken, ScoreOptions, Share, TokenId};

use crate::failure::ApiError;
use crate::logprobs::{self, TextLogprobs};
use crate::prompts::OwnedPrompt;
use crate::served::ServedModel;

/// A prompt as its answers repeat it.
#[derive(Clone)]
pub(crate) struct Echo {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) text: String,
    /// If they are wanted.
    pub(crate) logprobs: Option<TextLogprobs>,
}

/// Those of `prompts`, with log probabilities of `top` tokens beside each, if wanted. They are scored by the
/// engine, some at a time, after which it is another client's turn.
pub(crate) async fn echoes(
    app: &Arc<ServedModel>,
    share: Share,
    prompts: &[OwnedPrompt],
    top: Option<u16>,
) -> Result<Vec<Echo>, ApiError> {
    if top.is_some() {
        app.expect_no_adapter("log probabilities of a prompt")?;
    }
    let of = Arc::clone(app);
    let part = move |part: &[OwnedPrompt], cancel| {
        let mut part = part.iter().map(|prompt| echo(&of, prompt)).collect::<Result<Vec<_>, _>>()?;
        if let Some(top) = top {
            score(&of, &mut part, top, cancel)?;
        }
        Ok(part)
    };
    Ok(app.in_turns(share.client, prompts, part).await?.into_iter().flatten().collect())
}

/// A prompt without log probabilities.
fn echo(app: &ServedModel, prompt: &OwnedPrompt) -> Result<Echo, ApiError> {
    let (context, tokenizer) = (app.engine.model().capabilities().context, app.tokenizer()?);
    let (tokens, text) = match prompt {
        OwnedPrompt::Text(text) => {
            // A text that no context holds is refused before it is encoded.
            if text.is_empty() || text.len() / LONGEST_TOKEN > context {
                return Err(ApiError::invalid("prompt", "the prompt is empty, or longer than the context"));
            }
            let mut tokens = tokenizer.tokens_before().to_vec();
            tokens.extend(tokenizer.encode(text, false)?);
            (tokens, text.clone())
        }
        OwnedPrompt::Tokens(tokens) => (tokens.clone(), tokenizer.decode(tokens, false)?),
    };
    if tokens.len() > context {
        return Err(ApiError::invalid("prompt", "the prompt is longer than the context"));
    }
    Ok(Echo { tokens, text, logprobs: None })
}

/// Adds the log probabilities.
fn score(app: &ServedModel, echoes: &mut [Echo], top: u16, cancel: CancelToken) -> Result<(), ApiError> {
    let tokenizer = app.tokenizer()?;
    let mut options = ScoreOptions::default();
    (options.top, options.cancel) = (top, Some(cancel));
    // The first token has none.
    let is_scored = |echo: &Echo| echo.tokens.len() > 1;
    let texts: Vec<_> =
        echoes.iter().filter(|echo| is_scored(echo)).map(|echo| echo.tokens.clone()).collect();
    let model = app.engine.model();
    let scores = match model.capabilities().every_position {
        _ if texts.is_empty() => Vec::new(),
        true => app.engine.score_all_tokens(&texts, &options)?,
        // A bundle may lack those programs. Then the logits of one token after another say it, in a session
        // of its own.
        false => model.score_all_tokens(&texts, &options)?,
    };
    let mut scores = scores.into_iter();
    for echo in echoes {
        let score = if is_scored(echo) { scores.next() } else { None };
        echo.logprobs = Some(match score {
            Some(score) => logprobs::of_prompt(tokenizer, &echo.tokens, &score.logprobs, &score.top),
            None => logprobs::of_prompt(tokenizer, &echo.tokens, &[None], &[]),
        });
    }
    Ok(())
}

/// The most bytes that a token is taken for.
const LONGEST_TOKEN: usize = 64;
