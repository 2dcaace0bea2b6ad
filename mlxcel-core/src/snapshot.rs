//! Snapshots: the state of a sequence outside of its session.

use crate::{Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"mlxcelSN";
const VERSION: u32 = 1;

/// The state of a sequence: its position and what the engine needs to continue.
///
/// It is bound to the engine and model (by fingerprint) that created it, and can be written to disk with
/// [`to_bytes`](Self::to_bytes). The payload is private to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    engine: String,
    model: String,
    position: usize,
    payload: Vec<u8>,
}

impl Snapshot {
    /// A snapshot by `engine` (its name and the version of its payload format) of a sequence of `model` (its
    /// fingerprint) at `position`.
    pub fn new(
        engine: impl Into<String>,
        model: impl Into<String>,
        position: usize,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        Self { engine: engine.into(), model: model.into(), position, payload: payload.into() }
    }

    /// The engine that created it, with the version of its payload.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The fingerprint of the model that it belongs to.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The number of tokens of the sequence.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The engine's payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Rejects a snapshot of another engine or model.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] naming what differs.
    pub fn check(&self, engine: &str, model: &str) -> Result<()> {
        let refuse = |field: &'static str, found: &str, expected: &str| {
            Error::new(ErrorKind::InvalidInput, "restore", "the snapshot belongs to another engine or model")
                .with_context("field", field)
                .with_context("found", found)
                .with_context("expected", expected)
        };
        if self.engine != engine {
            return Err(refuse("engine", &self.engine, engine));
        }
        if self.model != model {
            return Err(refuse("model", &self.model, model));
        }
        Ok(())
    }

    /// The snapshot as bytes: versioned, little-endian, with a checksum; readable by [`from_bytes`](Self::from_bytes) anywhere.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(52 + self.engine.len() + self.model.len() + self.payload.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.position as u64).to_le_bytes());
        for part in [self.engine.as_bytes(), self.model.as_bytes(), &self.payload] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        bytes
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] if the bytes are not a complete snapshot of this version, or the checksum differs.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let corrupt = |message: &'static str| Error::new(ErrorKind::Corrupt, "read snapshot", message);
        let mut rest = bytes;
        let mut take = |length: usize| {
            let (head, tail) = rest.split_at_checked(length).ok_or_else(|| corrupt("it ends too early"))?;
            rest = tail;
            Ok::<_, Error>(head)
        };
        if take(8)? != MAGIC {
            return Err(corrupt("it is not a snapshot"));
        }
        let version = le(take(4)?);
        if version != u64::from(VERSION) {
            return Err(corrupt("it has another format version").with_context("version", version));
        }
        let position = le(take(8)?);
        let mut part = || {
            let length = usize::try_from(le(take(8)?))
                .map_err(|_| corrupt("a length exceeds this machine's address space"))?;
            take(length)
        };
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| corrupt("a name is not UTF-8"));
        let engine = text(part()?)?;
        let model = text(part()?)?;
        let read = part()?;
        let mut payload = Vec::new();
        payload
            .try_reserve_exact(read.len())
            .map_err(|_| Error::out_of_memory("read snapshot", read.len()))?;
        payload.extend_from_slice(read);
        let written = le(take(8)?);
        if checksum(&bytes[..bytes.len() - rest.len() - 8]) != written {
            return Err(corrupt("its checksum differs"));
        }
        if !rest.is_empty() {
            return Err(corrupt("bytes follow its end"));
        }
        let position = usize::try_from(position)
            .map_err(|_| corrupt("a length exceeds this machine's address space"))?;
        Ok(Self { engine, model, position, payload })
    }
}

/// 64-bit FNV-1a: detects corrupt files, not forged ones.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A little-endian number of up to eight bytes.
fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_round_trip_and_truncation_or_corruption_is_rejected() {
        let snapshot = Snapshot::new("iree/1", "abc", 7, vec![1, 2, 3]);
        let bytes = snapshot.to_bytes();
        assert_eq!(Snapshot::from_bytes(&bytes).unwrap(), snapshot);
        for length in 0..bytes.len() {
            assert_eq!(Snapshot::from_bytes(&bytes[..length]).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 4;
            assert_eq!(
                Snapshot::from_bytes(&damaged).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "byte {index}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Snapshot::from_bytes(&longer).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn snapshots_of_other_engines_or_models_are_rejected() {
        let snapshot = Snapshot::new("iree/1", "abc", 7, vec![]);
        snapshot.check("iree/1", "abc").unwrap();
        assert_eq!(snapshot.check("mlx/1", "abc").unwrap_err().context("field"), Some("engine"));
        assert_eq!(snapshot.check("iree/1", "abd").unwrap_err().context("field"), Some("model"));
    }
}
