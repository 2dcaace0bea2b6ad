//! The header of a safetensors file, validated before any offset in it is used.
//!
//! The format: the header's length in eight little-endian bytes; the header as JSON, with type, shape and
//! offsets of each tensor; then the tensors' bytes without gaps. `serde_json` parses the JSON. The other
//! checks are here, with overflow-free arithmetic and errors that name the tensor. Tests compare the verdicts
//! with those of the reference crate.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::element::ElementType;

/// The largest header that the format allows.
const LARGEST_HEADER: u64 = 100_000_000;

/// The content of a weight file in a checkpoint cloned without Git LFS.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

const OPERATION: &str = "read safetensors header";

/// A tensor as a header describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    /// Where its bytes are in the file; within the file, and exactly as many as shape and type need.
    pub(crate) range: Range<usize>,
}

/// Reads and validates the header of `file`, which errors call `location`; the entries come in file order.
pub(crate) fn read_header(location: &str, file: &[u8]) -> Result<Vec<Entry>> {
    let corrupt =
        |message: String| Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", location);
    if file.is_empty() {
        return Err(corrupt("the file is empty; download it again".to_owned()));
    }
    if file.starts_with(LFS_POINTER) {
        return Err(corrupt("this is a Git LFS pointer, not the weights; run `git lfs pull`".to_owned()));
    }
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(corrupt(format!("the file is truncated: {} bytes hold no header", file.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > LARGEST_HEADER {
        return Err(corrupt(format!(
            "the header claims {length} bytes, more than the format allows; this is not a safetensors file"
        )));
    }
    // At most LARGEST_HEADER, so it fits.
    let length = length as usize;
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(corrupt(format!(
            "the file is truncated: the header needs {length} bytes and {} follow; download it again",
            rest.len()
        )));
    };
    let header: Header = serde_json::from_slice(header)
        .map_err(|error| corrupt("the header violates the format".to_owned()).with_source(error))?;

    let mut tensors = header.tensors;
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let mut names = HashSet::with_capacity(tensors.len());
    let mut end_of_previous = 0;
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let at = |message: String| corrupt(message).with_context("tensor", name.escape_debug());
        let (start, end) = tensor.data_offsets;
        let Some(element) = ElementType::from_name(&tensor.dtype) else {
            return Err(Error::unsupported(
                OPERATION,
                format!("the element type '{}' is not known", tensor.dtype.escape_debug()),
            )
            .with_context("tensor", name.escape_debug())
            .with_context("path", location));
        };
        let elements = tensor.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let Some(bytes) = elements.and_then(|elements| element.byte_len(elements)) else {
            return Err(at(format!("{:?} elements of {element} are no possible size", tensor.shape)));
        };
        if end < start || end - start != bytes {
            return Err(at(format!(
                "{:?} elements of {element} need {bytes} bytes; its offsets are {start} to {end}",
                tensor.shape
            )));
        }
        if !names.insert(name.clone()) {
            return Err(at("the header describes the tensor twice".to_owned()));
        }
        if start != end_of_previous {
            let fault = if start < end_of_previous {
                "overlaps the one before it"
            } else {
                "leaves a gap behind the one before it"
            };
            return Err(at(format!(
                "the tensor begins at offset {start} and {fault}, which ends at {end_of_previous}"
            )));
        }
        if end > data.len() {
            return Err(at(format!(
                "the file is truncated: the tensor ends at offset {end} and {} bytes of data follow the header; \
                 download it again",
                data.len()
            )));
        }
        end_of_previous = end;
        let base = 8 + length;
        entries.push(Entry { name, element, shape: tensor.shape, range: base + start..base + end });
    }
    if end_of_previous != data.len() {
        return Err(corrupt(format!(
            "the tensors end at offset {end_of_previous} and {} bytes of data follow the header; download it again",
            data.len()
        )));
    }
    Ok(entries)
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

struct Header {
    tensors: Vec<(String, Tensor)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a tensor under each name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        // Not used here, but an error if it violates the format.
                        map.next_value::<Option<HashMap<String, String>>>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Header { tensors })
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

#[cfg(test)]
mod tests;
