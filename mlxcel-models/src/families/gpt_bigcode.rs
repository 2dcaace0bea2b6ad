//! GPTBigCode (StarCoder, SantaCoder): GPT-2 with one key/value head for all query heads.
//!
//! Config fields, defaults and arithmetic follow transformers' `GPTBigCodeConfig` and
//! `GPTBigCodeForCausalLM`.

use super::gpt2::{DEFAULTS, decoder, sizes};
use super::prelude::*;
use super::roles::Fused;

pub(super) const FAMILY: Family = Family::new(&["gpt_bigcode"], &[50_256], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_flag(config, "add_cross_attention", false)?;
    let sizes = sizes(config, &DEFAULTS)?;
    let kv_heads = if flag(config, "multi_query", true)? { 1 } else { sizes.query_heads };
    let sizes = Sizes { kv_heads, ..sizes };
    let scale = if flag(config, "scale_attn_weights", true)? { sizes.scale() } else { 1.0 };
    let module = |name: &str, outputs, inputs| roles.fused(name, outputs, inputs, true);
    decoder(roles, &sizes, |_| scale, module, Fused::by_group)
}
