//! The config of a model under construction.

use mlxcel_core::Result;
use serde_json::{Map, Value};

use super::super::Gguf;
use super::super::block::TensorType;
use super::super::metadata::{Metadata, Numbers, Sizes};
use super::{Architecture, known, rope};
use crate::element::ElementType;

/// Far above any published model.
const MOST_LAYERS: usize = 1 << 12;

/// Whether the shares of chosen experts are divided by their sum.
const NORMALISED: &str = "expert_weights_norm";

/// The fields of `config.json` so far, and what they are made of.
pub(in super::super) struct Draft<'g> {
    pub(super) gguf: &'g Gguf,
    pub(super) metadata: Metadata<'g>,
    pub(super) architecture: &'static Architecture,
    pub(super) fields: Map<String, Value>,
}

impl<'g> Draft<'g> {
    pub(super) fn new(gguf: &'g Gguf, architecture: &'static Architecture) -> Self {
        Self { gguf, metadata: gguf.metadata(), architecture, fields: Map::new() }
    }

    /// Whatever most architectures have.
    pub(super) fn common(&mut self) -> Result<()> {
        let architecture = self.architecture;
        self.set("model_type", architecture.model_type);
        let layers = self.layers()?;
        self.set("num_hidden_layers", layers);
        self.set_rows_of("vocab_size", "token_embd.weight");
        self.set("tie_word_embeddings", !self.has("output.weight"));
        self.set("torch_dtype", self.element_type());
        for &(key, setting) in known::COMMON.iter().chain(architecture.settings.iter().copied().flatten()) {
            self.copy(key, setting)?;
            // Converters write it only if it is true, and llama.cpp takes an absent one for false.
            if key == NORMALISED && !self.fields.contains_key(setting) {
                self.set(setting, false);
            }
        }
        self.heads()?;
        for &(setting, fixed) in architecture.fixed {
            self.set(setting, fixed.value());
        }
        // Files with a draft head alone have no other layer.
        let first = (0..=layers).find(|layer| self.layer_has(*layer, "attn_norm")).unwrap_or(0);
        for &(tensor, setting) in architecture.present {
            let there = self.has(&format!("blk.{first}.{tensor}"));
            self.set(setting, there);
        }
        rope::read(self)
    }

    /// Sets a field.
    pub(super) fn set(&mut self, setting: &str, value: impl Into<Value>) {
        self.fields.insert(setting.to_owned(), value.into());
    }

    /// Sets a field of the scaling of the rotary embedding, if there is one.
    pub(super) fn set_scaling(&mut self, setting: &str, value: impl Into<Value>) {
        if let Some(Value::Object(scaling)) = self.fields.get_mut("rope_scaling") {
            scaling.insert(setting.to_owned(), value.into());
        }
    }

    /// Sets a field to the size of a dimension of the first layer that has this tensor, if one has it.
    pub(super) fn set_size_of(&mut self, setting: &str, tensor: &str, dimension: usize) {
        if let Some(size) = self.size_of(tensor, dimension) {
            self.set(setting, size);
        }
    }

    /// Sets a field to the rows of a tensor that is not a layer's, if there is such.
    pub(super) fn set_rows_of(&mut self, setting: &str, tensor: &str) {
        if let Some(shape) = self.shape(tensor) {
            self.set(setting, shape.first().copied().unwrap_or_default());
        }
    }

    /// The whole key of the architecture.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    /// An integer of the architecture; may be an array with one value per layer if all are equal.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>> {
        let key = self.key(key);
        match self.metadata.sizes(&key, MOST_LAYERS)? {
            None => Ok(None),
            Some(Sizes::All(size)) => Ok(Some(size)),
            Some(Sizes::Each(sizes)) => match sizes.split_first() {
                Some((first, rest)) if rest.iter().all(|size| size == first) => Ok(Some(*first)),
                _ => {
                    let message = "layers that differ in this are not supported".to_owned();
                    Err(self.metadata.unsupported(&key, message))
                }
            },
        }
    }

    /// A whole number of the architecture that must be there.
    pub(super) fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| self.metadata.absent(&self.key(key)))
    }

    /// Whole numbers of the architecture, one for each layer, that must be there.
    pub(super) fn required_sizes(&self, key: &str) -> Result<Sizes> {
        self.sizes(key)?.ok_or_else(|| self.metadata.absent(&self.key(key)))
    }

    /// A number of the architecture.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        self.metadata.number(&self.key(key))
    }

    /// Numbers of the architecture, one for each layer.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<impl Iterator<Item = f64>>> {
        Ok(self.metadata.numbers(&self.key(key))?.map(Numbers::iter))
    }

    /// A flag of the architecture.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.metadata.flag(&self.key(key))
    }

    /// Whole numbers of the architecture, one for each layer.
    pub(super) fn sizes(&self, key: &str) -> Result<Option<Sizes>> {
        self.metadata.sizes(&self.key(key), MOST_LAYERS)
    }

    /// Sets a field to what a key says: a flag, a whole number or another one, or widths that differ.
    pub(super) fn copy(&mut self, key: &str, setting: &str) -> Result<()> {
        let full = self.key(key);
        if !self.metadata.has(&full) {
            return Ok(());
        }
        let value = if let Ok(Some(flag)) = self.metadata.flag(&full) {
            Value::Bool(flag)
        } else if let Some(size) = self.size(key).ok().flatten() {
            Value::from(size)
        } else {
            // If the value is of none of these types, the error is that of a number, or that of layers that
            // differ.
            match self.metadata.sizes(&full, MOST_LAYERS) {
                Ok(Some(Sizes::Each(each))) if key == known::WIDTH => Value::from(each),
                Ok(Some(Sizes::Each(_))) => return self.size(key).map(drop),
                _ => Value::from(self.metadata.number(&full)?),
            }
        };
        self.set(setting, value);
        Ok(())
    }

    /// How many layers the network has.
    pub(super) fn layers(&self) -> Result<usize> {
        const KEY: &str = "block_count";
        let blocks = self.required_size(KEY)?;
        if blocks > MOST_LAYERS {
            return Err(self
                .metadata
                .corrupt(&self.key(KEY), format!("{blocks} layers are more than {MOST_LAYERS}")));
        }
        let extra = self.size("nextn_predict_layers")?.unwrap_or(0);
        Ok(blocks.saturating_sub(extra))
    }

    /// The heads of attention, where there are any.
    fn heads(&mut self) -> Result<()> {
        if self.architecture.heads_by_layer {
            return Ok(());
        }
        let Some(heads) = self.size("attention.head_count")?.filter(|heads| *heads > 0) else {
            return Ok(());
        };
        self.set("num_attention_heads", heads);
        let kv_heads = match self.sizes("attention.head_count_kv")? {
            None => heads,
            // Layers without attention have none.
            Some(Sizes::Each(each)) => each.into_iter().max().unwrap_or(heads),
            Some(Sizes::All(kv_heads)) => kv_heads,
        };
        self.set("num_key_value_heads", kv_heads);
        let width = self.head_dim()?;
        if let Some(values) = self.size(known::VALUES)?.filter(|values| *values != width) {
            // Latents have sizes of their own.
            let mut settings = self.architecture.settings.iter().copied().flatten();
            let is_setting = settings.any(|(key, _)| *key == known::VALUES);
            if !is_setting && self.size("attention.kv_lora_rank")?.is_none() {
                let message = format!("heads of {width} keys and {values} values are not supported");
                return Err(self.metadata.unsupported(&self.key(known::VALUES), message));
            }
        }
        self.set("head_dim", width);
        Ok(())
    }

    /// The width of a head: what the file says, or the hidden size by heads.
    pub(super) fn head_dim(&self) -> Result<usize> {
        if let Some(width) = self.size("attention.key_length")? {
            return Ok(width);
        }
        let hidden = self.required_size("embedding_length")?;
        Ok(hidden / self.required_size("attention.head_count")?.max(1))
    }

    /// Whether there is such a tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// Whether a layer has this weight.
    pub(super) fn layer_has(&self, layer: usize, part: &str) -> bool {
        self.has(&format!("blk.{layer}.{part}.weight"))
    }

    /// Sets a field to a list with a name for each layer.
    pub(super) fn set_by_layer(
        &mut self,
        setting: &str,
        name: impl Fn(&Self, usize) -> &'static str,
    ) -> Result<()> {
        let names = (0..self.layers()?).map(|layer| name(self, layer)).collect::<Vec<_>>();
        self.set(setting, names);
        Ok(())
    }

    /// The sizes of a tensor.
    pub(super) fn shape(&self, name: &str) -> Option<&'g [usize]> {
        self.gguf.tensor(name).map(|(tensor, _)| &tensor.shape[..])
    }

    /// The size of a dimension of the first layer that has this tensor, which may be the draft head's.
    pub(super) fn size_of(&self, tensor: &str, dimension: usize) -> Option<usize> {
        let layers = self.layers().unwrap_or_default();
        let shape = (0..=layers).find_map(|layer| self.shape(&format!("blk.{layer}.{tensor}")))?;
        shape.get(dimension).copied()
    }

    /// The type that activations have where engines round them: that of the matrices, and float16 for packed
    /// ones, as llama.cpp keeps its cache.
    fn element_type(&self) -> &'static str {
        let matrices = || self.gguf.tensors().filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.ty);
        if matrices().any(|ty| ty == TensorType::Plain(ElementType::BF16)) {
            "bfloat16"
        } else if matrices().all(|ty| ty == TensorType::Plain(ElementType::F32)) {
            "float32"
        } else {
            "float16"
        }
    }

    /// Which layers see a window, by `layer_types`, if any: by the file, or all but every `period`-th.
    pub(super) fn windows(&mut self, period: usize) -> Result<()> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let Some(window) = self.size("attention.sliding_window")?.filter(|window| *window > 0) else {
            self.set("sliding_window", Value::Null);
            return Ok(());
        };
        self.set("sliding_window", window);
        let pattern = self.sizes(PATTERN)?.unwrap_or(Sizes::All(period));
        let layers = self.layers()?;
        let slides = |layer: usize| match &pattern {
            Sizes::All(period) => *period != 0 && !(layer + 1).is_multiple_of(*period),
            Sizes::Each(_) => pattern.of(layer) != 0,
        };
        let types =
            (0..layers).map(|layer| if slides(layer) { "sliding_attention" } else { "full_attention" });
        let types = types.collect::<Vec<_>>();
        self.set("layer_types", types);
        Ok(())
    }
}
