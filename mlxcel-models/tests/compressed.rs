//! Attention to compressed positions: the states of layers, and the experts of tokens.

use mlxcel_core::ErrorKind;
use mlxcel_models::{Mixer, Operation, Scoring, StateShape};
use safetensors::tensor::Dtype;
use serde_json::json;

use crate::common::Draft;

const TABLE: &str = "model.layers.0.ffn.gate.tid2eid";

#[test]
fn layers_keep_a_window_and_entries_with_what_they_are_made_of() {
    let decoder = Draft::fixture("deepseek_v4").decoder().unwrap();
    let states: Vec<_> = decoder.mixers().map(Mixer::states).collect();
    let keys = StateShape::Cache { kv_heads: 1, head_dim: 16, window: Some(8) };
    let entries = |width: usize, channels: usize, taps: usize| {
        [StateShape::Fixed { shape: vec![channels, taps - 1] }, StateShape::Latent { width }]
    };
    // Of two windows by two series of values and gates each, which select and which are seen; and of one
    // window.
    let sparse: Vec<_> =
        entries(12, 48, 8).into_iter().chain(entries(16, 64, 8)).chain([keys.clone()]).collect();
    let heavy: Vec<_> = entries(16, 32, 8).into_iter().chain([keys.clone()]).collect();
    assert_eq!(states, [vec![keys], sparse.clone(), heavy, sparse]);
    assert!(!decoder.is_rewindable());
    // Angles of queries, of entries of 4 positions and of 8, and of layers without entries.
    let delays: Vec<_> = decoder.ropes().into_iter().map(|rope| rope.delay).collect();
    assert_eq!(delays, [0, 0, 3, 7]);
}

#[test]
fn some_layers_choose_experts_by_token() {
    let decoder = Draft::fixture("deepseek_v4").decoder().unwrap();
    let routers = decoder.layers.iter().map(|layer| match &layer.blocks[1].operation {
        Operation::Experts(experts) => experts.router,
        other => panic!("{other:?}"),
    });
    let routers: Vec<_> = routers.collect();
    assert!(routers.iter().all(|router| router.scoring == Scoring::RootSoftplus && router.normalised));
    let by_token: Vec<_> = routers.iter().map(|router| router.by_token.is_some()).collect();
    assert_eq!(by_token, [true, false, false, true]);
    assert!(routers.iter().all(|router| router.by_token.is_none() == router.selection_bias.is_some()));

    for (dtype, shape, kind) in [
        // Bytes that count are numbers of experts that there are not.
        (Dtype::I64, [256, 2], ErrorKind::Corrupt),
        (Dtype::I64, [256, 3], ErrorKind::Corrupt),
        (Dtype::F32, [256, 2], ErrorKind::Unsupported),
    ] {
        let error = Draft::fixture("deepseek_v4").with(TABLE, dtype, &shape).decoder().unwrap_err();
        assert_eq!((error.kind(), error.context("tensor")), (kind, Some(TABLE)));
    }
}

#[test]
fn published_files_have_no_prefix() {
    let published = |name: &str| match name.strip_prefix("model.").unwrap_or(name) {
        "embed_tokens.weight" => "embed.weight".to_owned(),
        name => name.replace("hc_head.hc_", "hc_head_").replace("attn.norm.", "attn.kv_norm."),
    };
    let draft = Draft::fixture("deepseek_v4").renamed(published);
    let draft = draft.set("num_nextn_predict_layers", json!(1));
    let decoder = draft.decoder().unwrap();
    let same = Draft::fixture("deepseek_v4").decoder().unwrap();
    assert_eq!(decoder.layers, same.layers);
    assert_eq!(decoder.weight(decoder.embedding.weight).tensor, "embed.weight");
}
