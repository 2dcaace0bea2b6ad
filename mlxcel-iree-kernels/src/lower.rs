//! Programs as texts for the compiler: composites with a kernel become calls of it.

use std::cell::RefCell;
use std::collections::HashSet;

use mlxcel_core::{Error, ErrorKind, Precision, Result};
use mlxcel_graph::{GraphModelOptions, LengthSteps, composites};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::{Module, Printer};

use crate::context::Context;
use crate::hardware::Hardware;
use crate::instructions::Instructions;
use crate::layouts::{Layouts, Panels};
use crate::reads::Reads;
use crate::{attention, embedding, gpu, linear, norm, quantized, recurrent};

/// A program as given to the compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lowered {
    /// Its text.
    pub text: String,
    /// The layouts of its arguments.
    pub layouts: Layouts,
}

impl Lowered {
    /// A program whose arguments are all as stored.
    fn as_stored(text: String) -> Self {
        Self { text, layouts: Layouts::default() }
    }
}

/// Lowers `module` for `hardware`; our kernels may round as `precision` says.
///
/// A weight is in panels if only kernels that read panels read it, and as stored otherwise.
///
/// # Errors
/// [`ErrorKind::Internal`] if a composite's decomposition or kernel does not fit it.
pub fn lower(module: &Module, hardware: Hardware, precision: Precision) -> Result<Lowered> {
    match hardware {
        Hardware::Processor(Some(instructions)) => lower_for_cpu(module, instructions, precision),
        Hardware::Processor(None) => Ok(Lowered::as_stored(module.to_string())),
        Hardware::Spirv | Hardware::Other => {
            Ok(Lowered::as_stored(gpu::text(decomposed(module)?, hardware == Hardware::Spirv)))
        }
    }
}

/// `graph` as it is best computed on all of `hardware`: [`for_kernels`] or [`for_gpus`], or as it is where
/// neither suits all.
#[must_use]
pub fn suited(graph: GraphModelOptions, decoder: &Decoder, hardware: &[Hardware]) -> GraphModelOptions {
    if hardware.iter().all(|&one| attends_in_use(decoder, one)) {
        return for_kernels(graph);
    }
    if hardware.iter().all(|one| !matches!(one, Hardware::Processor(_))) {
        return for_gpus(graph);
    }
    graph
}

/// `graph` for GPUs: prefill chunks have 512 and 64 tokens, since a chunk reads all weights and fewer tokens
/// do not occupy a GPU.
#[must_use]
pub fn for_gpus(mut graph: GraphModelOptions) -> GraphModelOptions {
    graph.chunks = vec![64, 512];
    graph
}

/// `graph` for a target whose attention costs by the [positions in use](attends_in_use): KV-length buckets
/// are few and far apart, since each is a program and untouched pages cost nothing, prefill chunks have
/// 128 and 16 tokens, and texts that share a pass 256.
#[must_use]
pub fn for_kernels(mut graph: GraphModelOptions) -> GraphModelOptions {
    graph.chunks = vec![16, 128];
    graph.length_steps = Some(LengthSteps { first: 2048, factor: 8 });
    graph.text_tokens = 256;
    graph
}

/// Whether attention in programs for `hardware` takes time by the positions in use instead of the KV cache's
/// length.
pub fn attends_in_use(decoder: &Decoder, hardware: Hardware) -> bool {
    hardware.instructions().is_some_and(|instructions| attention::has_kernels(decoder, instructions))
}

/// The name of the public function in exported text, which XLA requires.
pub const EXPORT_ENTRY: &str = "main";

/// The text of a program for other compilers, with the public function [`EXPORT_ENTRY`].
///
/// # Errors
/// [`ErrorKind::Internal`] if a composite's decomposition does not fit it.
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
        Error::new(ErrorKind::Internal, "write program", "a composite's decomposition does not fit it")
            .with_source(error)
    })
}

/// The program of `module` for a CPU: composites with a kernel become calls of it, everything else is left to
/// the compiler, which takes composites as their decompositions.
///
/// At first all kernels get their weights in panels. Weights that anything else reads too stay as stored, and
/// the program is lowered again.
fn lower_for_cpu(module: &Module, instructions: Instructions, precision: Precision) -> Result<Lowered> {
    let mut as_stored = HashSet::new();
    loop {
        let (lowered, context) = with_kernels(module, Context::new(instructions, precision, as_stored))?;
        let reads = Reads::of(&lowered, &context.kernels)?;
        if reads.torn().next().is_some() {
            as_stored = context.as_stored;
            as_stored.extend(reads.torn().cloned());
            continue;
        }
        let (kernels, asked) = (context.kernels, context.asked.into_inner());
        let panels =
            |name: &String| asked.get(name).map(|&contents| Panels { lanes: instructions.lanes(), contents });
        let in_panels = reads.in_panels.iter().map(|name| (name.clone(), panels(name)));
        let stored = reads.as_stored.iter().map(|name| (name.clone(), None));
        let layouts = in_panels.chain(stored).collect();
        let dispatch = |call: &mlxcel_stablehlo::print::CustomCall<'_>| kernels.dispatch(call);
        let printer = Printer::new(&lowered).declarations(kernels.executables()).custom_calls(&dispatch);
        return Ok(Lowered { text: printer.to_string(), layouts });
    }
}

/// `module` with calls of kernels, and the kernels.
fn with_kernels(module: &Module, context: Context) -> Result<(Module, Context)> {
    let context = RefCell::new(context);
    let lowered = module
        .rewrite_composites(|composite, b| {
            let context = &mut context.borrow_mut();
            match composite.name {
                composites::CACHED_ATTENTION | composites::LATENT_ATTENTION => {
                    attention::lower(composite, b, context)
                }
                composites::TEXT_ATTENTION => attention::lower_texts(composite, b, context),
                composites::EMBEDDING => embedding::lower(composite, b, context),
                composites::GATED_DELTA_RULE => recurrent::lower_delta_rule(composite, b, context),
                composites::LINEAR => linear::lower(composite, b, context),
                composites::EXPERT_LINEAR => linear::lower_experts(composite, b, context),
                composites::RMS_NORM => norm::lower(composite, b, context),
                composites::PACKED_EMBEDDING => quantized::lower_embedding(composite, b, context),
                composites::PACKED_EXPERT_LINEAR => quantized::lower_expert_linear(composite, b, context),
                composites::PACKED_LINEAR => quantized::lower_linear(composite, b, context),
                composites::SELECTIVE_STATE_SPACE => recurrent::lower_state_space(composite, b, context),
                _ => Ok(None),
            }
        })
        .map_err(refused)?;
    Ok((lowered, context.into_inner()))
}

/// The error of a lowering, which `error` stopped.
pub(crate) fn refused(error: mlxcel_stablehlo::Error) -> Error {
    Error::new(ErrorKind::Internal, "lower program", "a kernel does not fit the composite it replaces")
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use mlxcel_graph::layers;
    use mlxcel_stablehlo::{Attribute, ElementType, Module, TensorType};

    use super::*;
    use crate::layout::TensorRole;
    use crate::vector_set::VectorSet;

    const AVX2: Hardware = Hardware::Processor(Some(Instructions::new(VectorSet::Avx2)));

    fn lowered(rows: usize, bias: bool) -> String {
        let module = Module::of_function("test", "main", |b| {
            let x = b.argument("x", TensorType::new(ElementType::F32, [rows, 64]))?;
            let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
            let bias =
                if bias { Some(b.argument("b", TensorType::new(ElementType::BF16, [96]))?) } else { None };
            let once = layers::linear(b, x, w, bias, ElementType::F32)?;
            let twice = layers::linear(b, x, w, bias, ElementType::F32)?;
            Ok(vec![once, twice])
        })
        .unwrap();
        lower(&module, AVX2, Precision::Exact).unwrap().text
    }

    #[test]
    fn linear_layers_of_one_shape_share_one_kernel() {
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
        let delta_rule: Operands<'_> = &[
            (F32, &[1, 2, 16]),
            (F32, &[1, 2, 16]),
            (F32, &[1, 4, 8]),
            (F32, &[1, 4]),
            (F32, &[1, 4]),
            (I32, &[1]),
            (F32, &[2, 4, 16, 8]),
        ];
        let space: Operands<'_> = &[
            (F32, &[1, 4, 8]),
            (F32, &[1, 4]),
            (F32, &[1, 4]),
            (F32, &[1, 2, 16]),
            (F32, &[1, 2, 16]),
            (I32, &[1]),
            (F32, &[2, 4, 8, 16]),
        ];
        let texts: Operands<'_> =
            &[(F32, &[4, 4, 16]), (F32, &[4, 2, 16]), (F32, &[4, 2, 16]), (I32, &[4]), (I32, &[4])];
        let int = |name: &str, value| (name.to_owned(), Attribute::Int(value));
        let packing = vec![("packing".to_owned(), Attribute::Text("u4/32 bf16 + bf16".to_owned()))];
        let layer = vec![
            int("layer", 0),
            ("rows".to_owned(), Attribute::Text("1".to_owned())),
            ("scale".to_owned(), Attribute::Float(0.5)),
        ];
        let kinds = [
            (composites::LINEAR, [rows, &[(BF16, &[96, 64])]].concat(), vec![], vec![1, 96]),
            (composites::EMBEDDING, [&[(BF16, &[96, 64][..])], ids].concat(), vec![], vec![1, 64]),
            (composites::PACKED_LINEAR, [rows, packed].concat(), packing.clone(), vec![1, 96]),
            (composites::PACKED_EMBEDDING, [packed, ids].concat(), packing, vec![1, 64]),
            (composites::CACHED_ATTENTION, attention.to_vec(), layer.clone(), vec![1, 64]),
            (composites::TEXT_ATTENTION, texts.to_vec(), layer[2..].to_vec(), vec![4, 64]),
            (composites::GATED_DELTA_RULE, delta_rule.to_vec(), layer[..2].to_vec(), vec![1, 4, 8]),
            (composites::SELECTIVE_STATE_SPACE, space.to_vec(), layer[..2].to_vec(), vec![1, 4, 8]),
        ];
        for (name, operands, attributes, out) in kinds {
            let lowered = |operands: &[(ElementType, &[usize])], attributes: &[(String, Attribute)]| {
                let module = Module::of_function("test", "main", |b| {
                    let mut values = Vec::new();
                    for (i, &(element, shape)) in operands.iter().enumerate() {
                        values.push(b.argument(format!("x{i}"), TensorType::new(element, shape))?);
                    }
                    b.composite(name, &values, attributes, |b, args| {
                        let mixed = b.splat(F32, 0.0, &out)?;
                        let state = args.get(6).filter(|_| attributes.len() > 1);
                        Ok([mixed].into_iter().chain(state.copied()).collect())
                    })
                })
                .unwrap();
                let text = lower(&module, AVX2, Precision::Exact).unwrap().text;
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
        let module = Module::of_function("test", "step", |b| {
            let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
            let w = b.argument("w", TensorType::new(ElementType::BF16, [96, 64]))?;
            Ok(vec![layers::linear(b, x, w, None, ElementType::F32)?])
        })
        .unwrap();
        let plain = export(&module).unwrap();
        assert!(plain.contains("stablehlo.dot_general") && !plain.contains("composite"), "{plain}");
        assert!(plain.contains("func.func public @main("));
        let lowered = |hardware| lower(&module, hardware, Precision::Exact).unwrap().text;
        assert_eq!(lowered(Hardware::Other).replace("@step(", "@main("), plain);
        assert!(lowered(AVX2).contains("stream.executable"));
        assert!(lowered(Hardware::Processor(None)).contains("stablehlo.composite \"mlxcel.linear\""));
    }

    #[test]
    fn a_weight_that_is_computed_is_left_to_the_compiler() {
        let module = Module::of_function("test", "main", |b| {
            let x = b.argument("x", TensorType::new(ElementType::F32, [1, 64]))?;
            let w = b.argument("w", TensorType::new(ElementType::F32, [96, 64]))?;
            let w = b.add(w, w)?;
            Ok(vec![layers::linear(b, x, w, None, ElementType::F32)?])
        })
        .unwrap();
        let text = lower(&module, AVX2, Precision::Exact).unwrap().text;
        assert!(text.contains("stablehlo.composite \"mlxcel.linear\""));
    }

    #[test]
    fn only_weights_read_by_kernels_alone_are_in_panels() {
        use ElementType::{BF16, F32, I32, U32};
        use mlxcel_graph::packed::{PackedWeight, packed_linear};
        let module = Module::of_function("test", "main", |b| {
            let mut argument =
                |name: &str, element, shape: &[usize]| b.argument(name, TensorType::new(element, shape));
            let x = argument("x", F32, &[1, 64])?;
            let ids = argument("ids", I32, &[1])?;
            let table = argument("table", BF16, &[96, 64])?;
            let shared = argument("shared", BF16, &[96, 64])?;
            let factors = argument("factors", F32, &[64, 64])?;
            let experts = argument("experts", F32, &[3, 32, 64])?;
            let codes = argument("codes", U32, &[96, 8])?;
            let scales = argument("scales", BF16, &[96, 2])?;
            let offsets = argument("offsets", BF16, &[96, 2])?;
            let torn = argument("torn", U32, &[96, 8])?;
            argument("unread", BF16, &[96, 64])?;
            let packing = mlxcel_models::Packing::affine(4, 32, mlxcel_models::ElementType::BF16);
            let of = |codes| PackedWeight { packing, parts: vec![codes, scales, offsets] };
            let rows = layers::embedding(b, table, ids)?;
            let mut results = vec![layers::linear(b, rows, table, None, F32)?];
            results.push(layers::linear(b, x, shared, None, F32)?);
            results.push(b.convert(shared, F32)?);
            results.push(b.multiply(factors, factors)?);
            let block = b.reshape(x, &[1, 1, 64])?;
            results.push(layers::expert_linear(b, block, experts, ids, None, F32)?);
            results.push(packed_linear(b, x, &of(codes), None, F32)?);
            // Its scales are those of another weight's codes, and its own codes are a result.
            results.push(packed_linear(b, x, &of(torn), None, F32)?);
            results.push(torn);
            Ok(results)
        })
        .unwrap();
        let layouts = lower(&module, AVX2, Precision::Native).unwrap().layouts;
        let panels = |element| Some(Panels { lanes: 8, contents: TensorRole::Dense(element) });
        assert_eq!((layouts.get("table"), layouts.get("experts")), (panels(BF16), panels(F32)));
        for as_stored in ["x", "ids", "shared", "factors", "codes", "scales", "offsets", "torn", "unread"] {
            assert_eq!(layouts.get(as_stored), None, "{as_stored}");
        }
    }

    #[test]
    fn a_weight_that_no_kernel_reads_stays_as_it_is_stored() {
        use ElementType::{BF16, F32};
        let module = Module::of_function("test", "main", |b| {
            let x = b.argument("x", TensorType::new(F32, [1, 64]))?;
            let known = b.argument("known", TensorType::new(BF16, [96, 64]))?;
            let unknown = b.argument("unknown", TensorType::new(BF16, [96, 64]))?;
            let linear = layers::linear(b, x, known, None, F32)?;
            // A product with a kernel that reads panels, except for an attribute.
            let attributes = [("unheard_of".to_owned(), Attribute::Int(1))];
            let other = b.composite(composites::LINEAR, &[x, unknown], &attributes, |b, args| {
                Ok(vec![layers::linear(b, args[0], args[1], None, F32)?])
            })?;
            Ok(vec![linear, other[0]])
        })
        .unwrap();
        let Lowered { text, layouts } = lower(&module, AVX2, Precision::Native).unwrap();
        assert!(layouts.get("known").is_some() && layouts.get("unknown").is_none());
        assert!(text.contains("unheard_of"), "it keeps its decomposition");
    }
}
