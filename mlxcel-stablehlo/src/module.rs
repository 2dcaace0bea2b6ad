//! The program as data: a [`Module`] of [`Function`]s of [`Op`]s over numbered values.
//!
//! Only [`Builder`](crate::Builder) and rewrites make these, and both check types, so every module is well
//! typed unless it was changed by hand. Printers, evaluators and lowerings traverse it.

pub use crate::elementwise::{BinaryOp, UnaryOp};
use crate::literal::Literal;
use crate::types::TensorType;

/// A value of one [`Function`]: the index of its type in [`Function::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// The index into [`Function::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A program: functions in the order in which they were made, which can call one another by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// The symbol name of the module.
    pub name: String,
    /// Public entry points and the private functions that composites decompose into.
    pub functions: Vec<Function>,
}

impl Module {
    /// The function called `name`.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// One function: typed arguments, a body, results.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The symbol name, unique in the module.
    pub name: String,
    /// Whether the function is an entry point; a private one is a decomposition or a callee.
    pub public: bool,
    /// The arguments, in order.
    pub arguments: Vec<Argument>,
    /// The type of every value of the function, region arguments and region-local values included.
    pub values: Vec<TensorType>,
    /// The operations, and the values that the function returns.
    pub body: Block,
}

impl Function {
    /// The type of `value`.
    pub fn value_type(&self, value: ValueId) -> &TensorType {
        &self.values[value.index()]
    }

    /// Adds a value of this type, to be the result of an operation that a rewrite adds. Without such an
    /// operation the function does not [verify](Module::verify).
    pub fn add_value(&mut self, ty: TensorType) -> ValueId {
        // As the builder's values, these are numbered in 32 bits: a program of more has no memory to be in.
        let value = ValueId(self.values.len() as u32);
        self.values.push(ty);
        value
    }

    /// The types that the function returns.
    pub fn result_types(&self) -> impl Iterator<Item = &TensorType> {
        self.body.results.iter().map(|&value| self.value_type(value))
    }
}

/// One argument of a [`Function`].
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// The name for callers, such as `kv.0` or `model.norm.weight`. It has no meaning within the program.
    pub name: String,
    /// Its value in the function.
    pub value: ValueId,
    /// The result that may reuse its storage: the caller donates the buffer (`tf.aliasing_output`).
    pub aliases_result: Option<usize>,
}

/// A sequence of operations: the body of a function or of a region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// A region's arguments; empty for a function's body, whose arguments are [`Function::arguments`].
    pub arguments: Vec<ValueId>,
    /// The operations in order; each uses only earlier values.
    pub ops: Vec<Op>,
    /// The values returned (`return`, `stablehlo.return`).
    pub results: Vec<ValueId>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// The operation with its attributes.
    pub kind: OpKind,
    /// The operands.
    pub operands: Vec<ValueId>,
    /// The results.
    pub results: Vec<ValueId>,
    /// Nested blocks: `[condition, body]` of while; otherwise empty. A region can
    /// read values of the enclosing blocks.
    pub regions: Vec<Block>,
}

/// The comparison of [`OpKind::Compare`], whose result is a tensor of booleans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the StableHLO comparison direction of that name")]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// The reduction of [`OpKind::Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum; the neutral element is zero.
    Sum,
    /// The product; the neutral element is one.
    Product,
    /// The maximum; the neutral element is minus infinity, or the smallest integer.
    Max,
    /// The minimum; the neutral element is infinity, or the largest integer.
    Min,
    /// Whether all are true.
    And,
    /// Whether any is true.
    Or,
}

/// How [`OpKind::Scatter`] combines an update with the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterUpdate {
    /// The update replaces it.
    Replace,
    /// The update is added to it.
    Add,
}

/// The dimension numbers of `dot_general`: batch dimensions come first in the result, contracting dimensions
/// are summed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DotDimensions {
    /// Batch dimensions of the left operand.
    pub lhs_batch: Vec<usize>,
    /// Batch dimensions of the right operand, in the order of the left's.
    pub rhs_batch: Vec<usize>,
    /// Contracting dimensions of the left operand.
    pub lhs_contracting: Vec<usize>,
    /// Contracting dimensions of the right operand, in the order of the left's.
    pub rhs_contracting: Vec<usize>,
}

/// The dimension numbers of `gather`, named as in the StableHLO specification (no batching dimensions).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GatherDimensions {
    /// Result dimensions that hold the gathered slices.
    pub offset_dims: Vec<usize>,
    /// Operand dimensions of slice size one that are dropped from the result.
    pub collapsed_slice_dims: Vec<usize>,
    /// The operand dimension that each index component addresses.
    pub start_index_map: Vec<usize>,
    /// The dimension of the indices that holds the components of one index.
    pub index_vector_dim: usize,
    /// The size of the slice in each operand dimension.
    pub slice_sizes: Vec<usize>,
}

/// The dimension numbers of `scatter`, named as in the StableHLO specification (no batching dimensions).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScatterDimensions {
    /// Update dimensions that hold the window.
    pub update_window_dims: Vec<usize>,
    /// Operand dimensions of window size one that updates do not have.
    pub inserted_window_dims: Vec<usize>,
    /// The operand dimension that each index component addresses.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// The dimension of the indices that holds the components of one index.
    pub index_vector_dim: usize,
}

/// An attribute of a composite or custom call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Attribute {
    /// A 64-bit integer.
    Int(i64),
    /// A 32-bit float.
    Float(f32),
    /// Text.
    Text(String),
    /// A boolean.
    Bool(bool),
}

/// The kind of an [`Op`], with its attributes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OpKind {
    /// A constant.
    Constant(Literal),
    /// Counts up from zero along `dimension`.
    Iota {
        /// The dimension that counts.
        dimension: usize,
    },
    /// The same elements in row-major order under another shape.
    Reshape,
    /// Operand dimension `i` becomes result dimension `dimensions[i]`; sizes of one are repeated.
    BroadcastInDim {
        /// Where each operand dimension goes.
        dimensions: Vec<usize>,
    },
    /// Result dimension `i` is operand dimension `permutation[i]`.
    Transpose {
        /// Which operand dimension each result dimension is.
        permutation: Vec<usize>,
    },
    /// Converts the element type.
    Convert,
    /// Reinterprets the bits as another element type; a change of width adds or removes a last dimension.
    BitcastConvert,
    /// A slice with static bounds.
    Slice {
        /// First index of each dimension.
        start: Vec<usize>,
        /// One past the last index of each dimension.
        limit: Vec<usize>,
        /// The step of each dimension.
        stride: Vec<usize>,
    },
    /// A slice of static size at scalar start indices (clamped to fit): `operand, start…`.
    DynamicSlice {
        /// The size of the part.
        sizes: Vec<usize>,
    },
    /// Writes the update over the operand at scalar start indices (clamped to fit): `operand, update,
    /// start…`.
    DynamicUpdateSlice,
    /// All operands, concatenated along `dimension`.
    Concatenate {
        /// The dimension that grows.
        dimension: usize,
    },
    /// `operand, value`: pads with the scalar `value` around and between elements; negative low and high
    /// padding removes elements.
    Pad {
        /// Elements added before each dimension.
        low: Vec<i64>,
        /// Elements added behind each dimension.
        high: Vec<i64>,
        /// Elements added between neighbours of each dimension.
        interior: Vec<usize>,
    },
    /// `operand, indices`: slices at run-time indices (clamped to fit).
    Gather {
        /// Which dimension means what.
        dimensions: GatherDimensions,
    },
    /// `operand, indices, updates`: writes windows at run-time indices; a window that does not fit is
    /// skipped.
    Scatter {
        /// Which dimension means what.
        dimensions: ScatterDimensions,
        /// How an update joins what is there.
        update: ScatterUpdate,
        /// The caller's promise that no two windows overlap.
        unique_indices: bool,
    },
    /// One operand, elementwise.
    Unary(UnaryOp),
    /// Two operands, elementwise.
    Binary(BinaryOp),
    /// Two operands compared, elementwise.
    Compare(Comparison),
    /// `condition, on_true, on_false`; the condition has the same shape, or is a scalar.
    Select,
    /// `minimum, operand, maximum`; the bounds have the same shape, or are scalars.
    Clamp,
    /// `operand`: reduces `dimensions` and removes them. The neutral element is implied.
    Reduce {
        /// How elements are joined.
        reduction: Reduction,
        /// The dimensions reduced, ascending.
        dimensions: Vec<usize>,
    },
    /// `values, indices`: the largest value along `dimension` and its index; two results. Ties go to the
    /// lowest index. NaN is never chosen over a number.
    ReduceArgMax {
        /// The dimension reduced.
        dimension: usize,
    },
    /// Contraction of two operands; the result's element type may be wider than the operands'.
    DotGeneral {
        /// Which dimensions are paired.
        dimensions: DotDimensions,
    },
    /// Loop-carried values, regions `[condition, body]`: runs the body while the condition holds.
    While,
    /// A named operation, defined by the private function `decomposition`.
    Composite {
        /// The name, such as `mlxcel.linear`.
        name: String,
        /// The function that defines it.
        decomposition: String,
        /// Facts for those who replace it.
        attributes: Vec<(String, Attribute)>,
    },
    /// Calls another function of the module.
    Call {
        /// Its name.
        function: String,
    },
    /// An operation that only a particular compiler knows.
    CustomCall {
        /// The name by which it knows it.
        target: String,
        /// Its attributes (`mhlo.backend_config`).
        attributes: Vec<(String, Attribute)>,
        /// Whether it must be kept though its results are unused.
        has_side_effect: bool,
    },
}
