//! The backends that there are, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use super::{CompileBackend, ResolvedTarget, gpu, llvm_cpu};
use crate::target::CompileTarget;

/// Makes a backend when it is asked for.
type Provider = Arc<dyn Fn() -> Result<Arc<dyn CompileBackend>> + Send + Sync>;

/// The compiler's backends that an engine chooses from, by name; names are the same in any case.
///
/// ```
/// use mlxcel_iree_target::CompileBackends;
///
/// let backends = CompileBackends::builtin();
/// let target = backends.resolve(&"cuda:sm_89".parse()?)?;
/// assert!(target.options().contains(&"--iree-cuda-target=sm_89".to_owned()));
///
/// let error = backends.resolve(&"cuda:sm_2048".parse()?).unwrap_err();
/// assert!(error.context("known").is_some_and(|known| known.contains("sm_89")));
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone)]
pub struct CompileBackends(BTreeMap<String, Provider>);

impl CompileBackends {
    /// Those of the IREE compiler: llvm-cpu, cuda, rocm, vulkan-spirv, metal-spirv.
    pub fn builtin() -> Self {
        let backends: [Arc<dyn CompileBackend>; 5] = [
            Arc::new(llvm_cpu::LlvmCpu),
            Arc::new(gpu::CUDA),
            Arc::new(gpu::ROCM),
            Arc::new(gpu::VULKAN),
            Arc::new(gpu::METAL),
        ];
        let mut registry = Self::empty();
        for backend in backends {
            let name = backend.name().to_owned();
            registry.replace(&name, move || Ok(Arc::clone(&backend)));
        }
        registry
    }

    /// None yet.
    pub fn empty() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a backend under a new name. `provider` is called whenever the backend is asked for, and not before: what it
    /// needs may be missing as long as nobody asks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] where the name is taken; [`replace`](Self::replace) takes it over.
    pub fn register(
        &mut self,
        name: &str,
        provider: impl Fn() -> Result<Arc<dyn CompileBackend>> + Send + Sync + 'static,
    ) -> Result<()> {
        if self.0.contains_key(&name.to_ascii_lowercase()) {
            let message = "there is a backend of this name";
            return Err(Error::new(ErrorKind::InvalidInput, "register a compile backend", message)
                .with_context("backend", name));
        }
        self.replace(name, provider);
        Ok(())
    }

    /// Adds a backend, in the place of one of the same name if there is one.
    pub fn replace(
        &mut self,
        name: &str,
        provider: impl Fn() -> Result<Arc<dyn CompileBackend>> + Send + Sync + 'static,
    ) {
        self.0.insert(name.to_ascii_lowercase(), Arc::new(provider));
    }

    /// The names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The backend of this name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for an unknown name, with those that there are; what its provider answers.
    pub fn get(&self, name: &str) -> Result<Arc<dyn CompileBackend>> {
        let provider = self.0.get(&name.to_ascii_lowercase()).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "find a compile backend", "there is no backend of this name")
                .with_context("backend", name)
                .with_context("known", self.names().collect::<Vec<_>>().join(", "))
        })?;
        provider().map_err(|error| error.with_context("backend", name))
    }

    /// What a target means: the backend of its name resolves it, so that two that mean the same are the same.
    ///
    /// # Errors
    /// Those of [`get`](Self::get) and of [`CompileBackend::resolve`].
    pub fn resolve(&self, target: &CompileTarget) -> Result<ResolvedTarget> {
        let backend = self.get(target.backend())?;
        let target = backend.resolve(target)?;
        ResolvedTarget::new(backend, target)
    }

    /// The target of this machine's own device for a backend.
    ///
    /// # Errors
    /// Those of [`get`](Self::get) and of [`CompileBackend::detect_target`].
    pub fn detect(&self, name: &str) -> Result<ResolvedTarget> {
        let backend = self.get(name)?;
        let target = backend.resolve(&backend.detect_target()?)?;
        ResolvedTarget::new(backend, target)
    }
}

/// [`CompileBackends::builtin`].
impl Default for CompileBackends {
    fn default() -> Self {
        Self::builtin()
    }
}

impl fmt::Debug for CompileBackends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
