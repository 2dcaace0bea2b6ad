//! Cohere.

use super::super::Architecture;
use super::super::Rows::Pairs;
use super::{LAYER_EPSILON, PLAIN};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    model_type: "cohere2",
    rows: Pairs,
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps"), ("logit_scale", "logit_scale")]],
    adapt: |draft| draft.windows(4),
    ..PLAIN
};
