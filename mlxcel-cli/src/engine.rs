//! The engine that a subcommand runs on, with what only some engines can do.

use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "iree")]
use mlxcel_session::iree::{IreeBackend, profile::Profiler};
#[cfg(feature = "pjrt")]
use mlxcel_session::pjrt::{PjrtBackend, profile::Profiler as PassProfiler};
use mlxcel_session::{Backend, ModelSource, available_backends, select_backend};

use crate::report::Failure;

/// An engine as the arguments ask for it.
pub(crate) struct ChosenEngine {
    pub(crate) backend: Arc<dyn Backend>,
    #[cfg(feature = "iree")]
    profiler: Option<Profiler>,
    #[cfg(feature = "pjrt")]
    passes: Option<PassProfiler>,
}

/// The names of the engines that are asked for, or of all that are compiled in.
pub(crate) fn names(asked: &[String]) -> Vec<String> {
    match asked {
        [] => available_backends().into_iter().map(str::to_owned).collect(),
        names => names.to_vec(),
    }
}

/// The folder or file of a model; none for the bundled model.
pub(crate) fn path(source: &ModelSource) -> Option<&Path> {
    match source {
        ModelSource::Folder(path) => Some(path),
        _ => None,
    }
}

/// The engine that is asked for, and its options. All but `trust` are errors for engines that do not support
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineChoice<'a> {
    /// Its name; defaults to that which [`select_backend`] chooses.
    pub(crate) name: Option<&'a str>,
    /// Notes where the time of passes goes.
    pub(crate) profile: bool,
    /// What keys and values are kept in.
    pub(crate) kv_cache: Option<&'a str>,
    /// Where threads run.
    pub(crate) affinity: Option<&'a str>,
    /// Over how many devices the model is spread.
    pub(crate) mesh: Option<usize>,
    /// The folder whose bundle is trusted; engines that run no bundles take no notice.
    #[cfg_attr(not(feature = "iree"), expect(dead_code, reason = "only the engine iree runs bundles"))]
    pub(crate) trust: Option<&'a Path>,
}

impl EngineChoice<'_> {
    /// The requested engine.
    ///
    /// # Errors
    ///
    /// Those of [`select_backend`], and a failure if the engine does not support an option.
    pub(crate) fn select(self) -> Result<ChosenEngine, Failure> {
        let backend = select_backend(self.name)?;
        #[cfg(feature = "iree")]
        if backend.name() == IreeBackend::new().name() {
            return self.iree();
        }
        #[cfg(feature = "pjrt")]
        if backend.name() == PjrtBackend::new().name() {
            return self.pjrt();
        }
        self.refuse(&["--profile", "--kv-cache", "--affinity", "--mesh"], backend.name())?;
        Ok(ChosenEngine::new(backend))
    }

    #[cfg(feature = "pjrt")]
    fn pjrt(self) -> Result<ChosenEngine, Failure> {
        let mut engine = PjrtBackend::new();
        self.refuse(&["--affinity"], engine.name())?;
        if let Some(devices) = self.mesh {
            engine = engine.with_mesh(devices);
        }
        if let Some(kv_cache) = self.kv_cache {
            engine = engine.with_kv_cache(kv_cache.parse()?);
        }
        let passes = self.profile.then(PassProfiler::new);
        if let Some(passes) = &passes {
            engine = engine.with_profiler(passes);
        }
        Ok(ChosenEngine { passes, ..ChosenEngine::new(Arc::new(engine)) })
    }

    #[cfg(feature = "iree")]
    fn iree(self) -> Result<ChosenEngine, Failure> {
        let mut engine = iree();
        self.refuse(&["--mesh"], engine.name())?;
        if let Some(folder) = self.trust {
            engine = engine.with_trusted_bundle(folder);
        }
        if let Some(kv_cache) = self.kv_cache {
            engine = engine.with_kv_cache(kv_cache.parse()?);
        }
        if let Some(affinity) = self.affinity {
            engine = engine.with_affinity(affinity.parse()?);
        }
        let profiler = self.profile.then(Profiler::new);
        if let Some(profiler) = &profiler {
            engine = engine.with_profiler(profiler);
        }
        Ok(ChosenEngine { profiler, ..ChosenEngine::new(Arc::new(engine)) })
    }

    /// Rejects options in `unknown`, named as on the command line, that are set: the engine does not have
    /// them.
    fn refuse(&self, unknown: &[&str], engine: &str) -> Result<(), Failure> {
        let asked = [
            ("--profile", self.profile, "the engines iree and pjrt"),
            ("--kv-cache", self.kv_cache.is_some(), "the engines iree and pjrt"),
            ("--affinity", self.affinity.is_some(), "the engine iree"),
            ("--mesh", self.mesh.is_some(), "the engine pjrt"),
        ];
        match asked.iter().find(|(option, is_asked, _)| *is_asked && unknown.contains(option)) {
            None => Ok(()),
            Some((option, _, by)) => {
                Err(Failure::Usage(format!("{option} is an option of {by}, but the engine is {engine}")))
            }
        }
    }
}

impl ChosenEngine {
    fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            #[cfg(feature = "iree")]
            profiler: None,
            #[cfg(feature = "pjrt")]
            passes: None,
        }
    }

    /// Whether the plugin that the engine runs on is there; engines without plugins have what they need.
    pub(crate) fn has_plugin(&self) -> bool {
        #[cfg(feature = "pjrt")]
        {
            let pjrt = PjrtBackend::new();
            if self.backend.name() == pjrt.name() {
                return pjrt.plugin_path().is_ok();
            }
        }
        true
    }

    /// Where time went since the last call, as a table and as JSON; nothing for an engine that was not asked
    /// to note it.
    pub(crate) fn take_profile(&self) -> Option<(String, serde_json::Result<serde_json::Value>)> {
        #[cfg(feature = "iree")]
        if let Some(profiler) = &self.profiler {
            let profile = profiler.take();
            return Some((profile.to_string(), serde_json::to_value(&profile)));
        }
        #[cfg(feature = "pjrt")]
        if let Some(passes) = &self.passes {
            let profile = passes.take();
            return Some((profile.to_string(), serde_json::to_value(&profile)));
        }
        None
    }
}

/// The IREE engine with the compiler of this workspace, where the environment names none.
#[cfg(feature = "iree")]
pub(crate) fn iree() -> IreeBackend {
    match workspace_compiler() {
        Some(compiler) => IreeBackend::new().with_compiler(compiler),
        None => IreeBackend::new(),
    }
}

/// The compiler that `cargo xtask setup` put into the workspace, for programs that run from there: cargo
/// names it to those that it starts, and nobody to others.
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
