//! The engine that a program runs on, with what only the IREE engine can do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_core::Backend;
#[cfg(feature = "iree")]
use mlxcel_session::iree::{IreeBackend, profile::Profiler};
use mlxcel_session::{LoadOptions, Model, ModelSource, hub, select_backend};

use crate::{Failure, bundled};

/// An engine as the arguments ask for it.
pub struct Engine {
    /// The engine.
    pub backend: Arc<dyn Backend>,
    #[cfg(feature = "iree")]
    profiler: Option<Profiler>,
}

/// Where the model that the user names lies: at that path, or by its name in the Hugging Face cache; with feature `hub` it is fetched where
/// the cache lacks it. `None` for the bundled model.
///
/// # Errors
///
/// Those of [`hub::locate`].
pub fn place(model: Option<&Path>, load: &LoadOptions) -> Result<Option<PathBuf>, Failure> {
    let Some(model) = model else { return Ok(None) };
    match hub::locate(model, load)? {
        ModelSource::Folder(path) => Ok(Some(path)),
        _ => Ok(Some(model.to_owned())),
    }
}

/// Opens the checkpoint in `folder`, or of this name, defaulting to the bundled model, on the engine called `name`. `trust` runs the programs of a bundle.
///
/// # Errors
///
/// Those of [`place`], [`Engine::select`] and [`Model::load`].
pub fn open_model(
    folder: Option<&Path>,
    trust: bool,
    name: Option<&str>,
    load: &LoadOptions,
) -> Result<Model, Failure> {
    let folder = place(folder, load)?;
    let trust = folder.as_deref().filter(|_| trust);
    let engine = Engine::select(EngineOptions { name, trust, ..EngineOptions::default() })?;
    let source = folder.map_or_else(bundled::storyteller, ModelSource::from);
    Ok(Model::load(&engine.backend, source, load)?)
}

/// What an engine is asked for. All but `trust` are errors for an engine that cannot.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineOptions<'a> {
    /// Its name; defaults to that which [`select_backend`] chooses.
    pub name: Option<&'a str>,
    /// Notes where the time of passes goes.
    pub profile: bool,
    /// What keys and values are kept in.
    pub kv_cache: Option<&'a str>,
    /// Where threads run.
    pub affinity: Option<&'a str>,
    /// The folder whose bundle is trusted; engines that run no bundles take no notice.
    pub trust: Option<&'a Path>,
}

impl Engine {
    /// The engine that is asked for.
    pub fn select(options: EngineOptions<'_>) -> Result<Self, Failure> {
        let backend = select_backend(options.name)?;
        #[cfg(feature = "iree")]
        if backend.name() == IreeBackend::new().name() {
            return Self::iree(options);
        }
        if let Some(option) = options.of_iree() {
            return Err(Failure::Usage(format!(
                "{option} is for the engine iree, and this is {}",
                backend.name()
            )));
        }
        Ok(Self {
            backend,
            #[cfg(feature = "iree")]
            profiler: None,
        })
    }

    #[cfg(feature = "iree")]
    fn iree(options: EngineOptions<'_>) -> Result<Self, Failure> {
        let mut engine = iree();
        if let Some(folder) = options.trust {
            engine = engine.with_trusted_bundle(folder);
        }
        if let Some(kv_cache) = options.kv_cache {
            engine = engine.with_kv_cache(kv_cache.parse()?);
        }
        if let Some(affinity) = options.affinity {
            engine = engine.with_affinity(affinity.parse()?);
        }
        let profiler = options.profile.then(Profiler::new);
        if let Some(profiler) = &profiler {
            engine = engine.with_profiler(profiler);
        }
        Ok(Self { backend: Arc::new(engine), profiler })
    }

    /// Whether the plugin that the engine runs on is there; engines without plugins have what they need.
    pub fn has_plugin(&self) -> bool {
        #[cfg(feature = "pjrt")]
        {
            let pjrt = mlxcel_session::pjrt::PjrtBackend::new();
            if self.backend.name() == pjrt.name() {
                return pjrt.plugin_path().is_ok();
            }
        }
        true
    }

    /// Where time went since the last call, as a table and as JSON; nothing for an engine that was not asked to note it.
    pub fn take_profile(&self) -> Option<(String, serde_json::Result<serde_json::Value>)> {
        #[cfg(feature = "iree")]
        if let Some(profiler) = &self.profiler {
            let profile = profiler.take();
            return Some((profile.to_string(), serde_json::to_value(&profile)));
        }
        None
    }
}

impl EngineOptions<'_> {
    /// The first option that the IREE engine alone has.
    fn of_iree(&self) -> Option<&'static str> {
        match self {
            Self { profile: true, .. } => Some("--profile"),
            Self { kv_cache: Some(_), .. } => Some("--kv-cache"),
            Self { affinity: Some(_), .. } => Some("--affinity"),
            _ => None,
        }
    }
}

/// The IREE engine with the compiler of this workspace, where the environment names none.
#[cfg(feature = "iree")]
pub fn iree() -> IreeBackend {
    match workspace_compiler() {
        Some(compiler) => IreeBackend::new().with_compiler(compiler),
        None => IreeBackend::new(),
    }
}

/// The compiler that `cargo xtask setup` put into the workspace, for programs that run from there: cargo names it to those that it
/// starts, and nobody to others.
#[cfg(feature = "iree")]
fn workspace_compiler() -> Option<std::path::PathBuf> {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("MLXCEL_IREE_COMPILER") || is_set("IREE_DIST") {
        return None;
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.canonicalize().ok()?;
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let compiler = workspace.join(".toolchain/bin/iree-compile");
    (program.starts_with(&workspace) && compiler.is_file()).then_some(compiler)
}
