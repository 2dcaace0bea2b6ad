//! Modules of sentence-transformers: which are applied, and which are refused.

use std::fs;

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use super::super::{HeadLayer, TextHead, TokenPooling};

/// The head of a folder with these modules behind a transformer, whose pooled states have two elements.
fn head(modules: &[(&str, Value)]) -> Result<Option<TextHead>> {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| fs::write(place.path().join(name), value.to_string()).unwrap();
    let mut list = vec![json!({"path": "", "type": "sentence_transformers.models.Transformer"})];
    for (index, (kind, config)) in modules.iter().enumerate() {
        let path = format!("{}_{kind}", index + 1);
        list.push(json!({"path": path, "type": format!("sentence_transformers.models.{kind}")}));
        fs::create_dir(place.path().join(&path)).unwrap();
        write(&format!("{path}/config.json"), config);
        let values: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::F32, vec![2], &values).unwrap();
        let tensors = [("norm.weight", &tensor), ("norm.bias", &tensor)];
        let file = safetensors::serialize(tensors, None).unwrap();
        fs::write(place.path().join(format!("{path}/model.safetensors")), file).unwrap();
    }
    write("modules.json", &Value::from(list));
    write("tokenizer.json", &json!({"model": {"vocab": {"yes": 3, "no": 5}}}));
    TextHead::of_embeddings(&ModelSource::from(place.path()))
}

fn pooling() -> (&'static str, Value) {
    ("Pooling", json!({"embedding_dimension": 2, "pooling_mode": "mean"}))
}

fn refused(modules: &[(&str, Value)], field: &str) -> Error {
    let error = head(modules).unwrap_err();
    assert_eq!(error.context("field"), Some(field), "{error}");
    error
}

#[test]
fn layer_norms_are_applied_and_dropout_is_not() {
    let layer_norm = ("LayerNorm", json!({"dimension": 2}));
    let modules = [pooling(), layer_norm, ("Dropout", json!({"dropout": 0.2})), ("Normalize", json!({}))];
    let norm = HeadLayer::Norm { weight: vec![1.0, 2.0], bias: Some(vec![1.0, 2.0]), epsilon: 1e-5 };
    assert_eq!(head(&modules).unwrap().unwrap().layers, [norm, HeadLayer::Normalize]);
    refused(&[pooling(), ("LayerNorm", json!({"dimension": 3}))], "dimension");
}

#[test]
fn modules_of_other_features_are_refused() {
    let tokens = ("Normalize", json!({"module_input_name": "token_embeddings"}));
    refused(&[pooling(), tokens], "module_input_name");
    let class = "my.activations.ReLU";
    let dense = json!({"in_features": 2, "out_features": 2, "activation_function": class});
    refused(&[pooling(), ("Dense", dense)], "activation_function");
}

#[test]
fn modes_of_both_layouts_are_joined_in_order_and_others_are_refused() {
    let of = |config: Value| {
        let mut config = config;
        config["embedding_dimension"] = 2.into();
        [("Pooling", config)]
    };
    let older =
        json!({"pooling_mode_max_tokens": true, "pooling_mode_cls_token": true, "include_prompt": false});
    let found = head(&of(older)).unwrap().unwrap();
    assert_eq!(found.poolings, [TokenPooling::First, TokenPooling::Max]);
    assert_eq!((found.includes_prompt, found.outputs()), (false, 4));
    let found = head(&of(json!({"pooling_mode": ["weightedmean", "mean"]}))).unwrap().unwrap();
    assert_eq!(found.poolings, [TokenPooling::WeightedMean, TokenPooling::Mean]);
    for mode in [json!("median"), json!(["mean", "median"]), json!([]), json!(vec!["max"; 7])] {
        refused(&of(json!({"pooling_mode": mode})), "pooling_mode");
    }
}

#[test]
fn rerankers_that_compare_yes_with_no_make_no_embeddings() {
    let score = |yes: usize, no: Value| [("LogitScore", json!({"true_token_id": yes, "false_token_id": no}))];
    assert_eq!(head(&score(3, 5.into())).unwrap(), None);
    assert_eq!(refused(&score(5, 3.into()), "true_token_id").kind(), ErrorKind::Unsupported);
    refused(&score(3, Value::Null), "false_token_id");
}
