//! How kernels use a processor if several ways compute the same: the fastest differs between processor
//! models, and features do not determine it.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind};

use crate::vector_set::VectorSet;

/// The choices of kernels that depend on the processor's model, or on a measurement of it.
///
/// Results differ at most in summation order, within the precision; weight layouts do not depend on it.
///
/// Printed and parsed as `streams=4 ahead=1024 bf16=floats`:
///
/// ```
/// use mlxcel_iree_kernels::{Bf16Products, Schedule};
///
/// let schedule = Schedule::of("znver5").unwrap();
/// assert_eq!(schedule.to_string(), "streams=1 ahead=8192 bf16=pairs");
/// assert_eq!("streams=1 ahead=8192 bf16=pairs".parse::<Schedule>()?, schedule);
/// assert_eq!(Schedule::of("emeraldrapids").unwrap().bf16, Bf16Products::Floats);
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Schedule {
    /// How many memory streams one core reads side by side when weights are read for one row.
    pub streams: usize,
    /// The prefetch distance of each stream, in bytes.
    pub ahead: usize,
    /// How bfloat16 matrices are multiplied if the processor has an instruction for it.
    pub bf16: Bf16Products,
}

/// How bfloat16 activations are multiplied with bfloat16 weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bf16Products {
    /// With the processor's bfloat16 products: two at a time, or matrices.
    Pairs,
    /// As float32, after widening both.
    Floats,
}

impl Schedule {
    /// The values that [`streams`](Self::streams) can have.
    pub const STREAMS: [usize; 3] = [1, 2, 4];

    /// The values that [`ahead`](Self::ahead) is chosen from: a quarter of a page, and two pages.
    pub const AHEAD: [usize; 2] = [1024, 8192];

    /// The schedule of a processor with this LLVM name, if its kind was measured.
    ///
    /// AMD's cores prefetch one long stream faster than several: on Zen 4, decoding 4-bit weights, one stream
    /// reads memory 1.1 to 1.4 times as fast as four. Their prefetching ends with a page, and arithmetic
    /// for several rows waits for the next one: on Zen 5, prefetching two pages ahead, products of 4-bit
    /// weights with four and eight rows are 1.3 times as fast. Both multiply pairs of bfloat16 at twice
    /// the rate of float32; Intel's cores do it at half that rate.
    pub fn of(cpu: &str) -> Option<Self> {
        const INTEL: [&str; 6] = [
            "cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d",
            "diamondrapids",
        ];
        if cpu.starts_with("znver") {
            Some(Self { streams: 1, ahead: 8192, bf16: Bf16Products::Pairs })
        } else if INTEL.contains(&cpu) {
            Some(Self::unmeasured(VectorSet::Avx512))
        } else {
            None
        }
    }

    /// The same with another number of streams, one of [`STREAMS`](Self::STREAMS).
    #[must_use]
    pub const fn with_streams(mut self, streams: usize) -> Self {
        self.streams = streams;
        self
    }

    /// The same with another prefetch distance, one of [`AHEAD`](Self::AHEAD).
    #[must_use]
    pub const fn with_ahead(mut self, bytes: usize) -> Self {
        self.ahead = bytes;
        self
    }

    /// The same with another way to multiply matrices of bfloat16.
    #[must_use]
    pub const fn with_bf16(mut self, bf16: Bf16Products) -> Self {
        self.bf16 = bf16;
        self
    }

    /// The schedule of a processor that was not measured.
    ///
    /// It avoids bfloat16 products on x86-64, where they may be slower, and uses Arm's, which are of
    /// matrices.
    pub const fn unmeasured(set: VectorSet) -> Self {
        let bf16 = match set {
            VectorSet::Avx512 | VectorSet::Avx2 => Bf16Products::Floats,
            VectorSet::Neon => Bf16Products::Pairs,
        };
        Self { streams: 4, ahead: 1024, bf16 }
    }
}

impl Bf16Products {
    const NAMES: [(Self, &str); 2] = [(Self::Pairs, "pairs"), (Self::Floats, "floats")];
}

impl fmt::Display for Bf16Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(value, _)| value == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "streams={} ahead={} bf16={}", self.streams, self.ahead, self.bf16)
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).ok_or_else(|| {
            let message = "a schedule has the form streams=4 ahead=1024 bf16=floats";
            Error::new(ErrorKind::InvalidInput, "read a kernel schedule", message)
                .with_context("schedule", text.chars().take(80).collect::<String>())
        })
    }
}

fn parse(text: &str) -> Option<Schedule> {
    let mut words = text.split(' ');
    let mut value = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
    let streams = value("streams")?.parse().ok()?;
    let ahead = value("ahead")?.parse().ok()?;
    let bf16 = value("bf16")?;
    let (bf16, _) = Bf16Products::NAMES.into_iter().find(|(_, name)| *name == bf16)?;
    let is_known = Schedule::STREAMS.contains(&streams) && Schedule::AHEAD.contains(&ahead);
    (is_known && words.next().is_none()).then_some(Schedule { streams, ahead, bf16 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_printed_form_is_parsed() {
        for set in [VectorSet::Avx512, VectorSet::Avx2, VectorSet::Neon] {
            let schedule = Schedule::unmeasured(set);
            assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        }
        for wrong in [
            "",
            "streams=4 ahead=1024",
            "streams=3 ahead=1024 bf16=pairs",
            "streams=4 ahead=1000000000 bf16=pairs",
            "streams=4 ahead=1024 bf16=bytes",
            "streams=4 ahead=1024 bf16=pairs more",
            "ahead=1024 streams=4 bf16=pairs",
        ] {
            let error = wrong.parse::<Schedule>().unwrap_err();
            assert_eq!((error.kind(), error.context("schedule")), (ErrorKind::InvalidInput, Some(wrong)));
        }
    }

    #[test]
    fn unmeasured_processors_have_no_schedule_of_their_own() {
        for cpu in ["x86-64-v4", "generic", "neoverse-v2", ""] {
            assert_eq!(Schedule::of(cpu), None, "{cpu}");
        }
    }
}
