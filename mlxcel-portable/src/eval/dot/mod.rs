//! `dot_general`: products of two operands, one of which is streamed from memory in its own element type.
//!
//! The operands are brought to `X: [B, M, K]` and `W: [B, N, K]`. `X`, the smaller or computed one, is
//! evaluated to `f32` once. `W`, a weight or a KV cache, is read a block of rows at a time, so that no copy
//! of it in another type ever exists. Few rows of `X` are multiplied with each row of `W` as it lies; more go
//! through packed panels.

mod float;
mod integer;
mod simd;
mod weight;

use std::ops::Range;

use mlxcel_stablehlo::ElementType;

use super::error::Result;
use super::kernel::Kernel;
use super::node::{Graph, NodeId, NodeKind, SlotId};
use super::run::Frame;
use super::view::View;
use weight::Weight;

/// The sizes of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    /// Rows of `X`.
    pub(super) m: usize,
    /// Rows of `W`.
    pub(super) n: usize,
    pub(super) k: usize,
}

/// A planned product.
#[derive(Debug)]
pub(super) struct Dot {
    x: Kernel,
    w: Weight,
    sizes: Sizes,
    /// Whether `W` was the left operand, so that the result is `[B, N, M]`.
    swapped: bool,
    element: ElementType,
    out: SlotId,
}

/// An operand with its dimensions in the order batch, free, contracting, and how many there are of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arranged {
    pub(super) node: NodeId,
    pub(super) batch: usize,
    pub(super) free: usize,
}

impl Dot {
    /// Plans the product of the evaluated operand `x` and the streamed operand `w`.
    pub(super) fn plan(
        graph: &mut Graph,
        (x, w): (Arranged, Arranged),
        sizes: Sizes,
        swapped: bool,
        element: ElementType,
        out: SlotId,
    ) -> Self {
        let weight = plan_weight(graph, w);
        Self { x: Kernel::compile(graph, x.node), w: weight, sizes, swapped, element, out }
    }

    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        self.x.slots.iter().copied().for_each(&mut *each);
        self.w.reads(each);
    }

    pub(super) fn out(&self) -> SlotId {
        self.out
    }

    pub(super) fn run(&self, frame: &mut Frame<'_>) -> Result<()> {
        frame.write(self.out, |frame, out| match self.element.is_float() {
            true => self.run_float(frame, out),
            false => self.run_integer(frame, out),
        })
    }
}

/// How the streamed operand is best read.
fn plan_weight(graph: &mut Graph, w: Arranged) -> Weight {
    if let Some(direct) = direct(graph, w) {
        return direct;
    }
    let ty = graph.ty(w.node).clone();
    let contracting = w.batch + w.free..ty.rank();
    let last_free = (w.batch..w.batch + w.free).rev().find(|&i| ty.shape[i] > 1);
    let last_contracting = contracting.clone().rev().find(|&i| ty.shape[i] > 1);
    if let (Some(free), Some(inner), true) = (last_free, last_contracting, ty.element.is_float()) {
        let by_columns = leaf(graph, w.node).is_some_and(|view| view.strides[free] < view.strides[inner]);
        if by_columns {
            let permutation: Vec<usize> =
                (0..w.batch).chain(contracting).chain(w.batch..w.batch + w.free).collect();
            if let Some(node) = graph.transpose(w.node, &permutation) {
                return Weight::Columns(Kernel::compile(graph, node));
            }
        }
    }
    Weight::Rows(Kernel::compile(graph, w.node))
}

/// Rows that lie contiguously in a slot, in a type whose `f32` value is exact.
fn direct(graph: &Graph, w: Arranged) -> Option<Weight> {
    let ty = graph.ty(w.node);
    if !ty.element.is_float() {
        return None;
    }
    let mut id = w.node;
    // A conversion from a half type to f32 is what reading it does anyway.
    while let NodeKind::Convert(inner) = graph.node(id).kind {
        if ty.element != ElementType::F32 || !graph.element(inner).is_float() {
            return None;
        }
        id = inner;
    }
    let (slot, view) = graph.viewed(id)?;
    if view.shape != ty.shape {
        return None;
    }
    let row_stride = stride(view, w.batch..w.batch + w.free)?;
    let contiguous = matches!(stride(view, w.batch + w.free..view.shape.len())?, 0 | 1);
    let batch = View { offset: view.offset, ..part(view, 0..w.batch) };
    // A stride of 0 is an answer for one element, and for one element repeated.
    let elements: usize = view.shape[w.batch + w.free..].iter().product();
    let repeated = elements > 1 && stride(view, w.batch + w.free..view.shape.len())? == 0;
    (contiguous && !repeated).then(|| Weight::Direct {
        slot,
        element: graph.element(id),
        batch: batch.linear(),
        row_stride,
    })
}

/// The one stride that walks all of the dimensions, if there is one; 0 where they hold a single element.
fn stride(view: &View, dimensions: Range<usize>) -> Option<usize> {
    match part(view, dimensions).linear().dims[..] {
        [] => Some(0),
        [(_, stride)] => Some(stride),
        _ => None,
    }
}

/// Some dimensions of a view.
fn part(view: &View, dimensions: Range<usize>) -> View {
    let shape = view.shape[dimensions.clone()].to_vec();
    View { shape, strides: view.strides[dimensions].to_vec(), offset: 0 }
}

/// The view of the first leaf that has as many distinct elements as the expression and its shape.
fn leaf(graph: &Graph, id: NodeId) -> Option<&View> {
    let node = graph.node(id);
    match &node.kind {
        NodeKind::Load { view, .. } => {
            let whole = !view.strides.contains(&0) && view.shape == node.ty.shape;
            whole.then_some(view)
        }
        NodeKind::Relabel(_) => None,
        _ => node.inputs().find_map(|input| leaf(graph, input)),
    }
}
