//! The prompts of a completion, and the input of embeddings.

use mlxcel_session::{Prompt, TokenId};
use serde::Deserialize;

use crate::failure::ApiError;
use crate::kinds::Kind;
use crate::served::ServedModel;
use crate::texts::check_tokens;

/// Texts or tokens, one or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<TokenId>),
    ManyTokens(Vec<Vec<TokenId>>),
}

/// The type of a field with prompts.
pub(crate) const PROMPTS: Kind = Kind::Either(&[
    Kind::Text,
    Kind::List(&Kind::Text),
    Kind::List(&Kind::Token),
    Kind::List(&Kind::List(&Kind::Token)),
]);

#[derive(Clone)]
pub(crate) enum OwnedPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

impl OwnedPrompt {
    /// Fails for a prompt that is empty or has tokens outside the vocabulary.
    fn check(&self, app: &ServedModel, param: &str) -> Result<(), ApiError> {
        let is_empty = match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => {
                check_tokens(app, tokens, param)?;
                tokens.is_empty()
            }
        };
        if is_empty { Err(ApiError::invalid(param, "a text must not be empty")) } else { Ok(()) }
    }

    pub(crate) fn as_prompt(&self) -> Prompt<'_> {
        match self {
            Self::Text(text) => text.into(),
            Self::Tokens(tokens) => tokens.into(),
        }
    }
}

impl Prompts {
    /// All of them, which the request has in the field `param`.
    ///
    /// # Errors
    /// If there is none, if there are more than `most`, or if one is empty or has tokens outside the
    /// vocabulary.
    pub(crate) fn into_list(
        self,
        app: &ServedModel,
        param: &str,
        most: usize,
    ) -> Result<Vec<OwnedPrompt>, ApiError> {
        let list: Vec<_> = match self {
            Self::Text(text) => vec![OwnedPrompt::Text(text)],
            Self::Tokens(tokens) => vec![OwnedPrompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(OwnedPrompt::Text).collect(),
            Self::ManyTokens(prompts) => prompts.into_iter().map(OwnedPrompt::Tokens).collect(),
        };
        if !(1..=most).contains(&list.len()) {
            return Err(ApiError::invalid(param, format!("{param} must be from 1 to {most} texts")));
        }
        list.iter().try_for_each(|prompt| prompt.check(app, param))?;
        Ok(list)
    }
}
