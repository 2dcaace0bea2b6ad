//! VaultGemma: Gemma 2 without norms after operations.
//!
//! Config fields, defaults and arithmetic follow transformers' `VaultGemmaConfig` and
//! `VaultGemmaForCausalLM`.

use super::gemma2::{capped, variant};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["vaultgemma"], &[1], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    capped(roles, |config, sizes, cap| Ok(Variant { norms_after: None, ..variant(config, sizes, cap)? }))
}
