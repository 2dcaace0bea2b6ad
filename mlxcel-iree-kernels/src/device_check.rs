//! A small computation with known results, by which a device is tested before it is given a model.
//!
//! Compilers and drivers of GPUs have been seen to load narrow values from wrong places and to sum with a
//! subgroup size that the device does not have; neither is an error. The computation has what such faults
//! change: for every element type that weights are stored in, products with one and with several rows, and
//! sums. All values are small integers, so every order of summation gives the same results.

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_stablehlo::ElementType::{self, BF16, F16, F32, I8, I32, U8, U32};
use mlxcel_stablehlo::{Builder, Module, TensorType, Value};

use crate::hardware::Hardware;
use crate::lower::lower;

/// The public function of the program.
pub const ENTRY: &str = "main";

/// The types of weights. Words of 32 bits have eight codes each.
const ELEMENTS: [ElementType; 7] = [F32, BF16, F16, I8, U8, I32, U32];
/// Codes in a word.
const CODES: usize = 8;
const ROWS: usize = 4;
const OUTPUTS: usize = 48;
const INPUTS: usize = 192;

/// The text of the program for `hardware`.
///
/// # Errors
/// Those of [`lower`]; [`ErrorKind::Internal`] for a graph that is not valid.
pub fn program(hardware: Hardware) -> Result<String> {
    let written = Module::of_function("device_check", ENTRY, |b| {
        let x = b.argument("x", TensorType::new(F32, [ROWS, INPUTS]))?;
        let mut results = Vec::new();
        for element in ELEMENTS {
            let w = b.argument(element.mlir(), stored_type(element))?;
            let one = b.slice(x, &[0, 0], &[1, INPUTS])?;
            for x in [one, x] {
                let w = decoded(b, element, w)?;
                results.push(b.linear(x, w, None, F32)?);
            }
            let w = decoded(b, element, w)?;
            let w = b.convert(w, F32)?;
            results.push(b.sum(w, &[1])?);
        }
        Ok(results)
    });
    let module = written.map_err(|error| {
        Error::new(ErrorKind::Internal, "write the check of a device", "the graph is invalid")
            .with_source(error)
    })?;
    Ok(lower(&module, hardware, Precision::Exact)?.text)
}

/// The weights as products take them.
fn decoded<'f>(
    b: &mut Builder<'f>,
    element: ElementType,
    w: Value<'f>,
) -> mlxcel_stablehlo::Result<Value<'f>> {
    match element {
        BF16 | F16 | F32 => Ok(w),
        U32 => {
            let spread = [OUTPUTS, INPUTS / CODES, CODES];
            let words = b.broadcast_in_dim(w, &spread, &[0, 1])?;
            let place = b.iota(TensorType::new(U32, spread), 2)?;
            let bits = b.splat(U32, (32 / CODES) as f64, &spread)?;
            let shift = b.multiply(place, bits)?;
            let shifted = b.shift_right_logical(words, shift)?;
            let mask = b.splat(U32, 15.0, &spread)?;
            let codes = b.and(shifted, mask)?;
            let codes = b.convert(codes, F32)?;
            b.reshape(codes, &[OUTPUTS, INPUTS])
        }
        _ => b.convert(w, F32),
    }
}

fn stored_type(element: ElementType) -> TensorType {
    let width = if element == U32 { INPUTS / CODES } else { INPUTS };
    TensorType::new(element, [OUTPUTS, width])
}

/// The arguments in order, with their bytes.
pub fn arguments() -> Vec<(TensorType, Vec<u8>)> {
    let x = (0..ROWS * INPUTS).flat_map(|index| (activation(index) as f32).to_le_bytes()).collect();
    let x = (TensorType::new(F32, [ROWS, INPUTS]), x);
    let weights = ELEMENTS.map(|element| {
        let values = (0..OUTPUTS * INPUTS).map(|index| weight(element, index));
        let bytes = match element {
            F32 => values.flat_map(|value| (value as f32).to_le_bytes()).collect(),
            BF16 => values.flat_map(|value| [2, 3].map(|byte| (value as f32).to_le_bytes()[byte])).collect(),
            F16 => values.flat_map(|value| half(value).to_le_bytes()).collect(),
            I32 => values.flat_map(i32::to_le_bytes).collect(),
            U32 => {
                let codes: Vec<u32> = values.map(|value| value as u32).collect();
                let word = |codes: &[u32]| codes.iter().rev().fold(0, |word, code| word << 4 | code);
                codes.chunks(CODES).flat_map(|codes| word(codes).to_le_bytes()).collect()
            }
            _ => values.map(|value| value as u8).collect(),
        };
        (stored_type(element), bytes)
    });
    std::iter::once(x).chain(weights).collect()
}

/// The results in order, each with the element type that it tests.
pub fn results() -> Vec<(ElementType, Vec<f32>)> {
    let mut results = Vec::new();
    for element in ELEMENTS {
        let product = |row: usize, output: usize| -> i32 {
            let terms = (0..INPUTS)
                .map(|input| activation(row * INPUTS + input) * weight(element, output * INPUTS + input));
            terms.sum()
        };
        for rows in [1, ROWS] {
            let products = (0..rows).flat_map(|row| (0..OUTPUTS).map(move |output| (row, output)));
            results.push((element, products.map(|(row, output)| product(row, output) as f32).collect()));
        }
        let sum =
            |output| (0..INPUTS).map(|input| weight(element, output * INPUTS + input)).sum::<i32>() as f32;
        results.push((element, (0..OUTPUTS).map(sum).collect()));
    }
    results
}

/// From -3 to 3, and without a period that divides the dimensions.
fn activation(index: usize) -> i32 {
    (index * 5 % 7) as i32 - 3
}

/// From -8 to 7, or from 0 to 15 of unsigned types; other values at the places of each type.
fn weight(element: ElementType, index: usize) -> i32 {
    let code = ((index * 7 + element as usize) % 31 % 16) as i32;
    if matches!(element, U8 | U32) { code } else { code - 8 }
}

/// The bits in float16 of a small integer.
fn half(value: i32) -> u16 {
    let sign = if value < 0 { 1 << 15 } else { 0 };
    let magnitude = value.unsigned_abs() as u16;
    if magnitude == 0 {
        return sign;
    }
    let exponent = magnitude.ilog2() as u16;
    sign | (exponent + 15) << 10 | (magnitude << (10 - exponent)) & 0x3ff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_the_bytes_of_their_types() {
        for (ty, bytes) in arguments() {
            assert_eq!(ty.bytes(), bytes.len(), "{ty:?}");
        }
        assert_eq!([0, 1, -3, 7].map(half), [0, 0x3c00, 0xc200, 0x4700]);
        assert_eq!(results().len(), 3 * ELEMENTS.len());
    }
}
