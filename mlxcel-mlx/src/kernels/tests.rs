pub(crate) mod attention;

use std::sync::Arc;

use mlxcel_core::ErrorKind;

use super::*;
use crate::array::{DType, Mode, eval};
use crate::device::Device;

/// Deterministic numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.within(0, options.len() - 1)]
    }

    /// From -1 to 1.
    fn real(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    fn reals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.real()).collect()
    }

    /// [`array`](Self::array) of any type that weights may have.
    fn weight(&mut self, shape: &[usize]) -> (Array, Vec<f32>) {
        let dtype = self.one_of(&TYPES);
        self.array(shape, dtype)
    }

    /// An array of random numbers, and their values after rounding to `dtype`. It is in lent memory that is
    /// aligned to the size of an element only.
    fn array(&mut self, shape: &[usize], dtype: DType) -> (Array, Vec<f32>) {
        let values = self.reals(shape.iter().product());
        let (bytes, rounded) = encode(&values, dtype);
        let source =
            Arc::new(Odd { bytes: [&vec![0; dtype.size()], &bytes[..]].concat(), skip: dtype.size() });
        (Array::from_shared(&source, shape, dtype).unwrap(), rounded)
    }
}

/// Bytes from `skip` on.
struct Odd {
    bytes: Vec<u8>,
    skip: usize,
}

impl AsRef<[u8]> for Odd {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.skip..]
    }
}

fn encode(values: &[f32], dtype: DType) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        DType::F16 => {
            let halves: Vec<_> = values.iter().map(|&value| half::f16::from_f32(value)).collect();
            (bytemuck::cast_slice(&halves).to_vec(), halves.iter().map(|half| half.to_f32()).collect())
        }
        DType::BF16 => {
            let halves: Vec<_> = values.iter().map(|&value| half::bf16::from_f32(value)).collect();
            (bytemuck::cast_slice(&halves).to_vec(), halves.iter().map(|half| half.to_f32()).collect())
        }
        _ => (bytemuck::cast_slice(values).to_vec(), values.to_vec()),
    }
}

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Every implementation that this machine supports, on one thread and on three.
fn every_way() -> Vec<(String, Kernels)> {
    Device::Cpu.select().unwrap();
    [1, 3].into_iter().flat_map(|threads| Kernels::each(threads).unwrap()).collect()
}

/// Compares `found` with sums in double precision. The tolerance is the rounding of as many partial sums as
/// there are terms, each about as large as the root of the sum of their squares, or as the sum itself if that
/// is larger, and of a few functions.
#[track_caller]
fn assert_sums(found: &[f32], wanted: impl Iterator<Item = Vec<f64>>, what: &str) {
    assert_sums_of(16.0, found, wanted, what);
}

/// [`assert_sums`] with terms that have `roundings` themselves.
#[track_caller]
fn assert_sums_of(roundings: f64, found: &[f32], wanted: impl Iterator<Item = Vec<f64>>, what: &str) {
    let mut count = 0;
    for (index, terms) in wanted.enumerate() {
        let sum: f64 = terms.iter().sum();
        let size = terms.iter().map(|term| term * term).sum::<f64>().sqrt().max(sum.abs());
        let error = (f64::from(found[index]) - sum).abs();
        let tolerance = f64::from(f32::EPSILON) * (roundings + (terms.len() as f64).sqrt()) * size;
        assert!(error <= tolerance, "{what}: element {index} is {}, not {sum}", found[index]);
        count += 1;
    }
    assert_eq!(found.len(), count, "{what}");
}

fn product<'a>(
    x: &'a [f32],
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    (m, n, k): (usize, usize, usize),
) -> impl Iterator<Item = Vec<f64>> + 'a {
    (0..m * n).map(move |at| {
        let (row, column) = (at / n, at % n);
        let terms = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(w[column * k + i]));
        terms.chain(bias.map(|bias| f64::from(bias[column]))).collect()
    })
}

#[test]
fn products_match_the_stored_values() {
    let mut numbers = Numbers(1);
    for (name, kernels) in every_way() {
        let few = (1..=16).map(|m| (m, numbers.within(1, 50), numbers.within(1, 90))).collect::<Vec<_>>();
        let many = [(17, 70, 33), (31, 1, 300), (40, 65, 1), (129, 47, 520), (400, 33, 257)];
        for (m, n, k) in few.into_iter().chain(many) {
            let (x, x_values) = numbers.array(&[m, k], DType::F32);
            let (w, w_values) = numbers.weight(&[n, k]);
            let (bias, bias_values) = numbers.weight(&[n]);
            let with_bias = numbers.one_of(&[true, false]);
            let y = kernels.linear(&x, &w, with_bias.then_some(&bias)).unwrap();
            assert_eq!((y.shape(), y.dtype().unwrap()), (vec![m, n], DType::F32));
            let wanted = product(&x_values, &w_values, with_bias.then_some(&bias_values), (m, n, k));
            assert_sums(&y.to_vec::<f32>().unwrap(), wanted, &format!("{name} {m} {n} {k} {w:?}"));
        }
    }
}

#[test]
fn operands_may_be_strided_views() {
    let mut numbers = Numbers(2);
    Device::Cpu.select().unwrap();
    let (x, x_values) = numbers.array(&[40, 2, 21], DType::F32);
    let (w, w_values) = numbers.array(&[30, 21], DType::BF16);
    let at = |row: usize, middle: usize| &x_values[(row * 2 + middle) * 21..][..21];
    let kernels = Kernels::new(2);
    for rows in [3, 20] {
        // Rows and inputs from the middle, strides of two, a transposed axis, and a broadcast row.
        let part = x.slice(&[5, 1, 0], &[5 + rows, 2, 21]).unwrap().reshape(&[rows, 21]).unwrap();
        let narrow = part.slice(&[0, 2], &[rows, 19]).unwrap();
        let narrow_w = w.slice(&[4, 2], &[29, 19]).unwrap();
        let narrow_values: Vec<f32> = (0..rows).flat_map(|row| at(5 + row, 1)[2..19].to_vec()).collect();
        let w_narrow: Vec<f32> =
            (4..29).flat_map(|row| w_values[row * 21 + 2..row * 21 + 19].to_vec()).collect();
        let y = kernels.linear(&narrow, &narrow_w, None).unwrap().to_vec::<f32>().unwrap();
        assert_sums(&y, product(&narrow_values, &w_narrow, None, (rows, 25, 17)), "parts");

        let turned = narrow.transpose(&[1, 0]).unwrap();
        let turned_w = w.slice(&[0, 0], &[rows, 21]).unwrap().transpose(&[1, 0]).unwrap();
        let turned_values: Vec<f32> = (0..17)
            .flat_map(|i| (0..rows).map(move |row| (row, i)))
            .map(|(row, i)| at(5 + row, 1)[2 + i])
            .collect();
        let w_turned: Vec<f32> = (0..21)
            .flat_map(|i| (0..rows).map(move |row| (row, i)))
            .map(|(row, i)| w_values[row * 21 + i])
            .collect();
        let y = kernels.linear(&turned, &turned_w, None).unwrap().to_vec::<f32>().unwrap();
        assert_sums(&y, product(&turned_values, &w_turned, None, (17, 21, rows)), "turned");

        let repeated = x.slice(&[7, 0, 0], &[8, 1, 21]).unwrap().broadcast_to(&[1, rows, 21]).unwrap();
        let y = kernels.linear(&repeated, &w, None).unwrap();
        assert_eq!(y.shape(), [1, rows, 30]);
        let repeated_values = at(7, 0).repeat(rows);
        assert_sums(
            &y.to_vec::<f32>().unwrap(),
            product(&repeated_values, &w_values, None, (rows, 30, 21)),
            "repeated",
        );
    }
}

#[test]
fn packed_products_match_the_expanded_values() {
    let mut numbers = Numbers(3);
    for (name, kernels) in every_way() {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                for m in [1, 2, 4, 7, 13, 16, 30] {
                    let (n, k) = (numbers.within(1, 24), group * numbers.within(1, 5));
                    let dtype = numbers.one_of(&TYPES);
                    let (w, _) = numbers.array(&[n, k], dtype);
                    let packed = Packed::quantize(&w, group, bits, Mode::Affine).unwrap();
                    assert!(Kernels::takes(&packed));
                    // Exact: rounding to the scales' type would not be.
                    let wide = packed.with(packed.words.clone(), |groups| groups.astype(DType::F32)).unwrap();
                    let expanded = wide.dequantize(DType::F32).unwrap().to_vec::<f32>().unwrap();
                    let (x, x_values) = numbers.array(&[m, k], DType::F32);
                    let (bias, bias_values) = numbers.array(&[n], DType::F32);
                    let y = kernels.packed_linear(&x, &packed, Some(&bias)).unwrap();
                    let wanted = product(&x_values, &expanded, Some(&bias_values), (m, n, k));
                    let what = format!("{name} {bits} bits/{group} {m} {n} {k} {dtype:?}");
                    assert_sums(&y.to_vec::<f32>().unwrap(), wanted, &what);
                }
            }
        }
    }
}

#[test]
fn norms_activations_and_rope_match_their_definitions() {
    let mut numbers = Numbers(6);
    for (name, kernels) in every_way() {
        for (rows, width) in [(1, 1), (1, 2048), (3, 37), (200, 130)] {
            let (x, values) = numbers.array(&[rows, width], DType::F32);
            let (weight, factors) = numbers.weight(&[width]);
            for weight in [None, Some(&weight)] {
                let y = kernels.rms_norm(&x, weight, 1e-5).unwrap().to_vec::<f32>().unwrap();
                let wanted = values.chunks(width).flat_map(|row| {
                    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let root = (squares / width as f64 + 1e-5).sqrt();
                    let factor = |i: usize| weight.map_or(1.0, |_| f64::from(factors[i]));
                    row.iter()
                        .enumerate()
                        .map(move |(i, &x)| vec![f64::from(x) / root * factor(i)])
                        .collect::<Vec<_>>()
                });
                assert_sums(&y, wanted, &format!("{name} norm {rows} {width}"));
            }

            let (up, ups) = numbers.array(&[rows, width], DType::F32);
            let far = x.multiply_scalar(40.0).unwrap();
            let y = kernels.silu_mul(&far, &up).unwrap().to_vec::<f32>().unwrap();
            let wanted = values.iter().zip(&ups).map(|(&x, &up)| {
                let x = f64::from(x * 40.0);
                vec![x / (1.0 + (-x).exp()) * f64::from(up)]
            });
            assert_sums(&y, wanted, &format!("{name} silu {rows} {width}"));
        }
        for (tokens, heads, dim, pairs) in [(1, 3, 64, 32), (5, 1, 20, 7), (90, 4, 64, 16)] {
            let (x, values) = numbers.array(&[tokens, heads, dim], DType::F32);
            let (cos, cosines) = numbers.array(&[tokens, 1, pairs], DType::F32);
            let (sin, sines) = numbers.array(&[tokens, 1, pairs], DType::F32);
            let y = kernels.rotate(&x, &cos, &sin).unwrap().to_vec::<f32>().unwrap();
            let wanted = values.iter().enumerate().map(|(at, &own)| {
                let (token, i) = (at / (heads * dim), at % dim);
                let angle = token * pairs + i % pairs;
                let (cos, sin) = (f64::from(cosines[angle]), f64::from(sines[angle]));
                match i {
                    i if i < pairs => vec![f64::from(own) * cos, -f64::from(values[at + pairs]) * sin],
                    i if i < 2 * pairs => vec![f64::from(own) * cos, f64::from(values[at - pairs]) * sin],
                    _ => vec![f64::from(own)],
                }
            });
            assert_sums(&y, wanted, &format!("{name} rotate {tokens} {heads} {dim} {pairs}"));
        }
    }
}

#[test]
fn logsumexp_matches_its_definition() {
    const LEAST: f32 = f32::NEG_INFINITY;
    let mut numbers = Numbers(8);
    for (name, kernels) in every_way() {
        for (rows, width) in [(1, 1), (3, 37), (2, 8192), (2, 20_003)] {
            let (x, values) = numbers.array(&[rows, width], DType::F32);
            let y = kernels.log_sum_exp(&x.multiply_scalar(30.0).unwrap()).unwrap();
            assert_eq!(y.shape(), [rows, 1]);
            let wanted = values.chunks(width).map(|row| {
                let most = row.iter().copied().fold(f32::MIN, f32::max) * 30.0;
                let sum: f64 = row.iter().map(|&x| f64::from(x * 30.0 - most).exp()).sum();
                vec![f64::from(most) + sum.ln()]
            });
            assert_sums(&y.to_vec::<f32>().unwrap(), wanted, &format!("{name} {rows} {width}"));
        }
        let of = |values: &[f32]| {
            let x = Array::from_slice(values, &[1, values.len()]).unwrap();
            kernels.log_sum_exp(&x).unwrap().to_vec::<f32>().unwrap()[0]
        };
        // Tokens excluded by a mask.
        let masked: Vec<f32> = (0..20_000).map(|i| if i == 19_990 { 2.5 } else { LEAST }).collect();
        assert_eq!(of(&masked), 2.5, "{name}");
        assert_eq!(of(&[LEAST; 50]), LEAST, "{name}");
        assert_eq!(of(&[1.0, f32::INFINITY]), f32::INFINITY, "{name}");
        for others in [1.0, LEAST] {
            let mut values = vec![others; 40];
            values[7] = f32::NAN;
            assert!(of(&values).is_nan(), "{name}");
        }
    }
}

#[test]
fn nan_propagates_to_its_row_only() {
    for (name, kernels) in every_way() {
        for rows in [2, 20] {
            let mut values = vec![1.0f32; rows * 32];
            values[5] = f32::NAN;
            values[32 + 7] = f32::INFINITY;
            let x = Array::from_slice(&values, &[rows, 32]).unwrap();
            let w = Array::full(&[3, 32], 2.0, DType::BF16).unwrap();
            let packed = Packed::quantize(&w, 32, 4, Mode::Affine).unwrap();
            let plain = kernels.linear(&x, &w, None).unwrap().to_vec::<f32>().unwrap();
            let unpacked = kernels.packed_linear(&x, &packed, None).unwrap().to_vec::<f32>().unwrap();
            for y in [plain, unpacked] {
                assert!(y[..3].iter().all(|y| y.is_nan()), "{name} {y:?}");
                assert!(y[3..6].iter().all(|&y| y == f32::INFINITY), "{name} {y:?}");
                assert!(rows == 2 || y[6..].iter().all(|&y| y == 64.0), "{name} {y:?}");
            }
        }
        let q = Array::from_slice(&[1.0, f32::NAN], &[1, 2, 1]).unwrap();
        let cache = Array::from_slice(&[1.0f32, 2.0], &[2, 1, 1]).unwrap();
        let y = kernels.attention(&q, &cache, &cache, 1.0, None).unwrap().to_vec::<f32>().unwrap();
        assert!(y[0] == 1.0 && y[1].is_nan(), "{name} {y:?}");
    }
}

#[test]
fn results_are_bitwise_equal_for_any_number_of_threads() {
    Device::Cpu.select().unwrap();
    let mut numbers = Numbers(7);
    for rows in [1, 5, 60] {
        let (x, _) = numbers.array(&[rows, 512], DType::F32);
        let (w, _) = numbers.array(&[700, 512], DType::BF16);
        let of = |threads| Kernels::new(threads).linear(&x, &w, None).unwrap().to_vec::<f32>().unwrap();
        let one: Vec<u32> = of(1).into_iter().map(f32::to_bits).collect();
        for threads in [2, 3, 8] {
            let several: Vec<u32> = of(threads).into_iter().map(f32::to_bits).collect();
            assert_eq!(one, several, "{rows} rows on {threads} threads");
        }
    }
}

#[test]
fn several_models_may_compute_at_once() {
    std::thread::scope(|scope| {
        for seed in 10..14 {
            scope.spawn(move || {
                Device::Cpu.select().unwrap();
                let mut numbers = Numbers(seed);
                let (w, w_values) = numbers.array(&[96, 96], DType::BF16);
                for _ in 0..50 {
                    let (x, x_values) = numbers.array(&[4, 96], DType::F32);
                    let y = Kernels::new(2).linear(&x, &w, None).unwrap().to_vec::<f32>().unwrap();
                    assert_sums(&y, product(&x_values, &w_values, None, (4, 96, 96)), "at once");
                }
            });
        }
    });
}

#[test]
fn empty_arrays_are_supported() {
    const NONE: [f32; 0] = [];
    Device::Cpu.select().unwrap();
    let kernels = Kernels::new(2);
    let of = |shape: &[usize]| Array::zeros(shape, DType::F32).unwrap();
    let product = |x: &[usize], w: &[usize]| kernels.linear(&of(x), &of(w), None).unwrap();
    assert_eq!(product(&[0, 4], &[3, 4]).to_vec::<f32>().unwrap(), NONE);
    assert_eq!(product(&[2, 4], &[0, 4]).to_vec::<f32>().unwrap(), NONE);
    assert_eq!(product(&[2, 0], &[3, 0]).to_vec::<f32>().unwrap(), [0.0; 6]);
    let none = kernels.attention(&of(&[0, 4, 8]), &of(&[2, 5, 8]), &of(&[2, 5, 8]), 1.0, None).unwrap();
    assert_eq!(none.to_vec::<f32>().unwrap(), NONE);
    assert_eq!(kernels.rms_norm(&of(&[0, 4]), None, 1e-5).unwrap().to_vec::<f32>().unwrap(), NONE);
    assert_eq!(kernels.silu_mul(&of(&[0]), &of(&[0])).unwrap().to_vec::<f32>().unwrap(), NONE);
    let tables = of(&[0, 1, 2]);
    assert_eq!(kernels.rotate(&of(&[0, 3, 4]), &tables, &tables).unwrap().to_vec::<f32>().unwrap(), NONE);
}

#[test]
fn wrong_operands_fail_when_the_operation_is_created() {
    Device::Cpu.select().unwrap();
    let kernels = Kernels::new(1);
    let of = |shape: &[usize], dtype| Array::zeros(shape, dtype).unwrap();
    let x = of(&[2, 64], DType::F32);
    let w = of(&[3, 64], DType::F32);
    let packed = Packed::quantize(&of(&[3, 128], DType::F32), 64, 4, Mode::Affine).unwrap();
    let q = of(&[2, 4, 8], DType::F32);
    let cache = |shape: &[usize]| of(shape, DType::F32);
    let refused = [
        kernels.linear(&of(&[2, 64], DType::BF16), &w, None),
        kernels.linear(&x, &of(&[3, 63], DType::F32), None),
        kernels.linear(&x, &of(&[64], DType::F32), None),
        kernels.linear(&x, &of(&[3, 64], DType::U32), None),
        kernels.linear(&x, &w, Some(&of(&[2], DType::F32))),
        kernels.linear(&x, &w, Some(&of(&[3], DType::I32))),
        kernels.linear(&Array::scalar(1.0, DType::F32).unwrap(), &w, None),
        kernels.packed_linear(&x, &packed, None),
        kernels.attention(&q, &cache(&[3, 5, 8]), &cache(&[3, 5, 8]), 1.0, None),
        kernels.attention(&q, &cache(&[2, 5, 7]), &cache(&[2, 5, 7]), 1.0, None),
        kernels.attention(&q, &cache(&[2, 5, 8]), &cache(&[2, 6, 8]), 1.0, None),
        kernels.attention(&q, &cache(&[2, 1, 8]), &cache(&[2, 1, 8]), 1.0, None),
        kernels.attention(&q, &cache(&[2, 2, 5, 8]), &cache(&[2, 2, 5, 8]), 1.0, None),
        kernels.attention(&q, &cache(&[2, 5, 8]), &of(&[2, 5, 8], DType::F16), 1.0, None),
        kernels.rms_norm(&x, Some(&of(&[63], DType::F32)), 1e-5),
        kernels.silu_mul(&x, &of(&[64, 2], DType::F32)),
        kernels.rotate(&q, &of(&[2, 1, 5], DType::F32), &of(&[2, 1, 5], DType::F32)),
        kernels.rotate(&q, &of(&[2, 4], DType::F32), &of(&[2, 4], DType::F32)),
    ];
    for (index, answer) in refused.into_iter().enumerate() {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Internal, "case {index}");
    }
    let mxfp4 = Packed::quantize(&of(&[3, 64], DType::F32), 32, 4, Mode::Mxfp4).unwrap();
    assert!(!Kernels::takes(&mxfp4));
    assert_eq!(kernels.packed_linear(&x, &mxfp4, None).unwrap_err().kind(), ErrorKind::Unsupported);
}
