//! What layers and the builder's helpers compute, against the formulas written out in double precision.

use half::bf16;
use mlxcel_graph::layers;
use mlxcel_stablehlo::{Comparison, ElementType, TensorType};

use crate::layers::support::{halves, near, numbers, run, tensor};

use ElementType::{BF16, F32, I1, I32};

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[test]
fn linear_multiplies_by_the_transposed_weight() {
    let (x, w, bias) = (numbers(6, 1), numbers(12, 2), numbers(4, 3));
    let arguments = [tensor(&[2, 3], &x), tensor(&[4, 3], &w), tensor(&[4], &bias)];
    let results = run(&arguments, |b, v| {
        Ok(vec![layers::linear(b, v[0], v[1], None, F32)?, layers::linear(b, v[0], v[1], Some(v[2]), F32)?])
    });
    let plain: Vec<f64> =
        x.chunks(3).flat_map(|x| w.chunks(3).map(|w| dot(x, w)).collect::<Vec<_>>()).collect();
    let biased: Vec<f64> = plain.iter().enumerate().map(|(i, y)| y + f64::from(bias[i % 4])).collect();
    near(results[0].as_slice().unwrap(), &plain, 1e-6);
    near(results[1].as_slice().unwrap(), &biased, 1e-6);
}

#[test]
fn linear_sums_halves_in_f32_and_rounds_once() {
    // 1 + 2^-9 · 4 is lost if sums are rounded to bf16 (8 bits) on the way.
    let small = 2f32.powi(-9);
    let x = halves(&[1.0, small, small, small, small]);
    let results = run(&[tensor(&[1, 5], &x), tensor(&[1, 5], &halves(&[1.0; 5]))], |b, v| {
        let wide = b.convert(v[0], F32)?;
        Ok(vec![
            layers::linear(b, v[0], v[1], None, BF16)?,
            layers::linear(b, v[0], v[1], None, F32)?,
            layers::linear(b, wide, v[1], None, F32)?,
        ])
    });
    assert_eq!(results[0].as_slice::<bf16>().unwrap(), halves(&[1.0 + 4.0 * small]));
    for result in &results[1..] {
        assert_eq!(result.as_slice::<f32>().unwrap(), [1.0 + 4.0 * small]);
    }
}

#[test]
fn rms_norm_rounds_where_llama_rounds() {
    let (x, weight) = (numbers(16, 4), numbers(8, 5));
    let eps = 1e-2f32;
    let normalised: Vec<f64> = x
        .chunks(8)
        .flat_map(|row| {
            let scale = 1.0 / (dot(row, row) / 8.0 + f64::from(eps)).sqrt();
            row.iter().map(|&x| f64::from(x) * scale).collect::<Vec<_>>()
        })
        .collect();
    let wanted: Vec<f64> =
        normalised.iter().zip(weight.iter().cycle()).map(|(x, &w)| x * f64::from(w)).collect();
    let results = run(&[tensor(&[2, 8], &x), tensor(&[8], &weight)], |b, v| {
        Ok(vec![layers::rms_norm(b, v[0], v[1], eps)?])
    });
    near(results[0].as_slice().unwrap(), &wanted, 1e-6);

    // In bf16: normalised in f32, rounded, multiplied by the weight, rounded again.
    let (x, weight) = (halves(&x), halves(&weight));
    let wanted: Vec<bf16> = x
        .chunks(8)
        .flat_map(|row| {
            let wide: Vec<f32> = row.iter().map(|x| x.to_f32()).collect();
            let mean = wide.iter().map(|x| x * x).sum::<f32>() / 8.0;
            let scale = 1.0 / (mean + eps).sqrt();
            let scaled =
                |(x, w): (&f32, &bf16)| bf16::from_f32(bf16::from_f32(x * scale).to_f32() * w.to_f32());
            wide.iter().zip(&weight).map(scaled).collect::<Vec<_>>()
        })
        .collect();
    let results = run(&[tensor(&[2, 8], &x), tensor(&[8], &weight)], |b, v| {
        Ok(vec![layers::rms_norm(b, v[0], v[1], eps)?])
    });
    assert_eq!(results[0].as_slice::<bf16>().unwrap(), wanted);
}

#[test]
fn rope_rotates_halves_and_passes_the_rest() {
    let (rows, heads, width, half) = (3, 2, 6, 2);
    let (x, angles) = (numbers(rows * heads * width, 6), numbers(rows * half, 7));
    let results = run(&[tensor(&[rows, heads, width], &x), tensor(&[rows, half], &angles)], |b, v| {
        let (cos, sin) = (b.cosine(v[1])?, b.sine(v[1])?);
        Ok(vec![layers::rope(b, v[0], cos, sin)?])
    });
    let wanted: Vec<f64> = (0..rows * heads * width)
        .map(|i| {
            let (row, d) = (i / (heads * width), i % width);
            let angle = |k: usize| f64::from(angles[row * half + k]);
            let at = |i: usize| f64::from(x[i]);
            match d {
                0 | 1 => at(i) * angle(d).cos() - at(i + half) * angle(d).sin(),
                2 | 3 => at(i) * angle(d - half).cos() + at(i - half) * angle(d - half).sin(),
                _ => at(i),
            }
        })
        .collect();
    near(results[0].as_slice().unwrap(), &wanted, 1e-6);
}

/// Attention, written out: `[T, H · e]`.
fn attention(q: &[f32], k: &[f32], v: &[f32], mask: &[bool], sizes: [usize; 6], scale: f64) -> Vec<f64> {
    let [heads, queries, width, groups, keys, v_width] = sizes;
    let mut out = vec![0.0; queries * heads * v_width];
    for head in 0..heads {
        let group = head / (heads / groups);
        for t in 0..queries {
            let q = &q[(head * queries + t) * width..][..width];
            let weights: Vec<f64> = (0..keys)
                .map(|s| {
                    if mask[t * keys + s] {
                        (scale * dot(q, &k[(group * keys + s) * width..][..width])).exp()
                    } else {
                        0.0
                    }
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for (s, weight) in weights.iter().enumerate() {
                for d in 0..v_width {
                    let value = f64::from(v[(group * keys + s) * v_width + d]);
                    out[(t * heads + head) * v_width + d] += weight / total * value;
                }
            }
        }
    }
    out
}

#[test]
fn attention_shares_heads_and_masks() {
    let sizes @ [heads, queries, width, groups, keys, v_width] = [6, 3, 4, 2, 5, 2];
    let q = numbers(heads * queries * width, 8);
    let k = numbers(groups * keys * width, 9);
    let v = numbers(groups * keys * v_width, 10);
    let mask: Vec<bool> = (0..queries * keys).map(|i| i % keys <= i / keys + 1).collect();
    let arguments = [
        tensor(&[heads, queries, width], &q),
        tensor(&[groups, keys, width], &k),
        tensor(&[groups, keys, v_width], &v),
        tensor(&[queries, keys], &mask),
    ];
    let results = run(&arguments, |b, a| {
        let (k, v) = (b.convert(a[1], BF16)?, b.convert(a[2], BF16)?);
        Ok(vec![
            layers::attention(b, a[0], a[1], a[2], a[3], 0.5, F32)?,
            layers::attention(b, a[0], k, v, a[3], 0.5, BF16)?,
        ])
    });
    let wanted = attention(&q, &k, &v, &mask, sizes, 0.5);
    assert_eq!(results[0].ty(), &TensorType::new(F32, [queries, heads * v_width]));
    near(results[0].as_slice().unwrap(), &wanted, 1e-6);
    let rounded: Vec<f32> = results[1].as_slice::<bf16>().unwrap().iter().map(|x| x.to_f32()).collect();
    near(&rounded, &wanted, 2e-2);
}

#[test]
fn a_fully_masked_query_gets_the_mean() {
    let arguments = [
        tensor(&[1, 1, 2], &[3.0f32, 4.0]),
        tensor(&[1, 2, 2], &[1.0f32, 2.0, 3.0, 4.0]),
        tensor(&[1, 2], &[false, false]),
    ];
    let results = run(&arguments, |b, a| Ok(vec![layers::attention(b, a[0], a[1], a[1], a[2], 1.0, F32)?]));
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [2.0, 3.0]);
}

#[test]
fn softmax_and_its_logarithm_are_stable() {
    let x = [1000.0f32, 999.0, -1000.0, 0.5, 0.25, f32::NEG_INFINITY];
    let results = run(&[tensor(&[2, 3], &x)], |b, v| {
        Ok(vec![b.softmax(v[0], 1)?, b.log_softmax(v[0], 1)?, b.log_sum_exp(v[0], 1)?])
    });
    let row = |x: &[f32]| {
        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|&x| f64::from(x - largest).exp()).sum();
        f64::from(largest) + sum.ln()
    };
    let norms: Vec<f64> = x.chunks(3).map(row).collect();
    let logs: Vec<f64> = x.iter().enumerate().map(|(i, &x)| f64::from(x) - norms[i / 3]).collect();
    let probabilities: Vec<f64> = logs.iter().map(|x| x.exp()).collect();
    near(results[0].as_slice().unwrap(), &probabilities, 1e-6);
    near(&results[1].as_slice::<f32>().unwrap()[..5], &logs[..5], 1e-4);
    assert_eq!(results[1].as_slice::<f32>().unwrap()[5], f32::NEG_INFINITY);
    near(results[2].as_slice().unwrap(), &norms, 1e-4);
}

#[test]
fn argmax_ties_go_to_the_first_and_nan_is_never_chosen() {
    let x = [1.0, 3.0, 3.0, f32::NAN, f32::NEG_INFINITY, -5.0, f32::NAN, f32::NAN, f32::NAN];
    let results = run(&[tensor(&[3, 3], &x), tensor(&[3], &[-7i32, -7, -9])], |b, v| {
        let (value, index) = b.argmax(v[0], 1)?;
        let (_, integer) = b.argmax(v[1], 0)?;
        Ok(vec![value, index, integer])
    });
    assert_eq!(results[1].as_slice::<i32>().unwrap(), [1, 2, 0]);
    assert_eq!(results[2].as_slice::<i32>().unwrap(), [0]);
    let values = results[0].as_slice::<f32>().unwrap();
    assert_eq!(values[..2], [3.0, -5.0]);
    assert!(values[2].is_nan());
}

#[test]
fn take_and_broadcast_place_elements() {
    let table = numbers(8, 11);
    let results = run(&[tensor(&[4, 2], &table), tensor(&[3], &[2i32, 0, 9])], |b, v| {
        let row = b.slice(v[0], &[1, 0], &[2, 2])?;
        let column = b.slice(v[0], &[0, 1], &[3, 2])?;
        let column = b.reshape(column, &[3])?;
        let rows = b.take(v[0], v[1])?;
        let shape = b.shape(rows);
        let zero = b.splat(I32, 0.0, &[])?;
        let zeros = b.broadcast_like(zero, v[1])?;
        let positive = b.compare(v[1], zeros, Comparison::Greater)?;
        Ok(vec![rows, b.broadcast_like(row, rows)?, b.expand(column, &shape, &[1])?, positive])
    });
    let t = &table;
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [t[4], t[5], t[0], t[1], t[6], t[7]]);
    assert_eq!(results[1].as_slice::<f32>().unwrap(), [t[2], t[3], t[2], t[3], t[2], t[3]]);
    assert_eq!(results[2].as_slice::<f32>().unwrap(), [t[1], t[1], t[3], t[3], t[5], t[5]]);
    assert_eq!(results[3].ty(), &TensorType::new(I1, [3]));
    assert_eq!(results[3].as_slice::<bool>().unwrap(), [true, false, true]);
}

#[test]
fn a_broadcast_that_reorders_dimensions_is_a_transpose() {
    let x = numbers(6, 12);
    let results = run(&[tensor(&[2, 3], &x)], |b, v| Ok(vec![b.broadcast_in_dim(v[0], &[3, 2], &[1, 0])?]));
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [x[0], x[3], x[1], x[4], x[2], x[5]]);
}

#[test]
fn rows_are_looked_up_in_f32() {
    let table: Vec<bf16> = (0..15).map(|i| bf16::from_f32(i as f32)).collect();
    let results = run(&[tensor(&[5, 3], &table), tensor(&[4], &[4, 0, 99, -1])], |b, v| {
        Ok(vec![layers::embedding(b, v[0], v[1])?])
    });
    assert_eq!(results[0].ty().to_string(), "tensor<4x3xf32>");
    let wanted: Vec<f32> =
        [4, 0, 4, 0].iter().flat_map(|row| [0, 1, 2].map(|column| (row * 3 + column) as f32)).collect();
    assert_eq!(results[0].as_slice::<f32>().unwrap(), wanted);
}
