//! The StableHLO names of operations.

use crate::module::{BinaryOp, Comparison, OpKind, Reduction};

impl Comparison {
    /// All comparisons.
    pub const ALL: [Self; 6] =
        [Self::Equal, Self::NotEqual, Self::Less, Self::LessOrEqual, Self::Greater, Self::GreaterOrEqual];

    /// The comparison direction in the StableHLO dialect.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "EQ",
            Self::NotEqual => "NE",
            Self::Less => "LT",
            Self::LessOrEqual => "LE",
            Self::Greater => "GT",
            Self::GreaterOrEqual => "GE",
        }
    }
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Product, Self::Max, Self::Min, Self::And, Self::Or];

    /// The binary operation that combines two elements.
    pub fn joins_by(self) -> BinaryOp {
        match self {
            Self::Sum => BinaryOp::Add,
            Self::Product => BinaryOp::Multiply,
            Self::Max => BinaryOp::Maximum,
            Self::Min => BinaryOp::Minimum,
            Self::And => BinaryOp::And,
            Self::Or => BinaryOp::Or,
        }
    }
}

impl OpKind {
    /// The name in the StableHLO dialect, without `stablehlo.`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Constant(_) => "constant",
            Self::Iota { .. } => "iota",
            Self::Reshape => "reshape",
            Self::BroadcastInDim { .. } => "broadcast_in_dim",
            Self::Transpose { .. } => "transpose",
            Self::Convert => "convert",
            Self::BitcastConvert => "bitcast_convert",
            Self::Slice { .. } => "slice",
            Self::DynamicSlice { .. } => "dynamic_slice",
            Self::DynamicUpdateSlice => "dynamic_update_slice",
            Self::Concatenate { .. } => "concatenate",
            Self::Pad { .. } => "pad",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::Unary(op) => op.name(),
            Self::Binary(op) => op.name(),
            Self::Compare(_) => "compare",
            Self::Select => "select",
            Self::Clamp => "clamp",
            Self::Reduce { .. } => "reduce",
            Self::ReduceArgMax { .. } => "reduce_argmax",
            Self::DotGeneral { .. } => "dot_general",
            Self::While => "while",
            Self::Composite { .. } => "composite",
            Self::Call { .. } => "call",
            Self::CustomCall { .. } => "custom_call",
        }
    }
}
