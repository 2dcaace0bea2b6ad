//! Heads of GGUF files: pooling, dense layers, and rerankers.

use std::path::Path;

use mlxcel_core::{ErrorKind, ModelSource, Pooling, Result};

use super::super::draft::{Draft, Kind};
use crate::checkpoint::Checkpoint;
use crate::decoder::Decoder;
use crate::text_head::{HeadLayer, TextHead};

/// A model with states of two elements, and nothing but an embedding.
fn model(architecture: &str, pooling: f64) -> Draft {
    let mut draft = Draft::new();
    draft.text("general.architecture", architecture);
    for (key, size) in [
        ("block_count", 1.0),
        ("embedding_length", 2.0),
        ("attention.head_count", 1.0),
        ("pooling_type", pooling),
    ] {
        draft.number(&format!("{architecture}.{key}"), Kind::U32, size);
    }
    tensor(&mut draft, "token_embd.weight", &[2, 2], 0.5);
    draft
}

fn tensor(draft: &mut Draft, name: &str, shape: &[usize], value: f32) {
    let values = value.to_le_bytes().repeat(shape.iter().product());
    draft.tensor(name, 0, shape, &values);
}

fn gemma(pooling: f64, dense: [Option<[usize; 2]>; 2]) -> Draft {
    let mut draft = model("gemma-embedding", pooling);
    for (name, shape) in ["dense_2.weight", "dense_3.weight"].into_iter().zip(dense) {
        if let Some(shape) = shape {
            tensor(&mut draft, name, &shape, 1.0);
        }
    }
    draft
}

fn embeddings(draft: &Draft) -> Result<Option<TextHead>> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.gguf"), draft.write()).unwrap();
    TextHead::of_embeddings(&ModelSource::from(folder.path()))
}

#[test]
fn dense_layers_stand_between_pooling_and_normalization() {
    let head = embeddings(&gemma(1.0, [Some([3, 2]), Some([2, 3])])).unwrap().unwrap();
    let ones = || HeadLayer::Dense { weight: vec![1.0; 6], bias: None, activation: None };
    assert_eq!((head.pooling(), head.outputs()), (Some(Pooling::Mean), 2));
    assert_eq!(head.layers, [ones(), ones(), HeadLayer::Normalize]);
    let head = embeddings(&gemma(1.0, [None, None])).unwrap().unwrap();
    assert_eq!(head.layers, [HeadLayer::Normalize]);
}

#[test]
fn invalid_heads_of_embeddings_are_refused_by_tensor_or_key() {
    let whole = [Some([3, 2]), Some([2, 3])];
    let mut other_size = gemma(1.0, whole);
    other_size.number("gemma-embedding.dense_2_feat_out", Kind::U32, 4.0);
    for (draft, kind, context, named) in [
        (gemma(1.0, [whole[0], None]), ErrorKind::Corrupt, "tensor", "dense_3.weight"),
        (gemma(1.0, [None, whole[1]]), ErrorKind::Corrupt, "tensor", "dense_2.weight"),
        (gemma(1.0, [whole[0], whole[0]]), ErrorKind::Corrupt, "field", "in_features"),
        (other_size, ErrorKind::Corrupt, "tensor", "2_Dense.linear.weight"),
        (gemma(0.0, whole), ErrorKind::Unsupported, "key", "gemma-embedding.pooling_type"),
        (gemma(9.0, [None, None]), ErrorKind::Unsupported, "key", "gemma-embedding.pooling_type"),
    ] {
        let error = embeddings(&draft).unwrap_err();
        assert_eq!((error.kind(), error.context(context)), (kind, Some(named)), "{error}");
    }
}

fn classifier(labels: &[&str], rows: usize) -> Result<Option<TextHead>> {
    let mut draft = model("qwen3", 4.0);
    draft.texts("qwen3.classifier.output_labels", labels);
    let values = (0..2 * rows).flat_map(|value| (value as f32).to_le_bytes()).collect::<Vec<_>>();
    draft.tensor("cls.output.weight", 0, &[rows, 2], &values);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.gguf"), draft.write()).unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures/qwen3");
    let decoder = Decoder { hidden_size: 2, ..Checkpoint::open(fixture)?.decoder()? };
    TextHead::of_classifier(&Checkpoint::open(folder.path())?, &decoder)
}

#[test]
fn rerankers_of_qwen3_score_yes_against_no() {
    let head = classifier(&["yes", "no"], 2).unwrap().unwrap();
    assert_eq!((head.pooling(), head.outputs()), (Some(Pooling::Last), 1));
    assert_eq!(head.apply(&[5.0, 7.0], 1, 0).unwrap(), [-24.0]);
    let error = classifier(&["yes", "no"], 3).unwrap_err();
    assert_eq!(
        (error.kind(), error.context("tensor")),
        (ErrorKind::Corrupt, Some("score.weight")),
        "{error}"
    );
    let error = classifier(&["good", "bad"], 2).unwrap_err();
    let key = Some("qwen3.classifier.output_labels");
    assert_eq!((error.kind(), error.context("key")), (ErrorKind::Unsupported, key), "{error}");
}
