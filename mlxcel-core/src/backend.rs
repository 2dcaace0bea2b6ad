//! How models are loaded: the entry into an engine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::{CancelToken, Error, ErrorKind, Model, Result};

/// An engine: knows how to load a model.
///
/// # Contract
///
/// *For users*: a backend is a value; make one with the engine's own options, pass it where a `&dyn Backend` or an
/// `Arc<dyn Backend>` is wanted. Loading may take long (compiling, reading weights): give a [`ProgressFn`] and a
/// [`CancelToken`] in the options.
///
/// *For implementers*: `load` fails with an error, never a panic, and leaves nothing behind when it fails. An option that the
/// engine cannot honour is an error that names the field, never ignored; [`OptionSupport`](crate::OptionSupport) checks them.
pub trait Backend: Send + Sync {
    /// The engine's short lower-case name, such as `iree`.
    fn name(&self) -> &str;

    /// Loads a model: reads its weights, compiles what must be compiled.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the source ([`ErrorKind::NotFound`], [`ErrorKind::Corrupt`], [`ErrorKind::Unsupported`]),
    /// with the options ([`ErrorKind::InvalidInput`]), or with the machine ([`ErrorKind::Toolchain`],
    /// [`ErrorKind::Compile`], [`ErrorKind::Device`], [`ErrorKind::ResourceExhausted`]).
    fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>>;
}

macro_rules! forward {
    ($($target:ty),*) => {$(
        #[deny(clippy::missing_trait_methods)]
        impl<B: Backend + ?Sized> Backend for $target {
            fn name(&self) -> &str {
                (**self).name()
            }
            fn load(&self, source: &ModelSource, options: &LoadOptions) -> Result<Arc<dyn Model>> {
                (**self).load(source, options)
            }
        }
    )*};
}
forward!(&B, Box<B>, Arc<B>);

/// Where a model comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModelSource {
    /// A folder, in the layout that the engine reads (a Hugging Face checkpoint for all of ours), or a file that holds all of a model
    /// (GGUF for all of ours).
    Folder(PathBuf),
    /// Files that are part of the application's binary: name and content of each.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// A model that the engine makes by itself, by its name.
    BuiltIn(String),
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        Self::Folder(path.to_owned())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        Self::Folder(path)
    }
}

impl From<String> for ModelSource {
    fn from(path: String) -> Self {
        Self::Folder(path.into())
    }
}

impl From<&str> for ModelSource {
    fn from(path: &str) -> Self {
        Self::Folder(path.into())
    }
}

/// Which rounding a model runs with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// float32 activations and accumulation, whatever the weights are stored in: what oracles are held against.
    Exact,
    /// Activations in the checkpoint's own type, accumulation in float32: as its authors run it.
    #[default]
    Native,
    /// What the engine documents, with its measured error.
    Fast,
}

impl Precision {
    /// The lower-case name: `exact`, `native`, `fast`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Native => "native",
            Self::Fast => "fast",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Exact, Self::Native, Self::Fast]
            .into_iter()
            .find(|precision| precision.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, "choose precision", "use exact, native or fast")
                    .with_context("field", "precision")
                    .with_context("value", text)
            })
    }
}

/// Which programs an engine that compiles has ready when a model is loaded. One that compiles nothing has nothing to do for any
/// choice.
///
/// Programs have static shapes: the number of rows that share a pass, the tokens of a prompt chunk, the length of the KV cache. A
/// program that a step needs and that is not ready is compiled then, which takes seconds the first time and milliseconds where
/// the engine keeps what it compiled. An engine with programs says how many there are, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prepare {
    /// Those that every generation begins with; the others when a step first needs them. Loading is as short as it can be.
    #[default]
    OnDemand,
    /// Every program that generating with these options can reach, for all numbers of sequences and all lengths: results of the last
    /// token of each row. A server then compiles nothing while it serves; fewer sequences and a lower capacity are fewer programs.
    Generation,
    /// The same, and what gives results at every position of a prompt (scores) and hidden states (embeddings).
    Everything,
}

impl Prepare {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::OnDemand, Self::Generation, Self::Everything];

    /// The lower-case name: `on-demand`, `generation`, `everything`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Generation => "generation",
            Self::Everything => "everything",
        }
    }
}

impl fmt::Display for Prepare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Prepare {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|prepare| prepare.as_str().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "choose programs", "use on-demand, generation or everything")
                .with_context("field", "prepare")
                .with_context("value", text)
        })
    }
}

/// A long part of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadStage {
    /// Files of a checkpoint are being downloaded; counted in bytes.
    Download,
    /// Programs are being compiled; counted in programs.
    Compile,
    /// Weights are going to the device; counted in bytes.
    Weights,
}

/// How far a [`LoadStage`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// The stage.
    pub stage: LoadStage,
    /// How much is done, in the stage's unit.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

impl LoadProgress {
    /// `done` of `total` of `stage`.
    pub fn new(stage: LoadStage, done: u64, total: u64) -> Self {
        Self { stage, done, total }
    }
}

/// Called with the progress of long work, from any thread, not more often than is useful to show.
pub type ProgressFn = Arc<dyn Fn(LoadProgress) + Send + Sync>;

/// What [`Backend::load`] is asked for; start from [`LoadOptions::default`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Which rounding to run with.
    pub precision: Precision,
    /// The most tokens that one sequence may hold; defaults to the model's own limit. An engine allocates by use, so
    /// a large capacity costs nothing until it is filled.
    pub capacity: Option<usize>,
    /// How many sequences a session must be able to hold at once; defaults to what the engine chooses.
    pub sequences: Option<usize>,
    /// How many threads compute; defaults to the engine's choice, usually one a core.
    pub threads: Option<usize>,
    /// The device by the engine's name for it; defaults to what the engine chooses.
    pub device: Option<String>,
    /// Which programs are ready once the model is loaded.
    pub prepare: Prepare,
    /// Told about long work, now and whenever the model compiles something later that a step waits for.
    pub progress: Option<ProgressFn>,
    /// Stops loading at the next boundary.
    pub cancel: Option<CancelToken>,
}

impl LoadOptions {
    /// The most threads that may be asked for: more than any machine has cores for, and few enough that the system has them.
    pub const MAX_THREADS: usize = 256;

    /// Sets the precision.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Sets the most tokens that one sequence may hold.
    #[must_use]
    pub fn with_capacity(mut self, tokens: usize) -> Self {
        self.capacity = Some(tokens);
        self
    }

    /// Sets how many sequences a session must be able to hold at once.
    #[must_use]
    pub fn with_sequences(mut self, sequences: usize) -> Self {
        self.sequences = Some(sequences);
        self
    }

    /// Sets how many threads compute.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets the device.
    #[must_use]
    pub fn with_device(mut self, device: impl Into<String>) -> Self {
        self.device = Some(device.into());
        self
    }

    /// Sets which programs are ready once the model is loaded.
    #[must_use]
    pub fn with_prepare(mut self, prepare: Prepare) -> Self {
        self.prepare = prepare;
        self
    }

    /// Sets who is told about long work.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(LoadProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Sets what stops loading.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = Some(cancel);
        self
    }
}

impl fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadOptions")
            .field("precision", &self.precision)
            .field("capacity", &self.capacity)
            .field("sequences", &self.sequences)
            .field("threads", &self.threads)
            .field("device", &self.device)
            .field("prepare", &self.prepare)
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}
