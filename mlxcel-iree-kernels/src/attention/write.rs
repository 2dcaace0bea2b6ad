//! Writes keys and values of rows with several tokens into the caches before any of them is read.

use super::label;
use super::pass::{Pass, divide, for_each, row_scratch};
use super::shape::{Run, Shape};
use crate::kernels::{Description, Kernel};

/// Tokens of one workgroup.
const TOKENS: usize = 16;

/// The kernel for rows with several tokens, if any; rows with one token write theirs in the kernel that reads
/// them.
#[derive(Debug)]
pub(super) struct Writes<'a>(&'a Shape);

impl<'a> Writes<'a> {
    pub(super) fn of(shape: &'a Shape) -> Option<Self> {
        shape.runs.iter().any(|run| run.tokens > 1).then_some(Self(shape))
    }

    /// The runs of several tokens, each with its workgroups.
    fn runs(&self) -> impl Iterator<Item = (&'a Run, usize)> {
        let &Self(shape) = self;
        let several = shape.runs.iter().filter(|run| run.tokens > 1);
        several.map(|run| (run, run.count * shape.kept_heads() * run.tokens.div_ceil(TOKENS)))
    }
}

impl Description for Writes<'_> {
    fn kernel(&self) -> Kernel {
        let &Self(shape) = self;
        let total = self.runs().map(|(_, workgroups)| workgroups).sum();
        let mut kernel = Kernel::new(label("kv_write", shape), [total, 1, 1]);
        let pass = Pass::operands(&mut kernel, shape);
        let workgroup = kernel.workgroup(0);
        let w = &mut kernel.body;
        let row = row_scratch(w, shape);
        let mut first = 0;
        for (run, workgroups) in self.runs() {
            let [begin, end] = [first, first + workgroups].map(|number| w.index(number));
            let behind = w.compare("behind", "uge", &workgroup, &begin);
            let before = w.compare("before", "ult", &workgroup, &end);
            let own = w.arith("own", "andi", &behind, &before);
            w.if_then(&own, |w| {
                let item = w.arith("item", "subi", &workgroup, &begin);
                let (item, group) = divide(w, "group", &item, shape.kept_heads());
                let (index, block) = divide(w, "block", &item, run.tokens.div_ceil(TOKENS));
                let place = pass.place(w, shape, run, (&index, &group));
                let size = w.index(TOKENS);
                let first = w.arith("first", "muli", &block, &size);
                for_each(w, TOKENS, 1, |w, token| {
                    let token = w.arith("token", "addi", &first, token);
                    let tokens = w.index(run.tokens);
                    let exists = w.compare("exists", "ult", &token, &tokens);
                    w.if_then(&exists, |w| pass.write(w, shape, &place, &token, &row));
                });
            });
            first += workgroups;
        }
        kernel
    }
}
