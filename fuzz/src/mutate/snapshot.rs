//! Changes of snapshots that keep the checksum right, mostly: it tells damage, and no one who means harm is
//! stopped by it.

use fastrand::Rng;
use mlxcel_core::Snapshot;

use super::{bytes, interesting};

/// Changes a snapshot.
pub(super) fn mutate(base: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let (Ok(old), Ok(other)) = (Snapshot::from_bytes(base), Snapshot::from_bytes(other)) else {
        return bytes::mutate(base, other, rng);
    };
    let (mut identity, foreign) = (old.identity().clone(), other.identity());
    let (mut position, mut payload) = (old.position(), old.payload().to_vec());
    match rng.u8(..8) {
        0 => match rng.u8(..5) {
            0 => identity.engine.clone_from(&foreign.engine),
            1 => identity.state.clone_from(&foreign.state),
            2 => identity.precision = foreign.precision,
            3 => identity.adapter = Some(foreign.engine.clone()),
            _ => identity.model.clone_from(&foreign.model),
        },
        1 => identity = foreign.clone(),
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
    Snapshot::new(identity, position, payload).to_bytes()
}
