//! Slices, updates, gather and scatter at run-time places.

use half::bf16;
use mlxcel_portable::eval::Input;
use mlxcel_stablehlo::{ElementType, GatherDimensions, ScatterDimensions, ScatterUpdate, TensorType};
use proptest::prelude::*;

use super::support::{counted, elements, eval, measured, noise, plan, tensor};

#[test]
fn slice_starts_are_clamped() {
    let x = counted(&[3, 4]);
    let at = |row: i32, column: i32| {
        let inputs = [x.clone(), tensor(&[], &[row]), tensor(&[], &[column])];
        elements::<f32, _>(&inputs, |b, v| b.dynamic_slice(v[0], &[v[1], v[2]], &[2, 2]))
    };
    assert_eq!(at(0, 1), [1.0, 2.0, 5.0, 6.0]);
    assert_eq!(at(-5, 100), [2.0, 3.0, 6.0, 7.0]);
    assert_eq!(at(i32::MAX, i32::MIN), [4.0, 5.0, 8.0, 9.0]);
    let unsigned = [x.clone(), tensor(&[], &[u32::MAX]), tensor(&[], &[1_u32])];
    let result = elements::<f32, _>(&unsigned, |b, v| b.dynamic_slice(v[0], &[v[1], v[2]], &[1, 3]));
    assert_eq!(result, [9.0, 10.0, 11.0]);
}

#[test]
fn update_starts_are_clamped() {
    let (x, update) = (counted(&[3, 3]), tensor(&[2, 1], &[10.0_f32, 20.0]));
    let at = |row: i64, column: i64| {
        let inputs = [x.clone(), update.clone(), tensor(&[], &[row]), tensor(&[], &[column])];
        elements::<f32, _>(&inputs, |b, v| b.dynamic_update_slice(v[0], v[1], &[v[2], v[3]]))
    };
    assert_eq!(at(0, 1), [0.0, 10.0, 2.0, 3.0, 20.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(at(9, -9), [0.0, 1.0, 2.0, 10.0, 4.0, 5.0, 20.0, 7.0, 8.0]);
}

fn rows(rank: usize, width: usize) -> GatherDimensions {
    GatherDimensions {
        offset_dims: vec![rank],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: rank,
        slice_sizes: vec![1, width],
    }
}

fn into_rows() -> ScatterDimensions {
    ScatterDimensions {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
    }
}

#[test]
fn gather_indices_are_clamped() {
    let (table, at) = (counted(&[3, 2]), tensor(&[4], &[2_i32, 0, -7, 99]));
    let result = elements::<f32, _>(&[table, at], |b, v| b.gather(v[0], v[1], rows(1, 2)));
    assert_eq!(result, [4.0, 5.0, 0.0, 1.0, 0.0, 1.0, 4.0, 5.0]);
}

#[test]
fn gather_offset_dimensions_may_be_interleaved() {
    // Columns of a matrix, with the window first in the result: the transpose of some columns.
    let (x, at) = (counted(&[2, 4]), tensor(&[3], &[3_i64, 1, 1]));
    let dimensions = GatherDimensions {
        offset_dims: vec![0],
        collapsed_slice_dims: vec![1],
        start_index_map: vec![1],
        index_vector_dim: 1,
        slice_sizes: vec![2, 1],
    };
    let result = elements::<f32, _>(&[x.clone(), at], |b, v| b.gather(v[0], v[1], dimensions));
    assert_eq!(result, [3.0, 1.0, 1.0, 7.0, 5.0, 5.0]);
    // Two components, in the other order, as vectors along dimension 0.
    let at = tensor(&[2, 2], &[3_i32, 0, 1, 0]);
    let dimensions = GatherDimensions {
        offset_dims: vec![],
        collapsed_slice_dims: vec![0, 1],
        start_index_map: vec![1, 0],
        index_vector_dim: 0,
        slice_sizes: vec![1, 1],
    };
    assert_eq!(elements::<f32, _>(&[x, at], |b, v| b.gather(v[0], v[1], dimensions)), [7.0, 0.0]);
}

#[test]
fn gather_from_a_converted_table_reads_the_gathered_rows_only() {
    let (vocabulary, width) = (4000, 64);
    let table: Vec<bf16> = (0..vocabulary * width).map(|i| bf16::from_f32((i / width) as f32)).collect();
    let table = tensor(&[vocabulary, width], &table);
    let program = plan(&[table.ty().clone(), TensorType::new(ElementType::I32, [3])], |b, v| {
        let wide = b.convert(v[0], ElementType::F32)?;
        Ok(vec![b.take(wide, v[1])?])
    });
    let at = tensor(&[3], &[7_i32, 0, 3840]);
    let (results, stats) = measured(&program, vec![Input::from(&table), Input::from(&at)], 1);
    let firsts: Vec<f32> = results[0].as_slice::<f32>().unwrap().iter().copied().step_by(width).collect();
    assert_eq!(firsts, [7.0, 0.0, 3840.0]);
    assert!(stats.peak_bytes() < 2048, "{} bytes", stats.peak_bytes());
}

#[test]
fn scatter_replaces_adds_and_skips_out_of_bounds_windows() {
    let (x, updates) = (tensor(&[4, 2], &[1_i32; 8]), tensor(&[3, 2], &[10_i32, 11, 20, 21, 30, 31]));
    let scatter = |at: [i32; 3], update| {
        let inputs = [x.clone(), tensor(&[3, 1], &at), updates.clone()];
        elements::<i32, _>(&inputs, |b, v| b.scatter(v[0], v[1], v[2], into_rows(), update, false))
    };
    assert_eq!(scatter([2, -1, 0], ScatterUpdate::Replace), [30, 31, 1, 1, 10, 11, 1, 1]);
    assert_eq!(scatter([2, 4, 2], ScatterUpdate::Replace), [1, 1, 1, 1, 30, 31, 1, 1]);
    assert_eq!(scatter([2, 1, 2], ScatterUpdate::Add), [1, 1, 21, 22, 41, 43, 1, 1]);
    // A window of two rows that would reach beyond the end is left out as a whole.
    let inputs = [x, tensor(&[2, 1], &[3_i32, 1]), tensor(&[2, 2, 2], &[5_i32, 5, 5, 5, 6, 7, 8, 9])];
    let dimensions =
        ScatterDimensions { update_window_dims: vec![1, 2], inserted_window_dims: vec![], ..into_rows() };
    let result = elements::<i32, _>(&inputs, |b, v| {
        b.scatter(v[0], v[1], v[2], dimensions, ScatterUpdate::Replace, true)
    });
    assert_eq!(result, [1, 1, 6, 7, 8, 9, 1, 1]);
}

#[test]
fn halves_are_added_where_they_are_scattered() {
    let x = tensor(&[2], &[bf16::from_f32(1.0), bf16::from_f32(2.0)]);
    let updates = tensor(&[2], &[bf16::from_f32(0.5), bf16::from_f32(0.25)]);
    let dimensions = ScatterDimensions { update_window_dims: vec![], ..into_rows() };
    let result = elements::<bf16, _>(&[x, tensor(&[2], &[1_i32, 1]), updates], |b, v| {
        b.scatter(v[0], v[1], v[2], dimensions, ScatterUpdate::Add, false)
    });
    assert_eq!(result, [bf16::from_f32(1.0), bf16::from_f32(2.75)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gather_and_scatter_of_rows_agree_with_loops(
        rows_count in 1..50usize, width in 1..700usize, count in 0..40usize, seed in any::<u64>(),
    ) {
        let mut noise = noise(seed);
        let at: Vec<i32> = (0..count).map(|_| (noise() % (rows_count as u64 + 4)) as i32 - 2).collect();
        let (table, indices) = (counted(&[rows_count, width]), tensor(&[count], &at));
        let updates: Vec<f32> = (0..count * width).map(|i| -(i as f32)).collect();
        let results = eval(&[table, indices, tensor(&[count, width], &updates)], |b, v| {
            let gathered = b.gather(v[0], v[1], rows(1, width))?;
            Ok(vec![gathered, b.scatter(v[0], v[1], v[2], into_rows(), ScatterUpdate::Add, false)?])
        });
        let mut expected: Vec<f32> = (0..rows_count * width).map(|i| i as f32).collect();
        for (i, &row) in at.iter().enumerate() {
            let clamped = row.clamp(0, rows_count as i32 - 1) as usize;
            let gathered = &results[0].as_slice::<f32>().unwrap()[i * width..(i + 1) * width];
            prop_assert!(gathered.iter().enumerate().all(|(j, &x)| x == (clamped * width + j) as f32));
            if row >= 0 && (row as usize) < rows_count {
                for j in 0..width {
                    expected[row as usize * width + j] += updates[i * width + j];
                }
            }
        }
        prop_assert_eq!(results[1].as_slice::<f32>().unwrap(), &expected[..]);
    }
}
