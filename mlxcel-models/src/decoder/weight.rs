//! References to weights of a checkpoint.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Packed;
use crate::element::ElementType;
use crate::packing::{Derived, Packing, Part};

/// A weight as the network uses it: a tensor of the checkpoint, or a view of one or several tensors.
///
/// The view is computed in this order: the tensors of [`stack`](Self::stack) follow the first one along a new
/// outermost dimension; the two innermost dimensions are swapped if [`transposed`](Self::transposed); the
/// [`selection`](Self::selection) is taken; and the result is reshaped to [`shape`](Self::shape), row-major.
/// The tensors of [`joined`](Self::joined) follow the first one along the outermost dimension instead, and
/// nothing else is done to them.
///
/// For a [`packed`](Self::packed) weight this describes the codes. Its other parts are weights of their own
/// for [`Checkpoint::weight`](crate::Checkpoint::weight). A [`derived`](Self::derived) weight is computed
/// from the stored tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightRef {
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// The element type; `U32` for the codes of a packed weight.
    #[serde(rename = "element_type")]
    pub element: ElementType,
    /// The shape in values, whether packed or not.
    pub shape: Vec<usize>,
    /// Additional tensors of the same type and shape, stacked along a new outermost dimension.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// Additional tensors of the same type whose rows follow those of the first one, as many as each has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<String>,
    /// Whether the two innermost dimensions are stored in swapped order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
    /// The part of a tensor that holds several fused weights; `None` for the whole tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// The packing and the parts in addition to the codes; `None` if each value is an element.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<Box<Packed>>,
    /// How the elements are computed from the stored tensor; `None` if they are stored as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derived: Option<Box<Derived>>,
}

/// Indices of one dimension: `runs` runs of `run` consecutive indices, `stride` apart, beginning at `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Selection {
    /// The dimension.
    pub axis: usize,
    /// The first index.
    pub start: usize,
    /// The length of a run.
    pub run: usize,
    /// The distance between the beginnings of consecutive runs.
    pub stride: usize,
    /// The number of runs.
    pub runs: usize,
}

impl Selection {
    /// Consecutive indices of the outermost dimension.
    pub fn rows(start: usize, rows: usize) -> Self {
        Self { axis: 0, start, run: rows, stride: rows, runs: 1 }
    }

    /// The number of selected indices.
    pub fn count(&self) -> usize {
        self.run.saturating_mul(self.runs)
    }

    /// The last index plus one.
    pub fn end(&self) -> usize {
        self.runs
            .saturating_sub(1)
            .saturating_mul(self.stride)
            .saturating_add(self.run)
            .saturating_add(self.start)
    }

    /// The selected indices, in order.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { axis: _, start, run, stride, runs } = *self;
        (0..runs).flat_map(move |index| (0..run).map(move |offset| start + index * stride + offset))
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
            joined: Vec::new(),
            transposed: false,
            selection: None,
            packed: None,
            derived: None,
        }
    }

    /// The same weight with elements that are codes of a packing.
    #[must_use]
    pub fn with_packing(mut self, packed: Packed) -> Self {
        self.packed = Some(Box::new(packed));
        self
    }

    /// The same weight, computed from the tensor as `derived` describes.
    #[must_use]
    pub fn with_derivation(mut self, derived: Derived) -> Self {
        self.derived = Some(Box::new(derived));
        self
    }

    /// Stacks `self` and `others`, which have the same type and shape, along a new outermost dimension.
    #[must_use]
    pub fn stacked(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        let others: Vec<_> = others.into_iter().collect();
        if let Some(packed) = &mut self.packed {
            for (index, part) in packed.parts.iter_mut().enumerate() {
                let of_others =
                    others.iter().filter_map(|other| other.packed.as_ref()?.parts.get(index).cloned());
                *part = part.clone().stacked(of_others.collect::<Vec<_>>());
            }
        }
        self.shape.insert(0, others.len() + 1);
        self.stack = others.into_iter().map(|other| other.tensor).collect();
        self
    }

    /// Appends the rows of `others`, whole tensors of the same type and of rows of the same size. Only for a
    /// whole tensor that is not packed.
    #[must_use]
    pub fn followed_by(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        for other in others {
            if let (Some(rows), Some(more)) = (self.shape.first_mut(), other.shape.first()) {
                *rows = rows.saturating_add(*more);
            }
            self.joined.push(other.tensor);
        }
        self
    }

    /// The same weight where the names of all tensors begin with `prefix`.
    #[must_use]
    pub(crate) fn under(mut self, prefix: &str) -> Self {
        let names = std::iter::once(&mut self.tensor).chain(&mut self.stack).chain(&mut self.joined);
        names.for_each(|name| name.insert_str(0, prefix));
        if let Some(packed) = &mut self.packed {
            packed.parts = packed.parts.drain(..).map(|part| part.under(prefix)).collect();
        }
        self
    }

    /// The names of the tensors that its elements are read from, without the other parts of a packed weight.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.tensor).chain(&self.stack).chain(&self.joined).map(String::as_str)
    }

    /// The same tensor with the two innermost dimensions swapped; of a matrix that was
    /// [reshaped](Self::reshaped) to several below each other, those of each. Only for unpacked weights, before
    /// any selection.
    #[must_use]
    pub fn transposed(mut self) -> Self {
        let rank = self.shape.len();
        if rank >= 2 {
            self.shape.swap(rank - 1, rank - 2);
            self.transposed = !self.transposed;
        }
        self
    }

    /// Selects indices of one dimension, which must not be the innermost one of a packed weight.
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
        if let Some(packed) = &mut self.packed {
            packed.with_rows(|part| part.select(selection));
        }
        self
    }

    /// Selects consecutive rows.
    #[must_use]
    pub fn rows(self, start: usize, rows: usize) -> Self {
        self.select(Selection::rows(start, rows))
    }

    /// The same values in another shape. The innermost dimension of a packed weight must not change.
    #[must_use]
    pub fn reshaped(mut self, shape: impl Into<Vec<usize>>) -> Self {
        self.shape = shape.into();
        if let (Some(packed), Some((_, leading))) = (&mut self.packed, self.shape.split_last()) {
            packed.with_rows(|part| {
                let width = part.shape.last().copied().unwrap_or(1);
                part.reshaped([leading, &[width]].concat())
            });
        }
        self
    }

    /// Whether its bytes are contiguous in one tensor.
    pub fn is_contiguous(&self) -> bool {
        let selected = |selection: &Selection| selection.axis == 0 && selection.is_contiguous();
        let is_one = self.stack.is_empty() && self.joined.is_empty();
        let as_stored = self.derived.is_none() && is_one && !self.transposed;
        as_stored && self.selection.as_ref().is_none_or(selected)
    }

    /// The shape in which [`Checkpoint::weight`](crate::Checkpoint::weight) returns it; the last dimension of
    /// a packed weight counts words.
    pub fn stored_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let (Some(packed), Some(columns)) = (&self.packed, shape.last_mut()) {
            *columns = packed.packing.width(Part::Codes, *columns);
        }
        shape
    }

    /// The reference to its own elements alone: of a packed weight to the words of its codes, in their shape.
    #[must_use]
    pub fn elements_only(&self) -> Self {
        Self { shape: self.stored_shape(), packed: None, ..self.clone() }
    }

    /// The packing; `None` if each value is an element.
    pub fn packing(&self) -> Option<Packing> {
        self.packed.as_ref().map(|packed| packed.packing)
    }

    /// The type of its values when unpacked; see [`Packing::value_type`].
    pub fn value_type(&self) -> ElementType {
        self.packing().map_or(self.element, |packing| packing.value_type())
    }

    /// Its tensors: its own, then the other parts of a packed weight.
    pub fn tensors(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.packed.iter().flat_map(|packed| &packed.parts))
    }

    /// The number of values.
    pub fn elements(&self) -> usize {
        product(&self.shape)
    }

    /// The bytes of its elements, without the other parts of a packed weight.
    pub fn byte_len(&self) -> usize {
        product(&self.stored_shape()).saturating_mul(self.element.bits()).div_ceil(8)
    }

    /// The storage format: an element type, or a packing such as `u4/64 bf16 + bf16`.
    pub fn storage(&self) -> String {
        self.packing().map_or_else(|| self.element.to_string(), |packing| packing.to_string())
    }
}

fn product(shape: &[usize]) -> usize {
    shape.iter().fold(1, |product, &size| product.saturating_mul(size))
}

/// Prints as `name[rows] TYPE [sizes]`; of a packed weight the type reads like `u4/64 bf16 + bf16`.
impl fmt::Display for WeightRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tensor)?;
        if let Some(last) = self.stack.last().or(self.joined.last()) {
            write!(f, " to {last}")?;
        }
        // Several parts may be read out of one tensor.
        match self.derived.as_ref().map(|derived| derived.part) {
            None | Some(Part::Codes) => {}
            Some(part) => write!(f, " {}", part.name())?,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::packing::{Arrangement, BlockType, Compressed, Gptq};

    #[test]
    fn references_are_written_with_names_that_do_not_change() {
        let forms = [
            (Arrangement::Bytes, json!("bytes")),
            (Arrangement::Gguf(BlockType::Q4K), json!({"gguf": "Q4_K"})),
            (
                Arrangement::Grid { rows: 2, groups: 1, transposed: true },
                json!({"grid": {"rows": 2, "groups": 1, "transposed": true}}),
            ),
            (
                Arrangement::Gptq(Gptq { bits: 4, groups: 2, less_one: true, ordered: false }),
                json!({"gptq": {"bits": 4, "groups": 2, "less_one": true, "ordered": false}}),
            ),
            (Arrangement::Awq { groups: 1 }, json!({"awq": {"groups": 1}})),
            (
                Arrangement::Compressed(Compressed { bits: 4, rows: 1, groups: 2, ordered: true }),
                json!({"compressed": {"bits": 4, "rows": 1, "groups": 2, "ordered": true}}),
            ),
        ];
        for (arrangement, written) in forms {
            let derived = Derived { arrangement, part: Part::ScaleFactors, shape: vec![4, 1] };
            let codes =
                WeightRef::new("a.weight", ElementType::F16, [4, 1]).with_derivation(derived).rows(1, 2);
            let expected = json!({
                "tensor": "a.weight",
                "element_type": "F16",
                "shape": [2, 1],
                "selection": {"axis": 0, "start": 1, "run": 2, "stride": 2, "runs": 1},
                "derived": {"arrangement": written, "part": "scale factors", "shape": [4, 1]},
            });
            assert_eq!(serde_json::to_value(&codes).unwrap(), expected);
            assert_eq!(serde_json::from_value::<WeightRef>(expected).unwrap(), codes);
            let whole = codes.with_packing(Packed::new(Packing::MXFP4, []));
            let text = serde_json::to_string(&whole).unwrap();
            assert!(text.contains(r#""packing":"e2m1/32 e8m0""#), "{text}");
            assert_eq!(serde_json::from_str::<WeightRef>(&text).unwrap(), whole);
        }
    }
}
