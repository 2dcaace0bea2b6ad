//! Changes of bytes.

use fastrand::Rng;

use super::{interesting, range, rounds};

/// Changes bytes of `base`, whatever they mean.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for _ in 0..rounds(rng) {
        change(&mut bytes, other, rng);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let place = range(bytes.len(), rng);
    match rng.u8(..8) {
        0 | 1 => {
            if let Some(byte) = bytes.get_mut(place.start) {
                *byte ^= 1 << rng.u8(..8);
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(place.start) {
                *byte = rng.u8(..);
            }
        }
        3 => drop(bytes.drain(place)),
        4 => {
            let some: Vec<u8> = (0..rng.usize(1..=8)).map(|_| rng.u8(..)).collect();
            bytes.splice(place.start..place.start, some);
        }
        5 => {
            let again = bytes.get(place.clone()).unwrap_or_default().repeat(1 << rng.u8(..6));
            bytes.splice(place.start..place.start, again);
        }
        6 => {
            let part = other.get(range(other.len(), rng)).unwrap_or_default().to_vec();
            bytes.splice(place, part);
        }
        _ => {
            let width = 1 << rng.u8(..4);
            let number = interesting(rng).to_le_bytes();
            let end = (place.start + width).min(bytes.len());
            bytes.splice(place.start..end, number.into_iter().take(width));
        }
    }
}
