//! What programs move between devices.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// An operation by which devices exchange data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Collective {
    /// XLA's name for it, such as `all-reduce`.
    pub operation: String,
    /// The bytes of its result on each device.
    pub bytes: u64,
}

/// The collectives of a program, as some lines: their number and bytes, then grouped by kind.
pub(crate) struct Listed<'a>(pub(crate) &'a [Collective]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.0.iter().map(|collective| collective.bytes).sum();
        writeln!(f, "{} collectives, {total} bytes on each device", self.0.len())?;
        let mut alike: BTreeMap<&Collective, usize> = BTreeMap::new();
        for collective in self.0 {
            *alike.entry(collective).or_default() += 1;
        }
        for (Collective { operation, bytes }, count) in alike {
            writeln!(f, "          {count} x {operation} of {bytes} bytes")?;
        }
        Ok(())
    }
}
