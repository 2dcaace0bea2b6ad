//! Programs of a model's matrices alone, by which schedules of kernels are compared before the model's
//! programs are compiled.

use std::collections::HashMap;
use std::fmt;

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_graph::layers;
use mlxcel_graph::packed::{PackedWeight, operand_parts, packed_linear, part_element};
use mlxcel_graph::{ProgramWriter, WeightArgument};
use mlxcel_iree_kernels::lower;
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_models::Packing;
use mlxcel_models::packing::Part;
use mlxcel_stablehlo::{Builder, ElementType, Module, TensorType, Value};

/// The matrices that most bytes of a model's weights are in: all of one shape, and stored or packed in one
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrialWeights {
    outputs: usize,
    inputs: usize,
    element: ElementType,
    packing: Option<Packing>,
    operand: ElementType,
    precision: Precision,
}

impl TrialWeights {
    /// Those of the model that `writer` writes programs of; `None` for a model without matrices.
    pub fn of(writer: &ProgramWriter) -> Option<Self> {
        let mut bytes: HashMap<Self, usize> = HashMap::new();
        for argument in writer.weights.iter() {
            let shape = &writer.decoder.weights.get(argument.weight).shape;
            if let Some(weights) = Self::of_argument(argument, shape, writer) {
                let matrices: usize = shape.iter().rev().skip(2).product();
                *bytes.entry(weights).or_default() += weights.bytes() * matrices;
            }
        }
        // Of equal sums the same one each time, whatever the map's order is.
        bytes
            .into_iter()
            .max_by_key(|(weights, bytes)| (*bytes, weights.to_string()))
            .map(|(weights, _)| weights)
    }

    fn of_argument(argument: &WeightArgument, shape: &[usize], writer: &ProgramWriter) -> Option<Self> {
        let &[.., outputs, inputs] = shape else { return None };
        let packed = &writer.decoder.weights.get(argument.weight).packed;
        let packing = packed.as_ref().map(|packed| packed.packing);
        let is_first = argument.part.is_none_or(|part| part == Part::Codes);
        let operand = if packing.is_some() { ElementType::F32 } else { writer.numerics.operand };
        (is_first && outputs > 1 && inputs > 1).then_some(Self {
            outputs,
            inputs,
            element: argument.ty.element,
            packing,
            operand,
            precision: writer.numerics.precision,
        })
    }

    /// Whether activations and weights are both in bfloat16.
    pub fn is_bf16(&self) -> bool {
        self.packing.is_none() && (self.element, self.operand) == (ElementType::BF16, ElementType::BF16)
    }

    /// The tensors of one matrix.
    pub fn parts(&self) -> Vec<TensorType> {
        match &self.packing {
            None => vec![TensorType::new(self.element, [self.outputs, self.inputs])],
            Some(packing) => operand_parts(packing)
                .map(|part| {
                    let width = packing.width(part, self.inputs);
                    TensorType::new(part_element(packing, part), [self.outputs, width])
                })
                .collect(),
        }
    }

    /// The size of one matrix.
    pub fn bytes(&self) -> usize {
        self.parts().iter().map(TensorType::bytes).sum()
    }

    /// The type of `rows` rows of activations.
    pub fn activations(&self, rows: usize) -> TensorType {
        TensorType::new(self.operand, [rows, self.inputs])
    }

    /// A program that multiplies `rows` rows of activations with each of `count` matrices, lowered for
    /// `target`. Its arguments are the activations and the tensors of each matrix.
    ///
    /// # Errors
    /// Those of writing and lowering a graph.
    pub fn program(&self, target: &ResolvedTarget, rows: usize, count: usize) -> Result<String> {
        let module = self.module(rows, count)?;
        Ok(lower(&module, target.hardware()?, self.precision)?.text)
    }

    fn module(&self, rows: usize, count: usize) -> Result<Module> {
        let written = Module::of_function("trial", Self::ENTRY, |b| {
            let x = b.argument("x", self.activations(rows))?;
            (0..count).map(|matrix| self.product(b, x, matrix)).collect()
        });
        written.map_err(|error| {
            Error::new(ErrorKind::Internal, "write a trial of kernels", "the graph is invalid")
                .with_source(error)
        })
    }

    /// The public function of the programs.
    pub const ENTRY: &'static str = "main";

    fn product<'f>(
        &self,
        b: &mut Builder<'f>,
        x: Value<'f>,
        matrix: usize,
    ) -> mlxcel_stablehlo::Result<Value<'f>> {
        let mut parts = Vec::new();
        for (part, ty) in self.parts().into_iter().enumerate() {
            parts.push(b.argument(format!("w{matrix}.{part}"), ty)?);
        }
        match self.packing {
            None => layers::linear(b, x, parts[0], None, ElementType::F32),
            Some(packing) => packed_linear(b, x, &PackedWeight { packing, parts }, None, ElementType::F32),
        }
    }
}

impl fmt::Display for TrialWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outputs, inputs, element, packing, operand, precision } = self;
        write!(f, "{outputs}x{inputs} ")?;
        match packing {
            Some(packing) => write!(f, "{packing}")?,
            None => write!(f, "{element}")?,
        }
        write!(f, ", activations {operand}, {precision}")
    }
}
