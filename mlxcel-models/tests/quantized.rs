//! Checkpoints that MLX has quantized: what their description says, and which are refused.

use crate::common::{Draft, chain, repository, weight};
use mlxcel_core::{Error, ErrorKind};
use mlxcel_models::{Checkpoint, Decoder, ElementType, Packing, WeightRef};
use safetensors::Dtype;
use serde_json::{Value, json};

const QUERY: &str = "model.layers.0.self_attn.q_proj";
const DOWN: &str = "model.layers.0.mlp.down_proj";

/// The draft of which some modules are to be packed.
fn wide() -> Draft {
    Draft::wide().set("quantization", json!({"group_size": 64, "bits": 4}))
}

/// The draft with `module`, `[rows, columns]`, packed.
fn packed(
    draft: Draft,
    module: &str,
    [rows, columns]: [usize; 2],
    mode: &str,
    bits: usize,
    group: usize,
) -> Draft {
    let scales = if mode == "affine" { Dtype::F16 } else { Dtype::U8 };
    let draft = draft.with(&format!("{module}.weight"), Dtype::U32, &[rows, columns * bits / 32]).with(
        &format!("{module}.scales"),
        scales,
        &[rows, columns / group],
    );
    if mode == "affine" {
        draft.with(&format!("{module}.biases"), scales, &[rows, columns / group])
    } else {
        draft
    }
}

fn query(decoder: &Decoder) -> &WeightRef {
    weight(decoder, "model.layers.0.self_attn.q_proj.weight")
}

fn packing(weight: &WeightRef) -> Packing {
    weight.packing().unwrap()
}

/// The part of a packed weight behind its codes, scales first.
fn part(weight: &WeightRef, index: usize) -> &WeightRef {
    &weight.packed.as_ref().unwrap().parts[index]
}

fn assert_refused(error: &Error, kind: ErrorKind, context: (&str, &str), words: &str) {
    let text = chain(error);
    assert_eq!(error.kind(), kind, "{text}");
    assert_eq!(error.context(context.0), Some(context.1), "{text}");
    assert!(error.context("path").is_some() && text.contains(words), "{text}");
}

#[test]
fn storyteller_is_described_with_its_companions() {
    let checkpoint = Checkpoint::open(repository("fixtures/storyteller-4bit")).unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let dense = Checkpoint::open(repository("examples/models/storyteller")).unwrap();
    // mlx-lm states both in the index that it writes.
    assert_eq!((decoder.parameters(), decoder.weight_bytes()), (1_714_560, 966_924));
    assert_eq!(decoder.parameters(), dense.decoder().unwrap().parameters());
    assert_eq!(decoder.weights().flat_map(WeightRef::tensors).count(), checkpoint.tensors().count());
    assert_ne!(checkpoint.fingerprint(), dense.fingerprint());

    let table = decoder.weight(decoder.embedding.weight);
    assert_eq!(decoder.embedding.weight, decoder.head.unwrap().projection.weight);
    assert_eq!((&table.shape[..], table.stored_shape()), (&[729, 192][..], vec![729, 24]));
    assert_eq!((table.element, table.value_type()), (ElementType::U32, ElementType::BF16));
    assert_eq!(packing(table), Packing::affine(4, 64, ElementType::BF16));
    assert_eq!(*part(table, 0), WeightRef::new("model.embed_tokens.scales", ElementType::BF16, [729, 3]));
    assert_eq!(part(table, 1).tensor, "model.embed_tokens.biases");
    for weight in decoder.weights().flat_map(WeightRef::tensors) {
        let view = checkpoint.weight(weight).unwrap();
        assert_eq!((view.shape, view.bytes.len()), (weight.stored_shape(), weight.byte_len()), "{weight}");
    }
    let text = decoder.to_string();
    assert!(text.contains("embedding  729 × 192 u4/64 bf16 + bf16"), "{text}");
    assert!(text.contains("layers 0 to 3"), "{text}");
    assert_eq!(table.to_string(), "model.embed_tokens.weight u4/64 bf16 + bf16 [729, 192]");
}

#[test]
fn packed_words_are_little_endian_with_the_first_value_lowest() {
    // Unpacked, a weight is within a step of the one that was quantized, and most within half a step.
    let packed = Checkpoint::open(repository("fixtures/storyteller-4bit")).unwrap();
    let dense = Checkpoint::open(repository("examples/models/storyteller")).unwrap();
    let decoder = packed.decoder().unwrap();
    let down = weight(&decoder, "model.layers.1.mlp.down_proj.weight");
    let bf16 = |bytes: &[u8], i: usize| {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])) << 16)
    };
    let reference = dense.tensor(&down.tensor).unwrap().bytes;
    let words = packed.weight(down).unwrap().bytes;
    let scales = packed.weight(part(down, 0)).unwrap().bytes;
    let biases = packed.weight(part(down, 1)).unwrap().bytes;
    for i in 0..down.elements() {
        let word = u32::from_le_bytes(words[i / 8 * 4..][..4].try_into().unwrap());
        let value = (word >> (i % 8 * 4) & 15) as f32;
        let (scale, bias) = (bf16(&scales, i / 64), bf16(&biases, i / 64));
        let error = (scale * value + bias - bf16(reference, i)).abs();
        assert!(error <= scale.abs(), "value {i} is off by {error}");
    }
}

#[test]
fn only_modules_with_scales_are_quantized() {
    let decoder = packed(wide(), QUERY, [128, 128], "affine", 4, 64).decoder().unwrap();
    assert_eq!((packing(query(&decoder)).bits, query(&decoder).shape.clone()), (4, vec![128, 128]));
    assert_eq!(query(&decoder).value_type(), ElementType::F16);
    assert_eq!(decoder.weights().filter(|weight| weight.packed.is_some()).count(), 1);
    assert_eq!(decoder.element_type, ElementType::BF16);
    assert!(decoder.to_string().contains("u4/64 f16 + f16/BF16"), "{decoder}");
    assert!(wide().decoder().unwrap().weights().all(|weight| weight.packed.is_none()));
}

#[test]
fn every_mode_has_its_bits_and_groups() {
    let affine =
        [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| ("affine", bits, group)));
    for (mode, bits, group) in affine.chain([("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]) {
        let settings = json!({"group_size": group, "bits": bits, "mode": mode});
        let draft = wide().set("quantization", settings);
        let decoder = packed(draft, QUERY, [128, 128], mode, bits, group).decoder().unwrap();
        let weight = query(&decoder);
        let expected = match mode {
            "mxfp4" => Packing::MXFP4,
            "mxfp8" => Packing::MXFP8,
            "nvfp4" => Packing::NVFP4,
            _ => Packing::affine(bits, group, ElementType::F16),
        };
        assert_eq!((packing(weight), expected.bits, expected.group_size), (expected, bits, group));
        assert_eq!(weight.stored_shape(), [128, 4 * bits]);
        let bytes: usize = weight.tensors().map(WeightRef::byte_len).sum();
        let scale_bytes = if mode == "affine" { 4 } else { 1 };
        assert_eq!(bytes, 128 * 128 * bits / 8 + 128 * 128 / group * scale_bytes);
    }
}

#[test]
fn modules_have_settings_of_their_own() {
    let settings = json!({
        "group_size": 32, "bits": 4, "mode": "mxfp4",
        "model.embed_tokens": {"group_size": 128, "bits": 6},
        QUERY: {},
        DOWN: true,
        "model.layers.0.mlp.up_proj": false,
    });
    let draft = wide().set("quantization", settings);
    let draft = packed(draft, "model.embed_tokens", [8, 128], "affine", 6, 128);
    let draft = packed(draft, QUERY, [128, 128], "affine", 4, 64);
    let draft = packed(draft, DOWN, [128, 256], "mxfp4", 4, 32);
    let decoder = draft.decoder().unwrap();
    assert_eq!(packing(decoder.weight(decoder.embedding.weight)).to_string(), "u6/128 f16 + f16");
    assert_eq!(packing(query(&decoder)).to_string(), "u4/64 f16 + f16", "the mode's own, not the model's");
    assert_eq!(packing(weight(&decoder, "model.layers.0.mlp.down_proj.weight")).to_string(), "e2m1/32 e8m0");
    assert!(weight(&decoder, "model.layers.0.mlp.up_proj.weight").packed.is_none());
    assert_eq!(weight(&decoder, "model.layers.0.mlp.down_proj.weight").value_type(), ElementType::BF16);
}

#[test]
fn the_settings_are_found_under_either_name() {
    let settings = json!({"group_size": 32, "bits": 8});
    let draft = wide().unset("quantization").set("quantization_config", settings.clone());
    let draft = packed(draft, QUERY, [128, 128], "affine", 8, 32);
    assert_eq!(packing(query(&draft.decoder().unwrap())).bits, 8);
    let both = draft.set("quantization", settings).set("quantization_config", json!({"quant_method": "fp8"}));
    assert_eq!(packing(query(&both.decoder().unwrap())).bits, 8, "as in mlx-lm, its own name goes before");
}

#[test]
fn rows_of_a_quantized_weight_include_scales_and_biases() {
    let written = packed(wide(), QUERY, [128, 128], "affine", 4, 64).write();
    let checkpoint = written.open().unwrap();
    let decoder = checkpoint.decoder().unwrap();
    let whole = query(&decoder);
    let slice = whole.clone().rows(32, 64).rows(8, 16);
    assert_eq!((slice.shape.clone(), slice.stored_shape()), (vec![16, 128], vec![16, 16]));
    for (part, all) in slice.tensors().zip(whole.tensors()) {
        let (part, all) = (checkpoint.weight(part).unwrap(), checkpoint.weight(all).unwrap());
        let row = all.bytes.len() / 128;
        assert_eq!(part.bytes, &all.bytes[40 * row..56 * row]);
    }
}

#[test]
fn other_quantization_methods_are_rejected_by_name() {
    for (settings, method) in [
        (json!({"quant_method": "hqq", "nbits": 4}), "hqq"),
        (json!({"quant_method": "bitsandbytes", "load_in_4bit": true}), "bitsandbytes"),
        (json!({"load_in_8bit": true, "llm_int8_threshold": 6.0}), "bitsandbytes"),
    ] {
        let error = wide().unset("quantization").set("quantization_config", settings).write().refusal();
        let field = ("field", "quantization_config.quant_method");
        assert_refused(&error, ErrorKind::Unsupported, field, &format!("'{method}'"));
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let cases = [
        (json!({"mode": "int4"}), ErrorKind::Unsupported, "quantization.mode"),
        (json!({"bits": 7}), ErrorKind::Unsupported, "quantization.bits"),
        (json!({"bits": 0}), ErrorKind::Unsupported, "quantization.bits"),
        (json!({"bits": "4"}), ErrorKind::Corrupt, "quantization.bits"),
        (json!({"group_size": 16}), ErrorKind::Unsupported, "quantization.group_size"),
        (json!({"group_size": -1}), ErrorKind::Corrupt, "quantization.group_size"),
        (json!({"mode": "mxfp4", "bits": 8}), ErrorKind::Unsupported, "quantization.bits"),
        (json!({"mode": "nvfp4", "group_size": 32}), ErrorKind::Unsupported, "quantization.group_size"),
        (json!({"mode": 1}), ErrorKind::Corrupt, "quantization.mode"),
        (
            json!({"mode": "nvfp4", "quantize_input": true}),
            ErrorKind::Unsupported,
            "quantization.quantize_input",
        ),
    ];
    for (settings, kind, field) in cases {
        let error = wide().set("quantization", settings.clone()).write().refusal();
        assert_refused(&error, kind, ("field", field), "");
        let own = json!({"bits": 4, "group_size": 64, QUERY: settings});
        let error = wide().set("quantization", own).write().refusal();
        let field = field.replace("quantization", &format!("quantization.{QUERY}"));
        assert_refused(&error, kind, ("field", &field), "");
    }
    for value in [json!(4), json!("affine"), json!([1])] {
        let error = wide().set("quantization", value.clone()).write().refusal();
        assert_refused(&error, ErrorKind::Corrupt, ("field", "quantization"), "object");
        let error = wide().set("quantization", json!({"bits": 4, QUERY: value})).write().refusal();
        assert_refused(&error, ErrorKind::Corrupt, ("field", &format!("quantization.{QUERY}")), "object");
    }
    let error = wide().set("quantize_activations", json!(true)).write().refusal();
    assert_refused(&error, ErrorKind::Unsupported, ("field", "quantize_activations"), "activations");
}

#[test]
fn settings_and_tensors_that_contradict_are_refused() {
    let weight = format!("{QUERY}.weight");
    let quantized = || packed(wide(), QUERY, [128, 128], "affine", 4, 64);
    let set = |draft: Draft, settings: Value| draft.set("quantization", settings).write().refusal();
    for (error, words) in [
        (quantized().unset("quantization").write().refusal(), "has no `quantization`"),
        (set(quantized(), json!({"bits": 4, QUERY: false})), "says that it is not quantized"),
        (set(wide(), json!({"bits": 4, QUERY: {"bits": 4}})), "scales are missing"),
        (set(wide(), json!({"bits": 4, QUERY: true})), "scales are missing"),
        (set(quantized(), json!({"bits": 8})), "mode affine, 8 bits, groups of 64"),
        (quantized().with(&weight, Dtype::I32, &[128, 16]).write().refusal(), "I32 [128, 16]"),
        (quantized().with(&weight, Dtype::U32, &[64, 16]).write().refusal(), "U32 [64, 16]"),
        (quantized().with(&weight, Dtype::BF16, &[128, 128]).write().refusal(), "BF16 [128, 128]"),
    ] {
        assert_refused(&error, ErrorKind::Corrupt, ("tensor", &weight), words);
    }
    // Packed words without scales are a tensor of the wrong shape, or else of the wrong type.
    let error = quantized().without(&format!("{QUERY}.scales")).write().refusal();
    assert_refused(&error, ErrorKind::Corrupt, ("tensor", &weight), "[128, 16]");
}

#[test]
fn mismatched_scales_and_biases_are_rejected() {
    let (scales, biases) = (format!("{QUERY}.scales"), format!("{QUERY}.biases"));
    let quantized = || packed(wide(), QUERY, [128, 128], "affine", 4, 64);
    for name in [&scales, &biases] {
        for (dtype, shape) in [
            (Dtype::F16, &[128, 4][..]),
            (Dtype::F16, &[256]),
            (Dtype::U8, &[128, 2]),
            (Dtype::F64, &[128, 2]),
        ] {
            let error = quantized().with(name, dtype, shape).write().refusal();
            assert_refused(&error, ErrorKind::Corrupt, ("tensor", name), "[128, 2]");
        }
    }
    let error = quantized().with(&biases, Dtype::BF16, &[128, 2]).write().refusal();
    assert_refused(&error, ErrorKind::Corrupt, ("tensor", &biases), "BF16 and those of the scales F16");
    let error = quantized().without(&biases).write().refusal();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::NotFound, Some(&*biases)));

    let settings = json!({"group_size": 32, "bits": 4, "mode": "mxfp4"});
    let mx = packed(wide().set("quantization", settings), QUERY, [128, 128], "mxfp4", 4, 32);
    let error = mx.clone().with(&biases, Dtype::U8, &[128, 4]).write().refusal();
    assert_refused(&error, ErrorKind::Corrupt, ("tensor", &biases), "mxfp4 has no biases");
    let error = mx.with(&scales, Dtype::BF16, &[128, 4]).write().refusal();
    assert_refused(&error, ErrorKind::Corrupt, ("tensor", &scales), "U8 [128, 4]");
}

#[test]
fn rows_that_are_not_a_multiple_of_the_group_size_are_refused() {
    let draft = packed(Draft::llama(), DOWN, [8, 12], "mxfp4", 4, 32);
    let error = draft.set("quantization", json!({"mode": "mxfp4"})).write().refusal();
    let weight = format!("{DOWN}.weight");
    assert_refused(&error, ErrorKind::Corrupt, ("tensor", &weight), "rows of 12 cannot be in groups of 32");
}
