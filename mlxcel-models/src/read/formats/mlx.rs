//! MLX's quantization and its config.
//!
//! A quantized module has `{module}.weight`, whose values are packed into 32-bit words, little-endian with
//! the first value in the lowest bits; `{module}.scales`, one per group of consecutive inputs; and in the
//! affine mode `{module}.biases`. `quantization` in `config.json` gives mode, bits and group size of all
//! modules with scales, and exceptions under the path of a module, or `false` there. Names, defaults and
//! precedence follow mlx-lm.

use std::fmt;

use mlxcel_core::{Error, ErrorKind, Result};

use super::{OPERATION, QUANTIZATION_CONFIG, dense};
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::packing::Packing;

/// The settings, and the name under which mlx-lm repeats them for tools that look for transformers' name.
pub(super) const KEYS: [&str; 2] = ["quantization", QUANTIZATION_CONFIG];

/// An MLX quantization mode. Prints as its name in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `affine`: unsigned integers with a scale and a bias per group.
    Affine,
    /// `mxfp4`: OCP microscaling with 4-bit floats.
    Mxfp4,
    /// `mxfp8`: OCP microscaling with 8-bit floats.
    Mxfp8,
    /// `nvfp4`: 4-bit floats in groups of 16 with 8-bit float scales.
    Nvfp4,
}

/// The quantization of a module in `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// The mode.
    pub mode: Mode,
    /// The bits per value.
    pub bits: usize,
    /// The number of consecutive values of a row with one scale.
    pub group_size: usize,
}

/// What the settings say about one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Declared {
    /// No module of the checkpoint is quantized.
    Nothing,
    /// Modules with scales are quantized like this.
    Default(Scheme),
    /// The module is quantized like this.
    Quantized(Scheme),
    /// The module is dense.
    Dense,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];

    /// The name in `config.json`, such as `affine`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// The supported bits per value; the first is the default.
    pub fn bits(self) -> &'static [usize] {
        match self {
            Self::Affine => &[4, 2, 3, 5, 6, 8],
            Self::Mxfp4 | Self::Nvfp4 => &[4],
            Self::Mxfp8 => &[8],
        }
    }

    /// The supported group sizes; the first is the default.
    pub fn group_sizes(self) -> &'static [usize] {
        match self {
            Self::Affine => &[64, 32, 128],
            Self::Mxfp4 | Self::Mxfp8 => &[32],
            Self::Nvfp4 => &[16],
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Declared {
    /// Reads what `config` says about `module`, such as `model.layers.0.self_attn.q_proj`.
    fn of(config: Fields<'_>, module: &str) -> Result<Self> {
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
        if let Some(settings) = config.object(key)? {
            return Ok(Some(settings));
        }
    }
    Ok(None)
}

impl Default for Scheme {
    fn default() -> Self {
        Self::of_mode(Mode::Affine)
    }
}

impl Scheme {
    /// The default bits and group size of a mode: 4 bits in groups of 64 for the affine one.
    pub fn of_mode(mode: Mode) -> Self {
        let first = |values: &[usize]| values.first().copied().unwrap_or_default();
        Self { mode, bits: first(mode.bits()), group_size: first(mode.group_sizes()) }
    }

    /// The packing, with scales of type `scale`.
    pub fn packing(self, scale: ElementType) -> Packing {
        match self.mode {
            Mode::Affine => Packing::affine(self.bits, self.group_size, scale),
            Mode::Mxfp4 => Packing::MXFP4,
            Mode::Mxfp8 => Packing::MXFP8,
            Mode::Nvfp4 => Packing::NVFP4,
        }
    }

    fn read(settings: Fields<'_>) -> Result<Self> {
        let mode = match settings.text("mode")? {
            None => Mode::Affine,
            Some(name) => Mode::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
                let known = Mode::ALL.map(Mode::name).join(", ");
                let message = format!("the mode '{}' is not known; supported: {known}", name.escape_debug());
                settings.unsupported("mode", message)
            })?,
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
fn one_of(settings: Fields<'_>, key: &str, mode: Mode, allowed: &[usize]) -> Result<Option<usize>> {
    let Some(value) = settings.size(key, 0..=usize::MAX)? else { return Ok(None) };
    if allowed.contains(&value) {
        return Ok(Some(value));
    }
    let mut allowed = allowed.to_vec();
    allowed.sort_unstable();
    let allowed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    Err(settings.unsupported(key, format!("{value} is not supported in mode {mode}; supported: {allowed}")))
}

/// The matrix of `shape`, or several along a dimension in front, whose tensor is `{module}.weight`: dense, or
/// packed with companions beside it.
///
/// It is quantized if `{module}.scales` exists, with the parameters of the settings; if only one of the two
/// describes a quantization, the checkpoint is refused.
pub(super) fn matrix(checkpoint: &Checkpoint, module: &str, shape: &[usize]) -> Result<WeightRef> {
    let weight = format!("{module}.weight");
    let has_scales = checkpoint.has(&format!("{module}.scales"));
    let fault = match (Declared::of(checkpoint.config(), module)?, has_scales) {
        (Declared::Default(scheme) | Declared::Quantized(scheme), true) => {
            return packed(checkpoint, module, shape, scheme);
        }
        (Declared::Nothing | Declared::Default(_) | Declared::Dense, false) => {
            return dense(checkpoint, &weight, shape);
        }
        (Declared::Quantized(_), false) => {
            "config.json says that it is quantized, and its scales are missing"
        }
        (Declared::Dense, true) => "it has scales, and config.json says that it is not quantized",
        (Declared::Nothing, true) => {
            "it has scales, and config.json has no `quantization` that says how to use them"
        }
    };
    let (_, location) = checkpoint.located(&weight)?;
    let error = Error::new(ErrorKind::Corrupt, OPERATION, fault);
    Err(error.with_context("tensor", weight).with_context("path", location))
}

/// The matrix or matrices of a module that is quantized by `scheme`.
fn packed(checkpoint: &Checkpoint, module: &str, shape: &[usize], scheme: Scheme) -> Result<WeightRef> {
    let Scheme { mode, bits, group_size } = scheme;
    let columns = shape.last().copied().unwrap_or_default();
    let with_columns = |columns: usize| {
        let mut sizes = shape.to_vec();
        sizes.pop();
        sizes.push(columns);
        sizes
    };
    let weight = format!("{module}.weight");
    let refuse = |name: &str, message: String| {
        let error = Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("tensor", name);
        match checkpoint.located(name) {
            Ok((_, location)) => error.with_context("path", location),
            Err(_) => error,
        }
    };
    if !columns.is_multiple_of(group_size) {
        return Err(refuse(&weight, format!("rows of {columns} cannot be in groups of {group_size}")));
    }
    // The tensor as stored, if it is what the settings make it.
    let companion = |name: &str, fits: fn(ElementType) -> bool, types: &str, width: usize| {
        let (view, _) = checkpoint.located(name)?;
        let expected = with_columns(width);
        if view.shape != expected || !fits(view.element_type) {
            let message = format!(
                "the tensor is {} {:?} and config.json makes it {types} {expected:?}: {shape:?} in mode {mode}, {bits} \
                 bits, groups of {group_size}",
                view.element_type, view.shape,
            );
            return Err(refuse(name, message));
        }
        Ok(WeightRef::new(name, view.element_type, expected))
    };
    companion(&weight, |element| element == ElementType::U32, "U32", columns * bits / 32)?;
    let (scales, biases) = (format!("{module}.scales"), format!("{module}.biases"));
    let groups = columns / group_size;
    let (scales, biases) = if mode == Mode::Affine {
        let scales = companion(&scales, ElementType::is_dense_float, "F32, F16 or BF16", groups)?;
        let added = companion(&biases, ElementType::is_dense_float, "F32, F16 or BF16", groups)?;
        if added.element != scales.element {
            let message =
                format!("its elements are {} and those of the scales {}", added.element, scales.element);
            return Err(refuse(&biases, message));
        }
        (scales, Some(added))
    } else {
        if checkpoint.has(&biases) {
            return Err(refuse(&biases, format!("the tensor is there, and mode {mode} has no biases")));
        }
        (companion(&scales, |element| element == ElementType::U8, "U8", groups)?, None)
    };
    let packing = scheme.packing(scales.element);
    packing.check(columns).map_err(|error| error.with_context("tensor", module))?;
    let parts: Vec<_> = std::iter::once(scales).chain(biases).collect();
    Ok(WeightRef::new(weight, ElementType::U32, shape).with_packing(Packed::new(packing, parts)))
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
