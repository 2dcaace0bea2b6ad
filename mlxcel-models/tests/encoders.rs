//! What settings do to the descriptions of encoders.

use mlxcel_core::ErrorKind;
use serde_json::json;

use crate::families::with_config;

#[test]
fn bert_reads_no_number_of_key_heads() {
    let bert = |changes: &[(&str, usize)]| {
        with_config("encoders/bert", |config| {
            config.extend(changes.iter().map(|&(key, value)| (key.to_owned(), value.into())));
        })
    };
    assert_eq!(bert(&[("num_key_value_heads", 2), ("head_dim", 4)]).unwrap(), bert(&[]).unwrap());
}

#[test]
fn settings_of_encoders_that_are_not_implemented_or_impossible_are_refused_by_name() {
    let (unsupported, corrupt) = (ErrorKind::Unsupported, ErrorKind::Corrupt);
    for (fixture, key, value, kind) in [
        ("bert", "position_embedding_type", json!("relative_key"), unsupported),
        ("distilbert", "activation", json!("mish"), unsupported),
        ("distilbert", "n_heads", json!(5), corrupt),
        ("electra-reranker", "position_embedding_type", json!("relative_key"), unsupported),
        ("electra-reranker", "embedding_size", json!(0), corrupt),
        ("ernie", "use_task_id", json!(true), unsupported),
        ("mpnet", "relative_attention_num_buckets", json!(64), unsupported),
        ("mpnet", "max_position_embeddings", json!(2), corrupt),
    ] {
        let changed = with_config(&format!("encoders/{fixture}"), |config| {
            config.insert(key.to_owned(), value);
        });
        let error = changed.unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (kind, Some(key)), "{fixture}: {error}");
    }
    let narrow = with_config("encoders/electra-reranker", |config| {
        drop(config.insert("embedding_size".into(), 8.into()))
    });
    let error = narrow.unwrap_err();
    assert_eq!(error.context("tensor"), Some("electra.embeddings.word_embeddings.weight"), "{error}");
}
