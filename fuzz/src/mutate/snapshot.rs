//! Changes of snapshots that keep the checksum right, mostly: it tells damage, and no one who means harm is stopped by it.

use fastrand::Rng;
use mlxcel_core::Snapshot;

use super::{bytes, interesting};

/// Changes a snapshot.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (Ok(old), Ok(other)) = (Snapshot::from_bytes(base), Snapshot::from_bytes(other)) else {
        return bytes::mutate(base, other, rng);
    };
    let (mut engine, mut model) = (old.engine().to_owned(), old.model().to_owned());
    let (mut position, mut payload) = (old.position(), old.payload().to_vec());
    match rng.u8(..8) {
        0 => engine = other.engine().to_owned(),
        1 => model = other.model().to_owned(),
        2 | 3 => {
            position = match rng.u8(..3) {
                0 => interesting(rng) as usize,
                1 => position.wrapping_add(1),
                _ => rng.usize(..=position),
            }
        }
        4 => payload.truncate(rng.usize(..=payload.len())),
        _ => payload = bytes::mutate(&payload, other.payload(), rng),
    }
    Snapshot::new(engine, model, position, payload).to_bytes()
}
