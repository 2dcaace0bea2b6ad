//! Reference decoding of packed rows, which tests compare kernels and graphs with: compiled where it is used,
//! with the optimizations of the crate that decodes whole models.

use mlxcel_core::{Error, ErrorKind, Result};

use super::codebook::{e4m3, e8m0};
use super::{Offset, Packing, Part, Scale};
use crate::element::ElementType;

/// Decodes a row into `values` from the bytes of its `parts`, in the order of [`Packing::parts`] without
/// [`Part::Order`]: value `j` is that of column `j`.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] for parts whose lengths do not match a row of that many values.
#[inline]
pub fn decode_row(packing: &Packing, parts: &[&[u8]], values: &mut [f32]) -> Result<()> {
    packing.check(values.len())?;
    let columns = values.len();
    let names: Vec<_> = packing.parts().filter(|part| *part != Part::Order).collect();
    let fits = |(part, bytes): (&Part, &&[u8])| {
        Some(bytes.len()) == packing.element(*part).byte_len(packing.width(*part, columns))
    };
    if names.len() != parts.len() || !names.iter().zip(parts).all(fits) {
        let message = format!("these are not the parts of {columns} values packed as {packing}");
        return Err(Error::new(ErrorKind::InvalidInput, "decode packed row", message));
    }
    let part = |wanted: Part| {
        let found = names.iter().zip(parts).find(|(part, _)| **part == wanted);
        found.map(|(_, bytes)| *bytes).unwrap_or_default()
    };
    let float = |wanted: Part, index: usize| float(packing.element(wanted), part(wanted), index);
    let byte = |wanted: Part, index: usize| part(wanted).get(index).copied().unwrap_or_default();
    let codes = part(Part::Codes);
    for (group, group_values) in values.chunks_exact_mut(packing.group_size).enumerate() {
        let scale = match packing.scale {
            Scale::Float(_) => float(Part::Scales, group),
            Scale::E8M0 => e8m0(byte(Part::Scales, group)),
            Scale::E4M3 => e4m3(byte(Part::Scales, group)),
            Scale::Bytes { signed, groups, .. } => {
                let byte = byte(Part::Scales, group);
                let number = if signed { f32::from(byte.cast_signed()) } else { f32::from(byte) };
                float(Part::ScaleFactors, group / groups) * number
            }
        };
        let offset = match packing.offset {
            Offset::None => None,
            Offset::Float(_) => Some(float(Part::Offsets, group)),
            Offset::Zeros => Some(-(scale * f32::from(byte(Part::Offsets, group)))),
            Offset::Bytes { groups, .. } => {
                Some(-(float(Part::OffsetFactors, group / groups) * f32::from(byte(Part::Offsets, group))))
            }
        };
        for (index, value) in group_values.iter_mut().enumerate() {
            let number = packing.code.number(code(codes, group * packing.group_size + index, packing.bits));
            *value = scale * number;
            if let Some(offset) = offset {
                *value += offset;
            }
        }
    }
    Ok(())
}

/// Code `index` of a stream of codes of `bits` bits.
#[inline]
fn code(stream: &[u8], index: usize, bits: usize) -> u8 {
    let (first, shift) = (index * bits / 8, index * bits % 8);
    let byte = |index: usize| u16::from(stream.get(index).copied().unwrap_or_default());
    let window = byte(first) | byte(first + 1) << 8;
    // The mask leaves 8 bits at most.
    (window >> shift & ((1 << bits) - 1)) as u8
}

/// Element `index` of floats of type `element`.
#[inline]
fn float(element: ElementType, bytes: &[u8], index: usize) -> f32 {
    let two = || bytes.as_chunks().0.get(index).copied().unwrap_or_default();
    match element {
        ElementType::F16 => half::f16::from_le_bytes(two()).to_f32(),
        ElementType::BF16 => half::bf16::from_le_bytes(two()).to_f32(),
        _ => f32::from_le_bytes(bytes.as_chunks().0.get(index).copied().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Code;
    use super::*;

    #[test]
    fn codes_of_every_width_are_a_stream_of_bits() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let packing = Packing::symmetric(bits, 1, 32, ElementType::F32);
            let wanted: Vec<u8> =
                (0..64u8).map(|index| index.wrapping_mul(37) & ((1u16 << bits) - 1) as u8).collect();
            let mut stream = vec![0u8; 64 * bits / 8];
            for (index, code) in wanted.iter().enumerate() {
                for bit in (0..bits).filter(|bit| code >> bit & 1 == 1) {
                    let at = index * bits + bit;
                    stream[at / 8] |= 1 << (at % 8);
                }
            }
            let scales: Vec<u8> = [0.5f32, -2.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
            let mut values = vec![0.0; 64];
            decode_row(&packing, &[&stream, &scales], &mut values).unwrap();
            for (index, (value, code)) in values.iter().zip(&wanted).enumerate() {
                let scale = if index < 32 { 0.5 } else { -2.0 };
                assert_eq!(*value, scale * (f32::from(*code) - 1.0), "{bits} bits, value {index}");
            }
        }
    }

    #[test]
    fn every_kind_of_scale_and_offset_applies() {
        const TWO: [u8; 4] = 2f32.to_le_bytes();
        const HALF: [u8; 2] = 0x3800u16.to_le_bytes();
        const SIX: [u8; 2] = 0x40c0u16.to_le_bytes();
        // The codes are 3.
        for (packing, scales, wanted) in [
            ("u4/8 f32", &[&TWO[..]][..], 6.0),
            ("u4/8 f16 - u8*scale", &[&HALF, &[2]], 0.5),
            ("u4/8 bf16 + bf16", &[&SIX, &SIX], 24.0),
            ("u4/8 e8m0", &[&[128]], 6.0),
            ("u4/8 e4m3", &[&[0x40]], 6.0),
            ("u4/8 i8*f32/1", &[&[0xff], &TWO], -6.0),
            ("u4/8 u8*f32/1 - u8*f16/1", &[&[0xff], &TWO, &[3], &HALF], 1528.5),
        ] {
            let mut values = [0.0; 8];
            let parts = [&[&[0x33; 4][..]], scales].concat();
            decode_row(&packing.parse().unwrap(), &parts, &mut values).unwrap();
            assert_eq!(values, [wanted; 8], "{packing}");
        }
    }

    #[test]
    fn two_levels_of_scales_multiply() {
        let packing = Packing {
            bits: 4,
            code: Code::Integer { zero: 0 },
            group_size: 32,
            scale: Scale::Bytes { signed: true, groups: 2, factor: ElementType::F16 },
            offset: Offset::Bytes { groups: 2, factor: ElementType::F16 },
            ordered: false,
        };
        let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
        let mut values = vec![0.0; 64];
        let parts: [&[u8]; 5] = [&[0x33; 32], &[2, 0xff], &half(0.5), &[1, 4], &half(0.25)];
        decode_row(&packing, &parts, &mut values).unwrap();
        assert_eq!((values[0], values[63]), (3.0 - 0.25, -1.5 - 1.0));
        assert!(decode_row(&packing, &parts[..4], &mut values).is_err());
        assert!(decode_row(&packing, &parts, &mut values[..32]).is_err());
    }
}
