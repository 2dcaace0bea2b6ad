//! ELECTRA: BERT whose embeddings can be narrower than its layers (Clark et al., 2020).
//!
//! Config fields, defaults and arithmetic follow transformers' `ElectraModel`.

use super::bert::{self, Settings};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["electra"], &[], describe);

const DEFAULTS: SizeDefaults =
    SizeDefaults { hidden: 256, intermediate: 1024, query_heads: 4, ..bert::DEFAULTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_text(config, bert::POSITIONS, "absolute")?;
    let settings = Settings::read(config, "electra.", &DEFAULTS)?;
    let width = config.size("embedding_size", 1..=LARGEST_WIDTH)?.unwrap_or(128);
    let embedding = (width != settings.sizes.hidden).then_some(width);
    bert::encoder(roles, Settings { embedding, ..settings })
}
