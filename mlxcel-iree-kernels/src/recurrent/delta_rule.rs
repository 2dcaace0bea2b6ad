//! The gated delta rule (Yang et al. 2024). A column of a head's state depends on no other: a workgroup
//! computes some columns of it.

use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, Value};

use super::rows::{Buffers, Place, Rows};
use crate::context::{self, Context};
use crate::instructions::Instructions;
use crate::kernels::{Description, Kernel};
use crate::value::{Operand, Type};
use crate::vectors::{Memory, dividing, largest_divisor, scratch};
use crate::writer::Writer;

/// The most columns of a tile: with 128 rows it takes half of the smallest first-level caches.
const COLUMNS: usize = 32;

/// The same where rows have one token each: a tile is read from memory once, so longer parts of rows are
/// read faster.
const COLUMNS_OF_ONE_TOKEN: usize = 64;

/// Sums that are computed side by side at least, since each waits for its last addition, and so the most
/// vectors of a row of a tile.
const SUMS: usize = 8;

/// The most scratch memory of a workgroup: the compiler's limit is set little higher.
const MOST_SCRATCH_BYTES: usize = 200 * 1024;

/// Replaces the gated delta rule by a kernel.
pub(crate) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let rule = DeltaRule::of(composite, b, context.instructions);
    let (Some(rule), Some(layer)) = (rule, context::layer(composite)) else { return Ok(None) };
    let mut operands = composite.operands.to_vec();
    operands[3] = b.exponential(operands[3])?;
    let results = composite.decomposition.result_types().cloned().collect();
    context.kernels.call_at(b, &rule, &operands, results, &[layer]).map(Some)
}

/// The operands of a composite `mlxcel.gated_delta_rule`, as numbers, and how they are divided.
#[derive(Debug)]
struct DeltaRule {
    rows: Rows,
    key_heads: usize,
    heads: usize,
    /// The rows of a head's state.
    key_width: usize,
    /// The columns of a head's state.
    value_width: usize,
    /// Whether each row of the state has its own decay.
    by_channel: bool,
    /// Elements of a vector.
    lanes: usize,
    /// Vectors of a row of a tile.
    vectors: usize,
    /// Rows of a tile that are summed side by side.
    together: usize,
}

impl DeltaRule {
    /// None if there is no kernel: a tile must fit a workgroup's scratch memory.
    fn of<'f>(composite: &Composite<'_, 'f>, b: &Builder<'f>, instructions: Instructions) -> Option<Self> {
        let (rows, [query, key, value, decay, beta]) = Rows::of(composite, b)?;
        let &[tokens, key_heads, key_width] = &b.ty(key).shape[..] else { return None };
        let &[_, heads, value_width] = &b.ty(value).shape[..] else { return None };
        let by_channel = b.ty(decay).shape.len() == 3;
        let decays = if by_channel { vec![tokens, heads, key_width] } else { vec![tokens, heads] };
        let fits = b.ty(query) == b.ty(key)
            && rows.tokens() == tokens
            && b.ty(value).shape == [tokens, heads, value_width]
            && b.ty(decay).shape == decays
            && b.ty(beta).shape == [tokens, heads]
            && [key_heads, key_width, value_width].iter().all(|&size| size > 0)
            && heads.is_multiple_of(key_heads)
            && rows.has_states([heads, key_width, value_width]);
        if !fits {
            return None;
        }
        let lanes = dividing(value_width, instructions.lanes());
        let vectors = |columns: usize| largest_divisor(value_width / lanes, (columns / lanes).min(SUMS));
        // The order of a sum is the same for one token and for several.
        let together = largest_divisor(key_width, SUMS / vectors(COLUMNS));
        let vectors = vectors(if rows.are_single() { COLUMNS_OF_ONE_TOKEN } else { COLUMNS });
        let rule =
            Self { rows, key_heads, heads, key_width, value_width, by_channel, lanes, vectors, together };
        (rule.columns() * key_width * 4 <= MOST_SCRATCH_BYTES).then_some(rule)
    }

    /// The columns of a tile.
    fn columns(&self) -> usize {
        self.lanes * self.vectors
    }
}

impl Description for DeltaRule {
    fn kernel(&self) -> Kernel {
        let Self { rows, key_heads, heads, key_width, value_width, .. } = self;
        let tiles = value_width / self.columns();
        let decays = if self.by_channel { "channel_" } else { "" };
        let label = format!("delta_rule_{decays}{}_{heads}x{key_width}x{value_width}", rows.label());
        let mut kernel = Kernel::new(label, [rows.len() * heads * tiles, 1, 1]);
        let tokens = rows.tokens();
        let [keys, values, gates] = [key_heads * key_width, heads * value_width, *heads];
        let decays = if self.by_channel { heads * key_width } else { gates };
        let mut operand =
            |word: &str, width| Memory::operand(&mut kernel, word, tokens * width, ElementType::F32);
        let [query, key, value] =
            [("query", keys), ("key", keys), ("value", values)].map(|(word, width)| operand(word, width));
        let [decay, beta] = [("decay", decays), ("beta", gates)].map(|(word, width)| operand(word, width));
        let buffers = rows.operands(&mut kernel, values);
        let workgroup = kernel.workgroup(0);
        let w = &mut kernel.body;
        let [heads, tiles] = [*heads, tiles].map(|count| w.index(count));
        let number = w.arith("number", "divui", &workgroup, &tiles);
        let tile = w.arith("tile", "remui", &workgroup, &tiles);
        let row = w.arith("row", "divui", &number, &heads);
        let head = w.arith("head", "remui", &number, &heads);
        let column = w.scaled("column", &tile, self.columns());
        let place = buffers.place(w, rows, &row);
        Walk { rule: self, query, key, value, decay, beta, buffers, place, head, column }.write(w);
        kernel
    }
}

/// The code of one workgroup: some columns of a head's state over the tokens of a row.
struct Walk<'a> {
    rule: &'a DeltaRule,
    query: Memory,
    key: Memory,
    value: Memory,
    /// The factors of the state.
    decay: Memory,
    beta: Memory,
    buffers: Buffers,
    place: Place,
    /// The value head.
    head: Operand,
    /// The first column.
    column: Operand,
}

/// The columns of a workgroup in memory.
struct Tile {
    memory: Memory,
    /// Where they begin.
    base: Operand,
    /// The distance of rows.
    stride: usize,
}

impl Tile {
    fn at(&self, w: &mut Writer, row: &Operand, offset: usize, column: usize) -> Operand {
        let row = w.scaled("at", row, self.stride);
        let at = w.added("at", &self.base, &row);
        w.offset("at", &at, offset * self.stride + column)
    }
}

/// Where the numbers of a token and a head begin.
struct Token {
    keys: Operand,
    values: Operand,
    gate: Operand,
}

impl Walk<'_> {
    fn write(&self, w: &mut Writer) {
        let &DeltaRule { key_width, value_width, lanes, vectors, .. } = self.rule;
        let base = w.scaled("base", &self.head, key_width * value_width);
        let base = w.added("base", &base, &self.place.layer);
        let base = w.added("base", &base, &self.column);
        let stored = Tile { memory: self.place.state.clone(), base, stride: value_width };
        if self.rule.rows.are_single() {
            self.tokens(w, &stored);
        } else {
            // The rows of a tile are far apart in the state, and would share few sets of a cache.
            let columns = self.rule.columns();
            let memory = scratch(w, "tile", key_width * columns);
            let tile = Tile { memory, base: w.index(0), stride: columns };
            self.copy(w, &stored, &tile);
            self.tokens(w, &tile);
            self.copy(w, &tile, &stored);
        }
        let (nothing, one) = (w.constant("0.0", Type::vector(lanes, "f32")), w.index(1));
        w.for_loop("token", [&self.place.end, &self.place.padded, &one], &[], |w, token, _| {
            let (_, values) = self.gate_and_values(w, token);
            self.store(w, &vec![nothing; vectors], &values);
            Vec::new()
        });
    }

    /// Where the gates of a token and the head begin, and the values of the workgroup.
    fn gate_and_values(&self, w: &mut Writer, token: &Operand) -> (Operand, Operand) {
        let gate = w.scaled("gate", token, self.rule.heads);
        let gate = w.added("gate", &gate, &self.head);
        let values = w.scaled("values", &gate, self.rule.value_width);
        let values = w.added("values", &values, &self.column);
        (gate, values)
    }

    fn copy(&self, w: &mut Writer, from: &Tile, to: &Tile) {
        let [zero, rows, one] = [0, self.rule.key_width, 1].map(|number| w.index(number));
        w.for_loop("row", [&zero, &rows, &one], &[], |w, row, _| {
            for vector in 0..self.rule.vectors {
                let column = vector * self.rule.lanes;
                let from_at = from.at(w, row, 0, column);
                let value = from.memory.load(w, "value", &from_at, self.rule.lanes);
                let to_at = to.at(w, row, 0, column);
                to.memory.store(w, &value, &to_at);
            }
            Vec::new()
        });
    }

    /// Walks through the tokens that are no padding.
    fn tokens(&self, w: &mut Writer, tile: &Tile) {
        let &DeltaRule { key_heads, heads, key_width, .. } = self.rule;
        let key_head = w.divided("key_head", &self.head, heads / key_heads);
        let one = w.index(1);
        w.for_loop("token", [&self.place.first, &self.place.end, &one], &[], |w, token, _| {
            let keys = w.scaled("keys", token, key_heads);
            let keys = w.added("keys", &keys, &key_head);
            let keys = w.scaled("keys", &keys, key_width);
            let (gate, values) = self.gate_and_values(w, token);
            let token = Token { keys, values, gate };
            let errors = self.errors(w, tile, &token);
            let results = self.update(w, tile, &token, &errors);
            self.store(w, &results, &token.values);
            Vec::new()
        });
    }

    /// What the values of a token exceed those that its key recalls by, times beta.
    fn errors(&self, w: &mut Writer, tile: &Tile, token: &Token) -> Vec<Operand> {
        let &DeltaRule { lanes, vectors, by_channel, .. } = self.rule;
        let sums = self.sums(w, |w, row, offset, sums| {
            let at = w.added("key", &token.keys, row);
            let at = w.offset("key", &at, offset);
            let mut key = self.key.broadcast(w, "key", &at, lanes);
            if by_channel {
                let decay = self.decay_at(w, token, row, offset);
                key = w.arith("key", "mulf", &key, &decay);
            }
            sums.iter()
                .enumerate()
                .map(|(vector, sum)| {
                    let at = tile.at(w, row, offset, vector * lanes);
                    let state = tile.memory.load(w, "state", &at, lanes);
                    w.fma("sum", &state, &key, sum)
                })
                .collect()
        });
        let beta = self.beta.broadcast(w, "beta", &token.gate, lanes);
        let decay = (!by_channel).then(|| self.decay.broadcast(w, "decay", &token.gate, lanes));
        (0..vectors)
            .map(|vector| {
                let at = w.offset("value", &token.values, vector * lanes);
                let value = self.value.load(w, "value", &at, lanes);
                let recalled = match &decay {
                    Some(decay) => w.arith("recalled", "mulf", &sums[vector], decay),
                    None => sums[vector].clone(),
                };
                let error = w.arith("error", "subf", &value, &recalled);
                w.arith("error", "mulf", &error, &beta)
            })
            .collect()
    }

    /// Updates the state by the errors of a token, and reads it by the token's query.
    fn update(&self, w: &mut Writer, tile: &Tile, token: &Token, errors: &[Operand]) -> Vec<Operand> {
        let &DeltaRule { lanes, by_channel, .. } = self.rule;
        let common = (!by_channel).then(|| self.decay.broadcast(w, "decay", &token.gate, lanes));
        self.sums(w, |w, row, offset, sums| {
            let at = w.added("key", &token.keys, row);
            let at = w.offset("key", &at, offset);
            let key = self.key.broadcast(w, "key", &at, lanes);
            let query = self.query.broadcast(w, "query", &at, lanes);
            let decay = match &common {
                Some(decay) => decay.clone(),
                None => self.decay_at(w, token, row, offset),
            };
            sums.iter()
                .zip(errors)
                .enumerate()
                .map(|(vector, (sum, error))| {
                    let at = tile.at(w, row, offset, vector * lanes);
                    let state = tile.memory.load(w, "state", &at, lanes);
                    let state = w.arith("state", "mulf", &state, &decay);
                    let state = w.fma("state", &key, error, &state);
                    tile.memory.store(w, &state, &at);
                    w.fma("sum", &state, &query, sum)
                })
                .collect()
        })
    }

    /// The factor of one row of the state, in all lanes.
    fn decay_at(&self, w: &mut Writer, token: &Token, row: &Operand, offset: usize) -> Operand {
        let at = w.scaled("decay", &token.gate, self.rule.key_width);
        let at = w.added("decay", &at, row);
        let at = w.offset("decay", &at, offset);
        self.decay.broadcast(w, "decay", &at, self.rule.lanes)
    }

    /// The sums over all rows of the tile that `body` adds to, for each vector of columns: it gets the first
    /// of some rows, the offset of its own from that, and the sums so far.
    fn sums(
        &self,
        w: &mut Writer,
        mut body: impl FnMut(&mut Writer, &Operand, usize, &[Operand]) -> Vec<Operand>,
    ) -> Vec<Operand> {
        let &DeltaRule { lanes, vectors, together, key_width, .. } = self.rule;
        let [zero, rows, step] = [0, key_width, together].map(|number| w.index(number));
        let nothing = w.constant("0.0", Type::vector(lanes, "f32"));
        let sums =
            w.for_loop("row", [&zero, &rows, &step], &vec![nothing; together * vectors], |w, row, sums| {
                let parts = sums.chunks(vectors).enumerate();
                parts.flat_map(|(offset, sums)| body(w, row, offset, sums)).collect()
            });
        let (first, others) = sums.split_at(vectors);
        others.chunks(vectors).fold(first.to_vec(), |joined, part| {
            joined.iter().zip(part).map(|(joined, sum)| w.arith("joined", "addf", joined, sum)).collect()
        })
    }

    fn store(&self, w: &mut Writer, results: &[Operand], at: &Operand) {
        for (vector, result) in results.iter().enumerate() {
            let at = w.offset("to", at, vector * self.rule.lanes);
            self.buffers.mixed.store(w, result, &at);
        }
    }
}
