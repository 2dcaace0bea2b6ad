//! Settings of families before the current ones, and of those that vary Llama.

use serde_json::{Value, json};

use super::draw::{ACTIVATIONS, Draft, HeadDim, Ropes};
use super::families::{FULL, SLIDING, multipliers, rotated, windows};
use super::mixtures::granite_experts;

const EPSILONS: [f64; 3] = [1e-6, 1e-5, 1e-3];

pub(crate) fn codegen(d: &mut Draft) {
    let heads = d.random.pick(&[4, 8]);
    let dim = gpt_head_dim(d);
    gpt(d, heads, dim);
    rotary_dim(d);
}

pub(crate) fn cohere(d: &mut Draft) {
    rotated(d);
    d.any("layer_norm_eps", &EPSILONS);
    d.flags(&["attention_bias", "use_qk_norm"]);
    d.any("logit_scale", &[0.0625, 1.0, 0.3]);
}

pub(crate) fn deepseek(d: &mut Draft) {
    rotated(d);
    d.flag("attention_bias");
    d.experts(&["n_routed_experts"]);
    let width = d.width();
    d.set("moe_intermediate_size", width);
    d.any("n_shared_experts", &[1, 2]);
    d.any("first_k_dense_replace", &[0, 1, 2]);
    d.any("moe_layer_freq", &[1, 2]);
    d.flag("norm_topk_prob");
    d.expert_layout("model.layers.#.mlp");
}

pub(crate) fn falcon(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    d.rope(Ropes::All, None);
    let kv_heads = d.config.remove("num_key_value_heads").unwrap();
    let width = d.config.remove("intermediate_size").unwrap();
    d.one("ffn_hidden_size", &[width, Value::Null]);
    d.any("activation", &ACTIVATIONS);
    d.any("layer_norm_epsilon", &EPSILONS);
    d.flags(&["bias", "tie_word_embeddings"]);
    let newer = d.random.one_in(2);
    d.set("new_decoder_architecture", newer);
    if newer {
        d.set("num_kv_heads", kv_heads);
        d.any("num_ln_in_parallel_attn", &[json!(1), json!(2), Value::Null]);
    } else {
        d.flags(&["multi_query", "parallel_attn"]);
    }
}

pub(crate) fn glm(d: &mut Draft) {
    d.sizes(HeadDim::Free);
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    d.usual();
    d.flag("attention_bias");
}

pub(crate) fn gpt2(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    let dim = d.random.pick(&[2, 4, 5, 9, 16, 32]);
    gpt(d, heads, dim);
    d.flags(&["scale_attn_weights", "scale_attn_by_inverse_layer_idx"]);
}

pub(crate) fn gpt_bigcode(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    let dim = gpt_head_dim(d);
    gpt(d, heads, dim);
    d.flags(&["multi_query", "scale_attn_weights"]);
}

pub(crate) fn gptj(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    let dim = gpt_head_dim(d);
    gpt(d, heads, dim);
    rotary_dim(d);
}

/// A width of heads that can be rotated, and packed if need be.
fn gpt_head_dim(d: &mut Draft) -> usize {
    if d.packable { 32 } else { d.random.pick(&[2, 4, 6, 8, 16, 32]) }
}

/// The settings of GPT-2 and what came of it, with so many heads of this width.
fn gpt(d: &mut Draft, heads: usize, dim: usize) {
    d.set("n_embd", heads * dim);
    d.set("n_head", heads);
    d.one("n_layer", &[1, 2, 3, 5]);
    d.one("vocab_size", &[33, 72, 257]);
    d.one("n_positions", &[64, 96, 200]);
    let width = d.width();
    d.one("n_inner", &[json!(width), Value::Null]);
    d.any("activation_function", &ACTIVATIONS);
    d.any("layer_norm_epsilon", &EPSILONS);
    d.flag("tie_word_embeddings");
}

fn rotary_dim(d: &mut Draft) {
    let pairs = d.size("n_embd") / d.size("n_head") / 2;
    let rotated = 2 * (1 + d.random.below(pairs));
    d.set("rotary_dim", rotated);
}

pub(crate) fn granitemoeshared(d: &mut Draft) {
    rotated(d);
    d.flag("attention_bias");
    d.experts(&["num_local_experts"]);
    multipliers(d);
    let width = d.width();
    d.any("shared_intermediate_size", &[0, width]);
    if d.random.one_in(3) {
        d.markers.push("model.layers.#.mlp.gate_proj.weight".to_owned());
    }
    granite_experts(d);
}

/// Helium's output projection reads as many elements as the stream has.
pub(crate) fn helium(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    let dim = d.head_dim();
    d.set("head_dim", dim);
    d.rope(Ropes::All, None);
    d.usual();
    d.flags(&["attention_bias", "mlp_bias"]);
}

pub(crate) fn internlm2(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    d.rope(Ropes::All, None);
    d.usual();
    d.flag("bias");
    if d.random.one_in(2) {
        d.markers.push("model.layers.#.attention.wqkv.weight".to_owned());
        d.markers.push("output.weight".to_owned());
    }
}

pub(crate) fn mamba(d: &mut Draft) {
    d.layers_and_vocabulary();
    let hidden = if d.packable { 64 } else { d.random.pick(&[3, 8, 20, 48]) };
    d.set("hidden_size", hidden);
    d.any("expand", &[1, 2, 3]);
    if d.random.one_in(3) {
        d.set("intermediate_size", 3 * hidden);
    }
    d.one("state_size", &[2, 5, 8, 16]);
    d.any("conv_kernel", &[2, 3, 4]);
    let rank = if d.packable { 32 } else { d.random.pick(&[1, 3, 8]) };
    d.set("time_step_rank", rank);
    d.any("layer_norm_epsilon", &EPSILONS);
    d.any("mixer_rms_eps", &EPSILONS);
    d.any("hidden_act", &ACTIVATIONS);
    d.flags(&["use_bias", "use_conv_bias", "tie_word_embeddings"]);
}

pub(crate) fn ministral(d: &mut Draft) {
    rotated(d);
    d.window("sliding_window");
    if d.config.get("sliding_window").is_some_and(Value::is_number) {
        d.layer_types(&[FULL, SLIDING]);
    }
}

pub(crate) fn nanochat(d: &mut Draft) {
    rotated(d);
    d.flag("attention_bias");
    d.any("final_logit_softcapping", &[json!(3.0), json!(15.0), Value::Null]);
}

pub(crate) fn olmo(d: &mut Draft) {
    rotated(d);
    d.flag("attention_bias");
    d.any("clip_qkv", &[json!(0.4), json!(2.5), Value::Null]);
}

pub(crate) fn opt(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    d.sizes_of(heads, heads, HeadDim::Derived);
    let width = d.config.remove("intermediate_size").unwrap();
    d.set("ffn_dim", width);
    d.any("activation_function", &ACTIVATIONS);
    d.flags(&["enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"]);
}

pub(crate) fn persimmon(d: &mut Draft) {
    let heads = d.random.pick(&[1, 2, 3, 4, 6]);
    d.sizes_of(heads, heads, HeadDim::Derived);
    even_part(d);
}

pub(crate) fn phi(d: &mut Draft) {
    d.sizes(HeadDim::Derived);
    even_part(d);
}

/// Rotated parts of heads, and norms of queries and keys.
fn even_part(d: &mut Draft) {
    d.rope(Ropes::All, Some("partial_rotary_factor"));
    d.any("hidden_act", &ACTIVATIONS);
    d.any("layer_norm_eps", &EPSILONS);
    d.flags(&["tie_word_embeddings", "qk_layernorm"]);
}

pub(crate) fn vaultgemma(d: &mut Draft) {
    rotated(d);
    d.any("hidden_activation", &ACTIVATIONS);
    d.flag("attention_bias");
    d.any("query_pre_attn_scalar", &[4, 64, 144]);
    d.any("attn_logit_softcapping", &[json!(2.0), json!(50.0), Value::Null]);
    d.any("final_logit_softcapping", &[json!(3.0), json!(30.0), Value::Null]);
    windows(d);
}
