//! Looks into the cache of compiled programs and weights: lists it, verifies it, makes room.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use mlxcel_session::Error;
use mlxcel_session::iree::cache::{Cache, CacheEntry, parse_size};
use mlxcel_session::mlxcel_core::one_line;
use serde_json::{Value, json};

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

/// An entry, and what is wrong with it, if it was verified.
type Entry = (CacheEntry, Option<Error>);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.dir.as_deref().map_or(Ok(()), expect_folder)?;
    let cache = Cache::open(arguments.dir.as_deref())?;
    let mut removed = None;
    if let Some(Work::Prune(prune)) = &arguments.work {
        let pruned = prune.max_size.map_or_else(|| cache.clear(), |bytes| cache.prune(bytes))?;
        removed = Some((pruned.entries, pruned.bytes));
    }
    let mut entries: Vec<Entry> = cache.entries()?.into_iter().map(|entry| (entry, None)).collect();
    if let Some(Work::Verify { remove }) = arguments.work {
        removed = remove.then_some((0, 0));
        for (entry, problem) in &mut entries {
            *problem = cache.verify(entry).err();
            if let (Some(_), Some((entries, bytes))) = (&problem, &mut removed) {
                cache.remove(entry)?;
                *entries += 1;
                *bytes += entry.bytes;
            }
        }
    }
    print(arguments.json, &json(&cache, &entries, removed), |out, _| write(out, &cache, &entries, removed))?;
    let damaged = entries.iter().filter(|(_, problem)| problem.is_some()).count();
    if damaged > 0 {
        return Err(Failure::Finding(format!("{damaged} of {} programs are corrupt", entries.len())));
    }
    Ok(())
}

/// What `--json` prints.
fn json(cache: &Cache, entries: &[Entry], removed: Option<(usize, u64)>) -> Value {
    let entries = entries.iter().map(|(entry, problem)| {
        let last_used = entry.last_used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut entry = json!({
            "key": entry.key, "bytes": entry.bytes, "target": entry.target, "program": entry.program,
            "compiler": entry.compiler, "last_used": last_used,
        });
        if let Some(problem) = problem {
            entry["problem"] = one_line(problem).into();
        }
        entry
    });
    let folder = cache.folder().map(|folder| folder.display().to_string());
    let mut output =
        json!({ "folder": folder, "limit": cache.limit(), "entries": entries.collect::<Vec<_>>() });
    if let Some((entries, bytes)) = removed {
        output["removed"] = json!({ "entries": entries, "bytes": bytes });
    }
    output
}

fn write(
    out: &mut impl Write,
    cache: &Cache,
    entries: &[Entry],
    removed: Option<(usize, u64)>,
) -> io::Result<()> {
    let known = |text: &str| if text.is_empty() { "?".to_owned() } else { text.to_owned() };
    for (entry, problem) in entries {
        let age = SystemTime::now().duration_since(entry.last_used).unwrap_or_default();
        let (size, age) = (in_units(entry.bytes), in_words(age));
        writeln!(out, "{size:>9}  {age:>8}  {}  {}", known(&entry.target), known(&entry.program))?;
        if let Some(problem) = problem {
            writeln!(out, "           damaged: {}", one_line(problem))?;
        }
    }
    if let Some((entries, bytes)) = removed {
        writeln!(out, "removed {entries} programs, {}", in_units(bytes))?;
    }
    let bytes = entries.iter().map(|(entry, _)| entry.bytes).sum();
    // Weights that a model was given as programs take them are no programs.
    let weights = entries.iter().filter(|(entry, _)| entry.program.starts_with("weights of ")).count();
    let kept = match weights {
        0 => String::new(),
        weights => format!(" and weights of {weights} models"),
    };
    let folder = cache.folder().map_or("no folder".into(), |folder| folder.display().to_string());
    let (count, limit) = (entries.len() - weights, in_units(cache.limit()));
    writeln!(out, "{count} programs{kept}, {} of {limit} in {folder}", in_units(bytes))
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
