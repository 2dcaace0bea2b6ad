//! Files that are well made but for one thing.

use mlxcel_core::ErrorKind;

use super::super::draft::{Draft, Kind};
use super::*;

fn read(file: &[u8]) -> Result<Header> {
    Header::read("model.gguf", file)
}

/// Two tensors and some metadata.
fn draft() -> Draft {
    let mut draft = Draft::new();
    draft.text("general.architecture", "llama").number("llama.block_count", Kind::U32, 1.0);
    draft.texts("tokenizer.ggml.tokens", &["a", "b"]).numbers(
        "tokenizer.ggml.scores",
        Kind::F32,
        &[0.5, -1.0],
    );
    draft.tensor("a.weight", 0, &[2, 4], &[1; 32]).tensor("b.weight", 2, &[1, 32], &[2; 18]);
    draft
}

fn refused(file: &[u8], kind: ErrorKind, words: &str) {
    let error = read(file).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(error.context("path"), Some("model.gguf"));
}

#[test]
fn what_is_well_made_is_read() {
    let file = draft().write();
    let header = read(&file).unwrap();
    let [first, second] = &header.tensors[..] else { panic!("{header:?}") };
    assert_eq!(
        (&first.name[..], &first.shape[..], &file[first.range.clone()]),
        ("a.weight", &[2, 4][..], &[1; 32][..])
    );
    assert_eq!((&second.shape[..], &file[second.range.clone()]), (&[1, 32][..], &[2; 18][..]));
    assert_eq!(header.metadata.len(), 4);
    // Any alignment that is a power of two.
    for alignment in [1.0, 8.0, 4096.0] {
        let file =
            draft().number("general.alignment", Kind::U32, alignment).aligned(alignment as usize).write();
        assert_eq!(file[read(&file).unwrap().tensors[1].range.clone()], [2; 18]);
    }
}

#[test]
fn whatever_a_file_lacks_at_its_end_it_is_refused() {
    let file = draft().write();
    for end in 0..file.len() {
        assert_eq!(
            read(&file[..end]).unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{end} of {} bytes",
            file.len()
        );
    }
}

#[test]
fn counts_and_lengths_that_no_file_can_have_are_refused_at_once() {
    let file = draft().write();
    // The counts of tensors and of metadata, the length of the first key.
    for at in [8, 16, 24] {
        for number in [u64::MAX, i64::MAX as u64, 1 << 40] {
            let mut file = file.clone();
            file[at..at + 8].copy_from_slice(&number.to_le_bytes());
            assert_eq!(read(&file).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}

#[test]
fn more_entries_than_any_model_has_are_refused_though_they_are_there() {
    let mut many = Draft::new();
    for entry in 0..=1 << 16 {
        many.number(&entry.to_string(), Kind::U32, 0.0);
    }
    refused(&many.write(), ErrorKind::Corrupt, "65536 are the most");
}

#[test]
fn other_files_are_told_from_damaged_ones() {
    refused(b"", ErrorKind::Corrupt, "empty");
    refused(b"version https://git-lfs.github.com/spec/v1", ErrorKind::Corrupt, "git lfs pull");
    refused(b"PK\x03\x04", ErrorKind::Corrupt, "no GGUF file");
    refused(b"GGUF\x01\0\0\0", ErrorKind::Unsupported, "version 1");
    refused(b"GGUF\0\0\0\x03", ErrorKind::Unsupported, "highest byte first");
}

#[test]
fn tensors_are_refused_by_name() {
    let with = |name: &str, ty, shape: &[usize], bytes: &[u8]| draft().tensor(name, ty, shape, bytes).write();
    refused(&with("a.weight", 0, &[1], &[0; 4]), ErrorKind::Corrupt, "the tensor twice");
    refused(&with("c", 16, &[256], &[0; 66]), ErrorKind::Unsupported, "type IQ2_XXS");
    refused(&with("c", 99, &[1], &[0; 4]), ErrorKind::Unsupported, "type number 99");
    refused(&with("c", 12, &[2, 128], &[0; 144]), ErrorKind::Corrupt, "no blocks of 256");
    refused(&with("c", 0, &[1, 1, 1, 1, 1], &[0; 4]), ErrorKind::Corrupt, "5 dimensions");
    refused(&with("c", 0, &[1 << 31, 1 << 31, 4], &[0; 4]), ErrorKind::Corrupt, "no possible size");
    refused(&with("c", 0, &[1 << 20], &[0; 4]), ErrorKind::Corrupt, "ends before");
    refused(&with(&"c".repeat(300), 0, &[1], &[0; 4]), ErrorKind::Corrupt, "no short text");
    refused(&draft().tensor_at("c", 0, &[1], 0).write(), ErrorKind::Corrupt, "overlaps");
    refused(&draft().tensor_at("c", 0, &[1], 5).write(), ErrorKind::Corrupt, "no multiple of 32");
    refused(&draft().tensor_at("c", 0, &[1], usize::MAX & !31).write(), ErrorKind::Corrupt, "ends before");
}

#[test]
fn metadata_is_refused_by_key() {
    refused(&draft().text("general.architecture", "x").write(), ErrorKind::Corrupt, "a key twice");
    for alignment in [0.0, 3.0, -8.0, 4e9] {
        let file = draft().number("general.alignment", Kind::F64, alignment).write();
        refused(&file, ErrorKind::Corrupt, "power of two");
    }
    let nested = [&9u32.to_le_bytes()[..], &9u32.to_le_bytes(), &1u64.to_le_bytes()].concat();
    refused(&draft().raw("x", &nested).write(), ErrorKind::Unsupported, "arrays of arrays");
    refused(&draft().raw("x", &77u32.to_le_bytes()).write(), ErrorKind::Corrupt, "type 77");
}
