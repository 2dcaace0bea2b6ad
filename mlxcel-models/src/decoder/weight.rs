//! References from roles in a network to tensors of a checkpoint.

use std::fmt;

use crate::element::ElementType;
use crate::quantization::{Quantization, QuantizationMode};

/// A weight: a tensor of the checkpoint, or some rows of one.
///
/// Where it is quantized, the tensor holds packed words, and [`quantization`](Self::quantization) names the tensors that
/// complete it. They are weights of their own for [`Checkpoint::weight`](crate::Checkpoint::weight).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WeightRef {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// The type of the tensor's elements: of a quantized weight that of the packed words, `U32`.
    pub element: ElementType,
    /// The shape of this weight in values, packed or not; of a slice, that of the slice.
    pub shape: Vec<usize>,
    /// The rows that are meant where the tensor holds several weights fused into one; `None` for all of it.
    pub slice: Option<RowSlice>,
    /// How the values are packed; `None` where they are stored as they are.
    pub quantization: Option<Box<Quantization>>,
}

/// Consecutive rows, that is indices of the outermost dimension, of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowSlice {
    /// The first row.
    pub start: usize,
    /// How many rows.
    pub rows: usize,
}

impl WeightRef {
    /// A reference to a whole tensor.
    pub fn new(tensor: impl Into<String>, element: ElementType, shape: impl Into<Vec<usize>>) -> Self {
        Self { tensor: tensor.into(), element, shape: shape.into(), slice: None, quantization: None }
    }

    /// The same weight, packed as `quantization` says.
    #[must_use]
    pub fn with_quantization(mut self, quantization: Quantization) -> Self {
        self.quantization = Some(Box::new(quantization));
        self
    }

    /// The same tensor, reduced to consecutive rows of it.
    #[must_use]
    pub fn rows(mut self, slice: RowSlice) -> Self {
        if let Some(rows) = self.shape.first_mut() {
            *rows = slice.rows;
        }
        // Rows of rows count from the first of the slice that is there already.
        let start = slice.start.saturating_add(self.slice.map_or(0, |slice| slice.start));
        self.slice = Some(RowSlice { start, rows: slice.rows });
        if let Some(quantization) = &mut self.quantization {
            quantization.scales = quantization.scales.clone().rows(slice);
            quantization.biases = quantization.biases.take().map(|biases| biases.rows(slice));
        }
        self
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
    pub(super) fn storage(&self) -> String {
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
        if let Some(RowSlice { start, rows }) = self.slice {
            write!(f, "[{start}..{}]", start.saturating_add(rows))?;
        }
        write!(f, " {} {:?}", self.storage(), self.shape)
    }
}
