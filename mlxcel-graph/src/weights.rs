//! A decoder's weights as arguments of its programs, dense and packed.

use std::collections::HashMap;

use mlxcel_core::{Error, Result};
use mlxcel_models::{Decoder, QuantizationMode, WeightRef};
use mlxcel_stablehlo::{Builder, ElementType, QuantizedWeight, TensorType, Value};

use crate::numerics::element_type;

/// The tensors of the weights of `decoder`, each with its type: the first arguments of its programs, in their order.
///
/// Of a packed weight they are the words, then the scales, then the biases, each as it is stored.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`](mlxcel_core::ErrorKind::Unsupported) for element types that decoders do not compute with, and for
/// weights packed otherwise than in MLX's affine mode with 4 or 8 bits.
pub fn weight_arguments(decoder: &Decoder) -> Result<Vec<(&WeightRef, TensorType)>> {
    check_packing(decoder)?;
    decoder
        .weights()
        .flat_map(WeightRef::tensors)
        .map(|tensor| {
            let element = match tensor.quantization {
                Some(_) => ElementType::U32,
                None => element_type(tensor.element, &tensor.tensor)?,
            };
            Ok((tensor, TensorType::new(element, tensor.stored_shape())))
        })
        .collect()
}

/// Refuses weights whose packing graphs have no operations for.
pub(crate) fn check_packing(decoder: &Decoder) -> Result<()> {
    for weight in decoder.weights() {
        let Some(quantization) = &weight.quantization else { continue };
        let affine = quantization.mode == QuantizationMode::Affine && quantization.biases.is_some();
        if !affine || ![4, 8].contains(&quantization.bits) {
            let message = "this engine runs weights that are quantized affinely with 4 or 8 bits; the engine `mlx` runs others";
            return Err(Error::unsupported("build decoder", message)
                .with_context("tensor", &weight.tensor)
                .with_context("quantization", quantization));
        }
    }
    Ok(())
}

/// The weights of a decoder in the function that is being written.
pub(crate) struct Weights<'a, 'f> {
    /// The argument of each tensor.
    tensors: HashMap<&'a WeightRef, Value<'f>>,
    /// The type of what goes into products with dense weights.
    operand: ElementType,
}

impl<'a, 'f> Weights<'a, 'f> {
    pub(crate) fn new(tensors: HashMap<&'a WeightRef, Value<'f>>, operand: ElementType) -> Self {
        Self { tensors, operand }
    }

    /// The tensor of a weight that is not packed, such as that of a norm.
    pub(crate) fn dense(&self, weight: &WeightRef) -> mlxcel_stablehlo::Result<Value<'f>> {
        self.tensors.get(weight).copied().ok_or_else(|| {
            mlxcel_stablehlo::Error::new(
                mlxcel_stablehlo::ErrorKind::Name,
                "weight",
                format!("{weight} is not among the decoder's weights"),
            )
        })
    }

    /// The tensors of a packed weight; `None` for a dense one.
    fn packed(&self, weight: &WeightRef) -> mlxcel_stablehlo::Result<Option<QuantizedWeight<'f>>> {
        let Some(quantization) = &weight.quantization else { return Ok(None) };
        let Some(biases) = &quantization.biases else { return Ok(None) };
        Ok(Some(QuantizedWeight {
            words: self.dense(weight)?,
            scales: self.dense(&quantization.scales)?,
            biases: self.dense(biases)?,
            bits: quantization.bits,
            group_size: quantization.group_size,
        }))
    }

    /// The type in which a product with `weight` wants its operand: rounding it before a packed weight would round what an
    /// engine turns into fixed point once more.
    pub(crate) fn operand_of(&self, weight: &WeightRef) -> ElementType {
        if weight.quantization.is_some() { ElementType::F32 } else { self.operand }
    }

    /// `x` times a weight, plus a bias, in float32; `x` is rounded to [`operand_of`](Self::operand_of) the weight.
    pub(crate) fn linear(
        &self,
        b: &mut Builder<'f>,
        x: Value<'f>,
        weight: &WeightRef,
        bias: Option<&WeightRef>,
    ) -> mlxcel_stablehlo::Result<Value<'f>> {
        let x = b.convert(x, self.operand_of(weight))?;
        let bias = bias.map(|bias| self.dense(bias)).transpose()?;
        match self.packed(weight)? {
            Some(packed) => b.quantized_linear(x, packed, bias, ElementType::F32),
            None => b.linear(x, self.dense(weight)?, bias, ElementType::F32),
        }
    }

    /// The rows of a table for `ids`, in float32.
    pub(crate) fn embedding(
        &self,
        b: &mut Builder<'f>,
        table: &WeightRef,
        ids: Value<'f>,
    ) -> mlxcel_stablehlo::Result<Value<'f>> {
        match self.packed(table)? {
            Some(packed) => b.quantized_embedding(packed, ids),
            None => b.embedding(self.dense(table)?, ids),
        }
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{ErrorKind, Precision};
    use mlxcel_models::{Checkpoint, Quantization};

    use super::*;
    use crate::numerics::Numerics;

    fn packed() -> Decoder {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/storyteller-4bit");
        Checkpoint::open(folder).unwrap().decoder().unwrap()
    }

    #[test]
    fn a_packed_weight_is_three_arguments() {
        let decoder = packed();
        let arguments = weight_arguments(&decoder).unwrap();
        let shown: Vec<String> =
            arguments[..3].iter().map(|(weight, ty)| format!("{} {ty}", weight.tensor)).collect();
        assert_eq!(
            shown,
            [
                "model.embed_tokens.weight tensor<729x24xui32>",
                "model.embed_tokens.scales tensor<729x3xbf16>",
                "model.embed_tokens.biases tensor<729x3xbf16>"
            ]
        );
    }

    #[test]
    fn other_packings_are_refused_by_name() {
        let decoder = packed();
        let of = |mode, bits| {
            let mut decoder = decoder.clone();
            let weight = &mut decoder.embedding.weight;
            let old = weight.quantization.take().unwrap();
            weight.quantization = Some(Box::new(Quantization::new(mode, bits, 32, old.scales, old.biases)));
            decoder
        };
        for (mode, bits, shown) in
            [(QuantizationMode::Affine, 6, "affine 6-bit/32"), (QuantizationMode::Mxfp4, 4, "mxfp4 4-bit/32")]
        {
            for precision in [Precision::Exact, Precision::Native, Precision::Fast] {
                let error = Numerics::new(precision, &of(mode, bits)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert_eq!(error.context("tensor"), Some("model.embed_tokens.weight"));
                assert_eq!(error.context("quantization"), Some(shown));
                assert!(error.message().contains("`mlx`"), "{error}");
            }
        }
    }
}
