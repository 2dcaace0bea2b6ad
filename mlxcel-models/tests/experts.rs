//! Families with experts: what their settings do to the description, and which are refused.

use crate::common::Draft;
use mlxcel_core::ErrorKind;
use mlxcel_models::{
    Attention, Decoder, ElementType, ExpertGroups, Experts, LatentAttention, LatentQuery, Mixer, Operation,
    Packing, Scoring,
};
use safetensors::Dtype;
use serde_json::{Value, json};

fn experts(decoder: &Decoder, layer: usize) -> Option<&Experts> {
    decoder.layers[layer].blocks.iter().find_map(|block| match &block.operation {
        Operation::Experts(experts) => Some(experts),
        Operation::Mixer(_) | Operation::Mlp(_) | Operation::LayerInput(_) => None,
    })
}

fn is_interleaved(attention: &LatentAttention) -> bool {
    attention.rope.as_ref().unwrap().interleaved
}

fn attention(decoder: &Decoder, layer: usize) -> &Attention {
    match &decoder.layers[layer].blocks[0].operation {
        Operation::Mixer(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

fn latent(decoder: &Decoder, layer: usize) -> &LatentAttention {
    match &decoder.layers[layer].blocks[0].operation {
        Operation::Mixer(Mixer::Latent(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

fn windows(draft: &Draft) -> Vec<Option<usize>> {
    let decoder = draft.decoder().unwrap();
    (0..decoder.layers.len()).map(|layer| attention(&decoder, layer).core.window).collect()
}

/// The name of the module is found by its matrix in every form.
#[test]
fn a_packed_router_is_found_under_both_names() {
    for module in ["block_sparse_moe", "mlp"] {
        let settings = json!({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": false});
        let mut draft = Draft::fixture("mixtral").set("quantization_config", settings).renamed(|name| {
            name.replace(".block_sparse_moe.", ".mlp.").replace(".mlp.", &format!(".{module}."))
        });
        for layer in 0..3 {
            let gate = format!("model.layers.{layer}.{module}.gate");
            let (_, shape, _) = draft.tensors.remove(&format!("{gate}.weight")).unwrap();
            let &[experts, hidden] = &shape[..] else { panic!("{shape:?}") };
            draft.put(&format!("{gate}.qweight"), Dtype::I32, &[hidden / 4, experts]);
            draft.put(&format!("{gate}.qzeros"), Dtype::I32, &[1, experts / 4]);
            draft.put(&format!("{gate}.scales"), Dtype::F16, &[1, experts]);
        }
        let decoder = draft.decoder().unwrap();
        let router = experts(&decoder, 0).unwrap().router.projection.weight;
        assert_eq!(decoder.weight(router).tensor, format!("model.layers.0.{module}.gate.qweight"));
    }
}

/// Products with the matrices of heads cannot undo another order of columns.
#[test]
fn projections_of_latents_with_act_order_are_refused() {
    let settings = json!({"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": false});
    let mut draft = Draft::fixture("deepseek_v3").set("quantization_config", settings);
    let module = "model.layers.0.self_attn.kv_b_proj";
    let (_, shape, _) = draft.tensors.remove(&format!("{module}.weight")).unwrap();
    let &[rows, rank] = &shape[..] else { panic!("{shape:?}") };
    draft.put(&format!("{module}.qweight"), Dtype::I32, &[rank / 8, rows]);
    draft.put(&format!("{module}.qzeros"), Dtype::I32, &[rank / 16, rows / 8]);
    draft.put(&format!("{module}.scales"), Dtype::F16, &[rank / 16, rows]);
    draft.decoder().unwrap();
    let groups = (0..rank).flat_map(|column| ((column % (rank / 16)) as i32).to_le_bytes()).collect();
    draft.tensors.insert(format!("{module}.g_idx"), (Dtype::I32, vec![rank], groups));
    let error = draft.decoder().unwrap_err();
    let tensor = format!("{module}.qweight");
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some(&*tensor)));
}

#[test]
fn routers_match_transformers() {
    let router = |family| experts(&Draft::fixture(family).decoder().unwrap(), 1).unwrap().router;
    for (family, normalised) in
        [("mixtral", true), ("qwen2_moe", false), ("qwen3_moe", true), ("olmoe", false), ("gpt_oss", true)]
    {
        let router = router(family);
        assert_eq!(
            (router.scoring, router.normalised, router.scale),
            (Scoring::Softmax, normalised, 1.0),
            "{family}"
        );
    }
    let router = router("deepseek_v3");
    assert_eq!((router.scoring, router.normalised, router.scale), (Scoring::Sigmoid, true, 2.5));
    assert_eq!(router.groups, Some(ExpertGroups { count: 4, kept: 2 }));
    assert!(router.selection_bias.is_some());
    let all = Draft::fixture("deepseek_v3").set("topk_group", json!(4)).decoder().unwrap();
    assert_eq!(experts(&all, 1).unwrap().router.groups, None, "all groups can be chosen from");
}

#[test]
fn which_layers_have_experts_follows_from_the_settings() {
    let sparse = |draft: Draft, layers: usize| {
        let decoder = draft.decoder().unwrap();
        (0..layers).map(|layer| experts(&decoder, layer).is_some()).collect::<Vec<_>>()
    };
    let qwen = |layers: &[usize]| {
        let mut draft = Draft::fixture("qwen3_moe");
        for layer in layers {
            for (name, shape) in [("gate_proj", [128, 64]), ("up_proj", [128, 64]), ("down_proj", [64, 128])]
            {
                draft.put(&format!("model.layers.{layer}.mlp.{name}.weight"), Dtype::BF16, &shape);
            }
        }
        draft
    };
    assert_eq!(sparse(qwen(&[1]).set("mlp_only_layers", json!([1])), 3), [true, false, true]);
    assert_eq!(sparse(qwen(&[0, 2]).set("decoder_sparse_step", json!(2)), 3), [false, true, false]);
    let none = qwen(&[0, 1, 2]).unset("num_local_experts").set("num_experts", json!(0));
    assert_eq!(sparse(none, 3), [false; 3]);
    assert_eq!(sparse(Draft::fixture("glm4_moe"), 3), [false, true, true]);
    assert_eq!(sparse(Draft::fixture("mixtral"), 3), [true; 3]);
}

#[test]
fn windows_match_transformers() {
    let gpt = Draft::fixture("gpt_oss");
    assert_eq!(windows(&gpt), [Some(16), None, Some(16), None]);
    assert_eq!(windows(&gpt.clone().unset("layer_types")), [Some(16), None, Some(16), None]);
    assert_eq!(windows(&gpt.unset("sliding_window"))[0], Some(128));
    assert_eq!(windows(&Draft::fixture("mixtral").set("sliding_window", json!(5))), [Some(5); 3]);
    let qwen = Draft::fixture("qwen2_moe").unset("layer_types").set("sliding_window", json!(9));
    assert_eq!(windows(&qwen), [None; 3]);
    let qwen = qwen.set("use_sliding_window", json!(true));
    assert_eq!(windows(&qwen), [Some(9), None, Some(9)]);
    assert_eq!(windows(&qwen.clone().set("max_window_layers", json!(2))), [Some(9), None, None]);
    assert_eq!(windows(&qwen.unset("sliding_window")), [Some(4096), None, Some(4096)]);
    let qwen = Draft::fixture("qwen3_moe").set("sliding_window", json!(9));
    assert_eq!(windows(&qwen), [None; 3]);
    assert_eq!(windows(&qwen.set("use_sliding_window", json!(true))), [Some(9); 3]);
}

#[test]
fn gpt_oss_has_default_rope_scaling() {
    let decoder = Draft::fixture("gpt_oss").unset("rope_scaling").unset("rope_theta").decoder().unwrap();
    let rope = attention(&decoder, 0).core.rope.as_ref().unwrap();
    assert_eq!(rope.attention_factor, (0.1 * 32f64.ln() + 1.0) as f32);
    assert_eq!((rope.inv_freq[0], rope.inv_freq.len()), (1.0, 8));
}

#[test]
fn latent_attention_follows_its_settings() {
    let decoder = Draft::fixture("deepseek_v3").decoder().unwrap();
    let attention = latent(&decoder, 0);
    assert!(matches!(attention.query, LatentQuery::Compressed { .. }) && is_interleaved(attention));
    let [keys, values] =
        [attention.key_up, attention.value_up].map(|up| decoder.weight(up.weight).to_string());
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    assert_eq!(keys, format!("{name}[4 times 16, 40 apart, from 0 of dimension 0] BF16 [4, 16, 32]"));
    assert_eq!(values, format!("{name}[4 times 24, 40 apart, from 16 of dimension 0] BF16 [4, 24, 32]"));

    let direct = Draft::fixture("deepseek_v3")
        .set("q_lora_rank", Value::Null)
        .set("rope_interleave", json!(false))
        .with("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[96, 64]);
    let direct = direct.with("model.layers.1.self_attn.q_proj.weight", Dtype::BF16, &[96, 64]).with(
        "model.layers.2.self_attn.q_proj.weight",
        Dtype::BF16,
        &[96, 64],
    );
    let decoder = direct.decoder().unwrap();
    let attention = latent(&decoder, 2);
    assert!(matches!(attention.query, LatentQuery::Direct(_)) && !is_interleaved(attention));

    // YaRN's magnitude for all dimensions goes into the scale, and then not into cosines and sines.
    let scaling = json!({"type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64});
    let decoder = Draft::fixture("deepseek_v3").set("rope_scaling", scaling).decoder().unwrap();
    let attention = latent(&decoder, 0);
    let magnitude = 0.1 * 40f64.ln() + 1.0;
    assert_eq!(attention.scale, (24f64.powf(-0.5) * magnitude * magnitude) as f32);
    assert_eq!(attention.rope.as_ref().unwrap().attention_factor, 1.0);
}

#[test]
fn stacks_of_experts_may_be_packed() {
    let quantization = json!({"group_size": 32, "bits": 4});
    let mut draft = Draft::fixture("mixtral").set("quantization", quantization);
    for layer in 0..3 {
        let module = format!("model.layers.{layer}.block_sparse_moe.switch_mlp");
        for (name, rows, columns) in [("gate_proj", 128, 64), ("up_proj", 128, 64), ("down_proj", 64, 128)] {
            draft.put(&format!("{module}.{name}.weight"), Dtype::U32, &[4, rows, columns / 8]);
            draft.put(&format!("{module}.{name}.scales"), Dtype::BF16, &[4, rows, columns / 32]);
            draft.put(&format!("{module}.{name}.biases"), Dtype::BF16, &[4, rows, columns / 32]);
        }
    }
    let checkpoint = draft.write();
    let checkpoint = checkpoint.open().unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let down = decoder.weight(experts(&decoder, 2).unwrap().down.weight);
    assert_eq!(
        (&down.shape[..], down.packing().unwrap()),
        (&[4, 64, 128][..], Packing::affine(4, 32, ElementType::BF16))
    );
    assert_eq!(checkpoint.weight(down).unwrap().shape, [4, 64, 16]);
}

#[test]
fn experts_that_are_stored_differently_are_refused() {
    let name = "model.layers.1.mlp.experts.3.up_proj.weight";
    let error = Draft::fixture("olmoe").with(name, Dtype::F32, &[48, 64]).decoder().unwrap_err();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some(name)));
}

#[test]
fn impossible_settings_are_rejected_by_name() {
    let cases = [
        ("mixtral", "num_experts_per_tok", json!(5), ErrorKind::Corrupt),
        ("mixtral", "num_local_experts", json!(0), ErrorKind::Corrupt),
        ("mixtral", "hidden_act", json!("mish"), ErrorKind::Unsupported),
        ("qwen2_moe", "use_sliding_window", json!("yes"), ErrorKind::Corrupt),
        (
            "qwen2_moe",
            "layer_types",
            json!(["full_attention", "chunked", "full_attention"]),
            ErrorKind::Unsupported,
        ),
        ("qwen3_moe", "mlp_only_layers", json!([-1]), ErrorKind::Corrupt),
        ("qwen3_moe", "decoder_sparse_step", json!(0), ErrorKind::Corrupt),
        ("olmoe", "clip_qkv", json!(-1.0), ErrorKind::Corrupt),
        ("granitemoe", "logits_scaling", json!(0), ErrorKind::Corrupt),
        ("gpt_oss", "swiglu_limit", json!(0), ErrorKind::Corrupt),
        ("gpt_oss", "layer_types", json!(["full_attention"]), ErrorKind::Corrupt),
        ("glm4_moe", "n_group", json!(3), ErrorKind::Corrupt),
        ("glm4_moe", "n_group", json!(8), ErrorKind::Corrupt),
        ("glm4_moe", "topk_group", json!(3), ErrorKind::Corrupt),
        ("deepseek_v3", "scoring_func", json!("softmax"), ErrorKind::Unsupported),
        ("deepseek_v3", "topk_method", json!("greedy"), ErrorKind::Unsupported),
        ("deepseek_v3", "moe_layer_freq", json!(2), ErrorKind::Unsupported),
        ("deepseek_v3", "num_key_value_heads", json!(2), ErrorKind::Corrupt),
    ];
    for (family, field, value, kind) in cases {
        let error = Draft::fixture(family).set(field, value.clone()).decoder().unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (kind, Some(field)), "{family}, {value}: {error}");
    }
    let turned_off = json!(["sliding_attention", "full_attention", "full_attention"]);
    let error = Draft::fixture("qwen2_moe").set("layer_types", turned_off).decoder().unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some("use_sliding_window")));
}
