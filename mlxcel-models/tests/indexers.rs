//! Attention to the positions that indexers select: settings, and the states of layers.

use crate::common::Draft;
use mlxcel_core::ErrorKind;
use mlxcel_models::{
    Decoder, Feature, Indexer, LatentAttention, Mixer, SparseAttention, StateShape, StateSlot,
};
use serde_json::Value;

fn sparse(decoder: &Decoder) -> Vec<SparseAttention> {
    let of = |mixer: &Mixer| match mixer {
        Mixer::Latent(LatentAttention { sparse: Some(sparse), .. }) => *sparse,
        other => panic!("{other:?}"),
    };
    decoder.mixers().map(of).collect()
}

#[test]
fn an_indexer_is_described_and_keeps_keys_before_latents() {
    let decoder = Draft::fixture("deepseek_v32").decoder().unwrap();
    let SparseAttention::Indexed(indexer) = sparse(&decoder)[1] else { panic!() };
    let Indexer { heads, head_dim, count, scale, interleaved, .. } = indexer;
    assert_eq!((heads, head_dim, count, scale, interleaved), (16, 16, 24, 1.0 / 16.0, false));
    let names = [indexer.query, indexer.key, indexer.weights].map(|linear| {
        let tensor = decoder.weight(linear.weight).tensor.clone();
        tensor.strip_prefix("model.layers.1.self_attn.indexer.").unwrap().to_owned()
    });
    assert_eq!(names, ["wq_b.weight", "wk.weight", "weights_proj.weight"]);
    assert!(indexer.key_norm.bias.is_some() && decoder.features().contains(Feature::SparseAttention));
    let shapes: Vec<_> =
        decoder.state_groups().into_iter().map(|group| (group.shape, group.layers)).collect();
    assert_eq!(shapes, [(StateShape::Latent { width: 16 }, 3), (StateShape::Latent { width: 32 }, 3)]);
    let slot = |group, layer| StateSlot { group, layer };
    assert_eq!(decoder.state_slots()[2], [slot(0, 2), slot(1, 2)]);
}

#[test]
fn indexers_need_a_latent_of_queries() {
    let error = Draft::fixture("deepseek_v32").set("q_lora_rank", Value::Null).decoder().unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("q_lora_rank")));
}
