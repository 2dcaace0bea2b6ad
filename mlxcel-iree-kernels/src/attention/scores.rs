//! From queries and keys to the weights of values: scores of a block, and the online softmax over blocks.

use mlxcel_stablehlo::ElementType;

use super::attend::{Attend, Scratch};
use super::pass::{Pass, divide, for_each, mul_add};
use super::shape::{KEYS, Shape};
use super::vectors::{broadcast, exponential, hyperbolic_tangent, reduce, vector};
use crate::writer::Writer;

/// Replaces minus infinity as the score of a key that a query does not see: finite, so that differences are numbers.
pub(super) const HIDDEN: &str = "-3.0e38";

impl Attend<'_> {
    /// Starts the softmax of the first part with the sinks: each is the largest score so far, and its own weight is 1.
    pub(super) fn load_sinks(&self, w: &mut Writer, pass: &Pass, part: &str) {
        let Some(sinks) = &pass.sinks else { return };
        let Shape { lanes, .. } = *self.shape;
        let shared = self.shape.shared();
        let zero = w.index(0);
        let first = w.set("first", format_args!("arith.cmpi eq, {part}, {zero} : index"));
        w.if_then(&first, |w| {
            let one = w.constant("1.0", "f32");
            for_each(w, self.tiling.queries, 1, |w, query| {
                let (_, member) = divide(w, "member", query, shared);
                let head = mul_add(w, "head", &self.place.group, shared, &member);
                let mut sink = sinks.scalar(w, "sink", &head);
                if sinks.element != ElementType::F32 {
                    sink = w.set("sink", format_args!("arith.extf {sink} : {} to f32", sinks.element.mlir()));
                }
                self.scratch.largest.store_scalar(w, &sink, query);
                let at = mul_add(w, "at", query, lanes, &zero);
                self.scratch.totals.store_scalar(w, &one, &at);
            });
        });
    }

    /// The scores of a block: queries times keys, masked where a query does not see a key.
    pub(super) fn score(&self, w: &mut Writer, first: &str) {
        let Shape { width, lanes, .. } = *self.shape;
        let ty = vector(lanes, "f32");
        let count = self.tiling.score_queries;
        let vectors = if KEYS / lanes > 1 { 2 } else { 1 };
        let none = w.constant("dense<0.0>", &ty);
        let splat =
            |w: &mut Writer, value: f32| w.constant(format_args!("dense<0x{:08X}>", value.to_bits()), &ty);
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
                let carried = vec![(none.clone(), ty.clone()); count * vectors];
                let sums = w.for_loop("dimension", [&zero, &limit, &one], &carried, |w, dimension, sums| {
                    let at = mul_add(w, "at", dimension, KEYS, column);
                    let keys: Vec<_> = (0..vectors)
                        .map(|v| {
                            let at = w.offset("at", &at, v * lanes);
                            self.scratch.keys.load(w, "key", &at, lanes)
                        })
                        .collect();
                    let mut next = Vec::with_capacity(sums.len());
                    for (i, row) in rows.iter().enumerate() {
                        let at = w.arith("at", "addi", row, dimension, "index");
                        let query = self.scratch.query.broadcast(w, "query", &at, lanes);
                        for (key, sum) in keys.iter().zip(&sums[i * vectors..]) {
                            next.push(w.set("sum", format_args!("vector.fma {query}, {key}, {sum} : {ty}")));
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
                        let mut score = w.arith("score", "mulf", &sums[i * vectors + v], &scale, &ty);
                        if let Some(cap) = &cap {
                            score = hyperbolic_tangent(w, &score, lanes);
                            score = w.arith("score", "mulf", &score, cap, &ty);
                        }
                        let score = self.hide(w, &score, key, &row);
                        let at = mul_add(w, "at", &row, KEYS, column);
                        let at = w.offset("at", &at, v * lanes);
                        self.scratch.weights.store(w, &score, &at, lanes);
                    }
                }
            });
        });
    }

    /// The positions of the keys of one vector: `vector<lanes x i32>`.
    fn key_positions(&self, w: &mut Writer, first: &str, column: &str) -> String {
        let lanes = self.shape.lanes;
        let ty = vector(lanes, "i32");
        let counted = (0..lanes).map(|lane| lane.to_string()).collect::<Vec<_>>().join(", ");
        let counted = w.constant(format_args!("dense<[{counted}]>"), &ty);
        let start = w.arith("column", "addi", first, column, "index");
        let start = w.set("column", format_args!("arith.index_cast {start} : index to i32"));
        let start = w.set("column", format_args!("vector.broadcast {start} : i32 to {ty}"));
        w.arith("column", "addi", &start, &counted, &ty)
    }

    /// `score`, masked where a row of queries does not see the key at position `key`, lane by lane.
    fn hide(&self, w: &mut Writer, score: &str, key: &str, row: &str) -> String {
        let lanes = self.shape.lanes;
        let (ty, integers, truths) = (vector(lanes, "f32"), vector(lanes, "i32"), vector(lanes, "i1"));
        let (token, _) = divide(w, "token", row, self.shape.shared());
        let own = w.arith("own", "addi", &self.own, &token, "index");
        let own = w.set("own", format_args!("arith.index_cast {own} : index to i32"));
        let as_vector = |w: &mut Writer, value: &str| {
            w.set("own", format_args!("vector.broadcast {value} : i32 to {integers}"))
        };
        // A part may end before the token's own position.
        let end = w.set("end", format_args!("arith.index_cast {} : index to i32", self.end));
        let one = w.constant(1, "i32");
        let end = w.arith("end", "subi", &end, &one, "i32");
        let upper = w.arith("own", "minsi", &own, &end, "i32");
        let upper = as_vector(w, &upper);
        let mut seen = w.set("seen", format_args!("arith.cmpi sle, {key}, {upper} : {integers}"));
        if let Some(window) = self.window {
            let window = w.constant(window, "i32");
            let lower = w.arith("own", "subi", &own, &window, "i32");
            let lower = as_vector(w, &lower);
            let near = w.set("near", format_args!("arith.cmpi sgt, {key}, {lower} : {integers}"));
            seen = w.arith("seen", "andi", &seen, &near, &truths);
        }
        let hidden = w.constant(format_args!("dense<{HIDDEN}>"), &ty);
        w.set("score", format_args!("arith.select {seen}, {score}, {hidden} : {truths}, {ty}"))
    }

    /// Replaces the scores of a block for one row of queries by their weights.
    pub(super) fn weigh(&self, w: &mut Writer, query: &str) {
        let Shape { lanes, .. } = *self.shape;
        let (ty, truths) = (vector(lanes, "f32"), vector(lanes, "i1"));
        let Scratch { weights, largest, totals, .. } = self.scratch;
        let zero = w.index(0);
        let start = mul_add(w, "weight", query, KEYS, &zero);
        let places: Vec<_> = (0..KEYS / lanes).map(|i| w.offset("weight", &start, i * lanes)).collect();
        let scores: Vec<_> = places.iter().map(|at| weights.load(w, "score", at, lanes)).collect();
        // Most blocks do not contain a new largest score: the running values then stay unchanged.
        let before = largest.broadcast(w, "before", query, lanes);
        let mut above: Option<String> = None;
        for score in &scores {
            let own = w.set("above", format_args!("arith.cmpf ogt, {score}, {before} : {ty}"));
            above = Some(match above {
                Some(above) => w.arith("above", "ori", &above, &own, &truths),
                None => own,
            });
        }
        if let Some(above) = above {
            let above = w.set("above", format_args!("vector.reduction <or>, {above} : {truths} into i1"));
            w.if_then(&above, |w| self.raise(w, query, &scores));
        }
        let shift = largest.broadcast(w, "shift", query, lanes);
        let total_at = w.index(lanes);
        let total_at = w.arith("at", "muli", query, &total_at, "index");
        let mut total = totals.load(w, "total", &total_at, lanes);
        for (score, at) in scores.iter().zip(&places) {
            let shifted = w.arith("score", "subf", score, &shift, &ty);
            // A hidden key's weight is zero.
            let weight = exponential(w, &shifted, lanes);
            weights.store(w, &weight, at, lanes);
            total = w.arith("total", "addf", &total, &weight, &ty);
        }
        totals.store(w, &total, &total_at, lanes);
    }

    /// Updates the largest score to that of a block, which exceeds all before; running values are scaled to it.
    fn raise(&self, w: &mut Writer, query: &str, scores: &[String]) {
        let Shape { value_width: width, lanes, .. } = *self.shape;
        let ty = vector(lanes, "f32");
        let Scratch { sums, largest, totals, .. } = self.scratch;
        let mut highest = largest.broadcast(w, "highest", query, lanes);
        for score in scores {
            highest = w.arith("highest", "maximumf", &highest, score, &ty);
        }
        let highest = reduce(w, "highest", "maximumf", &highest, lanes);
        let before = largest.scalar(w, "before", query);
        largest.store_scalar(w, &highest, query);
        let fall = w.arith("fall", "subf", &before, &highest, "f32");
        let fall = broadcast(w, "fall", &fall, lanes);
        let fall = exponential(w, &fall, lanes);
        for (memory, size) in [(totals, lanes), (sums, width)] {
            let size_index = w.index(size);
            let start = w.arith("at", "muli", query, &size_index, "index");
            for_each(w, size, lanes, |w, at| {
                let at = w.arith("at", "addi", &start, at, "index");
                let value = memory.load(w, "sum", &at, lanes);
                let value = w.arith("sum", "mulf", &value, &fall, &ty);
                memory.store(w, &value, &at, lanes);
            });
        }
    }

    /// The sum of a row's weights.
    pub(super) fn total(&self, w: &mut Writer, query: &str) -> String {
        let lanes = self.shape.lanes;
        let at = w.index(lanes);
        let at = w.arith("at", "muli", query, &at, "index");
        let total = self.scratch.totals.load(w, "total", &at, lanes);
        reduce(w, "total", "add", &total, lanes)
    }
}
