//! Matrix products.

use half::{bf16, f16};
use mlxcel_portable::eval::{Input, Tensor};
use mlxcel_stablehlo::{DotDimensions, ElementType, TensorType};
use proptest::prelude::*;

use super::support::{converted, counted, elements, eval, measured, noisy, plan, tensor};

fn matmul() -> DotDimensions {
    DotDimensions { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDimensions::default() }
}

#[test]
fn a_small_product_has_known_values() {
    let (a, b) = (counted(&[2, 3]), counted(&[3, 2]));
    let product = elements::<f32, _>(&[a, b], |f, v| f.dot_general(v[0], v[1], matmul(), ElementType::F32));
    assert_eq!(product, [10.0, 13.0, 28.0, 40.0]);
}

#[test]
fn integers_are_multiplied_exactly_and_wrap() {
    let (a, b) = (tensor(&[1, 3], &[127_i8, -128, 100]), tensor(&[3, 1], &[127_i8, 127, 100]));
    let inputs = [a, b];
    let wide = elements::<i32, _>(&inputs, |f, v| f.dot_general(v[0], v[1], matmul(), ElementType::I32));
    assert_eq!(wide, [127 * 127 - 128 * 127 + 10_000]);
    let narrow = elements::<i8, _>(&inputs, |f, v| f.dot_general(v[0], v[1], matmul(), ElementType::I8));
    assert_eq!(narrow, [(127_i32 * 127 - 128 * 127 + 10_000) as i8]);
    let four = elements::<i32, _>(&[tensor(&[2, 2], &[1_i32, 2, 3, -4])], |f, v| {
        let four = f.convert(v[0], ElementType::I4)?;
        let product = f.dot_general(four, four, matmul(), ElementType::I4)?;
        f.convert(product, ElementType::I32)
    });
    // [[7, -6], [-9, 22]] in four bits.
    assert_eq!(four, [7, -6, 7, 6]);
    let words = tensor(&[2, 2], &[u32::MAX, 1, 2, 3]);
    let product = elements::<u32, _>(&[words], |f, v| f.dot_general(v[0], v[0], matmul(), ElementType::U32));
    assert_eq!(product, [3, 2, 4, 11]);
}

#[test]
fn half_products_are_summed_in_f32() {
    let (ones, long) = (tensor(&[1, 1000], &[bf16::ONE; 1000]), tensor(&[1000, 1], &[bf16::ONE; 1000]));
    let inputs = [ones, long];
    let sum = elements::<bf16, _>(&inputs, |f, v| f.dot_general(v[0], v[1], matmul(), ElementType::BF16));
    assert_eq!(sum, [bf16::from_f32(1000.0)]);
    let sum = elements::<f32, _>(&inputs, |f, v| f.dot_general(v[0], v[1], matmul(), ElementType::F32));
    assert_eq!(sum, [1000.0]);
}

#[test]
fn empty_contractions_give_zeros() {
    let (a, b) = (tensor::<f32>(&[2, 0], &[]), tensor::<f32>(&[0, 3], &[]));
    let product = elements::<f32, _>(&[a, b], |f, v| f.dot_general(v[0], v[1], matmul(), ElementType::F32));
    assert_eq!(product, [0.0; 6]);
}

/// One product in all the ways that its operands can lie.
#[derive(Clone, Debug)]
struct Case {
    sizes: [usize; 4],
    element: ElementType,
    /// How the dimensions of the operands are turned before the product.
    turns: (usize, usize),
    swapped: bool,
    owned: bool,
    threads: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let rows = prop_oneof![1..10usize, 10..40usize];
    let columns = prop_oneof![1..20usize, 100..150usize];
    let depth = prop_oneof![1..40usize, 250..600usize];
    let element = prop::sample::select(vec![ElementType::F32, ElementType::BF16, ElementType::F16]);
    let sizes = (1..4usize, rows, columns, depth).prop_map(<[usize; 4]>::from);
    let turns = (0..3usize, 0..3usize);
    (sizes, element, turns, any::<(bool, bool)>(), 1..4usize, any::<u64>()).prop_map(
        |(sizes, element, turns, (swapped, owned), threads, seed)| Case {
            sizes,
            element,
            turns,
            swapped,
            owned,
            threads,
            seed,
        },
    )
}

/// `x` in the type, and the elements that are left of it.
fn rounded(x: &Tensor, element: ElementType) -> (Tensor, Vec<f64>) {
    let x = eval(std::slice::from_ref(x), |b, v| Ok(vec![b.convert(v[0], element)?])).remove(0);
    let exact = converted::<f32>(&x).into_iter().map(f64::from).collect();
    (x, exact)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batched_products_agree_with_loops(case in cases()) {
        let [batch, m, n, k] = case.sizes;
        let (lhs, l) = rounded(&noisy(&[batch, m, k], case.seed), case.element);
        let (rhs, r) = rounded(&noisy(&[batch, n, k], case.seed ^ 1), case.element);
        // The operands come in with their dimensions turned, and are turned back on the way.
        let turn = |x: &Tensor, by: usize| {
            let mut permutation = vec![0, 1, 2];
            permutation.rotate_left(by);
            eval(std::slice::from_ref(x), |b, v| Ok(vec![b.transpose(v[0], &permutation)?])).remove(0)
        };
        let back = |by: usize| {
            let mut permutation = vec![0, 1, 2];
            permutation.rotate_right(by);
            permutation
        };
        let (lhs, rhs) = (turn(&lhs, case.turns.0), turn(&rhs, case.turns.1));
        let dimensions = DotDimensions {
            lhs_batch: vec![0], rhs_batch: vec![0], lhs_contracting: vec![2], rhs_contracting: vec![2],
        };
        let program = plan(&[lhs.ty().clone(), rhs.ty().clone()], |b, v| {
            let l = b.transpose(v[0], &back(case.turns.0))?;
            let r = b.transpose(v[1], &back(case.turns.1))?;
            // An operand that is computed is evaluated, one that comes from outside is streamed.
            let l = if case.owned { b.abs(l)? } else { l };
            let (a, c) = if case.swapped { (r, l) } else { (l, r) };
            Ok(vec![b.dot_general(a, c, dimensions, ElementType::F32)?])
        });
        let (product, _) = measured(&program, vec![Input::from(&lhs), Input::from(&rhs)], case.threads);
        let product = product[0].as_slice::<f32>().unwrap();
        for i in 0..batch {
            for row in 0..m {
                for column in 0..n {
                    let l = &l[(i * m + row) * k..][..k];
                    let r = &r[(i * n + column) * k..][..k];
                    let sign = |x: f64| if case.owned { x.abs() } else { x };
                    let expected: f64 = l.iter().zip(r).map(|(&l, &r)| sign(l) * r).sum();
                    let at = if case.swapped { (i * n + column) * m + row } else { (i * m + row) * n + column };
                    prop_assert!((f64::from(product[at]) - expected).abs() < 3e-4, "{} is not {expected}", product[at]);
                }
            }
        }
    }
}

#[test]
fn several_contracting_dimensions_are_joined_in_order() {
    // [2, 3, 4] with [4, 5, 3] over dimensions of sizes 3 and 4: free dimensions 2 and 5.
    let (a, b) = (noisy(&[2, 3, 4], 1), noisy(&[4, 5, 3], 2));
    let dimensions = DotDimensions {
        lhs_contracting: vec![1, 2],
        rhs_contracting: vec![2, 0],
        ..DotDimensions::default()
    };
    let product = elements::<f32, _>(&[a.clone(), b.clone()], |f, v| {
        f.dot_general(v[0], v[1], dimensions, ElementType::F32)
    });
    let (a, b) = (a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap());
    for i in 0..2 {
        for j in 0..5 {
            let mut expected = 0.0;
            for k in 0..3 {
                for l in 0..4 {
                    expected += a[i * 12 + k * 4 + l] * b[l * 15 + j * 3 + k];
                }
            }
            assert!((product[i * 5 + j] - expected).abs() < 1e-5);
        }
    }
}

#[test]
fn a_dequantized_weight_is_multiplied_group_by_group() {
    // Packed words of eight 4-bit values, with a scale and a bias for each group of eight.
    let (outputs, groups) = (40, 6);
    let words: Vec<u32> = (0..outputs * groups).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect();
    let scales: Vec<f16> = (0..outputs * groups).map(|i| f16::from_f32(0.125 + (i % 5) as f32)).collect();
    let x = noisy(&[2, groups * 8], 3);
    let inputs = [x.clone(), tensor(&[outputs, groups], &words), tensor(&[outputs, groups], &scales)];
    let product = elements::<f32, _>(&inputs, |b, v| {
        let nibbles = b.bitcast_convert(v[1], ElementType::U4)?;
        let wide = b.convert(nibbles, ElementType::F32)?;
        let scale = b.convert(v[2], ElementType::F32)?;
        let scale = b.broadcast_in_dim(scale, &[outputs, groups, 8], &[0, 1])?;
        let weight = b.multiply(wide, scale)?;
        let weight = b.reshape(weight, &[outputs, groups * 8])?;
        b.linear(v[0], weight, None, ElementType::F32)
    });
    let x = x.as_slice::<f32>().unwrap();
    for row in 0..2 {
        for output in 0..outputs {
            let expected: f32 = (0..groups * 8)
                .map(|k| {
                    let group = output * groups + k / 8;
                    let q = words[group] >> (4 * (k % 8)) & 0xf;
                    x[row * groups * 8 + k] * q as f32 * scales[group].to_f32()
                })
                .sum();
            let actual = product[row * outputs + output];
            assert!((actual - expected).abs() < 1e-3 * expected.abs().max(1.0), "{actual} is not {expected}");
        }
    }
}

#[test]
fn runs_are_bit_for_bit_the_same_with_any_number_of_threads() {
    let (x, w) = (noisy(&[20, 300], 1), noisy(&[200, 300], 2));
    let types = [x.ty().clone(), w.ty().clone()];
    let program = plan(&types, |b, v| Ok(vec![b.linear(v[0], v[1], None, ElementType::F32)?]));
    let run = |threads| measured(&program, vec![Input::from(&x), Input::from(&w)], threads).0.remove(0);
    let alone = run(1);
    assert_eq!(alone.ty(), &TensorType::new(ElementType::F32, [20, 200]));
    assert!(run(2) == alone && run(5) == alone);
}
