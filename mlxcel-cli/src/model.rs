//! The arguments of subcommands that open a model: the same in all of them.

use std::path::{Path, PathBuf};

use clap::Args;
use mlxcel_models::Checkpoint;
use mlxcel_session::{LoadOptions, Model, ModelSource, Precision, hub};

use crate::bundled;
use crate::engine::{ChosenEngine, EngineChoice, path};
use crate::numbers::positive;
use crate::report::Failure;

/// The file that marks the folder of an adapter.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Where the model is.
#[derive(Args, Clone, Debug)]
pub(crate) struct SourceArguments {
    /// The checkpoint folder, GGUF file, or `org/name` in the Hugging Face cache; defaults to the bundled
    /// story teller
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
}

/// The model, and how it is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// Run the compiled programs in the checkpoint's folder, if it is a bundle. They are machine code: only
    /// for a folder whose writer you trust. Not needed for bundles that this machine wrote
    #[arg(long, requires = "model")]
    pub(crate) trust_bundle: bool,
    /// The engine: iree (or xla), mlx, portable, pjrt; defaults to MLXCEL_BACKEND, else the first of these
    /// that is compiled in (on macOS mlx comes first)
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// The precision: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) precision: Precision,
    /// The maximum number of tokens of a sequence: prompt and text together; defaults to the model's own
    /// limit
    #[arg(short, long, value_name = "N", value_parser = positive::<usize>)]
    pub(crate) context: Option<usize>,
    /// The number of threads that compute; defaults to the engine's choice
    #[arg(short, long, value_name = "N", value_parser = positive::<usize>)]
    pub(crate) threads: Option<usize>,
    /// The type of keys and values: precision (follows from it), f32, f16, bf16, int8; engines iree and pjrt
    /// only
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_cache: Option<String>,
    /// The placement of threads: system, pinned (one thread per physical core), or CPUs such as 0,2,4-7;
    /// engine iree only
    #[arg(long, value_name = "WHERE")]
    pub(crate) affinity: Option<String>,
    /// The device: of the engine iree one that `mlxcel devices` lists; defaults to the engine's choice
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Distribute the model over this many devices; engine pjrt only
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    pub(crate) mesh: Option<usize>,
}

/// The files of the model that `option` names: a folder or file, or what the Hugging Face cache has.
///
/// # Errors
///
/// Those of [`hub::locate`], and a failure for a path that does not exist or is an adapter's folder.
pub(crate) fn find(option: &str, model: &Path, load: &LoadOptions) -> Result<ModelSource, Failure> {
    let source = hub::locate(model, load)?;
    let Some(folder) = path(&source) else { return Ok(source) };
    let what = if is_missing(folder) {
        "no such folder or file; pass a folder, a GGUF file or org/name"
    } else if folder.join(ADAPTER_CONFIG).is_file() && !folder.join("config.json").exists() {
        "this is a LoRA adapter: pass its base model, and the adapter with --adapter"
    } else {
        return Ok(source);
    };
    Err(Failure::Usage(format!("{option} {}: {what}", model.display())))
}

/// Whether there is nothing at `path`; what cannot be looked at is there, and opening it says why it fails.
pub(crate) fn is_missing(path: &Path) -> bool {
    !path.try_exists().unwrap_or(true)
}

/// Rejects an encoder before programs are compiled for it.
///
/// # Errors
///
/// A failure that names the subcommand for encoders. Other defects are left to the engine that loads it.
pub(crate) fn refuse_encoder(source: &ModelSource) -> Result<(), Failure> {
    let decoder = Checkpoint::from_source(source).and_then(|checkpoint| checkpoint.decoder());
    if decoder.is_ok_and(|decoder| decoder.is_bidirectional()) { Err(encoder()) } else { Ok(()) }
}

/// Loads a model, and its draft head too if the model returns the states that one reads.
fn load_on(engine: &ChosenEngine, source: ModelSource, load: &LoadOptions) -> Result<Model, Failure> {
    let open = if load.output_states { Model::load_with_draft_head } else { Model::load };
    Ok(open(&engine.backend, source, load)?)
}

fn encoder() -> Failure {
    Failure::Usage("this model is an encoder: use `mlxcel embed` or `mlxcel rerank`".to_owned())
}

impl SourceArguments {
    /// Where the model is: the folder or file, which is downloaded if it is a name that the cache lacks, or
    /// the bundled model.
    ///
    /// # Errors
    ///
    /// Those of [`find`].
    pub(crate) fn locate(&self, load: &LoadOptions) -> Result<ModelSource, Failure> {
        let Some(model) = &self.model else { return Ok(bundled::storyteller()) };
        find("--model", model, load)
    }
}

impl ModelArguments {
    /// `load` with the options that these arguments have.
    #[must_use]
    pub(crate) fn load_options(&self, mut load: LoadOptions) -> LoadOptions {
        (load.capacity, load.threads) = (self.context, self.threads);
        if let Some(device) = &self.device {
            load = load.with_device(device);
        }
        load.with_precision(self.precision)
    }

    /// Opens the model, with further options in `load`.
    ///
    /// # Errors
    ///
    /// Those of [`SourceArguments::locate`], [`EngineChoice::select`] and [`Model::load`].
    pub(crate) fn open(&self, load: LoadOptions) -> Result<Model, Failure> {
        let load = self.load_options(load);
        let source = self.source.locate(&load)?;
        let engine = self.engine(&source, false)?;
        load_on(&engine, source, &load)
    }

    /// Opens a model that generates.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and a failure for an encoder.
    pub(crate) fn open_generating(&self, load: LoadOptions) -> Result<Model, Failure> {
        self.open_after(load, false, |_, _| Ok(())).map(|(_, model, ())| model)
    }

    /// The same after `first`, which gets the engine and where the model is, and comes before all that takes
    /// time. Returns the engine too, which measures where time goes if `profile`.
    pub(crate) fn open_after<T>(
        &self,
        load: LoadOptions,
        profile: bool,
        first: impl FnOnce(&ChosenEngine, &ModelSource) -> Result<T, Failure>,
    ) -> Result<(ChosenEngine, Model, T), Failure> {
        let load = self.load_options(load);
        let source = self.source.locate(&load)?;
        refuse_encoder(&source)?;
        let engine = self.engine(&source, profile)?;
        let first = first(&engine, &source)?;
        let model = load_on(&engine, source, &load)?;
        // Of a model that is no checkpoint, only the engine can tell.
        if model.capabilities().generation { Ok((engine, model, first)) } else { Err(encoder()) }
    }

    fn engine(&self, source: &ModelSource, profile: bool) -> Result<ChosenEngine, Failure> {
        let trust = path(source).filter(|_| self.trust_bundle);
        let choice = EngineChoice {
            name: self.backend.as_deref(),
            profile,
            kv_cache: self.kv_cache.as_deref(),
            affinity: self.affinity.as_deref(),
            mesh: self.mesh,
            trust,
        };
        choice.select()
    }
}
