//! Whether a row's results depend on the other rows of a pass.

use mlxcel_core::{Precision, Result};
use mlxcel_graph::{GraphModelOptions, IndependentRows};
use mlxcel_models::{Attention, Decoder, ElementType, Mixer, Mlp, Norm, NormKind, Operation};

use super::hardware::Hardware;
use super::{attention, quantized, rms_norm};
use crate::instructions::Instructions;
use crate::vector_set::VectorSet;

/// Which rows get bit-identical results in programs for `hardware`, whatever tokens and rows are computed
/// with them.
///
/// Kernels sum in a fixed order for each result, and the compiler's code does not depend on shapes where it
/// sums nothing. So rows are independent if kernels compute all sums: not with experts, adapters,
/// recurrences, latents, norms other than RMS norms, or packings without kernels. With sliding windows,
/// blocks of keys begin where the first token of a workgroup needs them; Arm's bfloat16 matrix products
/// sum many rows in another order than its dot products sum few; and with long caches the positions of single
/// tokens are split into parts but those of prompts are not: then only rows of several tokens are
/// [independent](IndependentRows::Several) of each other.
///
/// # Errors
/// Those of [`GraphModelOptions::lengths_for`].
pub fn independent_rows(
    decoder: &Decoder,
    hardware: Hardware,
    graph: &GraphModelOptions,
) -> Result<IndependentRows> {
    let Some(instructions) = hardware.instructions().filter(|_| graph.adapters.is_none()) else {
        return Ok(IndependentRows::No);
    };
    let bf16_matrices = instructions.set == VectorSet::Neon && instructions.multiplies_bf16();
    let rounds = graph.precision != Precision::Exact;
    // A conversion to bfloat16 rounds wherever it is computed; the compiler may omit one to float16.
    let rounds_surely = !rounds || decoder.element_type != ElementType::F16 && !bf16_matrices;
    if !rounds_surely || !sums_in_kernels(decoder, instructions) {
        return Ok(IndependentRows::No);
    }
    let longest = graph.lengths_for(decoder)?.buckets().last().copied().unwrap_or(0);
    let is_cut = decoder.mixers().any(|mixer| match mixer {
        Mixer::Attention(attention) => attention::is_cut(attention.kv_heads, longest),
        // Its source decides.
        Mixer::Shared(_) => false,
        _ => true,
    });
    Ok(if is_cut { IndependentRows::Several } else { IndependentRows::All })
}

/// Whether kernels compute all sums over elements of a row, or over positions.
fn sums_in_kernels(decoder: &Decoder, instructions: Instructions) -> bool {
    let is_rms = |norm: &Norm| {
        let factors = norm.weight.map(|weight| decoder.weight(weight).shape.len());
        norm.kind == NormKind::Rms
            && factors == Some(1)
            && norm.bias.is_none()
            // Where rows are no whole vectors, products of them may be the compiler's.
            && norm.width.is_multiple_of(rms_norm::LANES)
    };
    let is_known = |operation: &Operation| match operation {
        Operation::Mixer(Mixer::Attention(Attention {
            query_norm,
            key_norm,
            value_norm: None,
            output_norm,
            core,
            ..
        })) => {
            let mut norms = query_norm.iter().chain(key_norm);
            core.window.is_none() && norms.all(|head| is_rms(&head.norm)) && output_norm.iter().all(is_rms)
        }
        Operation::Mlp(Mlp::Gated { norm, .. }) => norm.iter().all(is_rms),
        Operation::Mlp(_) => true,
        Operation::Mixer(_) | Operation::Experts(_) | Operation::LayerInput(_) => false,
    };
    let mut blocks = decoder.layers.iter().flat_map(|layer| &layer.blocks);
    let mut packings =
        decoder.weights.iter().filter_map(|weight| weight.packed.as_ref()).map(|packed| &packed.packing);
    !decoder.is_bidirectional()
        && decoder.norm.iter().all(is_rms)
        && attention::has_kernels(decoder, instructions)
        && packings.all(quantized::has_kernels)
        && blocks.all(|block| {
            let mut norms = block.norm_before.iter().chain(&block.norm_after).chain(&block.norm_output);
            norms.all(is_rms) && is_known(&block.operation)
        })
}
