//! Blocks with random bytes, and their values as the Python package `gguf` computes them
//! (`fixtures/formats/make_blocks.py`).

use super::*;
use crate::packing::decode_row;

const BLOCKS: &str = include_str!("../../../../../fixtures/formats/blocks.json");

const TYPES: [BlockType; 13] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q2K,
    BlockType::Q3K,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
    BlockType::Iq4Nl,
    BlockType::Iq4Xs,
    BlockType::Mxfp4,
];

fn bytes(text: &serde_json::Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn blocks_of_every_type_have_the_values_of_their_reference() {
    let blocks: serde_json::Value = serde_json::from_str(BLOCKS).unwrap();
    for ty in TYPES {
        let (stored, wanted) = (bytes(&blocks[ty.name()]["blocks"]), bytes(&blocks[ty.name()]["values"]));
        let wanted: Vec<f32> =
            wanted.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        let packing = ty.packing();
        let parts: Vec<Vec<u8>> = packing
            .parts()
            .map(|part| {
                let mut out = vec![0; stored.len() / ty.bytes() * part_bytes(ty, part)];
                write(ty, part, &stored, &mut out);
                out
            })
            .collect();
        let mut values = vec![0.0; wanted.len()];
        decode_row(&packing, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut values).unwrap();
        for (index, (value, wanted)) in values.iter().zip(&wanted).enumerate() {
            assert!(
                value == wanted || value.is_nan() && wanted.is_nan(),
                "{}, {index}: {value} {wanted}",
                ty.name()
            );
        }
    }
}
