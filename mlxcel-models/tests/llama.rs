//! The llama family: what each setting does to the description.

use crate::common::{Draft, assert_field, repository};
use mlxcel_core::ErrorKind;
use mlxcel_models::{
    Activation, Attention, Checkpoint, Decoder, ElementType, Gating, Linear, Mixer, Mlp, Operation, WeightId,
    WeightRef,
};
use safetensors::Dtype;
use serde_json::{Value, json};

fn attention(decoder: &Decoder, layer: usize) -> &Attention {
    match decoder.mixers().nth(layer) {
        Some(Mixer::Attention(attention)) => attention,
        other => panic!("{other:?}"),
    }
}

/// The activation and the projection behind it of a layer's gated MLP.
fn mlp(decoder: &Decoder, layer: usize) -> (Activation, &Linear) {
    match &decoder.layers[layer].blocks[1].operation {
        Operation::Mlp(Mlp::Gated { gating: Gating::Activated(activation), down, .. }) => (*activation, down),
        other => panic!("{other:?}"),
    }
}

fn tensor(decoder: &Decoder, id: WeightId) -> &str {
    &decoder.weight(id).tensor
}

#[test]
fn storyteller_is_described() {
    let checkpoint = Checkpoint::open(repository("examples/models/storyteller")).unwrap();
    assert_eq!((checkpoint.model_type(), checkpoint.stop_tokens()), ("llama", &[1][..]));
    let decoder = checkpoint.decoder().unwrap();
    assert_eq!((decoder.vocabulary_size, decoder.hidden_size, decoder.context_length), (729, 192, 1024));
    assert_eq!((decoder.layers.len(), decoder.element_type), (4, ElementType::BF16));
    let attention = attention(&decoder, 3);
    assert_eq!((attention.query_heads, attention.kv_heads, attention.head_dim), (6, 2, 32));
    assert_eq!(attention.core.scale, 32f32.sqrt().recip());
    let rope = attention.core.rope.as_ref().unwrap();
    assert_eq!((rope.rotary_dim, rope.inv_freq.len()), (32, 16));
    let layer = "model.layers.3.self_attn";
    let key = WeightRef::new(format!("{layer}.k_proj.weight"), ElementType::BF16, [64, 192]);
    assert_eq!((decoder.weight(attention.key.weight), attention.key.bias), (&key, None));
    assert_eq!((attention.query.inputs, attention.query.outputs), (192, 192));
    let (activation, down) = mlp(&decoder, 0);
    assert_eq!((activation, down.inputs, down.outputs), (Activation::Silu, 512, 192));
    assert_eq!(decoder.norm.unwrap().epsilon, 1e-5);
    assert!(decoder.head.unwrap().tied);
    assert_eq!(decoder.head.unwrap().projection.weight, decoder.embedding.weight);

    // The tensors of the file, each once and no other.
    let weights = decoder.weights().map(|weight| weight.tensor.as_str()).collect::<Vec<_>>();
    assert_eq!(
        (weights[0], weights[1]),
        ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight")
    );
    let mut sorted = weights.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(checkpoint.tensors().map(|(name, _)| name)));
    assert_eq!(decoder.parameters(), 1_714_560);
    assert_eq!(
        decoder.weight_bytes(),
        checkpoint.tensors().map(|(_, view)| view.bytes.len() as u64).sum::<u64>()
    );
}

#[test]
fn both_fixtures_are_described() {
    let decoder = Checkpoint::open(repository("fixtures/architectures/llama")).unwrap().decoder().unwrap();
    assert_eq!((decoder.layers.len(), decoder.context_length, decoder.head.unwrap().tied), (3, 512, true));
    assert_eq!(decoder.element_type, ElementType::BF16);
    let decoder =
        Checkpoint::open(repository("fixtures/architectures/llama-linear")).unwrap().decoder().unwrap();
    let head = decoder.weight(decoder.head.unwrap().projection.weight);
    assert_eq!(*head, WeightRef::new("lm_head.weight", ElementType::BF16, [256, 64]));
    assert!(!decoder.head.unwrap().tied);
    assert_eq!(attention(&decoder, 0).core.rope.as_ref().unwrap().inv_freq[0], 0.25);
    assert_eq!(decoder.weights().last().unwrap().tensor, "lm_head.weight");
}

#[test]
fn absent_settings_have_the_defaults_of_transformers() {
    let draft = Draft::llama().unset("tie_word_embeddings").unset("num_key_value_heads").unset("torch_dtype");
    let draft = draft
        .with("lm_head.weight", Dtype::F16, &[8, 8])
        .with("model.embed_tokens.weight", Dtype::F32, &[8, 8])
        .with("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[8, 8])
        .with("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[8, 8]);
    for draft in [draft.clone(), draft.set("head_dim", Value::Null).set("num_key_value_heads", Value::Null)] {
        let decoder = draft.decoder().unwrap();
        let attention = attention(&decoder, 0);
        assert_eq!((attention.query_heads, attention.kv_heads, attention.head_dim), (2, 2, 4));
        assert_eq!((decoder.context_length, decoder.norm.unwrap().epsilon), (2048, 1e-6));
        assert_eq!(mlp(&decoder, 0).0, Activation::Silu);
        assert_eq!(tensor(&decoder, decoder.head.unwrap().projection.weight), "lm_head.weight");
        assert_eq!(decoder.element_type, ElementType::F32, "that of the embedding");
    }
}

#[test]
fn head_dim_may_differ_from_hidden_size_over_heads() {
    let draft = Draft::llama()
        .set("head_dim", json!(6))
        .with("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[12, 8])
        .with("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[6, 8])
        .with("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[6, 8])
        .with("model.layers.0.self_attn.o_proj.weight", Dtype::BF16, &[8, 12]);
    let decoder = draft.decoder().unwrap();
    let attention = attention(&decoder, 0);
    assert_eq!(
        (attention.head_dim, attention.core.rope.as_ref().unwrap().rotary_dim, attention.output.inputs),
        (6, 6, 12)
    );
    assert_eq!(attention.core.scale, 6f64.sqrt().recip() as f32);
}

#[test]
fn biases_follow_the_settings() {
    let mut draft = Draft::llama().set("attention_bias", json!(true)).set("mlp_bias", json!(true));
    for (part, size) in [
        ("self_attn.q_proj", 8),
        ("self_attn.k_proj", 4),
        ("self_attn.v_proj", 4),
        ("self_attn.o_proj", 8),
        ("mlp.gate_proj", 12),
        ("mlp.up_proj", 12),
        ("mlp.down_proj", 8),
    ] {
        let without = draft.decoder().unwrap_err();
        assert_eq!(without.kind(), ErrorKind::NotFound);
        draft.put(&format!("model.layers.0.{part}.bias"), Dtype::F32, &[size]);
    }
    let decoder = draft.decoder().unwrap();
    let bias = decoder.weight(attention(&decoder, 0).value.bias.unwrap());
    assert_eq!(*bias, WeightRef::new("model.layers.0.self_attn.v_proj.bias", ElementType::F32, [4]));
    assert!(mlp(&decoder, 0).1.bias.is_some());
    assert_eq!(decoder.weights().count(), 18);
    assert!(decoder.to_string().contains("BF16 with biases"));
    let ignored = draft.set("attention_bias", json!(false)).set("mlp_bias", json!(false)).decoder().unwrap();
    assert_eq!(ignored.weights().count(), 11);
}

#[test]
fn a_separate_head_takes_precedence_over_tie_word_embeddings() {
    let head = |draft: Draft| {
        let decoder = draft.decoder().unwrap();
        let head = decoder.head.unwrap().projection.weight;
        (decoder.head.unwrap().tied, tensor(&decoder, head).to_owned())
    };
    let tied = (true, "model.embed_tokens.weight".to_owned());
    assert_eq!(head(Draft::llama().with("lm_head.weight", Dtype::F16, &[3])), tied, "this fits nothing");
    let mut draft = Draft::llama().with("lm_head.weight", Dtype::BF16, &[8, 8]);
    assert_eq!(head(draft.clone()), (false, "lm_head.weight".to_owned()));
    let table = draft.tensors["model.embed_tokens.weight"].clone();
    draft.tensors.insert("lm_head.weight".to_owned(), table);
    assert_eq!(head(draft), tied, "the same values need not be kept twice");
}

#[test]
fn a_model_that_was_saved_without_its_head_makes_embeddings() {
    let draft = Draft::llama().set("tie_word_embeddings", json!(false));
    let class = |name: &str| draft.clone().set("architectures", json!([name]));
    for whole in [draft.clone(), class("LlamaForCausalLM")] {
        assert_eq!(
            whole.decoder().unwrap_err().context("tensor"),
            Some("lm_head.weight"),
            "it is incomplete"
        );
    }
    let bare = class("LlamaForCausalLM").renamed(|name| name.trim_start_matches("model.").to_owned());
    for headless in [class("LlamaModel"), class("LlamaForSequenceClassification"), bare] {
        let decoder = headless.decoder().unwrap();
        assert_eq!((decoder.head.unwrap().tied, decoder.notes.len()), (true, 1));
    }
    let own = class("LlamaModel").with("lm_head.weight", Dtype::BF16, &[8, 8]).decoder().unwrap();
    assert_eq!((own.head.unwrap().tied, own.notes.len()), (false, 0));
}

#[test]
fn activation_types_come_from_either_layout() {
    let element = |draft: Draft| draft.decoder().map(|decoder| decoder.element_type);
    assert_eq!(element(Draft::llama()).unwrap(), ElementType::BF16);
    assert_eq!(element(Draft::llama().set("torch_dtype", json!("float16"))).unwrap(), ElementType::F16);
    assert_eq!(element(Draft::llama().set("dtype", json!("float32"))).unwrap(), ElementType::F32);
    let error = element(Draft::llama().set("dtype", json!("float8"))).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("dtype")));
}

#[test]
fn activations_have_the_names_of_transformers() {
    let activation =
        |name: &str| Draft::llama().set("hidden_act", json!(name)).decoder().map(|d| mlp(&d, 0).0);
    for (name, expected) in [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_new", Activation::GeluTanh),
        ("relu", Activation::Relu),
    ] {
        assert_eq!(activation(name).unwrap(), expected);
    }
    let error = activation("mish").unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, Some("hidden_act")));
}

#[test]
fn settings_that_contradict_or_exceed_are_named() {
    let cases = [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-8)),
        ("hidden_size", json!(8.5)),
        ("hidden_size", json!("8")),
        ("hidden_size", json!(u64::MAX)),
        ("vocab_size", json!(1u64 << 40)),
        ("intermediate_size", json!(0)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(0)),
        ("head_dim", json!(3)),
        ("head_dim", json!(1u64 << 33)),
        ("max_position_embeddings", json!(0)),
        ("max_position_embeddings", json!(1u64 << 40)),
        ("rms_norm_eps", json!(0.0)),
        ("rms_norm_eps", json!("small")),
        ("attention_bias", json!("yes")),
        ("tie_word_embeddings", json!(1)),
        ("rope_theta", json!(0)),
    ];
    for (field, value) in cases {
        let error = Draft::llama().set(field, value.clone()).decoder().unwrap_err();
        assert_field(&error, ErrorKind::Corrupt, field, &value.to_string());
        assert!(error.context("path").unwrap().ends_with("config.json"));
    }
    let odd = Draft::llama().set("num_attention_heads", json!(8)).unset("num_key_value_heads").decoder();
    assert_eq!(odd.unwrap_err().context("field"), Some("head_dim"), "8 / 8 = 1 is odd");
}

#[test]
fn equal_layers_are_printed_once() {
    let mut draft = Draft::llama().set("num_hidden_layers", json!(3));
    let first = draft.tensors.clone();
    for layer in 1..3 {
        for (name, tensor) in first.iter().filter(|(name, _)| name.contains("layers.0")) {
            draft.tensors.insert(name.replace("layers.0", &format!("layers.{layer}")), tensor.clone());
        }
    }
    draft.put("model.layers.2.mlp.up_proj.weight", Dtype::F32, &[12, 8]);
    let text = draft.decoder().unwrap().to_string();
    assert!(text.contains("  layers 0 to 1\n"), "{text}");
    assert!(text.contains("  layer 2\n"), "{text}");
    assert!(text.contains("8 → 12 → 8, BF16/F32/BF16"), "{text}");
}
