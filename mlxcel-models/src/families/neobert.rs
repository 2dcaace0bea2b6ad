//! NeoBERT: a pre-norm encoder with rotary positions and gated MLPs (Le Breton et al., 2025).
//!
//! Config fields, defaults and arithmetic follow the authors' `NeoBERT`. llama.cpp reads the rows of queries,
//! keys and values in another order, which its converter does not bring them into.

use super::bert;
use super::encoder::both_ways;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["neobert"], &[], describe);

/// Widths of MLPs are multiples of this.
const STEP: usize = 8;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_text(config, "hidden_act", "SwiGLU")?;
    for (key, expected) in [("rope", true), ("rms_norm", true), ("ngpt", false)] {
        expect_flag(config, key, expected)?;
    }
    let defaults = SizeDefaults { layers: 28, context: 1024, ..bert::DEFAULTS };
    let mut sizes = Sizes::read(config, &defaults)?.with_equal_heads(config)?;
    sizes.context = config.size("max_length", 1..=LARGEST_CONTEXT)?.unwrap_or(defaults.context);
    sizes.intermediate = (2 * sizes.intermediate / 3).next_multiple_of(STEP);
    let epsilon = positive(config, "norm_eps", 1e-6)?;
    let rope = RopeSettings { interleaved: true, ..sizes.rope(config) }.read()?;

    let base = roles.base("model.", "encoder");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}transformer_encoder.{index}.{part}");
        let hidden = sizes.hidden;
        let fused = roles.fused(&name("qkv"), 3 * hidden, hidden, false)?;
        let inputs = fused.by_group(&sizes);
        let output = roles.linear(&name("wo"), hidden, hidden, false)?;
        let core = both_ways(sizes.scale(), None, Some(&rope));
        let attention = plain_attention(&sizes, inputs, output, core);
        let shape = [hidden, sizes.intermediate];
        let mlp = roles.fused_gated_mlp(&name("ffn"), ["w12", "w3"], shape, Activation::Silu, false)?;
        Ok(sequential([
            pre_norm(norm(&name("attention_norm"))?, attention),
            pre_norm(norm(&name("ffn_norm"))?, mlp),
        ]))
    };
    let outline = Outline {
        embedding: format!("{base}encoder"),
        norm: Some(format!("{base}layer_norm")),
        head: None,
        ..Outline::new(&sizes, &base, false)
    };
    roles.decoder(outline, norm, layer)
}
