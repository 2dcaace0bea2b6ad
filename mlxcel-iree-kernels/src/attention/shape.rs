//! The parameters of an attention kernel, and how its work is divided.

use mlxcel_stablehlo::{Builder, Composite, ElementType, TensorType};

use super::call::{Call, Settings};
use crate::instructions::Instructions;
use crate::vectors::{dividing, largest_divisor};

/// The element types of floats that kernels read and write.
const FLOATS: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::BF16];

/// Keys that are scored together: two registers of the widest set.
pub(super) const KEYS: usize = 32;

/// The most rows of queries (tokens by heads that share keys) of one workgroup, over which reading and
/// transposing a block of keys and values is shared.
const MOST_QUERIES: usize = 64;

/// As many in attention within texts: with more, a workgroup spans more texts than its tokens see.
const MOST_TEXT_QUERIES: usize = 32;

/// The most values of queries of one workgroup.
const MOST_QUERY_VALUES: usize = 8192;

/// The most heads of latent attention in one workgroup: this many read values directly from the cache.
const MOST_LATENT_HEADS: usize = 8;

/// The most scratch memory of a workgroup: the compiler's limit is set little higher.
const MOST_SCRATCH_BYTES: usize = 200 * 1024;

/// This many workgroups keep the cores of large machines busy.
const ENOUGH_WORKGROUPS: usize = 32;

/// Caches with fewer positions than this for each part are not worth splitting: joining parts costs a
/// dispatch.
const POSITIONS_A_PART: usize = 2048;

/// The operands of a composite `mlxcel.cached_attention` or `mlxcel.latent_attention`, as numbers.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Adjacent rows with equally many tokens.
    pub(super) runs: Vec<Run>,
    /// How many rows there are.
    pub(super) rows: usize,
    /// The tokens of all rows.
    pub(super) tokens: usize,
    /// Query heads.
    pub(super) heads: usize,
    /// Groups of query heads, each with a workgroup of its own: the heads that share a key-value head. In
    /// latent attention all heads share one, and a group has as many as fit a workgroup.
    pub(super) groups: usize,
    /// The size of a query and of a key.
    pub(super) width: usize,
    /// The size of a value.
    pub(super) value_width: usize,
    /// How many pairs of dimensions are rotated; 0 without tables.
    pub(super) pairs: usize,
    /// The first dimension that is rotated.
    pub(super) rotated: usize,
    /// Whether caches hold entries `[layers, length, width]`, whose first dimensions are the value, instead
    /// of keys and values `[layers, 2, groups, length, row_width]`.
    pub(super) latent: bool,
    /// The most rows of queries of one workgroup.
    most_queries: usize,
    /// The layers of a cache.
    pub(super) layers: usize,
    /// The positions of a cache.
    pub(super) length: usize,
    /// The elements of a cache for one position, head and part.
    pub(super) row_width: usize,
    /// The element type of caches.
    pub(super) cache: ElementType,
    /// The element type of the result.
    pub(super) out: ElementType,
    /// The factor of scores.
    pub(super) scale: f32,
    /// The soft cap of scores.
    pub(super) soft_cap: Option<f32>,
    /// The element type of the sinks, one additional score for each query head.
    pub(super) sinks: Option<ElementType>,
    /// How many positions a token sees, if that can be fewer than the cache's.
    pub(super) window: Option<usize>,
    /// Whether tokens see the positions of their chunk, as long as the window, instead.
    pub(super) chunked: bool,
    /// Elements of a vector.
    pub(super) lanes: usize,
    /// How many vector registers there are.
    registers: usize,
    /// Whether caches are prefetched.
    pub(super) fetches_ahead: bool,
}

/// Adjacent rows with equally many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// How many tokens each row has.
    pub(super) tokens: usize,
    /// How many rows there are.
    pub(super) count: usize,
    /// The number of the first row.
    pub(super) row: usize,
    /// The number of the first row's first token.
    pub(super) start: usize,
}

/// How one run is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Tokens of one workgroup; they divide the row's.
    pub(super) tokens: usize,
    /// Rows of queries of one workgroup: its tokens times the query heads that share a key-value head.
    pub(super) queries: usize,
    /// Rows of queries whose scores are computed together.
    pub(super) score_queries: usize,
    /// Rows of queries whose values are summed together.
    pub(super) mix_queries: usize,
    /// Vectors of each row that are summed together.
    pub(super) mix_vectors: usize,
}

impl Shape {
    /// The shape of `composite`, if there are kernels for all of it.
    pub(super) fn of<'f>(
        composite: &Composite<'_, 'f>,
        b: &Builder<'f>,
        instructions: Instructions,
    ) -> Option<Self> {
        let call = Call::of(composite)?;
        let latent = call.value.is_none();
        let out = composite.decomposition.result_types().next()?.element;
        let &[tokens, heads, width] = &b.ty(call.query).shape[..] else { return None };
        let &[rows] = &b.ty(call.positions).shape[..] else { return None };
        let pairs = match call.tables {
            Some([cos, _]) => *b.ty(cos).shape.last().filter(|&&pairs| pairs > 0)?,
            None => 0,
        };
        let (&first, others) = call.caches.split_first()?;
        let cache = b.ty(first);
        let (groups, layers, length, row_width) = match cache.shape[..] {
            [layers, 2, groups, length, row_width] if !latent => (groups, layers, length, row_width),
            [layers, length, row_width] if latent => (latent_groups(heads, width), layers, length, row_width),
            _ => return None,
        };
        let sinks = call.sinks.map(|sinks| b.ty(sinks).element);
        let fits = others.iter().all(|&other| b.ty(other) == cache)
            && call.caches.len() == rows
            && call.rows.len() == rows
            && [Some(out), sinks].into_iter().flatten().all(|element| FLOATS.contains(&element))
            && (FLOATS.contains(&cache.element) || !latent && cache.element == ElementType::I8);
        let shape = Self {
            runs: runs(&call.rows),
            rows,
            tokens,
            layers,
            length,
            row_width,
            cache: cache.element,
            out,
            scale: call.settings.scale,
            soft_cap: call.settings.soft_cap,
            sinks,
            window: call.settings.window.filter(|&window| window <= length),
            chunked: call.settings.chunked,
            ..Self::empty([heads, groups, width, pairs], latent, instructions)
        };
        (fits && shape.fits()).then_some(shape)
    }

    /// That of a composite `mlxcel.text_attention`: its keys and values are like a cache of its tokens, in
    /// which all heads of a position are side by side.
    pub(super) fn of_texts<'f>(
        composite: &Composite<'_, 'f>,
        b: &Builder<'f>,
        instructions: Instructions,
    ) -> Option<Self> {
        let settings = Settings::of(composite, &["scale", "soft_cap", "window", "sinks"])?;
        let out = composite.decomposition.result_types().next()?.element;
        let (&[query, key, value, firsts, ends], sinks) = composite.operands.split_first_chunk()?;
        let [query, key, value] = [query, key, value].map(|operand| b.ty(operand));
        let &[tokens, heads, width] = &query.shape[..] else { return None };
        let &[_, groups, _] = &key.shape[..] else { return None };
        let edges = TensorType::new(ElementType::I32, [tokens]);
        let sink = sinks.first().map(|&sinks| b.ty(sinks).element);
        let fits = sinks.len() == usize::from(settings.sinks)
            && [firsts, ends].iter().all(|&operand| *b.ty(operand) == edges)
            && key.shape == [tokens, groups, width]
            && value.shape == key.shape
            && [query, key, value].iter().all(|ty| ty.element == ElementType::F32)
            && settings.window != Some(0)
            && [Some(out), sink].into_iter().flatten().all(|element| FLOATS.contains(&element));
        let shape = Self {
            runs: runs(&[tokens]),
            rows: 1,
            tokens,
            most_queries: MOST_TEXT_QUERIES,
            length: tokens,
            row_width: groups * width,
            out,
            scale: settings.scale,
            soft_cap: settings.soft_cap,
            sinks: sink,
            window: settings.window.filter(|&window| window < tokens),
            ..Self::empty([heads, groups, width, 0], false, instructions)
        };
        (fits && shape.fits()).then_some(shape)
    }

    /// Whether there are kernels for attention with `heads` query heads of `width` and `groups` key-value
    /// heads, in any pass.
    pub(super) fn has_kernels([heads, groups, width]: [usize; 3], instructions: Instructions) -> bool {
        let shape = Self::empty([heads, groups, width, 0], false, instructions);
        Self { runs: runs(&[128, 1]), ..shape }.fits()
    }

    /// Whether there are kernels for latent attention with `heads` heads over entries of `width`, with
    /// `rotary_dim` rotated dimensions, in any pass.
    pub(super) fn has_latent_kernels(
        [heads, width, rotary_dim]: [usize; 3],
        instructions: Instructions,
    ) -> bool {
        let groups = latent_groups(heads, width);
        let shape = Self::empty([heads, groups, width, rotary_dim / 2], true, instructions);
        rotary_dim > 0 && Self { runs: runs(&[128, 1]), ..shape }.fits()
    }

    /// Attention with heads of these sizes over a cache without positions.
    fn empty([heads, groups, width, pairs]: [usize; 4], latent: bool, instructions: Instructions) -> Self {
        let rotated = if latent { width - 2 * pairs } else { 0 };
        let value_width = if latent { rotated } else { width };
        Self {
            runs: Vec::new(),
            rows: 0,
            tokens: 0,
            heads,
            groups,
            width,
            value_width,
            pairs,
            rotated,
            latent,
            most_queries: MOST_QUERIES,
            layers: 0,
            length: 0,
            row_width: width,
            cache: ElementType::F32,
            out: ElementType::F32,
            scale: 1.0,
            soft_cap: None,
            sinks: None,
            window: None,
            chunked: false,
            lanes: dividing(value_width, dividing(width, instructions.lanes())),
            registers: instructions.registers(),
            fetches_ahead: instructions.fetches_ahead(),
        }
    }

    /// Whether a workgroup's scratch memory is within its limit, and positions fit 32 bits.
    fn fits(&self) -> bool {
        self.scratch_values() * 4 <= MOST_SCRATCH_BYTES && i32::try_from(self.length).is_ok()
    }

    /// How many query heads share a key-value head.
    pub(super) fn shared(&self) -> usize {
        self.heads / self.groups
    }

    /// The key-value heads of a cache.
    pub(super) fn kept_heads(&self) -> usize {
        if self.latent { 1 } else { self.groups }
    }

    /// The elements of a cache.
    pub(super) fn cache_elements(&self) -> usize {
        let parts = if self.latent { 1 } else { 2 * self.groups };
        self.layers * parts * self.length * self.row_width
    }

    /// The index of the first cache among the operands.
    pub(super) fn first_cache(&self) -> usize {
        let new = if self.latent { 2 } else { 3 };
        let tables = if self.pairs > 0 { 2 } else { 0 };
        new + tables + 1 + usize::from(self.sinks.is_some())
    }

    /// The window of rows whose caches are rings: position `p` is in slot `p mod length`. A cache is a ring
    /// if it has slots for all positions that the tokens of a row see.
    pub(super) fn ring(&self, run: &Run) -> Option<usize> {
        self.window.filter(|window| window + run.tokens <= self.length + 1)
    }

    /// How a run is divided.
    pub(super) fn tiling(&self, run: &Run) -> Tiling {
        let shared = self.shared();
        let most =
            (self.most_queries.min(MOST_QUERY_VALUES / self.width.min(MOST_QUERY_VALUES)) / shared).max(1);
        let tokens = largest_divisor(run.tokens, most);
        let queries = tokens * shared;
        let mix_queries = largest_divisor(queries, 4);
        // A few queries sum whole rows of values, which memory delivers faster than parts of them.
        let vectors = (self.registers * 3 / 16).max(self.registers / 4 / mix_queries.div_ceil(2));
        Tiling {
            tokens,
            queries,
            score_queries: largest_divisor(queries, self.registers / 4),
            mix_queries,
            mix_vectors: largest_divisor(self.value_width / self.lanes, vectors),
        }
    }

    /// The number of parts of a row's positions, each with workgroups of its own: more than one only if
    /// single tokens attend to long caches and are too few to keep many cores busy.
    pub(super) fn parts(&self) -> usize {
        let [Run { tokens: 1, count, .. }] = self.runs[..] else { return 1 };
        parts(count * self.groups, self.window.unwrap_or(self.length))
    }

    /// The workgroups of a run.
    pub(super) fn workgroups(&self, run: &Run) -> usize {
        run.count * self.groups * (run.tokens / self.tiling(run).tokens) * self.parts()
    }

    /// The most rows of queries of a workgroup.
    pub(super) fn most_queries(&self) -> usize {
        self.runs.iter().map(|run| self.tiling(run).queries).max().unwrap_or_default()
    }

    /// The values of scratch memory that a workgroup uses.
    fn scratch_values(&self) -> usize {
        let values = if self.latent { 0 } else { KEYS * self.value_width };
        let running = self.width + self.value_width + KEYS + 1 + self.lanes;
        self.most_queries() * running + KEYS * self.width + values + 3 * self.width
    }
}

/// The number of parts if there are `workgroups` without them, over caches of `positions`.
pub(super) fn parts(workgroups: usize, positions: usize) -> usize {
    ENOUGH_WORKGROUPS.div_ceil(workgroups).min(positions / POSITIONS_A_PART).max(1)
}

/// The number of groups of latent attention's heads, so that a workgroup has room for one.
fn latent_groups(heads: usize, width: usize) -> usize {
    heads / largest_divisor(heads, (MOST_QUERY_VALUES / width.max(1)).clamp(1, MOST_LATENT_HEADS))
}

/// The rows of `tokens`, equal neighbours merged.
fn runs(tokens: &[usize]) -> Vec<Run> {
    let (mut row, mut start) = (0, 0);
    let equal = tokens.chunk_by(|a, b| a == b);
    equal
        .map(|rows| {
            let run = Run { tokens: rows[0], count: rows.len(), row, start };
            row += rows.len();
            start += rows[0] * rows.len();
            run
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_make_a_run() {
        let run = |tokens, count, row, start| Run { tokens, count, row, start };
        assert_eq!(runs(&[128, 1, 1, 1]), [run(128, 1, 0, 0), run(1, 3, 1, 128)]);
        assert_eq!(runs(&[1, 4, 1]), [run(1, 1, 0, 0), run(4, 1, 1, 1), run(1, 1, 2, 5)]);
    }
}
