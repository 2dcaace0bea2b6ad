//! What is written in the place of an operation computes the same.

use mlxcel_portable::eval::{Input, Program, Tensor};
use mlxcel_stablehlo::{Builder, ElementType, Module, OpKind, Reduction, Result, TensorType, Value};

use super::rewrite_all;
use super::shapes::by_group;

const F32: ElementType = ElementType::F32;
const I32: ElementType = ElementType::I32;

fn module(write: impl for<'f> FnOnce(&mut Builder<'f>) -> Result<Vec<Value<'f>>>) -> Module {
    Module::of_function("test", "main", write).unwrap()
}

/// Numbers that differ from each other, some of them negative.
fn numbers(ty: &TensorType) -> Tensor {
    let count = ty.elements();
    let number = |i: usize| (i * 7919 % 4093) as i32 - 2000;
    match ty.element {
        ElementType::F32 => {
            let all: Vec<f32> = (0..count).map(|i| number(i) as f32 / 64.0).collect();
            Tensor::from_slice(ty.shape.clone(), &all).unwrap()
        }
        _ => {
            let all: Vec<i32> = (0..count).map(number).collect();
            Tensor::from_slice(ty.shape.clone(), &all).unwrap()
        }
    }
}

/// The results of `module` for `arguments`.
fn results(module: &Module, arguments: &[Tensor]) -> Vec<Tensor> {
    let inputs = arguments.iter().map(Input::from).collect();
    Program::plan(module, "main").unwrap().run(inputs).unwrap()
}

/// Rewrites `module`, of which `gone` says what must not be left, and compares its results; integers exactly.
fn same(module: Module, last: Option<Tensor>, gone: fn(&OpKind) -> bool) {
    let types = Program::plan(&module, "main").unwrap();
    let mut arguments: Vec<Tensor> = types.arguments().iter().map(|(_, ty)| numbers(ty)).collect();
    if let Some(last) = last {
        *arguments.last_mut().unwrap() = last;
    }
    let mut rewritten = module.clone();
    rewritten.functions.iter_mut().for_each(rewrite_all);
    rewritten.verify().unwrap();
    let left = rewritten.functions.iter().flat_map(|function| &function.body.ops).find(|op| gone(&op.kind));
    assert!(left.is_none(), "{left:?}\n{rewritten}");
    for (before, after) in results(&module, &arguments).iter().zip(results(&rewritten, &arguments)) {
        assert_eq!(before.ty(), after.ty());
        let Some(after) = after.as_slice::<f32>() else {
            assert_eq!(before.bytes(), after.bytes());
            continue;
        };
        for (&before, &after) in before.as_slice::<f32>().unwrap().iter().zip(after) {
            assert!((before - after).abs() <= 1e-5 * before.abs().max(100.0), "{before} is {after}");
        }
    }
}

#[test]
fn two_equal_parts_are_chosen_from() {
    for dimension in 0..3 {
        let module = module(|b| {
            let ty = TensorType::new(F32, [2, 3, 4]);
            let (x, y) = (b.argument("x", ty.clone())?, b.argument("y", ty)?);
            Ok(vec![b.concatenate(&[x, y], dimension)?])
        });
        same(module, None, |kind| matches!(kind, OpKind::Concatenate { .. }));
    }
}

#[test]
fn other_concatenations_stay() {
    let text = |shape: [usize; 2], parts: usize| {
        let module = module(|b| {
            let x = b.argument("x", TensorType::new(F32, [2, 3]))?;
            let y = b.argument("y", TensorType::new(F32, shape))?;
            Ok(vec![b.concatenate(&[x, y, x][..parts], 0)?])
        });
        super::text(module, true)
    };
    for (shape, parts) in [([1, 3], 2), ([2, 3], 3)] {
        assert!(text(shape, parts).contains("stablehlo.concatenate"));
    }
    assert!(!text([2, 3], 2).contains("stablehlo.concatenate"));
}

#[test]
fn long_rows_are_reduced_by_parts() {
    let long = |shape: Vec<usize>, reduction| {
        module(|b| {
            let x = b.argument("x", TensorType::new(F32, shape.clone()))?;
            Ok(vec![b.reduce(x, reduction, &[shape.len() - 1])?])
        })
    };
    for shape in [vec![2, 8192], vec![1, 128_256], vec![32_000], vec![2, 3, 151_936]] {
        for reduction in [Reduction::Sum, Reduction::Max, Reduction::Min] {
            same(long(shape.clone(), reduction), None, |_| false);
        }
        let text = super::text(long(shape, Reduction::Sum), true);
        assert_eq!(text.matches("stablehlo.reduce").count(), 2, "{text}");
    }
    for length in [4096, 50_257] {
        let text = super::text(long(vec![1, length], Reduction::Sum), true);
        assert_eq!(text.matches("stablehlo.reduce").count(), 1, "{text}");
    }
}

/// `[g, h, t] × [g, t, w]`, the right one a part of a cache if `cached`.
fn mixed(positions: usize, cached: bool) -> Module {
    module(|b| {
        let p = b.argument("p", TensorType::new(F32, [2, 3, 1, positions]))?;
        let v = if cached {
            let cache = b.argument("cache", TensorType::new(F32, [3, 2, 2, positions, 8]))?;
            let part = b.slice(cache, &[1, 1, 0, 0, 0], &[2, 2, 2, positions, 8])?;
            b.reshape(part, &[2, positions, 8])?
        } else {
            b.argument("v", TensorType::new(F32, [2, positions, 8]))?
        };
        Ok(vec![b.dot_general(p, v, by_group(3, 1), F32)?])
    })
}

#[test]
fn many_positions_are_summed_by_parts() {
    for positions in [128, 256, 512, 1152] {
        for cached in [false, true] {
            same(mixed(positions, cached), None, |_| false);
            let text = super::text(mixed(positions, cached), true);
            assert!(text.contains("stablehlo.reduce"), "{text}");
        }
    }
    for positions in [64, 130] {
        assert!(!super::text(mixed(positions, true), true).contains("stablehlo.reduce"));
    }
}

#[test]
fn values_of_a_slice_with_fewer_dimensions_are_reshaped() {
    let module = module(|b| {
        let p = b.argument("p", TensorType::new(F32, [2, 3, 128]))?;
        let cache = b.argument("cache", TensorType::new(F32, [3, 2048]))?;
        let part = b.slice(cache, &[1, 0], &[2, 2048])?;
        let v = b.reshape(part, &[2, 128, 8])?;
        Ok(vec![b.dot_general(p, v, by_group(2, 1), F32)?])
    });
    same(module, None, |_| false);
}

#[test]
fn signed_integers_are_compared_as_unsigned_ones() {
    for reduction in [Reduction::Min, Reduction::Max] {
        let module = module(|b| {
            let x = b.argument("x", TensorType::new(I32, [3, 70]))?;
            Ok(vec![b.reduce(x, reduction, &[1])?])
        });
        let text = super::text(module.clone(), false);
        assert!(text.contains("(tensor<3x70xui32>, tensor<ui32>) -> tensor<3xui32>"), "{text}");
        same(module, None, |_| false);
    }
}

#[test]
fn an_update_at_a_computed_index_is_a_scatter_of_rows() {
    // The update begins where it is told, or as late as it fits.
    for position in [-3, 0, 5, 9, 400] {
        for (shape, part, moving) in [
            (vec![3, 2, 2, 10, 4], vec![1, 2, 2, 3, 4], 3),
            (vec![4, 10, 6], vec![1, 1, 6], 1),
            (vec![12], vec![5], 0),
        ] {
            let module = module(|b| {
                let cache = b.argument("cache", TensorType::new(F32, shape.clone()))?;
                let new = b.argument("new", TensorType::new(F32, part.clone()))?;
                let position = b.argument("position", TensorType::scalar(I32))?;
                let mut at = vec![b.scalar(0i32)?; shape.len()];
                if moving > 0 {
                    at[0] = b.scalar(2i32)?;
                }
                at[moving] = position;
                Ok(vec![b.dynamic_update_slice(cache, new, &at)?])
            });
            let position = Tensor::scalar(position);
            same(module, Some(position), |kind| matches!(kind, OpKind::DynamicUpdateSlice));
        }
    }
}

#[test]
fn updates_that_are_no_rows_or_do_not_fit_stay() {
    let text = |part: [usize; 3], first: i32| {
        let module = module(|b| {
            let cache = b.argument("cache", TensorType::new(F32, [4, 10, 6]))?;
            let new = b.argument("new", TensorType::new(F32, part))?;
            let position = b.argument("position", TensorType::scalar(I32))?;
            let (first, zero) = (b.scalar(first)?, b.scalar(0i32)?);
            Ok(vec![b.dynamic_update_slice(cache, new, &[first, position, zero])?])
        });
        super::text(module, true)
    };
    assert!(text([1, 2, 6], 3).contains("stablehlo.scatter"));
    for (part, first) in [([1, 2, 5], 3), ([1, 2, 6], 4), ([1, 2, 6], -1)] {
        assert!(text(part, first).contains("stablehlo.dynamic_update_slice"));
    }
}
