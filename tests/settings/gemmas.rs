//! The settings of Gemmas with embeddings for each layer and with layers that read the keys of others.

use serde_json::{Map, Value, json};

use super::draw::{ACTIVATIONS, Draft, HeadDim};
use super::families::{FULL, SLIDING, windows};

pub(crate) fn gemma4_text(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.usual();
    d.any("hidden_activation", &ACTIVATIONS);
    d.flags(&["attention_bias", "attention_k_eq_v", "use_double_wide_mlp"]);
    d.any("final_logit_softcapping", &[json!(3.0), json!(30.0), Value::Null]);
    d.any("use_bidirectional_attention", &[json!("vision"), Value::Null]);
    windows(d);
    let mut types = types(d, 6);
    if let Some(last) = types.last_mut() {
        FULL.clone_into(last);
    }
    shared_layers(d, &types);
    layer_inputs(d);
    d.markers.push("model.layers.#.layer_scalar".to_owned());
    let width = d.random.pick(if d.packable { &[32, 64][..] } else { &[8, 12, 24][..] });
    // A number of key/value heads that divides every number of query heads.
    let heads = d.random.pick(&[json!(1), Value::Null]);
    if d.random.one_in(2) {
        d.set("global_head_dim", width);
        d.set("num_global_key_value_heads", heads);
    } else {
        let full = types.iter().enumerate().filter(|(_, name)| *name == FULL);
        let own: Map<_, _> = full
            .map(|(index, _)| (index.to_string(), json!({"head_dim": width, "num_key_value_heads": 1})))
            .collect();
        d.set("per_layer_config", own);
    }
    if d.random.one_in(2) {
        let kind = d.random.pick(&["proportional", "default", "linear"]);
        let full = json!({"rope_type": kind, "partial_rotary_factor": d.random.pick(&[0.25, 0.5, 1.0]),
            "rope_theta": 50_000.0, "factor": 2.0});
        let full = match kind {
            "proportional" => full,
            kind => json!({"rope_type": kind, "rope_theta": 1e5, "factor": 2.0}),
        };
        let sliding = json!({"rope_type": "default", "rope_theta": d.random.pick(&[100.0, 10_000.0])});
        d.set("rope_parameters", json!({FULL: full, SLIDING: sliding}));
    }
    if d.random.one_in(2) {
        d.set("enable_moe_block", true);
        let count = d.random.pick(&[2, 3, 4, 6]);
        d.set("num_experts", count);
        let chosen = 1 + d.random.below(count.min(3));
        d.set("top_k_experts", chosen);
        let width = d.width();
        d.set("moe_intermediate_size", width);
        d.expert_layout("model.layers.#");
    }
}

/// The type of each layer; where the settings name none, each `period`th is full.
fn types(d: &Draft, period: usize) -> Vec<String> {
    match d.config.get("layer_types") {
        Some(types) => serde_json::from_value(types.clone()).unwrap(),
        None => (1..=d.layers()).map(|n| if n % period == 0 { FULL } else { SLIDING }.to_owned()).collect(),
    }
}

/// How many of the last layers read the keys of others: of the last before them that has their type.
fn shared_layers(d: &mut Draft, types: &[String]) {
    let has_sources = |shared: usize| {
        let (own, reading) = types.split_at(types.len() - shared);
        reading.iter().all(|name| own.contains(name))
    };
    let possible: Vec<_> = (0..types.len()).filter(|&shared| has_sources(shared)).collect();
    let shared = d.random.pick(&possible);
    d.set("num_kv_shared_layers", shared);
}

/// Embeddings for each layer, or none.
fn layer_inputs(d: &mut Draft) {
    let width = d.random.pick(if d.packable { &[0, 32, 64][..] } else { &[0, 3, 8][..] });
    d.set("hidden_size_per_layer_input", width);
    let rows = d.size("vocab_size") + d.random.pick(&[0, 5]);
    d.set("vocab_size_per_layer_input", rows);
}

pub(crate) fn gemma3n_text(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.usual();
    d.any("hidden_activation", &ACTIVATIONS);
    d.flags(&["attention_bias", "altup_correct_scale"]);
    d.any("final_logit_softcapping", &[3.0, 30.0]);
    windows(d);
    if d.random.one_in(2) {
        let widths: Vec<_> = (0..d.layers()).map(|_| d.width()).collect();
        d.set("intermediate_size", widths);
    }
    if d.random.one_in(2) {
        let parts: Vec<_> = (0..d.layers()).map(|_| d.random.pick(&[0.0, 0.3, 0.5, 0.95])).collect();
        d.set("activation_sparsity_pattern", parts);
    }
    shared_layers(d, &types(d, 5));
    let width = d.random.pick(if d.packable { &[32, 64][..] } else { &[3, 8][..] });
    d.set("hidden_size_per_layer_input", width);
    let rows = d.size("vocab_size") - d.random.pick(&[0, 5]);
    d.set("vocab_size_per_layer_input", rows);
    let streams = d.random.pick(&[1, 2, 3, 4]);
    d.set("altup_num_inputs", streams);
    let active = d.random.below(streams);
    d.set("altup_active_idx", active);
    d.one("laurel_rank", if d.packable { &[32, 64][..] } else { &[1, 5][..] });
    if d.random.one_in(2) {
        d.any("rope_theta", &[json!(10_000.0), json!(1e6)]);
        d.any("rope_local_base_freq", &[json!(100.0), json!(10_000.0)]);
    }
}
