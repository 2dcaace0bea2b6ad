//! Loading: sources of models, options and progress.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use crate::adapter::AdapterLimits;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};

/// Where a model comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ModelSource {
    /// A folder or a single file, in a format that the engine reads. All engines of this project read Hugging
    /// Face checkpoint folders and GGUF files.
    Folder(PathBuf),
    /// Files embedded in the application's binary: name and content of each.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// A model built into the engine, by name.
    BuiltIn(String),
}

macro_rules! from_paths {
    ($($path:ty),*) => {$(
        impl From<$path> for ModelSource {
            fn from(path: $path) -> Self {
                Self::Folder(path.into())
            }
        }
    )*};
}
from_paths!(&Path, PathBuf, &PathBuf, &String, String, &str);

named! {
    /// The numeric precision that a model runs with.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Precision {
        /// float32 activations and accumulation, for any weight type: the precision that oracles are compared
        /// with.
        Exact = "exact",
        /// Activations in the checkpoint's own type, accumulation in float32: as the model's authors run it.
        #[default]
        Native = "native",
        /// Engine-specific and faster; the engine documents the measured error.
        Fast = "fast",
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "choose precision", "use exact, native or fast")
                .with_context("field", "precision")
                .with_context("value", text)
        })
    }
}

named! {
    /// Which programs an engine compiles while it loads a model. Ignored by engines that compile nothing.
    ///
    /// Programs have static shapes: the number of rows that share a pass, the tokens of a prompt chunk, the
    /// length of the KV cache. A program that is not ready when a step needs it is compiled then, which takes
    /// seconds the first time and milliseconds from the engine's cache. Engines document the number of
    /// programs and their cost.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Prepare {
        /// Only the programs that a short prompt and the text after it need. Those for longer prompts are
        /// compiled in the background or on first use, others on first use. Loads fastest.
        #[default]
        OnDemand = "on-demand",
        /// Every program that generation with these options can use, for all batch sizes and lengths, with
        /// results at the last token of each row. A server then never compiles while serving. Fewer sequences
        /// and a lower capacity need fewer programs.
        Generation = "generation",
        /// As [`Generation`](Self::Generation), and the programs for results at every position (scoring) and
        /// hidden states (embeddings).
        Everything = "everything",
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

/// What of a checkpoint is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelPart {
    /// The model.
    #[default]
    Whole,
    /// Its draft head: the layer for multi-token prediction (Gloeckle et al., 2024; DeepSeek-V3) that some
    /// checkpoints store beside the model's. It is a model of its own, with a token's embedding and the
    /// hidden state of the token before it as input, and the token after next as output. So it drafts for
    /// speculative decoding; see [`Row::states`](crate::Row::states). With [`LoadOptions::draft_head`], it is
    /// the head of that checkpoint.
    DraftHead,
}

/// A stage of loading. Stages may overlap: engines compile and copy weights side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LoadStage {
    /// Downloading files of a checkpoint; in bytes.
    Download,
    /// Compiling programs; in programs.
    Compile,
    /// Copying weights to the device; in bytes.
    Weights,
}

/// Progress of a [`LoadStage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadProgress {
    /// The stage.
    pub stage: LoadStage,
    /// The amount done, in the stage's unit.
    pub done: u64,
    /// The total, in the stage's unit.
    pub total: u64,
}

impl LoadProgress {
    /// `done` of `total` of `stage`.
    pub fn new(stage: LoadStage, done: u64, total: u64) -> Self {
        Self { stage, done, total }
    }
}

/// A progress callback, called from any thread, rarely enough to draw a progress bar each time.
pub type ProgressFn = Arc<dyn Fn(LoadProgress) + Send + Sync>;

/// Options of [`Backend::load`](crate::Backend::load); start from [`LoadOptions::default`].
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// The numeric precision.
    pub precision: Precision,
    /// The maximum number of tokens per sequence; defaults to the model's limit. Engines allocate on demand,
    /// so a large capacity costs nothing until it is used.
    pub capacity: Option<usize>,
    /// The maximum number of concurrent sequences per session; defaults to the engine's choice.
    pub sequences: Option<usize>,
    /// The number of compute threads; defaults to the engine's choice, usually one per core.
    pub threads: Option<usize>,
    /// The device, by the engine's name for it; defaults to the engine's choice.
    pub device: Option<String>,
    /// The room for adapters; defaults to none. It takes memory, and a part of the time of every step.
    pub adapters: Option<AdapterLimits>,
    /// What of the checkpoint is loaded; defaults to the model.
    pub part: ModelPart,
    /// Whether rows can return the [hidden states](crate::Want::states) of their tokens, which a draft head
    /// reads; defaults to false. It takes memory for the states of a prompt chunk, and the last layer then
    /// computes every token of a prompt.
    pub output_states: bool,
    /// The checkpoint of a draft head that was trained for the model, such as an EAGLE-3 head (Li et al.,
    /// 2025). It is loaded as [`ModelPart::DraftHead`] instead of one that the model's own checkpoint stores,
    /// and [`output_states`](Self::output_states) are those that it reads. Both are loaded from the model's
    /// source with this option; defaults to none.
    pub draft_head: Option<ModelSource>,
    /// Which programs are compiled while loading.
    pub prepare: Prepare,
    /// Called with progress while loading, and later when a step waits for compilation.
    pub progress: Option<ProgressFn>,
    /// Cancels loading at the next opportunity.
    pub cancel: Option<CancelToken>,
}

impl LoadOptions {
    /// The maximum of [`threads`](Self::threads).
    pub const MAX_THREADS: usize = 256;

    setters! {
        /// Sets the precision.
        with_precision(precision: Precision) => precision = precision;
        /// Sets the maximum number of tokens per sequence.
        with_capacity(tokens: usize) => capacity = Some(tokens);
        /// Sets the maximum number of concurrent sequences per session.
        with_sequences(sequences: usize) => sequences = Some(sequences);
        /// Sets the number of compute threads.
        with_threads(threads: usize) => threads = Some(threads);
        /// Sets the device.
        with_device(device: impl Into<String>) => device = Some(device.into());
        /// Sets the room for adapters.
        with_adapters(room: AdapterLimits) => adapters = Some(room);
        /// Sets what of the checkpoint is loaded.
        with_part(part: ModelPart) => part = part;
        /// Sets whether rows can return the hidden states of their tokens.
        with_output_states(output_states: bool) => output_states = output_states;
        /// Sets the checkpoint of the draft head.
        with_draft_head(source: impl Into<ModelSource>) => draft_head = Some(source.into());
        /// Sets which programs are compiled while loading.
        with_prepare(prepare: Prepare) => prepare = prepare;
        /// Sets the progress callback.
        with_progress(progress: impl Fn(LoadProgress) + Send + Sync + 'static) =>
            progress = Some(Arc::new(progress));
        /// Sets the cancel token.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
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
            .field("adapters", &self.adapters)
            .field("part", &self.part)
            .field("output_states", &self.output_states)
            .field("draft_head", &self.draft_head)
            .field("prepare", &self.prepare)
            .field("progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}
