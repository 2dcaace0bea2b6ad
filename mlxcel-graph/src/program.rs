//! A decoder as one StableHLO program.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::walk::Walk;
use mlxcel_models::{Decoder, WeightRef};
use mlxcel_stablehlo::{Builder, ElementType, Module, ModuleBuilder, TensorType, Value};

use crate::numerics::Numerics;
use crate::ops::{GraphOps, PassValues};
use crate::shape::{Outputs, ProgramShape};
use crate::state::StateLayout;
use crate::weights::{Weights, weight_arguments};

/// The name of a program's entry point.
pub const ENTRY: &str = "step";

/// A decoder program and what its arguments mean.
///
/// Arguments, in order: the [`weights`](Self::weights), which do not change from step to step; the
/// [`StepInputs`](crate::StepInputs) (tokens, positions, last, then cosines and sines of each rotary embedding); for each row its
/// states, one a [`StateLayout`]. Results: `[output rows, 2]` i32 (token and the bits of its log probability) and `[output rows,
/// vocabulary]` f32 logits, or of [`Outputs::Hidden`] alone `[tokens, hidden]` f32 hidden states; then the states, which take over
/// the storage of their arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// The module; [`ENTRY`] is its public function.
    pub module: Module,
    /// The weights' tensors, scales and biases of packed ones included, in the order of the arguments.
    pub weights: Vec<WeightRef>,
}

/// Writes `decoder` as a program for `shape`, over states that lie as `layouts` say.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a decoder that graphs cannot express (element types, packed weights where only
/// dense ones can be).
pub fn decoder_program(
    decoder: &Decoder,
    numerics: Numerics,
    layouts: &[StateLayout],
    shape: &ProgramShape,
) -> Result<Program> {
    let ropes = decoder.ropes();
    let weights = weight_arguments(decoder)?;
    let walk = Walk::new(decoder);
    let mut module = ModuleBuilder::new("decoder");
    module
        .function(ENTRY, |b| {
            let (tokens, rows) = (shape.tokens(), shape.rows.len());
            let mut arguments = Vec::with_capacity(weights.len());
            for (weight, ty) in &weights {
                arguments.push(b.argument(weight.to_string(), ty.clone())?);
            }
            let token_ids = b.argument("tokens", TensorType::new(ElementType::I32, [tokens]))?;
            let positions = b.argument("positions", TensorType::new(ElementType::I32, [rows]))?;
            let last = b.argument("last", TensorType::new(ElementType::I32, [rows]))?;
            let mut rotary = Vec::with_capacity(ropes.len());
            for (i, &rope) in ropes.iter().enumerate() {
                let table = TensorType::new(ElementType::F32, [tokens, rope.rotary_dim / 2]);
                let cos = b.argument(format!("cos.{i}"), table.clone())?;
                rotary.push((rope, (cos, b.argument(format!("sin.{i}"), table)?)));
            }
            let mut states = vec![Vec::with_capacity(rows); layouts.len()];
            for row in 0..rows {
                for (group, layout) in layouts.iter().enumerate() {
                    let ty = TensorType::new(layout.element, layout.shape(shape.length));
                    let state = b.argument(format!("state.{row}.{group}"), ty)?;
                    b.alias(state, shape.outputs.results() + row * layouts.len() + group)?;
                    states[group].push(state);
                }
            }
            // Where each row has one token, they stand in order already.
            let wanted = (shape.outputs == Outputs::Last && tokens != rows).then_some(last);
            let pass = PassValues { rows: &shape.rows, tokens: token_ids, positions, last, wanted, rotary };
            let weights = Weights::new(decoder, arguments, numerics.operand);
            let mut ops = GraphOps { b, weights, pass, states };
            let hidden = walk.hidden(decoder, &mut ops)?;
            let logits = match shape.outputs {
                Outputs::Last | Outputs::Every => Some(walk.logits(decoder, &hidden, &mut ops)?),
                Outputs::Hidden => None,
            };
            let GraphOps { states, .. } = ops;
            let mut results = match logits {
                Some(logits) => vec![best_tokens(b, logits)?, logits],
                None => vec![b.convert(hidden, ElementType::F32)?],
            };
            results.extend((0..rows).flat_map(|row| states.iter().map(move |group| group[row])));
            Ok(results)
        })
        .map_err(graph_error)?;
    let weights = weights.into_iter().map(|(weight, _)| weight.clone()).collect();
    Ok(Program { module: module.finish(), weights })
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
