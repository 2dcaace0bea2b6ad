//! The buffers of a pass in a kernel, and moving rows of keys, values and queries.

use mlxcel_stablehlo::ElementType;

use super::shape::{Run, Shape};
use crate::kernels::Kernel;
use crate::value::{Operand, Type};
use crate::vectors::{Memory, dividing, scratch};
use crate::writer::Writer;

/// `a * factor + b`, of type `index`.
pub(super) fn mul_add(w: &mut Writer, word: &str, a: &Operand, factor: usize, b: &Operand) -> Operand {
    let factor = w.index(factor);
    let product = w.arith(word, "muli", a, &factor);
    w.arith(word, "addi", &product, b)
}

/// The quotient and remainder of `a` by `divisor`, of type `index`.
pub(super) fn divide(w: &mut Writer, word: &str, a: &Operand, divisor: usize) -> (Operand, Operand) {
    let divisor = w.index(divisor);
    (w.arith(word, "divui", a, &divisor), w.arith(word, "remui", a, &divisor))
}

/// What turns queries and keys into scores.
pub(super) struct Queries {
    pub(super) query: Memory,
    /// Cosines and sines, if anything is rotated.
    pub(super) tables: Option<[Memory; 2]>,
    /// An additional score for each query head, if the model has them.
    pub(super) sinks: Option<Memory>,
}

/// The operands of a kernel over caches: those of the composite; caches are written in place.
pub(super) struct Pass {
    pub(super) queries: Queries,
    key: Memory,
    /// None if the value is a part of the key.
    value: Option<Memory>,
    positions: Memory,
    caches: Vec<Memory>,
    /// The layer of the caches, of type `index`.
    layer: Operand,
}

/// One key-value head of what a workgroup attends to.
pub(super) struct Kept {
    /// The memory of keys and that of values: of a cache the same.
    pub(super) memory: [Memory; 2],
    /// The key-value head.
    pub(super) group: Operand,
    /// Where the head's keys start, and its values.
    pub(super) parts: [Operand; 2],
}

/// The tokens of one row that a workgroup computes, and one key-value head of its cache.
pub(super) struct Place {
    pub(super) kept: Kept,
    /// The position of the row's first token, of type `index`.
    pub(super) position: Operand,
    /// Whether position `p` is at `p` modulo the cache's length.
    ring: bool,
    /// The index of the row's first token among those of all rows.
    pub(super) token: Operand,
}

impl Pass {
    /// Adds the operands to a kernel; with `query` if the kernel reads it.
    pub(super) fn operands(kernel: &mut Kernel, shape: &Shape) -> Self {
        use ElementType::{F32, I32};
        let Shape { tokens, heads, width, pairs, rows, .. } = *shape;
        let query = Memory::operand(kernel, "query", tokens * heads * width, F32);
        let kept = tokens * shape.kept_heads() * width;
        let key = Memory::operand(kernel, "key", kept, F32);
        let value = (!shape.latent).then(|| Memory::operand(kernel, "value", kept, F32));
        let tables = (pairs > 0)
            .then(|| ["cos", "sin"].map(|word| Memory::operand(kernel, word, tokens * pairs, F32)));
        let positions = Memory::operand(kernel, "positions", rows, I32);
        let sinks = shape.sinks.map(|element| Memory::operand(kernel, "sinks", heads, element));
        let mut caches = Vec::with_capacity(rows);
        for row in 0..rows {
            caches.push(Memory::operand(kernel, "cache", shape.cache_elements(), shape.cache));
            kernel.tied_result(shape.first_cache() + row);
        }
        let layer = kernel.uniform("layer");
        let layer = kernel.body.cast("layer", "index_cast", &layer, "index");
        Self { queries: Queries { query, tables, sinks }, key, value, positions, caches, layer }
    }

    /// Row `index` of a run, and a key-value head.
    pub(super) fn place(
        &self,
        w: &mut Writer,
        shape: &Shape,
        run: &Run,
        (index, group): (&Operand, &Operand),
    ) -> Place {
        let first = w.index(run.row);
        let row = w.arith("row", "addi", index, &first);
        let start = w.index(run.start);
        let token = mul_add(w, "token", index, run.tokens, &start);
        let mut cache = self.caches[run.row].clone();
        for number in 1..run.count {
            let other = &self.caches[run.row + number];
            let number = w.index(number);
            let is = w.compare("is", "eq", index, &number);
            cache.view.name = w.define(
                "cache",
                format_args!(
                    "arith.select {is}, {}, {} : {}",
                    other.view.name, cache.view.name, cache.view.ty
                ),
            );
        }
        // A row that does not fit after its position is written at the cache's end, as the composite
        // specifies.
        let ring = shape.ring(run).is_some();
        let position = self.positions.scalar(w, "position", &row);
        let none = w.constant(0, Type::I32);
        let mut position = w.arith("position", "maxsi", &position, &none);
        if !ring {
            let most = w.constant(shape.length - run.tokens, Type::I32);
            position = w.arith("position", "minsi", &position, &most);
        }
        let position = w.cast("position", "index_castui", &position, "index");
        let parts = self.parts(w, shape, group);
        let kept = Kept { memory: [cache.clone(), cache], group: group.clone(), parts };
        Place { kept, position, ring, token }
    }

    /// Where the keys and the values of a key-value head start in a cache.
    fn parts(&self, w: &mut Writer, shape: &Shape, group: &Operand) -> [Operand; 2] {
        let head = w.index(shape.length * shape.row_width);
        if shape.latent {
            let entries = w.arith("part", "muli", &self.layer, &head);
            return [entries.clone(), entries];
        }
        let groups = w.index(shape.groups);
        let part = w.arith("part", "muli", &self.layer, &groups);
        let keys = mul_add(w, "part", &part, 2, group);
        let values = w.arith("part", "addi", &keys, &groups);
        [keys, values].map(|part| w.arith("part", "muli", &part, &head))
    }

    /// Writes the keys and values of the token at `offset` from a place's first into its cache.
    pub(super) fn write(&self, w: &mut Writer, shape: &Shape, place: &Place, offset: &Operand, row: &Memory) {
        let token = w.arith("token", "addi", &place.token, offset);
        let from = if shape.latent {
            token.clone()
        } else {
            mul_add(w, "from", &token, shape.groups, &place.kept.group)
        };
        let width = w.index(shape.width);
        let from = w.arith("from", "muli", &from, &width);
        let mut position = w.arith("position", "addi", &place.position, offset);
        if place.ring {
            (_, position) = divide(w, "slot", &position, shape.length);
        }
        let [key, value] =
            place.kept.parts.each_ref().map(|part| mul_add(w, "to", &position, shape.row_width, part));
        let zero = w.index(0);
        let [keys, values] = &place.kept.memory;
        self.queries.rotate(w, shape, (&self.key, &from), &token, (row, &zero));
        pack(w, shape, (row, &zero), (keys, &key));
        if let Some(own) = &self.value {
            pack(w, shape, (own, &from), (values, &value));
        }
    }
}

impl Queries {
    /// Copies the values of one head from an index on to another memory, rotated by the position of `token`.
    pub(super) fn rotate(
        &self,
        w: &mut Writer,
        shape: &Shape,
        (from, from_at): (&Memory, &Operand),
        token: &Operand,
        (to, to_at): (&Memory, &Operand),
    ) {
        let Shape { pairs, width, rotated, lanes, .. } = *shape;
        // The dimensions before and after the rotated ones.
        let others = [(0, rotated), (rotated + 2 * pairs, width)];
        for (start, end) in others.into_iter().filter(|(start, end)| start < end) {
            let lanes = dividing(end - start, lanes);
            let [from_at, to_at] = [from_at, to_at].map(|at| w.offset("rest", at, start));
            for_each(w, end - start, lanes, |w, at| {
                let [from_at, to_at] = [&from_at, &to_at].map(|start| w.arith("rest", "addi", start, at));
                let value = from.load(w, "rest", &from_at, lanes);
                to.store(w, &value, &to_at);
            });
        }
        let Some(tables) = &self.tables else { return };
        let [from_at, to_at] = [from_at, to_at].map(|at| w.offset("rotated", at, rotated));
        let zero = w.index(0);
        let angles = mul_add(w, "angle", token, pairs, &zero);
        let lanes_of = dividing(pairs, lanes);
        for_each(w, pairs, lanes_of, |w, at| {
            let angle = w.arith("angle", "addi", &angles, at);
            let [cos, sin] = tables.each_ref().map(|table| table.load(w, "angle", &angle, lanes_of));
            let low_at = w.arith("low", "addi", &from_at, at);
            let high_at = w.offset("high", &low_at, pairs);
            let (low, high) =
                (from.load(w, "low", &low_at, lanes_of), from.load(w, "high", &high_at, lanes_of));
            let mut product = |a: &Operand, b: &Operand| w.arith("product", "mulf", a, b);
            let [low_cos, high_sin] = [product(&low, &cos), product(&high, &sin)];
            let [high_cos, low_sin] = [product(&high, &cos), product(&low, &sin)];
            let rotated_low = w.arith("low", "subf", &low_cos, &high_sin);
            let rotated_high = w.arith("high", "addf", &high_cos, &low_sin);
            let low_at = w.arith("low", "addi", &to_at, at);
            let high_at = w.offset("high", &low_at, pairs);
            to.store(w, &rotated_low, &low_at);
            to.store(w, &rotated_high, &high_at);
        });
    }
}

/// `body` for each index from 0 to `count`, `step` apart.
pub(super) fn for_each(w: &mut Writer, count: usize, step: usize, body: impl FnOnce(&mut Writer, &Operand)) {
    let [zero, count, step] = [0, count, step].map(|value| w.index(value));
    w.for_loop("at", [&zero, &count, &step], &[], |w, at, _| {
        body(w, at);
        Vec::new()
    });
}

/// Scratch for one row of a key before it is stored in the cache.
pub(super) fn row_scratch(w: &mut Writer, shape: &Shape) -> Memory {
    scratch(w, "row", shape.width)
}

/// Writes the values of one position from an index on into a cache, in its format.
fn pack(
    w: &mut Writer,
    shape: &Shape,
    (from, from_at): (&Memory, &Operand),
    (cache, cache_at): (&Memory, &Operand),
) {
    let Shape { width, lanes, .. } = *shape;
    if cache.element != ElementType::I8 {
        return for_each(w, width, lanes, |w, at| {
            let [from_at, to_at] = [from_at, cache_at].map(|start| w.arith("at", "addi", start, at));
            let value = from.load(w, "value", &from_at, lanes);
            let value = if cache.element == ElementType::F16 { saturated(w, value, lanes) } else { value };
            cache.store(w, &value, &to_at);
        });
    }
    let wide = Type::vector(lanes, "f32");
    let [zero, count, step] = [0, width, lanes].map(|value| w.index(value));
    let none = w.constant("0.0", wide);
    let largest = w.for_loop("at", [&zero, &count, &step], &[none], |w, at, largest| {
        let from_at = w.arith("at", "addi", from_at, at);
        let value = from.load(w, "value", &from_at, lanes);
        let magnitude = w.unary("value", "math.absf", &value);
        vec![w.arith("largest", "maximumf", &largest[0], &magnitude)]
    });
    let largest = w.reduce("largest", "maximumf", &largest[0]);
    let [steps, none, one] = ["127.0", "0.0", "1.0"].map(|value| w.constant(value, Type::F32));
    let scale = w.arith("scale", "divf", &largest, &steps);
    let empty = w.compare("empty", "oeq", &scale, &none);
    let divisor = w.select("scale", &empty, &one, &scale);
    let divisor = w.broadcast("scale", &divisor, lanes);
    let [least, most] = ["-127.0", "127.0"].map(|value| w.constant(value, wide));
    for_each(w, width, lanes, |w, at| {
        let [from_at, to_at] = [from_at, cache_at].map(|start| w.arith("at", "addi", start, at));
        let value = from.load(w, "value", &from_at, lanes);
        let value = w.arith("value", "divf", &value, &divisor);
        let value = w.unary("value", "math.roundeven", &value);
        let value = w.arith("value", "maximumf", &value, &least);
        let value = w.arith("value", "minimumf", &value, &most);
        let value = w.cast("value", "fptosi", &value, "i32");
        let value = w.cast("value", "trunci", &value, "i8");
        cache.view.store(w, &value, &[&to_at]);
    });
    let scale = w.broadcast("scale", &scale, 1);
    let scale = w.bitcast("scale", &scale, Type::vector(4, "i8"));
    let to_at = w.offset("at", cache_at, width);
    cache.view.store(w, &scale, &[&to_at]);
}

/// Values of a float16 cache without infinities of its own: hidden ones are multiplied by zero.
fn saturated(w: &mut Writer, value: Operand, lanes: usize) -> Operand {
    let [least, most] = ["-65504.0", "65504.0"].map(|value| w.constant(value, Type::vector(lanes, "f32")));
    let value = w.arith("value", "maximumf", &value, &least);
    w.arith("value", "minimumf", &value, &most)
}

/// The scale of a position in an 8-bit cache, in all lanes; none for caches of floats.
pub(super) fn scale_at(w: &mut Writer, shape: &Shape, cache: &Memory, at: &Operand) -> Option<Operand> {
    if cache.element != ElementType::I8 {
        return None;
    }
    let at = w.offset("scale", at, shape.width);
    let bytes = cache.view.load(w, "scale", &[&at], 4);
    let scale = w.bitcast("scale", &bytes, Type::vector(1, "f32"));
    let scale = w.extract("scale", &scale, 0);
    Some(w.broadcast("scale", &scale, shape.lanes))
}

/// `lanes` values of a cache from an index on, which lie in the row with this scale.
pub(super) fn load_scaled(
    w: &mut Writer,
    shape: &Shape,
    cache: &Memory,
    at: &Operand,
    scale: Option<&Operand>,
) -> Operand {
    let value = cache.load(w, "kept", at, shape.lanes);
    match scale {
        Some(scale) => w.arith("kept", "mulf", &value, scale),
        None => value,
    }
}
