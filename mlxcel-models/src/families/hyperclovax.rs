//! HyperCLOVA X: Granite with norms after attention and MLPs, and logits that are multiplied instead of
//! divided.
//!
//! Config fields, defaults and arithmetic follow transformers' `HyperCLOVAXConfig` and
//! `HyperCLOVAXForCausalLM`.

use super::granite::{ATTENTION_SCALE, scaled};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["hyperclovax"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &SizeDefaults::LLAMA)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        norms_after: flag(config, "use_post_norm", true)?.then_some(["post_norm1", "post_norm2"]),
        mlp_biases: flag(config, "mlp_bias", false)?,
        logit_scale: number(config, "logits_scaling", 1.0)?,
        wrapper_scales: true,
        ..scaled(config)?
    };
    let scale = number(config, ATTENTION_SCALE, sizes.scale().into())?;
    variant.decoder(roles, &sizes, |_| core(scale, None, Some(&rope)))
}
