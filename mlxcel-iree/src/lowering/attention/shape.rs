//! What an attention kernel is made for, and how its work is cut.

use mlxcel_models::Attention;
use mlxcel_stablehlo::{Attribute, Builder, Composite, ElementType};

use super::vectors::dividing;
use crate::lowering::instructions::Instructions;
use crate::lowering::knows_attributes;

/// Keys that are scored together: two registers of the widest set.
pub(super) const KEYS: usize = 32;

/// The most rows of queries (tokens by heads that share keys) of one workgroup, over which reading a block of keys and values
/// and turning it is shared.
const MOST_QUERIES: usize = 64;

/// The most values of queries of one workgroup.
const MOST_QUERY_VALUES: usize = 8192;

/// The most scratch memory that a workgroup may have: the compiler is told to allow little more.
const MOST_SCRATCH_BYTES: usize = 200 * 1024;

/// So many workgroups keep the cores of large machines busy.
const ENOUGH_WORKGROUPS: usize = 32;

/// Caches with room for fewer positions than this for each part are not worth cutting: putting parts together costs a dispatch.
const POSITIONS_A_PART: usize = 2048;

/// The operands of a composite `mlxcel.cached_attention`, as numbers.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Rows of equally many tokens that stand next to one another.
    pub(super) runs: Vec<Run>,
    /// How many rows there are.
    pub(super) rows: usize,
    /// The tokens of all rows.
    pub(super) tokens: usize,
    /// Query heads.
    pub(super) heads: usize,
    /// Key-value heads.
    pub(super) groups: usize,
    /// The size of a head.
    pub(super) width: usize,
    /// How many pairs of dimensions are rotated.
    pub(super) pairs: usize,
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
    /// What scores are multiplied by.
    pub(super) scale: f32,
    /// How many positions a token sees.
    pub(super) window: Option<usize>,
    /// The layer of the caches.
    pub(super) layer: i32,
    /// Elements of a vector.
    pub(super) lanes: usize,
    /// How many vector registers there are.
    registers: usize,
}

/// Rows of equally many tokens that stand next to one another.
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
    /// Rows of queries of one workgroup: its tokens by the query heads that share a key-value head.
    pub(super) queries: usize,
    /// Rows of queries whose scores are computed together.
    pub(super) score_queries: usize,
    /// Rows of queries whose values are summed together.
    pub(super) mix_queries: usize,
    /// Vectors of each that are summed together.
    pub(super) mix_vectors: usize,
}

impl Shape {
    /// What `composite` is about, if kernels are written for that.
    pub(super) fn of<'f>(
        composite: &Composite<'_, 'f>,
        b: &Builder<'f>,
        instructions: Instructions,
    ) -> Option<Self> {
        let [query, key, _, cos, _, positions, cache, ref caches @ ..] = *composite.operands else {
            return None;
        };
        let out = composite.decomposition.result_types().next()?.element;
        let (&[tokens, heads, width], &[_, groups, _]) = (&b.ty(query).shape[..], &b.ty(key).shape[..])
        else {
            return None;
        };
        let (&[_, pairs], &[rows]) = (&b.ty(cos).shape[..], &b.ty(positions).shape[..]) else { return None };
        let &[layers, _, _, length, row_width] = &b.ty(cache).shape[..] else { return None };
        let known = ["layer", "rows", "scale", "window"];
        if !knows_attributes(composite, &known) || caches.len() + 1 != rows {
            return None;
        }
        let equal = caches.iter().all(|&other| b.ty(other) == b.ty(cache));
        let (Some(Attribute::Text(row_tokens)), Some(&Attribute::Float(scale)), Some(&Attribute::Int(layer))) =
            (composite.attribute("rows"), composite.attribute("scale"), composite.attribute("layer"))
        else {
            return None;
        };
        let window = match composite.attribute("window") {
            Some(&Attribute::Int(window)) => Some(usize::try_from(window).ok()?),
            Some(_) => return None,
            None => None,
        };
        let row_tokens: Vec<usize> =
            row_tokens.split(',').map(|tokens| tokens.parse().ok()).collect::<Option<_>>()?;
        let known = [ElementType::F32, ElementType::F16, ElementType::BF16];
        let cache = b.ty(cache).element;
        let fits = equal
            && pairs > 0
            && row_tokens.len() == rows
            && known.contains(&out)
            && (known.contains(&cache) || cache == ElementType::I8);
        let shape = Self {
            runs: runs(&row_tokens),
            rows,
            tokens,
            heads,
            groups,
            width,
            pairs,
            layers,
            length,
            row_width,
            cache,
            out,
            scale,
            window: window.filter(|&window| window < length),
            layer: i32::try_from(layer).ok()?,
            lanes: dividing(width, instructions.lanes()),
            registers: instructions.registers(),
        };
        (fits && shape.fits()).then_some(shape)
    }

    /// Whether there are kernels for the attention of a decoder's layer, whatever the pass.
    pub(super) fn has_kernels(attention: &Attention, instructions: Instructions) -> bool {
        let Attention { query_heads, kv_heads, head_dim, ref rope, .. } = *attention;
        let rows = [128, 1];
        let shape = Self {
            runs: runs(&rows),
            rows: rows.len(),
            tokens: rows.iter().sum(),
            heads: query_heads,
            groups: kv_heads,
            width: head_dim,
            pairs: rope.rotary_dim / 2,
            layers: 1,
            length: 1024,
            row_width: head_dim,
            cache: ElementType::F32,
            out: ElementType::F32,
            scale: attention.scale,
            window: None,
            layer: 0,
            lanes: dividing(head_dim, instructions.lanes()),
            registers: instructions.registers(),
        };
        shape.pairs > 0 && shape.fits()
    }

    /// Whether the scratch memory of a workgroup is as much as there is, and positions are numbers of 32 bits.
    fn fits(&self) -> bool {
        let bytes = self.runs.iter().map(|run| self.scratch_values(run) * 4).sum::<usize>();
        bytes <= MOST_SCRATCH_BYTES && i32::try_from(self.length).is_ok()
    }

    /// How many query heads share a key-value head.
    pub(super) fn shared(&self) -> usize {
        self.heads / self.groups
    }

    /// The elements of a cache.
    pub(super) fn cache_elements(&self) -> usize {
        self.layers * 2 * self.groups * self.length * self.row_width
    }

    /// How a run is cut.
    pub(super) fn tiling(&self, run: &Run) -> Tiling {
        let shared = self.shared();
        let most = (MOST_QUERIES.min(MOST_QUERY_VALUES / self.width.min(MOST_QUERY_VALUES)) / shared).max(1);
        let tokens = largest_divisor(run.tokens, most);
        let queries = tokens * shared;
        Tiling {
            tokens,
            queries,
            score_queries: largest_divisor(queries, self.registers / 4),
            mix_queries: largest_divisor(queries, 4),
            mix_vectors: largest_divisor(self.width / self.lanes, self.registers * 3 / 16),
        }
    }

    /// In how many parts the positions of a row are cut, each for workgroups of its own: more than one only where single tokens
    /// attend to long caches and are too few to keep many cores busy.
    pub(super) fn parts(&self) -> usize {
        let [Run { tokens: 1, count, .. }] = self.runs[..] else { return 1 };
        let wanted = ENOUGH_WORKGROUPS.div_ceil(count * self.groups);
        wanted.min(self.length / POSITIONS_A_PART).max(1)
    }

    /// The workgroups of a run.
    pub(super) fn workgroups(&self, run: &Run) -> usize {
        run.count * self.groups * (run.tokens / self.tiling(run).tokens) * self.parts()
    }

    /// The values of scratch memory that a workgroup of a run uses.
    fn scratch_values(&self, run: &Run) -> usize {
        let queries = self.tiling(run).queries;
        2 * queries * self.width + queries * (KEYS + 1 + self.lanes) + 2 * KEYS * self.width + 3 * self.width
    }
}

/// The rows of `tokens`, equal neighbours together.
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

/// The largest number up to `most` that divides `of`.
fn largest_divisor(of: usize, most: usize) -> usize {
    (1..=most.min(of)).rev().find(|&divisor| of.is_multiple_of(divisor)).unwrap_or(1)
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

    #[test]
    fn tiles_divide_what_they_tile() {
        for (of, most, wanted) in [(128, 16, 16), (7, 16, 7), (17, 16, 1), (5, 6, 5), (8, 6, 4), (1, 4, 1)] {
            assert_eq!(largest_divisor(of, most), wanted);
        }
    }
}
