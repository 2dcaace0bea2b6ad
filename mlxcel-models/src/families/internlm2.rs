//! InternLM 2: Llama with one matrix of queries, keys and values, grouped by key/value head.
//!
//! Config fields, defaults and tensor names follow `InternLM2Config` and `InternLM2ForCausalLM` of the
//! published files, and mlx-lm; the arithmetic is Llama's.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["internlm2"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 103_168, ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let biases = flag(config, "bias", true)?;
    let gating = Gating::Activated(activation(config, "hidden_act", Activation::Silu)?);
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        embedding: "tok_embeddings",
        norms: Some(["attention_norm", "ffn_norm"]),
        // In GGUF files as that of all families.
        head: Some(if roles.has_matrix("output") { "output" } else { "lm_head" }),
        ..Variant::PLAIN
    };
    let attention = |_, layer: &str| {
        let (queries, keys) = (sizes.query_width(), sizes.kv_width());
        let module = format!("{layer}.attention");
        let fused = format!("{module}.wqkv");
        // GGUF files have three.
        let inputs = if roles.has_matrix(&fused) {
            roles.fused(&fused, queries + 2 * keys, hidden, biases)?.by_group(&sizes)
        } else {
            roles.attention_inputs(&module, hidden, &sizes, biases)?
        };
        let output = roles.linear(&format!("{module}.wo"), hidden, queries, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))).into())
    };
    variant.decoder_of(roles, &sizes, attention, |_, layer| {
        let (module, shape) = (format!("{layer}.feed_forward"), [hidden, sizes.intermediate]);
        Ok(roles.gated_mlp_of(&module, ["w1", "w3", "w2"], shape, gating, false)?.into())
    })
}
