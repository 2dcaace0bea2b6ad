//! The memory-mapped file of a bundle's weights in the layout of one target's programs.

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_graph::WeightArgument;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::file::{FileEntry, OPERATION};
use crate::sum::hex;

/// The alignment of each weight in the file in bytes: at least what programs require of their arguments.
const ALIGNMENT: u64 = 128;

/// The bytes of a sample.
const SAMPLE: u64 = 256;

/// The samples of a weight, evenly spaced from its first byte to its last.
const SAMPLES: u64 = 5;

/// Weights in the layout of a target's programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LaidOut {
    /// The file that holds them.
    pub file: FileEntry,
    /// The offset of each weight in bytes, by the argument's name.
    pub places: BTreeMap<String, u64>,
    /// The SHA-256 over samples of every weight, verified when a model is opened.
    pub samples: String,
}

/// The positions of weights in such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Offset and length of each weight, in the order of the arguments.
    ranges: Vec<(String, u64, u64)>,
    /// The size of the file.
    pub bytes: u64,
}

impl Places {
    /// Places weights consecutively.
    pub fn of(weights: &[WeightArgument]) -> Self {
        let mut bytes = 0;
        let mut ranges = Vec::with_capacity(weights.len());
        for weight in weights {
            let (start, len) = (u64::next_multiple_of(bytes, ALIGNMENT), weight.ty.bytes() as u64);
            ranges.push((weight.name.clone(), start, len));
            bytes = start + len;
        }
        Self { ranges, bytes }
    }

    /// The positions of these weights in `laid_out`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a weight that is not in the file.
    fn told(laid_out: &LaidOut, weights: &[WeightArgument]) -> Result<Self> {
        let place = |weight: &WeightArgument| {
            let (start, len) = (laid_out.places.get(&weight.name).copied(), weight.ty.bytes() as u64);
            let fits = |start: &u64| start.checked_add(len).is_some_and(|end| end <= laid_out.file.bytes);
            let start = start.filter(|start| start.is_multiple_of(ALIGNMENT)).filter(fits);
            start.map(|start| (weight.name.clone(), start, len)).ok_or_else(|| {
                let message = "the file of laid-out weights lacks a weight";
                Error::new(ErrorKind::Corrupt, OPERATION, message)
                    .with_context("weight", weight.name.escape_debug())
                    .with_context("path", laid_out.file.path.escape_debug())
            })
        };
        let ranges = weights.iter().map(place).collect::<Result<_>>()?;
        Ok(Self { ranges, bytes: laid_out.file.bytes })
    }

    /// The range of each weight, in the order of the arguments.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.ranges.iter().map(|(_, start, len)| *start..start + len)
    }

    /// The checksum over samples of all weights; `read` fills a buffer from an offset in the file.
    ///
    /// # Errors
    /// The errors of `read`.
    pub fn sample<E>(&self, mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>) -> Result<String, E> {
        let mut hash = Sha256::new();
        let mut buffer = [0; SAMPLE as usize];
        for (name, start, len) in &self.ranges {
            for part in [(name.len() as u64).to_le_bytes(), start.to_le_bytes(), len.to_le_bytes()] {
                hash.update(part);
            }
            hash.update(name);
            let size = SAMPLE.min(*len);
            let last = len - size;
            for sample in 0..SAMPLES {
                // In this order the product cannot overflow: a weight is smaller than the address space.
                let at = last / (SAMPLES - 1) * sample + last % (SAMPLES - 1) * sample / (SAMPLES - 1);
                let buffer = &mut buffer[..size as usize];
                read(start + at, buffer)?;
                hash.update(buffer);
            }
        }
        Ok(hex(&hash.finalize()))
    }

    /// The manifest's entry of weights with this placement in `file`.
    pub fn describe(self, file: FileEntry, samples: String) -> LaidOut {
        LaidOut {
            file,
            places: self.ranges.into_iter().map(|(name, start, _)| (name, start)).collect(),
            samples,
        }
    }
}

impl LaidOut {
    /// Verifies the samples of the file's `content` and returns the positions of the model's `weights`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a weight that is not in the file, or samples that differ.
    pub fn check(&self, weights: &[WeightArgument], content: &[u8]) -> Result<Places> {
        let corrupt = |message: &'static str| {
            Error::new(ErrorKind::Corrupt, OPERATION, message)
                .with_context("path", self.file.path.escape_debug())
        };
        if content.len() as u64 != self.file.bytes {
            return Err(corrupt("the file of laid-out weights does not have its recorded size"));
        }
        let places = Places::told(self, weights)?;
        let found = places.sample(|at, buffer| {
            let range = usize::try_from(at).ok().and_then(|at| content.get(at..at + buffer.len()));
            range
                .map(|bytes| buffer.copy_from_slice(bytes))
                .ok_or_else(|| corrupt("the file of laid-out weights lacks a weight"))
        })?;
        if !found.eq_ignore_ascii_case(&self.samples) {
            return Err(corrupt("the laid-out weights differ from the bundled ones"));
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;

    use mlxcel_graph::weight_arguments;
    use mlxcel_models::Checkpoint;

    use super::*;

    fn weights() -> Vec<WeightArgument> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/llama");
        weight_arguments(&Checkpoint::open(folder).unwrap().decoder().unwrap()).unwrap()
    }

    fn written(weights: &[WeightArgument]) -> (LaidOut, Vec<u8>) {
        let places = Places::of(weights);
        let content: Vec<u8> = (0..places.bytes).map(|at| (at % 251) as u8).collect();
        let samples = places.sample(|at, buffer| {
            buffer.copy_from_slice(&content[at as usize..][..buffer.len()]);
            Ok::<_, Infallible>(())
        });
        let file = FileEntry::new("weights/here.bin".to_owned(), content.len() as u64, "0".repeat(64));
        (places.describe(file, samples.unwrap()), content)
    }

    #[test]
    fn weights_are_found_at_their_offsets() {
        let weights = weights();
        let (laid_out, content) = written(&weights);
        let places = laid_out.check(&weights, &content).unwrap();
        assert_eq!(places, Places::of(&weights));
        for (range, weight) in places.ranges().zip(&weights) {
            assert_eq!(range.end - range.start, weight.ty.bytes() as u64);
            assert!(range.start.is_multiple_of(ALIGNMENT));
        }
    }

    #[test]
    fn changed_or_mismatched_weights_are_refused() {
        let weights = weights();
        let (laid_out, content) = written(&weights);
        let refused = |laid_out: &LaidOut, content: &[u8]| {
            let error = laid_out.check(&weights, content).unwrap_err();
            assert_eq!((error.kind(), error.context("path")), (ErrorKind::Corrupt, Some("weights/here.bin")));
            error.context("weight").map(str::to_owned)
        };
        let mut changed = content.clone();
        changed[0] ^= 1;
        assert_eq!(refused(&laid_out, &changed), None);
        assert_eq!(refused(&laid_out, &content[1..]), None);
        for place in [1, u64::MAX - 127, laid_out.file.bytes.next_multiple_of(ALIGNMENT)] {
            let mut moved = laid_out.clone();
            *moved.places.get_mut(&weights[3].name).unwrap() = place;
            assert_eq!(refused(&moved, &content), Some(weights[3].name.clone()));
        }
        let mut without = laid_out.clone();
        without.places.remove(&weights[0].name);
        assert_eq!(refused(&without, &content), Some(weights[0].name.clone()));
    }
}
