//! Ids of responses and tool calls.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The letters and digits of ids.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The length of ids. Mistral's templates reject ids of calls that have another one, or other characters.
const LENGTH: u32 = 9;

/// Makes ids that differ among the requests and models of a server. They count from a random number on, so
/// that they repeat those of other servers, or of this one before a restart, only by chance.
#[derive(Debug)]
pub(crate) struct Ids(AtomicU64);

impl Ids {
    pub(crate) fn new() -> Self {
        // The standard library seeds it with randomness of the system.
        Self(AtomicU64::new(RandomState::new().hash_one(SystemTime::now())))
    }

    pub(crate) fn next(&self) -> String {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let digit = |place| char::from(DIGITS[(number / 62_u64.pow(place) % 62) as usize]);
        (0..LENGTH).rev().map(digit).collect()
    }
}
