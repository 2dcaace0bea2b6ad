//! The text model inside a vision-language checkpoint.

use mlxcel_core::Result;

use crate::config::Fields;

/// Models whose text part is a decoder by itself: `model_type`, and that of the text part where `text_config`
/// has none.
const WRAPPERS: &[(&str, &str)] = &[
    ("aya_vision", "cohere2"),
    ("cohere2_vision", "cohere2"),
    ("exaone4_5", "exaone4"),
    ("fast_vlm", "qwen2"),
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("gemma4_unified", "gemma4_unified_text"),
    ("got_ocr2", "qwen2"),
    ("hyperclovax_vision_v2", "hyperclovax"),
    ("idefics3", "llama"),
    ("internvl", "qwen2"),
    ("lfm3_vl", "lfm3"),
    ("lighton_ocr", "qwen3"),
    ("llama4", "llama4_text"),
    ("llava", "llama"),
    ("llava_next", "llama"),
    ("llava_next_video", "llama"),
    ("llava_onevision", "qwen2"),
    ("mistral3", "mistral"),
    ("perception_lm", "llama"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    ("smolvlm", "llama"),
    ("video_llava", "llama"),
    ("vipllava", "llama"),
];

/// Prefixes of the text part's modules: by transformers 5, by transformers 4, and by Idefics 3.
const WRAPPED: &[&str] =
    &["model.language_model.", "language_model.", "model.text_model.", "text_model.", ""];

/// The text model of a checkpoint: all of it, or a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextModel<'a> {
    /// The text part's architecture.
    pub(crate) model_type: &'a str,
    /// The text part's settings.
    pub(crate) config: Fields<'a>,
    /// Of a part, the architecture of the whole.
    pub(super) wrapper: Option<&'a str>,
}

impl<'a> TextModel<'a> {
    /// The text model of a checkpoint with this `model_type` and these settings.
    pub(crate) fn of(model_type: &'a str, config: Fields<'a>) -> Result<Self> {
        let whole = Self { model_type, config, wrapper: None };
        let Some((_, assumed)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == model_type) else {
            return Ok(whole);
        };
        let Some(text) = config.object("text_config")? else { return Ok(whole) };
        let text_type = text.text("model_type")?.unwrap_or(assumed);
        Ok(Self { model_type: text_type, config: text, wrapper: Some(model_type) })
    }

    /// What to tell the user about parts that are left out.
    pub(super) fn notes(&self) -> Vec<String> {
        let note =
            |wrapper| format!("images are not supported: this is the text model of a {wrapper} checkpoint");
        self.wrapper.map(note).into_iter().collect()
    }

    /// What may stand before the names of the text model's modules.
    pub(super) fn prefixes(&self) -> &'static [&'static str] {
        if self.wrapper.is_some() { WRAPPED } else { &[""] }
    }
}
