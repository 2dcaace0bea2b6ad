//! The supported architectures.

use super::Change::{Flat, Heads, Keep, NegatedExponential, Row, Taps};
use super::Fixed::{Flag, Null};
use super::Rows::{Halves, Paired, Pairs, Ungrouped};
use super::{Architecture, Name, adapt};

/// Keys that mean the same in all architectures.
pub(super) const COMMON: &[(&str, &str)] = &[
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
];

/// The names that most architectures give their tensors.
pub(super) const TENSORS: &[Name] = &[
    ("token_embd", "embed_tokens", Keep),
    ("output_norm", "norm", Keep),
    ("output", "lm_head", Keep),
    ("attn_norm", "input_layernorm", Keep),
    ("attn_q", "self_attn.q_proj", Keep),
    ("attn_k", "self_attn.k_proj", Keep),
    ("attn_v", "self_attn.v_proj", Keep),
    ("attn_output", "self_attn.o_proj", Keep),
    ("attn_q_norm", "self_attn.q_norm", Keep),
    ("attn_k_norm", "self_attn.k_norm", Keep),
    ("ffn_norm", "post_attention_layernorm", Keep),
    ("ffn_gate", "mlp.gate_proj", Keep),
    ("ffn_up", "mlp.up_proj", Keep),
    ("ffn_down", "mlp.down_proj", Keep),
    ("ffn_gate_inp", "mlp.gate", Keep),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj", Keep),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj", Keep),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj", Keep),
];

/// Names of the norms around blocks where there are four of them.
const FOUR_NORMS: [Name; 3] = [
    ("post_attention_norm", "post_attention_layernorm", Keep),
    ("ffn_norm", "pre_feedforward_layernorm", Keep),
    ("post_ffw_norm", "post_feedforward_layernorm", Keep),
];
/// Names of the norms behind blocks.
const POST_NORMS: [Name; 2] = [
    ("post_attention_norm", "post_attention_layernorm", Keep),
    ("post_ffw_norm", "post_feedforward_layernorm", Keep),
];
/// Names of the experts that all tokens go through, in DeepSeek-V3 and after it.
const SHARED_EXPERTS: [Name; 4] = [
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", Keep),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj", Keep),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj", Keep),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj", Keep),
];

const RMS_EPSILON: (&str, &str) = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");
const CHOSEN: (&str, &str) = ("expert_used_count", "num_experts_per_tok");
const BIASES: &[(&str, &str)] = &[("attn_q.bias", "attention_bias")];

/// Settings of a router by sigmoids.
const SIGMOID_EXPERTS: [(&str, &str); 8] = [
    ("expert_count", "n_routed_experts"),
    CHOSEN,
    ("expert_shared_count", "n_shared_experts"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
];

/// Llama's structure and names, queries and keys rotated in halves.
const PLAIN: Architecture = Architecture {
    name: "",
    model_type: "",
    rows: Halves,
    whole_norms: false,
    settings: &[RMS_EPSILON],
    fixed: &[],
    present: BIASES,
    base: ["model.", "layers."],
    tensors: &[],
    adapt: adapt::nothing,
};

const GRANITE: &[(&str, &str)] = &[
    RMS_EPSILON,
    ("attention.scale", "attention_multiplier"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logits_scaling"),
    ("expert_count", "num_local_experts"),
    CHOSEN,
];
const LAYER_EPSILON: &str = "attention.layer_norm_epsilon";

/// All of them, by name.
pub(super) const ALL: &[Architecture] = &[
    Architecture {
        name: "cohere2",
        model_type: "cohere2",
        rows: Pairs,
        settings: &[(LAYER_EPSILON, "layer_norm_eps"), ("logit_scale", "logit_scale")],
        adapt: adapt::cohere2,
        ..PLAIN
    },
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v3",
        rows: Pairs,
        settings: &{
            let [a, b, c, d, e, f, g, h] = SIGMOID_EXPERTS;
            let (queries, latents) = ("attention.q_lora_rank", "attention.kv_lora_rank");
            [RMS_EPSILON, (queries, "q_lora_rank"), (latents, "kv_lora_rank"), a, b, c, d, e, f, g, h]
        },
        present: &[],
        tensors: &{
            let [bias, gate, up, down] = SHARED_EXPERTS;
            [
                bias,
                gate,
                up,
                down,
                ("attn_q_a", "self_attn.q_a_proj", Keep),
                ("attn_q_a_norm", "self_attn.q_a_layernorm", Keep),
                ("attn_q_b", "self_attn.q_b_proj", Keep),
                ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa", Keep),
                ("attn_kv_a_norm", "self_attn.kv_a_layernorm", Keep),
                ("attn_kv_b", "self_attn.kv_b_proj", Keep),
                ("attn_k_b", "self_attn.embed_q", Keep),
                ("attn_v_b", "self_attn.unembed_out", Keep),
            ]
        },
        adapt: adapt::deepseek2,
        ..PLAIN
    },
    Architecture {
        name: "ernie4_5",
        model_type: "ernie4_5",
        rows: Pairs,
        present: &[("attn_q.bias", "use_bias")],
        ..PLAIN
    },
    Architecture {
        name: "exaone4",
        model_type: "exaone4",
        tensors: &POST_NORMS,
        adapt: adapt::exaone4,
        ..PLAIN
    },
    Architecture { name: "gemma", model_type: "gemma", whole_norms: true, ..PLAIN },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        whole_norms: true,
        settings: &[
            RMS_EPSILON,
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
        tensors: &FOUR_NORMS,
        adapt: adapt::gemma2,
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        whole_norms: true,
        settings: &[
            RMS_EPSILON,
            ("rope.freq_base_swa", "rope_local_base_freq"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
        tensors: &FOUR_NORMS,
        adapt: adapt::gemma3,
        ..PLAIN
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        rows: Pairs,
        tensors: &[
            ("post_attention_norm", "post_self_attn_layernorm", Keep),
            ("post_ffw_norm", "post_mlp_layernorm", Keep),
            ("ffn_up", "mlp.gate_up_proj", Keep),
        ],
        adapt: adapt::partial_rotary,
        ..PLAIN
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        settings: &{
            let [a, b, c, d, e, f, g, h] = SIGMOID_EXPERTS;
            [RMS_EPSILON, a, b, c, d, e, f, g, h]
        },
        present: &[("attn_q.bias", "attention_bias"), ("attn_q_norm.weight", "use_qk_norm")],
        tensors: &{
            let [bias, gate, up, down] = SHARED_EXPERTS;
            [bias, gate, up, down, ("post_attention_norm", "post_attention_layernorm", Keep)]
        },
        adapt: adapt::glm4moe,
        ..PLAIN
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        settings: &[RMS_EPSILON, ("expert_count", "num_local_experts"), CHOSEN],
        tensors: &[
            ("post_attention_norm", "post_attention_layernorm", Keep),
            ("attn_sinks.weight", "self_attn.sinks", Keep),
            ("ffn_gate_inp", "mlp.router", Keep),
            ("ffn_gate_exps", "mlp.experts.gate_proj", Keep),
            ("ffn_up_exps", "mlp.experts.up_proj", Keep),
            ("ffn_down_exps", "mlp.experts.down_proj", Keep),
        ],
        adapt: adapt::gpt_oss,
        ..PLAIN
    },
    Architecture {
        name: "gpt2",
        model_type: "gpt2",
        settings: &[(LAYER_EPSILON, "layer_norm_epsilon"), ("feed_forward_length", "n_inner")],
        fixed: &[("conv1d", Flag(false))],
        present: &[],
        base: ["transformer.", "h."],
        tensors: &[
            ("token_embd", "wte", Keep),
            ("position_embd", "wpe", Keep),
            ("output_norm", "ln_f", Keep),
            ("attn_norm", "ln_1", Keep),
            ("attn_qkv", "attn.c_attn", Keep),
            ("attn_output", "attn.c_proj", Keep),
            ("ffn_norm", "ln_2", Keep),
            ("ffn_up", "mlp.c_fc", Keep),
            ("ffn_down", "mlp.c_proj", Keep),
        ],
        ..PLAIN
    },
    Architecture {
        name: "gptneox",
        model_type: "gpt_neox",
        settings: &[(LAYER_EPSILON, "layer_norm_eps"), ("use_parallel_residual", "use_parallel_residual")],
        rows: Ungrouped,
        fixed: &[("fused_by_head", Flag(false))],
        present: &[("attn_qkv.bias", "attention_bias")],
        base: ["gpt_neox.", "layers."],
        tensors: &[
            ("token_embd", "embed_in", Keep),
            ("output_norm", "final_layer_norm", Keep),
            ("attn_qkv", "attention.query_key_value", Keep),
            ("attn_output", "attention.dense", Keep),
            ("ffn_up", "mlp.dense_h_to_4h", Keep),
            ("ffn_down", "mlp.dense_4h_to_h", Keep),
        ],
        adapt: adapt::gptneox,
        ..PLAIN
    },
    Architecture { name: "granite", model_type: "granite", rows: Paired, settings: GRANITE, ..PLAIN },
    Architecture {
        name: "granitemoe",
        model_type: "granitemoe",
        rows: Paired,
        settings: GRANITE,
        tensors: &[
            ("ffn_gate_inp", "block_sparse_moe.router", Keep),
            ("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj", Keep),
            ("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj", Keep),
            ("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj", Keep),
        ],
        adapt: adapt::expert_width,
        ..PLAIN
    },
    Architecture {
        name: "lfm2",
        model_type: "lfm2",
        settings: &[("attention.layer_norm_rms_epsilon", "norm_eps"), ("shortconv.l_cache", "conv_L_cache")],
        fixed: &[("block_auto_adjust_ff_dim", Flag(false))],
        present: &[],
        tensors: &[
            ("token_embd_norm", "embedding_norm", Keep),
            ("output_norm", "embedding_norm", Keep),
            ("attn_norm", "operator_norm", Keep),
            ("attn_output", "self_attn.out_proj", Keep),
            ("attn_q_norm", "self_attn.q_layernorm", Keep),
            ("attn_k_norm", "self_attn.k_layernorm", Keep),
            ("ffn_norm", "ffn_norm", Keep),
            ("ffn_gate", "feed_forward.w1", Keep),
            ("ffn_up", "feed_forward.w3", Keep),
            ("ffn_down", "feed_forward.w2", Keep),
            ("shortconv.in_proj", "conv.in_proj", Keep),
            ("shortconv.conv.weight", "conv.conv.weight", Taps),
            ("shortconv.out_proj", "conv.out_proj", Keep),
        ],
        adapt: adapt::lfm2,
        ..PLAIN
    },
    Architecture {
        name: "llama",
        model_type: "llama",
        rows: Paired,
        settings: &[RMS_EPSILON, ("expert_count", "num_local_experts"), CHOSEN],
        present: &[("attn_q.bias", "attention_bias"), ("ffn_gate.bias", "mlp_bias")],
        adapt: adapt::llama,
        ..PLAIN
    },
    Architecture {
        name: "mamba2",
        model_type: "mamba2",
        settings: &[
            ("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"),
            ("ssm.conv_kernel", "conv_kernel"),
            ("ssm.state_size", "state_size"),
            ("ssm.group_count", "n_groups"),
        ],
        present: &[("ssm_in.bias", "use_bias"), ("ssm_conv1d.bias", "use_conv_bias")],
        base: ["backbone.", "layers."],
        tensors: &[
            ("token_embd", "embeddings", Keep),
            ("output_norm", "norm_f", Keep),
            ("attn_norm", "norm", Keep),
            ("ssm_in", "mixer.in_proj", Keep),
            ("ssm_conv1d.weight", "mixer.conv1d.weight", Taps),
            ("ssm_conv1d.bias", "mixer.conv1d.bias", Keep),
            ("ssm_dt.bias", "mixer.dt_bias", Flat),
            ("ssm_a", "mixer.A_log", NegatedExponential),
            ("ssm_d", "mixer.D", Flat),
            ("ssm_norm.weight", "mixer.norm.weight", Flat),
            ("ssm_out", "mixer.out_proj", Keep),
        ],
        adapt: adapt::mamba2,
        ..PLAIN
    },
    Architecture {
        name: "mistral3",
        model_type: "ministral3",
        rows: Paired,
        fixed: &[("sliding_window", Null)],
        adapt: adapt::ministral3,
        ..PLAIN
    },
    Architecture {
        name: "nemotron",
        model_type: "nemotron",
        whole_norms: true,
        settings: &[(LAYER_EPSILON, "norm_eps")],
        present: &[("attn_q.bias", "attention_bias"), ("ffn_up.bias", "mlp_bias")],
        adapt: adapt::partial_rotary,
        ..PLAIN
    },
    Architecture { name: "olmo2", model_type: "olmo2", tensors: &POST_NORMS, adapt: adapt::olmo2, ..PLAIN },
    Architecture {
        name: "olmoe",
        model_type: "olmoe",
        settings: &[
            RMS_EPSILON,
            ("expert_count", "num_experts"),
            CHOSEN,
            ("attention.clamp_kqv", "clip_qkv"),
        ],
        adapt: adapt::expert_width,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        tensors: &[("attn_qkv", "self_attn.qkv_proj", Keep), ("ffn_up", "mlp.gate_up_proj", Keep)],
        adapt: adapt::phi3,
        ..PLAIN
    },
    Architecture { name: "qwen2", model_type: "qwen2", ..PLAIN },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        settings: &[RMS_EPSILON, ("expert_count", "num_experts"), CHOSEN],
        present: &[("attn_q.bias", "qkv_bias")],
        tensors: &[
            ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", Row),
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj", Keep),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj", Keep),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj", Keep),
        ],
        adapt: adapt::qwen2moe,
        ..PLAIN
    },
    Architecture { name: "qwen3", model_type: "qwen3", ..PLAIN },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        settings: &[RMS_EPSILON, ("expert_count", "num_experts"), CHOSEN],
        fixed: &[("norm_topk_prob", Flag(true))],
        adapt: adapt::qwen3moe,
        ..PLAIN
    },
    Architecture {
        name: "seed_oss",
        model_type: "seed_oss",
        present: &[("attn_q.bias", "attention_bias"), ("attn_output.bias", "attention_out_bias")],
        tensors: &[("post_attention_norm", "post_attention_layernorm", Keep)],
        ..PLAIN
    },
    Architecture { name: "smollm3", model_type: "smollm3", rows: Paired, ..PLAIN },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        settings: &[(LAYER_EPSILON, "layer_norm_eps"), ("use_parallel_residual", "use_parallel_residual")],
        present: &[("attn_q.bias", "use_qkv_bias"), ("attn_q_norm.weight", "qk_layernorm")],
        tensors: &[
            ("attn_q_norm.weight", "self_attn.q_layernorm.norms.#.weight", Heads),
            ("attn_k_norm.weight", "self_attn.k_layernorm.norms.#.weight", Heads),
        ],
        adapt: adapt::partial_rotary,
        ..PLAIN
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        settings: &[(LAYER_EPSILON, "norm_epsilon")],
        present: &[("attn_q.bias", "use_bias")],
        tensors: &[("ffn_up", "mlp.c_fc", Keep), ("ffn_down", "mlp.c_proj", Keep)],
        ..PLAIN
    },
];
