//! The process that runs inputs: until it dies of one, or its standard input ends.
//!
//! Inputs come on standard input, each behind its length (four bytes, little-endian) and the [`Part`] of the
//! target that it is for; for each a [`Reply`] goes to standard output. The memory that a run takes is
//! limited by the allocator of the binary, whose [`Memory`] is handed in.

use std::io::{self, BufReader, Read, Write};
use std::time::Instant;

use crate::outcome::Outcome;
use crate::target::{Part, Target};

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
    fn write(self, to: &mut impl Write) -> io::Result<()> {
        let numbers = [self.outcome, self.allocated, self.microseconds].map(u64::to_le_bytes);
        to.write_all(numbers.as_flattened())
    }

    /// Reads a reply; none at the end.
    pub(crate) fn read(from: &mut impl Read) -> Option<Self> {
        let mut numbers = [[0; 8]; 3];
        from.read_exact(numbers.as_flattened_mut()).ok()?;
        let [outcome, allocated, microseconds] = numbers.map(u64::from_le_bytes);
        Some(Self { outcome, allocated, microseconds })
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
        Reply { outcome, allocated: memory.allocated() as u64, microseconds }.write(&mut to)?;
        to.flush()?;
    }
}
