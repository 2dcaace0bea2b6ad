//! The settings of an adapter of mlx-lm: the arguments of its training program, as `adapter_config.json`.

use mlxcel_core::Result;

use super::MERGED_ONLY;
use super::config::{ends_with, is_set};
use crate::config::Fields;

/// Fields that say how an adapter was trained, or that repeat what its tensors say.
const OF_TRAINING: &[&str] = &[
    "adapter_path",
    "batch_size",
    "clear_cache_threshold",
    "config",
    "data",
    "grad_accumulation_steps",
    "grad_checkpoint",
    "hf_dataset",
    "iters",
    "learning_rate",
    "lora_layers",
    "lr_schedule",
    "mask_prompt",
    "max_seq_length",
    "model",
    "num_layers",
    "optimizer",
    "optimizer_config",
    "project_name",
    "report_to",
    "resume_adapter_file",
    "save_every",
    "seed",
    "steps_per_eval",
    "steps_per_report",
    "test",
    "test_batches",
    "train",
    "trust_remote_code",
    "val_batches",
    "wandb",
];

/// Fields that are read, and those of `lora_parameters` that are read or are of training.
const READ: &[&str] = &["fine_tune_type", "lora_parameters"];
const PARAMETERS: &[&str] = &["dropout", "keys", "rank", "scale"];

/// The settings of a LoRA adapter.
pub(super) struct Settings<'a> {
    parameters: Fields<'a>,
    rank: usize,
    scale: f32,
    modules: Option<Vec<&'a str>>,
    fields: Fields<'a>,
    has_magnitudes: bool,
}

impl<'a> Settings<'a> {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for another kind of adapter, and for a field that
    /// is set and is not honoured; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for values out of range.
    pub(super) fn read(fields: Fields<'a>) -> Result<Self> {
        let kind = fields.text("fine_tune_type")?.unwrap_or("lora");
        if !["lora", "dora"].contains(&kind) {
            let message = format!(
                "adapters of the type '{}' are not supported, lora and dora are",
                kind.escape_debug()
            );
            return Err(fields.unsupported("fine_tune_type", message));
        }
        let parameters = fields.object("lora_parameters")?.ok_or_else(|| fields.absent("lora_parameters"))?;
        for (fields, known) in [(&fields, [OF_TRAINING, READ].concat()), (&parameters, PARAMETERS.to_vec())] {
            let unknown =
                fields.keys().find(|key| !known.contains(key) && fields.get(key).is_some_and(is_set));
            if let Some(key) = unknown {
                return Err(fields.unsupported(key, "this setting of adapters is not supported".to_owned()));
            }
        }
        Ok(Self {
            rank: parameters.size("rank", 1..=usize::MAX)?.ok_or_else(|| parameters.absent("rank"))?,
            scale: parameters.number("scale")?.ok_or_else(|| parameters.absent("scale"))? as f32,
            modules: parameters.texts("keys")?,
            parameters,
            fields,
            has_magnitudes: kind == "dora",
        })
    }

    /// Refuses settings of changes that an adapter cannot make beside the weights.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported), naming the field.
    pub(super) fn expect_unmerged(&self) -> Result<()> {
        match self.has_magnitudes {
            true => Err(self.fields.unsupported("fine_tune_type", MERGED_ONLY.to_owned())),
            false => Ok(()),
        }
    }

    /// Whether `module` is among those that the adapter lists, if it does.
    pub(super) fn targets(&self, module: &str) -> bool {
        self.modules.as_ref().is_none_or(|names| names.iter().any(|name| ends_with(module, name)))
    }

    /// What the product of the matrices of `module`, which have this rank, is multiplied by.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for another rank than the settings say.
    pub(super) fn scale(&self, module: &str, rank: usize) -> Result<f32> {
        if rank == self.rank {
            return Ok(self.scale);
        }
        let message =
            format!("the matrices of {module} have rank {rank}, and the settings say {}", self.rank);
        Err(self.parameters.wrong("rank", message))
    }
}
