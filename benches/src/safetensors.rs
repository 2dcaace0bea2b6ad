//! The head of a safetensors file that is written tensor by tensor.

use serde_json::{Map, Value, json};

/// What comes before the values of these tensors, each a name, a type and a shape.
pub(crate) fn header<S: AsRef<[usize]>>(tensors: impl Iterator<Item = (String, &'static str, S)>) -> Vec<u8> {
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut at = 0;
    for (name, kind, shape) in tensors {
        let shape = shape.as_ref();
        let end = at + bytes(kind, shape);
        header.insert(name, json!({"dtype": kind, "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut text = Value::Object(header).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(64) - text.len()));
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The bytes of a tensor.
pub(crate) fn bytes(kind: &str, shape: &[usize]) -> usize {
    let width = match kind {
        "I32" | "U32" | "F32" => 4,
        "F8_E4M3" => 1,
        _ => 2,
    };
    width * shape.iter().product::<usize>()
}
