//! Cohere 2 (Command R7B, Command A): parallel attention and MLP after one layer norm; of every four layers,
//! three have a window and rotary embedding of adjacent elements, and one attends to all positions without
//! rotary embedding.
//!
//! Config fields, defaults and arithmetic follow transformers' `Cohere2Config` and `Cohere2ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, parallel, pre_norm};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{
    LARGEST_LAYER_COUNT, SizeDefaults, Sizes, activation, expect_flag, expect_number, expect_text, flag,
    number, positive, sliding_windows, window,
};
use crate::config::Fields;
use crate::decoder::{Activation, Decoder};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family::new(&["cohere2"], &[255_001], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 256_000,
        hidden: 8192,
        intermediate: 22_528,
        layers: 40,
        query_heads: 64,
        kv_heads: None,
        head_dim: None,
        context: 8192,
    };
    refuse_other_structures(config)?;
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "layer_norm_eps", 1e-5)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", true)?;
    let pattern = config.size("sliding_window_pattern", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(4);
    let window = window(config, "sliding_window", Some(4096))?;
    let windows = sliding_windows(config, sizes.layers, window, |index| (index + 1) % pattern != 0)?;
    let rope = RopeSettings { interleaved: true, ..sizes.rope(config) }.read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, false);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), windows[index], windows[index].and(Some(&rope)));
        let norm = norm(&name("input_layernorm"))?;
        Ok(parallel([
            pre_norm(norm, roles.attention(&name("self_attn"), &sizes, biases, core)?),
            pre_norm(
                norm,
                roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?,
            ),
        ]))
    };
    let outline =
        Outline { logit_scale: number(config, "logit_scale", 0.0625)?, ..Outline::new(&sizes, &base, tied) };
    roles.decoder(outline, norm, layer)
}

/// The errors for what the keys of published files allow beyond what transformers implements.
pub(super) fn refuse_other_structures(config: Fields<'_>) -> Result<()> {
    expect_flag(config, "use_qk_norm", false)?;
    expect_flag(config, "use_gated_activation", true)?;
    expect_flag(config, "use_parallel_block", true)?;
    expect_number(config, "rotary_pct", 1.0)?;
    expect_text(config, "position_embedding_type", "rope_gptj")?;
    expect_text(config, "order_of_interleaved_layers", "local_attn_first")
}
