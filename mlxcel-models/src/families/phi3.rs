//! Phi-3 and Phi-4: Llama with fused projections, and rotary embedding with two sets of frequencies.
//!
//! Config fields, defaults and arithmetic follow transformers' `Phi3Config` and `Phi3ForCausalLM`.

use super::prelude::*;
use crate::rope::Kinds;

pub(super) const FAMILY: Family = Family::new(&["phi3"], &[32_000], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 32_064,
    hidden: 3072,
    intermediate: 8192,
    context: 4096,
    ..SizeDefaults::LLAMA
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    for key in ["attention_bias", "mlp_bias", "lm_head_bias"] {
        expect_flag(config, key, false)?;
    }
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let window = window(config, "sliding_window", None)?;
    let rope = RopeSettings {
        partial: Partial::Part { key: "partial_rotary_factor", default: 1.0 },
        kinds: Kinds::LongRope { original_context: 4096 },
        ..sizes.rope(config)
    }
    .read()?;
    let variant = Variant { epsilon: 1e-5, mlp_form: MlpForm::Fused, ..Variant::PLAIN };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), window, Some(&rope)))
}
