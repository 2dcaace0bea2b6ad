//! Dequantization of packed rows in plain operations.

use mlxcel_models::Part;
use mlxcel_models::packing::{Code, Offset, Packing, Scale};
use mlxcel_stablehlo::{Builder, ElementType, Error, ErrorKind, Literal, Result, TensorType, Value};

use super::operand_parts;

/// The values of rows whose `parts` are `[rows, width]` each, in the order of [`operand_parts`]: `[rows,
/// columns]` f32.
pub(super) fn values<'d>(b: &mut Builder<'d>, packing: Packing, parts: &[Value<'d>]) -> Result<Value<'d>> {
    let Rows { rows, columns, .. } = Rows::of(b, packing, parts[0]);
    let part =
        |wanted: Part| operand_parts(&packing).position(|part| part == wanted).map(|index| parts[index]);
    let grouped = [rows, columns / packing.group_size, packing.group_size];
    let codes = codes(b, packing, parts[0])?;
    let numbers = numbers(b, packing, codes)?;
    let numbers = b.reshape(numbers, &grouped)?;
    let scales = part(Part::Scales).unwrap_or(parts[0]);
    let scales = match packing.scale {
        Scale::Float(_) => b.convert(scales, ElementType::F32)?,
        Scale::E8M0 => powers_of_two(b, scales)?,
        Scale::E4M3 => looked_up(b, &Code::E4M3.numbers(8), scales)?,
        Scale::Bytes { groups, .. } => shared(b, scales, part(Part::ScaleFactors).unwrap_or(scales), groups)?,
    };
    let scales = b.expand(scales, &grouped, &[2])?;
    let scaled = b.multiply(scales, numbers)?;
    let values = match (packing.offset, part(Part::Offsets)) {
        (Offset::Float(_), Some(offsets)) => {
            let offsets = b.convert(offsets, ElementType::F32)?;
            let offsets = b.expand(offsets, &grouped, &[2])?;
            b.add(scaled, offsets)?
        }
        (Offset::Zeros, Some(zeros)) => {
            let zeros = b.convert(zeros, ElementType::F32)?;
            let zeros = b.expand(zeros, &grouped, &[2])?;
            let offsets = b.multiply(scales, zeros)?;
            b.subtract(scaled, offsets)?
        }
        (Offset::Bytes { groups, .. }, Some(offsets)) => {
            let offsets = shared(b, offsets, part(Part::OffsetFactors).unwrap_or(offsets), groups)?;
            let offsets = b.expand(offsets, &grouped, &[2])?;
            b.subtract(scaled, offsets)?
        }
        _ => scaled,
    };
    b.reshape(values, &[rows, columns])
}

/// Bytes times the floats that `groups` of them share: `[rows, n]` f32.
fn shared<'d>(b: &mut Builder<'d>, bytes: Value<'d>, factors: Value<'d>, groups: usize) -> Result<Value<'d>> {
    let shape = b.shape(bytes);
    let spread = [shape[0], shape[1] / groups, groups];
    let bytes = b.convert(bytes, ElementType::F32)?;
    let bytes = b.reshape(bytes, &spread)?;
    let factors = b.convert(factors, ElementType::F32)?;
    let factors = b.expand(factors, &spread, &[2])?;
    let product = b.multiply(factors, bytes)?;
    b.reshape(product, &shape)
}

/// The powers of two whose biased exponents are `bytes`.
fn powers_of_two<'d>(b: &mut Builder<'d>, bytes: Value<'d>) -> Result<Value<'d>> {
    let shape = b.shape(bytes);
    let exponents = b.convert(bytes, ElementType::U32)?;
    let place = b.splat(ElementType::U32, 23.0, &shape)?;
    let bits = b.shift_left(exponents, place)?;
    // 2^-127, whose exponent is 0, is not normal in f32; every other one is larger than its bits.
    let least = b.splat(ElementType::U32, f64::from(1 << 22), &shape)?;
    let bits = b.maximum(bits, least)?;
    b.bitcast_convert(bits, ElementType::F32)
}

/// The values of codes: `[rows, columns]` f32.
fn numbers<'d>(b: &mut Builder<'d>, packing: Packing, codes: Value<'d>) -> Result<Value<'d>> {
    match packing.code {
        Code::Integer { zero } => {
            let numbers = b.convert(codes, ElementType::F32)?;
            if zero == 0 {
                return Ok(numbers);
            }
            let shape = b.shape(numbers);
            let zero = b.splat(ElementType::F32, f64::from(zero), &shape)?;
            b.subtract(numbers, zero)
        }
        code => looked_up(b, &code.numbers(packing.bits), codes),
    }
}

/// The entries of a table by `indices`, in their shape.
fn looked_up<'d>(b: &mut Builder<'d>, table: &[f32], indices: Value<'d>) -> Result<Value<'d>> {
    let shape = b.shape(indices);
    let indices = b.convert(indices, ElementType::I32)?;
    let literal = Literal::new([table.len(), 1], table)
        .ok_or_else(|| Error::new(ErrorKind::Shape, "look up", "the codebook is not a valid tensor"))?;
    let table = b.constant(literal)?;
    let entries = b.take(table, indices)?;
    b.reshape(entries, &shape)
}

/// What the words of a weight's rows hold.
struct Rows {
    rows: usize,
    words: usize,
    columns: usize,
}

impl Rows {
    fn of<'d>(b: &Builder<'d>, packing: Packing, codes: Value<'d>) -> Self {
        let shape = b.shape(codes);
        let (rows, words) = (shape[0], shape[1]);
        Self { rows, words, columns: words * 32 / packing.bits }
    }
}

/// The codes, one an element: `[rows, columns]` u32.
fn codes<'d>(b: &mut Builder<'d>, packing: Packing, stream: Value<'d>) -> Result<Value<'d>> {
    let Rows { rows, words, columns } = Rows::of(b, packing, stream);
    let bits = packing.bits;
    if 32 % bits == 0 {
        let per_word = 32 / bits;
        let spread = [rows, words, per_word];
        let stream = b.broadcast_in_dim(stream, &spread, &[0, 1])?;
        let place = b.iota(TensorType::new(ElementType::U32, spread), 2)?;
        let width = b.splat(ElementType::U32, bits as f64, &spread)?;
        let shift = b.multiply(place, width)?;
        let shifted = b.shift_right_logical(stream, shift)?;
        let codes = masked(b, shifted, bits)?;
        return b.reshape(codes, &[rows, columns]);
    }
    // Eight codes are `bits` bytes, and none is in more than two of them.
    let bytes = b.bitcast_convert(stream, ElementType::U8)?;
    let bytes = b.reshape(bytes, &[rows, columns / 8, bits])?;
    let bytes = b.convert(bytes, ElementType::U32)?;
    let byte =
        |b: &mut Builder<'d>, index: usize| b.slice(bytes, &[0, 0, index], &[rows, columns / 8, index + 1]);
    let shape = [rows, columns / 8, 1];
    let mut codes = Vec::with_capacity(8);
    for index in 0..8 {
        let (first, shift) = (index * bits / 8, index * bits % 8);
        let mut code = byte(b, first)?;
        if shift + bits > 8 {
            let high = byte(b, first + 1)?;
            let place = b.splat(ElementType::U32, 8.0, &shape)?;
            let high = b.shift_left(high, place)?;
            code = b.or(code, high)?;
        }
        let shift = b.splat(ElementType::U32, shift as f64, &shape)?;
        let shifted = b.shift_right_logical(code, shift)?;
        codes.push(masked(b, shifted, bits)?);
    }
    let codes = b.concatenate(&codes, 2)?;
    b.reshape(codes, &[rows, columns])
}

/// The lowest `bits` of each element.
fn masked<'d>(b: &mut Builder<'d>, values: Value<'d>, bits: usize) -> Result<Value<'d>> {
    let shape = b.shape(values);
    let mask = b.splat(ElementType::U32, f64::from((1u32 << bits) - 1), &shape)?;
    b.and(values, mask)
}
