//! From a StableHLO module to what the compiler is given: composites for which there is a better kernel are replaced.

mod few_rows;
#[cfg(test)]
mod kernel_tests;
pub(crate) mod layout;
mod spirv;

use std::cell::RefCell;
use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result};

use mlxcel_stablehlo::{Builder, Composite, ElementType, Module, Printer, Value, composites};

use few_rows::FewRows;

use crate::backend::ResolvedTarget;

/// The backend whose programs run on a processor, and for which the kernels here are written.
const CPU: &str = "llvm-cpu";

/// The text of `module` as the compiler is given it for `target`.
pub(crate) fn lower(module: &Module, target: &ResolvedTarget) -> Result<String> {
    match target.target().backend() {
        CPU => lower_for_cpu(module),
        "vulkan-spirv" | "metal-spirv" => Ok(spirv::text(decomposed(module)?)),
        _ => Ok(decomposed(module)?.to_string()),
    }
}

/// The name of the public function in exported text: the one that XLA looks for.
pub(crate) const EXPORT_ENTRY: &str = "main";

/// The text of a program for other compilers, its public function being called [`EXPORT_ENTRY`].
pub(crate) fn export(module: &Module) -> Result<String> {
    let mut plain = decomposed(module)?;
    for function in plain.functions.iter_mut().filter(|function| function.public) {
        EXPORT_ENTRY.clone_into(&mut function.name);
    }
    Ok(plain.to_string())
}

/// `module` without composites.
fn decomposed(module: &Module) -> Result<Module> {
    module.decompose_composites(|_| true).map_err(|error| {
        Error::new(ErrorKind::Internal, "write program", "a composite does not fit what it stands for")
            .with_source(error)
    })
}

/// The text of `module` for a processor: linear layers over few rows become kernels of ours, everything else is left to the
/// compiler, which takes composites as their decompositions.
pub(crate) fn lower_for_cpu(module: &Module) -> Result<String> {
    let kernels = RefCell::new(BTreeMap::new());
    let lowered = module
        .rewrite_composites(|composite, b| match composite.name {
            composites::LINEAR => linear(composite, b, &mut kernels.borrow_mut()),
            _ => Ok(None),
        })
        .map_err(|error| {
            Error::new(ErrorKind::Internal, "lower program", "a kernel does not fit what it replaces")
                .with_source(error)
        })?;
    let kernels = kernels.into_inner();
    let declarations: String = kernels.iter().map(|(kernel, name)| kernel.executable(name)).collect();
    let dispatch = |call: &mlxcel_stablehlo::print::CustomCall<'_>| {
        kernels.values().any(|name| name == call.target).then(|| {
            let operands = call.operands.join(", ");
            format!("flow.dispatch @{0}_executable::@{0}({operands}) : {1}", call.target, call.signature)
        })
    };
    Ok(Printer::new(&lowered).declarations(&declarations).custom_calls(&dispatch).to_string())
}

/// Replaces a linear layer over few rows by a kernel; the bias, which is rare and small, is added by the compiler's code.
fn linear<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    kernels: &mut BTreeMap<FewRows, String>,
) -> mlxcel_stablehlo::Result<Option<Vec<Value<'f>>>> {
    let [x, weight, ref bias @ ..] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let element = if bias.is_empty() { out.element } else { ElementType::F32 };
    let Some(kernel) = FewRows::new(b.ty(x), b.ty(weight), element) else {
        return many_rows(b, x, weight, bias.first().copied(), out.element);
    };
    let number = kernels.len();
    let name = kernels.entry(kernel).or_insert_with(|| format!("mlxcel_linear_{number}"));
    let results = b.custom_call(name, &[x, weight], vec![out.with_element(element)], &[], false)?;
    let &[bias] = bias else { return Ok(Some(results)) };
    let bias = b.convert(bias, ElementType::F32)?;
    let bias = b.broadcast_like(bias, results[0])?;
    let sum = b.add(results[0], bias)?;
    Ok(Some(vec![b.convert(sum, out.element)?]))
}

/// A linear layer over many rows is left to the compiler, in float32: its code for products of two half-precision matrices is a
/// quarter slower, and the sums are of the same numbers, since such products are exact in float32.
fn many_rows<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: Value<'f>,
    bias: Option<Value<'f>>,
    out: ElementType,
) -> mlxcel_stablehlo::Result<Option<Vec<Value<'f>>>> {
    if b.ty(x).element == ElementType::F32 {
        return Ok(None);
    }
    let x = b.convert(x, ElementType::F32)?;
    Ok(Some(vec![b.linear(x, weight, bias, out)?]))
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::{ModuleBuilder, TensorType};

    use super::*;

    fn lowered(rows: usize, bias: bool) -> String {
        lowered_from(ElementType::F32, rows, bias)
    }

    fn lowered_from(element: ElementType, rows: usize, bias: bool) -> String {
        let mut module = ModuleBuilder::new("test");
        module
            .function("main", |b| {
                let x = b.argument("x", TensorType::new(element, [rows, 64]))?;
                let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
                let bias = if bias {
                    Some(b.argument("b", TensorType::new(ElementType::BF16, [96]))?)
                } else {
                    None
                };
                let once = b.linear(x, w, bias, ElementType::F32)?;
                let twice = b.linear(x, w, bias, ElementType::F32)?;
                Ok(vec![once, twice])
            })
            .unwrap();
        lower_for_cpu(&module.finish()).unwrap()
    }

    #[test]
    fn linear_layers_over_few_rows_share_one_kernel_of_ours() {
        let text = lowered(3, false);
        assert_eq!(text.matches("stream.executable private").count(), 1);
        assert_eq!(
            text.matches("flow.dispatch @mlxcel_linear_0_executable::@mlxcel_linear_0(%x, %w)").count(),
            2
        );
        assert!(!text.contains("stablehlo.composite"));
        assert!(lowered(3, true).contains("stablehlo.add"));
    }

    #[test]
    fn other_targets_and_other_compilers_get_plain_operations() {
        let mut module = ModuleBuilder::new("test");
        module
            .function("step", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
                let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
                Ok(vec![b.linear(x, w, None, ElementType::F32)?])
            })
            .unwrap();
        let module = module.finish();
        let plain = export(&module).unwrap();
        assert!(plain.contains("stablehlo.dot_general") && !plain.contains("composite"), "{plain}");
        assert!(plain.contains("func.func public @main("));
        let lowered = |target| lower(&module, &crate::backend::resolved(target)).unwrap();
        assert_eq!(lowered("cuda:sm_89").replace("@step(", "@main("), plain);
        assert!(lowered("llvm-cpu:x86-64-v3").contains("stream.executable"));
    }

    #[test]
    fn a_prompt_chunk_is_left_to_the_compiler() {
        let text = lowered(64, false);
        assert!(
            text.contains("stablehlo.composite \"mlxcel.linear\"") && !text.contains("stream.executable")
        );
    }
}
