//! A decoder as one StableHLO program.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::{Decoder, Mixer, Rope, WeightRef};
use mlxcel_stablehlo::{Builder, ElementType, Module, ModuleBuilder, TensorType, Value};

use crate::executor::KvLayout;
use crate::layer::Network;
use crate::numerics::Numerics;
use crate::shape::{Outputs, ProgramShape};
use crate::weights::weight_arguments;

/// The name of a program's entry point.
pub const ENTRY: &str = "step";

/// A decoder program and what its arguments mean.
///
/// Arguments, in order: the [`weights`](Self::weights), which do not change from step to step; the
/// [`StepInputs`](crate::StepInputs) (tokens, positions, last, then cosines and sines of each rotary embedding); one KV cache
/// a row. Results: `[output rows, 2]` i32 (token and the bits
/// of its log probability), `[output rows, vocabulary]` f32 logits, and the KV caches, which take over the storage of
/// their arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// The module; [`ENTRY`] is its public function.
    pub module: Module,
    /// The weights' tensors, scales and biases of packed ones included, in the order of the arguments.
    pub weights: Vec<WeightRef>,
}

/// Writes `decoder` as a program for `shape`.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a decoder that graphs cannot express (packings of quantized weights, element
/// types, layers whose caches differ in shape).
pub fn decoder_program(decoder: &Decoder, numerics: Numerics, shape: &ProgramShape) -> Result<Program> {
    let layout = kv_layout(decoder, numerics)?;
    let ropes = distinct_ropes(decoder);
    let weights = weight_arguments(decoder)?;
    let mut module = ModuleBuilder::new("decoder");
    module
        .function(ENTRY, |b| {
            let (tokens, rows) = (shape.tokens(), shape.rows.len());
            let mut arguments = Vec::with_capacity(weights.len());
            for (weight, ty) in &weights {
                arguments.push((*weight, b.argument(weight.to_string(), ty.clone())?));
            }
            let token_ids = b.argument("tokens", TensorType::new(ElementType::I32, [tokens]))?;
            let positions = b.argument("positions", TensorType::new(ElementType::I32, [rows]))?;
            let last = b.argument("last", TensorType::new(ElementType::I32, [rows]))?;
            let mut rotary = Vec::with_capacity(ropes.len());
            for (i, rope) in ropes.iter().enumerate() {
                let table = TensorType::new(ElementType::F32, [tokens, rope.rotary_dim / 2]);
                rotary.push((
                    b.argument(format!("cos.{i}"), table.clone())?,
                    b.argument(format!("sin.{i}"), table)?,
                ));
            }
            let mut caches = Vec::with_capacity(rows);
            for row in 0..rows {
                let ty = TensorType::new(layout.element, layout.shape(shape.length));
                let cache = b.argument(format!("kv.{row}"), ty)?;
                b.alias(cache, 2 + row)?;
                caches.push(cache);
            }
            let mut network =
                Network::new(decoder, numerics, &ropes, rotary, arguments, &shape.rows, positions);
            let hidden = network.run(b, token_ids, &mut caches)?;
            let hidden = match shape.outputs {
                Outputs::Every => hidden,
                // Where each row has one token, they stand in order already.
                Outputs::Last if tokens == rows => hidden,
                Outputs::Last => b.take(hidden, last)?,
            };
            let logits = network.head(b, hidden)?;
            let best = best_tokens(b, logits)?;
            Ok([best, logits].into_iter().chain(caches).collect())
        })
        .map_err(graph_error)?;
    let weights = weights.into_iter().map(|(weight, _)| weight.clone()).collect();
    Ok(Program { module: module.finish(), weights })
}

/// How the KV caches of `decoder` lie.
pub(crate) fn kv_layout(decoder: &Decoder, numerics: Numerics) -> Result<KvLayout> {
    let mut shapes = decoder.layers.iter().map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Ok((attention.kv_heads, attention.head_dim)),
        _ => Err(Error::unsupported("build decoder", "this engine has attention layers only")),
    });
    let first =
        shapes.next().ok_or_else(|| Error::unsupported("build decoder", "a decoder needs layers"))??;
    for shape in shapes {
        if shape? != first {
            return Err(Error::unsupported(
                "build decoder",
                "all layers must keep keys and values of one shape",
            ));
        }
    }
    let (kv_heads, head_dim) = first;
    Ok(KvLayout { layers: decoder.layers.len(), kv_heads, head_dim, element: numerics.kv })
}

/// The rotary embeddings of `decoder`, each once, in the order in which layers first use them.
pub fn distinct_ropes(decoder: &Decoder) -> Vec<&Rope> {
    let mut ropes = Vec::new();
    for layer in &decoder.layers {
        if let Mixer::Attention(attention) = &layer.mixer
            && !ropes.contains(&&attention.rope)
        {
            ropes.push(&attention.rope);
        }
    }
    ropes
}

/// `[rows, 2]` i32: for each row of logits, the likeliest token and the bits of its log probability.
fn best_tokens<'f>(b: &mut Builder<'f>, logits: Value<'f>) -> mlxcel_stablehlo::Result<Value<'f>> {
    let rows = b.shape(logits)[0];
    let (largest, token) = b.argmax(logits, 1)?;
    let total = b.log_sum_exp(logits, 1)?;
    let logprob = b.subtract(largest, total)?;
    let bits = b.bitcast_convert(logprob, ElementType::I32)?;
    let token = b.reshape(token, &[rows, 1])?;
    let bits = b.reshape(bits, &[rows, 1])?;
    b.concatenate(&[token, bits], 1)
}

/// A mistake in building a graph: the checkpoint was validated before, so it is a defect of this crate.
fn graph_error(error: mlxcel_stablehlo::Error) -> Error {
    Error::new(ErrorKind::Internal, "build decoder", "the graph of this decoder is not well typed")
        .with_source(error)
}
