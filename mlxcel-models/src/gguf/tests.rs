//! Models in GGUF files: where they are found, what is made of their metadata, and what is refused.

use std::fs;
use std::path::Path;

use mlxcel_core::{Error, ErrorKind, ModelSource};

use super::draft::{Draft, Kind};
use crate::checkpoint::Checkpoint;

/// A model of an architecture with nothing but an embedding.
fn model(architecture: &str) -> Draft {
    let mut draft = Draft::new();
    draft.text("general.architecture", architecture);
    for (key, size) in [("block_count", 1.0), ("embedding_length", 4.0), ("attention.head_count", 2.0)] {
        draft.number(&format!("{architecture}.{key}"), Kind::U32, size);
    }
    draft.tensor("token_embd.weight", 0, &[2, 4], &floats(&[0.5; 8]));
    draft
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn write(folder: &Path, name: &str, draft: &Draft) {
    fs::write(folder.join(name), draft.write()).unwrap();
}

/// The JSON file of this name that a model has.
fn json(draft: &Draft, name: &str) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.gguf", draft);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let file = checkpoint.file(name).unwrap().unwrap();
    serde_json::from_slice(&file).unwrap()
}

fn refused(path: &Path, kind: ErrorKind, words: &str) -> Error {
    let error = Checkpoint::open(path).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
    error
}

#[test]
fn a_model_is_found_by_its_file_or_alone_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.gguf", &model("llama"));
    let named = folder.path().join("model.gguf");
    for path in [folder.path(), &named] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!((checkpoint.model_type(), checkpoint.path()), ("llama", Some(path)));
        assert_eq!(checkpoint.tensor("model.embed_tokens.weight").unwrap().shape, [2, 4]);
        assert_eq!(checkpoint.fingerprint().len(), 64);
    }
    // Other names too, as long as the content is one: caches call files by their sums.
    write(folder.path(), "sha256-1234", &model("llama"));
    Checkpoint::open(folder.path().join("sha256-1234")).unwrap();
    fs::write(folder.path().join("notes.txt"), "no model").unwrap();
    refused(&folder.path().join("notes.txt"), ErrorKind::InvalidInput, "no GGUF file");
    // An adapter is none either.
    let mut adapter = model("llama");
    write(folder.path(), "adapter.gguf", adapter.text("general.type", "adapter"));
    refused(&folder.path().join("adapter.gguf"), ErrorKind::Unsupported, "only an adapter");
    fs::remove_file(folder.path().join("adapter.gguf")).unwrap();
    // A projector of images is no second model.
    write(folder.path(), "mmproj-model.gguf", &model("clip"));
    Checkpoint::open(folder.path()).unwrap();
    write(folder.path(), "other.gguf", &model("llama"));
    let error = refused(folder.path(), ErrorKind::InvalidInput, "several models");
    assert_eq!(error.context("files"), Some("model.gguf, other.gguf"));
    // With settings of its own a folder is what they say.
    fs::write(folder.path().join("config.json"), "{\"model_type\": \"llama\"}").unwrap();
    refused(folder.path(), ErrorKind::NotFound, "name that file");
}

#[test]
fn a_split_model_opens_by_any_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = model("llama");
    first.number("split.count", Kind::U32, 2.0);
    write(folder.path(), "m-00001-of-00002.gguf", &first);
    let mut second = Draft::new();
    second.tensor("output_norm.weight", 0, &[4], &floats(&[1.0; 4]));
    write(folder.path(), "m-00002-of-00002.gguf", &second);
    for name in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", ""] {
        let checkpoint = Checkpoint::open(folder.path().join(name)).unwrap();
        assert_eq!(
            checkpoint.tensors().map(|(name, _)| name).collect::<Vec<_>>(),
            ["model.embed_tokens.weight", "model.norm.weight"]
        );
    }
    second.tensor("token_embd.weight", 0, &[1], &floats(&[1.0]));
    write(folder.path(), "m-00002-of-00002.gguf", &second);
    refused(folder.path(), ErrorKind::Corrupt, "two files");
    fs::remove_file(folder.path().join("m-00002-of-00002.gguf")).unwrap();
    let error = refused(folder.path(), ErrorKind::NotFound, "all of its files");
    assert!(error.context("path").unwrap().ends_with("m-00002-of-00002.gguf"));
    // A file whose name does not say that it is one of several.
    fs::rename(folder.path().join("m-00001-of-00002.gguf"), folder.path().join("m.gguf")).unwrap();
    refused(&folder.path().join("m.gguf"), ErrorKind::Corrupt, "split into 2 files");
}

#[test]
fn networks_that_are_not_known_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(folder.path(), "model.gguf", &model("rwkv6"));
    let error = refused(&path, ErrorKind::Unsupported, "'rwkv6' is not known");
    assert!(error.to_string().contains("qwen3moe, "), "{error}");
    write(
        folder.path(),
        "model.gguf",
        model("llama").tensor("blk.0.attn_sinks.weight", 0, &[2], &floats(&[0.0; 2])),
    );
    let error = refused(&path, ErrorKind::Unsupported, "not known to have");
    assert_eq!(error.context("tensor"), Some("blk.0.attn_sinks.weight"));
    write(folder.path(), "model.gguf", &Draft::new());
    refused(&path, ErrorKind::Corrupt, "lacks this key");
    write(folder.path(), "model.gguf", model("llama").text("llama.rope.scaling.type", "magic"));
    refused(&path, ErrorKind::Unsupported, "'magic' is not known");
}

#[test]
fn rope_settings_are_honoured_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |draft: &Draft| {
        write(folder.path(), "model.gguf", draft);
        Checkpoint::open(folder.path())
    };
    let refused_key = |draft: &Draft| {
        let error = open(draft).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        error.context("key").unwrap_or_default().to_owned()
    };
    // Beside factors of frequencies an unknown type is as unknown as without.
    for (factors, known) in [("rope_freqs.weight", "none"), ("rope_factors_long.weight", "longrope")] {
        for kind in ["magic", "linear", "yarn"] {
            let mut llama = model("llama");
            llama.text("llama.rope.scaling.type", kind).tensor(factors, 0, &[1], &floats(&[1.0]));
            assert_eq!(refused_key(&llama), "llama.rope.scaling.type", "{factors}, {kind}");
        }
        let mut llama = model("llama");
        llama.text("llama.rope.scaling.type", known).tensor(factors, 0, &[1], &floats(&[1.0]));
        open(&llama).unwrap();
    }
    // Of Gemma 4 a file's factors stop frequencies, and do nothing else.
    for (factor, accepted) in [(1.0, true), (1e30, true), (2.0, false)] {
        let mut gemma = model("gemma4");
        gemma.tensor("rope_freqs.weight", 0, &[1], &floats(&[factor]));
        if accepted {
            open(&gemma).unwrap();
        } else {
            assert_eq!(refused_key(&gemma), "rope_freqs.weight");
        }
    }
    // Heads have 2 elements; those of Nemotron-H are not rotated.
    for (architecture, rotated, accepted) in [
        ("llama", 2.0, true),
        ("llama", 1.0, false),
        ("qwen2", 4.0, false),
        ("stablelm", 1.0, true),
        ("nemotron_h", 1.0, true),
    ] {
        let mut draft = model(architecture);
        let key = format!("{architecture}.rope.dimension_count");
        draft.number(&key, Kind::U32, rotated);
        for (key, size) in [("ssm.inner_size", 8.0), ("ssm.time_step_rank", 2.0)] {
            draft.number(&format!("{architecture}.{key}"), Kind::U32, size);
        }
        if accepted {
            open(&draft).unwrap();
        } else {
            assert_eq!(refused_key(&draft), key);
        }
    }
}

/// `config.json` of a model with these numbers in its metadata.
fn config(architecture: &str, numbers: &[(&str, f64)]) -> serde_json::Value {
    let mut draft = model(architecture);
    for &(key, number) in numbers {
        draft.number(&format!("{architecture}.{key}"), Kind::F32, number);
    }
    draft.text(&format!("{architecture}.rope.scaling.type"), "yarn");
    draft.flag(&format!("{architecture}.attention.causal"), false);
    json(&draft, "config.json")
}

#[test]
fn shares_of_experts_are_divided_by_their_sum_only_if_the_file_says_so() {
    let mut draft = model("dots1");
    assert_eq!(json(&draft, "config.json")["norm_topk_prob"], false);
    draft.flag("dots1.expert_weights_norm", true);
    assert_eq!(json(&draft, "config.json")["norm_topk_prob"], true);
}

#[test]
fn the_scale_of_yarn_follows_from_the_factor_unless_it_is_another_than_one() {
    let scale = |written: f64| {
        let numbers = [("rope.scaling.factor", 4.0), ("rope.scaling.yarn_attn_factor", written)];
        config("gemma3", &numbers)["rope_scaling"]["attention_factor"].clone()
    };
    assert!(scale(1.0).is_null());
    assert_eq!(scale(1.25), 1.25);
}

#[test]
fn phi_3_5_moe_scales_rotations_as_published_and_others_as_their_files_say() {
    let factor = |contexts: [f64; 2]| {
        let mut draft = model("phimoe");
        for (key, size) in ["context_length", "rope.scaling.original_context_length"].iter().zip(contexts) {
            draft.number(&format!("phimoe.{key}"), Kind::U32, size);
        }
        draft.number("phimoe.rope.scaling.attn_factor", Kind::F32, 1.25);
        for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
            draft.tensor(name, 0, &[1], &floats(&[1.0]));
        }
        json(&draft, "config.json")["rope_scaling"]["long_mscale"].clone()
    };
    assert_eq!(factor([8192.0, 4096.0]), 1.25);
    assert_eq!(factor([131_072.0, 4096.0]), 1.243_163_121_016_122);
}

#[test]
fn factors_of_minicpm_are_those_of_the_file_or_of_minicpm_2b() {
    let factors = |numbers: &[(&str, f64)]| {
        let config = config("minicpm", numbers);
        ["scale_emb", "scale_depth", "dim_model_base"].map(|key| config[key].as_f64().unwrap())
    };
    assert_eq!(factors(&[]), [12.0, 1.4, 256.0]);
    let written = [("embedding_scale", 2.0), ("residual_scale", 0.5), ("logit_scale", 0.25)];
    assert_eq!(factors(&written), [2.0, 0.5, 16.0]);
}

#[test]
fn files_say_whether_attention_is_causal() {
    assert_eq!(config("qwen2", &[])["is_causal"], false);
}

#[test]
fn gemma_2_has_its_window_where_the_file_names_none() {
    assert!(config("gemma2", &[]).get("sliding_window").is_none());
}

#[test]
fn what_the_converter_has_computed_is_computed_back() {
    let folder = tempfile::tempdir().unwrap();
    let read = |draft: &Draft, name: &str| {
        write(folder.path(), "model.gguf", draft);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let view = checkpoint.tensor(name).unwrap();
        let values = view.bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        (view.shape.clone(), values.collect::<Vec<_>>())
    };
    let mut gemma = model("gemma");
    gemma.tensor("blk.0.attn_norm.weight", 0, &[4], &floats(&[1.0, 1.25, 0.5, 3.0]));
    assert_eq!(read(&gemma, "model.layers.0.input_layernorm.weight"), (vec![4], vec![0.0, 0.25, -0.5, 2.0]));
    let mut mamba = model("mamba2");
    for (key, size) in [("inner_size", 8.0), ("time_step_rank", 2.0)] {
        mamba.number(&format!("mamba2.ssm.{key}"), Kind::U32, size);
    }
    mamba.tensor("blk.0.ssm_a", 0, &[2, 1], &floats(&[-1.0, -std::f32::consts::E]));
    let (shape, values) = read(&mamba, "backbone.layers.0.mixer.A_log");
    assert_eq!((shape, values[0]), (vec![2], 0.0));
    assert!((values[1] - 1.0).abs() < 1e-6);
    mamba.tensor("blk.0.ssm_conv1d.weight", 0, &[2, 4], &floats(&[2.0; 8]));
    assert_eq!(read(&mamba, "backbone.layers.0.mixer.conv1d.weight").0, [2, 1, 4]);
}

#[test]
fn small_files_are_made_of_metadata_unless_the_folder_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut draft = model("qwen2");
    draft.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
    draft.texts("tokenizer.ggml.tokens", &["a", "<|im_end|>", "</s>"]).texts("tokenizer.ggml.merges", &[]);
    draft.numbers("tokenizer.ggml.token_type", Kind::I32, &[1.0, 3.0, 3.0]);
    draft.number("tokenizer.ggml.eos_token_id", Kind::U32, 2.0).flag("tokenizer.ggml.add_eos_token", true);
    draft.text("tokenizer.chat_template", "{{ messages }}");
    write(folder.path(), "model.gguf", &draft);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    // What the file names, and what ends a turn whatever it says.
    assert_eq!(checkpoint.stop_tokens(), [2, 1]);
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&checkpoint.file(name).unwrap().unwrap()).unwrap()
    };
    assert_eq!(json("config.json")["num_key_value_heads"], 2);
    assert_eq!(json("tokenizer_config.json")["chat_template"], "{{ messages }}");
    assert_eq!(json("tokenizer_config.json")["eos_token"], "</s>");
    assert_eq!(json("tokenizer.json")["post_processor"]["special_tokens"]["</s>"]["ids"][0], 2);
    assert_eq!(checkpoint.file("vocab.json").unwrap(), None);
    assert_eq!(checkpoint.file("../model.gguf").unwrap_err().kind(), ErrorKind::InvalidInput);
    fs::write(folder.path().join("generation_config.json"), "{\"eos_token_id\": 0}").unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().stop_tokens(), [0]);
    // The files beside one that was named are not its own.
    assert_eq!(Checkpoint::open(folder.path().join("model.gguf")).unwrap().stop_tokens(), [2, 1]);
}

#[test]
fn control_tokens_of_phi_3_take_the_space_behind_them() {
    for (architecture, taken) in [("phi3", true), ("llama", false)] {
        let mut draft = model(architecture);
        draft.text("tokenizer.ggml.model", "llama");
        draft.texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "<|endoftext|>", "<|user|>", "a"]);
        draft.numbers("tokenizer.ggml.token_type", Kind::I32, &[2.0, 3.0, 3.0, 3.0, 1.0]);
        draft.numbers("tokenizer.ggml.scores", Kind::F32, &[0.0; 5]);
        let tokenizer = json(&draft, "tokenizer.json");
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let taking = added.iter().filter(|token| token["rstrip"] == true).map(|token| &token["content"]);
        assert_eq!(taking.eq(["<|user|>"]), taken, "{added:?}");
    }
}

#[test]
fn tokenizers_that_are_not_known_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = |model: &str, splitting: Option<&str>| {
        let mut draft = self::model("llama");
        draft
            .text("tokenizer.ggml.model", model)
            .texts("tokenizer.ggml.tokens", &["a"])
            .texts("tokenizer.ggml.merges", &[]);
        if let Some(name) = splitting {
            draft.text("tokenizer.ggml.pre", name);
        }
        write(folder.path(), "model.gguf", &draft);
        crate::source::read_file(&ModelSource::from(folder.path()), "tokenizer.json")
    };
    for (model, splitting, words) in [
        ("plamo2", None, "kind 'plamo2'"),
        ("gpt2", Some("mystery"), "called 'mystery' is not known; supported: gpt-2"),
        ("gpt2", None, "before May 2024"),
    ] {
        let error = tokenizer(model, splitting).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(tokenizer("no_vocab", None).unwrap(), None);
    assert!(tokenizer("llama", None).unwrap().is_some());
}

#[test]
fn what_takes_more_memory_than_the_file_is_refused_before_it_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let mut wide = model("gemma");
    let values = (1 << 20) + 1;
    wide.tensor("blk.0.attn_norm.weight", 0, &[values], &vec![0; 4 * values]);
    write(folder.path(), "model.gguf", &wide);
    let error = refused(folder.path(), ErrorKind::Corrupt, "more than 1048576");
    assert_eq!(error.context("tensor"), Some("blk.0.attn_norm.weight"));

    // All parts of a text up to a hundred letters are tokens: each is made of two others in as many ways as
    // it has letters.
    let letters: Vec<char> = (0..250).filter_map(|letter| char::from_u32(0x4e00 + letter)).collect();
    let tokens = |longest: usize| {
        let parts = (1..=longest).flat_map(|length| letters.windows(length));
        let parts: Vec<String> = parts.map(|part| part.iter().collect()).collect();
        let mut draft = model("llama");
        draft.text("tokenizer.ggml.model", "llama");
        draft.texts("tokenizer.ggml.tokens", &parts.iter().map(String::as_str).collect::<Vec<_>>());
        write(folder.path(), "model.gguf", &draft);
        crate::source::read_file(&ModelSource::from(folder.path()), "tokenizer.json")
    };
    assert!(tokens(4).unwrap().is_some());
    let error = tokens(100).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("made of others"), "{error}");
}

#[test]
fn models_may_be_embedded() {
    let file: &'static [u8] = model("llama").write().leak();
    let files: &'static [(&str, &[u8])] = vec![("model.gguf", file)].leak();
    let checkpoint = Checkpoint::from_files(files).unwrap();
    assert_eq!((checkpoint.model_type(), checkpoint.path()), ("llama", None));
}

/// A whole model of an architecture, with one layer, whose file has these biases too.
fn biased(architecture: &str, biases: &[&str]) -> Draft {
    let mut draft = model(architecture);
    draft.number(&format!("{architecture}.feed_forward_length"), Kind::U32, 8.0);
    let norms = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"].map(|name| (name, vec![4]));
    let square = ["attn_q", "attn_k", "attn_v", "attn_output"].map(|name| (name, [4, 4]));
    let mlp = [("ffn_gate", [8, 4]), ("ffn_up", [8, 4]), ("ffn_down", [4, 8])];
    let of_layer = |(name, shape): (&str, [usize; 2])| (format!("blk.0.{name}"), shape.to_vec());
    let tensors = norms.map(|(name, shape)| (name.to_owned(), shape));
    for (name, shape) in tensors.into_iter().chain(square.into_iter().chain(mlp).map(of_layer)) {
        let count = shape.iter().product();
        draft.tensor(&format!("{name}.weight"), 0, &shape, &floats(&vec![0.5; count]));
        if biases.iter().any(|bias| name == format!("blk.0.{bias}")) {
            draft.tensor(&format!("{name}.bias"), 0, &shape[..1], &floats(&vec![0.5; shape[0]]));
        }
    }
    draft
}

#[test]
fn biases_that_a_file_has_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let describe = |draft: &Draft| {
        write(folder.path(), "model.gguf", draft);
        Checkpoint::open(folder.path()).unwrap().decoder()
    };
    let (queries, mlp) = (["attn_q", "attn_k", "attn_v", "attn_output"], ["ffn_gate", "ffn_up", "ffn_down"]);
    for biases in [&queries[..], &mlp, &[]] {
        for architecture in ["llama", "granite"] {
            let decoder = describe(&biased(architecture, biases)).unwrap();
            let read = decoder.weights().filter(|weight| weight.tensor.ends_with(".bias")).count();
            assert_eq!(read, biases.len(), "{architecture} {biases:?}");
        }
    }
    // No Llama has a bias of this alone, and SmolLM 3 none of MLPs.
    for (draft, tensor) in
        [(biased("llama", &["attn_output"]), "self_attn.o_proj"), (biased("smollm3", &mlp), "mlp.down_proj")]
    {
        let error = describe(&draft).unwrap_err();
        let tensor = format!("model.layers.0.{tensor}.bias");
        assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, Some(&*tensor)));
    }
}
