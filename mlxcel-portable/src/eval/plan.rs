//! Planning: from operations to steps.
//!
//! Elementwise operations and views stay expressions (see [`node`](super::node)) where a single step reads
//! them, and become a step of their own where several do. The other operations become steps that compute the
//! expressions they read on the way. Then each slot's last use is found: there its memory is free again, or
//! an update takes it over.

use mlxcel_stablehlo::{ElementType, Literal, OpKind, TensorType};

use super::flatten::{Flat, FlatBlock, FlatOp, Var};
use super::kernel::Kernel;
use super::lanes::Scalar;
use super::liveness::finish;
use super::node::{Graph, NodeId, NodeKind, SlotId};
use super::step::{BlockPlan, Elementwise, Planned, Step};
use super::uses::{Uses, is_elementwise};
use super::view::{View, ViewOp};
use super::{Slot, SlotKind};

/// Expressions of more operations than this are cut, so that their registers stay in the cache.
const LARGEST_EXPRESSION: usize = 48;

/// A program under planning.
pub(super) struct Planner<'f> {
    pub(super) flat: &'f Flat,
    pub(super) graph: Graph,
    pub(super) slots: Vec<Slot>,
    /// The block whose steps make each slot.
    pub(super) block_of_slot: Vec<usize>,
    uses: Uses,
    /// The node of each value that is defined so far.
    nodes: Vec<NodeId>,
    /// The uses of each value that are still to come.
    remaining: Vec<usize>,
    /// The block under planning, its steps, and its values so far.
    block: usize,
    /// Slots of an outer block that the block may take over.
    taken: Vec<SlotId>,
    steps: Vec<Planned>,
    defined: Vec<Var>,
}

impl<'f> Planner<'f> {
    /// The plan of a program and the slots it works on, those of the arguments first.
    pub(super) fn plan(flat: &'f Flat) -> (BlockPlan, Vec<Slot>) {
        let uses = Uses::of(flat);
        let values = flat.types.len();
        let mut planner = Self {
            flat,
            graph: Graph::default(),
            slots: Vec::new(),
            block_of_slot: Vec::new(),
            remaining: uses.count.clone(),
            uses,
            nodes: vec![0; values],
            block: 0,
            taken: Vec::new(),
            steps: Vec::new(),
            defined: Vec::new(),
        };
        for &argument in &flat.body.arguments {
            let ty = &flat.types[argument];
            let slot = planner.slot(SlotKind::Argument, ty.bytes());
            let node = planner.graph.load(slot, ty.clone());
            planner.define(argument, node);
        }
        let plan = planner.block(&flat.body, &[]);
        (plan, planner.slots)
    }

    fn slot(&mut self, kind: SlotKind, bytes: usize) -> SlotId {
        self.slots.push(Slot { kind, bytes });
        self.block_of_slot.push(self.block);
        self.slots.len() - 1
    }

    /// A slot for a tensor that a step makes.
    pub(super) fn temporary(&mut self, ty: &TensorType) -> SlotId {
        self.slot(SlotKind::Temporary, ty.bytes())
    }

    /// A slot for the result of a step, and the result's value defined as what it holds.
    pub(super) fn result(&mut self, var: Var) -> SlotId {
        let ty = self.flat.types[var].clone();
        let slot = self.temporary(&widened(&ty));
        let node = self.wide_load(slot, &ty);
        self.define(var, node);
        slot
    }

    pub(super) fn define(&mut self, var: Var, node: NodeId) {
        self.nodes[var] = node;
        self.defined.push(var);
    }

    /// Sets the node of a region's argument.
    pub(super) fn set(&mut self, var: Var, node: NodeId) {
        self.nodes[var] = node;
    }

    /// What reads a value of type `ty` from a slot that holds its 4-bit elements as bytes.
    fn wide_load(&mut self, slot: SlotId, ty: &TensorType) -> NodeId {
        let node = self.graph.load(slot, widened(ty));
        self.convert(node, ty.element)
    }

    pub(super) fn step(&mut self, step: Step) {
        self.steps.push(Planned { step, release: Vec::new() });
    }

    pub(super) fn ty(&self, var: Var) -> &'f TensorType {
        &self.flat.types[var]
    }

    pub(super) fn node(&self, var: Var) -> NodeId {
        self.nodes[var]
    }

    /// The compiled expression of a value, 4-bit elements as bytes: steps address whole bytes.
    pub(super) fn wide_kernel(&mut self, var: Var) -> Kernel {
        let node = self.wide_node(var);
        Kernel::compile(&self.graph, node)
    }

    fn wide_node(&mut self, var: Var) -> NodeId {
        let node = self.nodes[var];
        let element = widened(self.graph.ty(node)).element;
        self.convert(node, element)
    }

    pub(super) fn kernel(&self, var: Var) -> Kernel {
        Kernel::compile(&self.graph, self.nodes[var])
    }

    fn convert(&mut self, node: NodeId, element: ElementType) -> NodeId {
        if self.graph.element(node) == element {
            return node;
        }
        let ty = self.graph.ty(node).with_element(element);
        self.graph.add(NodeKind::Convert(node), ty)
    }

    /// Plans a block; `taken` are slots of an outer block that it may take over.
    pub(super) fn block(&mut self, block: &FlatBlock, taken: &[SlotId]) -> BlockPlan {
        let outer_block = std::mem::replace(&mut self.block, block.id);
        let outer_taken = std::mem::replace(&mut self.taken, taken.to_vec());
        let outer_steps = std::mem::take(&mut self.steps);
        let outer_defined = if block.id == 0 { Vec::new() } else { std::mem::take(&mut self.defined) };
        for op in &block.ops {
            if self.uses.needs(op) {
                for &operand in &op.operands {
                    self.remaining[operand] = self.remaining[operand].saturating_sub(1);
                }
                self.op(op);
            }
        }
        let results: Vec<SlotId> = block.results.iter().map(|&var| self.stored(var)).collect();
        let steps = std::mem::replace(&mut self.steps, outer_steps);
        self.defined = outer_defined;
        let plan = finish(steps, &results, |slot| self.owns(slot));
        self.block = outer_block;
        self.taken = outer_taken;
        plan
    }

    /// Whether the block under planning may release the slot or take it over.
    fn owns(&self, slot: SlotId) -> bool {
        let own = self.block_of_slot[slot] == self.block || self.taken.contains(&slot);
        own && !matches!(self.slots[slot].kind, SlotKind::Constant(_))
    }

    /// The slot that holds exactly the value.
    pub(super) fn stored(&mut self, var: Var) -> SlotId {
        let node = self.nodes[var];
        let (slot, node) = self.stored_node(node);
        // A slot of this block is not there for what an outer block does afterwards.
        if self.flat.block_of[var] == self.block {
            self.nodes[var] = node;
        }
        slot
    }

    /// The slot that holds the value with 4-bit elements as bytes.
    pub(super) fn stored_wide(&mut self, var: Var) -> SlotId {
        if widened(self.ty(var)) == *self.ty(var) {
            return self.stored(var);
        }
        let node = self.wide_node(var);
        self.stored_node(node).0
    }

    fn stored_node(&mut self, node: NodeId) -> (SlotId, NodeId) {
        if let Some(slot) = self.graph.stored(node)
            && self.slots[slot].bytes == self.graph.ty(node).bytes()
        {
            return (slot, node);
        }
        let slot = self.write(node);
        (slot, self.graph.load(slot, self.graph.ty(node).clone()))
    }

    /// Makes a step that writes the expression to a slot, and answers what reads it.
    fn write_out(&mut self, node: NodeId) -> NodeId {
        let slot = self.write(node);
        self.graph.load(slot, self.graph.ty(node).clone())
    }

    /// Makes a step that writes the expression, and answers the slot.
    fn write(&mut self, node: NodeId) -> SlotId {
        let out = self.temporary(&self.graph.ty(node).clone());
        let kernel = Kernel::compile(&self.graph, node);
        self.step(Step::Elementwise(Elementwise { kernel, out }));
        out
    }

    /// Before `slot` is updated in place, writes out what still has to be read of it; otherwise its late
    /// readers would force the update into a copy of the whole.
    pub(super) fn settle_readers(&mut self, slot: SlotId) {
        let bytes = self.slots[slot].bytes;
        let late: Vec<Var> = self
            .defined
            .iter()
            .copied()
            .filter(|&var| self.remaining[var] > 0 && self.graph.reads(self.nodes[var], slot))
            .collect();
        // Where all of it stays needed, the update is a copy anyway.
        let whole =
            |&var: &Var| self.graph.stored(self.nodes[var]).is_some() && self.ty(var).bytes() == bytes;
        if !self.owns(slot) || late.iter().any(whole) {
            return;
        }
        for var in late {
            self.nodes[var] = self.write_out(self.nodes[var]);
        }
    }

    /// Writes the value out if computing it reads `slot`.
    pub(super) fn detach(&mut self, var: Var, slot: SlotId) {
        if self.graph.reads(self.nodes[var], slot) {
            self.nodes[var] = self.write_out(self.nodes[var]);
        }
    }

    fn op(&mut self, op: &FlatOp) {
        let operand = |i: usize| op.operands[i];
        match &op.kind {
            OpKind::Constant(literal) => self.constant(op, literal),
            OpKind::Iota { dimension } => {
                let ty = self.ty(op.results[0]).clone();
                let mut view = View { strides: vec![0; ty.rank()], shape: ty.shape.clone(), offset: 0 };
                view.strides[*dimension] = 1;
                let node = self.graph.add(NodeKind::Iota { view }, ty);
                self.define(op.results[0], node);
            }
            OpKind::Reshape => {
                let node = self.graph.relabel(self.nodes[operand(0)], &self.ty(op.results[0]).shape.clone());
                self.expression(op.results[0], node);
            }
            OpKind::BroadcastInDim { dimensions } => {
                let shape = &self.ty(op.results[0]).shape;
                self.view(op, ViewOp::Broadcast { dimensions, shape });
            }
            OpKind::Transpose { permutation } => self.view(op, ViewOp::Transpose { permutation }),
            OpKind::Slice { start, limit, stride } => self.view(op, ViewOp::Slice { start, limit, stride }),
            OpKind::BitcastConvert => {
                let slot = self.stored(operand(0));
                let node = self.graph.load(slot, self.ty(op.results[0]).clone());
                self.define(op.results[0], node);
            }
            kind if is_elementwise(kind) => self.elementwise(op),
            _ => self.structural(op),
        }
    }

    fn constant(&mut self, op: &FlatOp, literal: &Literal) {
        let ty = literal.ty().clone();
        let node = match splat(literal) {
            Some(scalar) => self.graph.add(NodeKind::Splat(scalar), ty),
            None => {
                let slot = self.slot(SlotKind::Constant(literal.clone()), ty.bytes());
                self.graph.load(slot, ty)
            }
        };
        self.define(op.results[0], node);
    }

    fn elementwise(&mut self, op: &FlatOp) {
        let ty = self.ty(op.results[0]).clone();
        let mut inputs: Vec<NodeId> = op.operands.iter().map(|&var| self.nodes[var]).collect();
        // Scalars beside tensors are repeated.
        for input in &mut inputs {
            if self.graph.ty(*input).rank() == 0 && ty.rank() > 0 {
                *input = self.apply(*input, ViewOp::Broadcast { dimensions: &[], shape: &ty.shape }, true);
            }
        }
        while inputs.iter().map(|&id| self.graph.node(id).size).sum::<usize>() > LARGEST_EXPRESSION {
            let sizes = inputs.iter().map(|&id| self.graph.node(id).size);
            let Some((largest, _)) = sizes.enumerate().max_by_key(|&(_, size)| size) else { break };
            let node = inputs[largest];
            let loaded = self.write_out(node);
            inputs.iter_mut().filter(|input| **input == node).for_each(|input| *input = loaded);
        }
        let kind = match (&op.kind, inputs.as_slice()) {
            (OpKind::Unary(op), &[a]) => NodeKind::Unary(*op, a),
            (OpKind::Binary(op), &[a, b]) => NodeKind::Binary(*op, a, b),
            (OpKind::Compare(comparison), &[a, b]) => NodeKind::Compare(*comparison, a, b),
            (OpKind::Select, &[a, b, c]) => NodeKind::Select(a, b, c),
            (OpKind::Clamp, &[a, b, c]) => NodeKind::Clamp(a, b, c),
            (_, inputs) => NodeKind::Convert(inputs[0]),
        };
        let node = self.graph.add(kind, ty);
        self.expression(op.results[0], node);
    }

    /// Defines a value as an expression, or as what a step writes, as its uses ask for.
    fn expression(&mut self, var: Var, node: NodeId) {
        let stays = self.uses.single[var] || self.graph.is_cheap(node);
        let node = if stays { node } else { self.write_out(node) };
        self.define(var, node);
    }

    fn view(&mut self, op: &FlatOp, view: ViewOp<'_>) {
        let once = self.uses.single[op.results[0]];
        let node = self.apply(self.nodes[op.operands[0]], view, once);
        self.define(op.results[0], node);
    }

    /// A view of an expression. It is applied to what the expression reads where that computes no element
    /// more often; otherwise the expression is written out first.
    pub(super) fn apply(&mut self, node: NodeId, view: ViewOp<'_>, once: bool) -> NodeId {
        let operand = self.graph.ty(node).clone();
        let shape = match view {
            ViewOp::Broadcast { shape, .. } => shape.to_vec(),
            _ => View::dense(&operand.shape).apply(view).shape,
        };
        let repeats = matches!(view, ViewOp::Broadcast { .. }) && operand.elements() > 1;
        if (self.graph.is_cheap(node) || (once && !repeats))
            && let Some(node) = self.graph.apply_view(node, view, &shape)
        {
            return node;
        }
        let slot = self.write(node);
        let ty = TensorType::new(operand.element, shape);
        let view = View::dense(&operand.shape).apply(view);
        self.graph.add(NodeKind::Load { slot, view }, ty)
    }
}

/// The type with 4-bit elements as bytes.
pub(super) fn widened(ty: &TensorType) -> TensorType {
    match ty.element {
        ElementType::I4 => ty.with_element(ElementType::I8),
        ElementType::U4 => ty.with_element(ElementType::U8),
        _ => ty.clone(),
    }
}

/// The element that a constant repeats, if all are the same; bit for bit, so that zeros keep their sign.
fn splat(literal: &Literal) -> Option<Scalar> {
    let (ty, bytes) = (literal.ty(), literal.bytes());
    let element = ty.element;
    let same = match (ty.elements(), element.bits()) {
        (0, _) => return None,
        (1, _) => true,
        (count, 4) => {
            let first = bytes[0] & 0xf;
            (0..count).all(|i| (bytes[i / 2] >> (4 * (i % 2))) & 0xf == first)
        }
        _ => {
            let size = element.bytes_for(1);
            bytes.chunks(size).all(|chunk| chunk == &bytes[..size])
        }
    };
    same.then(|| Scalar::first(element, bytes))
}
