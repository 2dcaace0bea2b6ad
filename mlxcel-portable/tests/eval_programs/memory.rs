//! What a run reads, copies, updates in place and allocates; and inputs that are not what they should be.

use std::cell::Cell;

use half::{bf16, f16};
use mlxcel_portable::eval::{EvalError, Input, Program, RunOptions, Tensor, Workers};
use mlxcel_stablehlo::{Comparison, ElementType, ScatterDimensions, ScatterUpdate, TensorType};

use super::support::{counted, eval, measured, noisy, plan, tensor};

const CACHE: [usize; 3] = [64, 4, 8];

/// Writes a row into a cache at a position, and reads the cache afterwards.
fn cache_program(scatter: bool) -> Program {
    let cache = TensorType::new(ElementType::F32, CACHE);
    let row = TensorType::new(ElementType::F32, [1, 4, 8]);
    let position = TensorType::scalar(ElementType::I32);
    plan(&[cache, row, position], |b, v| {
        let updated = if scatter {
            let dimensions = ScatterDimensions {
                update_window_dims: vec![1, 2],
                inserted_window_dims: vec![0],
                scatter_dims_to_operand_dims: vec![0],
                index_vector_dim: 1,
            };
            let at = b.reshape(v[2], &[1, 1])?;
            b.scatter(v[0], at, v[1], dimensions, ScatterUpdate::Replace, true)?
        } else {
            let zero = b.scalar(0_i32)?;
            b.dynamic_update_slice(v[0], v[1], &[v[2], zero, zero])?
        };
        let sum = b.sum(updated, &[0, 1, 2])?;
        Ok(vec![sum, updated])
    })
}

#[test]
fn donated_caches_are_updated_in_place() {
    for scatter in [false, true] {
        let program = cache_program(scatter);
        let cache = Tensor::zeros(TensorType::new(ElementType::F32, CACHE)).unwrap();
        let address = cache.bytes().as_ptr();
        let row = tensor(&[1, 4, 8], &[2.0_f32; 32]);
        let position = tensor(&[], &[5_i32]);
        let inputs = vec![Input::Owned(cache), Input::from(&row), Input::from(&position)];
        let (results, stats) = measured(&program, inputs, 1);
        assert_eq!(results[0].as_slice::<f32>().unwrap(), [64.0]);
        assert_eq!(results[1].bytes().as_ptr(), address, "the storage itself comes back");
        assert_eq!(results[1].as_slice::<f32>().unwrap()[160..192], [2.0; 32]);
        assert!(stats.peak_bytes() < 1024, "{} bytes", stats.peak_bytes());
    }
}

#[test]
fn borrowed_caches_are_not_modified() {
    for scatter in [false, true] {
        let program = cache_program(scatter);
        let cache = Tensor::zeros(TensorType::new(ElementType::F32, CACHE)).unwrap();
        let row = tensor(&[1, 4, 8], &[2.0_f32; 32]);
        let position = tensor(&[], &[5_i32]);
        let inputs = vec![Input::from(&cache), Input::from(&row), Input::from(&position)];
        let results = program.run(inputs).unwrap();
        assert_eq!(results[0].as_slice::<f32>().unwrap(), [64.0]);
        assert!(cache.bytes().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn caches_that_are_read_later_are_copied() {
    let cache = TensorType::new(ElementType::F32, [4]);
    let program = plan(std::slice::from_ref(&cache), |b, v| {
        let (row, two) = (b.splat(ElementType::F32, 9.0, &[1])?, b.scalar(2_i32)?);
        let updated = b.dynamic_update_slice(v[0], row, &[two])?;
        Ok(vec![updated, b.add(v[0], updated)?])
    });
    let results = program.run(vec![counted(&[4]).into()]).unwrap();
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [0.0, 1.0, 9.0, 3.0]);
    assert_eq!(results[1].as_slice::<f32>().unwrap(), [0.0, 2.0, 11.0, 6.0]);
}

#[test]
fn slices_taken_before_an_update_see_the_old_values() {
    // The part is read late, by its old contents; the update stays in place all the same.
    let program = plan(&[TensorType::new(ElementType::F32, [1000])], |b, v| {
        let part = b.slice(v[0], &[1], &[4])?;
        let (row, two) = (b.splat(ElementType::F32, 9.0, &[1])?, b.scalar(2_i32)?);
        let updated = b.dynamic_update_slice(v[0], row, &[two])?;
        let new = b.slice(updated, &[1], &[4])?;
        Ok(vec![updated, b.subtract(new, part)?])
    });
    let cache = counted(&[1000]);
    let address = cache.bytes().as_ptr();
    let results = program.run(vec![cache.into()]).unwrap();
    assert_eq!(results[0].bytes().as_ptr(), address);
    assert_eq!(results[1].as_slice::<f32>().unwrap(), [0.0, 7.0, 0.0]);
}

#[test]
fn an_update_by_its_own_slice_reads_the_old_values() {
    let program = plan(&[TensorType::new(ElementType::F32, [6])], |b, v| {
        let (part, one) = (b.slice(v[0], &[0], &[4])?, b.scalar(1_i32)?);
        Ok(vec![b.dynamic_update_slice(v[0], part, &[one])?])
    });
    let results = program.run(vec![counted(&[6]).into()]).unwrap();
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [0.0, 0.0, 1.0, 2.0, 3.0, 5.0]);
}

#[test]
fn loops_update_carried_values_in_place() {
    let program = plan(&[TensorType::new(ElementType::F32, [512])], |b, v| {
        let zero = b.scalar(0_i32)?;
        let results = b.while_loop(
            &[zero, v[0]],
            |b, x| {
                let end = b.scalar(100_i32)?;
                b.compare(x[0], end, Comparison::Less)
            },
            |b, x| {
                let row = b.convert(x[0], ElementType::F32)?;
                let row = b.reshape(row, &[1])?;
                let updated = b.dynamic_update_slice(x[1], row, &[x[0]])?;
                let one = b.scalar(1_i32)?;
                Ok(vec![b.add(x[0], one)?, updated])
            },
        )?;
        Ok(vec![results[1]])
    });
    let cache = Tensor::zeros(TensorType::new(ElementType::F32, [512])).unwrap();
    let address = cache.bytes().as_ptr();
    let (results, stats) = measured(&program, vec![cache.into()], 1);
    assert_eq!(results[0].bytes().as_ptr(), address);
    assert!(results[0].as_slice::<f32>().unwrap()[..100].iter().enumerate().all(|(i, &x)| x == i as f32));
    assert!(stats.peak_bytes() < 2048, "{} bytes", stats.peak_bytes());
    assert!(stats.steps() > 200);
}

#[test]
fn an_input_can_be_returned_more_than_once() {
    let program = plan(&[TensorType::new(ElementType::F32, [4])], |b, v| {
        Ok(vec![v[0], b.reshape(v[0], &[2, 2])?, b.transpose(v[0], &[0])?])
    });
    let x = counted(&[4]);
    let address = x.bytes().as_ptr();
    let results = program.run(vec![x.into()]).unwrap();
    assert!(results.iter().all(|result| result.as_slice::<f32>().unwrap() == [0.0, 1.0, 2.0, 3.0]));
    assert_eq!(results[1].ty().shape, [2, 2]);
    assert!(results.iter().any(|result| result.bytes().as_ptr() == address));
}

#[test]
fn results_are_aligned_to_64_bytes() {
    for count in [1, 7, 1000] {
        let results = eval(&[counted(&[count])], |b, v| Ok(vec![b.add(v[0], v[0])?]));
        assert_eq!(results[0].bytes().as_ptr().align_offset(64), 0);
    }
}

/// The bytes behind `offset` bytes of something else.
fn shifted(tensor: &Tensor, offset: usize) -> Vec<u8> {
    [&vec![0xee; offset], tensor.bytes()].concat()
}

#[test]
fn borrowed_inputs_may_be_unaligned() {
    let w = noisy(&[70, 40], 2);
    for element in [ElementType::F32, ElementType::BF16, ElementType::F16] {
        for rows in [1, 3, 20] {
            let x = noisy(&[rows, 40], 1);
            let w = eval(std::slice::from_ref(&w), |b, v| Ok(vec![b.convert(v[0], element)?])).remove(0);
            let ids = tensor(&[2], &[3_i64, 69]);
            let types = [x.ty().clone(), w.ty().clone(), ids.ty().clone()];
            let program = plan(&types, |b, v| {
                let product = b.linear(v[0], v[1], None, ElementType::F32)?;
                let rows = b.take(v[1], v[2])?;
                Ok(vec![product, rows, b.transpose(v[1], &[1, 0])?])
            });
            let aligned = program.run(vec![Input::from(&x), Input::from(&w), Input::from(&ids)]).unwrap();
            for offset in 1..8 {
                let bytes = [&x, &w, &ids].map(|tensor| (tensor.ty(), shifted(tensor, offset)));
                let inputs =
                    bytes.iter().map(|&(ty, ref bytes)| Input::Borrowed { ty, bytes: &bytes[offset..] });
                let results = program.run(inputs.collect()).unwrap();
                assert_eq!(results[1..], aligned[1..], "{element} at {offset}");
                let [found, wanted] = [&results, &aligned].map(|all| all[0].as_slice::<f32>().unwrap());
                assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-5));
            }
        }
    }
}

#[test]
fn a_weight_is_never_expanded() {
    let (outputs, inputs, rows) = (2048, 1024, [1, 4, 64]);
    for element in [ElementType::BF16, ElementType::F16, ElementType::F32] {
        let w = eval(&[noisy(&[outputs, inputs], 5)], |b, v| Ok(vec![b.convert(v[0], element)?])).remove(0);
        for rows in rows {
            let x = noisy(&[rows, inputs], 6);
            let program = plan(&[x.ty().clone(), w.ty().clone()], |b, v| {
                Ok(vec![b.linear(v[0], v[1], None, ElementType::F32)?])
            });
            let (_, stats) = measured(&program, vec![Input::from(&x), Input::from(&w)], 2);
            let activations = 4 * rows * (2 * inputs + outputs);
            let limit = activations + (1 << 20);
            assert!(stats.peak_bytes() < limit, "{} of {limit} bytes", stats.peak_bytes());
            assert!(limit < 4 * outputs * inputs, "the limit says something");
        }
    }
}

#[test]
fn elementwise_expressions_allocate_no_intermediates() {
    let count = 1 << 16;
    let program = plan(&[TensorType::new(ElementType::F32, [count])], |b, v| {
        let mut y = v[0];
        for _ in 0..8 {
            y = b.sine(y)?;
            y = b.add(y, v[0])?;
        }
        let y = b.reshape(y, &[256, 256])?;
        let y = b.transpose(y, &[1, 0])?;
        Ok(vec![b.sum(y, &[0, 1])?])
    });
    let x = noisy(&[count], 3);
    let (_, stats) = measured(&program, vec![Input::from(&x)], 1);
    assert!(stats.peak_bytes() < 2 * x.bytes().len(), "{} bytes", stats.peak_bytes());
}

#[test]
fn wrong_inputs_are_rejected_by_name() {
    let ty = TensorType::new(ElementType::F32, [2]);
    let program = plan(&[ty.clone(), ty.clone()], |b, v| Ok(vec![b.add(v[0], v[1])?]));
    let x = tensor(&[2], &[1.0_f32, 2.0]);
    let error = program.run(vec![Input::from(&x)]).unwrap_err();
    assert!(matches!(error, EvalError::InputCount { expected: 2, actual: 1 }));
    let error = program.run(vec![Input::from(&x), counted(&[3]).into()]).unwrap_err();
    assert_eq!(error.to_string(), "input 1 (`x.1`) must be tensor<2xf32>, but is tensor<3xf32>");
    let short = Input::Borrowed { ty: &ty, bytes: &[0; 7] };
    let error = program.run(vec![Input::from(&x), short]).unwrap_err();
    assert_eq!(error.to_string(), "input 1 (`x.1`) must have 8 bytes, but has 7");
}

#[test]
fn tensor_data_must_match_the_shape() {
    assert!(matches!(Tensor::from_slice([3], &[1.0_f32]), Err(EvalError::TensorLength { .. })));
    assert!(Tensor::from_bytes(TensorType::new(ElementType::I4, [3]), &[0; 2]).is_ok());
    let mut x = Tensor::from_slice([2], &[f16::ONE, f16::ZERO]).unwrap();
    assert_eq!(x.as_slice::<bf16>(), None);
    x.as_mut_slice::<f16>().unwrap()[1] = f16::from_f32(2.0);
    assert_eq!(x.as_slice::<f16>().unwrap()[1].to_f32(), 2.0);
    assert_eq!(Tensor::scalar(true).as_slice::<bool>(), Some(&[true][..]));
    let not_a_truth = Tensor::from_bytes(TensorType::new(ElementType::I1, [1]), &[7]).unwrap();
    assert_eq!(not_a_truth.as_slice::<bool>(), None);
}

#[test]
fn a_run_ends_when_it_is_cancelled() {
    let program = plan(&[TensorType::scalar(ElementType::I32)], |b, v| {
        b.while_loop(
            &[v[0]],
            |b, _| b.scalar(true),
            |b, x| {
                let one = b.scalar(1_i32)?;
                Ok(vec![b.add(x[0], one)?])
            },
        )
    });
    let asked = Cell::new(0);
    let cancel = || {
        asked.set(asked.get() + 1);
        asked.get() > 50
    };
    let options = RunOptions { cancel: Some(&cancel), ..RunOptions::default() };
    let error = program.run_with(vec![tensor(&[], &[0_i32]).into()], &options).unwrap_err();
    assert!(matches!(error, EvalError::Cancelled));
    assert_eq!(asked.get(), 51);
}

#[test]
fn the_requested_number_of_threads_is_used() {
    assert_eq!(Workers::new(0).unwrap().threads(), 1);
    assert_eq!(Workers::new(3).unwrap().threads(), 3);
}
