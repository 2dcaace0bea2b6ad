//! What a row gives does not depend, to the last bit, on how many rows are computed with it: kernels, and
//! what the compiler makes of the operations between them.

use mlxcel_core::Precision;
use mlxcel_graph::layers;
use mlxcel_graph::packed::{PackedWeight, packed_linear};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::ElementType::{BF16, F32};
use mlxcel_stablehlo::{Builder, Module, Result, TensorType, Value};

use super::linear::values;
use super::packed::{Random, example};
use super::{arguments, computed, lesser, schedules_of};
use crate::testing::host;

/// Rows that a weight streams past, and rows that are computed in blocks.
const COUNTS: [usize; 6] = [1, 2, 4, 8, 16, 40];

/// A width of published models.
const HIDDEN: usize = 1024;

/// The width of an MLP's middle.
const MIDDLE: usize = 1536;

/// Matrices whose panels are computed alone since they are few, as those of keys and values.
const FEW: usize = 256;

/// A norm, an MLP behind it with a residual, and a packed layer: `[rows, HIDDEN]` and `[rows, FEW]`.
fn layer<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    [gains, up, down]: [Value<'f>; 3],
    packed: &PackedWeight<'f>,
) -> Result<[Value<'f>; 2]> {
    let normed = layers::rms_norm(b, x, gains, 1e-5)?;
    let operand = b.convert(normed, BF16)?;
    let middle = layers::linear(b, operand, up, None, F32)?;
    let logistic = b.logistic(middle)?;
    let middle = b.multiply(middle, logistic)?;
    let middle = b.convert(middle, BF16)?;
    let out = layers::linear(b, middle, down, None, F32)?;
    let out = b.add(x, out)?;
    let again = layers::rms_norm(b, out, gains, 1e-5)?;
    let few = packed_linear(b, again, packed, None, F32)?;
    Ok([out, few])
}

#[test]
fn a_rows_result_does_not_depend_on_the_batch_size() {
    let weight = example("u4/64 bf16 + bf16", &[FEW], HIDDEN, &mut Random(5));
    let most = COUNTS[COUNTS.len() - 1];
    let all = values(&TensorType::new(F32, [most, HIDDEN]), 9);
    let mut tensors = Vec::new();
    let module = Module::of_function("rows", "main", |b| {
        let shapes = [vec![HIDDEN], vec![MIDDLE, HIDDEN], vec![HIDDEN, MIDDLE]];
        let types = shapes.map(|shape| TensorType::new(BF16, shape));
        let dense = arguments(b, "w", &types)?;
        tensors.extend(types.iter().zip(1..).map(|(ty, seed)| values(ty, seed)));
        let parts = arguments(b, "p", weight.parts.iter().map(Tensor::ty))?;
        tensors.extend(weight.parts.iter().cloned());
        let packed = PackedWeight { packing: weight.packing, parts };
        let mut results = Vec::new();
        for count in COUNTS {
            let ty = TensorType::new(F32, [count, HIDDEN]);
            let x = b.argument(format!("x{count}"), ty.clone())?;
            tensors.push(Tensor::from_bytes(ty.clone(), &all.bytes()[..ty.bytes()]).unwrap());
            results.extend(layer(b, x, [dense[0], dense[1], dense[2]], &packed)?);
        }
        Ok(results)
    })
    .unwrap();
    for target in schedules_of(&host()).into_iter().chain(lesser()) {
        let results = computed(&module, &tensors, &target, Precision::Native);
        let wanted = &results[results.len() - 2..];
        for (count, results) in COUNTS.iter().zip(results.chunks(2)) {
            for (result, wanted) in results.iter().zip(wanted) {
                let different = result.iter().zip(wanted).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                assert_eq!(different, 0, "{target}: of {} values of {count} rows", result.len());
            }
        }
    }
}
