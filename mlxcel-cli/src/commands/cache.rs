//! Looks into the cache of compiled programs and weights: lists it, verifies it, makes room.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use mlxcel_session::Error;
use mlxcel_session::iree::cache::{Cache, CacheEntry, parse_size};
use mlxcel_session::mlxcel_core::one_line;
use serde::Serialize;

use crate::report::{Failure, expect_folder, print};

/// List, verify and prune the programs that models were compiled into
///
/// A damaged entry is a failure of `verify`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    work: Option<Work>,
    /// The folder of the cache; else iree in the folder that MLXCEL_CACHE_DIR names, else mlxcel/iree in the
    /// user's cache folder
    #[arg(long, value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
    /// Print one JSON object: folder, limit, entries (key, bytes, target, program, compiler, last_used in
    /// seconds since 1970; problem if verified), and removed (entries, bytes) if pruned
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Work {
    /// List the contents, most recently used first; the default
    List,
    /// Read every program and compare its checksum
    Verify {
        /// Remove damaged programs; they are compiled again when a model needs them
        #[arg(long)]
        remove: bool,
    },
    /// Remove the programs that were not used for the longest time
    Prune(Prune),
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Prune {
    /// Keep up to this many bytes: 500M, 2GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Remove everything, also unfinished files of killed processes
    #[arg(long)]
    all: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output {
    folder: Option<PathBuf>,
    limit: u64,
    entries: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<Removed>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    bytes: u64,
    target: String,
    program: String,
    compiler: String,
    last_used: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Default, Serialize)]
struct Removed {
    entries: usize,
    bytes: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.dir.as_deref().map_or(Ok(()), expect_folder)?;
    let cache = Cache::open(arguments.dir.as_deref())?;
    let mut output = Output {
        folder: cache.folder().map(PathBuf::from),
        limit: cache.limit(),
        entries: Vec::new(),
        removed: None,
    };
    match &arguments.work {
        None | Some(Work::List) => {}
        Some(Work::Verify { remove }) => return verify(&cache, *remove, output, arguments.json),
        Some(Work::Prune(prune)) => {
            let pruned = match prune.max_size {
                Some(bytes) => cache.prune(bytes)?,
                None => cache.clear()?,
            };
            output.removed = Some(Removed { entries: pruned.entries, bytes: pruned.bytes });
        }
    }
    output.entries = cache.entries()?.iter().map(|entry| Entry::new(entry, None)).collect();
    print(arguments.json, &output, |out, output| output.write(out))
}

fn verify(cache: &Cache, remove: bool, mut output: Output, json: bool) -> Result<(), Failure> {
    let mut removed = Removed::default();
    let mut damaged = 0;
    for entry in cache.entries()? {
        let problem = cache.verify(&entry).err();
        if problem.is_some() {
            damaged += 1;
            if remove {
                cache.remove(&entry)?;
                removed.entries += 1;
                removed.bytes += entry.bytes;
            }
        }
        output.entries.push(Entry::new(&entry, problem.as_ref()));
    }
    output.removed = remove.then_some(removed);
    let count = output.entries.len();
    print(json, &output, |out, output| output.write(out))?;
    if damaged > 0 {
        return Err(Failure::Finding(format!("{damaged} of {count} programs are corrupt")));
    }
    Ok(())
}

impl Entry {
    fn new(entry: &CacheEntry, problem: Option<&Error>) -> Self {
        Self {
            key: entry.key.clone(),
            bytes: entry.bytes,
            target: entry.target.clone(),
            program: entry.program.clone(),
            compiler: entry.compiler.clone(),
            last_used: entry.last_used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            problem: problem.map(|error| one_line(error)),
        }
    }

    /// Whether it is weights that a model was given as programs take them, and not a program.
    fn is_weights(&self) -> bool {
        self.program.starts_with("weights of ")
    }

    fn age(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(self.last_used)).unwrap_or_default()
    }
}

impl Output {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let known = |text: &str| if text.is_empty() { "?".to_owned() } else { text.to_owned() };
        for entry in &self.entries {
            let (size, age) = (in_units(entry.bytes), in_words(entry.age()));
            writeln!(out, "{size:>9}  {age:>8}  {}  {}", known(&entry.target), known(&entry.program))?;
            if let Some(problem) = &entry.problem {
                writeln!(out, "           damaged: {problem}")?;
            }
        }
        if let Some(Removed { entries, bytes }) = self.removed {
            writeln!(out, "removed {entries} programs, {}", in_units(bytes))?;
        }
        let bytes = self.entries.iter().map(|entry| entry.bytes).sum();
        let weights = self.entries.iter().filter(|entry| entry.is_weights()).count();
        let kept = match weights {
            0 => String::new(),
            weights => format!(" and weights of {weights} models"),
        };
        let folder = self.folder.as_ref().map_or("no folder".into(), |folder| folder.display().to_string());
        let (count, limit) = (self.entries.len() - weights, in_units(self.limit));
        writeln!(out, "{count} programs{kept}, {} of {limit} in {folder}", in_units(bytes))
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.message().to_owned())
}

/// A number of bytes for people.
fn in_units(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A time that has passed, for people.
fn in_words(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3600 => format!("{} min", seconds / 60),
        seconds @ ..86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
