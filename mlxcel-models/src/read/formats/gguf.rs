//! GGUF blocks: 32 or 256 values of a row, with codes and scales stored together.
//!
//! The layouts follow `ggml` (`ggml-quants.c`); tests compare with `dequantize` of the Python package `gguf`.
//! No code is decoded here: parts are extracted from blocks, and codes are put into the order of values.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::OPERATION;
use crate::checkpoint::Checkpoint;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::gguf::BlockType;
use crate::packing::{Arrangement, Derived, Part};
use crate::read::gather::misfit;

/// The matrix of `shape`, or several along a dimension in front, whose tensor is `weight`, of such blocks.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    weight: &str,
    shape: &[usize],
    block: BlockType,
) -> Result<WeightRef> {
    let (view, location) = checkpoint.located(weight)?;
    let locate = |error: Error| error.with_context("tensor", weight).with_context("path", location);
    let Some((&columns, leading)) = shape.split_last() else {
        return Err(locate(Error::new(ErrorKind::Corrupt, OPERATION, "a matrix has rows and columns")));
    };
    let stored = [leading, &[columns / block.values() * block.bytes()]].concat();
    if view.shape != stored || !columns.is_multiple_of(block.values()) {
        let (values, rows) = match view.shape.split_last() {
            Some((bytes, rows)) => (bytes / block.bytes() * block.values(), rows),
            None => (0, &[][..]),
        };
        let message = format!(
            "the tensor is {} {:?} and the metadata makes it {shape:?}",
            block.name(),
            [rows, &[values]].concat()
        );
        return Err(locate(Error::new(ErrorKind::Corrupt, OPERATION, message)));
    }
    let packing = block.packing();
    packing.check(columns).map_err(locate)?;
    let derived = |part| Derived {
        arrangement: Arrangement::Gguf(block),
        part,
        shape: [leading, &[packing.width(part, columns)]].concat(),
    };
    let part = |part: Part| {
        let derived = derived(part);
        WeightRef::new(weight, packing.element(part), derived.shape.clone()).with_derivation(derived)
    };
    let parts: Vec<_> = packing.parts().skip(1).map(part).collect();
    let codes = WeightRef::new(weight, ElementType::U32, shape).with_packing(Packed::new(packing, parts));
    Ok(codes.with_derivation(derived(Part::Codes)))
}

/// Writes rows of a part, all leading dimensions counted, out of the blocks of `tensor`.
pub(in crate::read) fn read(
    checkpoint: &Checkpoint,
    tensor: &str,
    (block, part): (BlockType, Part),
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let (view, location) = checkpoint.located(tensor)?;
    let row = view.shape.last().copied().unwrap_or_default();
    let blocks = view.bytes.get(rows.start.saturating_mul(row)..rows.end.saturating_mul(row));
    let width = part_bytes(block, part);
    let fits = |blocks: &&[u8]| {
        blocks.len() / block.bytes() * width == out.len() && checkpoint.blocks(tensor) == Some(block)
    };
    let blocks = blocks.filter(fits).ok_or_else(|| misfit(tensor, location))?;
    if width > 0 {
        write(block, part, blocks, out);
    }
    Ok(())
}

/// How many bytes of a part a block has.
fn part_bytes(block: BlockType, part: Part) -> usize {
    let packing = block.packing();
    if !packing.parts().any(|there| there == part) {
        return 0;
    }
    packing.width(part, block.values()) * packing.element(part).bits() / 8
}

/// Writes a part of consecutive blocks.
fn write(ty: BlockType, part: Part, blocks: &[u8], out: &mut [u8]) {
    /// A loop for each type, in which sizes and shifts are constants.
    macro_rules! each {
        ($($name:ident: $bits:literal),*) => {
            match ty {
                $(BlockType::$name => {
                    const TYPE: BlockType = BlockType::$name;
                    write_each::<{ TYPE.bytes() }, { TYPE.values() }, $bits>(TYPE, part, blocks, out);
                })*
            }
        };
    }
    each! {
        Q4_0: 4, Q4_1: 4, Q5_0: 5, Q5_1: 5, Q8_0: 8, Q2K: 2, Q3K: 3, Q4K: 4, Q5K: 5, Q6K: 6, Iq4Nl: 4, Iq4Xs: 4, Mxfp4: 4
    }
}

/// Writes a part of blocks of `BYTES` with `VALUES` codes of `BITS`.
#[inline(always)]
fn write_each<const BYTES: usize, const VALUES: usize, const BITS: usize>(
    ty: BlockType,
    part: Part,
    blocks: &[u8],
    out: &mut [u8],
) {
    debug_assert_eq!(BITS, ty.packing().bits);
    let blocks = blocks.as_chunks::<BYTES>().0.iter();
    if part == Part::Codes {
        for (block, out) in blocks.zip(out.chunks_exact_mut(VALUES * BITS / 8)) {
            let mut codes = [0; VALUES];
            write_codes(ty, block, &mut codes);
            pack::<BITS>(&codes, out);
        }
        return;
    }
    for (block, out) in blocks.zip(out.chunks_exact_mut(part_bytes(ty, part).max(1))) {
        match part {
            Part::Codes | Part::Order => {}
            Part::Scales => write_scales(ty, block, out),
            Part::Offsets => write_offsets(ty, block, out),
            Part::ScaleFactors | Part::OffsetFactors => copy(block, factor_at(ty, part), out),
        }
    }
}

/// Where a block has the factor of its scales or offsets.
fn factor_at(ty: BlockType, part: Part) -> usize {
    match (ty, part) {
        (BlockType::Q2K, Part::ScaleFactors) => 80,
        (BlockType::Q2K, _) => 82,
        (BlockType::Q3K, _) => 108,
        (BlockType::Q6K, _) => 208,
        (_, Part::OffsetFactors) => 2,
        _ => 0,
    }
}

/// Bytes of a block from `at` on.
fn copy(block: &[u8], at: usize, out: &mut [u8]) {
    if let Some(bytes) = block.get(at..at + out.len()) {
        out.copy_from_slice(bytes);
    }
}

/// Where the codes of a block begin, their high bits if those are apart, and otherwise all of them.
fn starts(ty: BlockType) -> (usize, usize) {
    match ty {
        BlockType::Q4_0 | BlockType::Q8_0 | BlockType::Iq4Nl => (2, 2),
        BlockType::Q4_1 => (4, 4),
        BlockType::Q5_0 => (6, 2),
        BlockType::Q5_1 => (8, 4),
        BlockType::Q2K => (16, 16),
        BlockType::Q3K => (32, 0),
        BlockType::Q4K => (16, 16),
        BlockType::Q5K => (48, 16),
        BlockType::Q6K => (0, 128),
        BlockType::Iq4Xs => (8, 8),
        BlockType::Mxfp4 => (1, 1),
    }
}

/// The codes of a block in the order of its values, a byte each, into zeros.
#[inline(always)]
fn write_codes(ty: BlockType, block: &[u8], codes: &mut [u8]) {
    let (low, high) = starts(ty);
    let (low, high) = (block.get(low..).unwrap_or_default(), block.get(high..).unwrap_or_default());
    match ty {
        BlockType::Q8_0 => {
            // Signed bytes, of which the lowest is to be zero.
            codes.iter_mut().zip(low).for_each(|(code, byte)| *code = byte ^ 0x80);
        }
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Iq4Nl | BlockType::Mxfp4 => halves(low, codes, 16),
        BlockType::Q5_0 | BlockType::Q5_1 => {
            halves(low, codes, 16);
            for (index, code) in codes.iter_mut().enumerate() {
                *code |= (high[index / 8] >> (index % 8) & 1) << 4;
            }
        }
        BlockType::Iq4Xs => {
            codes
                .chunks_exact_mut(32)
                .zip(low.chunks_exact(16))
                .for_each(|(codes, low)| halves(low, codes, 16));
        }
        BlockType::Q4K | BlockType::Q5K => {
            codes
                .chunks_exact_mut(64)
                .zip(low.chunks_exact(32))
                .for_each(|(codes, low)| halves(low, codes, 32));
            if ty == BlockType::Q5K {
                for (bit, codes) in codes.chunks_exact_mut(32).enumerate() {
                    add_bits(codes, high, bit, 1, 4);
                }
            }
        }
        BlockType::Q2K | BlockType::Q3K => {
            // Each 32 bytes are 128 values, by pairs of bits.
            for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
                add_bits(codes, &low[32 * (part / 4)..], 2 * (part % 4), 2, 0);
                if ty == BlockType::Q3K {
                    add_bits(codes, high, part, 1, 2);
                }
            }
        }
        BlockType::Q6K => {
            for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
                let (half, within) = (part / 4, part % 4);
                add_bits(codes, &low[64 * half + 32 * (within % 2)..], 4 * (within / 2), 4, 0);
                add_bits(codes, &high[32 * half..], 2 * within, 2, 4);
            }
        }
    }
}

/// Adds to each code the `count` bits from `from` on of a byte, as those from `to` on.
fn add_bits(codes: &mut [u8], bytes: &[u8], from: usize, count: usize, to: usize) {
    for (code, byte) in codes.iter_mut().zip(bytes) {
        *code |= (byte >> from & ((1 << count) - 1)) << to;
    }
}

/// The low halves of `count` bytes, then the high ones.
fn halves(bytes: &[u8], codes: &mut [u8], count: usize) {
    let (first, second) = codes.split_at_mut(count);
    for ((low, high), byte) in first.iter_mut().zip(second).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Puts codes into a stream of bits, the first into the lowest.
#[inline(always)]
fn pack<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    // Eight codes are as many bytes as a code has bits.
    for (codes, out) in codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<BITS>().0) {
        let stream = together::<BITS>(u64::from_le_bytes(*codes)).to_le_bytes();
        out.copy_from_slice(&stream[..BITS]);
    }
}

/// Eight codes, each in a byte of its own, one behind the other.
#[inline(always)]
fn together<const BITS: usize>(codes: u64) -> u64 {
    // One, then two, then four codes move beside as many others at a time.
    [(1, 8), (2, 16), (4, 32)].into_iter().fold(codes, |codes, (count, apart)| {
        let width = count * BITS;
        let low = u64::MAX / ((1u128 << (2 * apart)) - 1) as u64 * ((1 << width) - 1);
        codes & low | codes >> (apart - width) & low << width
    })
}

/// The scales of a block's groups.
fn write_scales(ty: BlockType, block: &[u8], out: &mut [u8]) {
    match ty {
        BlockType::Q2K => out.iter_mut().zip(block).for_each(|(scale, byte)| *scale = byte & 15),
        BlockType::Q3K => {
            let packed = &block[96..108];
            for (group, scale) in out.iter_mut().enumerate() {
                // Four bits of each are in the first eight bytes, two in the last four.
                let low = packed[group % 8] >> (4 * (group / 8)) & 15;
                let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
                *scale = (low | high << 4).wrapping_sub(32);
            }
        }
        BlockType::Q4K | BlockType::Q5K => {
            out.iter_mut().enumerate().for_each(|(group, scale)| *scale = six_bits(block, group, 0));
        }
        BlockType::Q6K => copy(block, 192, out),
        BlockType::Iq4Xs => {
            let high = u16::from_le_bytes([block[2], block[3]]);
            for (group, scale) in out.iter_mut().enumerate() {
                let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
                let upper = (high >> (2 * group) & 3) as u8;
                *scale = (low | upper << 4).wrapping_sub(32);
            }
        }
        // The rest begin with it.
        _ => copy(block, 0, out),
    }
}

/// The offsets of a block's groups.
fn write_offsets(ty: BlockType, block: &[u8], out: &mut [u8]) {
    match ty {
        BlockType::Q2K => out.iter_mut().zip(block).for_each(|(offset, byte)| *offset = byte >> 4),
        BlockType::Q4K | BlockType::Q5K => {
            out.iter_mut().enumerate().for_each(|(group, offset)| *offset = six_bits(block, group, 4));
        }
        _ => copy(block, 2, out),
    }
}

/// The scale of a group of `Q4_K` and `Q5_K`, or its minimum with an `at` of 4: of the first four groups it
/// is the low six bits of a byte, of
/// others four bits of a third byte and the high two of the first or second.
fn six_bits(block: &[u8], group: usize, at: usize) -> u8 {
    let packed = &block[4..16];
    match group {
        0..4 => packed[group + at] & 63,
        _ => packed[group + 4] >> at & 15 | packed[group - 4 + at] >> 6 << 4,
    }
}

#[cfg(test)]
mod tests;
