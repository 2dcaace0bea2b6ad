//! Converts a GGUF file's tokenizer to `tokenizer.json` and `tokenizer_config.json`, so that it passes the
//! same checks as any other.
//!
//! The file contains the vocabulary. Everything else it only names: the kind of tokenizer, and for byte-level
//! ones the pre-tokenizer. The names stand for the tokenizers of the models they were introduced for.

mod byte_level;
mod sentencepiece;
mod splits;
mod stop;
mod unigram;
mod vocabulary;
mod wordpiece;
mod world;
mod writer;

use std::borrow::Cow;

use mlxcel_core::{Result, TokenId};
use serde_json::{Map, Value, json};

use super::Gguf;
use super::architecture::ARCHITECTURE;
use super::metadata::Metadata;
use vocabulary::{Token, TokenType, Vocabulary};
use writer::Writer;

const MODEL: &str = "tokenizer.ggml.model";
const MERGES: &str = "tokenizer.ggml.merges";
const TEMPLATE: &str = "tokenizer.chat_template";
const TEMPLATES: &str = "tokenizer.chat_templates";

/// Far above any published model.
const MOST_TEMPLATES: usize = 64;

/// What a kind of tokenizer decides.
struct Kind {
    /// Whether a text begins with a token of its own where the file does not say.
    begins: bool,
    /// Whether it ends with one where the file does not say.
    ends: bool,
    pair: Pair,
    /// The ids of the special tokens that the file does not name.
    defaults: fn(&str) -> Option<TokenId>,
}

/// How two texts stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pair {
    /// There is no form for two.
    None,
    /// The first token, a text, the last token, the other text, which is of another type, and the last token.
    OfTypes,
    /// The same, both texts of one type.
    Joined,
    /// The same, with the last token twice between them.
    Apart,
}

/// The [vocabulary of RWKV World](world::vocabulary); none where the file has another tokenizer.
pub(super) fn world_vocabulary(gguf: &Gguf) -> Result<Option<String>> {
    let metadata = gguf.metadata();
    match model(metadata)? {
        Some(Model::World) => world::vocabulary(metadata, &Vocabulary::read(metadata)?).map(Some),
        _ => Ok(None),
    }
}

/// `tokenizer.json`; none where the file has no tokenizer, or that of RWKV World.
pub(super) fn tokenizer(gguf: &Gguf) -> Result<Option<String>> {
    let metadata = gguf.metadata();
    let Some(model) = model(metadata)? else { return Ok(None) };
    let vocabulary = Vocabulary::read(metadata)?;
    // Phi-3's control tokens take the space behind them, but for those that no template writes.
    let is_phi3 = matches!(model, Model::SentencePiece) && metadata.text(ARCHITECTURE)? == Some("phi3");
    let takes_space = |token: &Token<'_>| {
        is_phi3 && token.ty == TokenType::Control && !["<unk>", "<s>", "<|endoftext|>"].contains(&token.text)
    };
    let mut out = Writer::new(metadata.location);
    out.raw("{\"version\":\"1.0\",\"added_tokens\":");
    let added = vocabulary.tokens().filter_map(|token| match token.ty {
        TokenType::Control | TokenType::UserDefined if !token.text.is_empty() => Some(json!({
            "id": token.id, "content": token.text, "special": token.ty == TokenType::Control,
            "single_word": false, "lstrip": false, "rstrip": takes_space(&token), "normalized": false,
        })),
        _ => None,
    });
    out.list(added, |out, token| out.value(&token))?;
    let kind = match model {
        Model::ByteLevel => byte_level::write(&mut out, metadata, &vocabulary)?,
        Model::SentencePiece => {
            sentencepiece::write(&mut out, metadata, &vocabulary, true)?;
            sentencepiece::kind()
        }
        Model::Gemma4 => {
            sentencepiece::write(&mut out, metadata, &vocabulary, false)?;
            GEMMA_4
        }
        Model::WordPiece => {
            wordpiece::write(&mut out, metadata, &vocabulary)?;
            wordpiece::kind()
        }
        Model::Unigram => {
            unigram::write(&mut out, metadata, &vocabulary)?;
            unigram::kind()
        }
        Model::World => return Ok(None),
    };
    out.raw(",\"post_processor\":");
    out.value(&frame(metadata, &vocabulary, &kind)?)?;
    out.raw("}");
    Ok(Some(out.finish()))
}

/// `tokenizer_config.json`: special tokens and chat templates.
pub(super) fn tokenizer_config(gguf: &Gguf) -> Result<Option<Map<String, Value>>> {
    let metadata = gguf.metadata();
    let Some(model) = model(metadata)? else { return Ok(None) };
    let vocabulary = Vocabulary::read(metadata)?;
    let kind = model.kind(metadata)?;
    let mut config = Map::new();
    for (role, key) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        let token = special(metadata, &vocabulary, &kind, key)?;
        let text = |id| match (model, id) {
            (Model::World, 0) => Some(world::END_OF_TEXT),
            _ => vocabulary.text(id),
        };
        if let Some(text) = token.and_then(text) {
            config.insert(role.to_owned(), text.into());
        }
    }
    if let Some(templates) = templates(metadata)? {
        config.insert("chat_template".to_owned(), templates);
    }
    Ok(Some(config))
}

/// `generation_config.json`: the tokens that end a text.
pub(super) fn generation_config(gguf: &Gguf) -> Result<Option<Map<String, Value>>> {
    let metadata = gguf.metadata();
    let Some(model) = model(metadata)? else { return Ok(None) };
    let vocabulary = Vocabulary::read(metadata)?;
    let eos = special(metadata, &vocabulary, &model.kind(metadata)?, "eos")?;
    let ids = match model {
        // Files say that a blank line ends a turn, which is an ordinary token within texts.
        Model::World => Vec::from_iter(eos),
        _ => stop::tokens(metadata, &vocabulary, eos)?,
    };
    let mut config = Map::new();
    config.insert("eos_token_id".to_owned(), ids.into());
    Ok(Some(config))
}

/// The kinds of tokenizers that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    /// Byte-level BPE.
    ByteLevel,
    /// SentencePiece BPE with scores.
    SentencePiece,
    /// The same with merges, as Gemma 4 has it.
    Gemma4,
    /// WordPiece, as BERT has it.
    WordPiece,
    /// SentencePiece's unigram model, as T5 and XLM-RoBERTa have it.
    Unigram,
    /// The longest tokens that fit, as RWKV World has them.
    World,
}

/// What Gemma 4's tokenizer decides.
const GEMMA_4: Kind = Kind { begins: true, ends: false, pair: Pair::None, defaults: |_| None };

impl Model {
    fn kind(self, metadata: Metadata<'_>) -> Result<Kind> {
        match self {
            Self::ByteLevel => byte_level::kind(metadata),
            Self::SentencePiece => Ok(sentencepiece::kind()),
            Self::Gemma4 => Ok(GEMMA_4),
            Self::WordPiece => Ok(wordpiece::kind()),
            Self::Unigram => Ok(unigram::kind()),
            Self::World => Ok(world::kind()),
        }
    }
}

/// The kind of the tokenizer; none where the file has none.
fn model(metadata: Metadata<'_>) -> Result<Option<Model>> {
    match metadata.text(MODEL)? {
        None | Some("none" | "no_vocab") => Ok(None),
        Some("gpt2") => Ok(Some(Model::ByteLevel)),
        Some("llama") => Ok(Some(Model::SentencePiece)),
        Some("gemma4") => Ok(Some(Model::Gemma4)),
        Some("bert") => Ok(Some(Model::WordPiece)),
        Some("t5") => Ok(Some(Model::Unigram)),
        Some("rwkv") => Ok(Some(Model::World)),
        Some(other) => {
            let message = format!(
                "tokenizers of kind '{}' are not supported; gpt2 (byte-level), llama (sentencepiece), gemma4, bert (WordPiece), t5 \
                 (unigram) and rwkv are",
                other.escape_debug()
            );
            Err(metadata.unsupported(MODEL, message))
        }
    }
}

/// Writes the id of each token, which `write` spells as the original does.
fn ids<'a>(
    out: &mut Writer<'_>,
    vocabulary: &Vocabulary<'a>,
    write: impl Fn(Token<'a>) -> Cow<'a, str>,
) -> Result<()> {
    out.object(vocabulary.tokens().filter(|token| !token.text.is_empty()), |out, token| {
        out.value(&write(token))?;
        out.raw(":");
        out.value(&token.id)
    })
}

/// Writes the pairs of tokens that are joined, in order.
fn merges(out: &mut Writer<'_>, metadata: Metadata<'_>) -> Result<()> {
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.absent(MERGES))?;
    out.list(merges.iter(), |out, merge| {
        let merge = merge?;
        // A token may begin with a space.
        let at = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ').map(|(at, _)| at);
        let Some((first, second)) = at.map(|at| (&merge[..at], &merge[at + 1..])) else {
            return Err(metadata.wrong(MERGES, "pairs of tokens with a space between them"));
        };
        out.value(&[first, second])
    })
}

/// The special token of a role.
fn special(
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    kind: &Kind,
    role: &str,
) -> Result<Option<TokenId>> {
    let token = |role: &str| metadata.token(&format!("tokenizer.ggml.{role}_token_id"), vocabulary.len());
    let named = match (token(role)?, role) {
        // What older files of encoders call them.
        (None, "bos") => token("cls")?,
        (None, "eos") => token("seperator")?,
        (named, _) => named,
    };
    let default = (kind.defaults)(role).filter(|id| (*id as usize) < vocabulary.len());
    Ok(named.or(default))
}

/// The tokens around a text.
fn frame(metadata: Metadata<'_>, vocabulary: &Vocabulary<'_>, kind: &Kind) -> Result<Value> {
    let wanted =
        |key: &str, default: bool| Ok::<_, mlxcel_core::Error>(metadata.flag(key)?.unwrap_or(default));
    let begins = wanted("tokenizer.ggml.add_bos_token", kind.begins)?;
    let ends = wanted("tokenizer.ggml.add_eos_token", kind.ends)?;
    let token = |wanted: bool, role: &str| -> Result<Option<(TokenId, &str)>> {
        let id = if wanted { special(metadata, vocabulary, kind, role)? } else { None };
        Ok(id.and_then(|id| Some((id, vocabulary.text(id)?))))
    };
    let (first, last) = (token(begins, "bos")?, token(ends, "eos")?);
    if first.is_none() && last.is_none() {
        return Ok(Value::Null);
    }
    let piece =
        |ty: usize| move |(_, text): (TokenId, &str)| json!({"SpecialToken": {"id": text, "type_id": ty}});
    let text = |name: &str, ty: usize| json!({"Sequence": {"id": name, "type_id": ty}});
    let framed = |first: Option<_>, name: &str, ty: usize| -> Vec<Value> {
        first.map(piece(ty)).into_iter().chain([text(name, ty)]).chain(last.map(piece(ty))).collect()
    };
    let single = framed(first, "A", 0);
    let second = match kind.pair {
        Pair::None => None,
        Pair::OfTypes => Some(framed(None, "B", 1)),
        Pair::Joined => Some(framed(None, "B", 0)),
        // What the second text begins with is what the first one ends with.
        Pair::Apart => Some(framed(last, "B", 0)),
    };
    let pair = second.map_or_else(Vec::new, |second| [single.clone(), second].concat());
    let tokens: Map<_, _> = first
        .into_iter()
        .chain(last)
        .map(|(id, text)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    Ok(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}))
}

/// The chat template, or several by name.
fn templates(metadata: Metadata<'_>) -> Result<Option<Value>> {
    // Older files of RWKV name a template of llama.cpp.
    let default = metadata.text(TEMPLATE)?.filter(|template| *template != "rwkv-world");
    let Some(names) = metadata.texts(TEMPLATES)? else { return Ok(default.map(Value::from)) };
    if names.count > MOST_TEMPLATES {
        let message = format!("{} chat templates are more than {MOST_TEMPLATES}", names.count);
        return Err(metadata.corrupt(TEMPLATES, message));
    }
    let entry = |name: &str, template: &str| json!({"name": name, "template": template});
    let mut all: Vec<_> = default.into_iter().map(|template| entry("default", template)).collect();
    for name in names.iter() {
        let name = name?;
        if let Some(template) = metadata.text(&format!("{TEMPLATE}.{name}"))?.filter(|_| name != "default") {
            all.push(entry(name, template));
        }
    }
    Ok(Some(Value::Array(all)))
}
