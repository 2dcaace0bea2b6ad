//! GLM-4: GLM-4-9B with norms before and after each operation.
//!
//! Config fields, defaults and arithmetic follow transformers' `Glm4Config` and `Glm4ForCausalLM`.

use super::glm::decoder;
use super::prelude::*;

pub(super) const FAMILY: Family =
    Family::new(&["glm4"], &[151_329, 151_336, 151_338], |roles| decoder(roles, NORMS_AFTER));

/// The norms after each operation.
pub(super) const NORMS_AFTER: Option<[&str; 2]> = Some(["post_self_attn_layernorm", "post_mlp_layernorm"]);
