//! Cohere.

use super::super::Architecture;
use super::super::Rows::Pairs;
use super::{LAYER_EPSILON, PLAIN};

pub(super) const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    model_type: "cohere",
    rows: Pairs,
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("logit_scale", "logit_scale")]],
    present: &[("attn_q.bias", "attention_bias"), ("attn_q_norm.weight", "use_qk_norm")],
    ..PLAIN
};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    model_type: "cohere2",
    rows: Pairs,
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("logit_scale", "logit_scale")]],
    adapt: |draft| draft.windows(4),
    ..PLAIN
};
