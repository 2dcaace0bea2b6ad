//! Changes of safetensors files: of the header, of its length, of what follows.

use fastrand::Rng;

use super::{bytes, interesting, json};

/// Changes a file; what has no header is changed by bytes.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (Some((header, data)), Some((other, _))) = (parts(base), parts(other)) else {
        return bytes::mutate(base, other, rng);
    };
    let (mut header, mut data) = (header.to_vec(), data.to_vec());
    match rng.u8(..8) {
        0 => header = bytes::mutate(&header, other, rng),
        1 => data.truncate(rng.usize(..=data.len())),
        2 => data.extend(std::iter::repeat_n(0, 1 << rng.u8(..12))),
        _ => header = json::mutate(&header, other, rng),
    }
    let mut length = header.len() as u64;
    if rng.u8(..16) == 0 {
        length = interesting(rng) as u64;
    }
    [&length.to_le_bytes()[..], &header, &data].concat()
}

/// The header and what follows it.
fn parts(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = file.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}
