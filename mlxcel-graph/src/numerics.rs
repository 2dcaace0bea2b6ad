//! Which element types a precision means for a decoder.

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::ElementType;

/// What a precision means for a decoder: the element types that it runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// The precision that was asked for, which engines' own kernels keep to.
    pub precision: Precision,
    /// The type of what goes into matrix products; their sums, norms and the residual stream are always float32.
    pub operand: ElementType,
    /// The type of keys and values in the cache.
    pub kv: ElementType,
}

impl Numerics {
    /// `Exact` is float32 throughout. `Native` rounds the activations that go into matrix products, and the KV cache, to the type
    /// that the checkpoint names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for `Fast`: graphs have no mode beyond `Native`; and for quantized weights.
    pub fn new(precision: Precision, decoder: &Decoder) -> Result<Self> {
        refuse_quantized(decoder)?;
        let element = match precision {
            Precision::Exact => ElementType::F32,
            Precision::Native => element_type(decoder.element_type, "config.json")?,
            other => {
                return Err(Error::unsupported(
                    "choose precision",
                    "this engine runs with exact or native precision",
                )
                .with_context("precision", other));
            }
        };
        Ok(Self { precision, operand: element, kv: element })
    }
}

/// Graphs multiply dense weights only.
pub(crate) fn refuse_quantized(decoder: &Decoder) -> Result<()> {
    let packed = decoder.weights().find_map(|weight| Some((weight, weight.quantization.as_ref()?)));
    let Some((weight, quantization)) = packed else { return Ok(()) };
    let message = "the weight is quantized, which this engine does not run; the engine `mlx` does";
    Err(Error::unsupported("build decoder", message)
        .with_context("tensor", &weight.tensor)
        .with_context("quantization", quantization))
}

/// The element type in graphs of a floating-point `element` of a checkpoint; `location` is named where there is none.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for types that decoders do not compute with.
pub fn element_type(element: mlxcel_models::ElementType, location: &str) -> Result<ElementType> {
    match element {
        mlxcel_models::ElementType::F32 => Ok(ElementType::F32),
        mlxcel_models::ElementType::F16 => Ok(ElementType::F16),
        mlxcel_models::ElementType::BF16 => Ok(ElementType::BF16),
        other => Err(Error::new(
            ErrorKind::Unsupported,
            "build decoder",
            "weights and activations must be F32, F16 or BF16",
        )
        .with_context("tensor", location)
        .with_context("element_type", other)),
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_models::Checkpoint;

    use super::*;

    #[test]
    fn quantized_weights_are_refused_by_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/storyteller-4bit");
        let decoder = Checkpoint::open(folder).unwrap().decoder().unwrap();
        let error = Numerics::new(Precision::Native, &decoder).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.context("tensor"), Some("model.embed_tokens.weight"));
        assert_eq!(error.context("quantization"), Some("affine 4-bit/64"));
        assert!(error.message().contains("`mlx`"), "{error}");
    }
}
