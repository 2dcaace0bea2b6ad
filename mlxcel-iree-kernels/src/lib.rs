//! The kernel generator of mlxcel's IREE engine: from a StableHLO module to the text that IREE's compiler is given, in which composites
//! become calls of kernels written for the hardware.
//!
//! # Why kernels are text
//!
//! A kernel is written in MLIR's `vector` dialect, inside of the program that calls it, so that one unmodified compiler makes
//! everything. This crate writes that text and starts nothing: it knows neither the compiler's process nor devices, and what it has to
//! know of the hardware comes in as [`Hardware`], plain data. It also decides how weights lie in memory ([`layout`]), since whoever
//! writes the kernel that reads a matrix knows best.
//!
//! ```
//! use mlxcel_core::Precision;
//! use mlxcel_iree_kernels::{Hardware, Instructions, VectorSet, lower};
//! use mlxcel_stablehlo::{ElementType, ModuleBuilder, TensorType};
//!
//! let mut module = ModuleBuilder::new("layer");
//! module.function("main", |b| {
//!     let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
//!     let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
//!     Ok(vec![b.linear(x, w, None, ElementType::F32)?])
//! })?;
//! let hardware = Hardware::Processor(Some(Instructions::new(VectorSet::Avx2)));
//! let text = lower(&module.finish(), hardware, Precision::Native)?;
//! assert!(text.contains("flow.dispatch @mlxcel_linear_bf16_1x64x96_0"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod attention;
mod embedding;
mod experts;
mod hardware;
mod instructions;
mod kernels;
pub mod layout;
mod linear;
mod panels;
mod quantized;
mod reads;
mod spirv;
mod writer;

use std::cell::RefCell;
use std::collections::HashMap;

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_graph::cached::{CACHED_ATTENTION, LATENT_ATTENTION};
use mlxcel_graph::packed::{PACKED_EMBEDDING, PACKED_EXPERT_LINEAR, PACKED_LINEAR};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::{Builder, Composite, Module, Printer, Value, composites};

pub use hardware::Hardware;
pub use instructions::{Instructions, VectorSet};
pub use reads::weights as weights_in_panels;

use kernels::Kernels;
use layout::{Contents, WeightLayout};

/// The text of `module` as the compiler is given it for `hardware`; kernels of ours may round as `precision` says.
///
/// # Errors
/// [`ErrorKind::Internal`] where a composite or a kernel does not fit what it stands for.
pub fn lower(module: &Module, hardware: Hardware, precision: Precision) -> Result<String> {
    match hardware {
        Hardware::Processor(Some(instructions)) => lower_for_cpu(module, instructions, precision),
        Hardware::Processor(None) => Ok(module.to_string()),
        Hardware::Spirv => Ok(spirv::text(decomposed(module)?)),
        Hardware::Other => Ok(decomposed(module)?.to_string()),
    }
}

/// Whether attention in programs for `hardware` takes as long as the positions in use say, and not the KV cache's length.
pub fn attends_in_use(decoder: &Decoder, hardware: Hardware) -> bool {
    hardware.instructions().is_some_and(|instructions| attention::has_kernels(decoder, instructions))
}

/// The name of the public function in exported text: the one that XLA looks for.
pub const EXPORT_ENTRY: &str = "main";

/// The text of a program for other compilers, its public function being called [`EXPORT_ENTRY`].
///
/// # Errors
/// [`ErrorKind::Internal`] where a composite does not fit what it stands for.
pub fn export(module: &Module) -> Result<String> {
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

/// Whether a kernel that knows these attributes knows what `composite` computes: one that it does not know may change that, and
/// keeps the decomposition.
fn knows_attributes(composite: &Composite<'_, '_>, known: &[&str]) -> bool {
    composite.attributes.iter().all(|(name, _)| known.contains(&name.as_str()))
}

/// What rewriting a composite needs to know, and what it adds to.
#[derive(Debug)]
pub(crate) struct Context {
    /// What kernels may use.
    pub(crate) instructions: Instructions,
    /// What kernels may round.
    pub(crate) precision: Precision,
    /// The lanes of the panels in which weights lie; none where they lie as stored.
    lanes: Option<usize>,
    /// The arguments that kernels alone read, by name, and what they are.
    weights: HashMap<String, Contents>,
    /// The kernels so far.
    pub(crate) kernels: Kernels,
}

impl Context {
    /// Whether `value` is a weight that lies in panels, if its elements are `contents`.
    pub(crate) fn in_panels<'f>(&self, b: &Builder<'f>, value: Value<'f>, contents: Contents) -> bool {
        let layout = WeightLayout::of(contents, &b.ty(value).shape, self.lanes);
        let read = b.argument_name(value).and_then(|name| self.weights.get(name));
        read == Some(&contents) && layout != WeightLayout::Rows
    }
}

/// The text of `module` for a processor: composites for which there is a kernel of ours become calls of it, everything else is
/// left to the compiler, which takes composites as their decompositions.
fn lower_for_cpu(module: &Module, instructions: Instructions, precision: Precision) -> Result<String> {
    let weights = reads::by_name(module);
    let (kernels, lanes) = (Kernels::default(), Some(instructions.lanes()));
    let context = RefCell::new(Context { instructions, precision, lanes, weights, kernels });
    let lowered = module
        .rewrite_composites(|composite, b| {
            let context = &mut context.borrow_mut();
            match composite.name {
                CACHED_ATTENTION | LATENT_ATTENTION => attention::lower(composite, b, context),
                composites::EMBEDDING => embedding::lower(composite, b, context),
                composites::LINEAR => linear::lower(composite, b, context),
                composites::EXPERT_LINEAR => linear::lower_experts(composite, b, context),
                PACKED_EMBEDDING => quantized::lower_embedding(composite, b, context),
                PACKED_EXPERT_LINEAR => quantized::lower_expert_linear(composite, b, context),
                PACKED_LINEAR => quantized::lower_linear(composite, b, context),
                _ => Ok(None),
            }
        })
        .map_err(|error| {
            Error::new(ErrorKind::Internal, "lower program", "a kernel does not fit what it replaces")
                .with_source(error)
        })?;
    let kernels = context.into_inner().kernels;
    panels::check(&lowered, &kernels)?;
    let dispatch = |call: &mlxcel_stablehlo::print::CustomCall<'_>| kernels.dispatch(call);
    Ok(Printer::new(&lowered).declarations(kernels.executables()).custom_calls(&dispatch).to_string())
}

#[cfg(test)]
mod tests {
    use mlxcel_stablehlo::{Attribute, ElementType, ModuleBuilder, TensorType};

    use super::*;

    const AVX2: Hardware = Hardware::Processor(Some(Instructions::new(VectorSet::Avx2)));

    fn lowered(rows: usize, bias: bool) -> String {
        let mut module = ModuleBuilder::new("test");
        module
            .function("main", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, [rows, 64]))?;
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
        lower(&module.finish(), AVX2, Precision::Exact).unwrap()
    }

    #[test]
    fn linear_layers_of_one_shape_share_one_kernel_of_ours() {
        for rows in [1, 3, 64] {
            let text = lowered(rows, false);
            assert_eq!(text.matches("stream.executable private").count(), 1);
            let name = format!("mlxcel_linear_bf16_{rows}x64x96_0");
            assert_eq!(text.matches(&format!("flow.dispatch @{name}_executable::@{name}(")).count(), 2);
            assert!(!text.contains("stablehlo.composite"));
        }
        assert!(lowered(3, true).contains("stablehlo.add"));
    }

    #[test]
    fn a_composite_with_an_unknown_attribute_or_operand_keeps_its_decomposition() {
        use ElementType::{BF16, F32, I32, U32};
        type Operands<'a> = &'a [(ElementType, &'a [usize])];
        let rows: Operands<'_> = &[(F32, &[1, 64])];
        let packed: Operands<'_> = &[(U32, &[96, 8]), (BF16, &[96, 2]), (BF16, &[96, 2])];
        let ids: Operands<'_> = &[(I32, &[1])];
        let attention: Operands<'_> = &[
            (F32, &[1, 4, 16]),
            (F32, &[1, 2, 16]),
            (F32, &[1, 2, 16]),
            (F32, &[1, 8]),
            (F32, &[1, 8]),
            (I32, &[1]),
            (F32, &[1, 2, 2, 64, 16]),
        ];
        let int = |name: &str, value| (name.to_owned(), Attribute::Int(value));
        let packing = vec![("packing".to_owned(), Attribute::Text("u4/32 bf16 + bf16".to_owned()))];
        let layer = vec![
            int("layer", 0),
            ("rows".to_owned(), Attribute::Text("1".to_owned())),
            ("scale".to_owned(), Attribute::Float(0.5)),
        ];
        let kinds = [
            (composites::LINEAR, [rows, &[(BF16, &[96, 64])]].concat(), vec![], [1, 96]),
            (composites::EMBEDDING, [&[(BF16, &[96, 64][..])], ids].concat(), vec![], [1, 64]),
            (PACKED_LINEAR, [rows, packed].concat(), packing.clone(), [1, 96]),
            (PACKED_EMBEDDING, [packed, ids].concat(), packing, [1, 64]),
            (CACHED_ATTENTION, attention.to_vec(), layer, [1, 64]),
        ];
        for (name, operands, attributes, out) in kinds {
            let lowered = |operands: &[(ElementType, &[usize])], attributes: &[(String, Attribute)]| {
                let mut module = ModuleBuilder::new("test");
                module
                    .function("main", |b| {
                        let mut values = Vec::new();
                        for (i, &(element, shape)) in operands.iter().enumerate() {
                            values.push(b.argument(format!("x{i}"), TensorType::new(element, shape))?);
                        }
                        b.composite(name, &values, attributes, |b, args| {
                            let mixed = b.splat(F32, 0.0, &out)?;
                            let cache = args.get(6).filter(|_| name == CACHED_ATTENTION);
                            Ok([mixed].into_iter().chain(cache.copied()).collect())
                        })
                    })
                    .unwrap();
                let text = lower(&module.finish(), AVX2, Precision::Exact).unwrap();
                !text.contains("stablehlo.composite")
            };
            assert!(lowered(&operands, &attributes), "{name} has a kernel");
            let unknown = [&attributes[..], &[int("unheard_of", 1)]].concat();
            assert!(!lowered(&operands, &unknown), "{name}");
            // Two more, since one may be a bias.
            let more = [&operands[..], &[(F32, &[96]), (F32, &[96])]].concat();
            assert!(!lowered(&more, &attributes), "{name}");
        }
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
        let lowered = |hardware| lower(&module, hardware, Precision::Exact).unwrap();
        assert_eq!(lowered(Hardware::Other).replace("@step(", "@main("), plain);
        assert!(lowered(AVX2).contains("stream.executable"));
        assert!(lowered(Hardware::Processor(None)).contains("stablehlo.composite \"mlxcel.linear\""));
    }

    #[test]
    fn a_weight_that_is_computed_is_left_to_the_compiler() {
        let mut module = ModuleBuilder::new("test");
        module
            .function("main", |b| {
                let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
                let w = b.argument("w", TensorType::new(ElementType::F32, [96, 64]))?;
                let w = b.add(w, w)?;
                Ok(vec![b.linear(x, w, None, ElementType::F32)?])
            })
            .unwrap();
        let text = lower(&module.finish(), AVX2, Precision::Exact).unwrap();
        assert!(text.contains("stablehlo.composite \"mlxcel.linear\""));
    }
}
