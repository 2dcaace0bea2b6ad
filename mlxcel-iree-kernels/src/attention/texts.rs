//! Attention within texts that stand one behind the other, in both directions. Its cost follows the lengths of
//! the texts, not that of the pass.

use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, TensorType, Value};

use super::attend::{Attend, Scratch};
use super::pass::{Kept, Queries, divide};
use super::shape::Shape;
use crate::context::Context;
use crate::kernels::{Description, Kernel};
use crate::vectors::Memory;

/// Replaces attention within texts by a kernel.
pub(crate) fn lower_texts<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let Some(shape) = Shape::of_texts(composite, b, context.instructions) else { return Ok(None) };
    let mixed = TensorType::new(shape.out, [shape.tokens, shape.heads * shape.width]);
    context.kernels.call(b, &Attends(&shape), composite.operands, vec![mixed]).map(Some)
}

/// A workgroup computes one group of heads for some tokens: over all positions from the first of the first
/// one's text to the last of the last one's.
#[derive(Debug)]
struct Attends<'a>(&'a Shape);

impl Description for Attends<'_> {
    fn kernel(&self) -> Kernel {
        let &Self(shape) = self;
        use ElementType::{F32, I32};
        let Shape { tokens, heads, groups, width, .. } = *shape;
        let workgroups = shape.runs.iter().map(|run| shape.workgroups(run)).sum();
        let mut kernel = Kernel::new(format!("text_attention_{heads}x{width}_{tokens}"), [workgroups, 1, 1]);
        let mut operand = |word: &str, len, element| Memory::operand(&mut kernel, word, len, element);
        let query = operand("query", tokens * heads * width, F32);
        let memory = ["key", "value"].map(|word| operand(word, tokens * groups * width, F32));
        let texts = ["firsts", "ends"].map(|word| operand(word, tokens, I32));
        let sinks = shape.sinks.map(|element| operand("sinks", heads, element));
        let mixed = Memory::result(&mut kernel, "mixed", tokens * heads * width, shape.out);
        let item = kernel.workgroup(0);
        let w = &mut kernel.body;
        let scratch = Scratch::new(w, shape);
        let queries = Queries { query, tables: None, sinks };
        let [run] = &shape.runs[..] else { return kernel };
        let tiling = shape.tiling(run);
        // Adjacent heads run side by side: they read the same cache lines.
        let (block, group) = divide(w, "group", &item, groups);
        let size = w.index(tiling.tokens);
        let own = w.arith("own", "muli", &block, &size);
        let last = w.offset("last", &own, tiling.tokens - 1);
        let [begin, end] = [(&texts[0], &own), (&texts[1], &last)].map(|(edges, token)| {
            let edge = edges.scalar(w, "edge", token);
            w.cast("edge", "index_cast", &edge, "index")
        });
        let size = w.index(width);
        let part = w.arith("part", "muli", &group, &size);
        let kept = Kept { memory: memory.clone(), group, parts: [part.clone(), part] };
        let attend = Attend {
            shape,
            tiling,
            scratch: &scratch,
            kept: &kept,
            begin,
            end,
            own: own.clone(),
            window: shape.window,
            texts: Some(&texts),
            round: None,
        };
        attend.load_queries(w, &queries, &own);
        let part = w.index(0);
        attend.load_sinks(w, &queries, &part);
        attend.blocks(w);
        attend.store(w, &mixed, &own);
        kernel
    }
}
