//! Pre-tokenizers by their names in GGUF files.
//!
//! The regular expressions are those of the `tokenizer.json` of the models that the names come from.

use super::Pair;

/// A step of splitting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Split {
    /// Matches of a regular expression, and the text between them.
    Expression(&'static str),
    /// Single digits.
    Digits,
    /// GPT-2's regular expression.
    Gpt2,
}

/// A way to split texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitting {
    /// The names that it has in files.
    names: &'static [&'static str],
    pub(super) splits: &'static [Split],
    /// Whether a word that is a token is that token, whatever pairs would make of it.
    pub(super) whole_words: bool,
    /// Whether a text begins with a token of its own where the file does not say.
    pub(super) begins: bool,
    /// Whether it ends with one where the file does not say.
    pub(super) ends: bool,
    /// How two texts stand together.
    pub(super) pair: Pair,
    /// Whether characters are composed first.
    pub(super) composes: bool,
}

const PLAIN: Splitting = Splitting {
    names: &[],
    splits: &[],
    whole_words: false,
    begins: false,
    ends: false,
    pair: Pair::None,
    composes: false,
};

/// Of an encoder, whose texts stand between two tokens.
const FRAMED: Splitting = Splitting { begins: true, ends: true, pair: Pair::Joined, ..PLAIN };

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// All that are known.
const ALL: &[Splitting] = &[
    Splitting {
        names: &[
            "gpt-2", "phi-2", "mpt", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
            "mellum",
        ],
        splits: &[Split::Gpt2],
        ..PLAIN
    },
    Splitting { names: &["olmo"], splits: &[Split::Gpt2], composes: true, ..PLAIN },
    Splitting { names: &["roberta-bpe"], splits: &[Split::Gpt2], pair: Pair::Apart, ..FRAMED },
    Splitting { names: &["modern-bert"], splits: &[Split::Gpt2], composes: true, ..FRAMED },
    Splitting {
        names: &[
            "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2",
        ],
        splits: &[Split::Digits, Split::Gpt2],
        ..PLAIN
    },
    Splitting {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "midm-2.0", "lfm2", "pixtral"],
        splits: &[Split::Expression(LLAMA_3)],
        whole_words: true,
        begins: true,
        ..PLAIN
    },
    Splitting {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        splits: &[Split::Expression(LLAMA_3)],
        ..PLAIN
    },
    Splitting { names: &["glm4", "glm5"], splits: &[Split::Expression(LLAMA_3)], whole_words: true, ..PLAIN },
    Splitting { names: &["qwen2"], splits: &[Split::Expression(QWEN_2)], composes: true, ..PLAIN },
    Splitting {
        names: &["deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "solar-open"],
        splits: &[Split::Expression(QWEN_2)],
        ..PLAIN
    },
    Splitting { names: &["qwen35"], splits: &[Split::Expression(QWEN_3_5)], composes: true, ..PLAIN },
    Splitting { names: &["kimi-k2"], splits: &[Split::Expression(KIMI_K2)], ..PLAIN },
    Splitting {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        splits: &[Split::Expression(GPT_4O)],
        ..PLAIN
    },
    Splitting {
        names: &["tekken"],
        splits: &[Split::Expression(TEKKEN)],
        whole_words: true,
        begins: true,
        ..PLAIN
    },
    Splitting { names: &["seed-coder"], splits: &[Split::Expression(SEED)], ..PLAIN },
    Splitting {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        splits: &[
            Split::Expression(r"\p{N}{1,3}"),
            Split::Expression("[一-龥\u{3040}-ゟ゠-ヿ]+"),
            Split::Expression(DEEPSEEK_3),
        ],
        ..PLAIN
    },
    Splitting {
        names: &["deepseek-coder"],
        splits: &[
            Split::Expression("[\r\n]"),
            Split::Expression(r"\s?\p{L}+"),
            Split::Expression(r"\s?\p{P}+"),
            Split::Expression("[一-龥\u{800}-一가-\u{d7ff}]+"),
            Split::Digits,
        ],
        ..PLAIN
    },
];

/// The way of this name.
pub(super) fn find(name: &str) -> Option<&'static Splitting> {
    ALL.iter().find(|splitting| splitting.names.contains(&name))
}

/// The names of all ways.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().flat_map(|splitting| splitting.names.iter().copied())
}
