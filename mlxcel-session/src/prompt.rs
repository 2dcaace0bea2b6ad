//! What a generation continues.

use mlxcel_core::{Error, ErrorKind, Result, TokenId};

use crate::{Detokenizer, Message, Model, Options};

/// What a generation continues; made from a text, messages or token ids.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Prompt<'a> {
    /// A text as it stands; the tokens that the model wants in front of a text are added.
    Text(&'a str),
    /// A conversation to answer, whose prompt the checkpoint's chat template writes.
    Chat(&'a [Message]),
    /// Token ids as they are.
    Tokens(&'a [TokenId]),
}

impl<'a> From<&'a str> for Prompt<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Prompt<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [Message]> for Prompt<'a> {
    fn from(messages: &'a [Message]) -> Self {
        Self::Chat(messages)
    }
}

impl<'a, const N: usize> From<&'a [Message; N]> for Prompt<'a> {
    fn from(messages: &'a [Message; N]) -> Self {
        Self::Chat(messages)
    }
}

impl<'a> From<&'a Vec<Message>> for Prompt<'a> {
    fn from(messages: &'a Vec<Message>) -> Self {
        Self::Chat(messages)
    }
}

impl<'a> From<&'a [TokenId]> for Prompt<'a> {
    fn from(tokens: &'a [TokenId]) -> Self {
        Self::Tokens(tokens)
    }
}

impl<'a, const N: usize> From<&'a [TokenId; N]> for Prompt<'a> {
    fn from(tokens: &'a [TokenId; N]) -> Self {
        Self::Tokens(tokens)
    }
}

impl<'a> From<&'a Vec<TokenId>> for Prompt<'a> {
    fn from(tokens: &'a Vec<TokenId>) -> Self {
        Self::Tokens(tokens)
    }
}

impl Prompt<'_> {
    /// The prompt's tokens, and what turns those that follow it into text; none for a model without tokenizer.
    pub(crate) fn encode(
        self,
        model: &Model,
        options: &Options,
    ) -> Result<(Vec<TokenId>, Option<Detokenizer>)> {
        let most_tokens = model.capabilities().context;
        let skip = options.skip_special_tokens;
        match self {
            Self::Text("") => Err(Error::new(ErrorKind::InvalidInput, "generate", "the prompt is empty")),
            Self::Text(text) => {
                let tokenizer = model.tokenizer()?;
                let tokens = tokenizer.encode_prompt(text, true, most_tokens)?;
                let detokenizer = Detokenizer::after(tokenizer.clone(), skip, &tokens)?;
                Ok((tokens, Some(detokenizer)))
            }
            Self::Chat(messages) => {
                let tokenizer = model.tokenizer()?;
                let tokens = tokenizer.encode_chat_prompt(messages, &options.chat, most_tokens)?;
                Ok((tokens, Some(Detokenizer::new(tokenizer.clone(), skip))))
            }
            Self::Tokens(tokens) => {
                let tokenizer = model.tokenizer().ok().cloned();
                Ok((tokens.to_vec(), tokenizer.map(|tokenizer| Detokenizer::new(tokenizer, skip))))
            }
        }
    }
}
