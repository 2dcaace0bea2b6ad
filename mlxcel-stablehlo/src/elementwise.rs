//! Elementwise operations: the tables from which their enums, names and methods of the builder come.

/// Passes the operations of two operands to a macro. The name of each is that of the StableHLO dialect.
macro_rules! binary_ops {
    ($macro:ident $($head:tt)*) => {
        $macro! {
            [$($head)*]
            /// `lhs + rhs`; integers wrap.
            add => Add;
            /// `lhs - rhs`; integers wrap.
            subtract => Subtract;
            /// `lhs × rhs`; integers wrap.
            multiply => Multiply;
            /// `lhs ÷ rhs`; integers truncate towards zero.
            divide => Divide;
            /// The maximum; NaN if either operand is NaN.
            maximum => Maximum;
            /// The minimum; NaN if either operand is NaN.
            minimum => Minimum;
            /// `lhs` to the power of `rhs`.
            power => Power;
            /// The remainder of `lhs ÷ rhs`, with the sign of `lhs`.
            remainder => Remainder;
            /// The angle of the point (`rhs`, `lhs`), in radians; floats.
            atan2 => Atan2;
            /// Logical or bitwise and; integers or booleans.
            and => And;
            /// Logical or bitwise or; integers or booleans.
            or => Or;
            /// Logical or bitwise exclusive or; integers or booleans.
            xor => Xor;
            /// `lhs` shifted left by `rhs` bits; zero for as many bits as the type has or more. Integers.
            shift_left => ShiftLeft;
            /// `lhs` shifted right by `rhs` bits, filled with its sign bit. Integers.
            shift_right_arithmetic => ShiftRightArithmetic;
            /// `lhs` shifted right by `rhs` bits, filled with zeros. Integers.
            shift_right_logical => ShiftRightLogical;
        }
    };
}
pub(crate) use binary_ops;

/// Passes the operations of one operand to a macro, as [`binary_ops`].
macro_rules! unary_ops {
    ($macro:ident $($head:tt)*) => {
        $macro! {
            [$($head)*]
            /// The magnitude; floats or signed integers.
            abs => Abs;
            /// The negation; integers wrap.
            negate => Negate;
            /// -1, 0 or 1; floats keep the sign of zero, and NaN. Floats or signed integers.
            sign => Sign;
            /// Logical or bitwise not; integers or booleans.
            not => Not;
            /// e to the power of the operand; floats.
            exponential => Exponential;
            /// e to the power of the operand, less one, exact near zero; floats.
            exponential_minus_one => ExponentialMinusOne;
            /// The natural logarithm; floats.
            log => Log;
            /// The natural logarithm of one more than the operand, exact near zero; floats.
            log_plus_one => LogPlusOne;
            /// 1 ÷ (1 + e to the power of minus the operand); floats.
            logistic => Logistic;
            /// The hyperbolic tangent; floats.
            tanh => Tanh;
            /// The sine of radians; floats.
            sine => Sine;
            /// The cosine of radians; floats.
            cosine => Cosine;
            /// The square root; floats.
            sqrt => Sqrt;
            /// One over the square root; floats.
            rsqrt => Rsqrt;
            /// The cube root; floats.
            cbrt => Cbrt;
            /// The largest integer that is not larger; floats.
            floor => Floor;
            /// The smallest integer that is not smaller; floats.
            ceil => Ceil;
            /// The nearest integer, ties to even; floats.
            round_nearest_even => RoundNearestEven;
            /// The nearest integer, ties away from zero; floats.
            round_nearest_afz => RoundNearestAfz;
            /// The number of zero bits above the highest set one; integers.
            count_leading_zeros => CountLeadingZeros;
            /// The number of set bits; integers.
            popcnt => Popcnt;
        }
    };
}
pub(crate) use unary_ops;

macro_rules! declare {
    ([$(#[$meta:meta])* $type:ident] $($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {$(
            $(#[$doc])*
            $op,
        )*}

        impl $type {
            /// All of them.
            pub const ALL: [Self; [$(stringify!($op)),*].len()] = [$(Self::$op),*];

            /// The name in the StableHLO dialect.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$op => stringify!($name),)*
                }
            }
        }
    };
}

binary_ops! { declare
    /// Elementwise operations of two operands of the same type.
    BinaryOp
}

unary_ops! { declare
    /// Elementwise operations of one operand.
    UnaryOp
}
