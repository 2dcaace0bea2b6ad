//! Hunyuan (dense): Llama with norms of queries and keys after their rotation, and a rotary embedding whose
//! base is stretched.
//!
//! Config fields, defaults and arithmetic follow transformers' `HunYuanDenseV1Config` and
//! `HunYuanDenseV1ForCausalLM`.

use super::prelude::*;
use crate::rope::Kinds;

pub(super) const FAMILY: Family = Family::new(&["hunyuan_v1_dense"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 290_943, ..SizeDefaults::LLAMA };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let (sizes, variant, core) = structure(roles.config)?;
    variant.decoder(roles, &sizes, |_| core.clone())
}

/// The sizes, the differences to Llama and the attention of dense Hunyuans and those with experts.
pub(super) fn structure(config: Fields<'_>) -> Result<(Sizes, Variant, AttentionCore)> {
    // Keys of published files beyond what transformers implements.
    expect_flag(config, "use_qk_norm", true)?;
    expect_flag(config, "use_cla", false)?;
    // Norms after the rotation see elements in another order.
    expect_flag(config, "rope_interleave", false)?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let kinds = Kinds::NtkAlpha;
    let rope = RopeSettings { kinds, ..sizes.rope(config) }.read()?;
    let variant = Variant {
        epsilon: 1e-5,
        attention_biases: AttentionBiases::read(config)?,
        head_norms: Some((NormScope::RotatedHead, ["query_layernorm", "key_layernorm"])),
        ..Variant::PLAIN
    };
    Ok((sizes, variant, core(sizes.scale(), None, Some(&rope))))
}
