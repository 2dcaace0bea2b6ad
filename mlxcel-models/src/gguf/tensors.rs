//! Tensors under the names that families know, as before `llama.cpp`'s conversion.
//!
//! Tensors that the converter stacked or renamed are used as stored. Those that it transformed, which are all
//! small, are transformed back here. Rows of query and key projections stay in the converter's order, and
//! the [rotary embedding](super::architecture::Architecture::rows) follows it.

use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::Gguf;
use super::architecture::{self, Change};
use super::block::{BlockType, TensorType};
use super::header::{OPERATION, Tensor};
use crate::element::ElementType;

/// Far above any published model.
const MOST_STACKED: usize = 1 << 12;
/// The most values of a vector that is computed, and so takes memory beside the file: as wide as a model may
/// be.
const MOST_COMPUTED: usize = 1 << 20;

/// A tensor for families.
pub(crate) struct Renamed {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    /// The sizes of the dimensions; of a packed tensor the last one counts bytes.
    pub(crate) shape: Vec<usize>,
    pub(crate) blocks: Option<BlockType>,
    pub(crate) source: Source,
}

/// Where a tensor's bytes are.
pub(crate) enum Source {
    /// In the file with this index.
    File(usize, Range<usize>),
    /// Among the computed tensors.
    Computed(Range<usize>),
}

impl Gguf {
    /// All tensors of the network, and the bytes of those that were computed.
    pub(crate) fn renamed(&self) -> Result<(Vec<Renamed>, Vec<u8>)> {
        let architecture = architecture::find(self)?;
        let layers = architecture::layers(self, architecture)?;
        let (mut tensors, mut computed) = (Vec::new(), Vec::new());
        for (number, part) in self.parts.iter().enumerate() {
            for tensor in &part.header.tensors {
                let at = |error: Error| {
                    error
                        .with_context("tensor", tensor.name.escape_debug())
                        .with_context("path", &part.location)
                };
                let target = architecture::target(architecture, layers, &tensor.name);
                let target = target.map_err(|()| {
                    let message = format!(
                        "the network has a tensor that '{}' is not known to have; it is a variant that is not supported",
                        architecture.name
                    );
                    at(Error::unsupported(OPERATION, message))
                })?;
                let Some((name, change)) = target else { continue };
                let change = match change {
                    Change::Keep if architecture.whole_norms && is_factors(&tensor.name) => {
                        Undo::Compute(|x| x - 1.0)
                    }
                    Change::Exponential => Undo::Compute(f32::ln),
                    Change::NegatedExponential => Undo::Compute(|x| (-x).ln()),
                    change => Undo::Shape(change),
                };
                let bytes = part.bytes.get(tensor.range.clone()).unwrap_or_default();
                let file = (number, tensor.range.clone());
                match change {
                    Undo::Shape(Change::Each) => tensors.extend(each(&name, tensor, file).map_err(at)?),
                    Undo::Shape(change) => tensors.push(whole(name, change, tensor, file).map_err(at)?),
                    Undo::Compute(function) => {
                        let float = tensor.float(&part.location)?;
                        let count = bytes.len() / float.bytes();
                        if count > MOST_COMPUTED {
                            let message = format!(
                                "{count} values are more than {MOST_COMPUTED}, and no vector of a network"
                            );
                            return Err(at(Error::new(ErrorKind::Corrupt, OPERATION, message)));
                        }
                        let values = float.values(bytes).into_iter().map(function);
                        tensors.push(compute(name, without_ones(&tensor.shape), values, &mut computed));
                    }
                }
            }
        }
        for (name, values) in architecture::vectors(self, architecture)? {
            tensors.push(compute(name, vec![values.len()], values.into_iter(), &mut computed));
        }
        Ok((tensors, computed))
    }
}

/// How a conversion is undone.
enum Undo {
    Shape(Change),
    Compute(fn(f32) -> f32),
}

/// A tensor of these values, which are added to the computed bytes.
fn compute(
    name: String,
    shape: Vec<usize>,
    values: impl Iterator<Item = f32>,
    computed: &mut Vec<u8>,
) -> Renamed {
    let start = computed.len();
    computed.extend(values.flat_map(f32::to_le_bytes));
    let source = Source::Computed(start..computed.len());
    Renamed { name, element: ElementType::F32, shape, blocks: None, source }
}

/// Sizes without those of one, unless there is no other.
fn without_ones(shape: &[usize]) -> Vec<usize> {
    let sizes: Vec<_> = shape.iter().copied().filter(|size| *size != 1).collect();
    if sizes.is_empty() { vec![1] } else { sizes }
}

/// Whether a tensor is the factors of a norm.
fn is_factors(name: &str) -> bool {
    name.ends_with("_norm.weight")
}

/// A tensor as it lies in the file, in the shape that it had.
fn whole(
    name: String,
    change: Change,
    tensor: &Tensor,
    (file, range): (usize, Range<usize>),
) -> Result<Renamed> {
    let mut shape = tensor.shape.clone();
    let values = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    match change {
        Change::Row => shape = vec![1, values.unwrap_or_default()],
        Change::Ones => shape = without_ones(&shape),
        Change::Flat => shape = vec![values.unwrap_or_default()],
        Change::Taps => {
            let taps = shape.last().copied().unwrap_or_default();
            shape = vec![values.unwrap_or_default().checked_div(taps).unwrap_or_default(), 1, taps];
        }
        Change::TapsLast => shape.push(1),
        _ => {}
    }
    let (element, blocks) = match tensor.ty {
        TensorType::Plain(element) => (element, None),
        TensorType::Blocks(block) if change == Change::Keep => {
            if let Some(columns) = shape.last_mut() {
                *columns = *columns / block.values() * block.bytes();
            }
            (ElementType::U8, Some(block))
        }
        TensorType::Blocks(block) => {
            let message = format!("the tensor is packed as {}, which is not supported here", block.name());
            return Err(Error::unsupported(OPERATION, message));
        }
    };
    Ok(Renamed { name, element, shape, blocks, source: Source::File(file, range) })
}

/// The tensors that were stacked to one.
fn each(name: &str, tensor: &Tensor, (file, range): (usize, Range<usize>)) -> Result<Vec<Renamed>> {
    let (&[count @ ..=MOST_STACKED, _, ..], stack) =
        (&tensor.shape[..], whole(name.to_owned(), Change::Keep, tensor, (file, range.clone()))?)
    else {
        let message = "the tensor should be a stack of some";
        return Err(Error::new(ErrorKind::Corrupt, OPERATION, message));
    };
    let size = (range.end - range.start) / count.max(1);
    let of_number = |number: usize| Renamed {
        name: name.replace('#', &number.to_string()),
        element: stack.element,
        shape: stack.shape.get(1..).unwrap_or_default().to_vec(),
        blocks: stack.blocks,
        source: Source::File(file, range.start + number * size..range.start + (number + 1) * size),
    };
    // One without bytes could be there any number of times.
    Ok(if size == 0 { Vec::new() } else { (0..count).map(of_number).collect() })
}
