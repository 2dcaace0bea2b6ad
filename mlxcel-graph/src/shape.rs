//! The static shapes of programs.

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The results of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outputs {
    /// Logits of the last token of each row.
    #[serde(rename = "last")]
    Last,
    /// Logits of every token of every row.
    #[serde(rename = "every")]
    Every,
    /// The hidden states of every token of every row after the last norm, and no logits.
    #[serde(rename = "hidden")]
    Hidden,
}

/// The specialization of a decoder program; everything else is a run-time input.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramShape {
    /// The size of each row in tokens: `[64]` for a prompt chunk, `[1, 1, 1]` for three decoding rows, `[64,
    /// 1]` for both together.
    pub rows: Vec<usize>,
    /// The KV-length bucket: the positions of each row's cache.
    pub length: usize,
    /// Its results.
    pub outputs: Outputs,
}

impl ProgramShape {
    /// The total number of tokens.
    pub fn tokens(&self) -> usize {
        self.rows.iter().sum()
    }

    /// The number of positions with logits or hidden states.
    pub fn output_rows(&self) -> usize {
        match self.outputs {
            Outputs::Last => self.rows.len(),
            Outputs::Every | Outputs::Hidden => self.tokens(),
        }
    }

    /// The index of each row's first token among the tokens of all rows.
    pub fn row_starts(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().scan(0, |next, tokens| {
            let start = *next;
            *next += tokens;
            Some(start)
        })
    }
}

impl fmt::Display for ProgramShape {
    /// Such as `64+1x3@1024`: a chunk of 64 and three decoding rows over 1,024 positions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.rows.chunk_by(|a, b| a == b).enumerate() {
            let plus = if i == 0 { "" } else { "+" };
            write!(f, "{plus}{}", run[0])?;
            if run.len() > 1 {
                write!(f, "x{}", run.len())?;
            }
        }
        write!(f, "@{}", self.length)?;
        match self.outputs {
            Outputs::Last => Ok(()),
            Outputs::Every => f.write_str(" every position"),
            Outputs::Hidden => f.write_str(" hidden states"),
        }
    }
}

/// The distance between KV-length buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthSteps {
    /// The first bucket.
    pub first: usize,
    /// The ratio of each bucket to the previous one, at least 2.
    pub factor: usize,
}

/// The KV-length buckets: few enough to limit the number of programs, and close enough that attention cost
/// follows the length in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(Vec<usize>);

impl Lengths {
    const FIRST: usize = 256;
    const ALIGNMENT: usize = 64;

    /// The buckets for sequences of up to `capacity` tokens that are fed in chunks of up to `chunk`.
    ///
    /// They start at 256 and 1,024, since attention over so few positions is cheap compared with the weights,
    /// and double from there. Chunks are written with their padding, so the last bucket has room for a
    /// chunk's padding after the last position.
    pub fn new(capacity: usize, chunk: usize) -> Self {
        let last = (capacity + chunk).next_multiple_of(Self::ALIGNMENT).max(Self::FIRST);
        let mut buckets = Vec::new();
        let mut bucket = Self::FIRST;
        // A bucket just below the last would be one program more for nothing.
        while bucket * 5 / 4 < last {
            buckets.push(bucket);
            bucket = if bucket == Self::FIRST { 4 * bucket } else { 2 * bucket };
        }
        buckets.push(last);
        Self(buckets)
    }

    /// The buckets for an engine whose attention cost depends on the positions in use and not on the bucket,
    /// spaced by `steps`. The last is that of [`new`](Self::new).
    pub fn stepped(steps: LengthSteps, capacity: usize, chunk: usize) -> Self {
        let last = (capacity + chunk).next_multiple_of(Self::ALIGNMENT).max(Self::FIRST);
        let mut buckets = Vec::new();
        let mut bucket = steps.first.max(1);
        while bucket.saturating_mul(2) <= last {
            buckets.push(bucket);
            bucket = bucket.saturating_mul(steps.factor.max(2));
        }
        buckets.push(last);
        Self(buckets)
    }

    /// Exactly these buckets, for programs compiled ahead of time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] unless they are positive and ascending.
    pub fn from_buckets(buckets: impl Into<Vec<usize>>) -> Result<Self> {
        let buckets = buckets.into();
        if buckets.first().is_none_or(|&first| first == 0)
            || buckets.windows(2).any(|pair| pair[0] >= pair[1])
        {
            let message = "lengths must be positive and ascending";
            return Err(Error::new(ErrorKind::InvalidInput, "choose cache lengths", message)
                .with_context("lengths", format_args!("{buckets:?}")));
        }
        Ok(Self(buckets))
    }

    /// The smallest bucket that holds `positions`, if any.
    pub fn holding(&self, positions: usize) -> Option<usize> {
        self.0.iter().copied().find(|&length| length >= positions)
    }

    /// The buckets, ascending.
    pub fn buckets(&self) -> &[usize] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_length_buckets_cover_the_capacity_and_a_padded_chunk() {
        for capacity in [1, 100, 256, 1000, 1024, 4096, 40960, 131072] {
            let lengths = Lengths::new(capacity, 64);
            let last = *lengths.buckets().last().unwrap();
            assert!(
                last >= capacity + 63 && (last <= capacity + 128 || last == 256),
                "{capacity}: {lengths:?}"
            );
            assert!(lengths.buckets().windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= 5 * pair[0]));
        }
        assert_eq!(
            Lengths::new(131072, 64).buckets(),
            [256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131136]
        );
        assert_eq!(Lengths::new(1024, 64).holding(257), Some(1088));
    }

    #[test]
    fn kv_length_buckets_are_few() {
        let stepped =
            |capacity, chunk| Lengths::stepped(LengthSteps { first: 2048, factor: 8 }, capacity, chunk);
        assert_eq!(stepped(131072, 128).buckets(), [2048, 16384, 131200]);
        assert_eq!(stepped(40960, 128).buckets(), [2048, 16384, 41088]);
        assert_eq!(stepped(4096, 128).buckets(), [2048, 4224]);
        assert_eq!(stepped(2048, 128).buckets(), [2176]);
        assert_eq!(stepped(100, 128).buckets(), [256]);
    }

    #[test]
    fn buckets_ascend() {
        assert_eq!(Lengths::from_buckets([64, 100]).unwrap().holding(65), Some(100));
        for wrong in [&[][..], &[0, 1], &[2, 2], &[3, 2]] {
            assert_eq!(Lengths::from_buckets(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_pass_shape_prints_its_rows() {
        let mut shape = ProgramShape { rows: vec![64, 1, 1, 1], length: 1024, outputs: Outputs::Last };
        assert_eq!(shape.to_string(), "64+1x3@1024");
        assert_eq!(shape.row_starts().collect::<Vec<_>>(), [0, 64, 65, 66]);
        assert_eq!((shape.tokens(), shape.output_rows()), (67, 4));
        shape.outputs = Outputs::Every;
        assert_eq!(shape.output_rows(), 67);
        shape.outputs = Outputs::Hidden;
        assert_eq!((shape.to_string(), shape.output_rows()), ("64+1x3@1024 hidden states".to_owned(), 67));
    }
}
