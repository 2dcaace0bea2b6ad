//! A model of random logits, and what its texts are asked to be.

use std::sync::Arc;

use mlxcel_session::{
    Capabilities, Completion, Grammar, Model, ModelInfo, Options, Result, TokenId, Tokenizer,
};

use crate::support::mix;
pub use crate::support::{Chance, Scripted, storyteller};

pub fn tokenizer() -> Tokenizer {
    Tokenizer::open(storyteller()).unwrap()
}

/// An engine whose logits are a random function of the last token and the position. Tokens that end something
/// are more likely than others, for texts to end.
pub fn random(tokenizer: &Tokenizer, seed: u64) -> Scripted {
    let mut info = ModelInfo::new("random", "random", tokenizer.vocabulary_size());
    info.stop_tokens = tokenizer.special_token_id("eos_token").into_iter().collect();
    let bias = |token| {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        let ends = bytes.iter().any(|byte| b"\"}]".contains(byte)) && bytes.len() < 3;
        let rare = bytes.len() == 1 && bytes[0].is_ascii_digit() || bytes.contains(&b',');
        if ends || info.stop_tokens.contains(&token) {
            7.0
        } else if rare {
            -2.0
        } else {
            0.0
        }
    };
    let bias: Vec<f32> = (0..info.vocabulary_size as TokenId).map(bias).collect();
    Scripted::new(info, Capabilities::new(4, 4096).with_logits(true), move |tokens, _| {
        let seed = mix(seed ^ (tokens.len() as u64) << 32 ^ u64::from(*tokens.last().unwrap()));
        let logit = |(token, bias)| {
            // The sum of four uniform draws is near enough to a normal one.
            let draw = mix(seed ^ token);
            let sum: u64 = (0..4).map(|part| draw >> (16 * part) & 0xffff).sum();
            (sum as f32 / 65536.0 - 2.0) * 3.0 + bias
        };
        (0..).zip(&bias).map(logit).collect()
    })
}

/// [`random`], with its tokenizer.
pub fn random_model(tokenizer: &Tokenizer, seed: u64) -> Model {
    Model::from_parts(Arc::new(random(tokenizer, seed)), tokenizer.clone())
}

/// Options of draws that say all sorts of things.
pub fn hot(tokens: usize, seed: u64) -> Options {
    Options::new(tokens).with_temperature(1.5).with_seed(seed)
}

/// What a model of random logits says under `grammar`.
pub fn say(tokenizer: &Tokenizer, grammar: Grammar, tokens: usize, seed: u64) -> Result<Completion> {
    random_model(tokenizer, seed).generate("x", &hot(tokens, seed).with_grammar(grammar))?.complete()
}
