//! References from roles in a network to tensors of a checkpoint.

use std::fmt;

use crate::element::ElementType;
use crate::quantization::{Quantization, QuantizationMode};

/// A weight: a tensor of the checkpoint, or what a network sees in one or several of them.
///
/// What it sees is made of the stored tensors in this order: those of [`stack`](Self::stack) are put behind the first, along
/// a new outermost dimension; the two innermost dimensions are swapped where [`transposed`](Self::transposed); the
/// [`selection`](Self::selection) is taken; and the result is read in [`shape`](Self::shape), row-major.
///
/// Where it is quantized, the tensor holds packed words, and [`quantization`](Self::quantization) names the tensors that
/// complete it. They are weights of their own for [`Checkpoint::weight`](crate::Checkpoint::weight).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightRef {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// The type of the tensor's elements: of a quantized weight that of the packed words, `U32`.
    pub element: ElementType,
    /// The shape of this weight in values, packed or not.
    pub shape: Vec<usize>,
    /// Further tensors of the same type and shape, behind the first along a new outermost dimension.
    pub stack: Vec<String>,
    /// Whether the two innermost dimensions are stored the other way round.
    pub transposed: bool,
    /// The part that is meant where tensors hold several weights fused into one; `None` for all of it.
    pub selection: Option<Selection>,
    /// How the values are packed; `None` where they are stored as they are.
    pub quantization: Option<Box<Quantization>>,
}

/// Indices of one dimension: `runs` times `run` consecutive ones, `stride` apart, from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The dimension.
    pub axis: usize,
    /// The first index.
    pub start: usize,
    /// How many follow each other.
    pub run: usize,
    /// From the beginning of one run to that of the next.
    pub stride: usize,
    /// How many runs there are.
    pub runs: usize,
}

impl Selection {
    /// Consecutive indices of the outermost dimension.
    pub fn rows(start: usize, rows: usize) -> Self {
        Self { axis: 0, start, run: rows, stride: rows, runs: 1 }
    }

    /// How many indices are taken.
    pub fn count(&self) -> usize {
        self.run.saturating_mul(self.runs)
    }

    /// One more than the last index.
    pub fn end(&self) -> usize {
        self.runs
            .saturating_sub(1)
            .saturating_mul(self.stride)
            .saturating_add(self.run)
            .saturating_add(self.start)
    }

    /// Whether the indices are consecutive.
    pub fn is_contiguous(&self) -> bool {
        self.runs == 1 || self.run == self.stride
    }
}

impl WeightRef {
    /// A reference to a whole tensor.
    pub fn new(tensor: impl Into<String>, element: ElementType, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            tensor: tensor.into(),
            element,
            shape: shape.into(),
            stack: Vec::new(),
            transposed: false,
            selection: None,
            quantization: None,
        }
    }

    /// The same weight, packed as `quantization` says.
    #[must_use]
    pub fn with_quantization(mut self, quantization: Quantization) -> Self {
        self.quantization = Some(Box::new(quantization));
        self
    }

    /// The tensors of `self` and `others`, which have one type and shape, along a new outermost dimension.
    #[must_use]
    pub fn stacked(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        let others: Vec<_> = others.into_iter().collect();
        if let Some(quantization) = &mut self.quantization {
            let part = |pick: fn(&Quantization) -> Option<&Self>| {
                others
                    .iter()
                    .filter_map(|other| pick(other.quantization.as_deref()?).cloned())
                    .collect::<Vec<_>>()
            };
            quantization.scales = quantization.scales.clone().stacked(part(|q| Some(&q.scales)));
            quantization.biases =
                quantization.biases.take().map(|biases| biases.stacked(part(|q| q.biases.as_ref())));
        }
        self.shape.insert(0, others.len() + 1);
        self.stack = others.into_iter().map(|other| other.tensor).collect();
        self
    }

    /// The same tensor with its two innermost dimensions swapped. Only for weights that are not packed, before any selection.
    #[must_use]
    pub fn transposed(mut self) -> Self {
        let rank = self.shape.len();
        if rank >= 2 {
            self.shape.swap(rank - 1, rank - 2);
            self.transposed = !self.transposed;
        }
        self
    }

    /// The same tensor, reduced to some indices of one of its dimensions, which must not be the innermost of a packed weight.
    #[must_use]
    pub fn select(mut self, selection: Selection) -> Self {
        if let Some(size) = self.shape.get_mut(selection.axis) {
            *size = selection.count();
        }
        self.selection = Some(match self.selection {
            // Rows of consecutive rows count from the first of these.
            Some(outer) if outer.axis == selection.axis && outer.is_contiguous() => {
                Selection { start: outer.start.saturating_add(selection.start), ..selection }
            }
            _ => selection,
        });
        if let Some(quantization) = &mut self.quantization {
            quantization.scales = quantization.scales.clone().select(selection);
            quantization.biases = quantization.biases.take().map(|biases| biases.select(selection));
        }
        self
    }

    /// The same tensor, reduced to consecutive rows of it.
    #[must_use]
    pub fn rows(self, start: usize, rows: usize) -> Self {
        self.select(Selection::rows(start, rows))
    }

    /// The same values, read in another shape of as many; of a packed weight the innermost dimension must stay.
    #[must_use]
    pub fn reshaped(mut self, shape: impl Into<Vec<usize>>) -> Self {
        self.shape = shape.into();
        if let Some(quantization) = &mut self.quantization {
            let groups = |scales: &Self| scales.shape.last().copied().unwrap_or(1);
            let mut companion = self.shape.clone();
            if let Some(last) = companion.last_mut() {
                *last = groups(&quantization.scales);
            }
            quantization.scales = quantization.scales.clone().reshaped(companion.clone());
            quantization.biases = quantization.biases.take().map(|biases| biases.reshaped(companion));
        }
        self
    }

    /// Whether it is the bytes of one tensor, or consecutive ones of them.
    pub fn is_contiguous(&self) -> bool {
        let selected = |selection: &Selection| selection.axis == 0 && selection.is_contiguous();
        self.stack.is_empty() && !self.transposed && self.selection.as_ref().is_none_or(selected)
    }

    /// The shape in which [`Checkpoint::weight`](crate::Checkpoint::weight) gives it: of a quantized weight the last
    /// dimension counts words.
    pub fn stored_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let (Some(quantization), Some(columns)) = (&self.quantization, shape.last_mut()) {
            *columns = quantization.words(*columns);
        }
        shape
    }

    /// The type that its values have when they are not packed: of an affine quantization that of the scales, of others
    /// `BF16`, as in MLX.
    pub fn value_type(&self) -> ElementType {
        match &self.quantization {
            None => self.element,
            Some(quantization) if quantization.mode == QuantizationMode::Affine => {
                quantization.scales.element
            }
            Some(_) => ElementType::BF16,
        }
    }

    /// The weight's tensors: its own, then of a quantized weight the scales and biases.
    pub fn tensors(&self) -> impl Iterator<Item = &Self> {
        let companions = self
            .quantization
            .iter()
            .flat_map(|quantization| std::iter::once(&quantization.scales).chain(&quantization.biases));
        std::iter::once(self).chain(companions)
    }

    /// The number of values.
    pub fn elements(&self) -> usize {
        product(&self.shape)
    }

    /// The number of bytes of its own tensor as stored, without those of companions.
    pub fn byte_len(&self) -> usize {
        product(&self.stored_shape()).saturating_mul(self.element.bits()).div_ceil(8)
    }

    /// How its values are stored: an element type, or a quantization such as `affine 4-bit/64`.
    pub fn storage(&self) -> String {
        self.quantization.as_ref().map_or_else(|| self.element.to_string(), ToString::to_string)
    }
}

fn product(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// Prints as `name[rows] TYPE [sizes]`; of a quantized weight the type reads like `affine 4-bit/64`.
impl fmt::Display for WeightRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tensor)?;
        if let Some(last) = self.stack.last() {
            write!(f, " to {last}")?;
        }
        if self.transposed {
            f.write_str(" transposed")?;
        }
        if let Some(selection @ Selection { axis, start, run, stride, runs }) = self.selection {
            let end = selection.end();
            match (axis, selection.is_contiguous()) {
                (0, true) => write!(f, "[{start}..{end}]")?,
                (_, true) => write!(f, "[{start}..{end} of dimension {axis}]")?,
                (_, false) => {
                    write!(f, "[{runs} times {run}, {stride} apart, from {start} of dimension {axis}]")?
                }
            }
        }
        write!(f, " {} {:?}", self.storage(), self.shape)
    }
}
