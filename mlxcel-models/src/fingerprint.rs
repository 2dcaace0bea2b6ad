//! Checkpoint fingerprints, cheap enough to compute at every start.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::element::ElementType;
use crate::weights::Weights;

/// Tensors up to this many bytes are hashed whole: norms and biases of most models.
const WHOLE: usize = 4096;
/// The bytes of each sample from a larger tensor.
const SAMPLE: usize = 256;
/// Samples from a larger tensor, from its first byte to its last at equal distances.
const SAMPLES: usize = 5;

/// SHA-256, in hexadecimal, over `config.json` and each tensor's name, type, shape and a sample of its bytes.
///
/// Reading gigabytes for a complete hash would cost more than loading the model. Training, merging or
/// converting weights changes nearly every value, so the samples tell checkpoints apart in practice; a
/// deliberate change between them goes unseen. How the tensors are spread over files does not matter.
pub(crate) fn fingerprint(config: &[u8], weights: &Weights) -> String {
    let tensors = weights.iter();
    let tensors =
        tensors.map(|(name, stored)| (name, stored.element, &stored.shape[..], weights.bytes(stored)));
    fingerprint_of("mlxcel checkpoint 1", config, tensors)
}

/// The same over settings and tensors (name, type, shape and bytes, by name) of a `kind`.
pub(crate) fn fingerprint_of<'a>(
    kind: &str,
    config: &[u8],
    tensors: impl Iterator<Item = (&'a str, ElementType, &'a [usize], &'a [u8])>,
) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        // Each part is preceded by its length, so that different sequences of parts never have equal bytes.
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(kind.as_bytes());
    part(config);
    for (name, element, shape, bytes) in tensors {
        part(name.as_bytes());
        part(element.name().as_bytes());
        for &size in shape {
            part(&(size as u64).to_le_bytes());
        }
        if bytes.len() <= WHOLE {
            part(bytes);
            continue;
        }
        let last = bytes.len() - SAMPLE;
        for sample in 0..SAMPLES {
            // In this order the product stays far from overflow: a tensor is smaller than the address space.
            let start = last / (SAMPLES - 1) * sample + last % (SAMPLES - 1) * sample / (SAMPLES - 1);
            part(&bytes[start..start + SAMPLE]);
        }
    }
    hex(hash)
}

/// The fingerprint of what has these, in order.
pub(crate) fn joined(fingerprints: [String; 2]) -> String {
    hex(fingerprints.iter().fold(Sha256::new(), |hash, fingerprint| hash.chain_update(fingerprint)))
}

/// How long a file must be unchanged before its modification time identifies its content: the coarsest clock
/// of a file system in use (FAT) takes steps of two seconds.
const SETTLED: Duration = Duration::from_secs(2);

/// The same over a fingerprint, and the size and time of modification of files; `None` while one of them is so
/// new that it might change under the same time.
pub(crate) fn stamp(fingerprint: &str, files: &[(usize, SystemTime)]) -> Option<String> {
    let is_settled = |written: &SystemTime| written.elapsed().is_ok_and(|age| age >= SETTLED);
    if !files.iter().all(|(_, written)| is_settled(written)) {
        return None;
    }
    let mut hash = Sha256::new().chain_update(fingerprint);
    for (size, written) in files {
        // A time before 1970 is told apart as its distance.
        let since = written.duration_since(UNIX_EPOCH).unwrap_or_else(|error| error.duration());
        hash.update((*size as u64).to_le_bytes());
        hash.update(since.as_nanos().to_le_bytes());
    }
    Some(hex(hash))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_of_files_that_cannot_change_under_the_same_time() {
        let (now, second) = (SystemTime::now(), Duration::from_secs(1));
        let of = |size, written| stamp("fingerprint", &[(5, UNIX_EPOCH), (size, written)]);
        let settled = of(3, now - 10 * second);
        assert!(settled.is_some() && of(3, UNIX_EPOCH - second).is_some());
        assert_eq!(settled, of(3, now - 10 * second));
        assert!(settled != of(4, now - 10 * second) && settled != of(3, now - 11 * second));
        assert_eq!([of(3, now), of(3, now + 60 * second)], [None, None]);
    }
}
