//! What becomes of weights, and the files that they are written to.

use std::collections::BTreeMap;
use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::read::{Float, Scratch, WeightRows};
use mlxcel_models::{AdapterChanges, Checkpoint, ElementType, ModuleChange};
use serde_json::json;

use super::OPERATION;
use crate::codec::Codec;
use crate::names::module_of;

/// Tensors begin at a multiple of this in their file, as far as their sizes are multiples of it.
const ALIGNMENT: usize = 64;

/// What becomes of one weight.
pub(crate) enum Content<'a> {
    /// Copied as stored.
    Stored(&'a [u8]),
    /// Written as values, with a constant added.
    Dense { rows: Rows<'a>, float: Float, added: f32 },
    /// Packed: codes, scales and possibly biases.
    Packed { rows: Rows<'a>, codec: Codec },
}

/// The rows of a weight, and how an adapter changes them.
pub(crate) struct Rows<'a> {
    pub(crate) stored: WeightRows,
    pub(crate) change: Option<&'a ModuleChange>,
}

impl Rows<'_> {
    /// Reads consecutive rows, as they are to be written.
    pub(crate) fn read(
        &self,
        checkpoint: &Checkpoint,
        rows: Range<usize>,
        scratch: &mut Scratch,
        values: &mut [f32],
    ) -> Result<()> {
        self.stored.read(checkpoint, rows.clone(), scratch, values)?;
        if let Some(change) = self.change {
            let of_rows = values.chunks_exact_mut(self.stored.columns().max(1));
            rows.zip(of_rows).for_each(|(row, values)| change.apply(row, values));
        }
        Ok(())
    }
}

/// What a plan is for.
#[derive(Clone, Copy)]
pub(crate) struct Purpose<'a> {
    /// Whether matrices are packed; otherwise packed ones are unpacked.
    pub(crate) packs: bool,
    pub(crate) adapter: Option<&'a AdapterChanges>,
}

/// A weight and the tensors that it becomes.
pub(crate) struct Item<'a> {
    /// The module that is packed, or the tensor's name.
    pub(crate) name: String,
    pub(crate) content: Content<'a>,
    pub(crate) entries: Vec<Entry>,
    /// Bytes of the weight before.
    pub(crate) bytes_before: u64,
}

/// A tensor as a header describes it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: u64,
    /// From the first tensor of the file on.
    pub(crate) offset: u64,
}

/// A file of weights.
pub(crate) struct File<'a> {
    pub(crate) name: String,
    pub(crate) items: Vec<Item<'a>>,
    /// Bytes of all its tensors.
    pub(crate) bytes: u64,
}

impl Item<'_> {
    /// The module, if an adapter changes it.
    pub(crate) fn changed_module(&self) -> Option<&str> {
        match &self.content {
            Content::Dense { rows: Rows { change: Some(_), .. }, .. }
            | Content::Packed { rows: Rows { change: Some(_), .. }, .. } => {
                Some(module_of(&self.name).unwrap_or(&self.name))
            }
            Content::Stored(_) | Content::Dense { .. } | Content::Packed { .. } => None,
        }
    }
}

/// Items in files of up to `largest` bytes, or of one item that is larger.
pub(super) fn files(items: Vec<Item<'_>>, largest: u64) -> Vec<File<'_>> {
    let mut files: Vec<File<'_>> = Vec::new();
    for item in items {
        let bytes = item.entries.iter().map(|entry| entry.bytes).sum();
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
        file.arrange();
    }
    files
}

impl File<'_> {
    /// Gives each tensor its place: those of wide elements first, so that all are aligned.
    fn arrange(&mut self) {
        let mut entries: Vec<_> = self.items.iter_mut().flat_map(|item| &mut item.entries).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.element.bits()));
        let mut at = 0;
        for entry in entries {
            entry.offset = at;
            at += entry.bytes;
        }
    }

    /// What stands before the tensors, padded so that they begin aligned.
    pub(crate) fn header(&self) -> Result<Vec<u8>> {
        let entries = self.items.iter().flat_map(|item| &item.entries);
        let mut header = BTreeMap::new();
        header.insert("__metadata__", json!({ "format": "mlx" }));
        for Entry { name, element, shape, bytes, offset } in entries {
            let offsets = [*offset, offset + bytes];
            header.insert(name, json!({ "dtype": element.name(), "shape": shape, "data_offsets": offsets }));
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
    fn shards_are_split_between_tensors() {
        let bytes = vec![0; 10];
        let item = |name: &str, element| Item {
            name: name.to_owned(),
            content: Content::Stored(&bytes),
            entries: vec![Entry { name: name.to_owned(), element, shape: vec![10], bytes: 10, offset: 0 }],
            bytes_before: 10,
        };
        let cut = |largest| {
            let items =
                vec![item("a", ElementType::U8), item("b", ElementType::F16), item("c", ElementType::U8)];
            files(items, largest)
        };
        let sizes = |largest| -> Vec<(String, u64)> {
            cut(largest).into_iter().map(|file| (file.name, file.bytes)).collect()
        };
        assert_eq!(sizes(30), [("model.safetensors".to_owned(), 30)]);
        let shard = |index| format!("model-{index:05}-of-00002.safetensors");
        assert_eq!(sizes(29), [(shard(1), 20), (shard(2), 10)]);
        assert_eq!(sizes(1).len(), 3, "one that is too large has a file to itself");
        let offsets: Vec<_> = cut(30)[0].items.iter().map(|item| item.entries[0].offset).collect();
        assert_eq!(offsets, [10, 0, 20], "wide elements come first");
    }
}
