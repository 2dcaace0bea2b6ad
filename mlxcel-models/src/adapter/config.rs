//! The settings of an adapter: `adapter_config.json` of the PEFT library.

use mlxcel_core::Result;
use serde_json::Value;

use super::MERGED_ONLY;
use crate::config::Fields;

/// Fields that say how an adapter was trained, or that repeat what its tensors say.
const OF_TRAINING: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

/// Fields that are read.
const READ: &[&str] = &[
    "alpha_pattern", "init_lora_weights", "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules",
    "use_rslora",
];

/// Fields that are read, of changes that are merged only.
const MERGED: &[&str] = &["modules_to_save", "use_dora"];

/// Ways of initializing the matrices that leave the base model as it is.
const INITIALIZERS: &[&str] = &["eva", "gaussian", "orthogonal"];

/// The settings of a LoRA adapter.
pub(super) struct Settings<'a> {
    fields: Fields<'a>,
    rank: usize,
    alpha: f64,
    by_root: bool,
    modules: Option<Vec<&'a str>>,
}

impl<'a> Settings<'a> {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for another kind of adapter, and for a field that
    /// is set and is not honoured; [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for values out of range.
    pub(super) fn read(fields: Fields<'a>) -> Result<Self> {
        let kind = fields.text("peft_type")?.ok_or_else(|| fields.absent("peft_type"))?;
        if kind != "LORA" {
            let message =
                format!("adapters of the type '{}' are not supported, LORA is", kind.escape_debug());
            return Err(fields.unsupported("peft_type", message));
        }
        for key in fields.keys() {
            let is_known = [OF_TRAINING, READ, MERGED].iter().any(|known| known.contains(&key));
            if !is_known && fields.get(key).is_some_and(is_set) {
                return Err(fields.unsupported(key, "this setting of adapters is not supported".to_owned()));
            }
        }
        match fields.get("init_lora_weights") {
            None | Some(Value::Bool(_)) => {}
            Some(Value::String(name)) if INITIALIZERS.contains(&name.as_str()) => {}
            Some(_) => {
                let message = "adapters that change the base model when they are initialized are not supported; \
                               convert it with PEFT's `save_pretrained(…, path_initial_model_for_weight_conversion=…)`";
                return Err(fields.unsupported("init_lora_weights", message.to_owned()));
            }
        }
        // A regular expression repeats which modules have tensors.
        let modules = match fields.get("target_modules") {
            None | Some(Value::String(_)) => None,
            Some(_) => fields.texts("target_modules")?,
        };
        Ok(Self {
            rank: fields.size("r", 1..=usize::MAX)?.ok_or_else(|| fields.absent("r"))?,
            alpha: fields.number("lora_alpha")?.ok_or_else(|| fields.absent("lora_alpha"))?,
            by_root: fields.flag("use_rslora")?.unwrap_or(false),
            modules,
            fields,
        })
    }

    /// Refuses settings of changes that an adapter cannot make beside the weights.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported), naming the field.
    pub(super) fn expect_unmerged(&self) -> Result<()> {
        match MERGED.iter().find(|key| self.fields.get(key).is_some_and(is_set)) {
            Some(key) => Err(self.fields.unsupported(key, MERGED_ONLY.to_owned())),
            None => Ok(()),
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
    /// [`Corrupt`](mlxcel_core::ErrorKind::Corrupt) for another rank than the settings say;
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for patterns that are not names of modules.
    pub(super) fn scale(&self, module: &str, rank: usize) -> Result<f32> {
        let expected = self.pattern("rank_pattern", module)?.unwrap_or(self.rank as f64);
        if expected != rank as f64 {
            let message =
                format!("the matrices of {module} have rank {rank}, and the settings say {expected}");
            return Err(self.fields.wrong("r", message));
        }
        let alpha = self.pattern("alpha_pattern", module)?.unwrap_or(self.alpha);
        Ok((alpha / if self.by_root { (rank as f64).sqrt() } else { rank as f64 }) as f32)
    }

    /// The value of the pattern that matches `module`.
    fn pattern(&self, key: &str, module: &str) -> Result<Option<f64>> {
        let Some(patterns) = self.fields.object(key)? else { return Ok(None) };
        let mut found = None;
        for name in patterns.keys() {
            let (whole, plain) = match name.strip_prefix('^') {
                Some(plain) => (true, plain),
                None => (false, name),
            };
            let plain = plain.strip_suffix('$').unwrap_or(plain);
            if !plain.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-')) {
                let message = "regular expressions are not supported here, names of modules are".to_owned();
                return Err(patterns.unsupported(name, message));
            }
            if if whole { module == plain } else { ends_with(module, plain) } {
                let value = patterns.number(name)?;
                if found.is_some_and(|found| Some(found) != value) {
                    let message = format!("several patterns with different values match {module}");
                    return Err(self.fields.unsupported(key, message));
                }
                found = value;
            }
        }
        Ok(found)
    }
}

/// Whether a value of an unknown field asks for something.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => text != "none" && !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// Whether `module` is `name`, or ends with it after a dot.
pub(super) fn ends_with(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
