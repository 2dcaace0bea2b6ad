//! The registry of compile backends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mlxcel_core::{Error, ErrorKind, Result};

use super::select::default_backend;
use super::{CompileBackend, ResolvedTarget, gpu, llvm_cpu, vulkan};
use crate::target::{CompileTarget, DeviceDescription};

/// Makes a backend on request.
type Provider = Arc<dyn Fn() -> Result<Arc<dyn CompileBackend>> + Send + Sync>;

/// Compile backends by case-insensitive name.
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
            Arc::new(vulkan::Vulkan),
            Arc::new(gpu::METAL),
        ];
        let mut registry = Self::empty();
        for backend in backends {
            let name = backend.name().to_owned();
            registry.replace(&name, move || Ok(Arc::clone(&backend)));
        }
        registry
    }

    /// An empty registry.
    pub fn empty() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a backend under a new name. `provider` is called lazily, each time the backend is requested, so
    /// its requirements may be missing until then.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the name exists; use [`replace`](Self::replace) to override.
    pub fn register(
        &mut self,
        name: &str,
        provider: impl Fn() -> Result<Arc<dyn CompileBackend>> + Send + Sync + 'static,
    ) -> Result<()> {
        if self.0.contains_key(&name.to_ascii_lowercase()) {
            let message = "a backend of this name exists";
            return Err(Error::new(ErrorKind::InvalidInput, "register a compile backend", message)
                .with_context("backend", name));
        }
        self.replace(name, provider);
        Ok(())
    }

    /// Adds a backend, replacing one of the same name.
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
    /// [`ErrorKind::NotFound`] for an unknown name, with the known ones; and errors of its provider.
    pub fn get(&self, name: &str) -> Result<Arc<dyn CompileBackend>> {
        let provider = self.0.get(&name.to_ascii_lowercase()).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "find a compile backend", "there is no backend of this name")
                .with_context("backend", name)
                .with_context("known", self.names().collect::<Vec<_>>().join(", "))
        })?;
        provider().map_err(|error| error.with_context("backend", name))
    }

    /// Resolves a target with its backend, so that equivalent targets are equal.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get) and of [`CompileBackend::resolve`].
    pub fn resolve(&self, target: &CompileTarget) -> Result<ResolvedTarget> {
        let backend = self.get(target.backend())?;
        let target = backend.resolve(target)?;
        ResolvedTarget::new(backend, target)
    }

    /// The target of a device, with the backend of its driver.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get) and of [`CompileBackend::target_of`].
    pub fn of_device(&self, device: &DeviceDescription) -> Result<ResolvedTarget> {
        let backend = self.get(default_backend(&device.driver))?;
        let target = backend.target_of(device)?;
        ResolvedTarget::new(backend, target)
    }

    /// The target of this machine's device for a backend.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get) and of [`CompileBackend::detect_target`].
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
