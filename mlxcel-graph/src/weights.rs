//! A decoder's weights as arguments of its programs, dense and packed.

use mlxcel_core::Error;
use mlxcel_models::{Decoder, Linear, QuantizationMode, WeightId, WeightRef};
use mlxcel_stablehlo::{Builder, ElementType, QuantizedWeight, Result, TensorType, Value};

use crate::numerics::element_type;

/// The tensors of the weights of `decoder`, each with its type: the first arguments of its programs, in their order.
///
/// Of a packed weight they are the words, then the scales, then the biases, each as it is stored.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`](mlxcel_core::ErrorKind::Unsupported) for element types that decoders do not compute with, and for
/// weights packed otherwise than in MLX's affine mode with 4 or 8 bits.
pub fn weight_arguments(decoder: &Decoder) -> mlxcel_core::Result<Vec<(&WeightRef, TensorType)>> {
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
pub(crate) fn check_packing(decoder: &Decoder) -> mlxcel_core::Result<()> {
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
    decoder: &'a Decoder,
    /// The arguments of each weight's tensors, by its index.
    tensors: Vec<Vec<Value<'f>>>,
    /// The type of what goes into products with dense weights.
    operand: ElementType,
}

/// A weight's arguments: its values, or what it is packed into.
enum Stored<'f> {
    Dense(Value<'f>),
    Packed(QuantizedWeight<'f>),
}

impl<'a, 'f> Weights<'a, 'f> {
    /// `arguments` are those of [`weight_arguments`], in their order.
    pub(crate) fn new(
        decoder: &'a Decoder,
        arguments: impl IntoIterator<Item = Value<'f>>,
        operand: ElementType,
    ) -> Self {
        let mut arguments = arguments.into_iter();
        let own = |weight: &WeightRef| arguments.by_ref().take(weight.tensors().count()).collect();
        Self { decoder, tensors: decoder.weights().map(own).collect(), operand }
    }

    fn stored(&self, id: WeightId) -> Result<Stored<'f>> {
        let weight = self.decoder.weight(id);
        let missing = || {
            let message = format!("{weight} lacks arguments");
            mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Name, "weight", message)
        };
        let tensors = self.tensors.get(id.index()).map(Vec::as_slice).unwrap_or_default();
        match (&weight.quantization, tensors) {
            (None, &[values]) => Ok(Stored::Dense(values)),
            (Some(quantization), &[words, scales, biases]) => Ok(Stored::Packed(QuantizedWeight {
                words,
                scales,
                biases,
                bits: quantization.bits,
                group_size: quantization.group_size,
            })),
            _ => Err(missing()),
        }
    }

    /// The tensor of a weight that is not packed, such as that of a norm.
    pub(crate) fn dense(&self, id: WeightId) -> Result<Value<'f>> {
        match self.stored(id)? {
            Stored::Dense(values) => Ok(values),
            Stored::Packed(_) => {
                let message = format!("{} must not be packed", self.decoder.weight(id));
                Err(mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Element, "weight", message))
            }
        }
    }

    /// The values of a small weight, such as a bias, in float32.
    pub(crate) fn vector(&self, b: &mut Builder<'f>, id: WeightId) -> Result<Value<'f>> {
        let values = self.dense(id)?;
        b.convert(values, ElementType::F32)
    }

    /// The type in which a product with a weight wants its operand: rounding it before a packed weight would round what an
    /// engine turns into fixed point once more.
    pub(crate) fn operand_of(&self, id: WeightId) -> ElementType {
        if self.decoder.weight(id).quantization.is_some() { ElementType::F32 } else { self.operand }
    }

    /// `x` times a weight, plus a bias, in float32; `x` is rounded to [`operand_of`](Self::operand_of) the weight.
    pub(crate) fn linear(&self, b: &mut Builder<'f>, x: Value<'f>, linear: &Linear) -> Result<Value<'f>> {
        let Linear { weight, bias, inputs: _, outputs: _ } = *linear;
        let x = b.convert(x, self.operand_of(weight))?;
        let bias = bias.map(|bias| self.dense(bias)).transpose()?;
        match self.stored(weight)? {
            Stored::Packed(packed) => b.quantized_linear(x, packed, bias, ElementType::F32),
            Stored::Dense(values) => b.linear(x, values, bias, ElementType::F32),
        }
    }

    /// Blocks of rows (`[blocks, rows, inputs]`) times the matrices of their experts, likewise.
    pub(crate) fn expert_linear(
        &self,
        b: &mut Builder<'f>,
        x: Value<'f>,
        experts: Value<'f>,
        linear: &Linear,
    ) -> Result<Value<'f>> {
        let Linear { weight, bias, inputs: _, outputs: _ } = *linear;
        let x = b.convert(x, self.operand_of(weight))?;
        let bias = bias.map(|bias| self.dense(bias)).transpose()?;
        match self.stored(weight)? {
            Stored::Packed(packed) => b.quantized_expert_linear(x, packed, experts, bias, ElementType::F32),
            Stored::Dense(values) => b.expert_linear(x, values, experts, bias, ElementType::F32),
        }
    }

    /// The matrices of heads (`[heads, rows, columns]`), unpacked, and the type in which their products want the other
    /// operand.
    pub(crate) fn matrices(&self, b: &mut Builder<'f>, id: WeightId) -> Result<(Value<'f>, ElementType)> {
        match self.stored(id)? {
            Stored::Dense(values) => {
                let element = b.ty(values).element;
                // A product has operands of one type.
                let common = if element == self.operand { element } else { ElementType::F32 };
                Ok((b.convert(values, common)?, common))
            }
            Stored::Packed(packed) => {
                let shape = self.decoder.weight(id).shape.clone();
                let rows = shape.iter().rev().skip(1).product();
                let flat = |b: &mut Builder<'f>, part: Value<'f>| {
                    let width = b.shape(part).last().copied().unwrap_or(1);
                    b.reshape(part, &[rows, width])
                };
                let packed = QuantizedWeight {
                    words: flat(b, packed.words)?,
                    scales: flat(b, packed.scales)?,
                    biases: flat(b, packed.biases)?,
                    ..packed
                };
                let every = b.iota(TensorType::new(ElementType::I32, [rows]), 0)?;
                let values = b.quantized_embedding(packed, every)?;
                Ok((b.reshape(values, &shape)?, ElementType::F32))
            }
        }
    }

    /// The rows of a table for `ids`, in float32.
    pub(crate) fn embedding(
        &self,
        b: &mut Builder<'f>,
        table: WeightId,
        ids: Value<'f>,
    ) -> Result<Value<'f>> {
        match self.stored(table)? {
            Stored::Packed(packed) => b.quantized_embedding(packed, ids),
            Stored::Dense(values) => b.embedding(values, ids),
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
            let mut weight = decoder.weight(decoder.embedding.weight).clone();
            let old = weight.quantization.take().unwrap();
            weight.quantization = Some(Box::new(Quantization::new(mode, bits, 32, old.scales, old.biases)));
            decoder.weights = Default::default();
            decoder.weights.add(weight);
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
