//! Which values are needed, and which need no memory because only one place reads them.

use mlxcel_stablehlo::OpKind;

use super::flatten::{Flat, FlatBlock, FlatOp, Var};

/// What planning knows about the readers of each value before it starts.
#[derive(Debug)]
pub(super) struct Uses {
    /// How many operands and results name the value, of operations that are needed themselves.
    pub(super) count: Vec<usize>,
    /// Whether every use is in the same step, so that the value can be computed inside it.
    pub(super) single: Vec<bool>,
}

impl Uses {
    pub(super) fn of(flat: &Flat) -> Self {
        let values = flat.types.len();
        let mut walk = Walk { flat, count: vec![0; values], readers: vec![Readers::None; values], steps: 0 };
        walk.block(&flat.body);
        let single = walk.readers.iter().map(|readers| matches!(readers, Readers::One(_))).collect();
        Self { count: walk.count, single }
    }

    /// Whether a result of `op` is read.
    pub(super) fn needs(&self, op: &FlatOp) -> bool {
        op.results.iter().any(|&result| self.count[result] > 0)
    }
}

/// Whether the operation computes each element of its result from the elements at the same row-major place.
pub(super) fn is_elementwise(kind: &OpKind) -> bool {
    matches!(
        kind,
        OpKind::Unary(_)
            | OpKind::Binary(_)
            | OpKind::Compare(_)
            | OpKind::Select
            | OpKind::Clamp
            | OpKind::Convert
            | OpKind::Reshape
    )
}

/// The steps in which the uses of a value end.
#[derive(Clone, Copy, Debug)]
enum Readers {
    None,
    One(usize),
    Many,
}

/// A walk from the end of the program to its start, so that readers come before what they read.
struct Walk<'f> {
    flat: &'f Flat,
    count: Vec<usize>,
    readers: Vec<Readers>,
    steps: usize,
}

impl Walk<'_> {
    fn block(&mut self, block: &FlatBlock) {
        for &result in &block.results {
            let step = self.step();
            self.read(result, step, block);
        }
        for op in block.ops.iter().rev() {
            if !op.results.iter().any(|&result| self.count[result] > 0) {
                continue;
            }
            let own = self.step();
            let step = match (is_elementwise(&op.kind), op.results.as_slice()) {
                (true, &[result]) => match self.readers[result] {
                    Readers::One(step) => step,
                    Readers::None | Readers::Many => own,
                },
                _ => own,
            };
            for &operand in &op.operands {
                self.read(operand, step, block);
            }
            for region in &op.regions {
                self.block(region);
            }
        }
    }

    fn step(&mut self) -> usize {
        self.steps += 1;
        self.steps
    }

    fn read(&mut self, var: Var, step: usize, block: &FlatBlock) {
        self.count[var] += 1;
        self.readers[var] = match self.readers[var] {
            // A loop reads again each time.
            _ if self.flat.block_of[var] != block.id => Readers::Many,
            Readers::None => Readers::One(step),
            Readers::One(other) if other == step => Readers::One(step),
            Readers::One(_) | Readers::Many => Readers::Many,
        };
    }
}
