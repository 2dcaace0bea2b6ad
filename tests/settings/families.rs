//! The settings of each family that its reference implementation reads: an entry for each `model_type`.

use serde_json::{Value, json};

use super::draw::{ACTIVATIONS, Draft, HeadDim, Ropes};
use super::{classics, gemmas, hybrids, latents, mixtures, routed};

/// Draws the settings of a family.
type Settings = fn(&mut Draft);

pub(crate) const FULL: &str = "full_attention";
pub(crate) const SLIDING: &str = "sliding_attention";

/// Every family, by `model_type`.
pub(crate) const FAMILIES: &[(&str, Settings)] = &[
    ("afmoe", mixtures::afmoe),
    ("apertus", |d| {
        biased(d);
        if d.random.one_in(2) {
            d.set("hidden_act", "xielu");
        }
    }),
    ("arcee", llama),
    ("axk1", latents::axk1),
    ("bailing_hybrid", latents::bailing_hybrid),
    ("bamba", hybrids::bamba),
    ("bitnet", |d| {
        d.sizes(HeadDim::Derived);
        d.rope(Ropes::All, None);
        d.usual();
        d.flag("attention_bias");
    }),
    ("codegen", classics::codegen),
    ("cohere", classics::cohere),
    ("cohere2", cohere2),
    ("cohere2_moe", routed::cohere2_moe),
    ("cwm", |d| {
        rotated(d);
        d.flag("mlp_bias");
        windows(d);
    }),
    ("deepseek", classics::deepseek),
    ("deepseek_v2", latents::deepseek_v2),
    ("deepseek_v3", latents::deepseek_v3),
    ("deepseek_v32", latents::deepseek_v32),
    ("deepseek_v4", latents::deepseek_v4),
    ("dots1", mixtures::dots1),
    ("ernie4_5", |d| {
        rotated(d);
        d.flag("use_bias");
    }),
    ("ernie4_5_moe", mixtures::ernie4_5_moe),
    ("exaone4", exaone4),
    ("exaone_moe", mixtures::exaone_moe),
    ("falcon", classics::falcon),
    ("falcon_h1", hybrids::falcon_h1),
    ("falcon_mamba", classics::mamba),
    ("flint", routed::flint),
    ("gemma", biased),
    ("gemma2", gemma2),
    ("gemma3_text", gemma3_text),
    ("gemma3n_text", gemmas::gemma3n_text),
    ("gemma4_text", gemmas::gemma4_text),
    ("gemma4_unified_text", gemmas::gemma4_text),
    ("glm", classics::glm),
    ("glm4", classics::glm),
    ("glm4_moe", mixtures::glm4_moe),
    ("glm4_moe_lite", latents::glm4_moe_lite),
    ("glm_moe_dsa", latents::glm_moe_dsa),
    ("gpt2", classics::gpt2),
    ("gpt_bigcode", classics::gpt_bigcode),
    ("gpt_neox", gpt_neox),
    ("gpt_oss", gpt_oss),
    ("gptj", classics::gptj),
    ("granite", |d| {
        llama(d);
        multipliers(d);
    }),
    ("granite_swa", granite_swa),
    ("granitemoe", |d| {
        biased(d);
        d.experts(&["num_local_experts"]);
        multipliers(d);
        mixtures::granite_experts(d);
    }),
    ("granitemoehybrid", hybrids::granitemoehybrid),
    ("granitemoeshared", classics::granitemoeshared),
    ("helium", classics::helium),
    ("hunyuan_v1_dense", hunyuan),
    ("hunyuan_v1_moe", mixtures::hunyuan_v1_moe),
    ("hy_v3", routed::hy_v3),
    ("hyperclovax", |d| {
        rotated(d);
        d.flags(&["attention_bias", "mlp_bias", "use_post_norm"]);
        multipliers(d);
    }),
    ("internlm2", classics::internlm2),
    ("internlm3", |d| {
        rotated(d);
        let biased = d.random.one_in(2);
        for keys in [["attention_bias", "qkv_bias"], ["mlp_bias", "bias"]] {
            let key = d.random.pick(&keys);
            d.set(key, biased);
        }
    }),
    ("jais2", |d| {
        rotated(d);
        d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
        d.flags(&["attention_bias", "mlp_bias"]);
    }),
    ("jamba", hybrids::jamba),
    ("kimi_linear", latents::kimi_linear),
    ("kolibri1", routed::kolibri1),
    ("laguna", routed::laguna),
    ("lfm2", hybrids::lfm2),
    ("lfm2_moe", hybrids::lfm2_moe),
    ("lfm3", hybrids::lfm3),
    ("llama", llama),
    ("llama4_text", mixtures::llama4_text),
    ("longcat_flash", latents::longcat_flash),
    ("mamba", classics::mamba),
    ("mamba2", hybrids::mamba2),
    ("mellum", routed::mellum),
    ("mimo_v2_flash", mixtures::mimo_v2_flash),
    ("minicpm", |d| {
        biased(d);
        d.any("scale_depth", &[0.5, 1.4]);
        d.any("scale_emb", &[0.5, 12.0]);
        d.any("dim_model_base", &[8, 64, 256]);
    }),
    ("minicpm3", latents::minicpm3),
    ("minimax_m2", mixtures::minimax_m2),
    ("ministral", classics::ministral),
    ("ministral3", ministral3),
    ("mistral", |d| {
        rotated(d);
        d.window("sliding_window");
    }),
    ("mistral4", latents::mistral4),
    ("mixtral", |d| {
        rotated(d);
        d.window("sliding_window");
        d.experts(&["num_local_experts", "num_experts"]);
        let module = d.random.pick(&["block_sparse_moe", "mlp"]);
        d.markers.push(format!("model.layers.#.{module}.gate.weight"));
        d.expert_layout(&format!("model.layers.#.{module}"));
    }),
    ("nanochat", classics::nanochat),
    ("nemotron", |d| {
        d.sizes(HeadDim::Free);
        d.rope(Ropes::All, Some("partial_rotary_factor"));
        d.usual();
        d.any("norm_eps", &[1e-6, 1e-5, 1e-3]);
        d.flags(&["attention_bias", "mlp_bias"]);
    }),
    ("nemotron_h", hybrids::nemotron_h),
    ("olmo", classics::olmo),
    ("olmo2", biased),
    ("olmo3", |d| {
        d.sizes(HeadDim::Free);
        d.usual();
        d.any("rope_theta", &[json!(10_000.0), json!(500_000)]);
        d.flag("attention_bias");
        windows(d);
        layer_ropes(d);
    }),
    ("olmo_hybrid", hybrids::olmo_hybrid),
    ("olmoe", |d| {
        rotated(d);
        d.flags(&["attention_bias", "norm_topk_prob"]);
        d.any("clip_qkv", &[json!(0.4), json!(2.5), Value::Null]);
        d.experts(&["num_experts", "num_local_experts"]);
        d.expert_layout("model.layers.#.mlp");
    }),
    ("opt", classics::opt),
    ("persimmon", classics::persimmon),
    ("phi", classics::phi),
    ("phi3", |d| {
        d.sizes(HeadDim::Derived);
        d.rope(Ropes::LongRope, Some("partial_rotary_factor"));
        d.usual();
        d.window("sliding_window");
    }),
    ("phimoe", mixtures::phimoe),
    ("qwen2", |d| {
        rotated(d);
        qwen_windows(d);
    }),
    ("qwen2_moe", |d| {
        rotated(d);
        d.flags(&["qkv_bias", "norm_topk_prob"]);
        sparse(d);
        shared_width(d);
        let windowed = d.random.one_in(2);
        d.set("use_sliding_window", windowed);
        if windowed {
            d.window("sliding_window");
            d.any("max_window_layers", &[0, 1, 2]);
            d.layer_types(&[FULL, SLIDING]);
        }
    }),
    ("qwen3", |d| {
        rotated(d);
        qwen_windows(d);
        d.flag("attention_bias");
    }),
    ("qwen3_5_moe_text", hybrids::qwen3_5_moe_text),
    ("qwen3_5_text", hybrids::qwen3_5_text),
    ("qwen3_moe", |d| {
        rotated(d);
        d.flags(&["attention_bias", "norm_topk_prob"]);
        sparse(d);
        d.flag("use_sliding_window");
        d.window("sliding_window");
    }),
    ("qwen3_next", hybrids::qwen3_next),
    ("rwkv7", hybrids::rwkv7),
    ("seed_oss", |d| {
        rotated(d);
        d.flags(&["attention_bias", "attention_out_bias", "mlp_bias"]);
    }),
    ("smollm3", smollm3),
    ("solar_open", |d| {
        biased(d);
        mixtures::grouped_experts(d, "n_routed_experts", "n_shared_experts");
    }),
    ("stablelm", |d| {
        d.sizes(HeadDim::Derived);
        d.rope(Ropes::All, Some("partial_rotary_factor"));
        d.usual();
        d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
        d.flags(&["use_qkv_bias", "qk_layernorm", "use_parallel_residual"]);
    }),
    ("step3p5", mixtures::step3p5),
    ("starcoder2", |d| {
        rotated(d);
        d.any("norm_epsilon", &[1e-6, 1e-5, 1e-3]);
        d.flag("use_bias");
        d.window("sliding_window");
    }),
    ("vaultgemma", classics::vaultgemma),
    ("youtu", latents::youtu),
    ("youtu_llm", latents::youtu),
];

/// What most families have: sizes, one rotary embedding of whole heads, and the usual settings.
pub(crate) fn rotated(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, None);
    d.usual();
}

fn biased(d: &mut Draft) {
    rotated(d);
    d.flag("attention_bias");
}

fn llama(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "mlp_bias"]);
}

/// A window in some layers.
pub(crate) fn windows(d: &mut Draft) {
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.layer_types(&[FULL, SLIDING]);
}

fn cohere2(d: &mut Draft) {
    rotated(d);
    d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flag("attention_bias");
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("sliding_window_pattern", &[1, 2, 3]);
    d.layer_types(&[FULL, SLIDING]);
    d.any("logit_scale", &[0.0625, 1.0, 0.3]);
}

pub(crate) fn exaone4(d: &mut Draft) {
    rotated(d);
    d.window("sliding_window");
    if d.config.get("sliding_window").is_some_and(Value::is_number) {
        d.any("sliding_window_pattern", &[1, 2, 3]);
        d.layer_types(&[FULL, SLIDING]);
    }
}

fn gemma2(d: &mut Draft) {
    rotated(d);
    d.any("hidden_activation", &ACTIVATIONS);
    d.flag("attention_bias");
    d.any("query_pre_attn_scalar", &[json!(4), json!(64), json!(144.5)]);
    d.any("attn_logit_softcapping", &[json!(2.0), json!(50.0), Value::Null]);
    d.any("final_logit_softcapping", &[json!(3.0), json!(30.0), Value::Null]);
    windows(d);
}

fn gemma3_text(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.usual();
    d.any("hidden_activation", &ACTIVATIONS);
    d.flag("attention_bias");
    d.any("query_pre_attn_scalar", &[json!(4), json!(64), json!(144.5)]);
    d.any("final_logit_softcapping", &[json!(3.0), json!(30.0), Value::Null]);
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("sliding_window_pattern", &[1, 2, 3]);
    d.layer_types(&[FULL, SLIDING]);
    if d.random.one_in(2) {
        d.any("rope_theta", &[json!(10_000.0), json!(1e6)]);
        d.any("rope_local_base_freq", &[json!(100.0), json!(10_000.0)]);
        if d.random.one_in(2) {
            d.set("rope_scaling", json!({"rope_type": "linear", "factor": 8.0}));
        }
    } else {
        layer_ropes(d);
    }
}

/// Rotary settings for each type of layer.
pub(crate) fn layer_ropes(d: &mut Draft) {
    if d.random.one_in(2) {
        return;
    }
    let pairs = d.head_dim() / 2;
    let mut of_type = || {
        let mut settings = d.scaling(Ropes::All, pairs);
        // Both sets of frequencies would change with the length; no published model has that.
        if settings.get("rope_type") == Some(&json!("longrope")) {
            settings.clear();
        }
        settings.entry("rope_type").or_insert_with(|| json!("default"));
        settings.insert("rope_theta".to_owned(), d.random.pick(&[json!(100.0), json!(10_000.0), json!(1e6)]));
        settings
    };
    let (full, sliding) = (of_type(), of_type());
    d.set("rope_parameters", json!({FULL: full, SLIDING: sliding}));
}

fn gpt_neox(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    d.sizes_of(heads, heads, HeadDim::Derived);
    d.rope(Ropes::All, Some("rotary_pct"));
    if let Some(theta) = d.config.remove("rope_theta") {
        d.set("rotary_emb_base", theta);
    }
    d.any("hidden_act", &ACTIVATIONS);
    d.any("layer_norm_eps", &[1e-6, 1e-5, 1e-3]);
    d.flags(&["tie_word_embeddings", "attention_bias", "use_parallel_residual"]);
    if d.random.one_in(2) {
        d.markers.push("embed_out.weight".to_owned());
    }
}

fn gpt_oss(d: &mut Draft) {
    rotated(d);
    d.config.remove("hidden_act");
    d.flag("attention_bias");
    windows(d);
    d.any("swiglu_limit", &[0.5, 7.0]);
    d.experts(&["num_local_experts", "num_experts"]);
    if d.random.one_in(2) {
        d.markers.push("model.layers.#.mlp.experts.gate_up_proj".to_owned());
    }
}

/// Hunyuan's attention.
pub(crate) fn hunyuan(d: &mut Draft) {
    biased(d);
    let scaling = ["rope_scaling", "rope_parameters"].into_iter().find(|key| d.config.contains_key(*key));
    if let Some(key) = scaling
        && d.config[key].get("rope_type") == Some(&json!("dynamic"))
    {
        d.config[key]["alpha"] = d.random.pick(&[json!(1000.0), json!(2.5), json!(0), Value::Null]);
    }
}

/// Granite's factors.
pub(crate) fn multipliers(d: &mut Draft) {
    d.any("embedding_multiplier", &[0.5, 12.0]);
    d.any("logits_scaling", &[0.5, 8.0]);
    d.any("residual_multiplier", &[0.22, 1.5]);
    d.any("attention_multiplier", &[0.0625, 0.4]);
}

fn granite_swa(d: &mut Draft) {
    llama(d);
    multipliers(d);
    windows(d);
    let changes_with_length =
        |key| d.config.get(key).is_some_and(|own: &Value| own["rope_type"] == "longrope");
    if !["rope_scaling", "rope_parameters"].into_iter().any(changes_with_length) && d.random.one_in(2) {
        let thetas = [json!(0), json!(100.0), json!(10_000)];
        let thetas: Vec<_> = (0..d.layers()).map(|_| d.random.pick(&thetas)).collect();
        d.set("layer_rope_theta", thetas);
    }
}

fn ministral3(d: &mut Draft) {
    rotated(d);
    d.window("sliding_window");
    query_scale(d);
}

/// Queries that grow with positions, in half of all cases with rotary settings.
pub(crate) fn query_scale(d: &mut Draft) {
    let scaling = ["rope_scaling", "rope_parameters"].into_iter().find(|key| d.config.contains_key(*key));
    if let Some(key) = scaling
        && d.random.one_in(2)
    {
        let (beta, original) = (d.random.pick(&[0.1, 0.5]), d.random.pick(&[4, 16]));
        d.config[key]["llama_4_scaling_beta"] = beta.into();
        if d.config[key].get("original_max_position_embeddings").is_none() {
            d.config[key]["original_max_position_embeddings"] = original.into();
        }
    }
}

/// Windows by Qwen's settings.
fn qwen_windows(d: &mut Draft) {
    d.flag("use_sliding_window");
    d.one("sliding_window", &[1, 3, 7, 16, 30]);
    d.any("max_window_layers", &[0, 1, 2]);
    if d.config.get("use_sliding_window") == Some(&json!(true)) {
        d.layer_types(&[FULL, SLIDING]);
    }
}

/// Which layers have experts, and these.
pub(crate) fn sparse(d: &mut Draft) {
    d.experts(&["num_experts"]);
    if d.random.one_in(8) {
        d.set("num_experts", 0);
    }
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("decoder_sparse_step", &[1, 1, 2]);
    d.any("mlp_only_layers", &[json!([]), json!([0]), json!([1])]);
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn shared_width(d: &mut Draft) {
    let width = d.width();
    d.set("shared_expert_intermediate_size", width);
}

fn smollm3(d: &mut Draft) {
    rotated(d);
    d.flags(&["attention_bias", "mlp_bias", "use_sliding_window"]);
    d.one("sliding_window", &[json!(3), json!(16), Value::Null]);
    if d.random.one_in(2) {
        let layers: Vec<_> = (0..d.layers()).map(|_| d.random.below(2)).collect();
        d.set("no_rope_layers", layers);
    } else {
        d.any("no_rope_layer_interval", &[1, 2, 3]);
    }
}
