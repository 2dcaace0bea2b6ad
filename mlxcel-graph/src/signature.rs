//! Signatures: the arguments and results of programs, as data.

use std::fmt;
use std::sync::Arc;

use mlxcel_core::Result;
use mlxcel_models::{Decoder, Part, WeightId, WeightRef, WeightRole};
use mlxcel_stablehlo::{ElementType, TensorType};

use crate::numerics::element_type;
use crate::packed::part_element;
use crate::resident::ResidentArgument;
use crate::shape::{Outputs, ProgramShape};
use crate::state::StateLayout;

/// The arguments and results of a decoder program.
///
/// The arguments are, in order, the [`weights`](Self::weights), which are constant, the
/// [`residents`](Self::residents), which the host rewrites between passes, the [`inputs`](Self::inputs) and
/// the [`states`](Self::states). Argument names are unique and are those of the module. All programs of a
/// model take the same weights and residents.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// The tensors of the weights.
    pub weights: Arc<[WeightArgument]>,
    /// The tensors that are rewritten between passes.
    pub residents: Arc<[ResidentArgument]>,
    /// The inputs of a step.
    pub inputs: Vec<InputArgument>,
    /// The states of sequences: for each row one per group of layers.
    pub states: Vec<StateArgument>,
    /// The results.
    pub results: Vec<ProgramResult>,
}

/// A weight tensor: a whole weight, or a part of a packed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightArgument {
    /// Its name in the program.
    pub name: String,
    /// The role of the weight.
    pub role: WeightRole,
    /// Which weight of the decoder it belongs to.
    pub weight: WeightId,
    /// The part of a packed weight; `None` for a dense one.
    pub part: Option<Part>,
    /// How its bytes are read from a checkpoint ([`Checkpoint::weight`](mlxcel_models::Checkpoint::weight)).
    pub tensor: WeightRef,
    /// Its type; elements are stored row-major.
    pub ty: TensorType,
}

/// An input of a step, from [`StepInputs::get`](crate::StepInputs::get).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputArgument {
    /// Its name in the program.
    pub name: String,
    /// Its meaning.
    pub input: StepInput,
    /// Its type.
    pub ty: TensorType,
}

/// The meaning of an input of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepInput {
    /// `[tokens]` i32: the token ids of all rows.
    Tokens,
    /// `[tokens]` i32: the types of the tokens. Only in programs of decoders with [token
    /// types](mlxcel_models::Decoder::token_types).
    Types,
    /// `[tokens, hidden]` f32: the hidden states that a draft head reads beside the tokens. Only in programs of
    /// decoders with [input states](Decoder::input_states).
    States,
    /// `[rows]` i32: the position of each row's first token.
    Positions,
    /// `[rows]` i32: the index, among the tokens of all rows, of each row's last one before padding.
    Last,
    /// `[tokens]` i32: for each token, the index of the first one of its text, and for padding its own. Only
    /// in programs of decoders that [read in both directions](Decoder::is_bidirectional), whose one row has
    /// several texts.
    Firsts,
    /// `[rows]` i32: the slot of the adapter of each row's sequence, negative without one. Only in programs
    /// with [residents](Signature::residents) for adapters.
    Adapters,
    /// `[tokens, rotary_dim / 2]` f32: cosines of the rotary embedding with this index ([`Decoder::ropes`]).
    Cos(usize),
    /// Sines of the same.
    Sin(usize),
}

impl fmt::Display for StepInput {
    /// Such as `cos.0`: the argument's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens => f.write_str("tokens"),
            Self::Types => f.write_str("types"),
            Self::States => f.write_str("states"),
            Self::Positions => f.write_str("positions"),
            Self::Last => f.write_str("last"),
            Self::Firsts => f.write_str("firsts"),
            Self::Adapters => f.write_str("adapters"),
            Self::Cos(rope) => write!(f, "cos.{rope}"),
            Self::Sin(rope) => write!(f, "sin.{rope}"),
        }
    }
}

/// The state of a group of layers for a row's sequence. Its storage is donated to a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateArgument {
    /// Its name in the program.
    pub name: String,
    /// Its row and group of layers.
    pub state: RowState,
    /// Its type.
    pub ty: TensorType,
    /// The index of the result that reuses its storage.
    pub becomes: usize,
}

/// A state of a program, by row and group of layers. Displays as the argument's name, such as `state.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowState {
    /// The row of the pass.
    pub row: usize,
    /// The group of layers, as [`state_layouts`](crate::state_layouts) numbers them.
    pub group: usize,
}

impl fmt::Display for RowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state.{}.{}", self.row, self.group)
    }
}

/// A result of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramResult {
    /// Its meaning.
    pub meaning: ResultMeaning,
    /// Its type.
    pub ty: TensorType,
}

/// The meaning of a result. Displays as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResultMeaning {
    /// `[output rows, 2]` i32: the most likely token and the bits of its log probability, a float32.
    Best,
    /// `[output rows, `[`logits`](Decoder::logits)`]` f32.
    Logits,
    /// `[output rows, hidden]` f32: hidden states after the last norm.
    Hidden,
    /// `[tokens, width]` f32: the hidden states of all tokens, beside logits. Only in programs of decoders that
    /// [return](Decoder::output_states) them.
    States,
    /// The updated state.
    State(RowState),
}

impl fmt::Display for ResultMeaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("best"),
            Self::Logits => f.write_str("logits"),
            Self::Hidden => f.write_str("hidden"),
            Self::States => f.write_str("states"),
            Self::State(state) => state.fmt(f),
        }
    }
}

impl Signature {
    /// The signature of the program of `decoder` for `shape`, with states of these `layouts` and without
    /// residents.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](mlxcel_core::ErrorKind::Unsupported) for element types that decoders do not
    /// support.
    pub fn new(decoder: &Decoder, layouts: &[StateLayout], shape: &ProgramShape) -> Result<Self> {
        let weights = weight_arguments(decoder)?.into();
        Ok(Self::with_tensors(weights, Arc::default(), decoder, layouts, shape))
    }

    /// As [`new`](Self::new), with the weights and residents of all programs of the model.
    pub fn with_tensors(
        weights: Arc<[WeightArgument]>,
        residents: Arc<[ResidentArgument]>,
        decoder: &Decoder,
        layouts: &[StateLayout],
        shape: &ProgramShape,
    ) -> Self {
        let (tokens, rows, outputs) = (shape.tokens(), shape.rows.len(), shape.output_rows());
        let result = |meaning, element, sizes: [usize; 2]| ProgramResult {
            meaning,
            ty: TensorType::new(element, sizes),
        };
        let mut results = match shape.outputs {
            Outputs::Last | Outputs::Every => vec![
                result(ResultMeaning::Best, ElementType::I32, [outputs, 2]),
                result(ResultMeaning::Logits, ElementType::F32, [outputs, decoder.logits()]),
            ],
            Outputs::Hidden => {
                vec![result(ResultMeaning::Hidden, ElementType::F32, [outputs, decoder.hidden_size])]
            }
        };
        let width = decoder.output_state_width().filter(|_| shape.outputs != Outputs::Hidden);
        results.extend(width.map(|width| result(ResultMeaning::States, ElementType::F32, [tokens, width])));
        let mut states = Vec::with_capacity(rows * layouts.len());
        for row in 0..rows {
            for (group, layout) in layouts.iter().enumerate() {
                let (state, ty) = (RowState { row, group }, layout.tensor_type(shape.length));
                let name = state.to_string();
                states.push(StateArgument { name, state, ty: ty.clone(), becomes: results.len() });
                results.push(ProgramResult { meaning: ResultMeaning::State(state), ty });
            }
        }
        let inputs = inputs(decoder, tokens, rows, !residents.is_empty());
        Self { weights, residents, inputs, states, results }
    }

    /// The name and type of every argument, in order.
    pub fn arguments(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        let weights = self.weights.iter().map(|weight| (weight.name.as_str(), &weight.ty));
        let residents = self.residents.iter().map(|resident| (resident.name.as_str(), &resident.ty));
        let inputs = self.inputs.iter().map(|input| (input.name.as_str(), &input.ty));
        weights
            .chain(residents)
            .chain(inputs)
            .chain(self.states.iter().map(|state| (state.name.as_str(), &state.ty)))
    }

    /// How many groups of layers keep states.
    pub(crate) fn groups(&self) -> usize {
        self.states.iter().map(|state| state.state.group + 1).max().unwrap_or_default()
    }

    /// The state whose storage a result reuses, if any.
    pub fn taken_over(&self, result: usize) -> Option<&StateArgument> {
        self.states.iter().find(|state| state.becomes == result)
    }
}

fn inputs(decoder: &Decoder, tokens: usize, rows: usize, has_adapters: bool) -> Vec<InputArgument> {
    let integers = |input, count| (input, TensorType::new(ElementType::I32, [count]));
    let step = [(StepInput::Tokens, tokens), (StepInput::Positions, rows), (StepInput::Last, rows)];
    let types = decoder.embedding.types.map(|_| (StepInput::Types, tokens));
    let firsts = decoder.is_bidirectional().then_some((StepInput::Firsts, tokens));
    let adapters = has_adapters.then_some((StepInput::Adapters, rows));
    let step = step
        .into_iter()
        .chain(types)
        .chain(firsts)
        .chain(adapters)
        .map(|(input, count)| integers(input, count));
    let floats = |width| TensorType::new(ElementType::F32, [tokens, width]);
    let states = decoder.input_states.map(|_| (StepInput::States, floats(decoder.hidden_size)));
    let rotary = decoder.ropes().into_iter().enumerate().flat_map(|(index, rope)| {
        let table = floats(rope.rotary_dim / 2);
        [(StepInput::Cos(index), table.clone()), (StepInput::Sin(index), table)]
    });
    let named = |(input, ty): (StepInput, TensorType)| InputArgument { name: input.to_string(), input, ty };
    step.chain(states).chain(rotary).map(named).collect()
}

/// The weight tensors of `decoder`, which are the first arguments of all its programs, in order.
///
/// A packed weight has one argument per part, in the order of
/// [`Packing::parts`](mlxcel_models::Packing::parts).
///
/// # Errors
///
/// [`ErrorKind::Unsupported`](mlxcel_core::ErrorKind::Unsupported) for element types that decoders do not
/// support.
pub fn weight_arguments(decoder: &Decoder) -> Result<Vec<WeightArgument>> {
    let mut arguments = Vec::new();
    for ((id, weight), role) in decoder.weights.ids().zip(decoder.weight_roles()) {
        let argument = |name, part, tensor: &WeightRef, element| WeightArgument {
            name,
            role,
            weight: id,
            part,
            tensor: tensor.clone(),
            ty: TensorType::new(element, tensor.stored_shape()),
        };
        let Some(packed) = &weight.packed else {
            let element = element_type(weight.element, &weight.tensor)?;
            arguments.push(argument(weight.to_string(), None, weight, element));
            continue;
        };
        for (tensor, part) in weight.tensors().zip(packed.packing.parts()) {
            let element = part_element(&packed.packing, part);
            arguments.push(argument(argument_name(weight, tensor, part), Some(part), tensor, element));
        }
    }
    Ok(arguments)
}

/// The name of the argument for a part of `weight`. Several parts may be read out of one tensor of a file,
/// and weights that are rows of one tensor share its order.
fn argument_name(weight: &WeightRef, tensor: &WeightRef, part: Part) -> String {
    let named = if part == Part::Order { weight } else { tensor };
    format!("{named} {part}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mlxcel_core::Precision;
    use mlxcel_models::Checkpoint;

    use super::*;
    use crate::{ENTRY, Numerics, decoder_program, state_layouts};

    fn open(fixture: &str) -> Decoder {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
        Checkpoint::open(folder).unwrap().decoder().unwrap()
    }

    #[test]
    fn rows_of_one_module_have_arguments_of_their_own() {
        let mut decoder = open("formats/gptq-act-order");
        let ordered =
            |weight: &&WeightRef| weight.packed.as_ref().is_some_and(|packed| packed.packing.ordered);
        let whole = decoder.weights().find(ordered).unwrap().clone();
        for start in [0, 8] {
            decoder.weights.add(whole.clone().rows(start, 8));
        }
        let named = |weight: &WeightRef| {
            let packed = weight.packed.as_ref().unwrap();
            let parts = weight.tensors().zip(packed.packing.parts());
            parts.map(|(tensor, part)| argument_name(weight, tensor, part)).collect::<Vec<_>>()
        };
        let mut names: Vec<_> = decoder.weights().filter(ordered).flat_map(named).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_signature_lists_inputs_and_outputs_of_the_module() {
        for fixture in ["architectures/llama", "storyteller-4bit", "architectures/qwen3"] {
            let decoder = open(fixture);
            let numerics = Numerics::new(Precision::Native, &decoder).unwrap();
            let layouts = state_layouts(&decoder, numerics, 64).unwrap();
            for outputs in [Outputs::Last, Outputs::Every, Outputs::Hidden] {
                let shape = ProgramShape { rows: vec![16, 1], length: 256, outputs };
                let program = decoder_program(&decoder, numerics, &layouts, &shape).unwrap();
                let (function, signature) = (program.module.function(ENTRY).unwrap(), &program.signature);
                assert_eq!(*signature, Signature::new(&decoder, &layouts, &shape).unwrap());
                let of_module = function.arguments.iter();
                let of_module =
                    of_module.map(|argument| (&*argument.name, function.value_type(argument.value)));
                assert!(of_module.eq(signature.arguments()), "{fixture} {shape}");
                let results = signature.results.iter().map(|result| &result.ty);
                assert!(function.result_types().eq(results), "{fixture} {shape}");
                for argument in &function.arguments {
                    let state = signature.states.iter().find(|state| state.name == argument.name);
                    assert_eq!(argument.aliases_result, state.map(|state| state.becomes));
                }
            }
        }
    }

    #[test]
    fn each_part_of_a_packed_weight_is_an_argument() {
        let arguments = weight_arguments(&open("storyteller-4bit")).unwrap();
        let shown: Vec<String> = arguments[..4]
            .iter()
            .map(|argument| {
                let part = argument.part.map_or_else(|| "whole".to_owned(), |part| part.to_string());
                format!("{} {part} of {} {}", argument.role, argument.tensor.tensor, argument.ty)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "embedding codes of model.embed_tokens.weight tensor<729x24xui32>",
                "embedding scales of model.embed_tokens.scales tensor<729x3xbf16>",
                "embedding offsets of model.embed_tokens.biases tensor<729x3xbf16>",
                "norms whole of model.layers.0.input_layernorm.weight tensor<192xbf16>",
            ]
        );
        let [codes, scales, offsets, _] = [0, 1, 2, 3].map(|index| arguments[index].weight);
        assert!(codes == scales && scales == offsets);
    }
}
