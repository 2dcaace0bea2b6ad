//! The streamed operand of a product: read once, a block of rows at a time, from its own element type.

use mlxcel_stablehlo::ElementType;
use pulp::Arch;

use super::super::evaluator::Evaluator;
use super::super::kernel::{Bound, Kernel};
use super::super::lanes::load_f32;
use super::super::node::SlotId;
use super::super::view::Linear;
use super::simd::{PANEL, WeightRow, widen_bf16};

/// Where the elements of the streamed operand come from; `N` rows of `K` elements for each batch index.
#[derive(Debug)]
pub(super) enum Weight {
    /// Rows that lie contiguously in a slot.
    Direct {
        slot: SlotId,
        element: ElementType,
        /// The element number at which each batch index starts.
        batch: Linear,
        /// Elements from one row to the next.
        row_stride: usize,
    },
    /// An expression over `[B, N, K]`.
    Rows(Kernel),
    /// An expression over `[B, K, N]`.
    Columns(Kernel),
}

impl Weight {
    pub(super) fn reads(&self, each: &mut dyn FnMut(SlotId)) {
        match self {
            Self::Direct { slot, .. } => each(*slot),
            Self::Rows(kernel) | Self::Columns(kernel) => kernel.slots.iter().copied().for_each(each),
        }
    }

    pub(super) fn bind<'a>(
        &'a self,
        bytes: impl Fn(SlotId) -> &'a [u8],
        n: usize,
        k: usize,
    ) -> BoundWeight<'a> {
        let source = match self {
            Self::Direct { slot, element, batch, row_stride } => {
                Source::Direct { bytes: bytes(*slot), element: *element, batch, row_stride: *row_stride }
            }
            Self::Rows(kernel) => Source::Rows(kernel.bind(bytes)),
            Self::Columns(kernel) => Source::Columns(kernel.bind(bytes)),
        };
        BoundWeight { source, n, k }
    }
}

/// A [`Weight`] with its bytes.
#[derive(Debug)]
pub(super) struct BoundWeight<'a> {
    source: Source<'a>,
    n: usize,
    k: usize,
}

#[derive(Debug)]
enum Source<'a> {
    Direct { bytes: &'a [u8], element: ElementType, batch: &'a Linear, row_stride: usize },
    Rows(Bound<'a>),
    Columns(Bound<'a>),
}

impl<'a> BoundWeight<'a> {
    pub(super) fn is_columns(&self) -> bool {
        matches!(self.source, Source::Columns(_))
    }

    /// Whether every row can be read in place as pairs of `bf16`.
    pub(super) fn is_bf16_pairs(&self) -> bool {
        let Source::Direct { bytes, element: ElementType::BF16, batch, row_stride } = &self.source else {
            return false;
        };
        let even = |number: usize| number.is_multiple_of(2);
        even(self.k)
            && even(*row_stride)
            && even(batch.offset)
            && batch.dims.iter().all(|&(_, stride)| even(stride))
            && bytes.as_ptr().align_offset(align_of::<u32>()) == 0
    }

    /// One reader for each thread.
    pub(super) fn reader(&self) -> Reader<'_> {
        let evaluator = match &self.source {
            Source::Direct { .. } => None,
            Source::Rows(bound) | Source::Columns(bound) => Some(bound.evaluator()),
        };
        Reader { weight: self, evaluator, arch: Arch::new(), scratch: Vec::new() }
    }

    /// The bytes of the row's elements, for rows that lie in a slot.
    fn row_bytes(&self, batch: usize, row: usize) -> Option<(&'a [u8], ElementType)> {
        let Source::Direct { bytes, element, batch: starts, row_stride } = &self.source else { return None };
        let first = starts.at(batch) + row * row_stride;
        let size = element.bytes_for(1);
        Some((&bytes[first * size..(first + self.k) * size], *element))
    }
}

/// Reads rows of a weight.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    weight: &'a BoundWeight<'a>,
    evaluator: Option<Evaluator<'a>>,
    arch: Arch,
    scratch: Vec<f32>,
}

impl Reader<'_> {
    /// A whole row: in place where its type and address allow, otherwise as `f32` in scratch memory. Never
    /// for columns.
    pub(super) fn row(&mut self, batch: usize, row: usize) -> WeightRow<'_> {
        let weight = self.weight;
        if let Some((bytes, element)) = weight.row_bytes(batch, row) {
            match element {
                ElementType::F32 => {
                    if let Ok(row) = bytemuck::try_cast_slice(bytes) {
                        return WeightRow::F32(row);
                    }
                }
                ElementType::BF16 if weight.is_bf16_pairs() => {
                    if let Ok(row) = bytemuck::try_cast_slice(bytes) {
                        return WeightRow::Bf16Pairs(row);
                    }
                }
                _ => {}
            }
        }
        self.scratch.resize(weight.k, 0.0);
        let mut scratch = std::mem::take(&mut self.scratch);
        self.read(batch, row, 0, &mut scratch);
        self.scratch = scratch;
        WeightRow::F32(&self.scratch)
    }

    /// The elements of a row from `first` on.
    fn read(&mut self, batch: usize, row: usize, first: usize, target: &mut [f32]) {
        let weight = self.weight;
        if let Some((bytes, element)) = weight.row_bytes(batch, row) {
            match element {
                ElementType::BF16 => {
                    let bytes = &bytes[2 * first..2 * (first + target.len())];
                    widen_bf16(self.arch, bytes, target);
                }
                _ => load_f32(bytes, element, first, 1, target),
            }
        } else if let Some(evaluator) = &mut self.evaluator {
            evaluator.write_f32((batch * weight.n + row) * weight.k + first, target);
        }
    }

    /// Reads elements `first .. first + depth` of rows from `row` on, a line of `depth` for each.
    pub(super) fn read_rows(
        &mut self,
        batch: usize,
        (row, count): (usize, usize),
        (first, depth): (usize, usize),
        lines: &mut [f32],
    ) {
        for (i, line) in lines.chunks_exact_mut(depth).take(count).enumerate() {
            self.read(batch, row + i, first, line);
        }
    }

    /// Reads the same of an operand that lies in columns, as panels: for each step of the contraction
    /// [`PANEL`] rows side by side. Rows beyond the last are zero.
    pub(super) fn read_panels(
        &mut self,
        batch: usize,
        (row, count): (usize, usize),
        (first, depth): (usize, usize),
        panels: &mut [f32],
    ) {
        let weight = self.weight;
        let Some(evaluator) = &mut self.evaluator else { return };
        self.scratch.resize(count, 0.0);
        for step in 0..depth {
            evaluator.write_f32((batch * weight.k + first + step) * weight.n + row, &mut self.scratch);
            for (panel, rows) in panels.chunks_exact_mut(depth * PANEL).zip(self.scratch.chunks(PANEL)) {
                let line = &mut panel[step * PANEL..(step + 1) * PANEL];
                line[..rows.len()].copy_from_slice(rows);
                line[rows.len()..].fill(0.0);
            }
        }
    }
}

/// Turns [`PANEL`] lines of `depth` elements into `depth` groups of as many.
pub(super) fn interleave(lines: &[f32], depth: usize, groups: &mut [f32]) {
    // Small tiles, so that the cache lines that are written stay close while all lines are read.
    const TILE: usize = 16;
    let (groups, _) = groups.as_chunks_mut::<PANEL>();
    for (t, groups) in groups.chunks_mut(TILE).enumerate() {
        for (i, line) in lines.chunks_exact(depth).enumerate() {
            let line = &line[t * TILE..t * TILE + groups.len()];
            for (group, &value) in groups.iter_mut().zip(line) {
                group[i] = value;
            }
        }
    }
}
