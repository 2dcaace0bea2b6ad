//! The argument that says what drafts tokens.

use std::path::PathBuf;

use clap::Args;
use mlxcel_session::{LoadOptions, Model, Speculation};

use crate::model::find;
use crate::report::Failure;

/// What drafts tokens.
#[derive(Args, Clone, Debug)]
pub(crate) struct SpeculateArgument {
    /// Draft tokens ahead, and verify several in one pass; the text stays the same: none, lookup (the
    /// continuation of the same tokens earlier in prompt and text), auto (lookup, then earlier texts), head
    /// (the checkpoint's layer for multi-token prediction, such as that of Qwen3.5 and GLM-4.5)
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub(crate) speculate: Speculate,
    /// Draft with an EAGLE-3 head that was trained for the model, instead of one in its checkpoint: the
    /// head's checkpoint folder or GGUF file, or `org/name` in the Hugging Face cache
    #[arg(long, value_name = "HEAD", conflicts_with = "speculate")]
    pub(crate) draft_head: Option<PathBuf>,
}

/// How tokens are drafted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Speculate {
    #[default]
    None,
    Lookup,
    Auto,
    Head,
}

impl SpeculateArgument {
    /// `load` for a model that is drafted for so; [`ModelArguments`](crate::model::ModelArguments) then opens
    /// its draft head too.
    ///
    /// # Errors
    ///
    /// Those of [`find`] for the head's checkpoint.
    pub(crate) fn load_options(&self, load: LoadOptions) -> Result<LoadOptions, Failure> {
        let Some(head) = &self.draft_head else {
            return Ok(load.with_output_states(self.speculate == Speculate::Head));
        };
        let head = find("--draft-head", head, &load)?;
        Ok(load.with_output_states(true).with_draft_head(head))
    }

    /// What drafts for `model`.
    ///
    /// # Errors
    ///
    /// That of [`Model::draft_head`].
    pub(crate) fn speculation(&self, model: &Model) -> Result<Option<Speculation>, Failure> {
        Ok(match self.speculate {
            _ if self.draft_head.is_some() => Some(Speculation::new(model.draft_head()?)),
            Speculate::None => None,
            Speculate::Lookup => Some(Speculation::lookup()),
            Speculate::Auto => Some(Speculation::auto()),
            Speculate::Head => Some(Speculation::new(model.draft_head()?)),
        })
    }
}
