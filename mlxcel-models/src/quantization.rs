//! Weights that MLX has quantized, and the settings that say so.
//!
//! A quantized module has `{module}.weight`, its values packed into words of 32 bits, little-endian and the first value
//! in the lowest bits; `{module}.scales`, one a group of consecutive inputs; and in the affine mode `{module}.biases`.
//! `quantization` in `config.json` gives mode, bits and group size of all modules that have scales, and under the path of
//! a module what differs there, or `false`. Names, defaults and precedence are those of mlx-lm, which writes these files.

use std::fmt;

use mlxcel_core::{Error, Result};

use crate::config::Fields;
use crate::decoder::WeightRef;

/// The settings, and the name under which mlx-lm repeats them for tools that look for transformers' name.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// How packed values become numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuantizationMode {
    /// `scale · q + bias`: unsigned integers of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128.
    Affine,
    /// 4-bit floats (E2M1) in groups of 32 with a power of two as scale (E8M0): OCP microscaling, MXFP4.
    Mxfp4,
    /// 8-bit floats (E4M3) in groups of 32 with a power of two as scale (E8M0): OCP microscaling, MXFP8.
    Mxfp8,
    /// 4-bit floats (E2M1) in groups of 16 with an 8-bit float as scale (E4M3): NVFP4.
    Nvfp4,
}

/// How the values of a weight are packed, and the tensors that complete them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Quantization {
    /// What a packed value means.
    pub mode: QuantizationMode,
    /// Bits of a packed value.
    pub bits: usize,
    /// How many consecutive values of a row share a scale; it divides the length of a row.
    pub group_size: usize,
    /// `[rows, columns / group_size]`: floats in the affine mode, else the bytes of 8-bit floats as `U8`.
    pub scales: WeightRef,
    /// In the affine mode what is added to each group, of the scales' type and shape.
    pub biases: Option<WeightRef>,
}

/// Mode, bits and group size, before any tensor is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) mode: QuantizationMode,
    pub(crate) bits: usize,
    pub(crate) group_size: usize,
}

/// What the settings say about one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// Nothing: no module of the checkpoint is quantized.
    Nothing,
    /// It is quantized like this if it has scales.
    Default(Scheme),
    /// It is quantized like this.
    Quantized(Scheme),
    /// It is dense.
    Dense,
}

impl QuantizationMode {
    const ALL: [Self; 4] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];

    /// The name in `config.json`, such as `affine`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// The bits that a value may have; the first are those that no setting needs to name.
    pub(crate) fn bits(self) -> &'static [usize] {
        match self {
            Self::Affine => &[4, 2, 3, 5, 6, 8],
            Self::Mxfp4 | Self::Nvfp4 => &[4],
            Self::Mxfp8 => &[8],
        }
    }

    /// The group sizes; the first is the one that no setting needs to name.
    pub(crate) fn group_sizes(self) -> &'static [usize] {
        match self {
            Self::Affine => &[64, 32, 128],
            Self::Mxfp4 | Self::Mxfp8 => &[32],
            Self::Nvfp4 => &[16],
        }
    }
}

impl fmt::Display for QuantizationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Quantization {
    /// A quantization with its companions.
    pub fn new(
        mode: QuantizationMode,
        bits: usize,
        group_size: usize,
        scales: WeightRef,
        biases: Option<WeightRef>,
    ) -> Self {
        Self { mode, bits, group_size, scales, biases }
    }

    /// The 32-bit words of a row of `columns` values.
    pub fn words(&self, columns: usize) -> usize {
        columns.saturating_mul(self.bits) / 32
    }
}

/// Prints as `affine 4-bit/64`: mode, bits and group size.
impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}-bit/{}", self.mode, self.bits, self.group_size)
    }
}

impl Declared {
    /// Reads what `config` says about `module`, such as `model.layers.0.self_attn.q_proj`.
    pub(crate) fn of(config: Fields<'_>, module: &str) -> Result<Self> {
        let Some(settings) = settings(config)? else { return Ok(Self::Nothing) };
        let default = Scheme::read(settings)?;
        Ok(match settings.get(module) {
            None => Self::Default(default),
            Some(serde_json::Value::Bool(true)) => Self::Quantized(default),
            Some(serde_json::Value::Bool(false)) => Self::Dense,
            // What an override leaves open is the mode's own, not that of other modules.
            Some(_) => match settings.object(module)? {
                Some(own) => Self::Quantized(Scheme::read(own)?),
                None => Self::Quantized(Scheme::default()),
            },
        })
    }
}

/// MLX's settings, if there are any.
fn settings(config: Fields<'_>) -> Result<Option<Fields<'_>>> {
    for key in KEYS {
        let Some(settings) = config.object(key)? else { continue };
        if let Some(method) = other_method(settings)? {
            let message = format!(
                "weights quantized by '{}' are not supported; use a checkpoint that mlx-lm quantized, or one in float16, \
                 bfloat16 or float32",
                method.escape_debug()
            );
            return Err(settings.unsupported("quant_method", message));
        }
        return Ok(Some(settings));
    }
    Ok(None)
}

/// The name of a method other than MLX's, each of which has its own layout.
fn other_method(settings: Fields<'_>) -> Result<Option<&str>> {
    if let Some(method) = settings.text("quant_method")? {
        return Ok(Some(method));
    }
    // The oldest settings of this one do not name it.
    let bitsandbytes = ["load_in_4bit", "load_in_8bit"].into_iter().any(|key| settings.mentions(key));
    Ok(bitsandbytes.then_some("bitsandbytes"))
}

impl Default for Scheme {
    fn default() -> Self {
        Self::of_mode(QuantizationMode::Affine)
    }
}

impl Scheme {
    fn of_mode(mode: QuantizationMode) -> Self {
        let first = |values: &[usize]| values.first().copied().unwrap_or_default();
        Self { mode, bits: first(mode.bits()), group_size: first(mode.group_sizes()) }
    }

    fn read(settings: Fields<'_>) -> Result<Self> {
        let mode = match settings.text("mode")? {
            None => QuantizationMode::Affine,
            Some(name) => {
                QuantizationMode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
                    let known = QuantizationMode::ALL.map(QuantizationMode::name).join(", ");
                    let message =
                        format!("the mode '{}' is not known; supported: {known}", name.escape_debug());
                    settings.unsupported("mode", message)
                })?
            }
        };
        if settings.flag("quantize_input")?.unwrap_or(false) {
            let message = "quantizing activations too is not supported".to_owned();
            return Err(settings.unsupported("quantize_input", message));
        }
        let default = Self::of_mode(mode);
        Ok(Self {
            mode,
            bits: one_of(settings, "bits", mode, mode.bits())?.unwrap_or(default.bits),
            group_size: one_of(settings, "group_size", mode, mode.group_sizes())?
                .unwrap_or(default.group_size),
        })
    }
}

/// The size in the field `key`, which must be among `allowed`.
fn one_of(
    settings: Fields<'_>,
    key: &str,
    mode: QuantizationMode,
    allowed: &[usize],
) -> Result<Option<usize>> {
    let Some(value) = settings.size(key, 0..=usize::MAX)? else { return Ok(None) };
    if allowed.contains(&value) {
        return Ok(Some(value));
    }
    let mut allowed = allowed.to_vec();
    allowed.sort_unstable();
    let allowed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    Err(settings.unsupported(key, format!("{value} is not supported in mode {mode}; supported: {allowed}")))
}

/// The error for activations that are quantized too, which the whole model's settings can ask for.
pub(crate) fn refuse_quantized_activations(config: Fields<'_>) -> Option<Error> {
    let asked = match config.flag("quantize_activations") {
        Ok(asked) => asked.unwrap_or(false),
        Err(error) => return Some(error),
    };
    asked.then(|| {
        config.unsupported("quantize_activations", "quantizing activations too is not supported".to_owned())
    })
}
