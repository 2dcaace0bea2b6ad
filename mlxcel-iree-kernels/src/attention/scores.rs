//! From queries and keys to the weights of values: scores of a block, and the online softmax over blocks.

use mlxcel_stablehlo::ElementType;

use super::attend::{Attend, Scratch};
use super::pass::{Queries, divide, for_each, mul_add};
use super::shape::{KEYS, Shape};
use crate::value::{Operand, Type};
use crate::vectors::{Memory, exponential, hyperbolic_tangent};
use crate::writer::Writer;

/// Replaces minus infinity as the score of a key that a query does not see: finite, so that differences are
/// numbers.
pub(super) const HIDDEN: &str = "-3.0e38";

impl Attend<'_> {
    /// Starts the softmax of the first part with the sinks: each is the largest score so far, and its own
    /// weight is 1.
    pub(super) fn load_sinks(&self, w: &mut Writer, queries: &Queries, part: &Operand) {
        let Some(sinks) = &queries.sinks else { return };
        let Shape { lanes, .. } = *self.shape;
        let shared = self.shape.shared();
        let zero = w.index(0);
        let first = w.compare("first", "eq", part, &zero);
        w.if_then(&first, |w| {
            let one = w.constant("1.0", Type::F32);
            for_each(w, self.tiling.queries, 1, |w, query| {
                let (_, member) = divide(w, "member", query, shared);
                let head = mul_add(w, "head", &self.kept.group, shared, &member);
                let mut sink = sinks.scalar(w, "sink", &head);
                if sinks.element != ElementType::F32 {
                    sink = w.cast("sink", "extf", &sink, "f32");
                }
                self.scratch.largest.store(w, &sink, query);
                let at = mul_add(w, "at", query, lanes, &zero);
                self.scratch.totals.store(w, &one, &at);
            });
        });
    }

    /// The scores of a block: queries times keys, masked where a query does not see a key. Meanwhile the keys of
    /// the block that begins at `next` are prefetched.
    pub(super) fn score(&self, w: &mut Writer, first: &Operand, next: Option<&Operand>) {
        let Shape { width, lanes, .. } = *self.shape;
        let ty = Type::vector(lanes, "f32");
        let count = self.tiling.score_queries;
        let vectors = if KEYS / lanes > 1 { 2 } else { 1 };
        let none = w.constant("0.0", ty);
        let splat = |w: &mut Writer, value: f32| w.constant(format_args!("0x{:08X}", value.to_bits()), ty);
        let scale = splat(w, self.shape.scale / self.shape.soft_cap.unwrap_or(1.0));
        let cap = self.shape.soft_cap.map(|cap| splat(w, cap));
        for_each(w, self.tiling.queries, count, |w, query| {
            for_each(w, KEYS, vectors * lanes, |w, column| {
                let [zero, one, limit] = [0, 1, width].map(|value| w.index(value));
                let rows: Vec<_> = (0..count)
                    .map(|i| {
                        let row = w.offset("query", query, i);
                        mul_add(w, "query", &row, width, &zero)
                    })
                    .collect();
                let carried = vec![none.clone(); count * vectors];
                let sums = w.for_loop("dimension", [&zero, &limit, &one], &carried, |w, dimension, sums| {
                    let at = mul_add(w, "at", dimension, KEYS, column);
                    if let Some(next) = next {
                        let at = w.arith("next", "addi", next, &at);
                        self.prefetch(w, 0, &at, vectors * lanes);
                    }
                    let keys: Vec<_> = (0..vectors)
                        .map(|v| {
                            let at = w.offset("at", &at, v * lanes);
                            self.scratch.keys.load(w, "key", &at, lanes)
                        })
                        .collect();
                    let mut next = Vec::with_capacity(sums.len());
                    for (i, row) in rows.iter().enumerate() {
                        let at = w.arith("at", "addi", row, dimension);
                        let query = self.scratch.query.broadcast(w, "query", &at, lanes);
                        for (key, sum) in keys.iter().zip(&sums[i * vectors..]) {
                            next.push(w.fma("sum", &query, key, sum));
                        }
                    }
                    next
                });
                let keys: Vec<_> = (0..vectors)
                    .map(|v| {
                        let column = w.offset("column", column, v * lanes);
                        self.key_positions(w, first, &column)
                    })
                    .collect();
                for i in 0..count {
                    let row = w.offset("query", query, i);
                    for (v, key) in keys.iter().enumerate() {
                        let mut score = w.arith("score", "mulf", &sums[i * vectors + v], &scale);
                        if let Some(cap) = &cap {
                            score = hyperbolic_tangent(w, &score);
                            score = w.arith("score", "mulf", &score, cap);
                        }
                        let score = self.hide(w, &score, key, &row);
                        let at = mul_add(w, "at", &row, KEYS, column);
                        let at = w.offset("at", &at, v * lanes);
                        self.scratch.weights.store(w, &score, &at);
                    }
                }
            });
        });
    }

    /// The positions of the keys of one vector: `vector<lanes x i32>`.
    fn key_positions(&self, w: &mut Writer, first: &Operand, column: &Operand) -> Operand {
        let lanes = self.shape.lanes;
        let counted = (0..lanes).map(|lane| lane.to_string()).collect::<Vec<_>>().join(", ");
        let counted = w.constant(format_args!("[{counted}]"), Type::vector(lanes, "i32"));
        let start = w.arith("column", "addi", first, column);
        let start = w.cast("column", "index_cast", &start, "i32");
        let start = w.broadcast("column", &start, lanes);
        w.arith("column", "addi", &start, &counted)
    }

    /// `score`, masked where a row of queries does not see the key at position `key`, lane by lane.
    fn hide(&self, w: &mut Writer, score: &Operand, key: &Operand, row: &Operand) -> Operand {
        let lanes = self.shape.lanes;
        let (token, _) = divide(w, "token", row, self.shape.shared());
        let own = w.arith("own", "addi", &self.own, &token);
        let (lower, upper) = match self.texts {
            Some(texts) => self.seen_of_text(w, texts, &own),
            None => self.seen_before(w, &own),
        };
        let upper = w.broadcast("own", &upper, lanes);
        let mut seen = w.compare("seen", "sle", key, &upper);
        if let Some(lower) = lower {
            let lower = w.broadcast("own", &lower, lanes);
            let near = w.compare("near", "sgt", key, &lower);
            seen = w.arith("seen", "andi", &seen, &near);
        }
        let hidden = w.constant(HIDDEN, score.ty);
        w.select("score", &seen, score, &hidden)
    }

    /// The positions that the token at `own` sees of those up to it: after the first number, if there is one,
    /// and up to the second.
    fn seen_before(&self, w: &mut Writer, own: &Operand) -> (Option<Operand>, Operand) {
        let own = w.cast("own", "index_cast", own, "i32");
        // A part may end before the token's own position.
        let end = w.cast("end", "index_cast", &self.end, "i32");
        let one = w.constant(1, Type::I32);
        let end = w.arith("end", "subi", &end, &one);
        let upper = w.arith("own", "minsi", &own, &end);
        let Some(window) = self.window else { return (None, upper) };
        let window = w.constant(window, Type::I32);
        if !self.shape.chunked {
            return (Some(w.arith("own", "subi", &own, &window)), upper);
        }
        let within = w.arith("own", "remui", &own, &window);
        let first = w.arith("own", "subi", &own, &within);
        (Some(w.arith("own", "subi", &first, &one)), upper)
    }

    /// The same of its text, in both directions.
    fn seen_of_text(
        &self,
        w: &mut Writer,
        [firsts, ends]: &[Memory; 2],
        own: &Operand,
    ) -> (Option<Operand>, Operand) {
        let one = w.constant(1, Type::I32);
        let [mut lower, mut upper] = [firsts, ends].map(|edges| {
            let edge = edges.scalar(w, "edge", own);
            w.arith("edge", "subi", &edge, &one)
        });
        if let Some(window) = self.window {
            let own = w.cast("own", "index_cast", own, "i32");
            let [before, behind] = [window, window - 1].map(|window| w.constant(window, Type::I32));
            let before = w.arith("near", "subi", &own, &before);
            lower = w.arith("near", "maxsi", &lower, &before);
            let behind = w.arith("near", "addi", &own, &behind);
            upper = w.arith("near", "minsi", &upper, &behind);
        }
        (Some(lower), upper)
    }

    /// Replaces the scores of a block for one row of queries by their weights.
    pub(super) fn weigh(&self, w: &mut Writer, query: &Operand) {
        let Shape { lanes, .. } = *self.shape;
        let Scratch { weights, largest, totals, .. } = self.scratch;
        let zero = w.index(0);
        let start = mul_add(w, "weight", query, KEYS, &zero);
        let places: Vec<_> = (0..KEYS / lanes).map(|i| w.offset("weight", &start, i * lanes)).collect();
        let scores: Vec<_> = places.iter().map(|at| weights.load(w, "score", at, lanes)).collect();
        // Most blocks do not contain a new largest score: the running values then stay unchanged.
        let before = largest.broadcast(w, "before", query, lanes);
        let mut above: Option<Operand> = None;
        for score in &scores {
            let own = w.compare("above", "ogt", score, &before);
            above = Some(match above {
                Some(above) => w.arith("above", "ori", &above, &own),
                None => own,
            });
        }
        if let Some(above) = above {
            let above = w.reduce("above", "or", &above);
            w.if_then(&above, |w| self.raise(w, query, &scores));
        }
        let shift = largest.broadcast(w, "shift", query, lanes);
        let total_at = w.index(lanes);
        let total_at = w.arith("at", "muli", query, &total_at);
        let mut total = totals.load(w, "total", &total_at, lanes);
        for (score, at) in scores.iter().zip(&places) {
            let shifted = w.arith("score", "subf", score, &shift);
            // A hidden key's weight is zero.
            let weight = exponential(w, &shifted);
            weights.store(w, &weight, at);
            total = w.arith("total", "addf", &total, &weight);
        }
        totals.store(w, &total, &total_at);
    }

    /// Updates the largest score to that of a block, which exceeds all before; running values are scaled to
    /// it.
    fn raise(&self, w: &mut Writer, query: &Operand, scores: &[Operand]) {
        let Shape { value_width: width, lanes, .. } = *self.shape;
        let Scratch { sums, largest, totals, .. } = self.scratch;
        let mut highest = largest.broadcast(w, "highest", query, lanes);
        for score in scores {
            highest = w.arith("highest", "maximumf", &highest, score);
        }
        let highest = w.reduce("highest", "maximumf", &highest);
        let before = largest.scalar(w, "before", query);
        largest.store(w, &highest, query);
        let fall = w.arith("fall", "subf", &before, &highest);
        let fall = w.broadcast("fall", &fall, lanes);
        let fall = exponential(w, &fall);
        for (memory, size) in [(totals, lanes), (sums, width)] {
            let size_index = w.index(size);
            let start = w.arith("at", "muli", query, &size_index);
            for_each(w, size, lanes, |w, at| {
                let at = w.arith("at", "addi", &start, at);
                let value = memory.load(w, "sum", &at, lanes);
                let value = w.arith("sum", "mulf", &value, &fall);
                memory.store(w, &value, &at);
            });
        }
    }

    /// The sum of a row's weights.
    pub(super) fn total(&self, w: &mut Writer, query: &Operand) -> Operand {
        let lanes = self.shape.lanes;
        let at = w.index(lanes);
        let at = w.arith("at", "muli", query, &at);
        let total = self.scratch.totals.load(w, "total", &at, lanes);
        w.reduce("total", "add", &total)
    }
}
