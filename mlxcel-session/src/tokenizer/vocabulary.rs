//! The model of a tokenizer: its vocabulary and how words are split into it.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use mlxcel_core::TokenId;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{ModelWrapper, Token};

use super::world::World;

/// How long a token may be, in bytes; texts are decoded some hundreds at a time.
pub(super) const LONGEST_TOKEN: usize = 4096;
/// How long a token of a model may be that tries every beginning of a text (in bytes), and a word that is
/// split by trying (in characters): the time for a text grows with their squares.
const LONGEST_TRIED: usize = 256;
/// How long the affixes of parts of words may be, in bytes; they are put together with every character.
const LONGEST_AFFIX: usize = 64;

/// The section `model` of `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct ModelSection {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Vocabulary,
    merges: Option<Vec<Merge>>,
    unk_token: Option<String>,
    unk_id: Option<usize>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<usize>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// Tokens by their ids, or with their scores in the order of their ids.
enum Vocabulary {
    Ids(Vocab),
    Scores(Vec<(String, f64)>),
}

/// Two tokens that become one.
struct Merge(String, String);

/// A model, and how many bytes its longest token has.
pub(super) struct Model {
    pub(super) model: AnyModel,
    pub(super) longest: usize,
}

/// A model of the crate `tokenizers`, or that of RWKV World.
pub(super) enum AnyModel {
    Crate(ModelWrapper),
    World(World),
}

/// Calls the method of the model that it is.
macro_rules! model {
    ($any:expr, $model:ident => $call:expr) => {
        match $any {
            Self::Crate($model) => $call,
            Self::World($model) => $call,
        }
    };
}

impl tokenizers::Model for AnyModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        model!(self, model => model.tokenize(text))
    }

    fn token_to_id(&self, token: &str) -> Option<TokenId> {
        model!(self, model => model.token_to_id(token))
    }

    fn id_to_token(&self, id: TokenId) -> Option<String> {
        model!(self, model => model.id_to_token(id))
    }

    fn get_vocab(&self) -> HashMap<String, TokenId> {
        model!(self, model => model.get_vocab())
    }

    fn get_vocab_size(&self) -> usize {
        model!(self, model => model.get_vocab_size())
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        model!(self, model => model.save(folder, prefix))
    }

    fn get_trainer(&self) -> Self::Trainer {
        model!(self, model => model.get_trainer())
    }
}

impl ModelSection {
    /// Makes the model; what the crate `tokenizers` would panic at is an error.
    pub(super) fn build(self) -> Result<Model, String> {
        let longest = self.vocab.longest();
        if longest > LONGEST_TOKEN {
            return Err(format!("a token of {longest} bytes is longer than {LONGEST_TOKEN}"));
        }
        let kind = self.kind().to_owned();
        let model = match (kind.as_str(), self.vocab) {
            ("BPE", Vocabulary::Ids(vocab)) => {
                let merges = self.merges.ok_or("a BPE model has merges")?;
                let prefix = affix(self.continuing_subword_prefix)?;
                let suffix = affix(self.end_of_word_suffix)?;
                for Merge(first, second) in &merges {
                    let second = second.strip_prefix(prefix.as_str());
                    let length = second.map(|second| first.len() + second.len());
                    if length.is_none_or(|length| length > longest) {
                        return Err("a merge makes no token of the vocabulary".to_owned());
                    }
                }
                let merges: Merges = merges.into_iter().map(|Merge(first, second)| (first, second)).collect();
                let mut builder = BPE::builder()
                    .vocab_and_merges(vocab, merges)
                    .fuse_unk(self.fuse_unk.unwrap_or(false))
                    .byte_fallback(self.byte_fallback.unwrap_or(false))
                    .ignore_merges(self.ignore_merges.unwrap_or(false));
                if let Some(token) = self.unk_token {
                    builder = builder.unk_token(token);
                }
                if !prefix.is_empty() {
                    builder = builder.continuing_subword_prefix(prefix);
                }
                if !suffix.is_empty() {
                    builder = builder.end_of_word_suffix(suffix);
                }
                builder.build().map(ModelWrapper::BPE)
            }
            ("WordPiece", Vocabulary::Ids(vocab)) => {
                let most = self.max_input_chars_per_word.unwrap_or(100);
                if most > LONGEST_TRIED {
                    return Err(format!("words of {most} characters are more than {LONGEST_TRIED}"));
                }
                WordPiece::builder()
                    .vocab(vocab)
                    .unk_token(self.unk_token.ok_or("a WordPiece model has a token for unknown words")?)
                    .continuing_subword_prefix(affix(self.continuing_subword_prefix)?)
                    .max_input_chars_per_word(most)
                    .build()
                    .map(ModelWrapper::WordPiece)
            }
            ("WordLevel", Vocabulary::Ids(vocab)) => {
                let unknown = self.unk_token.ok_or("a WordLevel model has a token for unknown words")?;
                WordLevel::builder().vocab(vocab).unk_token(unknown).build().map(ModelWrapper::WordLevel)
            }
            ("Unigram", Vocabulary::Scores(vocab)) => {
                if longest > LONGEST_TRIED {
                    return Err(format!("a token of {longest} bytes is longer than {LONGEST_TRIED}"));
                }
                if vocab.is_empty()
                    || vocab.iter().any(|(token, score)| token.is_empty() || !score.is_finite())
                {
                    return Err("a token is empty, or there is none".to_owned());
                }
                Unigram::from(vocab, self.unk_id, self.byte_fallback.unwrap_or(false))
                    .map(ModelWrapper::Unigram)
            }
            _ => return Err("the model is of an unknown kind, or its vocabulary of another".to_owned()),
        };
        Ok(Model { model: AnyModel::Crate(model.map_err(|error| error.to_string())?), longest })
    }

    /// The kind of the model; older files do not say it.
    fn kind(&self) -> &str {
        match (&self.kind, &self.vocab) {
            (Some(kind), _) => kind,
            (None, Vocabulary::Scores(_)) => "Unigram",
            (None, Vocabulary::Ids(_)) if self.merges.is_some() => "BPE",
            (None, Vocabulary::Ids(_)) if self.max_input_chars_per_word.is_some() => "WordPiece",
            (None, Vocabulary::Ids(_)) => "WordLevel",
        }
    }
}

/// An affix of parts of words; empty if there is none.
fn affix(affix: Option<String>) -> Result<String, String> {
    let affix = affix.unwrap_or_default();
    if affix.len() > LONGEST_AFFIX {
        return Err(format!("an affix of {} bytes is longer than {LONGEST_AFFIX}", affix.len()));
    }
    Ok(affix)
}

impl Vocabulary {
    fn longest(&self) -> usize {
        let longest = match self {
            Self::Ids(ids) => ids.keys().map(String::len).max(),
            Self::Scores(scores) => scores.iter().map(|(token, _)| token.len()).max(),
        };
        longest.unwrap_or(0)
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tokens to ids, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut ids = Vocab::default();
                while let Some((token, id)) = map.next_entry::<String, u32>()? {
                    // Ids are counted on from the largest.
                    if id > u32::MAX / 2 {
                        return Err(de::Error::custom("an id of a token is too large"));
                    }
                    ids.insert(token, id);
                }
                Ok(Vocabulary::Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
                let mut scores = Vec::new();
                while let Some(entry) = list.next_element()? {
                    scores.push(entry);
                }
                Ok(Vocabulary::Scores(scores))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, in a list or with a space between them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((first, second)) if !second.contains(' ') => {
                        Ok(Merge(first.to_owned(), second.to_owned()))
                    }
                    _ => Err(E::invalid_value(de::Unexpected::Str("a merge"), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge, A::Error> {
                match (list.next_element()?, list.next_element()?, list.next_element::<String>()?) {
                    (Some(first), Some(second), None) => Ok(Merge(first, second)),
                    _ => Err(de::Error::invalid_length(0, &self)),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}
