//! Attention over the positions in use, block by block of keys and values, with an online softmax (Dao et al.
//! 2022).

use mlxcel_stablehlo::ElementType;

use super::pass::{
    Kept, Pass, Place, Queries, divide, for_each, load_scaled, mul_add, row_scratch, scale_at,
};
use super::scores::HIDDEN;
use super::shape::{KEYS, Run, Shape, Tiling};
use crate::kernels::Kernel;
use crate::value::{Operand, Type};
use crate::vectors::{Memory, scratch, transpose};
use crate::view::Locality;
use crate::writer::Writer;

/// The most query rows that read values directly from the cache; for more, a block of values is converted
/// once.
const MOST_DIRECT: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Where a kernel stores its results.
pub(super) enum Results {
    /// `[tokens, heads * value_width]`: the result of the composite.
    Mixed(Memory),
    /// `[rows, groups, parts, shared, value_width + 2]` f32: for each part of the positions its weighted sum,
    /// its largest score and its sum of weights.
    Parts(Memory),
}

/// The scratch memory of a workgroup, with room for the queries of every run.
pub(super) struct Scratch {
    /// `[queries, width]`: rotated queries.
    pub(super) query: Memory,
    /// `[queries, value_width]`: running weighted sums of values.
    pub(super) sums: Memory,
    /// `[queries, KEYS]`: scores of a block, then their weights.
    pub(super) weights: Memory,
    /// `[queries]`: the largest score so far.
    pub(super) largest: Memory,
    /// `[queries, lanes]`: the sums of all weights so far, lane by lane.
    pub(super) totals: Memory,
    /// `[width, KEYS]`: a block of keys, transposed.
    pub(super) keys: Memory,
    /// `[KEYS, value_width]`: a block of values, if it is converted first.
    pub(super) values: Memory,
    /// One row.
    pub(super) row: Memory,
}

impl Scratch {
    pub(super) fn new(w: &mut Writer, shape: &Shape) -> Self {
        let queries = shape.most_queries();
        let (width, value_width) = (shape.width, shape.value_width);
        Self {
            query: scratch(w, "query_scratch", queries * width),
            sums: scratch(w, "sums", queries * value_width),
            weights: scratch(w, "weights", queries * KEYS),
            largest: scratch(w, "largest", queries),
            totals: scratch(w, "totals", queries * shape.lanes),
            keys: scratch(w, "keys", KEYS * width),
            values: scratch(w, "values", if queries > MOST_DIRECT { KEYS * value_width } else { 1 }),
            row: row_scratch(w, shape),
        }
    }
}

/// The parameters of one run's code.
pub(super) struct Attend<'a> {
    pub(super) shape: &'a Shape,
    pub(super) tiling: Tiling,
    pub(super) scratch: &'a Scratch,
    pub(super) kept: &'a Kept,
    /// Positions from `begin` up to `end`, of type `index`.
    pub(super) begin: Operand,
    pub(super) end: Operand,
    /// The position of the workgroup's first token, of type `index`.
    pub(super) own: Operand,
    /// How many positions a token sees, if not all before it.
    pub(super) window: Option<usize>,
    /// The first token of each token's text, and the one after its last, of type `i32`, where tokens attend to
    /// their text and positions are their own numbers.
    pub(super) texts: Option<&'a [Memory; 2]>,
    /// In a ring, the last position in slot 0 that is at most `begin`, of type `index`.
    pub(super) round: Option<Operand>,
}

/// Adds a run to a kernel: workgroups from number `first` on compute it.
pub(super) fn attend(
    kernel: &mut Kernel,
    shape: &Shape,
    (pass, scratch): (&Pass, &Scratch),
    run: &Run,
    (workgroup, first): (&Operand, usize),
    results: &Results,
) {
    let tiling = shape.tiling(run);
    let w = &mut kernel.body;
    let [begin, end] = [first, first + shape.workgroups(run)].map(|number| w.index(number));
    let behind = w.compare("behind", "uge", workgroup, &begin);
    let before = w.compare("before", "ult", workgroup, &end);
    let own = w.arith("own", "andi", &behind, &before);
    w.if_then(&own, |w| {
        let item = w.arith("item", "subi", workgroup, &begin);
        // Adjacent heads run side by side; late tokens, which see most, are not left for the end.
        let parts = shape.parts();
        let (item, part) = divide(w, "part", &item, parts);
        let (item, group) = divide(w, "group", &item, shape.groups);
        let (index, block) = divide(w, "block", &item, run.tokens / tiling.tokens);
        let place = pass.place(w, shape, run, (&index, &group));
        let zero = w.index(0);
        let offset = mul_add(w, "offset", &block, tiling.tokens, &zero);
        let own = w.arith("own", "addi", &place.position, &offset);
        let used = w.offset("used", &own, tiling.tokens);
        let ring = shape.ring(run).is_some();
        let first = first_seen(w, shape, !ring, &own);
        let (begin, end) = range(w, (&first, &used), (&part, parts));
        let round = ring.then(|| {
            let (_, slot) = divide(w, "slot", &begin, shape.length);
            w.arith("round", "subi", &begin, &slot)
        });
        // For a ring's only token, the range already excludes unseen positions.
        let window = shape.window.filter(|_| !ring || tiling.tokens > 1);
        let (kept, texts) = (&place.kept, None);
        let attend = Attend { shape, tiling, scratch, kept, begin, end, own, window, texts, round };
        if run.tokens == 1 {
            attend.write_own(w, pass, &place);
        }
        let token = w.arith("token", "addi", &place.token, &offset);
        attend.load_queries(w, &pass.queries, &token);
        attend.load_sinks(w, &pass.queries, &part);
        attend.blocks(w);
        match results {
            Results::Mixed(mixed) => attend.store(w, mixed, &token),
            Results::Parts(partial) => {
                let at = mul_add(w, "at", &index, shape.groups, &group);
                let at = mul_add(w, "at", &at, parts, &part);
                attend.store_part(w, partial, &at);
            }
        }
    });
}

/// The first position that a token at `own` sees; with `rounded`, rounded down to the start of a block.
fn first_seen(w: &mut Writer, shape: &Shape, rounded: bool, own: &Operand) -> Operand {
    let Some(window) = shape.window else { return w.index(0) };
    let (one, window, block) = (w.index(1), w.index(window), w.index(KEYS));
    let first = if shape.chunked {
        let within = w.arith("first", "remui", own, &window);
        w.arith("first", "subi", own, &within)
    } else {
        let behind = w.arith("first", "addi", own, &one);
        let reached = w.arith("first", "maxui", &behind, &window);
        w.arith("first", "subi", &reached, &window)
    };
    if !rounded {
        return first;
    }
    let within = w.arith("first", "remui", &first, &block);
    w.arith("first", "subi", &first, &within)
}

/// The range of part `part` of `parts` of the positions `first..used`: whole blocks; the last nonempty part
/// ends at `used`.
fn range(
    w: &mut Writer,
    (first, used): (&Operand, &Operand),
    (part, parts): (&Operand, usize),
) -> (Operand, Operand) {
    if parts == 1 {
        return (first.clone(), used.clone());
    }
    // The least positions of a part that are worth a workgroup.
    const LEAST: usize = 16 * KEYS;
    let count = w.arith("count", "subi", used, first);
    let each = parts * KEYS;
    let count = w.offset("count", &count, each - 1);
    let (blocks, _) = divide(w, "count", &count, each);
    let size = w.index(KEYS);
    let size = w.arith("size", "muli", &blocks, &size);
    let least = w.index(LEAST);
    let size = w.arith("size", "maxui", &size, &least);
    let skipped = w.arith("begin", "muli", part, &size);
    let begin = w.arith("begin", "addi", first, &skipped);
    let begin = w.arith("begin", "minui", &begin, used);
    let end = w.arith("end", "addi", &begin, &size);
    let end = w.arith("end", "minui", &end, used);
    (begin, end)
}

impl Attend<'_> {
    /// Writes the key and value of a row's one token into its cache before its positions are read.
    fn write_own(&self, w: &mut Writer, pass: &Pass, place: &Place) {
        let after = w.offset("after", &place.position, 1);
        let last = w.compare("last", "eq", &after, &self.end);
        let some = w.compare("some", "ult", &self.begin, &self.end);
        let last = w.arith("last", "andi", &last, &some);
        w.if_then(&last, |w| {
            let zero = w.index(0);
            pass.write(w, self.shape, place, &zero, &self.scratch.row);
        });
    }

    /// Rotates the queries into scratch memory, and clears the running values.
    pub(super) fn load_queries(&self, w: &mut Writer, queries: &Queries, token: &Operand) {
        let Shape { heads, width, value_width, lanes, .. } = *self.shape;
        let shared = self.shape.shared();
        for_each(w, self.tiling.tokens, 1, |w, offset| {
            let token = w.arith("token", "addi", token, offset);
            for_each(w, shared, 1, |w, member| {
                let head = mul_add(w, "head", &self.kept.group, shared, member);
                let from = mul_add(w, "from", &token, heads, &head);
                let to = mul_add(w, "to", offset, shared, member);
                let width = w.index(width);
                let [from, to] = [from, to].map(|at| w.arith("at", "muli", &at, &width));
                queries.rotate(w, self.shape, (&queries.query, &from), &token, (&self.scratch.query, &to));
            });
        });
        let none = w.constant("0.0", Type::vector(lanes, "f32"));
        let sums = self.tiling.queries * value_width;
        for_each(w, sums, lanes, |w, at| self.scratch.sums.store(w, &none, at));
        for_each(w, self.tiling.queries * lanes, lanes, |w, at| {
            self.scratch.totals.store(w, &none, at);
        });
        let hidden = w.constant(HIDDEN, Type::F32);
        for_each(w, self.tiling.queries, 1, |w, query| self.scratch.largest.store(w, &hidden, query));
    }

    /// All blocks of keys and values.
    pub(super) fn blocks(&self, w: &mut Writer) {
        let step = w.index(KEYS);
        w.for_loop("first", [&self.begin, &self.end, &step], &[], |w, first, _| {
            let left = w.arith("left", "subi", &self.end, first);
            let count = w.arith("count", "minui", &left, &step);
            let next = self.next_block(w, first);
            self.transpose_keys(w, first);
            let direct = self.tiling.queries <= MOST_DIRECT;
            if !direct {
                self.convert_values(w, first, &count);
            }
            self.score(w, first, next.first());
            for_each(w, self.tiling.queries, 1, |w, query| self.weigh(w, query));
            self.mix(w, first, &count, direct, next.get(1));
            Vec::new()
        });
    }

    /// Where the keys and values of the next block start, which are prefetched and need not exist; nothing for
    /// many queries, which do not wait for memory.
    ///
    /// Hardware prefetches no further than a page, which a block may fill. Keys are prefetched while scores are
    /// computed and values while they are summed: more at once would wait for one another.
    fn next_block(&self, w: &mut Writer, first: &Operand) -> Vec<Operand> {
        if !self.shape.fetches_ahead || self.tiling.queries > self.tiling.score_queries {
            return Vec::new();
        }
        let next = w.offset("next", first, KEYS);
        let parts = if self.shape.latent { 1 } else { 2 };
        (0..parts).map(|part| self.kept_at(w, part, &next)).collect()
    }

    /// Prefetches the lines of `count` elements of keys (part 0) or values (part 1) from an index on.
    pub(super) fn prefetch(&self, w: &mut Writer, part: usize, at: &Operand, count: usize) {
        let cache = &self.kept.memory[part];
        for element in (0..count).step_by(LINE * 8 / cache.element.bits()) {
            let at = w.offset("next", at, element);
            cache.view.prefetch(w, &[&at], Locality::First);
        }
    }

    /// Where the key (part 0) or value (part 1) of a position starts in the cache.
    fn kept_at(&self, w: &mut Writer, part: usize, position: &Operand) -> Operand {
        let mut slot = position.clone();
        if let Some(round) = &self.round {
            // At most `length` positions are read, so they wrap around at most once. A negative difference is
            // large as an unsigned number.
            let length = w.index(self.shape.length);
            slot = w.arith("slot", "subi", position, round);
            let before = w.arith("slot", "subi", &slot, &length);
            slot = w.arith("slot", "minui", &slot, &before);
        }
        mul_add(w, "kept", &slot, self.shape.row_width, &self.kept.parts[part])
    }

    /// The keys of a block as columns. Past the last position the last key is repeated, so that no unwritten
    /// memory is read.
    fn transpose_keys(&self, w: &mut Writer, first: &Operand) {
        let Shape { width, lanes, .. } = *self.shape;
        let [keys, _] = &self.kept.memory;
        let one = w.index(1);
        let last = w.arith("last", "subi", &self.end, &one);
        for_each(w, KEYS, lanes, |w, column| {
            let first = w.arith("key", "addi", first, column);
            let rows: Vec<_> = (0..lanes)
                .map(|i| {
                    let position = w.offset("key", &first, i);
                    let position = w.arith("key", "minui", &position, &last);
                    let at = self.kept_at(w, 0, &position);
                    let scale = scale_at(w, self.shape, keys, &at);
                    (at, scale)
                })
                .collect();
            // Pairs of bfloat16 are moved as one, which halves the shuffles.
            let of_step =
                if self.shape.cache == ElementType::BF16 && width.is_multiple_of(2 * lanes) { 2 } else { 1 };
            for_each(w, width, of_step * lanes, |w, dimension| {
                let rows = rows
                    .iter()
                    .map(|(at, scale)| {
                        let at = w.arith("kept", "addi", at, dimension);
                        if of_step == 1 {
                            return load_scaled(w, self.shape, keys, &at, scale.as_ref());
                        }
                        let pairs = keys.view.load(w, "kept", &[&at], 2 * lanes);
                        w.bitcast("kept", &pairs, Type::vector(lanes, "i32"))
                    })
                    .collect();
                let columns = transpose(w, rows);
                let to = mul_add(w, "to", dimension, KEYS, column);
                for (i, values) in columns.iter().enumerate() {
                    let parts =
                        if of_step == 1 { vec![values.clone()] } else { w.halves("key", values).into() };
                    for (part, values) in parts.iter().enumerate() {
                        let to = w.offset("to", &to, (i * of_step + part) * KEYS);
                        self.scratch.keys.store(w, values, &to);
                    }
                }
            });
        });
    }

    /// The values of a block as float32.
    fn convert_values(&self, w: &mut Writer, first: &Operand, count: &Operand) {
        let Shape { value_width: width, lanes, .. } = *self.shape;
        let [_, kept] = &self.kept.memory;
        let (zero, one) = (w.index(0), w.index(1));
        w.for_loop("key", [&zero, count, &one], &[], |w, key, _| {
            let position = w.arith("position", "addi", first, key);
            let from = self.kept_at(w, 1, &position);
            let scale = scale_at(w, self.shape, kept, &from);
            for_each(w, width, lanes, |w, dimension| {
                let from = w.arith("from", "addi", &from, dimension);
                let value = load_scaled(w, self.shape, kept, &from, scale.as_ref());
                let to = mul_add(w, "to", key, width, dimension);
                self.scratch.values.store(w, &value, &to);
            });
            Vec::new()
        });
    }

    /// Adds the values of a block, weighted, to the running sums, and prefetches those of the block that begins
    /// at `next`.
    fn mix(&self, w: &mut Writer, first: &Operand, count: &Operand, direct: bool, next: Option<&Operand>) {
        let Shape { value_width: width, lanes, .. } = *self.shape;
        let Tiling { queries, mix_queries, mix_vectors, .. } = self.tiling;
        let Scratch { sums, weights, values, .. } = self.scratch;
        let [_, kept] = &self.kept.memory;
        for_each(w, queries, mix_queries, |w, query| {
            for_each(w, width, mix_vectors * lanes, |w, dimension| {
                let zero = w.index(0);
                let mut places = Vec::with_capacity(mix_queries * mix_vectors);
                let mut rows = Vec::with_capacity(mix_queries);
                for i in 0..mix_queries {
                    let row = w.offset("query", query, i);
                    let at = mul_add(w, "at", &row, width, dimension);
                    places.extend((0..mix_vectors).map(|v| w.offset("at", &at, v * lanes)));
                    rows.push(mul_add(w, "weight", &row, KEYS, &zero));
                }
                let carried: Vec<_> = places.iter().map(|at| sums.load(w, "sum", at, lanes)).collect();
                let one = w.index(1);
                let totals = w.for_loop("key", [&zero, count, &one], &carried, |w, key, carried| {
                    if let Some(next) = next {
                        let at = mul_add(w, "next", key, self.shape.row_width, dimension);
                        let at = w.arith("next", "addi", next, &at);
                        self.prefetch(w, 1, &at, mix_vectors * lanes);
                    }
                    let (at, scale) = if direct {
                        let position = w.arith("position", "addi", first, key);
                        let at = self.kept_at(w, 1, &position);
                        let scale = scale_at(w, self.shape, kept, &at);
                        (w.arith("at", "addi", &at, dimension), scale)
                    } else {
                        (mul_add(w, "at", key, width, dimension), None)
                    };
                    let from = if direct { kept } else { values };
                    let values: Vec<_> = (0..mix_vectors)
                        .map(|v| {
                            let at = w.offset("at", &at, v * lanes);
                            load_scaled(w, self.shape, from, &at, scale.as_ref())
                        })
                        .collect();
                    let mut next = Vec::with_capacity(carried.len());
                    for (row, sums) in rows.iter().zip(carried.chunks(mix_vectors)) {
                        let at = w.arith("weight", "addi", row, key);
                        let weight = weights.broadcast(w, "weight", &at, lanes);
                        for (value, sum) in values.iter().zip(sums) {
                            next.push(w.fma("sum", &weight, value, sum));
                        }
                    }
                    next
                });
                for (at, total) in places.iter().zip(&totals) {
                    sums.store(w, total, at);
                }
            });
        });
    }

    /// Stores the weighted means in the composite's result.
    pub(super) fn store(&self, w: &mut Writer, mixed: &Memory, token: &Operand) {
        let Shape { heads, value_width: width, lanes, .. } = *self.shape;
        let shared = self.shape.shared();
        for_each(w, self.tiling.queries, 1, |w, query| {
            let total = self.total(w, query);
            let total = w.broadcast("total", &total, lanes);
            let (offset, member) = divide(w, "member", query, shared);
            let token = w.arith("token", "addi", token, &offset);
            let head = mul_add(w, "head", &self.kept.group, shared, &member);
            let to = mul_add(w, "to", &token, heads, &head);
            let zero = w.index(0);
            let [from, to] = [query, &to].map(|at| mul_add(w, "at", at, width, &zero));
            for_each(w, width, lanes, |w, at| {
                let [from, to] = [&from, &to].map(|start| w.arith("at", "addi", start, at));
                let value = self.scratch.sums.load(w, "value", &from, lanes);
                let value = w.arith("value", "divf", &value, &total);
                mixed.store(w, &value, &to);
            });
        });
    }

    /// Stores the sums, the largest scores and the totals for the kernel that joins the parts.
    fn store_part(&self, w: &mut Writer, partial: &Memory, part: &Operand) {
        let Shape { value_width: width, lanes, .. } = *self.shape;
        let zero = w.index(0);
        for_each(w, self.tiling.queries, 1, |w, query| {
            let to = mul_add(w, "to", part, self.tiling.queries, query);
            let to = mul_add(w, "to", &to, width + 2, &zero);
            let from = mul_add(w, "from", query, width, &zero);
            for_each(w, width, lanes, |w, at| {
                let [from, to] = [&from, &to].map(|start| w.arith("at", "addi", start, at));
                let value = self.scratch.sums.load(w, "value", &from, lanes);
                partial.store(w, &value, &to);
            });
            let largest = self.scratch.largest.scalar(w, "value", query);
            let total = self.total(w, query);
            let to = w.offset("to", &to, width);
            partial.store(w, &largest, &to);
            let to = w.offset("to", &to, 1);
            partial.store(w, &total, &to);
        });
    }
}
