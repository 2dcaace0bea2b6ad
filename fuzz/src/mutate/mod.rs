//! New inputs of old ones, by what their format is made of.
//!
//! Bytes changed at random are mostly no JSON, no template and no header any more, and are refused before
//! anything of interest runs. So each [`Format`] has changes of its own, which keep most of an input whole;
//! some are of bytes all the same.

mod bytes;
mod gguf;
mod json;
mod safetensors;
mod snapshot;
mod template;

use fastrand::Rng;

use crate::target::Format;

/// Makes an input of `base`; parts of `other` may go into it.
pub fn mutate(format: Format, base: &[u8], other: &[u8], longest: usize, rng: &mut Rng) -> Vec<u8> {
    let mut made = match format {
        _ if rng.u8(..16) == 0 => bytes::mutate(base, other, rng),
        Format::Json => json::mutate(base, other, rng),
        Format::Safetensors => safetensors::mutate(base, other, rng),
        Format::Gguf => gguf::mutate(base, other, rng),
        Format::Template => template::mutate(base, other, rng),
        Format::Snapshot => snapshot::mutate(base, other, rng),
        Format::Decisions => bytes::mutate(base, other, rng),
    };
    made.truncate(longest);
    made
}

/// How many changes an input gets: mostly few.
fn rounds(rng: &mut Rng) -> usize {
    1 << rng.u8(..4).min(rng.u8(..4))
}

fn choose<'i, T>(items: &'i [T], rng: &mut Rng) -> Option<&'i T> {
    items.get(rng.usize(..items.len().max(1)))
}

/// A range within `length`, mostly short.
fn range(length: usize, rng: &mut Rng) -> std::ops::Range<usize> {
    let start = rng.usize(..=length);
    let most = match rng.u8(..4) {
        0 => length - start,
        _ => (length - start).min(16),
    };
    start..start + rng.usize(..=most)
}

/// A whole number at which something may change.
fn interesting(rng: &mut Rng) -> i128 {
    let near = i128::from(rng.i8(-2..=2));
    match rng.u8(..6) {
        0 => i128::from(rng.i8(..)),
        1 => i128::from(rng.u32(..=1 << 20)),
        2 => -(1_i128 << rng.u8(..=64)) + near,
        _ => (1_i128 << rng.u8(..=65)) + near,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_json_mutations_are_valid_json() {
        let mut rng = Rng::with_seed(1);
        let base = br#"{"a": [1, 2.5, {"b": "c"}], "d": null}"#;
        let made: Vec<_> =
            (0..1000).map(|_| mutate(Format::Json, base, b"[true]", 1 << 16, &mut rng)).collect();
        let whole = made.iter().filter(|text| serde_json::from_slice::<serde_json::Value>(text).is_ok());
        assert!(whole.count() > 800);
        assert!(made.iter().filter(|made| made[..] != base[..]).count() > 900);
    }

    #[test]
    fn most_mutations_keep_header_lengths_and_snapshot_checksums_valid() {
        let mut rng = Rng::with_seed(2);
        let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
        let snapshot = {
            let identity = mlxcel_core::StateIdentity::of(&mlxcel_core::ModelInfo::new("e", "m", 4));
            mlxcel_core::Snapshot::new(identity, 1, [1, 2, 3]).to_bytes()
        };
        let (mut headers, mut sums) = (0, 0);
        for _ in 0..1000 {
            let made = mutate(Format::Safetensors, &file, &file, 1 << 16, &mut rng);
            let length = made.first_chunk().map(|length| u64::from_le_bytes(*length) as usize);
            let header = length.and_then(|length| made.get(8..length.checked_add(8)?));
            headers += usize::from(
                header.is_some_and(|header| serde_json::from_slice::<serde_json::Value>(header).is_ok()),
            );
            let made = mutate(Format::Snapshot, &snapshot, &snapshot, 1 << 16, &mut rng);
            sums += usize::from(mlxcel_core::Snapshot::from_bytes(&made).is_ok());
        }
        assert!(headers > 600 && sums > 200, "{headers} {sums}");
    }
}
