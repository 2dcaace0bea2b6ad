//! Printed floats give the same bits back, read as MLIR reads them.

use half::{bf16, f16};
use mlxcel_stablehlo::{Element, ElementType, Literal, Module};
use proptest::prelude::*;

/// The text between `dense<` and `>` of a program that is one constant.
fn printed<T: Element>(value: T) -> String {
    let module =
        Module::of_function("floats", "main", |b| Ok(vec![b.constant(Literal::scalar(value))?])).unwrap();
    let text = module.to_string();
    text.split_once("dense<").unwrap().1.split_once('>').unwrap().0.to_owned()
}

/// The bits that MLIR makes of a number: hexadecimal digits are bits, anything else is read as a double and
/// rounded.
fn read(text: &str, element: ElementType) -> u32 {
    if let Some(digits) = text.strip_prefix("0x") {
        assert_eq!(digits.len(), element.bits() / 4, "{text}");
        return u32::from_str_radix(digits, 16).unwrap();
    }
    let digits = text.trim_start_matches('-');
    let (whole, rest) = digits.split_once('.').unwrap();
    let (fraction, exponent) = rest.split_once('e').unwrap_or((rest, "0"));
    for part in [whole, fraction, exponent.trim_start_matches('-')] {
        assert!(!part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()), "{text}");
    }
    let value: f64 = text.parse().unwrap();
    match element {
        ElementType::F16 => f16::from_f64(value).to_bits().into(),
        ElementType::BF16 => bf16::from_f64(value).to_bits().into(),
        _ => (value as f32).to_bits(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn every_float_prints_exactly(bits: u32) {
        prop_assert_eq!(read(&printed(f32::from_bits(bits)), ElementType::F32), bits);
    }
}

#[test]
fn every_half_precision_float_prints_exactly() {
    for bits in 0..=u16::MAX {
        assert_eq!(read(&printed(f16::from_bits(bits)), ElementType::F16), u32::from(bits));
        assert_eq!(read(&printed(bf16::from_bits(bits)), ElementType::BF16), u32::from(bits));
    }
}
