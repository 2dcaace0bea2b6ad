//! The process that runs inputs: until it dies of one, or its standard input ends.
//!
//! Inputs come on standard input, each behind its length (four bytes, little-endian); for each a [`Reply`] goes to standard
//! output. The memory that a run takes is limited by the allocator of the binary, whose [`Memory`] is handed in.

use std::io::{self, Read, Write};

use crate::{Outcome, Target};

/// How long a reply is, in bytes.
const REPLY: usize = 16;

/// What a run gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// [`Outcome::number`].
    pub outcome: u64,
    /// The bytes that stay allocated.
    pub allocated: u64,
}

impl Reply {
    fn to_bytes(self) -> [u8; REPLY] {
        let mut bytes = [0; REPLY];
        bytes[..8].copy_from_slice(&self.outcome.to_le_bytes());
        bytes[8..].copy_from_slice(&self.allocated.to_le_bytes());
        bytes
    }

    /// Reads a reply; none at the end.
    pub(crate) fn read(from: &mut impl Read) -> Option<Self> {
        let mut bytes = [0; REPLY];
        from.read_exact(&mut bytes).ok()?;
        let half = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        Some(Self { outcome: half(0..8), allocated: half(8..16) })
    }
}

/// Writes an input as the child reads it.
///
/// # Errors
///
/// Those of writing.
pub(crate) fn send(input: &[u8], to: &mut impl Write) -> io::Result<()> {
    let length = u32::try_from(input.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(input)?;
    to.flush()
}

/// The allocator, as far as the child needs it.
pub trait Memory {
    /// The bytes that are allocated.
    fn allocated(&self) -> usize;
    /// Lets allocations fail that lead beyond `bytes`.
    fn limit(&self, bytes: usize);
}

/// Serves inputs until there are no more.
///
/// # Errors
///
/// Those of reading and writing.
pub fn serve(target: &'static Target, memory: &'static (dyn Memory + Sync)) -> io::Result<()> {
    std::panic::set_hook(Box::new(move |panic| {
        // To say it takes memory.
        memory.limit(usize::MAX);
        eprintln!("{panic}");
        std::process::abort();
    }));
    // The stack that is promised to be enough.
    let worker = std::thread::Builder::new().stack_size(target.stack << 10);
    let served = worker.spawn(move || serve_here(target, memory))?.join();
    served.unwrap_or_else(|_| Err(io::Error::other("the worker panicked")))
}

fn serve_here(target: &Target, memory: &dyn Memory) -> io::Result<()> {
    let (mut from, mut to) = (io::stdin().lock(), io::stdout().lock());
    // What is made once and kept is no input's doing.
    let _: Outcome = (target.run)(&[]);
    loop {
        let mut length = [0; 4];
        match from.read_exact(&mut length) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let mut input = vec![0; u32::from_le_bytes(length) as usize];
        from.read_exact(&mut input)?;
        memory.limit(memory.allocated().saturating_add(target.memory_limit(input.len())));
        let outcome = (target.run)(&input).number();
        memory.limit(usize::MAX);
        drop(input);
        to.write_all(&Reply { outcome, allocated: memory.allocated() as u64 }.to_bytes())?;
        to.flush()?;
    }
}
