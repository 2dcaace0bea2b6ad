//! The special tokens of a checkpoint.

use mlxcel_core::{ModelSource, Result};
use serde_json::{Map, Value};

use crate::files;

/// The special tokens by their role, as `tokenizer_config.json` or the older `special_tokens_map.json` name
/// them.
#[derive(Debug)]
pub(crate) struct SpecialTokens(Vec<(&'static str, String)>);

/// The role of the token that ends a text.
const END: &str = "eos_token";

impl SpecialTokens {
    const ROLES: [&'static str; 7] =
        ["bos_token", END, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

    pub(crate) fn of_checkpoint(source: &ModelSource, config: &Map<String, Value>) -> Result<Self> {
        let map: Map<String, Value> =
            files::read_json(source, "special_tokens_map.json")?.unwrap_or_default();
        let text = |file: &Map<String, Value>, role: &str| -> Option<String> {
            let value = file.get(role)?;
            // A token is its text, or an object that says more about it.
            Some(value.as_str().or_else(|| value.get("content")?.as_str())?.to_owned())
        };
        let tokens = Self::ROLES.into_iter().filter_map(|role| {
            let token = match config.get(role) {
                Some(_) => text(config, role),
                None => text(&map, role),
            };
            Some((role, token?))
        });
        Ok(Self(tokens.collect()))
    }

    /// Makes `token` the one that ends a text.
    pub(crate) fn set_end(&mut self, token: &str) {
        self.0.retain(|(role, _)| *role != END);
        self.0.push((END, token.to_owned()));
    }

    /// Roles and tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(role, token)| (*role, token.as_str()))
    }

    pub(crate) fn get(&self, role: &str) -> Option<&str> {
        self.iter().find(|(name, _)| *name == role).map(|(_, token)| token)
    }
}
