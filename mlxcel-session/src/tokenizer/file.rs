//! `tokenizer.json`, read and checked, and the tokenizer that it describes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mlxcel_core::{Error, ErrorKind, Printable, Result, TokenId};
use mlxcel_template::Origins;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokenizers::{
    AddedToken, Encoding, Model as _, Normalizer, OffsetType, PostProcessorWrapper, PreTokenizedString,
    PreTokenizer, TokenizerImpl,
};

use super::added::{AddedTokens, Known};
use super::bytes;
use super::frame::Frame;
use super::normalizers::{Normalization, Normalizers};
use super::splitting::{Decoders, PreTokenizers};
use super::vocabulary::{AnyModel, LONGEST_TOKEN, Model, ModelSection};
use super::world::World;

/// How long a text may be that is encoded, in bytes: several times what a million tokens hold, and some
/// gigabytes of memory in the crate.
pub(super) const LONGEST_TEXT: usize = 16 << 20;
/// How long a text may become, in bytes, where every step makes it grow as much as it can.
const LONGEST_GROWN: usize = 64 << 20;
/// What a token covers at least, for a limit on texts by tokens: real vocabularies hold longer ones.
const LEAST_COVERED: usize = 16;

/// What is around the model of RWKV World: letters stand for bytes, and one token is not of the text.
const AROUND_WORLD: &str = r#"{
    "added_tokens": [{ "content": "<|rwkv_tokenizer_end_of_text|>", "special": true }],
    "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
    "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false }
}"#;

/// How long a section that lists steps may be, in bytes; a charsmap has some 320,000.
const LONGEST_SECTION: usize = 4 << 20;

/// The file. Padding and truncation are for training: a prompt is taken as it is.
#[derive(Deserialize)]
struct File<'a> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    model: Option<ModelSection>,
    /// Whether text is in small letters before all else.
    #[serde(skip)]
    lower_case: bool,
}

/// An added token; its id is that of its text in the vocabulary, or the next one.
#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// The crate's tokenizer, of parts that were checked, and what it may be asked.
pub(super) struct Checked {
    tokenizer: TokenizerImpl<AnyModel, Normalizers, PreTokenizers, PostProcessorWrapper, Decoders>,
    pub(super) frame: Frame,
    /// How many times as long the steps make a text.
    growth: usize,
    /// How many bytes of a text a token covers at most.
    covered: usize,
    added: AddedTokens,
    /// What decoding does to one token.
    of_token: Vec<bytes::Step>,
}

impl Checked {
    /// Reads the file. With `lower_case` a normalizer puts text in small letters first. `is_marker` says which
    /// added tokens are for the chat template to write.
    pub(super) fn read(bytes: &[u8], lower_case: bool, is_marker: impl Fn(&str) -> bool) -> Reading<Self> {
        reading(|| {
            let mut file: File<'_> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            file.lower_case = lower_case;
            let model = file.model.take().ok_or("it has no model")?.build()?;
            Self::with_model(file, model, is_marker)
        })
    }

    /// Reads the [vocabulary of RWKV World](super::world).
    pub(super) fn of_world(bytes: &[u8], is_marker: impl Fn(&str) -> bool) -> Reading<Self> {
        reading(|| {
            let world = World::read(bytes)?;
            let file: File<'_> = serde_json::from_str(AROUND_WORLD).map_err(|error| error.to_string())?;
            let model = Model { longest: world.longest(), model: AnyModel::World(world) };
            Self::with_model(file, model, is_marker)
        })
    }

    /// The steps of the file around `model`.
    fn with_model(file: File<'_>, model: Model, is_marker: impl Fn(&str) -> bool) -> Reading<Self> {
        if file.version.as_ref().is_some_and(|version| version != "1.0") {
            return Err("its version is unknown".to_owned());
        }
        let frame = Frame::read(section(file.post_processor)?.as_ref())?;
        let mut normalizer = section(file.normalizer)?;
        if file.lower_case {
            let steps = json!([{ "type": "Lowercase" }, normalizer]);
            normalizer = Some(json!({ "type": "Sequence", "normalizers": steps }));
        }
        let normalization = Normalization::read(normalizer.as_ref())?;
        let (pre_tokenizers, splitting_growth) = PreTokenizers::read(section(file.pre_tokenizer)?.as_ref())?;
        let (decoders, of_token) = Decoders::read(section(file.decoder)?.as_ref())?;
        if let Some(long) = file.added_tokens.iter().find(|token| token.content.len() > LONGEST_TOKEN) {
            return Err(format!(
                "an added token has {} bytes, more than {LONGEST_TOKEN}",
                long.content.len()
            ));
        }
        let normalized =
            file.added_tokens.iter().filter(|token| token.normalized).map(|token| token.content.len());
        if normalized.sum::<usize>().saturating_mul(normalization.growth) > LONGEST_GROWN {
            return Err("the added tokens grow too long".to_owned());
        }
        let added = file.added_tokens.iter().map(|token| token.content.len()).max().unwrap_or(0);
        // Composed forms and the like have up to a fourth of the bytes.
        let covered = model.longest.max(added).max(LEAST_COVERED) * if normalization.shrinks { 4 } else { 1 };
        let mut tokenizer = TokenizerImpl::new(model.model);
        tokenizer.with_normalizer(normalization.normalizers).map_err(|error| error.to_string())?;
        tokenizer.with_pre_tokenizer(pre_tokenizers);
        tokenizer.with_decoder(decoders);
        let added_tokens = file.added_tokens.into_iter().map(|token| {
            AddedToken::from(token.content, token.special)
                .single_word(token.single_word)
                .lstrip(token.lstrip)
                .rstrip(token.rstrip)
                .normalized(token.normalized)
        });
        tokenizer.add_tokens(added_tokens).map_err(|error| error.to_string())?;
        let known = tokenizer.get_added_vocabulary();
        let added = known.get_added_tokens_decoder().iter().map(|(&id, token)| Known {
            id,
            token: token.clone(),
            normal_form: known.simple_id_to_token(id).unwrap_or_else(|| token.content.clone()),
        });
        let added = AddedTokens::new(added.collect(), is_marker)?;
        Ok(Self {
            frame,
            growth: normalization.growth.saturating_mul(splitting_growth),
            covered,
            added,
            of_token,
            tokenizer,
        })
    }

    /// The token ids of `text`, with those around it if `add_special_tokens`.
    pub(super) fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>> {
        let ids = self.encode_with(text, || self.tokenizer.encode_fast(text, false))?;
        if !add_special_tokens {
            return Ok(ids);
        }
        Ok([&self.frame.before, &*ids, &self.frame.after].concat())
    }

    /// Tokens of two texts as a pair, with the type of each.
    pub(super) fn pair(&self, texts: [&[TokenId]; 2]) -> Result<(Vec<TokenId>, Vec<u8>)> {
        self.frame.pair(texts).ok_or_else(|| {
            let message = "the tokenizer has no template for pairs of texts";
            Error::unsupported("tokenize", message).with_context("field", "post_processor.pair")
        })
    }

    /// The token ids of `text`, in which control tokens are taken from where they may stand alone.
    pub(super) fn encode_parts(&self, text: &str, origins: &Origins) -> Result<Vec<TokenId>> {
        self.encode_with(text, || {
            let mut pieces = PreTokenizedString::from(text);
            pieces.split(|_, piece| Ok(self.added.split(piece, origins, false)))?;
            pieces.split(|_, mut piece| {
                if let Some(normalizers) = self.tokenizer.get_normalizer() {
                    normalizers.normalize(&mut piece)?;
                }
                Ok(self.added.split(piece, origins, true))
            })?;
            if let Some(pre_tokenizers) = self.tokenizer.get_pre_tokenizer() {
                pre_tokenizers.pre_tokenize(&mut pieces)?;
            }
            let model = self.tokenizer.get_model();
            pieces.tokenize(|word| self.added.tokenize(word, origins, |text| model.tokenize(text)))?;
            pieces.into_encoding(None, 0, OffsetType::None)
        })
    }

    /// What `encode` makes of `text`.
    fn encode_with(
        &self,
        text: &str,
        encode: impl FnOnce() -> tokenizers::Result<Encoding>,
    ) -> Result<Vec<TokenId>> {
        let most = LONGEST_TEXT.min(LONGEST_GROWN / self.growth.max(1));
        if text.len() > most {
            return Err(too_long(text, most, "the text is too long to encode"));
        }
        let encoding = run(encode).map_err(|fault| {
            Error::new(ErrorKind::InvalidInput, "tokenize", "the tokenizer cannot encode the text")
                .with_source(fault)
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Refuses a text that surely has more than `most_tokens` tokens, without encoding it.
    ///
    /// A token covers at most as many bytes as the longest one of the vocabulary has. The exceptions are
    /// spaces and unknown characters that a tokenizer leaves out or takes together: a text that consists
    /// of them is refused as well.
    pub(super) fn check_length(&self, text: &str, most_tokens: usize) -> Result<()> {
        let most = most_tokens.saturating_mul(self.covered);
        if text.len() <= most {
            return Ok(());
        }
        Err(too_long(text, most, "the prompt is longer than the context")
            .with_context("context", most_tokens))
    }

    /// The text of `tokens`.
    pub(super) fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String> {
        run(|| self.tokenizer.decode(tokens, skip_special_tokens)).map_err(|fault| {
            Error::new(ErrorKind::InvalidInput, "detokenize", "the tokenizer cannot decode the tokens")
                .with_source(fault)
        })
    }

    pub(super) fn vocabulary_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// All ids, ascending; there may be gaps between them.
    pub(super) fn ids(&self) -> Vec<TokenId> {
        let mut ids = Vec::from_iter(self.tokenizer.get_vocab(true).into_values());
        ids.sort_unstable();
        ids
    }

    pub(super) fn token_id(&self, token: &str) -> Option<TokenId> {
        self.tokenizer.token_to_id(token)
    }

    pub(super) fn token(&self, id: TokenId) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    pub(super) fn is_special(&self, id: TokenId) -> bool {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
    }

    /// The bytes that a token adds to a text.
    pub(super) fn token_bytes(&self, id: TokenId) -> Option<Vec<u8>> {
        self.token(id).map(|token| bytes::of_token(&self.of_token, token))
    }
}

/// The values of a section.
fn section(text: Option<&RawValue>) -> Reading<Option<Value>> {
    let Some(text) = text.map(RawValue::get) else { return Ok(None) };
    if text.len() > LONGEST_SECTION {
        return Err(format!("a section of {} bytes is longer than {LONGEST_SECTION}", text.len()));
    }
    serde_json::from_str(text).map(Some).map_err(|error| error.to_string())
}

fn too_long(text: &str, most: usize, message: &'static str) -> Error {
    Error::new(ErrorKind::CapacityExceeded, "tokenize", message)
        .with_context("bytes", text.len())
        .with_context("limit", most)
}

/// What is read of a file, or what is wrong with it.
type Reading<T> = std::result::Result<T, String>;

fn reading<T>(read: impl FnOnce() -> Reading<T>) -> Reading<T> {
    let read = guarded(read).unwrap_or_else(|| Err("its parts are inconsistent".to_owned()));
    read.map_err(|fault| Printable(&fault).to_string())
}

/// What the crate's tokenizer gives, or why it gives nothing.
fn run<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Reading<T> {
    let done = guarded(work).unwrap_or_else(|| Err("the tokenizer failed".into()));
    done.map_err(|error| Printable(&error.to_string()).to_string())
}

/// What `work` gives; none where the crate panics.
///
/// Files are checked so that it does not. If it panics nevertheless, the caller gets an error; its message
/// goes to the panic hook, which belongs to the application, and nothing of the tokenizer is in an undefined
/// state: it changes nothing while it encodes but caches that hold whole entries.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
