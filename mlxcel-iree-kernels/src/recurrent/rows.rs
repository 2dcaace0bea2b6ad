//! The rows of a recurrence: their tokens, and the states that they begin with and leave.

use mlxcel_stablehlo::{Builder, Composite, ElementType, Value};

use crate::context::{self, knows_attributes};
use crate::kernels::Kernel;
use crate::value::{Operand, Type};
use crate::vectors::Memory;
use crate::writer::Writer;

/// The operands of a composite before the rows' counts and states.
pub(super) const OPERANDS: usize = 5;

/// The rows of a composite of a recurrence.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// The number of tokens of each row, including padding.
    tokens: Vec<usize>,
    /// The type of each state: layers, then the shape of one.
    state: [usize; 4],
}

impl Rows {
    /// The composite's rows and its other operands; none if it has unknown attributes, or operands of other
    /// types.
    pub(super) fn of<'f>(
        composite: &Composite<'_, 'f>,
        b: &Builder<'f>,
    ) -> Option<(Self, [Value<'f>; OPERANDS])> {
        let tokens = context::rows(composite)?;
        let (&operands, rest) = composite.operands.split_first_chunk::<OPERANDS>()?;
        let (&counts, states) = rest.split_first()?;
        let (&first, others) = states.split_first()?;
        let state = b.ty(first).shape[..].try_into().ok()?;
        let counts = b.ty(counts);
        let fits = knows_attributes(composite, &["layer", "rows"])
            && states.len() == tokens.len()
            && counts.shape == [tokens.len()]
            && counts.element == ElementType::I32
            && others.iter().all(|&other| b.ty(other) == b.ty(first))
            && operands.iter().chain([&first]).all(|&value| b.ty(value).element == ElementType::F32);
        let rows = Self { tokens, state };
        fits.then_some((rows, operands))
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The number of tokens of all rows.
    pub(super) fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }

    /// Whether the states are of this shape in each layer.
    pub(super) fn has_states(&self, shape: [usize; 3]) -> bool {
        self.state[1..] == shape
    }

    /// Whether every row has one token.
    pub(super) fn are_single(&self) -> bool {
        self.tokens.iter().all(|&tokens| tokens == 1)
    }

    /// The tokens of the rows, as a part of a kernel's name.
    pub(super) fn label(&self) -> String {
        let runs = self.tokens.chunk_by(|a, b| a == b);
        let runs = runs.map(|run| match run {
            [one] => one.to_string(),
            several => format!("{}x{}", several[0], several.len()),
        });
        runs.collect::<Vec<_>>().join("_")
    }

    /// Adds the last operands of the composite to a kernel, whose results are `mixed` values of each token
    /// and the states, in place.
    pub(super) fn operands(&self, kernel: &mut Kernel, mixed: usize) -> Buffers {
        use ElementType::{F32, I32};
        let counts = Memory::operand(kernel, "counts", self.len(), I32);
        let size = self.state.iter().product();
        let states = (0..self.len()).map(|_| Memory::operand(kernel, "state", size, F32)).collect();
        let mixed = Memory::result(kernel, "mixed", self.tokens() * mixed, F32);
        (0..self.len()).for_each(|row| kernel.tied_result(OPERANDS + 1 + row));
        let layer = kernel.uniform("layer");
        let layer = kernel.body.cast("layer", "index_cast", &layer, "index");
        Buffers { counts, states, mixed, layer }
    }
}

/// The buffers that all recurrences have.
pub(super) struct Buffers {
    counts: Memory,
    states: Vec<Memory>,
    /// The results, token after token.
    pub(super) mixed: Memory,
    /// The layer of the states, of type `index`.
    layer: Operand,
}

/// One row in a kernel. Tokens are counted over all rows.
pub(super) struct Place {
    /// The state of the row.
    pub(super) state: Memory,
    /// Where the layer begins in it.
    pub(super) layer: Operand,
    /// The first token.
    pub(super) first: Operand,
    /// The token behind the last one.
    pub(super) end: Operand,
    /// The token behind the padding.
    pub(super) padded: Operand,
}

impl Buffers {
    /// The row with this number, of type `index`.
    pub(super) fn place(&self, w: &mut Writer, rows: &Rows, number: &Operand) -> Place {
        let [_, heads, height, width] = rows.state;
        let mut state = self.states[0].clone();
        let (mut first, mut padded) = (w.index(0), w.index(rows.tokens[0]));
        let mut start = rows.tokens[0];
        for (row, &tokens) in rows.tokens.iter().enumerate().skip(1) {
            let index = w.index(row);
            let is = w.compare("is", "eq", number, &index);
            let view = &self.states[row].view;
            state.view.name = w.define(
                "state",
                format_args!("arith.select {is}, {}, {} : {}", view.name, state.view.name, view.ty),
            );
            let [own, behind] = [start, start + tokens].map(|token| w.index(token));
            first = w.select("first", &is, &own, &first);
            padded = w.select("padded", &is, &behind, &padded);
            start += tokens;
        }
        let count = self.counts.scalar(w, "count", number);
        let none = w.constant(0, Type::I32);
        let count = w.arith("count", "maxsi", &count, &none);
        let count = w.cast("count", "index_castui", &count, "index");
        let end = w.added("end", &first, &count);
        let end = w.arith("end", "minui", &end, &padded);
        let layer = w.scaled("layer", &self.layer, heads * height * width);
        Place { state, layer, first, end, padded }
    }
}
