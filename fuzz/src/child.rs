//! The process that runs inputs: until it dies of one, or its standard input ends.
//!
//! Inputs come on standard input, each behind its length (four bytes, little-endian) and the [`Part`] of the
//! target that it is for; for each a [`Reply`] goes to standard output. The memory that a run takes is
//! limited by the allocator of the binary, whose [`Memory`] is handed in.

use std::io::{self, BufReader, Read, Write};
use std::time::Instant;

use crate::outcome::Outcome;
use crate::target::{Part, Target};

/// How long a reply is, in bytes.
const REPLY: usize = 24;

/// What a run gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// [`Outcome::number`].
    pub outcome: u64,
    /// The bytes that stay allocated.
    pub allocated: u64,
    /// How long it took.
    pub microseconds: u64,
}

impl Reply {
    fn to_bytes(self) -> [u8; REPLY] {
        let mut bytes = [0; REPLY];
        bytes[..8].copy_from_slice(&self.outcome.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.allocated.to_le_bytes());
        bytes[16..].copy_from_slice(&self.microseconds.to_le_bytes());
        bytes
    }

    /// Reads a reply; none at the end.
    pub(crate) fn read(from: &mut impl Read) -> Option<Self> {
        let mut bytes = [0; REPLY];
        from.read_exact(&mut bytes).ok()?;
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        Some(Self { outcome: number(0..8), allocated: number(8..16), microseconds: number(16..24) })
    }
}

/// Appends an input as the child reads it.
///
/// # Errors
///
/// Where it is longer than its length can say.
pub(crate) fn encode(part: Part, input: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    let length = u32::try_from(input.len()).map_err(io::Error::other)?;
    to.extend_from_slice(&length.to_le_bytes());
    to.push(match part {
        Part::Quick => 0,
        Part::Whole => 1,
    });
    to.extend_from_slice(input);
    Ok(())
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
    let (mut from, mut to) = (BufReader::with_capacity(64 << 10, io::stdin()), io::stdout().lock());
    // What is made once and kept is no input's doing.
    let _: Outcome = (target.run)(&[]);
    loop {
        let mut head = [0; 5];
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [length @ .., part] = head;
        let mut input = vec![0; u32::from_le_bytes(length) as usize];
        from.read_exact(&mut input)?;
        let run = target.part(if part == 0 { Part::Quick } else { Part::Whole });
        memory.limit(memory.allocated().saturating_add(target.memory_limit(input.len())));
        let start = Instant::now();
        let outcome = run(&input).number();
        let microseconds = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        memory.limit(usize::MAX);
        drop(input);
        // At once, so that an input that ends the process is known to be the first without a reply.
        to.write_all(&Reply { outcome, allocated: memory.allocated() as u64, microseconds }.to_bytes())?;
        to.flush()?;
    }
}
