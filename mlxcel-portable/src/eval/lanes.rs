//! Lanes: the forms in which elements are computed, and how they are read from and written to memory.
//!
//! Floating-point elements are computed as `f32` and rounded to their own type after each operation; all
//! integers as `i64` and wrapped to their width after each operation; booleans as bytes 0 and 1. For
//! addition, subtraction, multiplication, division and square root, rounding an `f32` result once more to a
//! half type gives what computing in the half type would have given.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use mlxcel_stablehlo::ElementType;

use super::view::Linear;

/// How many elements a kernel computes at a time: small enough that its registers stay in the first-level
/// cache.
pub(super) const BLOCK: usize = 512;

/// The form in which elements are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    F32,
    I64,
    Bool,
}

impl Class {
    pub(super) fn of(element: ElementType) -> Self {
        match element {
            ElementType::F32 | ElementType::F16 | ElementType::BF16 => Self::F32,
            ElementType::I1 => Self::Bool,
            _ => Self::I64,
        }
    }
}

/// One computed element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar {
    F32(f32),
    I64(i64),
    Bool(bool),
}

impl Scalar {
    /// The first element of the dense `bytes`.
    pub(super) fn first(element: ElementType, bytes: &[u8]) -> Self {
        match Class::of(element) {
            Class::F32 => {
                let mut lane = [0.0];
                load_f32(bytes, element, 0, 0, &mut lane);
                Self::F32(lane[0])
            }
            Class::I64 => {
                let mut lane = [0];
                load_i64(bytes, element, 0, 0, &mut lane);
                Self::I64(lane[0])
            }
            Class::Bool => Self::Bool(bytes.first().is_some_and(|&byte| byte != 0)),
        }
    }
}

/// The bytes of element `at`, for an element type of `N` bytes.
fn element<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut element = [0; N];
    element.copy_from_slice(&bytes[at * N..(at + 1) * N]);
    element
}

/// Fills `lanes` from elements of `N` bytes at `at`, `at + stride`, …
#[inline]
fn load<const N: usize, T: Copy>(
    bytes: &[u8],
    at: usize,
    stride: usize,
    lanes: &mut [T],
    decode: impl Fn([u8; N]) -> T,
) {
    match stride {
        1 => {
            let (elements, _) = bytes[at * N..(at + lanes.len()) * N].as_chunks::<N>();
            for (lane, element) in lanes.iter_mut().zip(elements) {
                *lane = decode(*element);
            }
        }
        0 => lanes.fill(decode(element(bytes, at))),
        _ => {
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = decode(element(bytes, at + i * stride));
            }
        }
    }
}

/// The 4-bit element `at` in the low bits.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    (bytes[at / 2] >> (4 * (at % 2))) & 0xf
}

fn sign_extend_nibble(nibble: u8) -> i8 {
    ((nibble << 4) as i8) >> 4
}

fn load_nibbles<T: Copy>(bytes: &[u8], at: usize, stride: usize, lanes: &mut [T], decode: impl Fn(u8) -> T) {
    if stride == 0 {
        lanes.fill(decode(nibble(bytes, at)));
    } else if stride == 1 && at.is_multiple_of(2) {
        let packed = &bytes[at / 2..(at + lanes.len()).div_ceil(2)];
        let (pairs, last) = lanes.as_chunks_mut::<2>();
        for (pair, &byte) in pairs.iter_mut().zip(packed) {
            *pair = [decode(byte & 0xf), decode(byte >> 4)];
        }
        if let ([lane], Some(&byte)) = (last, packed.last()) {
            *lane = decode(byte & 0xf);
        }
    } else {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = decode(nibble(bytes, at + i * stride));
        }
    }
}

/// Reads elements `at`, `at + stride`, … as `f32`: floats exactly, integers rounded to nearest.
pub(super) fn load_f32(bytes: &[u8], element: ElementType, at: usize, stride: usize, lanes: &mut [f32]) {
    match element {
        ElementType::F32 if stride == 1 => {
            let bytes = &bytes[at * 4..(at + lanes.len()) * 4];
            bytemuck::cast_slice_mut::<f32, u8>(lanes).copy_from_slice(bytes);
        }
        ElementType::F32 => load(bytes, at, stride, lanes, f32::from_le_bytes),
        ElementType::BF16 => load(bytes, at, stride, lanes, |bits: [u8; 2]| {
            f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16)
        }),
        ElementType::F16 if stride == 1 => load_f16(&bytes[at * 2..(at + lanes.len()) * 2], lanes),
        ElementType::F16 => load(bytes, at, stride, lanes, |bits| f16::from_le_bytes(bits).to_f32()),
        ElementType::I64 => load(bytes, at, stride, lanes, |bits| i64::from_le_bytes(bits) as f32),
        ElementType::I32 => load(bytes, at, stride, lanes, |bits| i32::from_le_bytes(bits) as f32),
        ElementType::U32 => load(bytes, at, stride, lanes, |bits| u32::from_le_bytes(bits) as f32),
        ElementType::I8 => load(bytes, at, stride, lanes, |bits| f32::from(i8::from_le_bytes(bits))),
        ElementType::U8 => load(bytes, at, stride, lanes, |[byte]| f32::from(byte)),
        ElementType::I1 => load(bytes, at, stride, lanes, |[byte]| f32::from(u8::from(byte != 0))),
        ElementType::I4 => {
            load_nibbles(bytes, at, stride, lanes, |bits| f32::from(sign_extend_nibble(bits)));
        }
        ElementType::U4 => load_nibbles(bytes, at, stride, lanes, f32::from),
        _ => debug_assert!(false, "elements of this type are not evaluated"),
    }
}

/// Reads dense `f16` bytes at any address, with the processor's conversion where it has one.
fn load_f16(bytes: &[u8], lanes: &mut [f32]) {
    let mut halves = [f16::ZERO; BLOCK];
    for (bytes, lanes) in bytes.chunks(BLOCK * 2).zip(lanes.chunks_mut(BLOCK)) {
        let halves = &mut halves[..lanes.len()];
        bytemuck::cast_slice_mut::<f16, u8>(halves).copy_from_slice(bytes);
        halves.convert_to_f32_slice(lanes);
    }
}

/// Reads integer elements `at`, `at + stride`, …
pub(super) fn load_i64(bytes: &[u8], element: ElementType, at: usize, stride: usize, lanes: &mut [i64]) {
    match element {
        ElementType::I64 => load(bytes, at, stride, lanes, i64::from_le_bytes),
        ElementType::I32 => load(bytes, at, stride, lanes, |bits| i64::from(i32::from_le_bytes(bits))),
        ElementType::U32 => load(bytes, at, stride, lanes, |bits| i64::from(u32::from_le_bytes(bits))),
        ElementType::I8 => load(bytes, at, stride, lanes, |bits| i64::from(i8::from_le_bytes(bits))),
        ElementType::U8 => load(bytes, at, stride, lanes, |[byte]| i64::from(byte)),
        ElementType::I4 => {
            load_nibbles(bytes, at, stride, lanes, |bits| i64::from(sign_extend_nibble(bits)));
        }
        ElementType::U4 => load_nibbles(bytes, at, stride, lanes, i64::from),
        ElementType::I1 => load(bytes, at, stride, lanes, |[byte]| i64::from(byte != 0)),
        _ => debug_assert!(false, "floats are not loaded as integers"),
    }
}

/// Reads booleans `at`, `at + stride`, … as 0 and 1.
pub(super) fn load_bool(bytes: &[u8], at: usize, stride: usize, lanes: &mut [u8]) {
    load(bytes, at, stride, lanes, |[byte]| u8::from(byte != 0));
}

/// Writes `f32` lanes as dense floats of `element`, rounded to nearest with ties to even.
pub(super) fn store_f32(lanes: &[f32], element: ElementType, bytes: &mut [u8]) {
    match element {
        ElementType::BF16 => {
            for (bytes, &lane) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(lanes) {
                *bytes = bf16::from_f32(lane).to_le_bytes();
            }
        }
        ElementType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            for (bytes, lanes) in bytes.chunks_mut(BLOCK * 2).zip(lanes.chunks(BLOCK)) {
                let halves = &mut halves[..lanes.len()];
                halves.convert_from_f32_slice(lanes);
                bytes.copy_from_slice(bytemuck::cast_slice::<f16, u8>(halves));
            }
        }
        _ => bytes.copy_from_slice(bytemuck::cast_slice::<f32, u8>(lanes)),
    }
}

/// Writes integer lanes as dense integers of `element`, wrapped to its width.
pub(super) fn store_i64(lanes: &[i64], element: ElementType, bytes: &mut [u8]) {
    match element.bits() {
        64 => bytes.copy_from_slice(bytemuck::cast_slice::<i64, u8>(lanes)),
        32 => {
            for (bytes, &lane) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
                *bytes = (lane as i32).to_le_bytes();
            }
        }
        8 => {
            for (byte, &lane) in bytes.iter_mut().zip(lanes) {
                *byte = lane as u8;
            }
        }
        _ => {
            for (byte, pair) in bytes.iter_mut().zip(lanes.chunks(2)) {
                let high = pair.get(1).map_or(0, |&lane| lane as u8);
                *byte = (pair[0] as u8 & 0xf) | (high << 4);
            }
        }
    }
}

/// Rounds lanes to what `element` can hold, for the half types.
pub(super) fn round_f32(lanes: &mut [f32], element: ElementType) {
    match element {
        ElementType::BF16 => {
            for lane in lanes {
                *lane = bf16::from_f32(*lane).to_f32();
            }
        }
        ElementType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            for lanes in lanes.chunks_mut(BLOCK) {
                let halves = &mut halves[..lanes.len()];
                halves.convert_from_f32_slice(lanes);
                halves.convert_to_f32_slice(lanes);
            }
        }
        _ => {}
    }
}

/// The value that an integer of `element` holds after `value` was wrapped to its width.
pub(super) fn wrap(value: i64, element: ElementType) -> i64 {
    match element {
        ElementType::I32 => i64::from(value as i32),
        ElementType::U32 => i64::from(value as u32),
        ElementType::I8 => i64::from(value as i8),
        ElementType::U8 => i64::from(value as u8),
        ElementType::I4 => i64::from(sign_extend_nibble(value as u8 & 0xf)),
        ElementType::U4 => value & 0xf,
        _ => value,
    }
}

/// Copies elements of `size` bytes that `linear` orders, from the `start`-th on, into dense `target`.
pub(super) fn copy_elements(bytes: &[u8], size: usize, linear: &Linear, start: usize, target: &mut [u8]) {
    let count = target.len() / size;
    linear.runs(start, count, |position, first, stride, length| {
        let target = &mut target[position * size..(position + length) * size];
        if stride == 1 {
            target.copy_from_slice(&bytes[first * size..(first + length) * size]);
            return;
        }
        match size {
            1 => copy_strided::<1>(bytes, first, stride, target),
            2 => copy_strided::<2>(bytes, first, stride, target),
            4 => copy_strided::<4>(bytes, first, stride, target),
            _ => copy_strided::<8>(bytes, first, stride, target),
        }
    });
}

fn copy_strided<const N: usize>(bytes: &[u8], first: usize, stride: usize, target: &mut [u8]) {
    let (targets, _) = target.as_chunks_mut::<N>();
    if stride == 0 {
        targets.fill(element(bytes, first));
        return;
    }
    for (i, target) in targets.iter_mut().enumerate() {
        *target = element(bytes, first + i * stride);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_are_read_low_bits_first_at_any_start_and_stride() {
        let bytes = [0x21, 0x83, 0x0f];
        let mut lanes = [0; 5];
        load_i64(&bytes, ElementType::U4, 0, 1, &mut lanes);
        assert_eq!(lanes, [1, 2, 3, 8, 15]);
        load_i64(&bytes, ElementType::I4, 0, 1, &mut lanes);
        assert_eq!(lanes, [1, 2, 3, -8, -1]);
        load_i64(&bytes, ElementType::I4, 1, 1, &mut lanes[..4]);
        assert_eq!(lanes[..4], [2, 3, -8, -1]);
        load_i64(&bytes, ElementType::U4, 0, 2, &mut lanes[..3]);
        assert_eq!(lanes[..3], [1, 3, 15]);
    }

    #[test]
    fn nibbles_are_written_packed_with_a_clear_last_half() {
        let mut bytes = [0xff; 2];
        store_i64(&[-1, 3, -8], ElementType::I4, &mut bytes);
        assert_eq!(bytes, [0x3f, 0x08]);
    }

    #[test]
    fn wrapping_keeps_the_low_bits_with_the_sign_of_the_type() {
        assert_eq!(wrap(200, ElementType::I8), -56);
        assert_eq!(wrap(-1, ElementType::U8), 255);
        assert_eq!(wrap(9, ElementType::I4), -7);
        assert_eq!(wrap(-1, ElementType::U4), 15);
        assert_eq!(wrap(-1, ElementType::U32), 4_294_967_295);
        assert_eq!(wrap(1 << 31, ElementType::I32), -(1 << 31));
    }

    #[test]
    fn halves_round_to_nearest_even() {
        let mut lanes = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::NAN, f32::MAX];
        round_f32(&mut lanes, ElementType::BF16);
        assert_eq!(lanes[..2], [1.0, 1.015_625]);
        assert!(lanes[2].is_nan() && lanes[3] == f32::INFINITY);
        let mut lanes = [65519.0, 65520.0, 1.000_488_3];
        round_f32(&mut lanes, ElementType::F16);
        assert_eq!(lanes, [65504.0, f32::INFINITY, 1.0]);
    }
}
