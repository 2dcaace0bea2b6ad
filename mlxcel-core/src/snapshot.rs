//! Snapshots: the state of a sequence outside of its session.

use crate::error::{Error, ErrorKind, Result};
use crate::identity::StateIdentity;
use crate::load::Precision;

const MAGIC: &[u8; 8] = b"mlxcelSN";
const VERSION: u32 = 1;

/// The state of a sequence: its position and what the engine needs to continue.
///
/// It is bound to its [`StateIdentity`], and can be written to disk with [`to_bytes`](Self::to_bytes). The
/// payload is private to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    identity: StateIdentity,
    position: usize,
    payload: Vec<u8>,
}

impl Snapshot {
    /// A snapshot of a sequence of this identity at `position`.
    pub fn new(identity: StateIdentity, position: usize, payload: impl Into<Vec<u8>>) -> Self {
        Self { identity, position, payload: payload.into() }
    }

    /// What it belongs to.
    pub fn identity(&self) -> &StateIdentity {
        &self.identity
    }

    /// The number of tokens of the sequence.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The engine's payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The snapshot as bytes: versioned, little-endian, with a checksum; readable by
    /// [`from_bytes`](Self::from_bytes) anywhere.
    pub fn to_bytes(&self) -> Vec<u8> {
        let StateIdentity { engine, state, model, precision, adapter } = &self.identity;
        let names = [engine, state, model, precision.as_str(), adapter.as_deref().unwrap_or_default()];
        let names = names.map(str::as_bytes);
        let mut bytes = Vec::with_capacity(77 + names.concat().len() + self.payload.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.position as u64).to_le_bytes());
        bytes.push(u8::from(adapter.is_some()));
        for part in names.into_iter().chain([&self.payload[..]]) {
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
    /// [`ErrorKind::Corrupt`] if the bytes are not a complete snapshot of this version, or the checksum
    /// differs.
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
        let has_adapter = match le(take(1)?) {
            flag @ ..=1 => flag == 1,
            _ => return Err(corrupt("a flag is neither 0 nor 1")),
        };
        let fits = |length: u64| {
            usize::try_from(length).map_err(|_| corrupt("a length exceeds this machine's address space"))
        };
        let mut part = || {
            let length = fits(le(take(8)?))?;
            take(length)
        };
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| corrupt("a name is not UTF-8"));
        let engine = text(part()?)?;
        let (state, model, precision) = (text(part()?)?, text(part()?)?, text(part()?)?);
        let adapter = Some(text(part()?)?).filter(|adapter| has_adapter || !adapter.is_empty());
        if adapter.is_some() != has_adapter {
            return Err(corrupt("it has an adapter and says that it has none"));
        }
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
        let position = fits(position)?;
        // Exactly as it is written, so that bytes that are read are those that are written again.
        let precision = Precision::ALL
            .into_iter()
            .find(|known| known.as_str() == precision)
            .ok_or_else(|| corrupt("it has an unknown precision").with_context("precision", &precision))?;
        Ok(Self { identity: StateIdentity { engine, state, model, precision, adapter }, position, payload })
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
        let mut info = crate::info::ModelInfo::new("iree", "llama", 4);
        (info.fingerprint, info.state_format) = ("abc".to_owned(), "kv/1".to_owned());
        let identity = StateIdentity::of(&info);
        for identity in [identity.clone(), identity.clone().with_adapter("")] {
            let snapshot = Snapshot::new(identity, 7, []);
            assert_eq!(Snapshot::from_bytes(&snapshot.to_bytes()).unwrap(), snapshot);
        }
        let snapshot = Snapshot::new(identity.with_adapter("poems"), 7, [1, 2, 3]);
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
}
