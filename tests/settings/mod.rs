//! Random small checkpoints of every family: the engines compute what a walk in plain loops does, or refuse a
//! setting by name.
//!
//! Each checkpoint follows from a seed and a number. `MLXCEL_SETTINGS` runs so many of them, from number
//! `MLXCEL_SETTINGS_FIRST` on of `MLXCEL_SETTINGS_SEED`, on the engines that `MLXCEL_TEST_ENGINES` lists;
//! `MLXCEL_SETTINGS_FAMILY` selects families, and `MLXCEL_SETTINGS_KEEP` names a folder to keep all
//! checkpoints in, with the walk's logits.
#![cfg(feature = "portable")]

mod checkpoint;
mod classics;
mod draw;
mod engines;
mod families;
mod gemmas;
mod gguf;
mod hybrids;
mod latents;
mod mixtures;
mod packings;
mod routed;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use checkpoint::{family, make};
use draw::Random;
use engines::{Expected, Outcome, Script, refusal, run};
use families::FAMILIES;
use mlxcel_core::Backend;
use mlxcel_models::Checkpoint;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

/// The seed of the same checkpoints at every run.
const FIXED: u64 = 1;
/// How many checkpoints run of each seed, on all engines but IREE's: one of each family, half of them packed.
const BUDGET: u64 = FAMILIES.len() as u64;
/// How many of them run on IREE's, which compiles two programs for each.
const COMPILED: u64 = 1;

/// Which checkpoints run, and where.
struct Plan {
    seed: u64,
    numbers: std::ops::Range<u64>,
    /// Every so many checkpoints one runs on IREE's engine too.
    compiled_every: u64,
    family: String,
    keep: Option<PathBuf>,
}

/// What came of the checkpoints.
#[derive(Default)]
struct Tally {
    /// By family, packing and engine: equal, refused, defects.
    counts: BTreeMap<(&'static str, &'static str, String), [usize; 3]>,
    refusals: BTreeMap<String, usize>,
    defects: Vec<String>,
    /// The largest error of equal logits.
    worst: f32,
    checkpoints: usize,
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Plan {
    /// The checkpoints of a seed that continuous integration runs.
    fn of(seed: u64) -> Self {
        // The first is compiled, so the family that is first follows from the seed.
        let first = seed % BUDGET;
        let compiled_every = BUDGET.div_ceil(COMPILED);
        Self { seed, numbers: first..first + BUDGET, compiled_every, family: String::new(), keep: None }
    }

    /// Those that the environment asks for.
    fn asked() -> Option<Self> {
        let count: u64 = variable("MLXCEL_SETTINGS")?;
        let first = variable("MLXCEL_SETTINGS_FIRST").unwrap_or(0);
        Some(Self {
            seed: variable("MLXCEL_SETTINGS_SEED").unwrap_or_else(fresh),
            numbers: first..first + count,
            compiled_every: 1,
            family: variable("MLXCEL_SETTINGS_FAMILY").unwrap_or_default(),
            keep: variable("MLXCEL_SETTINGS_KEEP"),
        })
    }

    fn run(&self, tally: &mut Tally) {
        let engines = crate::support::wanted_engines();
        for number in self.numbers.clone() {
            self.examine(number, &engines, tally);
        }
    }

    /// Makes one checkpoint and runs it.
    fn examine(&self, number: u64, engines: &[Box<dyn Backend>], tally: &mut Tally) {
        let family = family(number, &self.family);
        let temporary = tempfile::tempdir().unwrap();
        let kept = self.keep.as_ref().map(|keep| keep.join(format!("{family}-{}-{number}", self.seed)));
        let folder = kept.as_deref().unwrap_or(temporary.path());
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).unwrap();
        let title = format!("{family}, seed {} number {number}", self.seed);
        tally.checkpoints += 1;
        let made = match make(Random::new(self.seed, number), family, folder) {
            Ok(made) => made,
            Err(error) => return tally.add((family, "-", "reader"), &title, refusal(&error)),
        };
        let opened = Checkpoint::open(&made.path);
        let opened = opened.and_then(|checkpoint| checkpoint.decoder().map(|decoder| (checkpoint, decoder)));
        let (checkpoint, decoder) = match opened {
            Ok(opened) => opened,
            Err(error) => return tally.add((family, made.packing, "reader"), &title, refusal(&error)),
        };
        let mut random = made.random;
        let longest = random.pick(&[4, 17, 30, 45, 70]).min(made.context);
        let script = Script::draw(&mut random, made.vocabulary, longest, 3);
        let expected = match Expected::of(&checkpoint, &decoder, &script) {
            Ok(expected) if expected.is_finite() => expected,
            Ok(_) => return tally.defects.push(format!("{title}: the walk's logits are not numbers")),
            Err(error) => return tally.add((family, made.packing, "walk"), &title, refusal(&error)),
        };
        if kept.is_some() {
            let text = &script.texts[0];
            let expected = json!({"tokens": text, "logits": expected.after(0, text.len())});
            std::fs::write(made.path.join("logits.json"), expected.to_string()).unwrap();
        }
        // Batches take more programs.
        let compiled = if number % 8 == 5 { script.clone() } else { script.clone().short(2) };
        for engine in engines {
            let compiles = ["iree", "pjrt"].contains(&engine.name());
            if compiles && !(number - self.numbers.start).is_multiple_of(self.compiled_every) {
                continue;
            }
            let script = if compiles { &compiled } else { &script };
            let outcome = run(&**engine, &made.path, script, &expected);
            #[cfg(feature = "mlx")]
            if engine.name() == "mlx" && matches!(outcome, Outcome::Refused(_)) && made.packing != "dense" {
                let expanded = mlxcel_session::mlx::MlxBackend::new().with_expanded_weights(true);
                let outcome = run(&expanded, &made.path, script, &expected);
                tally.add((family, made.packing, "mlx, expanded"), &title, outcome);
            }
            tally.add((family, made.packing, engine.name()), &title, outcome);
        }
    }
}

impl Tally {
    fn add(
        &mut self,
        (family, packing, engine): (&'static str, &'static str, &str),
        title: &str,
        outcome: Outcome,
    ) {
        let count = self.counts.entry((family, packing, engine.to_owned())).or_default();
        match outcome {
            Outcome::Equal(error) => {
                count[0] += 1;
                self.worst = self.worst.max(error);
            }
            Outcome::Refused(why) => {
                count[1] += 1;
                *self.refusals.entry(format!("{engine}: {why}")).or_default() += 1;
            }
            Outcome::Defect(what) => {
                count[2] += 1;
                let defect = format!("{title}, {packing} on {engine}: {what}");
                println!("{defect}");
                self.defects.push(defect);
            }
        }
    }

    /// Counts by each of family, packing and engine.
    fn print(&self) {
        let by = |key: &dyn Fn(&(&'static str, &'static str, String)) -> String| {
            let mut sums = BTreeMap::<_, [usize; 3]>::new();
            for (place, counts) in &self.counts {
                let sum = sums.entry(key(place)).or_default();
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            let line = |(key, [equal, refused, defects]): (String, [usize; 3])| {
                format!("{key} {equal}/{refused}/{defects}")
            };
            sums.into_iter().map(line).collect::<Vec<_>>().join(", ")
        };
        println!("equal/refused/defects by family: {}", by(&|(family, _, _)| (*family).to_owned()));
        println!("by packing: {}", by(&|(_, packing, _)| (*packing).to_owned()));
        println!("by engine: {}", by(&|(_, _, engine)| engine.clone()));
        println!("largest error of equal logits: {:.1e}", self.worst);
        for (why, count) in &self.refusals {
            println!("refused {count} times: {why}");
        }
    }
}

/// A seed that was not run before.
fn fresh() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 % 1_000_000_007
}

#[test]
fn random_settings_give_the_same_logits_on_every_engine() {
    let plans = match Plan::asked() {
        Some(plan) => vec![plan],
        None => vec![Plan::of(FIXED), Plan::of(fresh())],
    };
    let mut tally = Tally::default();
    for plan in plans {
        println!("seed {}: numbers {:?}", plan.seed, plan.numbers);
        plan.run(&mut tally);
    }
    tally.print();
    println!("{} checkpoints in {:.0?} of processor time", tally.checkpoints, processor_time());
    assert!(tally.defects.is_empty(), "{}", tally.defects.join("\n"));
}

/// Families that are not searched: they generate nothing. The test `encoders` has settings of each.
const ENCODERS: [&str; 14] = [
    "bert", "camembert", "distilbert", "electra", "ernie", "eurobert", "gte", "jina_embeddings_v3",
    "modernbert", "mpnet", "neobert", "nomic_bert", "roberta", "xlm-roberta",
];

#[test]
fn every_family_that_generates_is_in_the_table() {
    let known = FAMILIES.iter().map(|(name, _)| *name).chain(ENCODERS);
    let mut known: Vec<_> = known.collect();
    known.sort_unstable();
    let supported: BTreeSet<_> = mlxcel_models::supported_model_types().collect();
    assert_eq!(known, supported.into_iter().collect::<Vec<_>>(), "each is in one of the tables");
}
