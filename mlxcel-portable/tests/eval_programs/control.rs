//! Loops, calls, composites, and what cannot be evaluated.

use mlxcel_graph::layers::rms_norm;
use mlxcel_portable::eval::{EvalError, Program, Tensor};
use mlxcel_stablehlo::{Comparison, ElementType, Module, ModuleBuilder, TensorType};

use super::support::{elements, eval, tensor};

#[test]
fn a_loop_runs_while_its_condition_holds() {
    let results = eval(&[tensor(&[], &[10_i32])], |b, v| {
        let limit = v[0];
        let (zero, one) = (b.scalar(0_i32)?, b.scalar(1_i64)?);
        b.while_loop(
            &[zero, one, one],
            |b, x| b.compare(x[0], limit, Comparison::Less),
            |b, x| {
                let step = b.scalar(1_i32)?;
                let next = b.add(x[0], step)?;
                let sum = b.add(x[1], x[2])?;
                // The carried values change places: the old one must be read before it is replaced.
                Ok(vec![next, x[2], sum])
            },
        )
    });
    assert_eq!(results[0].as_slice::<i32>().unwrap(), [10]);
    assert_eq!(results[1].as_slice::<i64>().unwrap(), [89]);
    assert_eq!(results[2].as_slice::<i64>().unwrap(), [144]);
}

#[test]
fn loops_may_run_zero_times_and_nest() {
    let results = eval(&[tensor(&[], &[0_i32])], |b, v| {
        let outer = b.while_loop(
            &[v[0], v[0]],
            |b, x| {
                let three = b.scalar(3_i32)?;
                b.compare(x[0], three, Comparison::Less)
            },
            |b, x| {
                let inner = b.while_loop(
                    &[x[1], x[0]],
                    |b, y| {
                        let zero = b.scalar(0_i32)?;
                        b.compare(y[1], zero, Comparison::Greater)
                    },
                    |b, y| {
                        let (ten, one) = (b.scalar(10_i32)?, b.scalar(1_i32)?);
                        Ok(vec![b.add(y[0], ten)?, b.subtract(y[1], one)?])
                    },
                )?;
                let one = b.scalar(1_i32)?;
                Ok(vec![b.add(x[0], one)?, inner[0]])
            },
        )?;
        Ok(outer)
    });
    // 0 + 1 + 2 inner turns.
    assert_eq!(results[1].as_slice::<i32>().unwrap(), [30]);
}

#[test]
fn composites_and_calls_evaluate_their_functions() {
    let mut module = ModuleBuilder::new("calls");
    let pair = TensorType::new(ElementType::F32, [2]);
    module
        .private_function("swap", |b| {
            let (x, y) = (b.argument("x", pair.clone())?, b.argument("y", pair.clone())?);
            Ok(vec![y, x])
        })
        .unwrap();
    module
        .function("main", |b| {
            let (x, y) = (b.argument("x", pair.clone())?, b.argument("y", pair.clone())?);
            let swapped = b.call("swap", &[x, y])?;
            let doubled =
                b.composite("test.double", &[swapped[0]], &[], |b, v| Ok(vec![b.add(v[0], v[0])?]))?;
            Ok(vec![doubled[0], swapped[1], swapped[1]])
        })
        .unwrap();
    let program = Program::plan(&module.finish(), "main").unwrap();
    let (x, y) = (tensor(&[2], &[1.0_f32, 2.0]), tensor(&[2], &[3.0_f32, 4.0]));
    let results = program.run(vec![x.into(), y.into()]).unwrap();
    assert_eq!(results[0].as_slice::<f32>().unwrap(), [6.0, 8.0]);
    assert_eq!(results[1].as_slice::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(results[1], results[2]);
}

#[test]
fn helpers_have_known_values() {
    let x = tensor(&[1, 4], &[1.0_f32, 2.0, 3.0, 4.0]);
    let softmax = elements::<f32, _>(std::slice::from_ref(&x), |b, v| b.softmax(v[0], 1));
    let total: f32 = (1..5).map(|i| (i as f32 - 4.0).exp()).sum();
    for (i, &p) in softmax.iter().enumerate() {
        assert!((p - (i as f32 - 3.0).exp() / total).abs() < 1e-6);
    }
    let weight = tensor(&[4], &[1.0_f32, 1.0, 2.0, 1.0]);
    let normed = elements::<f32, _>(&[x, weight], |b, v| rms_norm(b, v[0], v[1], 0.0));
    let scale = 1.0 / 7.5_f32.sqrt();
    assert!(normed.iter().zip([1.0, 2.0, 6.0, 4.0]).all(|(&x, e)| (x - e * scale).abs() < 1e-6));
}

#[test]
fn custom_calls_are_refused_by_name() {
    let module = Module::of_function("custom", "main", |b| {
        let ty = TensorType::new(ElementType::F32, [2]);
        let x = b.argument("x", ty.clone())?;
        b.custom_call("vendor.kernel", &[x], vec![ty], &[], false)
    })
    .unwrap();
    let error = Program::plan(&module, "main").unwrap_err();
    assert!(matches!(error, EvalError::Unsupported { .. }));
    assert_eq!(error.to_string(), "custom call `vendor.kernel` cannot be evaluated");
    assert!(matches!(Program::plan(&module, "other").unwrap_err(), EvalError::NoSuchFunction { .. }));
}

#[test]
fn hand_edited_modules_are_checked() {
    let module = Module::of_function("broken", "main", |b| {
        let x = b.argument("x", TensorType::new(ElementType::F32, [2]))?;
        Ok(vec![b.add(x, x)?])
    })
    .unwrap();
    let mut module = module;
    module.functions[0].body.ops[0].operands.pop();
    assert!(matches!(Program::plan(&module, "main").unwrap_err(), EvalError::Malformed(_)));
}

#[test]
fn programs_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let module = Module::of_function("shared", "main", |b| {
        let x = b.argument("x", TensorType::new(ElementType::F32, [3]))?;
        Ok(vec![b.add(x, x)?])
    })
    .unwrap();
    let program = Program::plan(&module, "main").unwrap();
    shared(&program);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let program = &program;
            scope.spawn(move || {
                let x = Tensor::from_slice([3], &[i as f32; 3]).unwrap();
                assert_eq!(
                    program.run(vec![x.into()]).unwrap()[0].as_slice::<f32>().unwrap(),
                    [2.0 * i as f32; 3]
                );
            });
        }
    });
}
