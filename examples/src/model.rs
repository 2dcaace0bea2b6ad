//! The arguments of programs that open a model: the same in all of them.

use std::path::PathBuf;

use clap::Args;
use mlxcel_session::{LoadOptions, Model, Precision};

use crate::{EngineOptions, Failure, open_model_on};

/// The model, and how it is run.
#[derive(Args, Clone, Debug)]
pub struct ModelArguments {
    /// The checkpoint folder, GGUF file, or `org/name` in the Hugging Face cache; defaults to the bundled story teller
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Run the compiled programs that lie in the checkpoint's folder, if it is a bundle. They are machine code: only for a folder whose
    /// writer you trust. Bundles that this machine wrote need it not
    #[arg(long, requires = "model")]
    pub trust_bundle: bool,
    /// The engine: iree (or xla), mlx, portable; else what MLXCEL_BACKEND names, else the first of these that is compiled in
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// The rounding: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t)]
    pub precision: Precision,
    /// The most tokens of a sequence: prompt and text together; defaults to the model's own limit
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
}

impl ModelArguments {
    /// `load` with the precision and the context.
    #[must_use]
    pub fn load_options(&self, mut load: LoadOptions) -> LoadOptions {
        load.capacity = self.context;
        load.with_precision(self.precision)
    }

    /// Opens the model, with further options in `load`.
    ///
    /// # Errors
    ///
    /// Those of [`open_model_on`].
    pub fn open(&self, load: LoadOptions) -> Result<Model, Failure> {
        let engine = EngineOptions { name: self.backend.as_deref(), ..EngineOptions::default() };
        open_model_on(self.model.as_deref(), self.trust_bundle, engine, &self.load_options(load))
    }
}
