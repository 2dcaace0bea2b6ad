use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::*;

/// A file with this header and as many zero bytes of data.
fn file(header: &Value, data: usize) -> Vec<u8> {
    raw(header.to_string().as_bytes(), data)
}

fn raw(header: &[u8], data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 0);
    file
}

fn tensor(dtype: &str, shape: &[u64], start: u64, end: u64) -> Value {
    json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]})
}

fn refusal(file: &[u8]) -> Error {
    let error = read_header("model.safetensors", file).unwrap_err();
    assert_eq!(error.context("path"), Some("model.safetensors"));
    error
}

#[test]
fn entries_are_in_file_order_with_their_ranges() {
    let header = json!({"__metadata__": {"format": "pt"}, "b": tensor("F32", &[1, 2], 0, 8),
        "a": tensor("BF16", &[3], 8, 14), "scalar": tensor("I64", &[], 14, 22), "empty": tensor("F32", &[0], 22, 22)});
    let file = file(&header, 22);
    let entries = read_header("model.safetensors", &file).unwrap();
    let base = file.len() - 22;
    let summary = entries.iter().map(|e| (e.name.as_str(), e.element, e.range.clone())).collect::<Vec<_>>();
    assert_eq!(
        summary,
        [
            ("b", ElementType::F32, base..base + 8),
            ("a", ElementType::BF16, base + 8..base + 14),
            ("scalar", ElementType::I64, base + 14..base + 22),
            ("empty", ElementType::F32, base + 22..base + 22),
        ]
    );
    assert_eq!(entries[0].shape, [1, 2]);
}

#[test]
fn metadata_values_must_be_strings_as_in_the_reference_implementation() {
    for (metadata, taken) in
        [(json!({"a": "b"}), true), (json!(null), true), (json!({"a": 1}), false), (json!([]), false)]
    {
        let file = file(&json!({"__metadata__": metadata, "a": tensor("U8", &[1], 0, 1)}), 1);
        assert_eq!(SafeTensors::deserialize(&file).is_ok(), taken, "{metadata}");
        assert_eq!(read_header("f", &file).is_ok(), taken, "{metadata}");
    }
}

#[test]
fn a_header_padded_with_spaces_or_of_odd_length_is_read() {
    for padding in 0..9 {
        let mut header = json!({"a": tensor("F16", &[2], 0, 4)}).to_string();
        header.extend(std::iter::repeat_n(' ', padding));
        assert_eq!(read_header("f", &raw(header.as_bytes(), 4)).unwrap().len(), 1);
    }
}

#[test]
fn truncation_is_reported_at_every_length() {
    let whole = file(&json!({"a": tensor("F32", &[4], 0, 16)}), 16);
    for length in 0..whole.len() {
        let error = refusal(&whole[..length]);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let words = if length == 0 { "empty" } else { "truncated" };
        assert!(error.message().contains(words), "{length}: {error}");
    }
}

#[test]
fn invalid_headers_are_rejected_with_tensor_and_defect() {
    let huge = 1 << 62;
    let cases = [
        (json!({"t": tensor("F32", &[4], 0, 12)}), 12, "need 16 bytes"),
        (json!({"t": tensor("F32", &[4], 16, 0)}), 16, "need 16 bytes"),
        (json!({"t": tensor("F32", &[8], 0, 32)}), 16, "truncated"),
        (json!({"t": tensor("F32", &[4], 4, 20)}), 20, "leaves a gap"),
        (json!({"a": tensor("F32", &[4], 0, 16), "t": tensor("F32", &[4], 8, 24)}), 24, "overlaps"),
        (json!({"t": tensor("F64", &[huge, huge], 0, 16)}), 16, "no possible size"),
        (json!({"t": tensor("F64", &[huge], 0, 16)}), 16, "no possible size"),
        (json!({"t": tensor("F4", &[3], 0, 1)}), 1, "no possible size"),
    ];
    for (header, data, words) in cases {
        let error = refusal(&file(&header, data));
        assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Corrupt, Some("t")), "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    let error = refusal(&file(&json!({"a": tensor("F32", &[4], 0, 16)}), 20));
    assert!(error.message().contains("20 bytes of data follow"), "{error}");
}

#[test]
fn overflowing_offsets_are_rejected() {
    // Eight tensors of 2^61 - 1 bytes: every one has a possible size, and their sum nearly fills 64 bits.
    let size = (1u64 << 61) - 1;
    let mut header = serde_json::Map::new();
    for i in 0..8 {
        header.insert(format!("t{i}"), tensor("U8", &[size], i * size, (i + 1) * size));
    }
    header.insert("t8".to_owned(), tensor("U8", &[7], 8 * size, u64::MAX));
    assert!(refusal(&file(&Value::Object(header), 16)).message().contains("truncated"));
}

#[test]
fn a_tensor_described_twice_is_refused() {
    let twice = br#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    let error = refusal(&raw(twice, 4));
    assert!(error.message().contains("twice"), "{error}");
    assert_eq!(error.context("tensor"), Some("a"));
}

#[test]
fn files_that_are_not_safetensors_are_recognized() {
    let error = refusal(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    assert!(error.message().contains("git lfs pull"), "{error}");
    let error = refusal(b"<!DOCTYPE html><html></html>");
    assert!(error.message().contains("not a safetensors file"), "{error}");
    for header in [&b"not json"[..], b"[]", b"{\"a\": 1}", b"{\"a\": {\"dtype\": \"F32\"}}", b"\xff\xfe", b""]
    {
        let error = refusal(&raw(header, 4));
        assert!(std::error::Error::source(&error).is_some(), "{error}");
    }
    let error = refusal(&file(&json!({"t": tensor("F128", &[1], 0, 16)}), 16));
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some("t")));
}

/// Headers that are nearly right, so that the checks behind the parser are reached.
fn near_headers() -> impl Strategy<Value = (Value, usize)> {
    let dtype = prop::sample::select(vec!["F32", "BF16", "U8", "F4", "F8_E4M3", "X"]);
    let shape =
        prop::collection::vec(prop_oneof![8 => 0u64..5, 1 => Just(u64::MAX), 1 => Just(1 << 40)], 0..3);
    let nudge = prop_oneof![8 => Just(0i64), 1 => -3i64..4];
    let entries = prop::collection::vec((dtype, shape, nudge.clone(), nudge.clone()), 0..5);
    (entries, nudge).prop_map(|(entries, extra)| {
        let mut header = serde_json::Map::new();
        let mut end = 0i64;
        for (index, (dtype, shape, before, after)) in entries.into_iter().enumerate() {
            let bits = ElementType::from_name(dtype).map_or(8, ElementType::bits) as i64;
            let elements = shape.iter().fold(1i64, |n, &size| n.wrapping_mul(size as i64));
            let start = end.wrapping_add(before);
            end = start.wrapping_add(elements.wrapping_mul(bits) / 8).wrapping_add(after);
            header.insert(format!("t{index}"), tensor(dtype, &shape, start as u64, end as u64));
        }
        (Value::Object(header), end.wrapping_add(extra).clamp(0, 1000) as usize)
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_header("f", &bytes);
        let _ = read_header("f", &raw(&bytes, 8));
    }

    #[test]
    fn mutated_files_never_panic_and_keep_ranges_within_the_file(
        position in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = file(&json!({"a": tensor("F32", &[2, 2], 0, 16), "b": tensor("BF16", &[4], 16, 24)}), 24);
        *position.get_mut(&mut bytes) = byte;
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            for entry in read_header("f", bytes).unwrap_or_default() {
                prop_assert!(bytes.get(entry.range).is_some());
            }
        }
    }

    #[test]
    fn the_reference_implementation_gives_the_same_verdict((header, data) in near_headers()) {
        let bytes = file(&header, data);
        let reference = SafeTensors::deserialize(&bytes);
        let ours = read_header("f", &bytes);
        prop_assert_eq!(ours.is_ok(), reference.is_ok(), "{:?} {:?}", ours, reference.map(|_| ()));
        if let (Ok(ours), Ok(reference)) = (ours, reference) {
            prop_assert_eq!(ours.len(), reference.len());
            for entry in ours {
                let view = reference.tensor(&entry.name).unwrap();
                prop_assert_eq!(view.shape(), &entry.shape[..]);
                prop_assert_eq!(view.data().as_ptr_range(), bytes[entry.range].as_ptr_range());
            }
        }
    }
}
