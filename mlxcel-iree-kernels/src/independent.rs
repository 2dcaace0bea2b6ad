//! Whether what a row gives depends on the rows beside it.

use mlxcel_core::{Precision, Result};
use mlxcel_graph::{GraphModelOptions, IndependentRows};
use mlxcel_models::{Attention, Decoder, ElementType, Mixer, Norm, NormKind, Operation};

use super::hardware::Hardware;
use super::instructions::{Instructions, VectorSet};
use super::{attention, norm, quantized};

/// Where programs for `hardware` compute the same of a row, to the last bit, whatever tokens and rows are computed with it.
///
/// Kernels sum in an order of their own for each result, and the compiler's code is independent of its shapes where nothing is summed. So
/// it holds where kernels do all that sums: not with experts, recurrences, latents, norms that are not of root mean squares, or packings
/// without kernels. Sliding windows begin blocks of keys where the first token of a workgroup needs them; Arm's products of matrices of
/// bfloat16 take many rows in another order than its dot products take few; and the positions of single tokens are cut into parts where
/// caches are long, which prompts' are not: there rows of several tokens alone are [independent](IndependentRows::Several) of each other.
///
/// # Errors
/// Those of [`GraphModelOptions::lengths_for`].
pub fn independent_rows(
    decoder: &Decoder,
    hardware: Hardware,
    graph: &GraphModelOptions,
) -> Result<IndependentRows> {
    let Some(instructions) = hardware.instructions() else { return Ok(IndependentRows::No) };
    let bf16_matrices = instructions.set == VectorSet::Neon && instructions.multiplies_bf16();
    let rounds = graph.precision != Precision::Exact;
    // What a conversion rounds to bfloat16 is rounded wherever it is computed; the compiler may leave out that to float16.
    let rounds_surely = !rounds || decoder.element_type != ElementType::F16 && !bf16_matrices;
    if !rounds_surely || !sums_in_kernels(decoder, instructions) {
        return Ok(IndependentRows::No);
    }
    let longest = graph.lengths_for(decoder)?.buckets().last().copied().unwrap_or(0);
    let is_cut = decoder.mixers().any(|mixer| match mixer {
        Mixer::Attention(attention) => attention::is_cut(attention.kv_heads, longest),
        _ => true,
    });
    Ok(if is_cut { IndependentRows::Several } else { IndependentRows::All })
}

/// Whether kernels do all that sums over elements of a row, or over positions.
fn sums_in_kernels(decoder: &Decoder, instructions: Instructions) -> bool {
    let is_rms = |norm: &Norm| {
        let factors = norm.weight.map(|weight| decoder.weight(weight).shape.len());
        norm.kind == NormKind::Rms
            && factors == Some(1)
            && norm.bias.is_none()
            && norm::has_kernel(norm.width)
    };
    let is_known = |operation: &Operation| match operation {
        Operation::Mixer(Mixer::Attention(Attention { query_norm, key_norm, core, .. })) => {
            let mut norms = query_norm.iter().chain(key_norm);
            core.window.is_none() && norms.all(|head| is_rms(&head.norm))
        }
        Operation::Mlp(_) => true,
        Operation::Mixer(_) | Operation::Experts(_) => false,
    };
    let mut blocks = decoder.layers.iter().flat_map(|layer| &layer.blocks);
    let mut packings =
        decoder.weights.iter().filter_map(|weight| weight.packed.as_ref()).map(|packed| &packed.packing);
    is_rms(&decoder.norm)
        && attention::has_kernels(decoder, instructions)
        && packings.all(quantized::has_kernels)
        && blocks.all(|block| {
            let mut norms = block.norm_before.iter().chain(&block.norm_after);
            norms.all(is_rms) && is_known(&block.operation)
        })
}
