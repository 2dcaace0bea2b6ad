//! Fixtures with their oracles, and the engines that are compiled in.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use mlxcel_conformance::{Oracle, OracleCase, Outcome};
use mlxcel_core::{Backend, LoadOptions, Model, Precision};
use mlxcel_models::{Checkpoint, Decoder};

/// A checkpoint with an `oracle.json`.
pub struct Fixture {
    pub name: &'static str,
    pub path: PathBuf,
}

impl Fixture {
    pub fn storyteller() -> Self {
        Self {
            name: "storyteller",
            path: Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/storyteller"),
        }
    }

    /// Those in the folders of a folder, by name.
    pub fn all_in(root: &Path) -> Vec<Self> {
        let mut paths: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned().leak();
        paths.into_iter().map(|path| Self { name: name(&path), path }).collect()
    }

    pub fn named(name: &'static str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let path = if name == "storyteller-4bit" { fixtures } else { fixtures.join("architectures") };
        Self { name, path: path.join(name) }
    }

    pub fn oracle(&self) -> Oracle {
        Oracle::read(self.path.join("oracle.json")).unwrap()
    }

    pub fn cases(&self) -> Vec<OracleCase> {
        self.oracle().cases
    }
}

/// Every engine that is compiled in; compiled programs are kept beside the test binaries.
pub fn engines() -> Vec<Box<dyn Backend>> {
    vec![
        #[cfg(feature = "portable")]
        Box::new(mlxcel_session::portable::PortableBackend::new()),
        #[cfg(feature = "iree")]
        Box::new(iree()),
        #[cfg(feature = "mlx")]
        Box::new(mlxcel_session::mlx::MlxBackend::new()),
    ]
}

/// The IREE engine with one size of prompt chunks, and so fewer programs to compile for each fixture. How
/// chunks of several sizes are chosen is tested where it is decided, and conformance holds the default sizes
/// on the bundled model.
#[cfg(feature = "iree")]
pub fn iree() -> mlxcel_session::iree::IreeBackend {
    mlxcel_session::iree::IreeBackend::new().with_cache_dir(cache_dir()).with_prefill_chunk(16)
}

/// Those that `MLXCEL_TEST_ENGINES` lists, the PJRT engine too; without it the others.
pub fn wanted_engines() -> Vec<Box<dyn Backend>> {
    match std::env::var_os("MLXCEL_TEST_ENGINES") {
        None => engines(),
        Some(_) => engines_and_plugin().into_iter().filter(|engine| is_wanted(&**engine)).collect(),
    }
}

/// Whether `MLXCEL_TEST_ENGINES` lists the engine, or is not set.
pub fn is_wanted(engine: &dyn Backend) -> bool {
    let wanted = std::env::var("MLXCEL_TEST_ENGINES");
    wanted.map_or(true, |wanted| wanted.split(',').any(|wanted| wanted == engine.name()))
}

/// Those, and the PJRT engine where there is a plugin.
pub fn engines_and_plugin() -> Vec<Box<dyn Backend>> {
    #[allow(unused_mut, reason = "without the engine there is nothing to add")]
    let mut engines = engines();
    #[cfg(feature = "pjrt")]
    engines.extend(pjrt().map(|engine| Box::new(engine) as Box<dyn Backend>));
    engines
}

/// The PJRT engine on the plugin that the environment names, or that `cargo xtask setup --pjrt` provides;
/// none where neither is there. Continuous integration provides it where it is published for the machine.
#[cfg(feature = "pjrt")]
pub fn pjrt() -> Option<mlxcel_session::pjrt::PjrtBackend> {
    use mlxcel_session::pjrt::{PLUGIN_VARIABLE, PjrtBackend};

    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let provided = workspace.join(".toolchain/pjrt/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
    let engine = match std::env::var_os(PLUGIN_VARIABLE) {
        None => PjrtBackend::new().with_plugin(provided),
        Some(_) => PjrtBackend::new(),
    };
    let is_there = engine.plugin_path().is_ok_and(|path| path.is_file());
    let is_published = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let is_needed = is_published && std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(is_there || !is_needed, "`cargo xtask setup --pjrt` provides a plugin");
    // Fixtures are small: what takes time is compiling for them.
    let engine = engine.with_compile_option("xla_backend_optimization_level", 0);
    is_there.then(|| engine.with_cache_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("pjrt-cache")))
}

/// A folder of checkpoints with oracles that replaces the repository's; every engine runs all of them,
/// batches too.
pub const FOLDER_VARIABLE: &str = "MLXCEL_ARCHITECTURES";

/// The variable with which engines that compile run all folders, as `cargo xtask test --all` sets it.
pub const ALL_VARIABLE: &str = "MLXCEL_TEST_ALL_FOLDERS";

/// A folder for each kind of state.
pub const STATES: [&str; 10] = [
    "deepseek_v3", "deepseek_v32", "deepseek_v4", "gemma2", "gemma3n_text", "gpt_oss", "kimi_linear", "lfm2",
    "mamba2", "qwen3_next",
];

/// Whether whoever runs the tests has asked for all that take long.
pub fn all() -> bool {
    std::env::var_os(ALL_VARIABLE).is_some()
}

/// Whether an engine compiles for seconds before it runs a folder, and whoever runs the tests has not asked
/// for all.
pub fn spares(engine: &dyn Backend) -> bool {
    ["iree", "pjrt"].contains(&engine.name()) && !all() && std::env::var_os(FOLDER_VARIABLE).is_none()
}

/// The fixtures that engines which compile run: the `first` ones, and one with each item of `items` that
/// these lack.
pub fn covering(
    fixtures: &[Fixture],
    first: &[&'static str],
    items: fn(&Decoder) -> BTreeSet<String>,
) -> BTreeSet<&'static str> {
    let items_of = |fixture: &Fixture| items(&Checkpoint::open(&fixture.path).unwrap().decoder().unwrap());
    let items: BTreeMap<_, _> = fixtures.iter().map(|fixture| (fixture.name, items_of(fixture))).collect();
    let mut chosen: BTreeSet<_> = first.iter().copied().filter(|name| items.contains_key(name)).collect();
    loop {
        let covered: BTreeSet<_> = chosen.iter().flat_map(|name| &items[name]).cloned().collect();
        let lacking = |name: &str| items[name].difference(&covered).count();
        match items.keys().max_by_key(|name| lacking(name)) {
            Some(next) if lacking(next) > 0 => chosen.insert(next),
            _ => return chosen,
        };
    }
}

/// Whether an engine runs a fixture, of those that are chosen for engines which compile. PJRT runs those of
/// [`STATES`]: its programs are IREE's without our kernels.
pub fn runs(engine: &dyn Backend, fixture: &Fixture, chosen: &BTreeSet<&str>) -> bool {
    let is_state = STATES.contains(&fixture.name);
    !spares(engine) || (if engine.name() == "pjrt" { is_state } else { chosen.contains(fixture.name) })
}

/// Checks fixtures on every engine, on those that compile only the `chosen` ones.
pub fn check_on_engines(
    fixtures: &[Fixture],
    chosen: &BTreeSet<&str>,
    check: impl Fn(&dyn Backend, &Fixture) -> Outcome,
) {
    let mut failures = Vec::new();
    for fixture in fixtures {
        for engine in engines().into_iter().filter(|engine| runs(&**engine, fixture, chosen)) {
            if let Err(error) = check(&*engine, fixture) {
                failures.push(format!("{} {}: {error}", engine.name(), fixture.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Whether numbers differ by no more than `difference` of the largest expected one, or of one.
pub fn expect_close(what: &str, found: &[f32], expected: &[f32], difference: f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1f32, |most, x| most.max(x.abs()));
    let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= difference * scale, "{what}: {error} of {scale}");
}

/// What the printed summary says about the parts of a decoder, without its numbers: `norm rms`, `attention
/// window`, `mlp silu gate`.
pub fn parts(decoder: &Decoder) -> BTreeSet<String> {
    let summary = decoder.to_string().replace(|c: char| c.is_ascii_digit() || c == '.', "");
    let of_part = |line: &str| -> Vec<String> {
        let Some((part, text)) = line.trim_start().split_once(' ') else { return Vec::new() };
        text.split(", ").map(|phrase| format!("{part} {}", phrase.trim())).collect()
    };
    summary.lines().skip(1).flat_map(of_part).collect()
}

/// Where the tests keep compiled programs.
pub fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("iree-cache")
}

/// Tokens for which a checkpoint of `fixtures/` is opened: more than its oracle's, and for all tests as many,
/// so that they share programs.
pub const CAPACITY: usize = 160;

/// How a fixture is opened: with [`CAPACITY`] if it has an oracle whose cases fit, else with its own.
pub fn options(fixture: &Fixture, precision: Precision) -> LoadOptions {
    let options = LoadOptions::default().with_precision(precision);
    if !fixture.path.join("oracle.json").exists() {
        return options;
    }
    let longest = fixture.cases().iter().map(|case| case.prompt.len() + case.greedy.len()).max();
    if longest.is_some_and(|tokens| tokens < CAPACITY) { options.with_capacity(CAPACITY) } else { options }
}

pub fn load(engine: &dyn Backend, fixture: &Fixture, precision: Precision) -> Arc<dyn Model> {
    engine.load(&fixture.path.clone().into(), &options(fixture, precision)).unwrap()
}

/// Writes an executable script. A process of its own writes it: another test may fork while this process has
/// the file open for writing, and a program that any process has open for writing cannot be started ("text
/// file busy").
pub fn write_script(path: &Path, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// Copies a program, by a process of its own; see [`write_script`].
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}
