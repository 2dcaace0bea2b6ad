//! What can be fuzzed.

use crate::outcome::Outcome;

/// How inputs of a target are made of others; see [`mutate`](crate::mutate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON text.
    Json,
    /// A safetensors file: a length, a JSON header, bytes.
    Safetensors,
    /// A GGUF file: metadata, descriptions of tensors, bytes.
    Gguf,
    /// A Jinja template.
    Template,
    /// The bytes of a [`Snapshot`](mlxcel_core::Snapshot), whose last eight are a checksum.
    Snapshot,
    /// Decisions, a byte or more each.
    Decisions,
}

/// How much of a target an input is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// [`Target::quick`], where there is one.
    Quick,
    /// [`Target::run`].
    Whole,
}

/// A function of bytes that must end well whatever they are.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// What it does with its input.
    pub about: &'static str,
    /// What inputs are made of.
    pub format: Format,
    /// The function. It panics where something does not hold that must.
    pub run: fn(&[u8]) -> Outcome,
    /// The first and cheap part of it, for targets that go on for long with what they have read. Every input
    /// goes through this part; those with an outcome that is new, and a share of the others, go through
    /// `run` too.
    pub quick: Option<fn(&[u8]) -> Outcome>,
    /// The memory that a run may take beside 64 bytes for each byte of input, in MiB.
    pub memory: usize,
    /// The processor time that a run may take, in seconds: several times what is promised, since builds for
    /// tests are slow.
    pub seconds: u64,
    /// The stack that it must do with, in KiB.
    pub stack: usize,
    /// The longest input, in bytes.
    pub longest: usize,
    /// Where the repository's own files serve as inputs: a function that reads them.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// The limits that do for most, and no seeds.
    pub(crate) const USUAL: Self = Self {
        name: "",
        about: "",
        format: Format::Json,
        run: |_| Outcome::new(""),
        quick: None,
        memory: 256,
        seconds: 20,
        stack: 2048,
        longest: 64 << 10,
        seeds: Vec::new,
    };

    /// The function that does `part`.
    pub fn part(&self, part: Part) -> fn(&[u8]) -> Outcome {
        match part {
            Part::Quick => self.quick.unwrap_or(self.run),
            Part::Whole => self.run,
        }
    }

    /// The bytes that a run on an input of `length` bytes may take.
    pub fn memory_limit(&self, length: usize) -> usize {
        (self.memory << 20).saturating_add(length.saturating_mul(64))
    }
}
