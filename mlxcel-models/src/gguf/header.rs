//! The header of a GGUF file, validated before any offset in it is used.
//!
//! The format: a magic number and a version; the numbers of tensors and of metadata entries; the entries,
//! each a key and a value; name, dimensions, type and offset of each tensor; and, aligned, the tensors. Every
//! count and length is checked against the file's size before memory is allocated, and the memory kept is a
//! small multiple of the bytes read.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use mlxcel_core::{Error, ErrorKind, Result};

use super::block::{TensorType, known_names};
use super::cursor::Cursor;
use super::value::{Fault, Value, integer};
use crate::float::Float;

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
pub(super) const OPERATION: &str = "read GGUF file";
const ALIGNMENT: &str = "general.alignment";
/// The content of a weight file in a checkpoint cloned without Git LFS.
const LFS_POINTER: &[u8] = b"version https://git-lfs";
/// How long a key may be, as the format says.
const LONGEST_KEY: usize = 65_535;
/// How long the name of a tensor may be: several times what the format says.
const LONGEST_NAME: usize = 256;
/// How many dimensions a tensor may have.
const MOST_DIMENSIONS: usize = 4;
/// The most entries of metadata: files have some dozens.
const MOST_ENTRIES: usize = 1 << 16;
/// The most tensors of a file: experts are stacked, so that a network has some thousands.
const MOST_TENSORS: usize = 1 << 18;
/// The default alignment.
const DEFAULT_ALIGNMENT: usize = 32;
/// Far above any that is used.
const LARGEST_ALIGNMENT: i128 = 1 << 20;

/// A file's metadata and tensors.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: HashMap<String, Value>,
    pub(super) tensors: Vec<Tensor>,
}

/// A tensor as the header describes it.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) ty: TensorType,
    /// The sizes of the dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// Where its bytes are in the file; within the file, as many as shape and type need, and those of no
    /// other tensor.
    pub(super) range: Range<usize>,
}

impl Tensor {
    /// The type of its values, if they are floats that are not packed; errors call its file `location`.
    pub(super) fn float(&self, location: &str) -> Result<Float> {
        let float = match self.ty {
            TensorType::Plain(element) => Float::of(element),
            TensorType::Blocks(_) => None,
        };
        float.ok_or_else(|| {
            Error::unsupported(OPERATION, "the tensor should be of type F32, F16 or BF16")
                .with_context("tensor", self.name.escape_debug())
                .with_context("path", location)
        })
    }
}

impl Header {
    /// Reads and validates the header of `file`, which errors call `location`.
    pub(super) fn read(location: &str, file: &[u8]) -> Result<Self> {
        let errors = Errors { location };
        if file.is_empty() {
            return Err(errors.corrupt("the file is empty; download it again"));
        }
        if file.starts_with(LFS_POINTER) {
            return Err(errors.corrupt("this is a Git LFS pointer, not the weights; run `git lfs pull`"));
        }
        if !file.starts_with(MAGIC) {
            return Err(errors.corrupt("this is no GGUF file: it does not begin with the letters GGUF"));
        }
        let mut cursor = Cursor::behind(file, MAGIC.len());
        match cursor.u32() {
            None => return Err(errors.truncated()),
            Some(2 | 3) => {}
            Some(version) if version.swap_bytes() < 16 => {
                let message = "the file is for machines that store the highest byte first; use the common one of \
                               the same model";
                return Err(errors.unsupported(message));
            }
            Some(version) => {
                let message = format!("version {version} of the format is not supported; 2 and 3 are");
                return Err(errors.unsupported(message));
            }
        }
        let (tensors, entries) = (cursor.size(), cursor.size());
        let (Some(tensors), Some(entries)) = (tensors, entries) else { return Err(errors.truncated()) };
        for (count, most, what) in
            [(tensors, MOST_TENSORS, "tensors"), (entries, MOST_ENTRIES, "entries of metadata")]
        {
            if count > most {
                return Err(
                    errors.corrupt(format!("the file claims {count} {what}, and {most} are the most"))
                );
            }
        }
        let metadata = read_metadata(&mut cursor, file, entries, &errors)?;
        let alignment = alignment(&metadata, file, &errors)?;
        let places = read_places(&mut cursor, file, tensors, &errors)?;
        let tensors =
            placed(places, cursor.at().next_multiple_of(alignment), file.len(), alignment, &errors)?;
        Ok(Self { metadata, tensors })
    }
}

/// Errors about one file.
struct Errors<'a> {
    location: &'a str,
}

impl Errors<'_> {
    fn corrupt(&self, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Corrupt, OPERATION, message).with_context("path", self.location)
    }

    fn unsupported(&self, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::unsupported(OPERATION, message).with_context("path", self.location)
    }

    fn truncated(&self) -> Error {
        self.corrupt("the file is truncated: it ends within its header; download it again")
    }
}

fn read_metadata(
    cursor: &mut Cursor<'_>,
    file: &[u8],
    entries: usize,
    errors: &Errors<'_>,
) -> Result<HashMap<String, Value>> {
    let mut metadata = HashMap::new();
    for _ in 0..entries {
        let key = cursor.text().ok_or_else(|| errors.truncated())?;
        let key = name(file, key, LONGEST_KEY)
            .ok_or_else(|| errors.corrupt("a key of the metadata is no short text; the file is damaged"))?;
        let value = Value::read(cursor).map_err(|fault| {
            let error = match fault {
                Fault::Truncated => errors.truncated(),
                Fault::UnknownKind(number) => {
                    errors.corrupt(format!("values of type {number} are none that the format has"))
                }
                Fault::Nested => errors.unsupported("arrays of arrays are not supported"),
            };
            error.with_context("key", key.escape_debug())
        })?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(errors
                .corrupt("the metadata has a key twice")
                .with_context("key", key.escape_debug()));
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &HashMap<String, Value>, file: &[u8], errors: &Errors<'_>) -> Result<usize> {
    let Some(value) = metadata.get(ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
    let number = match value {
        Value::One(kind, range) => file.get(range.clone()).and_then(|bytes| integer(*kind, bytes)),
        Value::Array { .. } => None,
    };
    match number {
        Some(number) if (1..=LARGEST_ALIGNMENT).contains(&number) && number & (number - 1) == 0 => {
            Ok(number as usize)
        }
        _ => {
            let message = format!("the alignment should be a power of two up to {LARGEST_ALIGNMENT}");
            Err(errors.corrupt(message).with_context("key", ALIGNMENT))
        }
    }
}

/// A tensor whose place has not been checked yet.
struct Place {
    name: String,
    ty: TensorType,
    shape: Vec<usize>,
    offset: usize,
    bytes: usize,
}

fn read_places(
    cursor: &mut Cursor<'_>,
    file: &[u8],
    tensors: usize,
    errors: &Errors<'_>,
) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensors {
        let name_range = cursor.text().ok_or_else(|| errors.truncated())?;
        let name = name(file, name_range, LONGEST_NAME)
            .ok_or_else(|| errors.corrupt("the name of a tensor is no short text; the file is damaged"))?;
        let at = |error: Error| error.with_context("tensor", name.escape_debug());
        let rank = cursor.u32().ok_or_else(|| errors.truncated())? as usize;
        if rank > MOST_DIMENSIONS {
            return Err(at(errors.corrupt(format!("{rank} dimensions are more than {MOST_DIMENSIONS}"))));
        }
        let mut shape =
            (0..rank).map(|_| cursor.size()).collect::<Option<Vec<_>>>().ok_or_else(|| errors.truncated())?;
        // The innermost dimension comes first in the file.
        shape.reverse();
        let number = cursor.u32().ok_or_else(|| errors.truncated())?;
        let offset = cursor.size().ok_or_else(|| errors.truncated())?;
        let ty = TensorType::from_number(number).map_err(|ty| {
            at(errors.unsupported(format!(
                "tensors of type {ty} are not supported; {} are. Use a file of another quantization",
                known_names()
            )))
        })?;
        let columns = shape.last().copied().unwrap_or(1);
        let Some(row) = ty.row_bytes(columns) else {
            return Err(at(errors
                .corrupt(format!("rows of {columns} values are no blocks of {} each", ty.block_values()))));
        };
        let rows = shape.get(..rank.saturating_sub(1)).unwrap_or_default();
        let Some(bytes) = rows.iter().try_fold(row, |product, &size| product.checked_mul(size)) else {
            return Err(at(errors.corrupt(format!("{shape:?} is no possible size"))));
        };
        if !names.insert(name.clone()) {
            return Err(at(errors.corrupt("the header describes the tensor twice")));
        }
        places.push(Place { name, ty, shape, offset, bytes });
    }
    Ok(places)
}

/// The tensors, whose offsets count from `base`, each in a place of its own.
fn placed(
    places: Vec<Place>,
    base: usize,
    length: usize,
    alignment: usize,
    errors: &Errors<'_>,
) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for Place { name, ty, shape, offset, bytes } in places {
        let at = |error: Error| error.with_context("tensor", name.escape_debug());
        if !offset.is_multiple_of(alignment) {
            let message =
                format!("the tensor begins at offset {offset}, which is no multiple of {alignment}");
            return Err(at(errors.corrupt(message)));
        }
        let end = base.checked_add(offset).and_then(|start| Some((start, start.checked_add(bytes)?)));
        let Some((start, end)) = end.filter(|(_, end)| *end <= length) else {
            let message = format!(
                "the file is truncated: the tensor has {bytes} bytes from offset {offset}, and the file ends before; \
                 download it again"
            );
            return Err(at(errors.corrupt(message)));
        };
        tensors.push(Tensor { name, ty, shape, range: start..end });
    }
    let mut order: Vec<&Tensor> = tensors.iter().filter(|tensor| !tensor.range.is_empty()).collect();
    order.sort_by_key(|tensor| tensor.range.start);
    if let Some(pair) = order.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
        let error = errors.corrupt("the tensor overlaps another; the file is damaged");
        return Err(error
            .with_context("tensor", pair[1].name.escape_debug())
            .with_context("other", &pair[0].name));
    }
    Ok(tensors)
}

/// The text of at most `longest` bytes at a place; none where it is none.
fn name(file: &[u8], range: Range<usize>, longest: usize) -> Option<String> {
    let bytes = file.get(range).filter(|bytes| bytes.len() <= longest)?;
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests;
