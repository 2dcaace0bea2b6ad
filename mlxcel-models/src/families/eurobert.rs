//! EuroBERT: Llama without a head, read in both directions (Boizard et al., 2025).
//!
//! Config fields, defaults and arithmetic follow transformers' `EuroBertModel`.

use super::bert;
use super::encoder::both_ways;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["eurobert"], &[128_001], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 128_256, context: 8192, ..bert::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = sizes.rope(config).read()?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::read(config)?,
        mlp_biases: flag(config, "mlp_bias", false)?,
        head: None,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| both_ways(sizes.scale(), None, Some(&rope)))
}
