//! Composites over packed weights against the values that each row decodes to.

use mlxcel_graph::packed::{
    PackedWeight, operand_parts, packed_embedding, packed_expert_linear, packed_linear, part_element, reorder,
};
use mlxcel_models::ElementType as Stored;
use mlxcel_models::packing::{Code, Offset, Packing, Scale, decode_row};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{ElementType, TensorType};

use crate::layers::support::{random, run, tensor};

/// Packings of every kind of code, scale and offset.
fn packings() -> Vec<Packing> {
    let integer = |bits, zero, group| Packing::symmetric(bits, zero, group, Stored::F16);
    let bytes = |signed, groups| Scale::Bytes { signed, groups, factor: Stored::F16 };
    let minima = Offset::Bytes { groups: 8, factor: Stored::F16 };
    let mut packings: Vec<_> = [2, 3, 4, 5, 6, 8].map(|bits| Packing::affine(bits, 32, Stored::BF16)).into();
    packings.extend([
        integer(4, 8, 32),
        integer(8, 128, 64),
        Packing { offset: Offset::Float(Stored::F32), ..integer(4, 0, 128) },
        Packing { offset: Offset::Zeros, ..integer(4, 0, 128) },
        Packing { scale: bytes(false, 8), offset: minima, ..integer(4, 0, 32) },
        Packing { scale: bytes(true, 16), ..integer(6, 32, 16) },
        Packing::MXFP4,
        Packing::MXFP8,
        Packing::NVFP4,
        Packing { code: Code::E5M2, ..Packing::symmetric(8, 0, 128, Stored::F32) },
        Packing { code: Code::Iq4Nl, scale: bytes(true, 8), ..integer(4, 0, 32) },
    ]);
    packings
}

/// The parts of `rows` rows of a packing, `width` times their bytes, and the values that they decode to.
struct Example {
    parts: Vec<Tensor>,
    values: Vec<f32>,
}

fn example(packing: Packing, leading: &[usize], columns: usize) -> Example {
    let rows: usize = leading.iter().product();
    let mut next = random(columns as u64 + packing.bits as u64);
    let mut bytes: Vec<Vec<u8>> = Vec::new();
    for part in operand_parts(&packing) {
        let count = rows * packing.width(part, columns);
        bytes.push(match packing.element(part) {
            Stored::U32 => (0..count).flat_map(|_| (next() as u32 & 0x6f6f_6f6f).to_le_bytes()).collect(),
            Stored::F32 => (0..count).flat_map(|_| (next() as f32 / 1e15 - 0.1).to_le_bytes()).collect(),
            // Exponents near that of one.
            Stored::F16 => (0..count).flat_map(|_| (0x3000 | next() as u16 & 0x83ff).to_le_bytes()).collect(),
            Stored::BF16 => {
                (0..count).flat_map(|_| (0x3e00 | next() as u16 & 0x80ff).to_le_bytes()).collect()
            }
            _ if packing.scale == Scale::E8M0 => (0..count).map(|_| 120 + (next() % 8) as u8).collect(),
            _ => (0..count).map(|_| (next() % 64) as u8).collect(),
        });
    }
    let mut values = vec![0.0; rows * columns];
    for (row, values) in values.chunks_exact_mut(columns).enumerate() {
        let parts: Vec<_> = bytes
            .iter()
            .map(|bytes| &bytes[bytes.len() / rows * row..bytes.len() / rows * (row + 1)])
            .collect();
        decode_row(&packing, &parts, values).unwrap();
    }
    let parts = operand_parts(&packing).zip(&bytes).map(|(part, bytes)| {
        let shape = [leading, &[packing.width(part, columns)]].concat();
        Tensor::from_bytes(TensorType::new(part_element(&packing, part), shape), bytes).unwrap()
    });
    Example { parts: parts.collect(), values }
}

fn close(found: &[f32], wanted: &[f32], packing: Packing) {
    let largest = wanted.iter().fold(0f32, |most, value| most.max(value.abs()));
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= 1e-5 * largest, "{packing}: {found}, not {wanted}");
    }
}

/// `x: [rows, columns]` times the transpose of `weight: [outputs, columns]`, in double precision.
fn products(x: &[f32], weight: &[f32], columns: usize) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>();
    x.chunks_exact(columns)
        .flat_map(|x| weight.chunks_exact(columns).map(move |w| dot(x, w) as f32))
        .collect()
}

#[test]
fn packed_products_and_lookups_match_the_decoded_weight() {
    let (rows, outputs, columns) = (3, 5, 256);
    for packing in packings() {
        let Example { parts, values } = example(packing, &[outputs], columns);
        let x: Vec<f32> = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let ids = [4, 0, 99, -1];
        let arguments: Vec<_> =
            [tensor(&[rows, columns], &x), tensor(&[2, 2], &ids)].into_iter().chain(parts).collect();
        let results = run(&arguments, |b, v| {
            let weight = PackedWeight { packing, parts: v[2..].to_vec() };
            let sums = packed_linear(b, v[0], &weight, None, ElementType::F32)?;
            Ok(vec![sums, packed_embedding(b, &weight, v[1])?])
        });
        close(results[0].as_slice().unwrap(), &products(&x, &values, columns), packing);
        assert_eq!(results[1].ty().shape, [2, 2, columns]);
        let wanted: Vec<f32> =
            [4, 0, 4, 0].iter().flat_map(|row| &values[row * columns..][..columns]).copied().collect();
        assert_eq!(results[1].as_slice::<f32>().unwrap(), wanted, "{packing}");
    }
}

#[test]
fn each_expert_uses_its_own_matrix() {
    let (outputs, columns) = (4, 256);
    let experts = [1, 2, -7, 1];
    for packing in [Packing::MXFP4, Packing::affine(6, 64, Stored::F16)] {
        let Example { parts, values } = example(packing, &[3, outputs], columns);
        let x: Vec<f32> =
            (0..experts.len() * 2 * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let bias: Vec<f32> = (0..3 * outputs).map(|i| i as f32).collect();
        let arguments: Vec<_> = [
            tensor(&[experts.len(), 2, columns], &x),
            tensor(&[experts.len()], &experts),
            tensor(&[3, outputs], &bias),
        ]
        .into_iter()
        .chain(parts)
        .collect();
        let results = run(&arguments, |b, v| {
            let weight = PackedWeight { packing, parts: v[3..].to_vec() };
            Ok(vec![packed_expert_linear(b, v[0], &weight, v[1], Some(v[2]), ElementType::F32)?])
        });
        let wanted: Vec<f32> = experts
            .iter()
            .zip(x.chunks_exact(2 * columns))
            .flat_map(|(&expert, x)| match usize::try_from(expert) {
                Ok(expert) => {
                    let matrix = &values[expert * outputs * columns..][..outputs * columns];
                    let sums = products(x, matrix, columns);
                    sums.iter()
                        .enumerate()
                        .map(|(i, sum)| sum + bias[expert * outputs + i % outputs])
                        .collect()
                }
                Err(_) => vec![0.0; 2 * outputs],
            })
            .collect();
        close(results[0].as_slice().unwrap(), &wanted, packing);
    }
}

#[test]
fn products_follow_the_column_order_of_the_weight() {
    let x: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let results =
        run(&[tensor(&[2, 3], &x), tensor(&[3], &[2, 0, 1])], |b, v| Ok(vec![reorder(b, v[0], v[1])?]));
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [2.0, 0.0, 1.0, 5.0, 3.0, 4.0]);
}
