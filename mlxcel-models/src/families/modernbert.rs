//! ModernBERT: a pre-norm encoder with rotary positions and gated MLPs, in which two of three layers see a
//! window (Warner et al., 2024).
//!
//! Config fields, defaults and arithmetic follow transformers' `ModernBertModel`.

use super::bert;
use super::encoder::both_ways;
use super::prelude::*;
use crate::rope::LayerRopes;

pub(super) const FAMILY: Family = Family::new(&["modernbert"], &[50_282], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { vocabulary: 50_368, intermediate: 1152, layers: 22, context: 8192, ..bert::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let epsilon = positive(config, "norm_eps", 1e-5)?;
    let norm_bias = flag(config, "norm_bias", false)?;
    let attention_bias = flag(config, "attention_bias", false)?;
    let mlp_bias = flag(config, "mlp_bias", false)?;
    let activation = activation(config, "hidden_activation", Activation::Gelu)?;
    let every = config.size("global_attn_every_n_layers", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(3);
    // Half of it on either side, and the position itself.
    let local = match config.size("sliding_window", 0..=LARGEST_CONTEXT / 2)? {
        Some(side) => 2 * side,
        None => config.size("local_attention", 0..=LARGEST_CONTEXT)?.unwrap_or(128),
    };
    let windows = sliding_windows(config, sizes.layers, Some(local / 2 + 1), |index| index % every != 0)?;
    const SCALING: &str = "rope_scaling";
    if config.object(SCALING)?.is_some() {
        let message = "scaling of layers of both types is supported in rope_parameters alone".to_owned();
        return Err(config.unsupported(SCALING, message));
    }
    let rope = RopeSettings { theta_key: "global_rope_theta", theta: 160_000.0, ..sizes.rope(config) };
    let LayerRopes { full, sliding } = rope.read_by_layer_type((Some("local_rope_theta"), 10_000.0))?;

    let base = roles.base("model.", "embeddings.tok_embeddings");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, norm_bias);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let hidden = sizes.hidden;
        // Embeddings are normalized already.
        let before = if index == 0 { None } else { Some(norm(&name("attn_norm"))?) };
        let inputs = roles.fused(&name("attn.Wqkv"), 3 * hidden, hidden, attention_bias)?.thirds(hidden);
        let output = roles.linear(&name("attn.Wo"), hidden, hidden, attention_bias)?;
        let rope = if windows[index].is_some() { &sliding } else { &full };
        let core = both_ways(sizes.scale(), windows[index], Some(rope));
        let attention = plain_attention(&sizes, inputs, output, core);
        let attention = Block { norm_before: before, ..plain(attention) };
        let shape = [hidden, sizes.intermediate];
        let mlp = roles.fused_gated_mlp(&name("mlp"), ["Wi", "Wo"], shape, activation, mlp_bias)?;
        Ok(sequential([attention, pre_norm(norm(&name("mlp_norm"))?, mlp)]))
    };
    let outline = Outline {
        embedding: format!("{base}embeddings.tok_embeddings"),
        embedding_norm: Some(format!("{base}embeddings.norm")),
        norm: Some(format!("{base}final_norm")),
        head: None,
        ..Outline::new(&sizes, &base, false)
    };
    roles.decoder(outline, norm, layer)
}
