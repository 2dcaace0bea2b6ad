//! From a StableHLO module to what the compiler is given: composites for which there is a better kernel are replaced.

mod attention;
mod instructions;
#[cfg(test)]
mod kernel_tests;
mod kernels;
pub(crate) mod layout;
mod linear;
mod spirv;
mod writer;

use std::cell::RefCell;

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_stablehlo::{Module, Printer, composites};

use instructions::Instructions;
use kernels::Kernels;

use crate::backend::ResolvedTarget;

/// The backend whose programs run on a processor, and for which the kernels here are written.
const CPU: &str = "llvm-cpu";

/// The text of `module` as the compiler is given it for `target`; kernels of ours may round as `precision` says.
pub(crate) fn lower(module: &Module, target: &ResolvedTarget, precision: Precision) -> Result<String> {
    match target.target().backend() {
        CPU => match Instructions::of(target)? {
            Some(instructions) => lower_for_cpu(module, instructions, precision),
            None => Ok(module.to_string()),
        },
        "vulkan-spirv" | "metal-spirv" => Ok(spirv::text(decomposed(module)?)),
        _ => Ok(decomposed(module)?.to_string()),
    }
}

/// Whether the kernels read weights in panels yet.
const PANELS: bool = false;

/// How many lanes the panels have in which programs for `target` expect their weights, as [`layout::WeightLayout::of`] is
/// told; none where they expect them as they are stored.
///
/// # Errors
/// Those of [`Instructions::of`].
#[allow(dead_code, reason = "loading asks as soon as it can put weights into panels")]
pub(crate) fn weight_lanes(target: &ResolvedTarget) -> Result<Option<usize>> {
    let instructions = Instructions::of(target)?.filter(|_| PANELS);
    Ok(instructions.map(|instructions| instructions.lanes()))
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

/// What rewriting a composite needs to know, and what it adds to.
#[derive(Debug)]
pub(crate) struct Context {
    /// What kernels may use.
    pub(crate) instructions: Instructions,
    /// What kernels may round.
    pub(crate) precision: Precision,
    /// The kernels so far.
    pub(crate) kernels: Kernels,
}

/// The text of `module` for a processor: composites for which there is a kernel of ours become calls of it, everything else is
/// left to the compiler, which takes composites as their decompositions.
fn lower_for_cpu(module: &Module, instructions: Instructions, precision: Precision) -> Result<String> {
    let context = RefCell::new(Context { instructions, precision, kernels: Kernels::default() });
    let lowered = module
        .rewrite_composites(|composite, b| {
            let context = &mut context.borrow_mut();
            match composite.name {
                composites::CACHED_ATTENTION => attention::lower(composite, b, context),
                composites::LINEAR => linear::lower(composite, b, context),
                _ => Ok(None),
            }
        })
        .map_err(|error| {
            Error::new(ErrorKind::Internal, "lower program", "a kernel does not fit what it replaces")
                .with_source(error)
        })?;
    let kernels = context.into_inner().kernels;
    let dispatch = |call: &mlxcel_stablehlo::print::CustomCall<'_>| kernels.dispatch(call);
    Ok(Printer::new(&lowered).declarations(kernels.executables()).custom_calls(&dispatch).to_string())
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};

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
        lower(&module.finish(), &crate::backend::resolved("llvm-cpu:x86-64-v3"), Precision::Exact).unwrap()
    }

    #[test]
    fn linear_layers_over_few_rows_share_one_kernel_of_ours() {
        let text = lowered(3, false);
        assert_eq!(text.matches("stream.executable private").count(), 1);
        assert_eq!(
            text.matches("flow.dispatch @mlxcel_linear_bf16_3x64x96_0_executable::@mlxcel_linear_bf16_3x64x96_0(%x, %w)").count(),
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
        let lowered = |target| lower(&module, &crate::backend::resolved(target), Precision::Exact).unwrap();
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
