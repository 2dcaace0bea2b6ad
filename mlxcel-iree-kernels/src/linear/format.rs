//! How a panel of weights is read and multiplied: element type, vector width and instructions.

use mlxcel_stablehlo::ElementType;

use crate::instructions::Instructions;
use crate::value::{Operand, Type};
use crate::vector_set::VectorSet;
use crate::view::View;
use crate::writer::Writer;

/// The format of panels of weights, and of the activations that they are multiplied by.
///
/// One load of a panel gives a *step*: for each lane as many consecutive inputs as the layout keeps together.
/// A step becomes one or two *units*: vectors that are multiplied by one broadcast number of each row of
/// activations. A unit has one float32 per lane, or, if the processor multiplies pairs of bfloat16, one pair
/// per lane. If it multiplies [matrices](super::matrices) of bfloat16, two steps become a unit of two
/// vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    weight: ElementType,
    instructions: Instructions,
    units: Units,
}

/// The elements of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// A float32 of each lane.
    Floats,
    /// A pair of bfloat16 of each lane.
    Pairs,
    /// Four bfloat16 of each lane, in two vectors of two lanes each.
    Matrices,
}

impl Format {
    /// Weights of a type; units are not floats if activations are bfloat16 as well and the processor
    /// multiplies them.
    pub(super) fn new(weight: ElementType, instructions: Instructions, units: Units) -> Self {
        Self { weight, instructions, units }
    }

    /// Whether units are multiplied with two rows at a time.
    pub(super) fn in_matrices(&self) -> bool {
        self.units == Units::Matrices
    }

    /// Outputs of a panel.
    pub(super) fn lanes(&self) -> usize {
        self.instructions.lanes()
    }

    /// Vector registers available for sums next to converted operands.
    pub(super) fn sums(&self) -> usize {
        self.instructions.registers() * 3 / 4
    }

    /// How many panels one row reads side by side.
    pub(super) fn streams(&self) -> usize {
        self.instructions.schedule.streams
    }

    /// The prefetch distance in bytes.
    pub(super) fn bytes_ahead(&self) -> usize {
        self.instructions.schedule.ahead
    }

    /// Vector registers available for sums next to operands that are converted on the fly.
    pub(super) fn streamed_sums(&self) -> usize {
        match self.instructions.set {
            VectorSet::Avx2 => self.instructions.registers() / 2,
            VectorSet::Avx512 | VectorSet::Neon => self.sums(),
        }
    }

    /// Inputs of a step.
    pub(super) fn depth(&self) -> usize {
        if self.weight == ElementType::BF16 { 2 } else { 1 }
    }

    /// Inputs of a unit.
    pub(super) fn unit_depth(&self) -> usize {
        match self.units {
            Units::Floats => 1,
            Units::Pairs => 2,
            Units::Matrices => 4,
        }
    }

    /// Units of a step; 1 if a unit takes several steps.
    pub(super) fn units(&self) -> usize {
        (self.depth() / self.unit_depth()).max(1)
    }

    /// Steps of a unit; 1 if a step has several units.
    pub(super) fn steps(&self) -> usize {
        (self.unit_depth() / self.depth()).max(1)
    }

    /// The type of sums.
    pub(super) fn sum(&self) -> Type {
        Type::vector(self.lanes(), "f32")
    }

    /// The type of what a unit is multiplied by per row: one activation, or several.
    pub(super) fn activation(&self) -> &'static str {
        match self.units {
            Units::Floats => "f32",
            Units::Pairs => "i32",
            Units::Matrices => "i64",
        }
    }

    /// The elements of a unit's vectors.
    pub(super) fn unit_element(&self) -> &'static str {
        if self.units == Units::Floats { "f32" } else { "i32" }
    }

    /// The element type of a step's load: an element for each lane.
    pub(super) fn stored(&self) -> &'static str {
        match self.weight {
            ElementType::BF16 => "i32",
            ElementType::F16 => "f16",
            _ => "f32",
        }
    }

    /// The bytes that a step of one panel is loaded from.
    pub(super) fn step_bytes(&self) -> usize {
        self.lanes() * self.weight.bytes_for(self.depth())
    }

    /// Whether kernels prefetch.
    pub(super) fn fetches_ahead(&self) -> bool {
        self.instructions.fetches_ahead()
    }

    /// Loads a step from the element `at` of `weights`, and makes its units.
    pub(super) fn load(&self, w: &mut Writer, weights: &View, at: &Operand) -> Vec<Operand> {
        let step = weights.load(w, "step", &[at], self.lanes());
        match self.weight {
            _ if self.units != Units::Floats => vec![step],
            ElementType::BF16 => w.halves("unit", &step).into(),
            ElementType::F16 => vec![w.cast("unit", "extf", &step, "f32")],
            _ => vec![step],
        }
    }

    /// Loads a last step of one input, where other steps have two, from the element `at` of `weights` as
    /// stored.
    pub(super) fn load_last(&self, w: &mut Writer, weights: &View, at: &Operand) -> Operand {
        let step = weights.load(w, "step", &[at], self.lanes());
        w.cast("unit", "extf", &step, "f32")
    }

    /// The activation at `at` of `x` in every lane.
    pub(super) fn broadcast(&self, w: &mut Writer, x: &View, at: &Operand) -> Operand {
        let activation = x.element(w, "x", &[at]);
        w.broadcast("broadcast", &activation, self.lanes())
    }

    /// `sum` and the product of a unit and a broadcast activation.
    pub(super) fn multiply_add(
        &self,
        w: &mut Writer,
        unit: &Operand,
        activation: &Operand,
        sum: &Operand,
    ) -> Operand {
        if self.units == Units::Floats {
            return w.fma("sum", unit, activation, sum);
        }
        let pairs = Type::vector(2 * self.lanes(), "bf16");
        let [unit, activation] = [unit, activation].map(|value| w.bitcast("pairs", value, pairs));
        let intrinsic = match self.instructions.set {
            VectorSet::Neon => "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
            _ => "llvm.x86.avx512bf16.dpbf16ps.512",
        };
        w.intrinsic("sum", intrinsic, &[sum, &unit, &activation], sum.ty)
    }
}
