//! A decoder as one StableHLO program.

use std::collections::HashMap;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::Decoder;
use mlxcel_models::walk::{Hidden, Walk};
use mlxcel_stablehlo::{
    Builder, Comparison, ElementType, Module, ModuleBuilder, Reduction, TensorType, Value,
};

use crate::layers::TextRanges;
use crate::numerics::Numerics;
use crate::ops::{Adapters, GraphOps, PassValues};
use crate::shape::{Outputs, ProgramShape};
use crate::signature::{ProgramResult, ResultMeaning, RowState, Signature, StepInput};
use crate::state::StateLayout;
use crate::weights::Weights;

/// The name of a program's entry point.
pub const ENTRY: &str = "step";

/// A decoder program and its signature.
#[derive(Clone, Debug)]
pub struct Program {
    /// The module; [`ENTRY`] is its public function.
    pub module: Module,
    /// Its arguments and results.
    pub signature: Signature,
}

/// Writes `decoder` as a program for `shape`, with states of these `layouts`.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a decoder that graphs cannot express (element types, or packed weights
/// where dense ones are required).
pub fn decoder_program(
    decoder: &Decoder,
    numerics: Numerics,
    layouts: &[StateLayout],
    shape: &ProgramShape,
) -> Result<Program> {
    write(decoder, numerics, Signature::new(decoder, layouts, shape)?, shape)
}

/// Writes `decoder` as a program for `shape` with this signature.
pub(crate) fn write(
    decoder: &Decoder,
    numerics: Numerics,
    signature: Signature,
    shape: &ProgramShape,
) -> Result<Program> {
    let (ropes, walk) = (decoder.ropes(), Walk::new(decoder));
    let mut module = ModuleBuilder::new("decoder");
    module
        .function(ENTRY, |b| {
            let mut weights = Weights::new(decoder, numerics.operand);
            for argument in signature.weights.iter() {
                let value = b.argument(&argument.name, argument.ty.clone())?;
                weights.add(argument.weight, argument.part, value);
            }
            let mut residents = Vec::with_capacity(signature.residents.len());
            for argument in signature.residents.iter() {
                residents.push((argument.content, b.argument(&argument.name, argument.ty.clone())?));
            }
            let mut inputs = HashMap::new();
            for argument in &signature.inputs {
                inputs.insert(argument.input, b.argument(&argument.name, argument.ty.clone())?);
            }
            let input = |input: StepInput| inputs.get(&input).copied().ok_or_else(|| no_input(input));
            let mut states = vec![Vec::new(); signature.groups()];
            for argument in &signature.states {
                let state = b.argument(&argument.name, argument.ty.clone())?;
                b.alias(state, argument.becomes)?;
                states[argument.state.group].push(state);
            }
            let mut rotary = Vec::with_capacity(ropes.len());
            for (index, &rope) in ropes.iter().enumerate() {
                rotary.push((rope, (input(StepInput::Cos(index))?, input(StepInput::Sin(index))?)));
            }
            let [token_ids, positions, last] =
                [input(StepInput::Tokens)?, input(StepInput::Positions)?, input(StepInput::Last)?];
            // Where each row has one token, they stand in order already.
            let wanted =
                (shape.outputs == Outputs::Last && shape.tokens() != shape.rows.len()).then_some(last);
            let [types, input_states, firsts] = [StepInput::Types, StepInput::States, StepInput::Firsts]
                .map(|input| inputs.get(&input).copied());
            let texts = firsts.map(|firsts| TextRanges::new(b, firsts)).transpose()?;
            let (rows, tokens) = (&*shape.rows, token_ids);
            let pass =
                PassValues { rows, tokens, types, input_states, positions, last, texts, wanted, rotary };
            let mut adapters = Adapters::new(inputs.get(&StepInput::Adapters).copied());
            residents.into_iter().for_each(|(content, value)| adapters.add(content, value));
            let (written, selected) = (HashMap::new(), HashMap::new());
            let mut ops = GraphOps { b, weights, adapters, pass, states, written, selected };
            let Hidden { wanted: hidden, states: all } = walk.hidden(decoder, &mut ops)?;
            let logits = match (shape.outputs, &decoder.head) {
                (Outputs::Last | Outputs::Every, Some(head)) => Some(walk.logits(head, &hidden, &mut ops)?),
                (Outputs::Last | Outputs::Every, None) => return Err(no_head()),
                (Outputs::Hidden, _) => None,
            };
            let GraphOps { b, states, .. } = ops;
            let result = |result: &ProgramResult| match (result.meaning, logits) {
                (ResultMeaning::Best, Some(logits)) => best_tokens(b, logits),
                (ResultMeaning::Logits, Some(logits)) => Ok(logits),
                (ResultMeaning::State(RowState { row, group }), _) => Ok(states[group][row]),
                (ResultMeaning::States, _) => b.convert(all.unwrap_or(hidden), ElementType::F32),
                (ResultMeaning::Hidden | ResultMeaning::Best | ResultMeaning::Logits, _) => {
                    b.convert(hidden, ElementType::F32)
                }
            };
            signature.results.iter().map(result).collect()
        })
        .map_err(graph_error)?;
    Ok(Program { module: module.finish(), signature })
}

/// `[rows, 2]` i32: for each row of logits, the most likely token and the bits of its log probability.
fn best_tokens<'f>(b: &mut Builder<'f>, logits: Value<'f>) -> mlxcel_stablehlo::Result<Value<'f>> {
    let rows = b.shape(logits)[0];
    let (largest, token) = first_largest(b, logits)?;
    let total = b.log_sum_exp(logits, 1)?;
    let logprob = b.subtract(largest, total)?;
    let bits = b.bitcast_convert(logprob, ElementType::I32)?;
    let token = b.reshape(token, &[rows, 1])?;
    let bits = b.reshape(bits, &[rows, 1])?;
    b.concatenate(&[token, bits], 1)
}

/// The largest logit of each row and the first token that has it; where a logit is not a number, any token of
/// the vocabulary.
///
/// Two plain reductions become vector code, which one that carries value and index together does not: over
/// 128,256 logits it takes a twentieth of that one's time on IREE's CPU backend.
fn first_largest<'f>(
    b: &mut Builder<'f>,
    logits: Value<'f>,
) -> mlxcel_stablehlo::Result<(Value<'f>, Value<'f>)> {
    let shape = b.shape(logits);
    let largest = b.max(logits, &[1])?;
    let largest_of_row = b.expand(largest, &shape, &[1])?;
    let is_largest = b.compare(logits, largest_of_row, Comparison::Equal)?;
    let tokens = b.iota(TensorType::new(ElementType::I32, shape.clone()), 1)?;
    let last = b.splat(ElementType::I32, shape[1].saturating_sub(1) as f64, &shape)?;
    let candidates = b.select(is_largest, tokens, last)?;
    let token = b.reduce(candidates, Reduction::Min, &[1])?;
    Ok((largest, token))
}

fn no_head() -> mlxcel_stablehlo::Error {
    let message = "the decoder has no head, so its programs return hidden states only";
    mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Structure, "logits", message)
}

fn no_input(input: StepInput) -> mlxcel_stablehlo::Error {
    let message = format!("the signature has no input `{input}`");
    mlxcel_stablehlo::Error::new(mlxcel_stablehlo::ErrorKind::Name, "argument", message)
}

/// A mistake in building a graph: the checkpoint was validated before, so it is a defect of this crate.
fn graph_error(error: mlxcel_stablehlo::Error) -> Error {
    Error::new(ErrorKind::Internal, "build decoder", "the graph of this decoder is not well typed")
        .with_source(error)
}
