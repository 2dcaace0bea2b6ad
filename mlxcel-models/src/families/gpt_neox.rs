//! GPT-NeoX and Pythia: layer norms, MLPs without gates, rotary embedding of a quarter of each head, parallel
//! attention and MLP.
//!
//! Config fields, defaults and arithmetic follow transformers' `GPTNeoXConfig` and `GPTNeoXForCausalLM`.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["gpt_neox"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_432,
    hidden: 6144,
    intermediate: 24_576,
    layers: 44,
    query_heads: 64,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?.with_equal_heads(config)?;
    let hidden = sizes.hidden;
    let biases = flag(config, "attention_bias", true)?;
    let by_head = flag(config, "fused_by_head", true)?;
    let rope = RopeSettings {
        theta_key: "rotary_emb_base",
        partial: Partial::Part { key: "rotary_pct", default: 0.25 },
        ..sizes.rope(config)
    }
    .read()?;
    let variant = Variant {
        base: "gpt_neox.",
        embedding: "embed_in",
        epsilon: 1e-5,
        epsilon_key: "layer_norm_eps",
        norm_kind: NormKind::Layer,
        parallel: flag(config, "use_parallel_residual", true)?,
        last_norm: "final_layer_norm",
        mlp_form: MlpForm::Plain(["dense_h_to_4h", "dense_4h_to_h"]),
        mlp_biases: true,
        activation: Activation::Gelu,
        // Newer checkpoints call the head as all families do.
        head: Some(if roles.has_matrix("embed_out") { "embed_out" } else { "lm_head" }),
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let name = |part: &str| format!("{layer}.attention.{part}");
        let fused = roles.fused(&name("query_key_value"), 3 * hidden, hidden, biases)?;
        // In GGUF files all queries, keys and values follow each other.
        let inputs = if by_head { fused.by_group(&sizes) } else { fused.in_order(&sizes) };
        let output = roles.linear(&name("dense"), hidden, hidden, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))).into())
    };
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, attention, |_, layer| mlp(layer))
}
