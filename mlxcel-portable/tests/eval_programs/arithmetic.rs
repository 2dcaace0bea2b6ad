//! The arithmetic of single elements, through wider types than those of the elements.

use half::{bf16, f16};
use mlxcel_stablehlo::{BinaryOp, Comparison, ElementType, UnaryOp};

/// An element: floats of any type as `f32`, integers and truth values as `i64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum V {
    F(f32),
    I(i64),
}

impl V {
    pub(crate) fn f(self) -> f32 {
        match self {
            V::F(value) => value,
            V::I(value) => value as f32,
        }
    }

    pub(crate) fn i(self) -> i64 {
        match self {
            V::I(value) => value,
            V::F(value) => panic!("{value} is no integer"),
        }
    }
}

/// The value as an element of the type: rounded or wrapped.
pub(crate) fn fit(value: V, element: ElementType) -> V {
    match (value, element) {
        (V::F(x), ElementType::BF16) => V::F(bf16::from_f32(x).to_f32()),
        (V::F(x), ElementType::F16) => V::F(f16::from_f32(x).to_f32()),
        (V::I(x), ElementType::I64) => V::I(x),
        (V::I(x), _) if element.is_integer() => {
            let bits = element.bits() as u32;
            let low = (x as i128).rem_euclid(1 << bits);
            V::I(if element.is_signed() && low >= 1 << (bits - 1) { low - (1 << bits) } else { low } as i64)
        }
        _ => value,
    }
}

pub(crate) fn compare(comparison: Comparison, a: V, b: V) -> bool {
    let order = match (a, b) {
        (V::F(a), V::F(b)) => a.partial_cmp(&b),
        (a, b) => Some(a.i().cmp(&b.i())),
    };
    match comparison {
        Comparison::Equal => order.is_some_and(|o| o.is_eq()),
        Comparison::NotEqual => order.is_none_or(|o| o.is_ne()),
        Comparison::Less => order.is_some_and(|o| o.is_lt()),
        Comparison::LessOrEqual => order.is_some_and(|o| o.is_le()),
        Comparison::Greater => order.is_some_and(|o| o.is_gt()),
        Comparison::GreaterOrEqual => order.is_some_and(|o| o.is_ge()),
    }
}

/// The number of `digits` binary digits that is nearest to an integer, the even one of two.
fn nearest(x: i64, digits: u32) -> V {
    let magnitude = u128::from(x.unsigned_abs());
    let excess = (u128::BITS - magnitude.leading_zeros()).saturating_sub(digits);
    let (quotient, rest) = (magnitude >> excess, magnitude & ((1 << excess) - 1));
    let half = (1 << excess) / 2;
    let up = excess > 0 && (rest > half || (rest == half && quotient % 2 == 1));
    let rounded = ((quotient + u128::from(up)) << excess) as f32;
    V::F(if x < 0 { -rounded } else { rounded })
}

pub(crate) fn convert(value: V, to: ElementType) -> V {
    match (value, to) {
        (V::F(x), ElementType::I1) => V::I((x != 0.0).into()),
        (V::I(x), ElementType::I1) => V::I((x != 0).into()),
        (V::I(x), ElementType::BF16) => nearest(x, 8),
        (V::I(x), ElementType::F16) => match nearest(x, 11) {
            V::F(x) if x.abs() > 65504.0 => V::F(f32::INFINITY.copysign(x)),
            x => x,
        },
        (V::I(x), ElementType::F32) => V::F(x as f32),
        (V::F(x), _) if to.is_integer() => {
            // Truncated and kept within the range; the bounds of 64 bits are beyond what a float
            // distinguishes.
            let bits = to.bits() as i32;
            let (least, most) = if to.is_signed() {
                (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0)
            } else {
                (0.0, 2f64.powi(bits) - 1.0)
            };
            let x = f64::from(x).trunc();
            V::I(if x.is_nan() { 0 } else { x.clamp(least, most) as i64 })
        }
        _ => value,
    }
}

pub(crate) fn unary(op: UnaryOp, x: V, element: ElementType) -> V {
    if let V::I(x) = x {
        let bits = element.bits() as u32;
        let unsigned = (x as i128).rem_euclid(1 << bits) as u128;
        return V::I(match op {
            UnaryOp::Abs => x.wrapping_abs(),
            UnaryOp::Negate => x.wrapping_neg(),
            UnaryOp::Sign => x.signum(),
            UnaryOp::Not if element == ElementType::I1 => 1 - x,
            UnaryOp::Not => !x,
            UnaryOp::Popcnt => unsigned.count_ones().into(),
            UnaryOp::CountLeadingZeros => (unsigned.leading_zeros() - (128 - bits)).into(),
            _ => panic!("{op:?} of integers"),
        });
    }
    // Through f64, so that only the last rounding is the machine's.
    let x = x.f();
    let wide = f64::from(x);
    V::F(match op {
        UnaryOp::Abs => x.abs(),
        UnaryOp::Negate => -x,
        UnaryOp::Sign if x.is_nan() || x == 0.0 => x,
        UnaryOp::Sign => 1f32.copysign(x),
        UnaryOp::Exponential => wide.exp() as f32,
        UnaryOp::ExponentialMinusOne => wide.exp_m1() as f32,
        UnaryOp::Log => wide.ln() as f32,
        UnaryOp::LogPlusOne => wide.ln_1p() as f32,
        UnaryOp::Logistic => (1.0 / (1.0 + (-wide).exp())) as f32,
        UnaryOp::Tanh => wide.tanh() as f32,
        UnaryOp::Sine => wide.sin() as f32,
        UnaryOp::Cosine => wide.cos() as f32,
        UnaryOp::Sqrt => wide.sqrt() as f32,
        UnaryOp::Rsqrt => (1.0 / wide.sqrt()) as f32,
        UnaryOp::Cbrt => wide.cbrt() as f32,
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::RoundNearestEven => x.round_ties_even(),
        UnaryOp::RoundNearestAfz => x.round(),
        _ => panic!("{op:?} of floats"),
    })
}

pub(crate) fn binary(op: BinaryOp, a: V, b: V, element: ElementType) -> V {
    if let (V::I(a), V::I(b)) = (a, b) {
        let bits = element.bits() as i64;
        let in_width = (0..bits).contains(&b);
        let unsigned = (a as i128).rem_euclid(1 << bits);
        let signed = if unsigned >= 1 << (bits - 1) { unsigned - (1 << bits) } else { unsigned };
        let result = match op {
            BinaryOp::Add => i128::from(a) + i128::from(b),
            BinaryOp::Subtract => i128::from(a) - i128::from(b),
            BinaryOp::Multiply => i128::from(a) * i128::from(b),
            BinaryOp::Divide if b == 0 => -1,
            BinaryOp::Divide => i128::from(a) / i128::from(b),
            BinaryOp::Remainder if b == 0 => i128::from(a),
            BinaryOp::Remainder => i128::from(a) % i128::from(b),
            BinaryOp::Maximum => a.max(b).into(),
            BinaryOp::Minimum => a.min(b).into(),
            BinaryOp::Power if b < 0 => match a {
                1 => 1,
                -1 => 1 - 2 * i128::from(b.rem_euclid(2)),
                _ => 0,
            },
            BinaryOp::Power => {
                // In two parts, for the standard library takes exponents of 32 bits.
                let (high, low) = ((b >> 32) as u32, b as u32);
                let power = a.wrapping_pow(1 << 31).wrapping_pow(2).wrapping_pow(high);
                power.wrapping_mul(a.wrapping_pow(low)).into()
            }
            BinaryOp::And => (a & b).into(),
            BinaryOp::Or => (a | b).into(),
            BinaryOp::Xor => (a ^ b).into(),
            BinaryOp::ShiftLeft | BinaryOp::ShiftRightLogical if !in_width => 0,
            BinaryOp::ShiftLeft => (a as i128) << b,
            BinaryOp::ShiftRightLogical => unsigned >> b,
            BinaryOp::ShiftRightArithmetic => signed >> if in_width { b } else { 127 },
            BinaryOp::Atan2 => panic!("atan2 of integers"),
        };
        return fit(V::I(result as i64), element);
    }
    let (a, b) = (a.f(), b.f());
    let (wide_a, wide_b) = (f64::from(a), f64::from(b));
    let result = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide => a / b,
        BinaryOp::Maximum | BinaryOp::Minimum if a.is_nan() || b.is_nan() => f32::NAN,
        BinaryOp::Maximum => a.max(b),
        BinaryOp::Minimum => a.min(b),
        BinaryOp::Power => wide_a.powf(wide_b) as f32,
        BinaryOp::Remainder => a % b,
        BinaryOp::Atan2 => wide_a.atan2(wide_b) as f32,
        _ => panic!("{op:?} of floats"),
    };
    fit(V::F(result), element)
}
