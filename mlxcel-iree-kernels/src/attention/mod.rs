//! Attention over KV caches. Its cost follows the positions in use, which kernels read from the step's
//! inputs, not the cache length.
//!
//! A pass is one dispatch over all rows, or two if a row has several tokens: their keys and values are
//! written first. A workgroup computes the query heads that share a key-value head, for some tokens of a row,
//! so that it reads keys and values once. [`texts`] has attention without caches, within an encoder's texts.

mod attend;
mod call;
mod join;
mod pass;
mod scores;
mod shape;
mod texts;
mod write;

use mlxcel_models::{Decoder, Mixer};
use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, TensorType, Value};

use super::instructions::Instructions;
use super::kernels::{Description, Kernel};
use crate::context::{self, Context};
use crate::vectors::Memory;
use attend::{Results, Scratch, attend};
use join::Joins;
use pass::Pass;
use shape::Shape;
pub(super) use texts::lower_texts;
use write::Writes;

/// Whether kernels compute all attention over caches in `decoder`, in any pass.
pub(super) fn has_kernels(decoder: &Decoder, instructions: Instructions) -> bool {
    decoder.mixers().all(|mixer| match mixer {
        Mixer::Attention(attention) => {
            let sizes = [attention.query_heads, attention.kv_heads, attention.kept_dim()];
            Shape::has_kernels(sizes, instructions)
        }
        // It is computed as attention of its source's heads.
        Mixer::Shared(shared) => match decoder.mixers().nth(shared.source) {
            Some(Mixer::Attention(source)) => {
                Shape::has_kernels([shared.query_heads, source.kv_heads, shared.head_dim], instructions)
            }
            _ => false,
        },
        Mixer::Latent(latent) => {
            let sizes = [latent.heads, latent.rank + latent.rope_dim, latent.rope_dim];
            latent.sparse.is_none() && Shape::has_latent_kernels(sizes, instructions)
        }
        Mixer::Compressed(_) => false,
        // Their states do not grow.
        Mixer::ShortConvolution(_)
        | Mixer::DeltaRule(_)
        | Mixer::StateSpace(_)
        | Mixer::SelectiveScan(_)
        | Mixer::GeneralizedDeltaRule(_)
        | Mixer::ShiftedMlp(_) => true,
    })
}

/// Whether single tokens' positions are split into parts that are joined at the end, in caches of `length`
/// positions with this many key-value heads.
pub(super) fn is_cut(kv_heads: usize, length: usize) -> bool {
    shape::parts(kv_heads, length) > 1
}

/// Replaces attention over caches by kernels.
pub(super) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let shape = Shape::of(composite, b, context.instructions);
    let (Some(shape), Some(layer)) = (shape, context::layer(composite)) else { return Ok(None) };
    let mut operands = composite.operands.to_vec();
    let cache_types: Vec<TensorType> = composite.decomposition.result_types().skip(1).cloned().collect();
    if let Some(writes) = Writes::of(&shape) {
        let caches = context.kernels.call_at(b, &writes, &operands, cache_types.clone(), &[layer])?;
        operands.splice(shape.first_cache().., caches);
    }
    let mixed = TensorType::new(shape.out, [shape.tokens, shape.heads * shape.value_width]);
    let parts = shape.parts();
    let partial = [shape.rows, shape.groups, parts, shape.shared(), shape.value_width + 2];
    let partial = TensorType::new(ElementType::F32, partial);
    let last = if parts == 1 { mixed.clone() } else { partial };
    let results = cache_types.into_iter().chain([last]).collect();
    let mut caches = context.kernels.call_at(b, &Attends(&shape), &operands, results, &[layer])?;
    let Some(mut result) = caches.pop() else { return Ok(None) };
    if parts > 1 {
        let joined = context.kernels.call(b, &Joins(&shape), &[result], vec![mixed])?;
        let Some(&joined) = joined.first() else { return Ok(None) };
        result = joined;
    }
    Ok(Some([result].into_iter().chain(caches).collect()))
}

/// The name of a kernel in profiles.
fn label(word: &str, shape: &Shape) -> String {
    let rows: Vec<String> = shape
        .runs
        .iter()
        .map(|run| match run.count {
            1 => run.tokens.to_string(),
            count => format!("{}x{count}", run.tokens),
        })
        .collect();
    format!("{word}_{}_{}_{}", shape.cache.mlir(), rows.join("_"), shape.length)
}

/// The kernel of all rows.
#[derive(Debug)]
struct Attends<'a>(&'a Shape);

impl Description for Attends<'_> {
    fn kernel(&self) -> Kernel {
        let &Self(shape) = self;
        let workgroups = shape.runs.iter().map(|run| shape.workgroups(run)).sum();
        let word = if shape.latent { "latent_attention" } else { "attention" };
        let mut kernel = Kernel::new(label(word, shape), [workgroups, 1, 1]);
        let pass = Pass::operands(&mut kernel, shape);
        let (word, len, element) = match shape.parts() {
            1 => ("mixed", shape.tokens * shape.heads * shape.value_width, shape.out),
            parts => {
                ("partial", shape.rows * shape.heads * parts * (shape.value_width + 2), ElementType::F32)
            }
        };
        let memory = Memory::result(&mut kernel, word, len, element);
        let results = if shape.parts() == 1 { Results::Mixed(memory) } else { Results::Parts(memory) };
        let workgroup = kernel.workgroup(0);
        let scratch = Scratch::new(&mut kernel.body, shape);
        let mut first = 0;
        for run in &shape.runs {
            attend(&mut kernel, shape, (&pass, &scratch), run, (&workgroup, first), &results);
            first += shape.workgroups(run);
        }
        kernel
    }
}
