//! Prompts.

use mlxcel_core::{Error, ErrorKind, Result, TokenId};

use crate::chat::Message;
use crate::detokenize::Detokenizer;
use crate::model::Model;
use crate::options::Options;

/// A prompt: text, messages or token ids. Converts from each of them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Prompt<'a> {
    /// A text without a chat template. The tokenizer's leading special tokens (such as BOS) are added.
    Text(&'a str),
    /// A conversation to answer, rendered by the checkpoint's chat template.
    Chat(&'a [Message]),
    /// Token ids, used as they are.
    Tokens(&'a [TokenId]),
}

macro_rules! from_references {
    ($($(const $n:ident)? $item:ty => $kind:ident),*) => {$(
        impl<'a $(, const $n: usize)?> From<&'a $item> for Prompt<'a> {
            fn from(prompt: &'a $item) -> Self {
                Self::$kind(prompt)
            }
        }
    )*};
}
from_references!(str => Text, String => Text);
from_references!([Message] => Chat, const N [Message; N] => Chat, Vec<Message> => Chat);
from_references!([TokenId] => Tokens, const N [TokenId; N] => Tokens, Vec<TokenId> => Tokens);

/// What [`Engine::map`](crate::Engine::map) completes: anything that has a prompt.
pub trait AsPrompt {
    /// Its prompt.
    fn as_prompt(&self) -> Prompt<'_>;
}

macro_rules! as_prompt {
    ($($item:ty),*) => {$(
        impl AsPrompt for $item {
            fn as_prompt(&self) -> Prompt<'_> {
                self.into()
            }
        }
    )*};
}
as_prompt!(str, String, [Message], Vec<Message>, [TokenId], Vec<TokenId>);

impl<T: AsPrompt + ?Sized> AsPrompt for &T {
    fn as_prompt(&self) -> Prompt<'_> {
        (**self).as_prompt()
    }
}

impl Prompt<'_> {
    /// The prompt's tokens, and what turns those that follow it into text; none for a model without
    /// tokenizer.
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
                if tokens.is_empty() {
                    let reason = "the model's chat template renders these messages as an empty prompt";
                    return Err(Error::new(ErrorKind::InvalidInput, "apply chat template", reason));
                }
                Ok((tokens, Some(Detokenizer::new(tokenizer.clone(), skip))))
            }
            Self::Tokens(tokens) => {
                let tokenizer = model.tokenizer().ok().cloned();
                Ok((tokens.to_vec(), tokenizer.map(|tokenizer| Detokenizer::new(tokenizer, skip))))
            }
        }
    }
}
