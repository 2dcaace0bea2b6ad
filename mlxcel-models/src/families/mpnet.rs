//! MPNet: BERT without token types, whose scores depend on the distance of two tokens too (Song et al.,
//! 2020).
//!
//! Config fields, defaults and arithmetic follow transformers' `MPNetModel`.

use super::bert::{self, Names, Settings};
use super::prelude::*;
use crate::decoder::DISTANCE_BUCKETS;

pub(super) const FAMILY: Family = Family::new(&["mpnet"], &[2], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { vocabulary: 30_527, ..bert::DEFAULTS };

const NAMES: Names = Names {
    inputs: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    buckets: Some("encoder.relative_attention_bias"),
    ..bert::NAMES
};

/// The row of the table of positions for position 0. Those before are not used, whatever the padding token.
const OFFSET: usize = 2;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    // The reference computes these buckets, whatever the number of rows.
    expect_number(config, "relative_attention_num_buckets", DISTANCE_BUCKETS as f64)?;
    let settings = Settings::read(config, "mpnet.", &DEFAULTS)?;
    bert::encoder(roles, Settings { names: NAMES, offset: OFFSET, types: None, ..settings })
}
