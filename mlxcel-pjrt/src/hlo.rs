//! What a compiled program moves between devices, read out of XLA's `HloModuleProto`.

use mlxcel_core::{Error, ErrorKind, Result};

/// An operation by which devices exchange data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Collective {
    /// XLA's name for it, such as `all-reduce`.
    pub operation: String,
    /// The bytes of its result on each device.
    pub bytes: u64,
}

/// The collectives of an `HloModuleProtoWithConfig`, in the order of the program.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] where the bytes are no such message.
pub(crate) fn collectives(module: &[u8]) -> Result<Vec<Collective>> {
    read(module).ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            "inspect program",
            "the plugin gives the compiled program in another format",
        )
    })
}

/// Operations whose names begin like this move data; those that end like that wait for another.
const NAMES: [&str; 5] = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"];
const WAITS: &str = "-done";

fn read(module: &[u8]) -> Option<Vec<Collective>> {
    let mut found = Vec::new();
    // HloModuleProtoWithConfig.hlo_module, HloModuleProto.computations, HloComputationProto.instructions.
    for module in Fields(module).bytes(1) {
        for computation in Fields(module?).bytes(3) {
            for instruction in Fields(computation?).bytes(2) {
                let instruction = instruction?;
                // HloInstructionProto.opcode and .shape.
                let opcode = std::str::from_utf8(Fields(instruction).bytes(2).next()??).ok()?;
                if NAMES.iter().any(|name| opcode.starts_with(name)) && !opcode.ends_with(WAITS) {
                    let bytes = shape_bytes(Fields(instruction).bytes(3).next()??, 0)?;
                    let operation = opcode.trim_end_matches("-start").to_owned();
                    found.push(Collective { operation, bytes });
                }
            }
        }
    }
    Some(found)
}

/// The bytes of a `ShapeProto`.
fn shape_bytes(shape: &[u8], depth: usize) -> Option<u64> {
    let (mut element, mut elements, mut parts) = (0, 1u64, 0u64);
    for field in Fields(shape) {
        match field? {
            (2, Value::Number(number)) => element = number,
            (3, Value::Number(size)) => elements = elements.checked_mul(size)?,
            (3, Value::Bytes(mut sizes)) => {
                while !sizes.is_empty() {
                    elements = elements.checked_mul(varint(&mut sizes)?)?;
                }
            }
            // The parts of a tuple; none has more than a few levels.
            (4, Value::Bytes(part)) if depth < 8 => {
                parts = parts.checked_add(shape_bytes(part, depth + 1)?)?
            }
            _ => {}
        }
    }
    // Numbers of xla.PrimitiveType.
    let bytes = match element {
        1 | 2 | 6 => 1,
        3 | 7 | 10 | 16 => 2,
        4 | 8 | 11 => 4,
        5 | 9 | 12 | 15 => 8,
        13 => return Some(parts),
        _ => 1,
    };
    elements.checked_mul(bytes)
}

/// The fields of a protocol buffer's message.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    /// The messages, texts or packed lists of one field.
    fn bytes(self, wanted: u64) -> impl Iterator<Item = Option<&'a [u8]>> {
        self.filter_map(move |field| match field {
            Some((number, Value::Bytes(bytes))) if number == wanted => Some(Some(bytes)),
            Some(_) => None,
            None => Some(None),
        })
    }
}

impl<'a> Iterator for Fields<'a> {
    /// A field's number and value; none where the message is broken off.
    type Item = Option<(u64, Value<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let key = varint(bytes)?;
    let mut take = |length: usize| {
        let (taken, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(taken)
    };
    let value = match key & 7 {
        0 => Value::Number(varint(bytes)?),
        1 => Value::Number(u64::from_le_bytes(take(8)?.try_into().ok()?)),
        5 => Value::Number(u32::from_le_bytes(take(4)?.try_into().ok()?).into()),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (taken, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Value::Bytes(taken)
        }
        _ => return None,
    };
    Some((key >> 3, value))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_are_read_with_their_bytes() {
        // An instruction with opcode and shape f32[2,3], in a computation, in a module.
        let instruction = |opcode: &str| {
            let shape = [0x10, 11, 0x1a, 2, 2, 3];
            let opcode = [&[0x12, opcode.len() as u8], opcode.as_bytes()].concat();
            let message = [&opcode[..], &[0x1a, shape.len() as u8], &shape].concat();
            [&[0x12, message.len() as u8], &message[..]].concat()
        };
        let computation =
            ["add", "all-reduce", "all-gather-start", "all-gather-done"].map(instruction).concat();
        let module = [&[0x1a, computation.len() as u8], &computation[..]].concat();
        let whole = [&[0x0a, module.len() as u8], &module[..]].concat();
        let collective = |operation: &str| Collective { operation: operation.to_owned(), bytes: 24 };
        assert_eq!(collectives(&whole).unwrap(), [collective("all-reduce"), collective("all-gather")]);
        assert_eq!(collectives(&whole[..whole.len() - 1]).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(collectives(&[0xff; 12]).is_err());
    }
}
