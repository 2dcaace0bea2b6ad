//! The streamed operand of a product: read once, a block of rows at a time, from its own element type.

use super::super::evaluator::Evaluator;
use super::super::kernel::{Bound, Kernel};
use super::super::lanes::load_f32;
use super::super::node::SlotId;
use super::super::view::Linear;
use super::simd::{PANEL, WeightRow};
use crate::types::ElementType;

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
        Reader { weight: self, evaluator, scratch: Vec::new() }
    }

    /// The bytes of the row's elements, for rows that lie in a slot.
    fn row_bytes(&self, batch: usize, row: usize) -> Option<(&'a [u8], ElementType)> {
        let Source::Direct { bytes, element, batch: starts, row_stride } = &self.source else { return None };
        let first = starts.at(batch) + row * row_stride;
        let size = element.bytes_for(1);
        Some((&bytes[first * size..(first + self.k) * size], *element))
    }
}

/// Reads rows and panels of a weight.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    weight: &'a BoundWeight<'a>,
    evaluator: Option<Evaluator<'a>>,
    scratch: Vec<f32>,
}

impl Reader<'_> {
    /// A whole row: in place where its type and address allow, otherwise as `f32` in scratch memory. Never for columns.
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
            load_f32(bytes, element, first, 1, target);
        } else if let Some(evaluator) = &mut self.evaluator {
            evaluator.write_f32((batch * weight.n + row) * weight.k + first, target);
        }
    }

    /// Packs `rows` rows from `row` on, elements `first .. first + depth` of each, into panels of [`PANEL`] rows:
    /// for each step of the contraction the elements of all rows side by side. Missing rows are zero.
    pub(super) fn pack(
        &mut self,
        batch: usize,
        (row, rows): (usize, usize),
        (first, depth): (usize, usize),
        panels: &mut [f32],
    ) {
        let weight = self.weight;
        let mut scratch = std::mem::take(&mut self.scratch);
        if let (true, Some(evaluator)) = (weight.is_columns(), &mut self.evaluator) {
            scratch.resize(rows, 0.0);
            for step in 0..depth {
                evaluator.write_f32((batch * weight.k + first + step) * weight.n + row, &mut scratch);
                for (panel, columns) in panels.chunks_exact_mut(depth * PANEL).zip(scratch.chunks(PANEL)) {
                    let line = &mut panel[step * PANEL..(step + 1) * PANEL];
                    line[..columns.len()].copy_from_slice(columns);
                    line[columns.len()..].fill(0.0);
                }
            }
        } else {
            scratch.resize(PANEL * depth, 0.0);
            for (i, panel) in panels.chunks_exact_mut(depth * PANEL).enumerate() {
                for (j, line) in scratch.chunks_exact_mut(depth).enumerate() {
                    if i * PANEL + j < rows {
                        self.read(batch, row + i * PANEL + j, first, line);
                    } else {
                        line.fill(0.0);
                    }
                }
                interleave::<PANEL>(&scratch, depth, panel);
            }
        }
        self.scratch = scratch;
    }
}

/// Turns `M` lines of `depth` elements into `depth` groups of `M`.
pub(super) fn interleave<const M: usize>(lines: &[f32], depth: usize, groups: &mut [f32]) {
    const TILE: usize = 16;
    let (groups, _) = groups.as_chunks_mut::<M>();
    // Small tiles, so that the lines of cache that are written stay close while all lines are read.
    for (t, groups) in groups.chunks_mut(TILE).enumerate() {
        for m in 0..M {
            let start = m * depth + t * TILE;
            let line = &lines[start..start + groups.len()];
            for (group, &value) in groups.iter_mut().zip(line) {
                group[m] = value;
            }
        }
    }
}
