//! What goes where: which tensors are packed, and in which files they stand.

use std::collections::HashSet;

use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use super::affine::Affine;
use super::{OPERATION, QuantizeOptions};
use crate::checkpoint::{Checkpoint, TensorView};
use crate::decoder::WeightRef;
use crate::element::ElementType;

pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The most bytes of a file, as mlx-lm has it: larger checkpoints are sharded, between tensors.
const LARGEST_FILE: u64 = 5 << 30;

/// Tensors begin at a multiple of this in their file, as far as their sizes are multiples of it.
const ALIGNMENT: usize = 64;

/// What becomes of one tensor.
pub(super) enum Item<'a> {
    /// It is copied.
    Kept { name: &'a str, view: TensorView<'a> },
    /// It becomes words, scales and biases, in this order.
    Packed { module: String, view: TensorView<'a>, affine: Affine },
}

/// A file of weights.
pub(super) struct File<'a> {
    pub(super) name: String,
    pub(super) items: Vec<Item<'a>>,
    /// Bytes of all its tensors.
    pub(super) bytes: u64,
}

/// All files of weights.
pub(super) struct Plan<'a> {
    pub(super) files: Vec<File<'a>>,
    pub(super) bytes_before: u64,
}

/// A tensor as a header describes it.
struct Entry {
    name: String,
    element: ElementType,
    shape: Vec<usize>,
    bytes: usize,
}

impl<'a> Plan<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, options: &QuantizeOptions) -> Result<Self> {
        let decoder = checkpoint.decoder()?;
        let mut packed = Vec::new();
        let mut seen = HashSet::new();
        // Those that are multiplied with, and the embedding, as far as their tensors are matrices.
        let products = decoder.products();
        for name in products.iter().flat_map(|&id| matrices(decoder.weight(id))) {
            let view = checkpoint.tensor(name)?;
            // A row that groups do not fit into stays as it is; so do names that no scales could be found by.
            let fits = view.shape.last().is_some_and(|columns| columns.is_multiple_of(options.group_size));
            let module = name.strip_suffix(".weight");
            let affine = Affine::new(options.bits, options.group_size, view.element_type);
            let (true, Some(module), Some(affine)) = (fits && !view.bytes.is_empty(), module, affine) else {
                continue;
            };
            // Fused weights are one tensor.
            if seen.insert(name.to_owned()) {
                packed.push(Item::Packed { module: module.to_owned(), view, affine });
            }
        }
        if packed.is_empty() {
            let message = "there is no matrix into whose rows groups of this size fit";
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                .with_context("group_size", options.group_size));
        }
        let mut kept: Vec<_> = checkpoint.tensors().filter(|(name, _)| !seen.contains(*name)).collect();
        // Packed modules come first, their sizes being multiples of four bytes, then wide elements: so all are aligned.
        kept.sort_by_key(|(_, view)| std::cmp::Reverse(view.element_type.bits()));
        let kept = kept.into_iter().map(|(name, view)| Item::Kept { name, view });
        let items: Vec<_> = packed.into_iter().chain(kept).collect();
        let bytes_before = items.iter().map(|item| item.view().bytes.len() as u64).sum();
        Ok(Self { files: files(items, LARGEST_FILE), bytes_before })
    }

    /// The index of shards, where there are any.
    pub(super) fn index(&self) -> Option<Value> {
        if self.files.len() == 1 {
            return None;
        }
        let total: u64 = self.files.iter().map(|file| file.bytes).sum();
        let mut places = Map::new();
        for file in &self.files {
            for entry in file.items.iter().flat_map(Item::entries) {
                places.insert(entry.name, file.name.clone().into());
            }
        }
        Some(json!({ "metadata": { "total_size": total }, "weight_map": places }))
    }

    pub(super) fn modules(&self) -> usize {
        self.items().filter(|item| matches!(item, Item::Packed { .. })).count()
    }

    pub(super) fn kept(&self) -> usize {
        self.items().filter(|item| matches!(item, Item::Kept { .. })).count()
    }

    fn items(&self) -> impl Iterator<Item = &Item<'a>> {
        self.files.iter().flat_map(|file| &file.items)
    }
}

/// The tensors of a weight that are matrices in their own order, of which it has whole rows: one, or those of experts that are
/// stored apart.
fn matrices(weight: &WeightRef) -> impl Iterator<Item = &str> {
    let whole_rows = weight.selection.is_none_or(|selection| selection.axis == 0);
    let one = weight.shape.len() == 2 && weight.stack.is_empty() && !weight.transposed && whole_rows;
    let apart = weight.shape.len() == 3
        && !weight.stack.is_empty()
        && !weight.transposed
        && weight.selection.is_none();
    let all = std::iter::once(&weight.tensor).chain(&weight.stack).map(String::as_str);
    all.filter(move |_| one || apart)
}

/// Items in files of up to `largest` bytes, or of one item that is larger.
fn files(items: Vec<Item<'_>>, largest: u64) -> Vec<File<'_>> {
    let mut files: Vec<File<'_>> = Vec::new();
    for item in items {
        let bytes = item.entries().iter().map(|entry| entry.bytes as u64).sum();
        match files.last_mut() {
            Some(file) if file.bytes + bytes <= largest => {
                file.items.push(item);
                file.bytes += bytes;
            }
            _ => files.push(File { name: String::new(), items: vec![item], bytes }),
        }
    }
    let count = files.len();
    for (index, file) in files.iter_mut().enumerate() {
        file.name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
    }
    files
}

impl<'a> Item<'a> {
    fn view(&self) -> &TensorView<'a> {
        match self {
            Self::Kept { view, .. } | Self::Packed { view, .. } => view,
        }
    }

    /// The tensors that it becomes, in the order in which they are written.
    fn entries(&self) -> Vec<Entry> {
        match self {
            Self::Kept { name, view } => vec![Entry {
                name: (*name).to_owned(),
                element: view.element_type,
                shape: view.shape.clone(),
                bytes: view.bytes.len(),
            }],
            Self::Packed { module, view, affine } => {
                let rows = view.shape.first().copied().unwrap_or_default().max(1);
                let entry = |role, element: ElementType, bytes: usize| Entry {
                    name: format!("{module}.{role}"),
                    element,
                    shape: vec![rows, bytes * 8 / element.bits() / rows],
                    bytes,
                };
                let scales = affine.scale_bytes(view.bytes.len());
                vec![
                    entry("weight", ElementType::U32, affine.word_bytes(view.bytes.len())),
                    entry("scales", view.element_type, scales),
                    entry("biases", view.element_type, scales),
                ]
            }
        }
    }
}

impl File<'_> {
    /// What stands before the tensors, padded so that they begin aligned.
    pub(super) fn header(&self) -> Result<Vec<u8>> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
        let mut at = 0;
        for entry in self.items.iter().flat_map(Item::entries) {
            let Entry { name, element, shape, bytes } = entry;
            let offsets = [at, at + bytes];
            let value = json!({ "dtype": element.name(), "shape": shape, "data_offsets": offsets });
            header.insert(name, value);
            at += bytes;
        }
        let mut text = serde_json::to_vec(&header).map_err(|error| {
            Error::new(ErrorKind::Internal, OPERATION, "the header cannot be written").with_source(error)
        })?;
        text.resize((8 + text.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
        let length = (text.len() as u64).to_le_bytes();
        Ok([length.as_slice(), &text].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_between_tensors() {
        let bytes = vec![0; 10];
        let item = || Item::Kept {
            name: "x",
            view: TensorView { element_type: ElementType::U8, shape: vec![10], bytes: &bytes },
        };
        let sizes = |largest| -> Vec<(String, u64)> {
            let items = vec![item(), item(), item()];
            files(items, largest).into_iter().map(|file| (file.name, file.bytes)).collect()
        };
        assert_eq!(sizes(30), [("model.safetensors".to_owned(), 30)]);
        let shard = |index| format!("model-{index:05}-of-00002.safetensors");
        assert_eq!(sizes(29), [(shard(1), 20), (shard(2), 10)]);
        assert_eq!(sizes(1).len(), 3, "one that is too large has a file to itself");
    }
}
