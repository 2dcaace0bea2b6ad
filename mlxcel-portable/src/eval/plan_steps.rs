//! Planning of the operations that are steps of their own.

use mlxcel_stablehlo::{DotDimensions, OpKind};

use super::SlotKind;
use super::argmax::ArgMax;
use super::dot::{Arranged, Dot, Sizes};
use super::flatten::{FlatBlock, FlatOp, Var};
use super::gather::Gather;
use super::movement::{Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Starts, Stretches};
use super::node::{NodeId, SlotId};
use super::plan::{Planner, widened};
use super::reduce::Reduce;
use super::scatter::Scatter;
use super::step::{BlockPlan, Step, While};
use super::view::{ViewOp, without};

impl Planner<'_> {
    /// Plans an operation that is neither an expression nor a view.
    pub(super) fn structural(&mut self, op: &FlatOp) {
        let ty = |planner: &Self, i: usize| widened(planner.ty(op.operands[i]));
        match (&op.kind, op.operands.as_slice()) {
            (OpKind::DynamicSlice { sizes }, &[operand, ref starts @ ..]) => {
                let shape = self.ty(operand).shape.clone();
                let step = DynamicSlice {
                    operand: self.wide_kernel(operand),
                    starts: self.starts(starts, &shape, sizes),
                    stretches: Stretches::new(&shape, sizes),
                    out: self.result(op.results[0]),
                };
                self.step(Step::DynamicSlice(Box::new(step)));
            }
            (OpKind::DynamicUpdateSlice, &[operand, update, ref starts @ ..]) => {
                let (shape, sizes) = (self.ty(operand).shape.clone(), self.ty(update).shape.clone());
                let slot = self.consumed(operand, &op.operands[1..]);
                let step = DynamicUpdateSlice {
                    operand: (slot, false),
                    update: self.wide_kernel(update),
                    starts: self.starts(starts, &shape, &sizes),
                    stretches: Stretches::new(&shape, &sizes),
                    out: self.result(op.results[0]),
                };
                self.step(Step::DynamicUpdateSlice(Box::new(step)));
            }
            (OpKind::Concatenate { dimension }, operands) => {
                let run = |shape: &[usize]| shape[*dimension..].iter().product();
                let operands =
                    operands.iter().map(|&var| (self.wide_kernel(var), run(&self.ty(var).shape))).collect();
                let step = Concatenate { operands, out: self.result(op.results[0]) };
                self.step(Step::Concatenate(Box::new(step)));
            }
            (OpKind::Pad { low, interior, .. }, &[operand, value]) => {
                let step = Pad {
                    operand: self.wide_kernel(operand),
                    value: self.wide_kernel(value),
                    shape: self.ty(operand).shape.clone(),
                    result: self.ty(op.results[0]).shape.clone(),
                    low: low.clone(),
                    interior: interior.clone(),
                    out: self.result(op.results[0]),
                };
                self.step(Step::Pad(Box::new(step)));
            }
            (OpKind::Gather { dimensions }, &[operand, indices]) => {
                let types = [0, 1].map(|i| ty(self, i));
                let operand = (self.wide_kernel(operand), &types[0]);
                let indices = (self.kernel(indices), &types[1]);
                let result = self.ty(op.results[0]);
                let step = Gather::plan(operand, indices, dimensions, result, self.result(op.results[0]));
                self.step(Step::Gather(Box::new(step)));
            }
            (OpKind::Scatter { dimensions, update, .. }, &[operand, indices, updates]) => {
                let types = [0, 1, 2].map(|i| ty(self, i));
                let slot = self.consumed(operand, &op.operands[1..]);
                let operand = (slot, &types[0]);
                let indices = (self.kernel(indices), &types[1]);
                let updates = (self.wide_kernel(updates), &types[2]);
                let out = self.result(op.results[0]);
                let step = Scatter::plan(operand, indices, updates, dimensions, *update, out);
                self.step(Step::Scatter(Box::new(step)));
            }
            (OpKind::Reduce { reduction, dimensions }, &[operand]) => {
                let operand_type = ty(self, 0);
                let kernel = self.wide_kernel(operand);
                let out = self.result(op.results[0]);
                let declared = self.ty(operand).element;
                let step = Reduce::plan(kernel, &operand_type, *reduction, dimensions, declared, out);
                self.step(Step::Reduce(Box::new(step)));
            }
            (OpKind::ReduceArgMax { dimension }, &[values, indices]) => {
                let values_type = ty(self, 0);
                let (values, indices) = (self.wide_kernel(values), self.wide_kernel(indices));
                let outs = [0, 1].map(|i| self.result(op.results[i]));
                let step = ArgMax::plan(values, indices, &values_type, *dimension, outs);
                self.step(Step::ArgMax(Box::new(step)));
            }
            (OpKind::DotGeneral { dimensions }, &[lhs, rhs]) => self.dot(op, [lhs, rhs], dimensions),
            (OpKind::While, _) => self.while_loop(op),
            // The others were planned as expressions, or written out.
            _ => {}
        }
    }

    fn starts(&self, starts: &[Var], shape: &[usize], sizes: &[usize]) -> Starts {
        Starts::new(starts.iter().map(|&var| self.kernel(var)).collect(), shape, sizes)
    }

    /// The slot of an operand that the step would like to take over, once nothing else reads it late.
    fn consumed(&mut self, operand: Var, others: &[Var]) -> SlotId {
        let slot = self.stored_wide(operand);
        for &other in others {
            self.detach(other, slot);
        }
        self.settle_readers(slot);
        slot
    }

    fn dot(&mut self, op: &FlatOp, operands: [Var; 2], dimensions: &DotDimensions) {
        let result = self.ty(op.results[0]);
        let element = widened(result).element;
        let shapes = operands.map(|var| self.ty(var).shape.clone());
        let DotDimensions { lhs_batch, rhs_batch, lhs_contracting, rhs_contracting } = dimensions;
        let named = [(lhs_batch, lhs_contracting), (rhs_batch, rhs_contracting)];
        let mut arranged = Vec::with_capacity(2);
        let mut rows = Vec::with_capacity(2);
        for ((&var, shape), (batch, contracting)) in operands.iter().zip(&shapes).zip(named) {
            let free = without(shape.len(), &[batch.as_slice(), contracting].concat());
            let permutation = [batch.as_slice(), &free, contracting].concat();
            let node = self.arrange(self.node(var), &permutation);
            arranged.push(Arranged { node, batch: batch.len(), free: free.len() });
            rows.push(free.iter().map(|&i| shape[i]).product::<usize>());
        }
        let size = |dimensions: &[usize]| dimensions.iter().map(|&i| shapes[0][i]).product();
        let out = self.result(op.results[0]);
        let swapped = self.streams_left(&arranged, &rows);
        let (x, w) = if swapped { (1, 0) } else { (0, 1) };
        let sizes = Sizes { batch: size(lhs_batch), m: rows[x], n: rows[w], k: size(lhs_contracting) };
        let step = Dot::plan(&mut self.graph, (arranged[x], arranged[w]), sizes, swapped, element, out);
        self.step(Step::Dot(Box::new(step)));
    }

    fn arrange(&mut self, node: NodeId, permutation: &[usize]) -> NodeId {
        if let Some(node) = self.graph.transpose(node, permutation) {
            return node;
        }
        self.apply(node, ViewOp::Transpose { permutation }, true)
    }

    /// Whether the left operand is the one to stream: one that comes from outside rather than one that is
    /// computed, else the larger one.
    fn streams_left(&self, arranged: &[Arranged], rows: &[usize]) -> bool {
        let outside = |operand: &Arranged| {
            self.graph.slots(operand.node).iter().any(|&slot| {
                !matches!(self.slots[slot].kind, SlotKind::Temporary)
                    && self.slots[slot].bytes >= self.graph.ty(operand.node).elements() / 4
            })
        };
        match (outside(&arranged[0]), outside(&arranged[1])) {
            (true, false) => rows[0] > 1,
            (false, true) => false,
            _ => rows[0] > 4 * rows[1],
        }
    }

    fn while_loop(&mut self, op: &FlatOp) {
        let [condition, body] = op.regions.as_slice() else { return };
        let initial: Vec<SlotId> = op.operands.iter().map(|&var| self.stored(var)).collect();
        for &slot in &initial {
            self.settle_readers(slot);
        }
        let carried: Vec<SlotId> = op.results.iter().map(|&var| self.temporary(self.ty(var))).collect();
        let condition = self.region(condition, &carried, &[]);
        let body = self.region(body, &carried, &carried);
        for (&var, &slot) in op.results.iter().zip(&carried) {
            let node = self.graph.load(slot, self.ty(var).clone());
            self.define(var, node);
        }
        let initial = initial.into_iter().map(|slot| (slot, false)).collect();
        self.step(Step::While(Box::new(While { initial, carried, condition, body })));
    }

    /// Plans a region that is entered with what the slots hold.
    fn region(&mut self, block: &FlatBlock, arguments: &[SlotId], taken: &[SlotId]) -> BlockPlan {
        for (&var, &slot) in block.arguments.iter().zip(arguments) {
            let node = self.graph.load(slot, self.ty(var).clone());
            self.set(var, node);
        }
        self.block(block, taken)
    }
}
