//! Weights packed in groups of few bits, as MLX quantizes them in its affine mode.

use crate::builder::{Builder, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::module::{Attribute, DotDimensions};
use crate::types::{ElementType, TensorType};

/// A matrix `[N, K]` of unsigned integers of a few bits, with a scale and a bias for each group of consecutive inputs: its
/// value is `scale · q + bias`, in f32.
///
/// This is how MLX stores what it quantizes in its affine mode (`mx.quantize`): the packed values are little-endian, the
/// first in the lowest bits of a word.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedWeight<'f> {
    /// `[N, K · bits / 32]` u32: the packed values.
    pub words: Value<'f>,
    /// `[N, K / group_size]`, floats.
    pub scales: Value<'f>,
    /// `[N, K / group_size]`, floats.
    pub biases: Value<'f>,
    /// The bits of a value: 4 or 8.
    pub bits: usize,
    /// How many consecutive values of a row share a scale and a bias; a multiple of the values in a word.
    pub group_size: usize,
}

/// The sizes of a quantized weight that has been checked.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) bits: usize,
    pub(super) group_size: usize,
}

impl<'f> Builder<'f> {
    /// A linear layer over a packed weight: `x: [.., K]` times the transpose of `weight: [N, K]`, plus `bias: [N]`, as
    /// `out`: `[.., N]`.
    ///
    /// Makes the composite [`mlxcel.quantized_linear`](crate::composites::QUANTIZED_LINEAR) of `x`, words, scales, biases and
    /// perhaps the bias, with the attributes `bits` and `group_size`. Its decomposition unpacks the whole weight to f32,
    /// multiplies and sums in f32, adds the bias in f32 and rounds to `out` once.
    ///
    /// # Errors
    /// Operands that are not of floats, or words that are not of u32; bits other than 4 and 8; a group size that is no
    /// multiple of the values in a word; shapes that do not agree.
    pub fn quantized_linear(
        &mut self,
        x: Value<'f>,
        weight: QuantizedWeight<'f>,
        bias: Option<Value<'f>>,
        out: ElementType,
    ) -> Result<Value<'f>> {
        const OP: &str = "quantized_linear";
        let others: Vec<_> = std::iter::once(("x", x)).chain(bias.map(|bias| ("bias", bias))).collect();
        let packing = self.packing(OP, &weight, &others)?;
        let refuse = |kind, detail: &str| Err(self.refusal(OP, &weight, &others, kind, detail));
        let (x_type, bias_type) = (self.ty(x), bias.map(|bias| self.ty(bias)));
        let floats = x_type.element.is_float() && bias_type.is_none_or(|ty| ty.element.is_float());
        if !floats || !out.is_float() {
            let detail = format!("x, bias and the result ({out}) must be of floats");
            return refuse(ErrorKind::Element, &detail);
        }
        if x_type.shape.last() != Some(&packing.columns) {
            return refuse(ErrorKind::Shape, "x must be [.., K] for a weight of [N, K]");
        }
        if bias_type.is_some_and(|ty| ty.shape != [packing.rows]) {
            return refuse(ErrorKind::Shape, "bias must be [N] for a weight of [N, K]");
        }
        let operands: Vec<_> =
            [x, weight.words, weight.scales, weight.biases].into_iter().chain(bias).collect();
        let name = crate::composites::QUANTIZED_LINEAR;
        let results = self.composite(name, &operands, &packing.attributes(), |b, args| {
            let x = b.convert(args[0], ElementType::F32)?;
            let weight = packing.unpack(b, args[1], args[2], args[3])?;
            let dimensions = DotDimensions {
                lhs_contracting: vec![b.ty(x).rank() - 1],
                rhs_contracting: vec![1],
                ..DotDimensions::default()
            };
            let mut sum = b.dot_general(x, weight, dimensions, ElementType::F32)?;
            if let Some(&bias) = args.get(4) {
                let bias = b.convert(bias, ElementType::F32)?;
                let bias = b.broadcast_like(bias, sum)?;
                sum = b.add(sum, bias)?;
            }
            Ok(vec![b.convert(sum, out)?])
        })?;
        Ok(results[0])
    }

    /// Rows of a packed `table: [V, H]` by integer `ids` of any shape, in f32: `[..ids, H]`. An id beyond the table takes the
    /// nearest row.
    ///
    /// Makes the composite [`mlxcel.quantized_embedding`](crate::composites::QUANTIZED_EMBEDDING) of words, scales, biases and
    /// ids, with the attributes `bits` and `group_size`. Its decomposition takes the rows packed and unpacks those.
    ///
    /// # Errors
    /// A table without rows, or that [`quantized_linear`](Self::quantized_linear) would not take; ids that are not integers.
    pub fn quantized_embedding(&mut self, table: QuantizedWeight<'f>, ids: Value<'f>) -> Result<Value<'f>> {
        const OP: &str = "quantized_embedding";
        let packing = self.packing(OP, &table, &[("ids", ids)])?;
        let refuse = |kind, detail| Err(self.refusal(OP, &table, &[("ids", ids)], kind, detail));
        if !self.ty(ids).element.is_integer() {
            return refuse(ErrorKind::Element, "ids must be integers");
        }
        if packing.rows == 0 {
            return refuse(ErrorKind::Shape, "the table must have one row at least");
        }
        let operands = [table.words, table.scales, table.biases, ids];
        let name = crate::composites::QUANTIZED_EMBEDDING;
        let results = self.composite(name, &operands, &packing.attributes(), |b, args| {
            let mut shape = b.shape(args[3]);
            let count = shape.iter().product();
            let ids = b.reshape(args[3], &[count])?;
            let words = b.take(args[0], ids)?;
            let scales = b.take(args[1], ids)?;
            let biases = b.take(args[2], ids)?;
            let rows = Packing { rows: count, ..packing }.unpack(b, words, scales, biases)?;
            shape.push(packing.columns);
            Ok(vec![b.reshape(rows, &shape)?])
        })?;
        Ok(results[0])
    }

    /// The sizes of `weight`, where its parts agree; `others` are further operands of `op`, to be shown where they do not.
    fn packing(
        &self,
        op: &str,
        weight: &QuantizedWeight<'f>,
        others: &[(&str, Value<'f>)],
    ) -> Result<Packing> {
        let (lead, packing) = self.packing_behind(op, weight, others, 0)?;
        debug_assert!(lead.is_empty(), "no dimension was asked for");
        Ok(packing)
    }

    /// How many matrices `weight` has, stacked, and the sizes of one, where its parts agree.
    pub(super) fn packing_of_experts(
        &self,
        op: &str,
        weight: &QuantizedWeight<'f>,
        others: &[(&str, Value<'f>)],
    ) -> Result<(usize, Packing)> {
        let (lead, packing) = self.packing_behind(op, weight, others, 1)?;
        Ok((lead.iter().product(), packing))
    }

    /// The sizes of `weight` behind so many leading dimensions, and those.
    fn packing_behind(
        &self,
        op: &str,
        weight: &QuantizedWeight<'f>,
        others: &[(&str, Value<'f>)],
        leading: usize,
    ) -> Result<(&[usize], Packing)> {
        let refuse = |kind, detail: String| Err(self.refusal(op, weight, others, kind, &detail));
        let &QuantizedWeight { words, scales, biases, bits, group_size } = weight;
        let (words, scales, biases) = (self.ty(words), self.ty(scales), self.ty(biases));
        if words.element != ElementType::U32 || !scales.element.is_float() || !biases.element.is_float() {
            let detail = "words must be of ui32, scales and biases of floats".to_owned();
            return refuse(ErrorKind::Element, detail);
        }
        if ![4, 8].contains(&bits) {
            return refuse(ErrorKind::Attribute, format!("values must have 4 or 8 bits, not {bits}"));
        }
        let per_word = 32 / bits;
        if group_size == 0 || !group_size.is_multiple_of(per_word) {
            let detail =
                format!("the group size {group_size} is no multiple of the {per_word} values in a word");
            return refuse(ErrorKind::Attribute, detail);
        }
        let Some((lead, &[rows, row_words])) = words.shape.split_at_checked(leading) else {
            let of_experts = if leading == 0 { "" } else { "E, " };
            return refuse(ErrorKind::Shape, format!("words must be [{of_experts}N, K · bits / 32]"));
        };
        let columns = row_words.saturating_mul(per_word);
        if !columns.is_multiple_of(group_size) {
            let detail = format!("the {columns} columns are no multiple of the group size {group_size}");
            return refuse(ErrorKind::Shape, detail);
        }
        let grouped = [lead, &[rows, columns / group_size]].concat();
        if scales.shape != grouped || biases.shape != grouped {
            return refuse(ErrorKind::Shape, format!("scales and biases must be {grouped:?}"));
        }
        Ok((lead, Packing { rows, columns, bits, group_size }))
    }

    fn refusal(
        &self,
        op: &str,
        weight: &QuantizedWeight<'f>,
        others: &[(&str, Value<'f>)],
        kind: ErrorKind,
        detail: &str,
    ) -> Error {
        let parts = [("words", weight.words), ("scales", weight.scales), ("biases", weight.biases)];
        let shown =
            parts.iter().chain(others).map(|&(name, value)| (name.to_owned(), self.ty(value).clone()));
        Error::new(kind, op, detail).with_operands(shown.collect())
    }
}

impl Packing {
    pub(super) fn attributes(self) -> [(String, Attribute); 2] {
        [("bits", self.bits), ("group_size", self.group_size)]
            .map(|(name, value)| (name.to_owned(), Attribute::Int(value as i64)))
    }

    /// The values of packed rows: `[rows, columns]` f32.
    pub(super) fn unpack<'d>(
        self,
        b: &mut Builder<'d>,
        words: Value<'d>,
        scales: Value<'d>,
        biases: Value<'d>,
    ) -> Result<Value<'d>> {
        let Self { rows, columns, bits, group_size } = self;
        let per_word = 32 / bits;
        let spread = [rows, columns / per_word, per_word];
        let words = b.broadcast_in_dim(words, &spread, &[0, 1])?;
        let place = b.iota(TensorType::new(ElementType::U32, spread), 2)?;
        let width = b.splat(ElementType::U32, bits as f64, &spread)?;
        let shift = b.multiply(place, width)?;
        let shifted = b.shift_right_logical(words, shift)?;
        let mask = b.splat(ElementType::U32, f64::from((1u32 << bits) - 1), &spread)?;
        let values = b.and(shifted, mask)?;
        let values = b.convert(values, ElementType::F32)?;
        let grouped = [rows, columns / group_size, group_size];
        let values = b.reshape(values, &grouped)?;
        let mut of_group = |part| {
            let part = b.convert(part, ElementType::F32)?;
            b.expand(part, &grouped, &[2])
        };
        let (scales, biases) = (of_group(scales)?, of_group(biases)?);
        let scaled = b.multiply(values, scales)?;
        let values = b.add(scaled, biases)?;
        b.reshape(values, &[rows, columns])
    }
}
