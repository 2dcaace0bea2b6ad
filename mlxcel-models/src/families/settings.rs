//! Config fields that most families share, with bounds for all sizes.

use mlxcel_core::Result;

use crate::config::Fields;
use crate::decoder::Activation;
use crate::rope::RopeSettings;

// Far above any published model, and low enough that no product of two overflows.
pub(super) const LARGEST_WIDTH: usize = 1 << 20;
pub(super) const LARGEST_HEAD_COUNT: usize = 1 << 12;
pub(super) const LARGEST_HEAD_DIM: usize = 1 << 12;
pub(super) const LARGEST_LAYER_COUNT: usize = 1 << 12;
pub(super) const LARGEST_VOCABULARY: usize = 1 << 24;
pub(super) const LARGEST_CONTEXT: usize = 1 << 30;

/// What a layer that sees all earlier positions is called in `layer_types`.
pub(super) const FULL: &str = "full_attention";
/// What a layer that sees a window is called.
pub(super) const SLIDING: &str = "sliding_attention";

/// What a layer with a recurrence instead of attention is called.
pub(super) const LINEAR: &str = "linear_attention";

/// The sizes of a decoder with attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) query_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) context: usize,
}

/// The sizes where the settings have none, from the class of settings in transformers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeDefaults {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) query_heads: usize,
    /// `None`: as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// `None`: the hidden size by query heads.
    pub(super) head_dim: Option<usize>,
    pub(super) context: usize,
}

impl SizeDefaults {
    /// Llama's. Those of other families are given as what differs from these, or from those of a relative.
    pub(super) const LLAMA: Self = Self {
        vocabulary: 32_000,
        hidden: 4096,
        intermediate: 11_008,
        layers: 32,
        query_heads: 32,
        kv_heads: None,
        head_dim: None,
        context: 2048,
    };
}

impl Sizes {
    /// Reads the sizes by the names that most families give them. A size that is `null` is the class's
    /// default too, but for key/value heads and the width of heads, which then follow from the others.
    pub(super) fn read(config: Fields<'_>, defaults: &SizeDefaults) -> Result<Self> {
        let intermediate = config.size("intermediate_size", 1..=LARGEST_WIDTH)?;
        Self::read_others(config, defaults, intermediate.unwrap_or(defaults.intermediate))
    }

    /// The same with an intermediate size from elsewhere.
    pub(super) fn read_others(
        config: Fields<'_>,
        defaults: &SizeDefaults,
        intermediate: usize,
    ) -> Result<Self> {
        let size = |key, default, largest| Ok(config.size(key, 1..=largest)?.unwrap_or(default));
        let query_heads = size("num_attention_heads", defaults.query_heads, LARGEST_HEAD_COUNT)?;
        let kv_heads = match config.size("num_key_value_heads", 1..=LARGEST_HEAD_COUNT)? {
            Some(heads) => heads,
            None => {
                defaults.kv_heads.filter(|_| !config.mentions("num_key_value_heads")).unwrap_or(query_heads)
            }
        };
        expect_shared(config, "num_key_value_heads", kv_heads, query_heads)?;
        let hidden = size("hidden_size", defaults.hidden, LARGEST_WIDTH)?;
        let head_dim = match config.size("head_dim", 1..=LARGEST_HEAD_DIM)? {
            Some(width) => width,
            None => match defaults.head_dim.filter(|_| !config.mentions("head_dim")) {
                Some(width) => width,
                None => head_dim(config, "num_attention_heads", hidden, query_heads)?,
            },
        };
        Ok(Self {
            vocabulary: size("vocab_size", defaults.vocabulary, LARGEST_VOCABULARY)?,
            hidden,
            intermediate,
            layers: size("num_hidden_layers", defaults.layers, LARGEST_LAYER_COUNT)?,
            query_heads,
            kv_heads,
            head_dim,
            context: size("max_position_embeddings", defaults.context, LARGEST_CONTEXT)?,
        })
    }

    /// The same of a class that reads neither a number of key/value heads nor a width of heads.
    pub(super) fn with_equal_heads(self, config: Fields<'_>) -> Result<Self> {
        let head_dim = head_dim(config, "num_attention_heads", self.hidden, self.query_heads)?;
        Ok(Self { kv_heads: self.query_heads, head_dim, ..self })
    }

    /// These sizes, or those that the settings have by other names: the hidden and the intermediate size,
    /// layers, heads, and positions.
    pub(super) fn or_named(
        self,
        config: Fields<'_>,
        [hidden, intermediate, layers, heads, context]: [&str; 5],
    ) -> Result<Self> {
        let size = |key, read, largest| Ok(config.size(key, 1..=largest)?.unwrap_or(read));
        let (width, query_heads) =
            (size(hidden, self.hidden, LARGEST_WIDTH)?, size(heads, self.query_heads, LARGEST_HEAD_COUNT)?);
        Ok(Self {
            hidden: width,
            query_heads,
            kv_heads: query_heads,
            head_dim: head_dim(config, heads, width, query_heads)?,
            intermediate: size(intermediate, self.intermediate, LARGEST_WIDTH)?,
            layers: size(layers, self.layers, LARGEST_LAYER_COUNT)?,
            context: size(context, self.context, LARGEST_CONTEXT)?,
            ..self
        })
    }

    /// How the rotary embedding of these heads is read, before what a family has otherwise.
    pub(super) fn rope<'a>(&self, config: Fields<'a>) -> RopeSettings<'a> {
        RopeSettings::new(config, self.head_dim, self.context)
    }

    /// The width of all query heads together.
    pub(super) fn query_width(&self) -> usize {
        self.query_heads * self.head_dim
    }

    /// The width of all key heads together, and of all value heads.
    pub(super) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// What scores are multiplied with by most families: `1 / √head_dim`.
    pub(super) fn scale(&self) -> f32 {
        (self.head_dim as f64).powf(-0.5) as f32
    }
}

/// The hidden size by heads, whose number the field `key` gives.
pub(super) fn head_dim(config: Fields<'_>, key: &str, hidden: usize, heads: usize) -> Result<usize> {
    match (hidden / heads, hidden % heads) {
        (width @ 1..=LARGEST_HEAD_DIM, 0) => Ok(width),
        _ => Err(config.wrong(
            key,
            format!("{heads} heads do not divide hidden_size, {hidden}, into heads of a plausible width"),
        )),
    }
}

/// Refuses key/value heads that query heads cannot share evenly, by the field `key`.
pub(super) fn expect_shared(
    config: Fields<'_>,
    key: &str,
    kv_heads: usize,
    query_heads: usize,
) -> Result<()> {
    if query_heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let message = format!("{kv_heads} key/value heads cannot be shared evenly by {query_heads} query heads");
    Err(config.wrong(key, message))
}

/// The flag in the field `key`.
pub(super) fn flag(config: Fields<'_>, key: &str, default: bool) -> Result<bool> {
    config.truth(key, default)
}

/// The number in the field `key`, as engines want it.
pub(super) fn number(config: Fields<'_>, key: &str, default: f64) -> Result<f32> {
    Ok(config.number(key)?.unwrap_or(default) as f32)
}

/// The number above zero in the field `key`, as engines want it.
pub(super) fn positive(config: Fields<'_>, key: &str, default: f64) -> Result<f32> {
    Ok(config.positive(key)?.unwrap_or(default) as f32)
}

/// The number above zero in the field `key`, where `null` means none.
pub(super) fn optional_positive(config: Fields<'_>, key: &str, default: Option<f64>) -> Result<Option<f32>> {
    let default = default.filter(|_| !config.mentions(key));
    Ok(config.positive(key)?.or(default).map(|number| number as f32))
}

/// The size in the field `key`, where `null` means none: how many positions layers with a window see.
pub(super) fn window(config: Fields<'_>, key: &str, default: Option<usize>) -> Result<Option<usize>> {
    let default = default.filter(|_| !config.mentions(key));
    Ok(config.size(key, 1..=LARGEST_CONTEXT)?.or(default))
}

/// Refuses a flag that is not `expected`, which is what is meant where the settings do not have it.
pub(super) fn expect_flag(config: Fields<'_>, key: &str, expected: bool) -> Result<()> {
    match config.flag(key)? {
        Some(flag) if flag != expected => {
            Err(config.unsupported(key, format!("{flag} is not supported for this model_type")))
        }
        _ => Ok(()),
    }
}

/// Refuses a text that is not `expected`, which is what is meant where the settings do not have it.
pub(super) fn expect_text(config: Fields<'_>, key: &str, expected: &str) -> Result<()> {
    match config.text(key)? {
        Some(text) if text != expected => {
            let message = format!("'{}' is not supported for this model_type", text.escape_debug());
            Err(config.unsupported(key, message))
        }
        _ => Ok(()),
    }
}

/// Refuses a number that is not `expected`, which is what is meant where the settings do not have it.
pub(super) fn expect_number(config: Fields<'_>, key: &str, expected: f64) -> Result<()> {
    match config.number(key)? {
        Some(number) if number != expected => {
            Err(config.unsupported(key, format!("{number} is not supported for this model_type")))
        }
        _ => Ok(()),
    }
}

/// What `layer_types` calls each layer, which must be one of `known`; `default` by index where there is no
/// such field.
pub(super) fn layer_types(
    config: Fields<'_>,
    layers: usize,
    known: &[&'static str],
    default: impl Fn(usize) -> &'static str,
) -> Result<Vec<&'static str>> {
    layer_kinds(config, "layer_types", layers, known, default)
}

/// What the field `key` calls each layer, which must be one of `known`; `default` by index where there is no
/// such field.
pub(super) fn layer_kinds(
    config: Fields<'_>,
    key: &str,
    layers: usize,
    known: &[&'static str],
    default: impl Fn(usize) -> &'static str,
) -> Result<Vec<&'static str>> {
    let Some(types) = config.texts(key)? else { return Ok((0..layers).map(default).collect()) };
    if types.len() != layers {
        return Err(config.wrong(key, format!("{} types are given for {layers} layers", types.len())));
    }
    let find = |name: &str| {
        // Names of earlier releases of transformers.
        let current = match name {
            "attention" => FULL,
            "mamba" => LINEAR,
            "deepseek_sparse_attention" => "indexed_attention",
            name => name,
        };
        let named = |name: &str| known.iter().copied().find(|known| *known == name);
        named(name).or_else(|| named(current)).ok_or_else(|| {
            let message = format!(
                "layers of type '{}' are not supported for this model_type; {} are",
                name.escape_debug(),
                known.join(", ")
            );
            config.unsupported(key, message)
        })
    };
    types.into_iter().map(find).collect()
}

/// Of each layer how many positions it sees: of those of type [`SLIDING`] as many as `window`, of others all.
pub(super) fn layer_windows(
    config: Fields<'_>,
    types: &[&str],
    window: Option<usize>,
) -> Result<Vec<Option<usize>>> {
    let of = |layer_type: &&str| match (*layer_type == SLIDING, window) {
        (false, _) => Ok(None),
        (true, Some(window)) => Ok(Some(window)),
        (true, None) => {
            let message = "layer_types has sliding windows, but no window size is set".to_owned();
            Err(config.wrong("sliding_window", message))
        }
    };
    types.iter().map(of).collect()
}

/// Of each layer how many positions it sees: `window` if `layer_types` says so, or without that field if
/// `is_sliding`, and else all.
pub(super) fn sliding_windows(
    config: Fields<'_>,
    layers: usize,
    window: Option<usize>,
    is_sliding: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let default = |index| if is_sliding(index) { SLIDING } else { FULL };
    let types = layer_types(config, layers, &[FULL, SLIDING], default)?;
    layer_windows(config, &types, window)
}

/// The function that a field such as `hidden_act` names, by the names of transformers' `ACT2FN`.
pub(crate) fn activation(config: Fields<'_>, key: &str, default: Activation) -> Result<Activation> {
    Ok(match config.text(key)? {
        None => default,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu" | "gelu_python") => Activation::Gelu,
        // All of these are the approximation by a hyperbolic tangent.
        Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate") => {
            Activation::GeluTanh
        }
        Some("relu") => Activation::Relu,
        Some("relu2") => Activation::ReluSquared,
        Some("sigmoid") => Activation::Sigmoid,
        Some("tanh") => Activation::Tanh,
        Some(other) => {
            let message = format!(
                "the activation '{}' is not known; silu, gelu, gelu_pytorch_tanh, relu, relu2, sigmoid and tanh are",
                other.escape_debug()
            );
            return Err(config.unsupported(key, message));
        }
    })
}
