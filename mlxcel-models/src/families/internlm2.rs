//! InternLM 2: Llama with one matrix of queries, keys and values, grouped by key/value head.
//!
//! Config fields, defaults and tensor names follow `InternLM2Config` and `InternLM2ForCausalLM` of the
//! published files, and mlx-lm; the arithmetic is Llama's.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{core, plain_attention, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Decoder, Gating, Mlp};

pub(super) const FAMILY: Family = Family::new(&["internlm2"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 103_168,
    hidden: 4096,
    intermediate: 11_008,
    layers: 32,
    query_heads: 32,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = flag(config, "bias", true)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let rope = sizes.rope(config).read()?;

    let base = roles.base("model.", "tok_embeddings");
    let norm = |name: &str| roles.rms_norm(name, hidden, epsilon);
    let attention = |module: &str| {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let name = |part: &str| format!("{module}.{part}");
        let fused = name("wqkv");
        // GGUF files have three.
        let inputs = if roles.has_matrix(&fused) {
            roles.fused(&fused, queries + 2 * keys, hidden, biases)?.by_group(&sizes)
        } else {
            roles.attention_inputs(module, hidden, &sizes, biases)?
        };
        let output = roles.linear(&name("wo"), hidden, queries, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))))
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let linear = |part: &str, outputs, inputs| {
            roles.linear(&name(&format!("feed_forward.{part}")), outputs, inputs, false)
        };
        let mlp = Mlp::Gated {
            gating: Gating::Activated(activation),
            gate: linear("w1", intermediate, hidden)?,
            up: linear("w3", intermediate, hidden)?,
            norm: None,
            down: linear("w2", hidden, intermediate)?,
        };
        Ok(sequential([
            pre_norm(norm(&name("attention_norm"))?, attention(&name("attention"))?),
            pre_norm(norm(&name("ffn_norm"))?, mlp),
        ]))
    };
    // In GGUF files as that of all families.
    let head = if roles.has_matrix("output") { "output" } else { "lm_head" };
    let outline = Outline {
        embedding: format!("{base}tok_embeddings"),
        head: head.to_owned(),
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
