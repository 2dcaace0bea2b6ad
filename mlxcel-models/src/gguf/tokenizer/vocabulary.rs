//! The vocabulary of a file.

use mlxcel_core::{Result, TokenId};

use super::super::metadata::{Metadata, Numbers};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    fn from_number(number: f64) -> Self {
        match number as i64 {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// A token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) id: TokenId,
    pub(super) text: &'a str,
    pub(super) ty: TokenType,
}

/// All tokens, in the order of their ids.
pub(super) struct Vocabulary<'a> {
    texts: Vec<&'a str>,
    types: Option<Numbers<'a>>,
    scores: Option<Numbers<'a>>,
}

impl<'a> Vocabulary<'a> {
    /// Reads the tokens; there is a type and a score for each, where the file has types and scores.
    pub(super) fn read(metadata: Metadata<'a>) -> Result<Self> {
        let texts = metadata.texts(TOKENS)?.ok_or_else(|| metadata.absent(TOKENS))?;
        let texts = texts.iter().collect::<Result<Vec<_>>>()?;
        let numbers = |key: &str| -> Result<Option<Numbers<'a>>> {
            match metadata.numbers(key)? {
                Some(numbers) if numbers.count < texts.len() => {
                    let message = format!("{} values are given for {} tokens", numbers.count, texts.len());
                    Err(metadata.corrupt(key, message))
                }
                numbers => Ok(numbers),
            }
        };
        Ok(Self { types: numbers(TYPES)?, scores: numbers(SCORES)?, texts })
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// How a token is written.
    pub(super) fn text(&self, id: TokenId) -> Option<&'a str> {
        self.texts.get(id as usize).copied().filter(|text| !text.is_empty())
    }

    /// Each token.
    pub(super) fn tokens(&self) -> impl Iterator<Item = Token<'a>> {
        let mut types = self.types.map(Numbers::iter);
        (0..).zip(&self.texts).map(move |(id, text)| {
            let number = types.as_mut().and_then(Iterator::next).unwrap_or(1.0);
            Token { id, text, ty: TokenType::from_number(number) }
        })
    }

    /// The score of each token; zeros where the file has none.
    pub(super) fn scores(&self) -> impl Iterator<Item = f64> {
        let mut scores = self.scores.map(Numbers::iter);
        std::iter::from_fn(move || Some(scores.as_mut().and_then(Iterator::next).unwrap_or(0.0)))
    }
}
