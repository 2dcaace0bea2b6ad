//! Attention to the positions that indexers select: settings, and the states of layers.

use crate::common::Draft;
use mlxcel_core::ErrorKind;
use mlxcel_models::{
    Decoder, Feature, Indexer, LatentAttention, Mixer, SparseAttention, StateShape, StateSlot,
};
use safetensors::Dtype;
use serde_json::{Value, json};

fn sparse(decoder: &Decoder) -> Vec<SparseAttention> {
    let of = |mixer: &Mixer| match mixer {
        Mixer::Latent(LatentAttention { sparse: Some(sparse), .. }) => *sparse,
        other => panic!("{other:?}"),
    };
    decoder.mixers().map(of).collect()
}

/// For each layer of the fixture of GLM with other settings, the layer whose positions it uses. `null` is
/// kept as a setting.
fn sources(settings: Value) -> mlxcel_core::Result<Vec<Option<usize>>> {
    let mut draft = Draft::fixture("glm_moe_dsa").unset("indexer_types").unset("index_topk_freq");
    draft = draft.unset("index_skip_topk_offset");
    for layer in [1, 3] {
        for (part, shape) in [
            ("wq_b.weight", vec![256, 20]),
            ("wk.weight", vec![16, 48]),
            ("k_norm.weight", vec![16]),
            ("k_norm.bias", vec![16]),
            ("weights_proj.weight", vec![16, 48]),
        ] {
            let name = format!("model.layers.{layer}.self_attn.indexer.{part}");
            draft.put(&name, Dtype::BF16, &shape);
        }
    }
    for (key, value) in settings.as_object().unwrap() {
        draft = draft.set(key, value.clone());
    }
    let source = |sparse| match sparse {
        SparseAttention::Indexed(_) => None,
        SparseAttention::Shared { source } => Some(source),
    };
    Ok(sparse(&draft.decoder()?).into_iter().map(source).collect())
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
fn layers_without_an_indexer_keep_no_keys() {
    let decoder = Draft::fixture("glm_moe_dsa").decoder().unwrap();
    let kinds: Vec<_> = decoder.mixers().map(|mixer| mixer.states().len()).collect();
    assert_eq!(kinds, [2, 1, 2, 1]);
}

#[test]
fn settings_say_which_layers_use_the_positions_of_others() {
    let (own, first, both) =
        (vec![None; 4], vec![None, Some(0), Some(0), Some(0)], vec![None, Some(0), None, Some(2)]);
    for (settings, expected) in [
        (json!({}), &own),
        (json!({"index_topk_freq": 0}), &own),
        (json!({"index_topk_freq": 2, "index_skip_topk_offset": 1}), &both),
        (json!({"index_topk_freq": 2}), &vec![None, None, Some(1), None]),
        (json!({"index_topk_freq": 9, "index_skip_topk_offset": 1}), &first),
        (json!({"index_topk_pattern": "FSFS"}), &both),
        (json!({"index_topk_pattern": "FSSSF"}), &first),
        (json!({"index_topk_pattern": ["full", "shared", "full", "shared"], "index_topk_freq": 3}), &both),
        (
            json!({"indexer_types": ["full", "shared", "shared", "shared"], "index_topk_pattern": "FFFF"}),
            &first,
        ),
        (json!({"indexer_types": null, "index_topk_pattern": null, "index_topk_freq": null}), &own),
    ] {
        assert_eq!(&sources(settings.clone()).unwrap(), expected, "{settings}");
    }
}

#[test]
fn wrong_settings_of_indexers_are_named() {
    for (settings, field, kind) in [
        (json!({"index_topk_pattern": "FFF"}), "index_topk_pattern", ErrorKind::Corrupt),
        (json!({"index_topk_pattern": "SFFF"}), "index_topk_pattern", ErrorKind::Corrupt),
        (json!({"index_topk_pattern": "FFFX"}), "index_topk_pattern", ErrorKind::Unsupported),
        (json!({"indexer_types": ["full", "none", "full", "full"]}), "indexer_types", ErrorKind::Unsupported),
        (json!({"index_topk_freq": 3, "index_skip_topk_offset": 0}), "index_topk_freq", ErrorKind::Corrupt),
        (json!({"indexer_rope_interleave": false}), "indexer_rope_interleave", ErrorKind::Unsupported),
        (json!({"q_lora_rank": null}), "q_lora_rank", ErrorKind::Unsupported),
    ] {
        let error = sources(settings.clone()).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (kind, Some(field)), "{settings}: {error}");
    }
}
