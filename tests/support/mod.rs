//! Fixtures with their oracles, and the engines that are compiled in.
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use mlxcel_core::{Backend, LoadOptions, Model, Precision};

/// What transformers computed for one prompt, in float32.
#[derive(Clone, serde::Deserialize)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub margins: Vec<f32>,
    pub prefill_logits: Vec<f32>,
    #[serde(default)]
    pub completion: String,
}

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

    pub fn named(name: &'static str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let path = if name == "storyteller-4bit" { fixtures } else { fixtures.join("architectures") };
        Self { name, path: path.join(name) }
    }

    pub fn cases(&self) -> Vec<Case> {
        #[derive(serde::Deserialize)]
        struct Oracle {
            cases: Vec<Case>,
        }
        let text = std::fs::read(self.path.join("oracle.json")).unwrap();
        serde_json::from_slice::<Oracle>(&text).unwrap().cases
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

/// The IREE engine with one size of prompt chunks, and so fewer programs to compile for each fixture. How chunks of several sizes are
/// chosen is tested where it is decided, and conformance holds the default sizes on the bundled model.
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

/// The PJRT engine on the plugin that the environment names, or that `cargo xtask setup --pjrt` provides; none where neither is there.
/// Continuous integration provides it where it is published for the machine.
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

/// A folder of checkpoints with oracles that replaces the repository's; every engine runs all of them, batches too.
pub const FOLDER_VARIABLE: &str = "MLXCEL_ARCHITECTURES";

/// Folders whose layers are those of others in another order or with other names and constants.
const ALIKE: [&str; 21] = [
    "afmoe",
    "arcee",
    "bailing_hybrid",
    "bamba",
    "bitnet",
    "deepseek_v2",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "gemma4_unified_text",
    "glm4_moe_lite",
    "hunyuan_v1_moe",
    "internlm3",
    "lfm2_moe",
    "minicpm3",
    "minimax_m2",
    "mistral4",
    "olmo_hybrid",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "solar_open",
];

/// Whether an engine compiles for seconds before it runs a folder, and whoever runs the tests has not asked for all.
pub fn spares(engine: &dyn Backend) -> bool {
    ["iree", "pjrt"].contains(&engine.name()) && std::env::var_os(FOLDER_VARIABLE).is_none()
}

/// Whether an engine is spared a folder whose programs are like those of another.
pub fn is_spared(engine: &dyn Backend, fixture: &Fixture) -> bool {
    spares(engine) && ALIKE.contains(&fixture.name)
}

/// Where the tests keep compiled programs.
pub fn cache_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("iree-cache")
}

/// Tokens for which a checkpoint of `fixtures/` is opened: more than its oracle's, and for all tests as many, so that they share programs.
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

/// Writes an executable script. A process of its own writes it: another test may fork while this process has the file open for writing, and
/// a program that any process has open for writing cannot be started ("text file busy").
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
