//! A model's vocabulary for grammars: the bytes of each token, and tokenization of a text.

use std::sync::{Arc, Mutex};

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use mlxcel_core::{Error, ErrorKind, Result, TokenId};

use crate::sync::unpoisoned;
use crate::tokenizer::Tokenizer;

/// What the parser of a text may take. Some 15 million units of a lexer's fuel and 20 million items are a
/// second.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // A state has one or two kilobytes.
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Made once for a model, and shared by its clones and their grammars.
#[derive(Clone, Default)]
pub(crate) struct Vocabulary(Arc<Mutex<Option<Arc<ParserFactory>>>>);

impl Vocabulary {
    /// What compiles grammars for the model whose vocabulary this is: of `size` tokens, of which `stops` end
    /// a text.
    pub(crate) fn factory(
        &self,
        tokenizer: &Tokenizer,
        size: usize,
        stops: &[TokenId],
    ) -> Result<Arc<ParserFactory>> {
        let mut made = unpoisoned(self.0.lock());
        if let Some(factory) = &*made {
            return Ok(Arc::clone(factory));
        }
        let factory = catch_unwind(std::panic::AssertUnwindSafe(|| {
            let env: TokEnv = Arc::new(Env::new(tokenizer.clone(), size, stops));
            let capabilities = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
            let mut factory = ParserFactory::new(&env, capabilities, &SlicedBiasComputer::general_slices())?;
            factory.quiet();
            *factory.limits_mut() = limits();
            Ok(Arc::new(factory))
        }))
        .map_err(|fault| {
            let reason = "the tokenizer's vocabulary cannot be used for grammars";
            Error::new(ErrorKind::Unsupported, "read vocabulary", reason).with_source(fault.to_string())
        })?;
        *made = Some(Arc::clone(&factory));
        Ok(factory)
    }
}

struct Env {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

/// The prefix of a text that is cut out of another: no token but that of the byte has it.
const MARK: &str = "\u{2}";

impl Env {
    fn new(tokenizer: Tokenizer, size: usize, stops: &[TokenId]) -> Self {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let words: Vec<Vec<u8>> = (0..size)
            .map(|id| {
                if tokenizer.is_special(id) || stops.contains(&id) {
                    // A text never has it; a grammar names it.
                    let name = tokenizer.token(id).unwrap_or_else(|| format!("[{id}]"));
                    return [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
                }
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes }
            })
            .collect();
        let stops: Vec<TokenId> = stops.iter().copied().filter(|&stop| stop < size).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
        let trie = if stops.is_empty() { trie } else { trie.with_eos_tokens(&stops) };
        Self { trie, tokenizer }
    }

    /// The tokens of `text` as the tokenizer cuts it in the middle of another; none where that is not
    /// certain.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let same = |tokens: &[TokenId], bytes: &[u8]| {
            let mut rest = bytes;
            tokens.iter().all(|&token| {
                let word = self.trie.token(token);
                let next = if word.is_empty() { None } else { rest.strip_prefix(word) };
                rest = next.unwrap_or(rest);
                next.is_some()
            }) && rest.is_empty()
        };
        let tokens = self.tokenizer.encode(text, false).ok()?;
        if same(&tokens, text.as_bytes()) {
            return Some(tokens);
        }
        // Many tokenizers put a space before a text.
        let tokens = self.tokenizer.encode(&format!("{MARK}{text}"), false).ok()?;
        let mark = tokens.iter().position(|&token| self.trie.token(token).ends_with(MARK.as_bytes()))?;
        let tokens = &tokens[mark + 1..];
        same(tokens, text.as_bytes()).then(|| tokens.to_vec())
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.encode(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
