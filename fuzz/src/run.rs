//! Fuzzing without a compiler's help: inputs changed, run in a child process, and kept where their outcome is
//! new.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::child::Reply;
use crate::corpus;
use crate::mutate::mutate;
use crate::process::{Death, Process};
use crate::target::{Part, Target};

/// How many inputs are sent at once, so that the process never waits for the next.
const BATCH: usize = 64;

/// One of how many inputs goes through the whole of a target that has a quick part, though its outcome is
/// known.
const WHOLE: usize = 64;

/// The most inputs that are changed further.
const MOST: usize = 3000;

/// The most defects of one target that are looked into.
const MOST_FINDINGS: usize = 8;

/// How long a finding is made smaller.
const SHRINKING: Duration = Duration::from_secs(10);

/// An input that takes longer, in microseconds, is not changed further: others find more in the time.
const SLOW: u64 = 200_000;

/// How far to go.
#[derive(Clone, Debug)]
pub struct Budget {
    /// How long, setting up included.
    pub time: Duration,
    /// What the changes depend on.
    pub seed: u64,
    /// Where findings and inputs with new outcomes are written, in a folder for each target.
    pub folder: PathBuf,
}

/// A defect, and an input that shows it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How it ended.
    pub death: Death,
    /// The input, made small.
    pub input: Vec<u8>,
    /// The file with the input.
    pub path: PathBuf,
}

/// What came of fuzzing a target.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many inputs ran.
    pub runs: u64,
    /// How many of them went through the whole of the target, and not only through its quick part.
    pub whole: u64,
    /// How many different outcomes there were.
    pub outcomes: usize,
    /// How much processor time the runs took.
    pub cpu: Duration,
    /// What was found.
    pub findings: Vec<Finding>,
}

/// Fuzzes a target: first its corpus as it is, all of it, then what can be made of it, until the time is
/// over.
///
/// # Errors
///
/// Those of reading the corpus, starting processes and writing findings.
pub fn fuzz(target: &'static Target, budget: &Budget) -> io::Result<Report> {
    let mut fuzzer = Fuzzer::new(target, budget)?;
    let start = Instant::now();
    let mut inputs = corpus::inputs(target)?;
    // What earlier runs found worth keeping.
    inputs.extend(corpus::read_folder(&fuzzer.kept)?);
    if inputs.is_empty() {
        inputs.push((String::new(), vec![0; 64]));
    }
    for (_, input) in inputs {
        fuzzer.run(Part::Whole, vec![input], true)?;
    }
    let part = if target.quick.is_some() { Part::Quick } else { Part::Whole };
    while start.elapsed() < budget.time && fuzzer.report.findings.len() < MOST_FINDINGS {
        let inputs = (0..BATCH).map(|_| fuzzer.next()).collect();
        let mut promising = fuzzer.run(part, inputs, false)?;
        if part == Part::Quick {
            promising.extend((0..BATCH / WHOLE).map(|_| fuzzer.next()));
            fuzzer.run(Part::Whole, promising, false)?;
        }
    }
    fuzzer.report.outcomes = fuzzer.outcomes.len();
    fuzzer.report.cpu = fuzzer.process.spent();
    Ok(fuzzer.report)
}

/// Runs one input in a process of its own.
///
/// # Errors
///
/// Those of starting the process.
pub fn once(target: &'static Target, input: &[u8]) -> io::Result<Result<(), Death>> {
    Ok(Process::new(target).run(Part::Whole, input)?.map(drop))
}

struct Fuzzer {
    target: &'static Target,
    process: Process,
    rng: Rng,
    pool: Vec<Vec<u8>>,
    /// The fingerprints of the pool: an input may have a new outcome in the quick part of the target and in
    /// the whole.
    pooled: HashSet<u32>,
    outcomes: HashSet<(Part, u64)>,
    deaths: HashSet<String>,
    report: Report,
    kept: PathBuf,
    found: PathBuf,
}

impl Fuzzer {
    fn new(target: &'static Target, budget: &Budget) -> io::Result<Self> {
        let folder = budget.folder.join(target.name);
        let (kept, found) = (folder.join("corpus"), folder.join("findings"));
        fs::create_dir_all(&kept)?;
        fs::create_dir_all(&found)?;
        Ok(Self {
            target,
            process: Process::new(target),
            rng: Rng::with_seed(budget.seed),
            pool: Vec::new(),
            pooled: HashSet::new(),
            outcomes: HashSet::new(),
            deaths: HashSet::new(),
            report: Report::default(),
            kept,
            found,
        })
    }

    /// An input made of one of the pool, of the newer ones more often.
    fn next(&mut self) -> Vec<u8> {
        let (rng, pool) = (&mut self.rng, &self.pool);
        let any = |rng: &mut Rng| rng.usize(..pool.len().max(1));
        let base = any(rng).max(if rng.bool() { any(rng) } else { 0 });
        let other = any(rng);
        let part = |place: usize| pool.get(place).map(Vec::as_slice).unwrap_or_default();
        mutate(self.target.format, part(base), part(other), self.target.longest, rng)
    }

    /// Runs inputs; gives those whose outcome is new.
    fn run(&mut self, part: Part, mut inputs: Vec<Vec<u8>>, from_corpus: bool) -> io::Result<Vec<Vec<u8>>> {
        let mut promising = Vec::new();
        while !inputs.is_empty() {
            let (replies, death) = self.process.run_all(part, &inputs)?;
            let remaining = inputs.split_off(replies.len());
            for (input, reply) in inputs.into_iter().zip(replies) {
                self.count(part);
                if self.keep(part, &input, reply, from_corpus)? {
                    promising.push(input);
                }
            }
            inputs = remaining;
            if let Some(death) = death {
                self.count(part);
                self.found(part, inputs.remove(0), death)?;
            }
        }
        Ok(promising)
    }

    fn count(&mut self, part: Part) {
        self.report.runs += 1;
        self.report.whole += u64::from(part == Part::Whole);
    }

    /// Changes an input further whose outcome is new, or that is of the corpus; whether it does.
    fn keep(&mut self, part: Part, input: &[u8], reply: Reply, from_corpus: bool) -> io::Result<bool> {
        let new = self.outcomes.insert((part, reply.outcome));
        let is_kept = (new && reply.microseconds < SLOW && self.pool.len() < MOST) || from_corpus;
        if is_kept && self.pooled.insert(fingerprint(input)) {
            if !from_corpus {
                fs::write(self.kept.join(format!("{:016x}", reply.outcome)), input)?;
            }
            self.pool.push(input.to_vec());
        }
        Ok(is_kept)
    }

    fn found(&mut self, part: Part, input: Vec<u8>, death: Death) -> io::Result<()> {
        if !self.deaths.insert(death.key()) {
            return Ok(());
        }
        eprintln!("{}: {}: {}", self.target.name, death.kind, death.words);
        let input = self.shrink(part, input, &death)?;
        let path = self.found.join(format!("{:08x}", fingerprint(&input)));
        fs::write(&path, &input)?;
        eprintln!("{}: {} bytes: {}", self.target.name, input.len(), path.display());
        // Where the machine is gone afterwards, the log is all that is left.
        eprintln!("{}: {}", self.target.name, shown(&input));
        self.report.findings.push(Finding { death, input, path });
        Ok(())
    }

    /// Leaves out what the death does not need.
    fn shrink(&mut self, part: Part, mut input: Vec<u8>, death: &Death) -> io::Result<Vec<u8>> {
        let start = Instant::now();
        let mut size = input.len() / 2;
        while size > 0 {
            let mut place = 0;
            while place < input.len() {
                if start.elapsed() > SHRINKING {
                    return Ok(input);
                }
                let mut shorter = input.clone();
                shorter.drain(place..(place + size).min(input.len()));
                let same = match self.process.run(part, &shorter)? {
                    Ok(_) => false,
                    Err(other) => other.key() == death.key(),
                };
                if same {
                    input = shorter;
                } else {
                    place += size;
                }
            }
            size /= 2;
        }
        Ok(input)
    }
}

/// The default place for findings.
pub fn default_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| corpus::repository().join("target")).join("fuzz")
}

/// The name of an input.
fn fingerprint(input: &[u8]) -> u32 {
    input.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// An input as text that can be copied from a log.
fn shown(input: &[u8]) -> String {
    let most = 4096;
    let escaped = input.get(..input.len().min(most)).unwrap_or_default().escape_ascii();
    format!("b\"{escaped}\"{}", if input.len() > most { "…" } else { "" })
}
