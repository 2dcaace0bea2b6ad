//! The StableHLO names of operations.

use crate::module::{BinaryOp, Comparison, OpKind, Reduction, UnaryOp};

impl BinaryOp {
    /// All binary operations.
    pub const ALL: [Self; 15] = [
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::Divide,
        Self::Maximum,
        Self::Minimum,
        Self::Power,
        Self::Remainder,
        Self::Atan2,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::ShiftLeft,
        Self::ShiftRightArithmetic,
        Self::ShiftRightLogical,
    ];

    /// The name in the StableHLO dialect.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Subtract => "subtract",
            Self::Multiply => "multiply",
            Self::Divide => "divide",
            Self::Maximum => "maximum",
            Self::Minimum => "minimum",
            Self::Power => "power",
            Self::Remainder => "remainder",
            Self::Atan2 => "atan2",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
            Self::ShiftLeft => "shift_left",
            Self::ShiftRightArithmetic => "shift_right_arithmetic",
            Self::ShiftRightLogical => "shift_right_logical",
        }
    }
}

impl UnaryOp {
    /// All unary operations.
    pub const ALL: [Self; 21] = [
        Self::Abs,
        Self::Negate,
        Self::Sign,
        Self::Not,
        Self::Exponential,
        Self::ExponentialMinusOne,
        Self::Log,
        Self::LogPlusOne,
        Self::Logistic,
        Self::Tanh,
        Self::Sine,
        Self::Cosine,
        Self::Sqrt,
        Self::Rsqrt,
        Self::Cbrt,
        Self::Floor,
        Self::Ceil,
        Self::RoundNearestEven,
        Self::RoundNearestAfz,
        Self::CountLeadingZeros,
        Self::Popcnt,
    ];

    /// The name in the StableHLO dialect.
    pub fn name(self) -> &'static str {
        match self {
            Self::Abs => "abs",
            Self::Negate => "negate",
            Self::Sign => "sign",
            Self::Not => "not",
            Self::Exponential => "exponential",
            Self::ExponentialMinusOne => "exponential_minus_one",
            Self::Log => "log",
            Self::LogPlusOne => "log_plus_one",
            Self::Logistic => "logistic",
            Self::Tanh => "tanh",
            Self::Sine => "sine",
            Self::Cosine => "cosine",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Cbrt => "cbrt",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::RoundNearestEven => "round_nearest_even",
            Self::RoundNearestAfz => "round_nearest_afz",
            Self::CountLeadingZeros => "count_leading_zeros",
            Self::Popcnt => "popcnt",
        }
    }
}

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
            Self::Sort { .. } => "sort",
            Self::Composite { .. } => "composite",
            Self::Call { .. } => "call",
            Self::CustomCall { .. } => "custom_call",
        }
    }
}
