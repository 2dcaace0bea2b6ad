//! Operations that move elements, and reductions.

use mlxcel_stablehlo::{ElementType, Literal, Reduction, TensorType};
use proptest::prelude::*;

use super::reference::indices;
use super::support::{converted, counted, elements, eval, noisy, tensor};

#[test]
fn iota_counts_along_its_dimension() {
    let iota =
        |dimension| eval(&[], |b, _| Ok(vec![b.iota(TensorType::new(ElementType::I32, [2, 3]), dimension)?]));
    assert_eq!(iota(0)[0].as_slice::<i32>().unwrap(), [0, 0, 0, 1, 1, 1]);
    assert_eq!(iota(1)[0].as_slice::<i32>().unwrap(), [0, 1, 2, 0, 1, 2]);
    // An iota that is cut and turned stays a count.
    let turned = elements::<f32, _>(&[], |b, _| {
        let iota = b.iota(TensorType::new(ElementType::F32, [4, 6]), 1)?;
        let part = b.slice_strided(iota, &[1, 1], &[3, 6], &[1, 2])?;
        b.transpose(part, &[1, 0])
    });
    assert_eq!(turned, [1.0, 1.0, 3.0, 3.0, 5.0, 5.0]);
}

#[test]
fn views_of_views_are_read_in_order() {
    let x = counted(&[2, 3, 4]);
    let result = elements::<f32, _>(&[x], |b, v| {
        let turned = b.transpose(v[0], &[2, 0, 1])?;
        let part = b.slice(turned, &[1, 0, 1], &[3, 2, 3])?;
        let flat = b.reshape(part, &[4, 2])?;
        b.transpose(flat, &[1, 0])
    });
    // Of the part's elements, first those that are first in its last dimension.
    let at = |i: usize, j: usize, k: usize| (j * 12 + k * 4 + i) as f32;
    let wanted = [1, 2].map(|k| [at(1, 0, k), at(1, 1, k), at(2, 0, k), at(2, 1, k)]);
    assert_eq!(result, wanted.as_flattened());
}

#[test]
fn constants_of_any_shape_are_read() {
    let literal = Literal::new([2, 2], &[1_i32, 2, 3, 4]).unwrap();
    assert_eq!(elements::<i32, _>(&[], |b, _| b.constant(literal)), [1, 2, 3, 4]);
    let literal = Literal::new([3], &[7_i32; 3]).unwrap();
    assert_eq!(elements::<i32, _>(&[], |b, _| b.constant(literal)), [7, 7, 7]);
    let none: &[i32] = &[];
    assert_eq!(elements::<i32, _>(&[], |b, _| b.constant(Literal::new([0, 3], none).unwrap())), none);
}

#[test]
fn bitcasts_reinterpret_bits() {
    let x = tensor(&[2], &[1.0_f32, -0.0]);
    let words =
        elements::<u32, _>(std::slice::from_ref(&x), |b, v| b.bitcast_convert(v[0], ElementType::U32));
    assert_eq!(words, [0x3f80_0000, 0x8000_0000]);
    let bytes = elements::<u8, _>(&[x], |b, v| b.bitcast_convert(v[0], ElementType::U8));
    assert_eq!(bytes, [0, 0, 0x80, 0x3f, 0, 0, 0, 0x80]);
    // Eight 4-bit elements to a word, the first in the low bits.
    let packed = tensor(&[1], &[0x8765_4321_u32]);
    let nibbles = elements::<i32, _>(&[packed], |b, v| {
        let nibbles = b.bitcast_convert(v[0], ElementType::I4)?;
        b.convert(nibbles, ElementType::I32)
    });
    assert_eq!(nibbles, [1, 2, 3, 4, 5, 6, 7, -8]);
}

#[test]
fn concatenation_joins_along_any_dimension() {
    let (a, b) = (counted(&[2, 2]), counted(&[2, 1]));
    let joined = elements::<f32, _>(&[a.clone(), b], |f, v| f.concatenate(&[v[0], v[1], v[0]], 1));
    assert_eq!(joined, [0.0, 1.0, 0.0, 0.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    let joined = elements::<f32, _>(&[a], |f, v| f.concatenate(&[v[0], v[0]], 0));
    assert_eq!(joined, [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn padding_may_be_positive_negative_and_interior() {
    let (x, value) = (tensor(&[2, 3], &[1_i32, 2, 3, 4, 5, 6]), tensor(&[], &[9_i32]));
    let inputs = [x, value];
    let pad = |low: [i64; 2], high: [i64; 2], interior: [usize; 2]| {
        elements::<i32, _>(&inputs, |b, v| b.pad(v[0], v[1], &low, &high, &interior))
    };
    assert_eq!(pad([0, 1], [1, 0], [0, 0]), [9, 1, 2, 3, 9, 4, 5, 6, 9, 9, 9, 9]);
    assert_eq!(pad([0, 0], [0, 0], [0, 1]), [1, 9, 2, 9, 3, 4, 9, 5, 9, 6]);
    assert_eq!(pad([-1, -1], [0, -1], [0, 0]), [5]);
    assert_eq!(pad([0, -1], [-1, 1], [0, 0]), [2, 3, 9]);
    assert_eq!(pad([1, -1], [0, 0], [0, 1]), [9, 9, 9, 9, 9, 2, 9, 3, 9, 5, 9, 6]);
}

#[test]
fn four_bit_elements_are_moved_as_other_types() {
    // An odd row length, so that rows do not start at whole bytes.
    let x = tensor(&[2, 3], &[1_i32, -2, 3, -4, 5, -6]);
    let moved = elements::<i32, _>(&[x], |b, v| {
        let four = b.convert(v[0], ElementType::I4)?;
        let turned = b.transpose(four, &[1, 0])?;
        let joined = b.concatenate(&[turned, turned], 0)?;
        let zero = b.scalar(0_i32)?;
        let part = b.dynamic_slice(joined, &[zero, zero], &[4, 2])?;
        let sum = b.sum(part, &[0])?;
        b.convert(sum, ElementType::I32)
    });
    // 1 - 2 + 3 + 1 = 3, and -4 + 5 - 6 - 4 = -9, which is 7 in four bits.
    assert_eq!(moved, [3, 7]);
}

#[test]
fn reductions_have_known_values_in_every_type() {
    let x = tensor(&[2, 3], &[3_i32, 1, 2, 4, 6, 5]);
    for element in ElementType::ALL.into_iter().filter(|&element| element != ElementType::I1) {
        let reduce = |reduction, dimensions: &[usize]| {
            elements::<i32, _>(std::slice::from_ref(&x), |b, v| {
                let x = b.convert(v[0], element)?;
                let reduced = b.reduce(x, reduction, dimensions)?;
                b.convert(reduced, ElementType::I32)
            })
        };
        assert_eq!(reduce(Reduction::Max, &[1]), [3, 6], "{element}");
        assert_eq!(reduce(Reduction::Min, &[0]), [3, 1, 2], "{element}");
        assert_eq!(reduce(Reduction::Sum, &[0])[..1], [7], "{element}");
        assert_eq!(reduce(Reduction::Product, &[1])[0], 6, "{element}");
        assert_eq!(reduce(Reduction::Max, &[0, 1]), [6], "{element}");
    }
    let truths = tensor(&[2, 2], &[true, true, false, true]);
    let all = elements::<bool, _>(std::slice::from_ref(&truths), |b, v| b.reduce(v[0], Reduction::And, &[1]));
    assert_eq!(all, [true, false]);
    let any = elements::<bool, _>(&[truths], |b, v| b.reduce(v[0], Reduction::Or, &[0]));
    assert_eq!(any, [true, true]);
}

#[test]
fn half_sums_are_rounded_once() {
    // One after another in bf16 the sum would stop at 256.
    let sum = elements::<f32, _>(&[], |b, _| {
        let ones = b.splat(ElementType::BF16, 1.0, &[1000])?;
        let sum = b.sum(ones, &[0])?;
        b.convert(sum, ElementType::F32)
    });
    assert_eq!(sum, [1000.0]);
}

#[test]
fn maxima_keep_nan_and_empty_reductions_are_neutral() {
    let x = tensor(&[3], &[1.0_f32, f32::NAN, 2.0]);
    assert!(elements::<f32, _>(&[x], |b, v| b.max(v[0], &[0]))[0].is_nan());
    let none = tensor::<f32>(&[0, 2], &[]);
    let largest = elements::<f32, _>(std::slice::from_ref(&none), |b, v| b.max(v[0], &[0]));
    assert_eq!(largest, [f32::NEG_INFINITY; 2]);
    assert_eq!(elements::<f32, _>(&[none], |b, v| b.sum(v[0], &[0])), [0.0; 2]);
}

#[test]
fn argmax_takes_the_lowest_index_and_ignores_nan() {
    let (none, low) = (f32::NAN, f32::NEG_INFINITY);
    let x = [[1.0, 3.0, 3.0, 2.0], [none, 1.0, none, 1.0], [none; 4], [low, none, low, low]];
    let x = tensor(&[4, 4], x.as_flattened());
    let results = eval(&[x], |b, v| {
        let (value, index) = b.argmax(v[0], 1)?;
        Ok(vec![value, index])
    });
    assert_eq!(converted::<i32>(&results[1]), [1, 1, 0, 0]);
    let values = results[0].as_slice::<f32>().unwrap();
    assert!(values[0] == 3.0 && values[1] == 1.0 && values[2].is_nan() && values[3] == f32::NEG_INFINITY);
    // Along the first dimension, with arbitrary indices.
    let (x, at) = (tensor(&[3, 2], &[5_i32, 1, 5, 2, 5, 2]), tensor(&[3, 2], &[9_i32, 1, 4, 8, 6, 7]));
    let results = eval(&[x, at], |b, v| {
        let (value, index) = b.reduce_argmax(v[0], v[1], 0)?;
        Ok(vec![value, index])
    });
    assert_eq!(results[0].as_slice::<i32>().unwrap(), [5, 2]);
    assert_eq!(results[1].as_slice::<i32>().unwrap(), [4, 7]);
}

/// Sizes that cross the borders of blocks and chunks.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![1..4usize, 5..40usize, Just(520usize)];
    prop::collection::vec(size, 1..4).prop_filter("small", |shape| shape.iter().product::<usize>() < 40_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn transposes_agree_with_indices(shape in sizes(), seed in any::<u64>()) {
        let mut permutation: Vec<usize> = (0..shape.len()).collect();
        permutation.rotate_left(seed as usize % shape.len());
        let x = counted(&shape);
        // With arithmetic behind it, and as it is.
        let moved = eval(&[x], |b, v| {
            let turned = b.transpose(v[0], &permutation)?;
            Ok(vec![b.negate(turned)?, b.transpose(v[0], &permutation)?])
        });
        let turned: Vec<usize> = permutation.iter().map(|&i| shape[i]).collect();
        let (negated, moved) = (moved[0].as_slice::<f32>().unwrap(), moved[1].as_slice::<f32>().unwrap());
        for (i, index) in indices(&turned).iter().enumerate() {
            let mut from = vec![0; shape.len()];
            permutation.iter().zip(index).for_each(|(&p, &at)| from[p] = at);
            let expected = from.iter().zip(&shape).fold(0, |number, (&at, &size)| number * size + at) as f32;
            prop_assert_eq!((moved[i], negated[i]), (expected, -expected));
        }
    }

    #[test]
    fn reductions_agree_with_loops(shape in sizes(), which in any::<u8>(), seed in any::<u64>()) {
        let dimensions: Vec<usize> = (0..shape.len()).filter(|i| which >> i & 1 == 1).collect();
        let x = noisy(&shape, seed);
        let results = eval(std::slice::from_ref(&x), |b, v| {
            let doubled = b.add(v[0], v[0])?;
            Ok(vec![b.sum(doubled, &dimensions)?, b.max(v[0], &dimensions)?])
        });
        let kept: Vec<usize> = (0..shape.len()).filter(|i| !dimensions.contains(i)).collect();
        let count: usize = kept.iter().map(|&i| shape[i]).product();
        let (mut sums, mut largest) = (vec![0f64; count], vec![f32::NEG_INFINITY; count]);
        for (index, &x) in indices(&shape).iter().zip(x.as_slice::<f32>().unwrap()) {
            let at = kept.iter().fold(0, |number, &i| number * shape[i] + index[i]);
            sums[at] += 2.0 * f64::from(x);
            largest[at] = largest[at].max(x);
        }
        prop_assert_eq!(results[1].as_slice::<f32>().unwrap(), &largest[..]);
        for (&actual, expected) in results[0].as_slice::<f32>().unwrap().iter().zip(sums) {
            prop_assert!((f64::from(actual) - expected).abs() < 3e-3, "{actual} is not {expected}");
        }
    }
}
