//! The program as data: a [`Module`] of [`Function`]s of [`Op`]s over numbered values.
//!
//! Only [`Builder`](crate::Builder) and rewrites make these; both check types as they go, so whatever is in a
//! module is well typed. It can be walked (by printers, evaluators, lowerings) and rewritten.

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

/// A program: functions that can call one another by name, in the order in which they were made.
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

    /// A new value of this type, for an operation that a rewrite adds to make; until one does, the function does not
    /// [verify](Module::verify).
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
    /// What the caller knows it by, such as `kv.0` or `model.norm.weight`; not part of the program's meaning.
    pub name: String,
    /// The value that carries it.
    pub value: ValueId,
    /// The result whose storage it may share: the caller gives the buffer up (`tf.aliasing_output`).
    pub aliases_result: Option<usize>,
}

/// A straight line of operations: the body of a function or of a region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The values that a region is entered with; empty for a function's body, whose arguments stand apart.
    pub arguments: Vec<ValueId>,
    /// The operations in order; each uses only values made before it.
    pub ops: Vec<Op>,
    /// The values returned (`return`, `stablehlo.return`).
    pub results: Vec<ValueId>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What it does, with its attributes.
    pub kind: OpKind,
    /// What it reads.
    pub operands: Vec<ValueId>,
    /// What it makes.
    pub results: Vec<ValueId>,
    /// Nested blocks: `[condition, body]` of while, `[comparator]` of sort; empty otherwise. A region may read values
    /// of the enclosing blocks.
    pub regions: Vec<Block>,
}

/// Operations of two equal-typed operands, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the StableHLO operation of that name")]
pub enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    Maximum,
    Minimum,
    Power,
    Remainder,
    Atan2,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
}

/// Operations of one operand, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the StableHLO operation of that name")]
pub enum UnaryOp {
    Abs,
    Negate,
    Sign,
    Not,
    Exponential,
    ExponentialMinusOne,
    Log,
    LogPlusOne,
    Logistic,
    Tanh,
    Sine,
    Cosine,
    Sqrt,
    Rsqrt,
    Cbrt,
    Floor,
    Ceil,
    RoundNearestEven,
    RoundNearestAfz,
    CountLeadingZeros,
    Popcnt,
}

/// How [`OpKind::Compare`] compares; its result is of truth values.
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

/// How [`OpKind::Reduce`] joins elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum; the neutral element is zero.
    Sum,
    /// The product; the neutral element is one.
    Product,
    /// The largest; the neutral element is minus infinity, or the least integer.
    Max,
    /// The smallest; the neutral element is infinity, or the greatest integer.
    Min,
    /// Whether all are true.
    And,
    /// Whether any is true.
    Or,
}

/// How [`OpKind::Scatter`] joins an update with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterUpdate {
    /// The update replaces it.
    Replace,
    /// The update is added to it.
    Add,
}

/// The dimensions that `dot_general` pairs: batch dimensions lead the result, contracting ones are summed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DotDimensions {
    /// Batch dimensions of the left operand.
    pub lhs_batch: Vec<usize>,
    /// Batch dimensions of the right operand, pairwise with the left's.
    pub rhs_batch: Vec<usize>,
    /// Contracting dimensions of the left operand.
    pub lhs_contracting: Vec<usize>,
    /// Contracting dimensions of the right operand, pairwise with the left's.
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
    /// A truth value.
    Bool(bool),
}

/// What an [`Op`] does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OpKind {
    /// A value known when the program is made.
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
    /// Changes the element type, by value.
    Convert,
    /// Changes the element type, by bits; a change of width adds or removes a last dimension.
    BitcastConvert,
    /// A part with fixed bounds.
    Slice {
        /// First index of each dimension.
        start: Vec<usize>,
        /// One past the last index of each dimension.
        limit: Vec<usize>,
        /// The step of each dimension.
        stride: Vec<usize>,
    },
    /// A part of fixed size that starts where scalar operands say (clamped to fit): `operand, start…`.
    DynamicSlice {
        /// The size of the part.
        sizes: Vec<usize>,
    },
    /// The first operand with the second written over it where scalar operands say (clamped to fit): `operand, update, start…`.
    DynamicUpdateSlice,
    /// All operands one after another along `dimension`.
    Concatenate {
        /// The dimension that grows.
        dimension: usize,
    },
    /// `operand, value`: adds the scalar `value` around and between elements; negative low and high remove.
    Pad {
        /// Elements added in front of each dimension.
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
    /// `operand, indices, updates`: windows written at run-time indices; a window that does not fit is left out.
    Scatter {
        /// Which dimension means what.
        dimensions: ScatterDimensions,
        /// How an update joins what is there.
        update: ScatterUpdate,
        /// The caller's promise that no two windows overlap.
        unique_indices: bool,
    },
    /// One operand, element by element.
    Unary(UnaryOp),
    /// Two operands, element by element.
    Binary(BinaryOp),
    /// Two operands compared, element by element.
    Compare(Comparison),
    /// `condition, on_true, on_false`; the condition has the same shape, or is a scalar.
    Select,
    /// `minimum, operand, maximum`; the bounds have the same shape, or are scalars.
    Clamp,
    /// `operand`: joins elements along `dimensions`, which the result lacks. The neutral element is implied.
    Reduce {
        /// How elements are joined.
        reduction: Reduction,
        /// The dimensions reduced, ascending.
        dimensions: Vec<usize>,
    },
    /// `values, indices`: along `dimension`, the largest value and its index; of equal values the lowest index wins.
    /// Two results. A value that is not a number is never chosen over a number.
    ReduceArgMax {
        /// The dimension reduced.
        dimension: usize,
    },
    /// Contraction of two operands; the result's element type may be wider than the operands'.
    DotGeneral {
        /// Which dimensions are paired.
        dimensions: DotDimensions,
    },
    /// Carried values, regions `[condition, body]`: runs the body while the condition holds.
    While,
    /// Sorts all operands along `dimension` by the region `[comparator]` over pairs of scalars.
    Sort {
        /// The dimension sorted.
        dimension: usize,
        /// Whether equal elements keep their order.
        stable: bool,
    },
    /// An operation by `name` whose meaning is the private function `decomposition`.
    Composite {
        /// The name, such as `mlxcel.linear`.
        name: String,
        /// The function that it stands for.
        decomposition: String,
        /// Facts for those who replace it.
        attributes: Vec<(String, Attribute)>,
    },
    /// Calls another function of the module.
    Call {
        /// Its name.
        function: String,
    },
    /// Something that only a particular compiler knows.
    CustomCall {
        /// The name by which it knows it.
        target: String,
        /// Its attributes (`mhlo.backend_config`).
        attributes: Vec<(String, Attribute)>,
        /// Whether it must be kept though its results are unused.
        has_side_effect: bool,
    },
}
