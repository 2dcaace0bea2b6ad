//! Mistral: Llama whose positions see a sliding window.
//!
//! Settings, their defaults and the arithmetic are those of transformers' `MistralConfig` and `MistralForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::llama::{LARGEST_CONTEXT, Variant, describe_variant};
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;

pub(super) const FAMILY: Family = Family { model_types: &["mistral"], assumed_stop_token: Some(2), describe };

fn describe(checkpoint: &Checkpoint) -> Result<Decoder> {
    let config = checkpoint.config();
    // `null` turns the window off; only where nothing is said is it 4,096.
    let window = match config.size("sliding_window", 1..=LARGEST_CONTEXT)? {
        None if !config.mentions("sliding_window") => Some(4096),
        window => window,
    };
    describe_variant(
        checkpoint,
        &Variant { context_length: 4096 * 32, kv_heads: Some(8), biases: false, window },
    )
}
