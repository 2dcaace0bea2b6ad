//! Selective state spaces (Gu and Dao 2023, Dao and Gu 2024). A row of a head's state depends on no other: a
//! workgroup computes some rows of it, or those of some heads.

use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, Value};

use super::rows::{Buffers, Place, Rows};
use crate::context::{self, Context};
use crate::instructions::Instructions;
use crate::kernels::{Description, Kernel};
use crate::value::{Operand, Type};
use crate::vectors::{Memory, dividing, exponential, largest_divisor};
use crate::writer::Writer;

/// The most numbers of a tile, with the rates of those that have their own: they take half of the smallest
/// first-level caches.
const TILE: usize = 4096;

/// Rows of a tile that are computed side by side, and share what they are multiplied by.
const TOGETHER: usize = 4;

/// Replaces a selective state space by a kernel.
pub(crate) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let space = StateSpace::of(composite, b, context.instructions);
    let (Some(space), Some(layer)) = (space, context::layer(composite)) else { return Ok(None) };
    let results = composite.decomposition.result_types().cloned().collect();
    context.kernels.call_at(b, &space, composite.operands, results, &[layer]).map(Some)
}

/// The operands of a composite `mlxcel.selective_state_space`, as numbers, and how they are divided.
#[derive(Debug)]
struct StateSpace {
    rows: Rows,
    groups: usize,
    heads: usize,
    /// The rows of a head's state.
    width: usize,
    /// The numbers of each of them.
    size: usize,
    /// Whether each number has its own rate.
    by_number: bool,
    /// Elements of a vector.
    lanes: usize,
    /// The heads of a tile, more than one if it has all rows of each.
    tile_heads: usize,
    /// The rows of each head of a tile.
    tile_rows: usize,
    /// Rows that are computed side by side.
    together: usize,
}

impl StateSpace {
    /// None if there is no kernel: where each number has its own rate, for rows of one token each, whose
    /// exponentials the compiler's code computes in less time.
    fn of<'f>(composite: &Composite<'_, 'f>, b: &Builder<'f>, instructions: Instructions) -> Option<Self> {
        let (rows, [x, dt, rate, input, output]) = Rows::of(composite, b)?;
        let &[tokens, heads, width] = &b.ty(x).shape[..] else { return None };
        let &[_, groups, size] = &b.ty(input).shape[..] else { return None };
        let by_number = b.ty(rate).shape.len() == 3;
        let rates = if by_number { vec![1, heads, size] } else { vec![1, heads] };
        let fits = b.ty(output) == b.ty(input)
            && rows.tokens() == tokens
            && b.ty(input).shape == [tokens, groups, size]
            && b.ty(dt).shape == [tokens, heads]
            && b.ty(rate).shape == rates
            && [groups, width, size].iter().all(|&size| size > 0)
            && heads.is_multiple_of(groups)
            && rows.has_states([heads, width, size]);
        if !fits || by_number && rows.are_single() {
            return None;
        }
        let most = if by_number { TILE / 2 } else { TILE };
        let tile_rows = largest_divisor(width, (most / size).max(1));
        let most_heads = if tile_rows == width { (most / (width * size)).max(1) } else { 1 };
        Some(Self {
            rows,
            groups,
            heads,
            width,
            size,
            by_number,
            lanes: dividing(size, instructions.lanes()),
            tile_heads: largest_divisor(heads / groups, most_heads),
            tile_rows,
            together: largest_divisor(tile_rows, TOGETHER),
        })
    }
}

impl Description for StateSpace {
    fn kernel(&self) -> Kernel {
        let Self { rows, groups, heads, width, size, tile_heads, tile_rows, .. } = self;
        let [of_heads, of_rows] = [heads / tile_heads, width / tile_rows];
        let rates = if self.by_number { "number_" } else { "" };
        let label = format!("state_space_{rates}{}_{heads}x{width}x{size}", rows.label());
        let mut kernel = Kernel::new(label, [rows.len() * of_heads * of_rows, 1, 1]);
        let tokens = rows.tokens();
        let mut operand = |word: &str, len| Memory::operand(&mut kernel, word, len, ElementType::F32);
        let x = operand("x", tokens * heads * width);
        let dt = operand("dt", tokens * heads);
        let rate = operand("rate", if self.by_number { heads * size } else { *heads });
        let [input, output] = ["input", "output"].map(|word| operand(word, tokens * groups * size));
        let buffers = rows.operands(&mut kernel, heads * width);
        let workgroup = kernel.workgroup(0);
        let w = &mut kernel.body;
        let [of_heads, of_rows] = [of_heads, of_rows].map(|count| w.index(count));
        let number = w.arith("number", "divui", &workgroup, &of_rows);
        let first_row = w.arith("first_row", "remui", &workgroup, &of_rows);
        let first_row = w.scaled("first_row", &first_row, *tile_rows);
        let row = w.arith("row", "divui", &number, &of_heads);
        let first_head = w.arith("first_head", "remui", &number, &of_heads);
        let first_head = w.scaled("first_head", &first_head, *tile_heads);
        let place = buffers.place(w, rows, &row);
        let space = self;
        Walk { space, x, dt, rate, input, output, buffers, place, first_head, first_row }.write(w);
        kernel
    }
}

/// The code of one workgroup: some rows of the state over the tokens of a row.
struct Walk<'a> {
    space: &'a StateSpace,
    x: Memory,
    dt: Memory,
    rate: Memory,
    input: Memory,
    output: Memory,
    buffers: Buffers,
    place: Place,
    first_head: Operand,
    first_row: Operand,
}

/// One token and head.
struct Step {
    /// Where the head's rates begin.
    rate: Operand,
    /// Where its rows begin in the state.
    state: Operand,
    /// Where the token's inputs and outputs of the head's group begin.
    shared: Operand,
    /// Where its values and results begin.
    values: Operand,
    /// The step, in all lanes.
    dt: Operand,
    /// The factor of the state in all lanes, if it is the same for all numbers.
    decay: Option<Operand>,
}

impl Walk<'_> {
    fn write(&self, w: &mut Writer) {
        let Place { first, end, padded, .. } = &self.place;
        let nothing = w.constant("0.0", Type::F32);
        self.tokens(w, first, end, |w, token, head| {
            let step = self.step(w, token, head);
            self.rows(w, |w, row| self.update(w, &step, row));
        });
        self.tokens(w, end, padded, |w, token, head| {
            let values = self.values_at(w, token, head);
            self.rows(w, |w, row| {
                let at = w.added("at", &values, row);
                for offset in 0..self.space.together {
                    let at = w.offset("at", &at, offset);
                    self.buffers.mixed.store(w, &nothing, &at);
                }
            });
        });
    }

    /// `body` for each head of the tile, for each token from `first` to `end`.
    fn tokens(
        &self,
        w: &mut Writer,
        first: &Operand,
        end: &Operand,
        body: impl FnOnce(&mut Writer, &Operand, &Operand),
    ) {
        let [zero, one, heads] = [0, 1, self.space.tile_heads].map(|number| w.index(number));
        w.for_loop("token", [first, end, &one], &[], |w, token, _| {
            w.for_loop("head", [&zero, &heads, &one], &[], |w, head, _| {
                let head = w.added("head", &self.first_head, head);
                body(w, token, &head);
                Vec::new()
            })
        });
    }

    /// `body` for the first of each few rows of a head that are computed side by side.
    fn rows(&self, w: &mut Writer, body: impl FnOnce(&mut Writer, &Operand)) {
        let [zero, rows, step] = [0, self.space.tile_rows, self.space.together].map(|number| w.index(number));
        w.for_loop("row", [&zero, &rows, &step], &[], |w, row, _| {
            let row = w.added("row", &self.first_row, row);
            body(w, &row);
            Vec::new()
        });
    }

    /// Where the values of a token and a head begin.
    fn values_at(&self, w: &mut Writer, token: &Operand, head: &Operand) -> Operand {
        let values = w.scaled("values", token, self.space.heads);
        let values = w.added("values", &values, head);
        w.scaled("values", &values, self.space.width)
    }

    fn step(&self, w: &mut Writer, token: &Operand, head: &Operand) -> Step {
        let &StateSpace { groups, heads, width, size, by_number, lanes, .. } = self.space;
        let group = w.divided("group", head, heads / groups);
        let shared = w.scaled("shared", token, groups);
        let shared = w.added("shared", &shared, &group);
        let shared = w.scaled("shared", &shared, size);
        let state = w.scaled("state", head, width * size);
        let state = w.added("state", &state, &self.place.layer);
        let gate = w.scaled("gate", token, heads);
        let gate = w.added("gate", &gate, head);
        let dt = self.dt.broadcast(w, "dt", &gate, lanes);
        let rate = w.scaled("rate", head, if by_number { size } else { 1 });
        let decay = (!by_number).then(|| {
            let rate = self.rate.broadcast(w, "rate", &rate, lanes);
            let power = w.arith("power", "mulf", &dt, &rate);
            exponential(w, &power)
        });
        Step { rate, state, shared, values: self.values_at(w, token, head), dt, decay }
    }

    /// Updates rows of the state from `row` on, side by side, and writes what they give.
    fn update(&self, w: &mut Writer, step: &Step, row: &Operand) {
        let &StateSpace { size, lanes, together, .. } = self.space;
        let values = w.added("values", &step.values, row);
        let row = w.scaled("row", row, size);
        let row = w.added("row", &row, &step.state);
        let changes: Vec<Operand> = (0..together)
            .map(|offset| {
                let at = w.offset("value", &values, offset);
                let x = self.x.broadcast(w, "x", &at, lanes);
                w.arith("x", "mulf", &x, &step.dt)
            })
            .collect();
        let nothing = w.constant("0.0", Type::vector(lanes, "f32"));
        let [zero, numbers, lanes_step] = [0, size, lanes].map(|number| w.index(number));
        let sums = w.for_loop(
            "number",
            [&zero, &numbers, &lanes_step],
            &vec![nothing; together],
            |w, number, sums| {
                let at = w.added("shared", &step.shared, number);
                let input = self.input.load(w, "input", &at, lanes);
                let output = self.output.load(w, "output", &at, lanes);
                let decay = self.decay(w, step, number);
                let at = w.added("at", &row, number);
                let next = sums.iter().zip(&changes).enumerate().map(|(offset, (sum, change))| {
                    let at = w.offset("at", &at, offset * size);
                    let state = self.place.state.load(w, "state", &at, lanes);
                    let state = w.arith("state", "mulf", &state, &decay);
                    let state = w.fma("state", change, &input, &state);
                    self.place.state.store(w, &state, &at);
                    w.fma("sum", &state, &output, sum)
                });
                next.collect()
            },
        );
        for (offset, sum) in sums.iter().enumerate() {
            let total = w.reduce("total", "add", sum);
            let at = w.offset("to", &values, offset);
            self.buffers.mixed.store(w, &total, &at);
        }
    }

    /// The factors of the numbers from `number` on.
    fn decay(&self, w: &mut Writer, step: &Step, number: &Operand) -> Operand {
        if let Some(decay) = &step.decay {
            return decay.clone();
        }
        let at = w.added("rate", &step.rate, number);
        let rate = self.rate.load(w, "rate", &at, self.space.lanes);
        let power = w.arith("power", "mulf", &step.dt, &rate);
        exponential(w, &power)
    }
}
