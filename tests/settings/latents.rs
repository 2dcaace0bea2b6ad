//! Settings of families with latent attention.

use serde_json::{Value, json};

use super::draw::{Draft, HeadDim, Ropes};
use super::families::{FULL, query_scale};
use super::hybrids::LINEAR;
use super::mixtures::{grouped_experts, sparse_types};

/// Sizes of latents and heads, and their rotary embedding.
fn latents(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4]);
    d.sizes_of(heads, heads, HeadDim::Derived);
    let packable = d.packable;
    for (key, values, packed) in [
        ("qk_nope_head_dim", [2, 8, 12, 24], [32, 64, 32, 64]),
        ("qk_rope_head_dim", [2, 4, 8, 16], [32, 8, 16, 64]),
        ("v_head_dim", [4, 8, 10, 24], [32, 64, 32, 64]),
        ("kv_lora_rank", [5, 12, 16, 40], [64, 32, 96, 64]),
    ] {
        d.one(key, if packable { &packed } else { &values });
    }
    d.one("q_lora_rank", &[json!(if packable { 64 } else { 10 }), json!(32), Value::Null]);
    let rope_dim = d.size("qk_rope_head_dim");
    // Rotary settings are of a part of heads, which other families do not know.
    d.set("head_dim", rope_dim);
    d.rope(Ropes::All, None);
    if d.random.one_in(3) {
        d.markers.push("model.layers.#.self_attn.embed_q.weight".to_owned());
    }
    d.usual();
    d.flag("attention_bias");
}

pub(crate) fn deepseek_v2(d: &mut Draft) {
    latents(d);
    d.flag("mlp_bias");
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    d.experts(&["n_routed_experts", "num_experts"]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("n_shared_experts", &[1, 2]);
    d.any("routed_scaling_factor", &[1.0, 2.5, 0.7]);
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn deepseek_v3(d: &mut Draft) {
    latents(d);
    d.flag("rope_interleave");
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
}

pub(crate) fn axk1(d: &mut Draft) {
    deepseek_v3(d);
    if d.config["q_lora_rank"].is_null() {
        d.set("q_lora_rank", 32);
    }
    d.any("moe_layer_freq", &[1, 2]);
    sparse_types(d);
    let name = d.random.pick(&["post_mlp_layernorm", "mlp.post_mlp_layernorm"]);
    d.markers.push(format!("model.layers.#.{name}.weight"));
}

pub(crate) fn youtu(d: &mut Draft) {
    latents(d);
    d.flag("rope_interleave");
}

/// What selects positions. Few heads would give many positions the same score, which is zero.
fn indexers(d: &mut Draft) {
    if d.config["q_lora_rank"].is_null() {
        d.set("q_lora_rank", 32);
    }
    d.one("index_n_heads", &[16, 17, 24]);
    let unrotated = d.random.pick(&[0, 1, 6, 32]);
    let rope_dim = d.size("qk_rope_head_dim");
    d.set("index_head_dim", rope_dim + unrotated);
    d.one("index_topk", &[1, 3, 9, 20, 40, 2048]);
}

pub(crate) fn deepseek_v32(d: &mut Draft) {
    latents(d);
    indexers(d);
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    sparse_types(d);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
}

/// Attention to compressed positions. The experts of tokens are whole numbers, of which drawn tensors have
/// none, so that no layer chooses by token.
pub(crate) fn deepseek_v4(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 4, 6]);
    d.sizes_of(heads, 1, HeadDim::Free);
    d.one("head_dim", if d.packable { &[32, 64] } else { &[8, 16] });
    let groups = if heads > 1 { d.random.pick(&[1, 2]) } else { 1 };
    d.set("o_groups", groups);
    let packable = d.packable;
    for key in ["q_lora_rank", "o_lora_rank"] {
        d.one(key, if packable { &[32, 64] } else { &[10, 24] });
    }
    d.one("qk_rope_head_dim", &[4, 8]);
    d.one("index_n_heads", &[16, 17, 24]);
    d.one("index_head_dim", if packable { &[32, 64] } else { &[8, 14] });
    d.one("index_topk", &[1, 3, 9, 512]);
    d.one("sliding_window", &[1, 2, 7, 16, 30]);
    let kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"];
    d.layer_types(&kinds);
    let [sparse, heavy] = [d.random.pick(&[2, 3, 4]), d.random.pick(&[5, 8, 16])];
    d.set("compress_rates", json!({kinds[1]: sparse, kinds[2]: heavy}));
    d.set("num_hash_layers", 0);
    d.one("hc_mult", &[1, 2, 3, 4]);
    d.one("hc_sinkhorn_iters", &[1, 3, 20]);
    d.any("hc_eps", &[1e-6, 1e-3]);
    d.any("rms_norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flag("tie_word_embeddings");
    d.experts(&["n_routed_experts"]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("scoring_func", &["sqrtsoftplus", "sigmoid"]);
    d.any("routed_scaling_factor", &[1.0, 2.5, 0.7]);
    d.any("swiglu_limit", &[0.3, 1.0, 10.0]);
    d.any("rope_theta", &[100.0, 10_000.0]);
    d.any("compress_rope_theta", &[100.0, 160_000.0]);
    if d.random.one_in(2) {
        let original = d.random.pick(&[16, 32, 64]);
        d.set(
            "rope_scaling",
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}),
        );
    }
}

pub(crate) fn glm_moe_dsa(d: &mut Draft) {
    deepseek_v32(d);
    let mut shares: Vec<_> = (0..d.layers()).map(|_| d.random.one_in(2)).collect();
    shares[0] = false;
    let kind = |&shares: &bool| if shares { "shared" } else { "full" };
    let types: Vec<_> = shares.iter().map(kind).collect();
    let letters: String = shares.iter().map(|&shares| if shares { 'S' } else { 'F' }).collect();
    match d.random.below(4) {
        0 => d.set("indexer_types", types),
        1 => d.set("index_topk_pattern", types),
        2 => d.set("index_topk_pattern", letters),
        _ => {
            d.any("index_topk_freq", &[0, 1, 2, 3]);
            d.any("index_skip_topk_offset", &[1, 2, 3]);
        }
    }
}

pub(crate) fn glm4_moe_lite(d: &mut Draft) {
    latents(d);
    d.flag("rope_interleave");
    sparse_types(d);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
}

pub(crate) fn longcat_flash(d: &mut Draft) {
    latents(d);
    if d.config["q_lora_rank"].is_null() {
        d.set("q_lora_rank", 32);
    }
    // transformers counts each half of a layer as one.
    let layers = d.layers().min(3);
    d.set("num_hidden_layers", 2 * layers);
    if d.random.one_in(2) {
        d.set("num_layers", layers);
    }
    for half in [0, 1] {
        if d.random.one_in(4) {
            d.markers.push(format!("model.layers.#.self_attn.{half}.embed_q.weight"));
        }
    }
    let width = d.width();
    for (key, renamed, width) in [
        ("intermediate_size", "ffn_hidden_size", d.size("intermediate_size")),
        ("moe_intermediate_size", "expert_ffn_hidden_size", width),
    ] {
        d.config.remove(key);
        let key = d.random.pick(&[key, renamed]);
        d.set(key, width);
    }
    let count = d.random.pick(&[1, 2, 3, 4, 6]);
    let identities = d.random.pick(&[0, 1, 2, 5]);
    d.set("n_routed_experts", count);
    d.set("zero_expert_num", identities);
    let chosen = 1 + d.random.below((count + identities).min(5));
    let key = d.random.pick(&["moe_topk", "num_experts_per_tok"]);
    d.set(key, chosen);
    d.any("routed_scaling_factor", &[1.0, 2.5, 0.7]);
    d.markers.push("model.layers.#.mlp.router.e_score_correction_bias".to_owned());
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn minicpm3(d: &mut Draft) {
    latents(d);
    d.flag("mlp_bias");
    d.any("scale_depth", &[0.5, 1.4]);
    d.any("scale_emb", &[0.5, 12.0]);
    d.any("dim_model_base", &[json!(8), json!(64), Value::Null]);
}

pub(crate) fn mistral4(d: &mut Draft) {
    latents(d);
    d.flag("rope_interleave");
    query_scale(d);
    d.one("first_k_dense_replace", &[0, 0, 1, 2]);
    grouped_experts(d, "n_routed_experts", "n_shared_experts");
}

/// Kimi delta attention beside latents, and experts by Kimi's names of their settings.
fn kimi_delta(d: &mut Draft) {
    latents(d);
    d.layer_types(&[FULL, LINEAR]);
    d.any("linear_conv_kernel_dim", &[2, 3, 4]);
    sparse_types(d);
    grouped_experts(d, "num_experts", "num_shared_experts");
    for (key, renamed) in [
        ("n_group", "num_expert_group"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("norm_topk_prob", "moe_renormalize"),
        ("max_position_embeddings", "model_max_length"),
    ] {
        if let Some(value) = d.config.remove(key) {
            d.set(renamed, value);
        }
    }
}

pub(crate) fn kimi_linear(d: &mut Draft) {
    kimi_delta(d);
    let (heads, dim) =
        (d.random.pick(&[1, 2, 3]), d.random.pick(if d.packable { &[32, 64][..] } else { &[4, 12][..] }));
    if d.random.one_in(2) {
        d.set("linear_num_heads", heads);
        d.set("linear_head_dim", dim);
    } else {
        d.set(
            "linear_attn_config",
            json!({"num_heads": heads, "head_dim": dim, "short_conv_kernel_size": 3}),
        );
    }
}

pub(crate) fn bailing_hybrid(d: &mut Draft) {
    kimi_delta(d);
    d.config.remove("q_lora_rank");
    d.set("q_lora_rank", Value::Null);
    let dim = d.random.pick(if d.packable { &[32, 64][..] } else { &[4, 12][..] });
    d.set("linear_head_dim", dim);
    d.flag("kda_safe_gate");
    d.any("kda_lower_bound", &[-5.0, -1.0]);
    d.any("layer_group_size", &[1, 2, 3]);
    d.any("short_conv_kernel_size", &[2, 4]);
}
