//! Elementwise operations on lanes.

use mlxcel_stablehlo::{BinaryOp, Comparison, ElementType, UnaryOp};

use super::lanes::wrap;

#[inline]
fn map<A: Copy, R>(a: &[A], result: &mut [R], f: impl Fn(A) -> R) {
    for (result, &a) in result.iter_mut().zip(a) {
        *result = f(a);
    }
}

#[inline]
fn zip<A: Copy, R>(a: &[A], b: &[A], result: &mut [R], f: impl Fn(A, A) -> R) {
    for ((result, &a), &b) in result.iter_mut().zip(a).zip(b) {
        *result = f(a, b);
    }
}

/// The larger of two floats as IEEE 754's `maximum`: NaN if either is, and +0 above -0.
#[inline]
pub(super) fn maximum(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }
}

/// The smaller of two floats as IEEE 754's `minimum`: NaN if either is, and -0 below +0.
#[inline]
pub(super) fn minimum(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() || (a == b && a.is_sign_negative()) { a } else { b }
}

pub(super) fn unary_f32(op: UnaryOp, a: &[f32], result: &mut [f32]) {
    match op {
        UnaryOp::Abs => map(a, result, f32::abs),
        UnaryOp::Negate => map(a, result, |a| -a),
        UnaryOp::Sign => map(a, result, |a| if a == 0.0 || a.is_nan() { a } else { a.signum() }),
        UnaryOp::Exponential => map(a, result, f32::exp),
        UnaryOp::ExponentialMinusOne => map(a, result, f32::exp_m1),
        UnaryOp::Log => map(a, result, f32::ln),
        UnaryOp::LogPlusOne => map(a, result, f32::ln_1p),
        UnaryOp::Logistic => map(a, result, |a| 1.0 / (1.0 + (-a).exp())),
        UnaryOp::Tanh => map(a, result, f32::tanh),
        UnaryOp::Sine => map(a, result, f32::sin),
        UnaryOp::Cosine => map(a, result, f32::cos),
        UnaryOp::Sqrt => map(a, result, f32::sqrt),
        UnaryOp::Rsqrt => map(a, result, |a| 1.0 / a.sqrt()),
        UnaryOp::Cbrt => map(a, result, f32::cbrt),
        UnaryOp::Floor => map(a, result, f32::floor),
        UnaryOp::Ceil => map(a, result, f32::ceil),
        UnaryOp::RoundNearestEven => map(a, result, f32::round_ties_even),
        UnaryOp::RoundNearestAfz => map(a, result, f32::round),
        UnaryOp::Not | UnaryOp::CountLeadingZeros | UnaryOp::Popcnt => {
            debug_assert!(false, "{op:?} has no floating-point form");
        }
    }
}

pub(super) fn binary_f32(op: BinaryOp, a: &[f32], b: &[f32], result: &mut [f32]) {
    match op {
        BinaryOp::Add => zip(a, b, result, |a, b| a + b),
        BinaryOp::Subtract => zip(a, b, result, |a, b| a - b),
        BinaryOp::Multiply => zip(a, b, result, |a, b| a * b),
        BinaryOp::Divide => zip(a, b, result, |a, b| a / b),
        BinaryOp::Maximum => zip(a, b, result, maximum),
        BinaryOp::Minimum => zip(a, b, result, minimum),
        BinaryOp::Power => zip(a, b, result, f32::powf),
        BinaryOp::Remainder => zip(a, b, result, |a, b| a % b),
        BinaryOp::Atan2 => zip(a, b, result, f32::atan2),
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::ShiftRightLogical => debug_assert!(false, "{op:?} has no floating-point form"),
    }
}

/// The bits of an integer of `element`, as an unsigned number.
fn bits_of(value: i64, element: ElementType) -> u64 {
    match element.bits() {
        64 => value as u64,
        bits => value as u64 & ((1 << bits) - 1),
    }
}

pub(super) fn unary_i64(op: UnaryOp, element: ElementType, a: &[i64], result: &mut [i64]) {
    match op {
        UnaryOp::Abs => map(a, result, |a| wrap(a.wrapping_abs(), element)),
        UnaryOp::Negate => map(a, result, |a| wrap(a.wrapping_neg(), element)),
        UnaryOp::Sign => map(a, result, i64::signum),
        UnaryOp::Not => map(a, result, |a| wrap(!a, element)),
        UnaryOp::Popcnt => map(a, result, |a| wrap(i64::from(bits_of(a, element).count_ones()), element)),
        UnaryOp::CountLeadingZeros => map(a, result, |a| {
            let unused = 64 - element.bits() as i64;
            wrap(i64::from(bits_of(a, element).leading_zeros()) - unused, element)
        }),
        _ => debug_assert!(false, "{op:?} has no integer form"),
    }
}

pub(super) fn binary_i64(op: BinaryOp, element: ElementType, a: &[i64], b: &[i64], result: &mut [i64]) {
    match op {
        BinaryOp::Add => zip(a, b, result, |a, b| wrap(a.wrapping_add(b), element)),
        BinaryOp::Subtract => zip(a, b, result, |a, b| wrap(a.wrapping_sub(b), element)),
        BinaryOp::Multiply => zip(a, b, result, |a, b| wrap(a.wrapping_mul(b), element)),
        BinaryOp::Divide => {
            zip(a, b, result, |a, b| wrap(if b == 0 { -1 } else { a.wrapping_div(b) }, element))
        }
        BinaryOp::Remainder => zip(a, b, result, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        BinaryOp::Maximum => zip(a, b, result, i64::max),
        BinaryOp::Minimum => zip(a, b, result, i64::min),
        BinaryOp::Power => zip(a, b, result, |a, b| wrap(power(a, b), element)),
        BinaryOp::And => zip(a, b, result, |a, b| a & b),
        BinaryOp::Or => zip(a, b, result, |a, b| a | b),
        BinaryOp::Xor => zip(a, b, result, |a, b| a ^ b),
        BinaryOp::ShiftLeft => {
            zip(a, b, result, |a, b| shift(element, b).map_or(0, |by| wrap(a << by, element)))
        }
        BinaryOp::ShiftRightLogical => zip(a, b, result, |a, b| {
            shift(element, b).map_or(0, |by| wrap((bits_of(a, element) >> by) as i64, element))
        }),
        BinaryOp::ShiftRightArithmetic => zip(a, b, result, |a, b| {
            // The sign of an unsigned integer is its highest bit.
            let unused = 64 - element.bits() as u32;
            let signed = (a << unused) >> unused;
            wrap(signed >> shift(element, b).unwrap_or(63), element)
        }),
        BinaryOp::Atan2 => debug_assert!(false, "{op:?} has no integer form"),
    }
}

/// The amount of a shift, or `None` if it is at least the width (a negative one counts as unsigned).
fn shift(element: ElementType, amount: i64) -> Option<u32> {
    u32::try_from(amount).ok().filter(|&by| (by as usize) < element.bits())
}

/// Integer power with wraparound; a negative exponent gives the quotient 1 / a^-b rounded towards zero, and 0
/// for base 0.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1i64, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    result
}

/// Booleans: addition and maximum are "or", multiplication and minimum "and".
pub(super) fn binary_bool(op: BinaryOp, a: &[u8], b: &[u8], result: &mut [u8]) {
    match op {
        BinaryOp::And | BinaryOp::Multiply | BinaryOp::Minimum => zip(a, b, result, |a, b| a & b),
        BinaryOp::Or | BinaryOp::Add | BinaryOp::Maximum => zip(a, b, result, |a, b| a | b),
        BinaryOp::Xor => zip(a, b, result, |a, b| a ^ b),
        _ => debug_assert!(false, "{op:?} has no form for truth values"),
    }
}

pub(super) fn not_bool(a: &[u8], result: &mut [u8]) {
    map(a, result, |a| a ^ 1);
}

/// Compares lanes; every comparison with NaN but `NotEqual` is false.
pub(super) fn compare<T: PartialOrd + Copy>(comparison: Comparison, a: &[T], b: &[T], result: &mut [u8]) {
    match comparison {
        Comparison::Equal => zip(a, b, result, |a, b| u8::from(a == b)),
        Comparison::NotEqual => zip(a, b, result, |a, b| u8::from(a != b)),
        Comparison::Less => zip(a, b, result, |a, b| u8::from(a < b)),
        Comparison::LessOrEqual => zip(a, b, result, |a, b| u8::from(a <= b)),
        Comparison::Greater => zip(a, b, result, |a, b| u8::from(a > b)),
        Comparison::GreaterOrEqual => zip(a, b, result, |a, b| u8::from(a >= b)),
    }
}

pub(super) fn select<T: Copy>(condition: &[u8], on_true: &[T], on_false: &[T], result: &mut [T]) {
    for (((result, &condition), &on_true), &on_false) in
        result.iter_mut().zip(condition).zip(on_true).zip(on_false)
    {
        *result = if condition != 0 { on_true } else { on_false };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(op: BinaryOp, element: ElementType, a: i64, b: i64) -> i64 {
        let mut result = [0];
        binary_i64(op, element, &[a], &[b], &mut result);
        result[0]
    }

    #[test]
    fn integers_wrap_at_their_width() {
        assert_eq!(integer(BinaryOp::Add, ElementType::I8, 127, 1), -128);
        assert_eq!(integer(BinaryOp::Subtract, ElementType::U8, 0, 1), 255);
        assert_eq!(integer(BinaryOp::Multiply, ElementType::U32, 0xffff_ffff, 0xffff_ffff), 1);
        assert_eq!(integer(BinaryOp::Add, ElementType::I64, i64::MAX, 1), i64::MIN);
        assert_eq!(integer(BinaryOp::Add, ElementType::U4, 15, 1), 0);
        assert_eq!(integer(BinaryOp::Power, ElementType::I32, 3, 21), i64::from(3i32.wrapping_pow(21)));
    }

    #[test]
    fn division_truncates_and_is_defined_for_zero_and_overflow() {
        assert_eq!(integer(BinaryOp::Divide, ElementType::I32, -7, 2), -3);
        assert_eq!(integer(BinaryOp::Remainder, ElementType::I32, -7, 2), -1);
        assert_eq!(integer(BinaryOp::Divide, ElementType::I32, 5, 0), -1);
        assert_eq!(integer(BinaryOp::Divide, ElementType::U8, 5, 0), 255);
        assert_eq!(integer(BinaryOp::Remainder, ElementType::I32, 5, 0), 5);
        assert_eq!(integer(BinaryOp::Divide, ElementType::I8, -128, -1), -128);
        assert_eq!(integer(BinaryOp::Divide, ElementType::I64, i64::MIN, -1), i64::MIN);
        assert_eq!(integer(BinaryOp::Remainder, ElementType::I64, i64::MIN, -1), 0);
    }

    #[test]
    fn shifts_beyond_the_width_give_zero_or_the_sign() {
        assert_eq!(integer(BinaryOp::ShiftLeft, ElementType::I32, 1, 31), i64::from(i32::MIN));
        assert_eq!(integer(BinaryOp::ShiftLeft, ElementType::I32, 1, 32), 0);
        assert_eq!(integer(BinaryOp::ShiftRightLogical, ElementType::I8, -1, 1), 127);
        assert_eq!(integer(BinaryOp::ShiftRightLogical, ElementType::I64, -1, 63), 1);
        assert_eq!(integer(BinaryOp::ShiftRightLogical, ElementType::I64, -1, 64), 0);
        assert_eq!(integer(BinaryOp::ShiftRightLogical, ElementType::U32, 0x8000_0000, 31), 1);
        assert_eq!(integer(BinaryOp::ShiftRightArithmetic, ElementType::I8, -128, 9), -1);
        assert_eq!(integer(BinaryOp::ShiftRightArithmetic, ElementType::I32, -5, 1), -3);
        assert_eq!(integer(BinaryOp::ShiftRightArithmetic, ElementType::I32, 5, -1), 0);
        assert_eq!(integer(BinaryOp::ShiftRightArithmetic, ElementType::U8, 0x80, 1), 0xc0);
    }

    #[test]
    fn bit_counts_use_only_the_types_width() {
        let mut result = [0; 2];
        unary_i64(UnaryOp::Popcnt, ElementType::I8, &[-1, 5], &mut result);
        assert_eq!(result, [8, 2]);
        unary_i64(UnaryOp::CountLeadingZeros, ElementType::I32, &[0, 1], &mut result);
        assert_eq!(result, [32, 31]);
        unary_i64(UnaryOp::Not, ElementType::U8, &[0, 0xf0], &mut result);
        assert_eq!(result, [255, 15]);
    }

    #[test]
    fn extrema_of_floats_keep_nan_and_order_zeros() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(maximum(a, b).is_nan() && minimum(a, b).is_nan());
        }
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            assert!(maximum(a, b).is_sign_positive() && minimum(a, b).is_sign_negative());
        }
    }

    #[test]
    fn float_rounding_and_sign_follow_the_specification() {
        let mut result = [0.0; 4];
        unary_f32(UnaryOp::RoundNearestEven, &[0.5, 1.5, -2.5, 2.6], &mut result);
        assert_eq!(result, [0.0, 2.0, -2.0, 3.0]);
        unary_f32(UnaryOp::RoundNearestAfz, &[0.5, 1.5, -2.5, 2.6], &mut result);
        assert_eq!(result, [1.0, 2.0, -3.0, 3.0]);
        unary_f32(UnaryOp::Sign, &[-3.0, 0.0, f32::NAN, f32::INFINITY], &mut result);
        assert!(result[0] == -1.0 && result[1] == 0.0 && result[2].is_nan() && result[3] == 1.0);
    }
}
