//! Options of quantization and their validation.

use std::fmt;
use std::sync::Arc;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result, setters};
use mlxcel_models::read::{Mode, Scheme};

use super::OPERATION;
use super::recipe::{Override, Recipe};
use super::workers::check_threads;

/// The most bytes of a file by default, as mlx-lm has it.
const SHARD_BYTES: u64 = 5 << 30;

/// The minimum.
const LEAST_SHARD_BYTES: u64 = 1 << 16;

/// Called with the number of processed bytes of the weights, and the total.
pub type WriteProgressFn = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// How the files of a checkpoint are written, by [`quantize`](super::quantize) and [`merge`](super::merge()).
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct WriteOptions {
    /// Discards the unfinished output of an earlier run.
    pub restart: bool,
    /// The number of threads; defaults to one per core.
    pub threads: Option<usize>,
    /// Called after each piece.
    pub progress: Option<WriteProgressFn>,
    /// Cancels the work.
    pub cancel: Option<CancelToken>,
}

impl WriteOptions {
    setters! {
        /// Sets whether to discard the unfinished output of an earlier run.
        with_restart(restart: bool) => restart = restart;

        /// Sets the number of threads.
        with_threads(threads: usize) => threads = Some(threads);

        /// Reports progress, on the calling thread.
        with_progress(progress: impl Fn(u64, u64) + Send + Sync + 'static) => progress = Some(Arc::new(progress));

        /// Sets the token that cancels the work.
        with_cancel(cancel: CancelToken) => cancel = Some(cancel);
    }
}

impl fmt::Debug for WriteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteOptions")
            .field("restart", &self.restart)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// Options of [`quantize`](super::quantize). Start from [`QuantizeOptions::new`], or from the default of 4
/// bits in groups of 64.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QuantizeOptions {
    /// The packing of modules without a recipe or override.
    pub scheme: Scheme,
    /// Bit widths that differ by module. A recipe replaces the scheme's bits.
    pub recipe: Option<Recipe>,
    /// Overrides for some modules. The last match wins, and takes precedence over a recipe.
    pub overrides: Vec<Override>,
    /// The maximum bytes of a weight file; larger checkpoints are sharded between tensors, and an
    /// interrupted run resumes after the last complete file. Defaults to 5 GiB.
    pub shard_bytes: u64,
    /// How the files are written.
    pub write: WriteOptions,
}

impl QuantizeOptions {
    /// Affine values of `bits` bits in groups of `group_size`.
    pub fn new(bits: usize, group_size: usize) -> Self {
        Self::of(Scheme { mode: Mode::Affine, bits, group_size })
    }

    /// The same scheme for all modules, such as [`Scheme::of_mode`] of [`Mode::Mxfp4`].
    pub fn of(scheme: Scheme) -> Self {
        Self {
            scheme,
            recipe: None,
            overrides: Vec::new(),
            shard_bytes: SHARD_BYTES,
            write: WriteOptions::default(),
        }
    }

    /// A recipe, in groups of `group_size`.
    pub fn of_recipe(recipe: Recipe, group_size: usize) -> Self {
        Self { recipe: Some(recipe), ..Self::new(recipe.bits(), group_size) }
    }

    /// Adds an override for some modules.
    #[must_use]
    pub fn with_override(mut self, named: Override) -> Self {
        self.overrides.push(named);
        self
    }

    setters! {
        /// Sets the maximum bytes of a weight file.
        with_shard_bytes(bytes: u64) => shard_bytes = bytes;

        /// Sets how the files are written.
        with_write(write: WriteOptions) => write = write;
    }

    pub(super) fn check(&self) -> Result<()> {
        check_scheme(self.scheme)?;
        for named in &self.overrides {
            check_scheme(named.scheme(self.scheme))
                .map_err(|error| error.with_context("tensor", &named.pattern))?;
        }
        if let Some(recipe) = self.recipe
            && self.scheme != (Scheme { mode: Mode::Affine, bits: recipe.bits(), ..self.scheme })
        {
            let message = format!("the recipe {recipe} is affine, {} bits and more", recipe.bits());
            let error = Error::new(ErrorKind::InvalidInput, OPERATION, message);
            return Err(error.with_context("field", "recipe"));
        }
        if self.shard_bytes < LEAST_SHARD_BYTES {
            let least = format_args!("{LEAST_SHARD_BYTES} or more");
            return Err(refused("shard_bytes", self.shard_bytes, least));
        }
        check_threads(OPERATION, self.write.threads)
    }
}

fn check_scheme(Scheme { mode, bits, group_size }: Scheme) -> Result<()> {
    for (field, value, allowed) in
        [("bits", bits, mode.bits()), ("group_size", group_size, mode.group_sizes())]
    {
        if !allowed.contains(&value) {
            let mut allowed = allowed.to_vec();
            allowed.sort_unstable();
            let allowed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            return Err(refused(field, value, format_args!("{allowed} (mode {mode})")));
        }
    }
    Ok(())
}

fn refused(field: &str, value: impl fmt::Display, allowed: fmt::Arguments<'_>) -> Error {
    let message = format!("{value} is not supported; supported: {allowed}");
    Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("field", field)
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        Self::of(Scheme::default())
    }
}
