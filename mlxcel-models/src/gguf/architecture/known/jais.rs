//! Jais.

use super::shared::*;

pub(super) const JAIS2: Architecture = Architecture {
    name: "jais2",
    model_type: "jais2",
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps")]],
    present: &[("attn_q.bias", "attention_bias"), ("ffn_up.bias", "mlp_bias")],
    ..PLAIN
};
