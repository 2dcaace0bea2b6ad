//! Constants, bit for bit.

use half::{bf16, f16};

use crate::literal::Literal;
use crate::types::ElementType;

/// Up to as many elements are listed; more are written as the bytes of memory.
const LISTED: usize = 16;

/// `dense<…>` without the type.
pub(super) fn dense(literal: &Literal) -> String {
    let (ty, bytes) = (literal.ty(), literal.bytes());
    let count = ty.elements();
    if count == 0 {
        return "dense<>".to_owned();
    }
    let first = bits(ty.element, bytes, 0);
    if (1..count).all(|i| bits(ty.element, bytes, i) == first) {
        return format!("dense<{}>", element(ty.element, first));
    }
    // The bytes of 4-bit elements and of booleans in MLIR are a matter of its version: those are always
    // listed.
    if count > LISTED && ty.element.bits() >= 8 {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        return format!("dense<\"0x{digits}\">");
    }
    let mut text = String::from("dense<");
    let mut next = 0;
    nested(&ty.shape, &mut text, &mut || {
        next += 1;
        element(ty.element, bits(ty.element, bytes, next - 1))
    });
    text.push('>');
    text
}

/// Elements in one pair of brackets for each dimension.
fn nested(shape: &[usize], text: &mut String, next: &mut impl FnMut() -> String) {
    let Some((&size, inner)) = shape.split_first() else {
        text.push_str(&next());
        return;
    };
    text.push('[');
    for i in 0..size {
        if i > 0 {
            text.push_str(", ");
        }
        nested(inner, text, next);
    }
    text.push(']');
}

/// The bits of element `i`, at the low end.
fn bits(element: ElementType, bytes: &[u8], i: usize) -> u64 {
    match element.bits() {
        4 => u64::from(bytes[i / 2] >> (i % 2 * 4) & 0xf),
        1 => u64::from(bytes[i]),
        width => {
            let size = width / 8;
            bytes[i * size..(i + 1) * size].iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
        }
    }
}

fn element(element: ElementType, bits: u64) -> String {
    match element {
        ElementType::F32 | ElementType::F16 | ElementType::BF16 => float(element, bits as u32),
        ElementType::I1 => (bits != 0).to_string(),
        ElementType::I64 => (bits as i64).to_string(),
        ElementType::I32 => (bits as i32).to_string(),
        ElementType::I8 => (bits as i8).to_string(),
        ElementType::I4 => ((bits as i8) << 4 >> 4).to_string(),
        ElementType::U32 | ElementType::U8 | ElementType::U4 => bits.to_string(),
    }
}

/// A float in decimals where reading them back, through a double as MLIR does, gives the same bits; in
/// hexadecimal bits otherwise, as for infinities.
pub(super) fn float(element: ElementType, bits: u32) -> String {
    let value = match element {
        ElementType::F16 => f16::from_bits(bits as u16).to_f32(),
        ElementType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        _ => f32::from_bits(bits),
    };
    // Rust writes the fewest digits that give the value back; MLIR wants a point in them.
    let text = format!("{value:?}");
    let text = match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    };
    let again = text.parse::<f64>().ok().filter(|again| again.is_finite()).map(|again| match element {
        ElementType::F16 => u32::from(f16::from_f64(again).to_bits()),
        ElementType::BF16 => u32::from(bf16::from_f64(again).to_bits()),
        _ => (again as f32).to_bits(),
    });
    if again == Some(bits) {
        return text;
    }
    let digits = element.bits() / 4;
    format!("0x{bits:0digits$X}")
}
