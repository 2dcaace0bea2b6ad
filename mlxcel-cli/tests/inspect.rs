//! The program `inspect`, as a user runs it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::program::{Run, fixture, mlxcel};

fn inspect(model: &Path, arguments: &[&str]) -> Run {
    let mut program = mlxcel(&["inspect", "--model"]);
    Run::of(program.arg(model).args(arguments).env("MLXCEL_CACHE_DIR", crate::support::cache_dir()))
}

#[track_caller]
fn answer(model: &Path, arguments: &[&str]) -> Value {
    inspect(model, &[arguments, &["--json"]].concat()).json()
}

fn architecture(name: &str) -> PathBuf {
    fixture("architectures").join(name)
}

#[test]
fn inspect_lists_weights_by_role_and_packing() {
    let told = answer(&fixture("storyteller-4bit"), &["--no-load"]);
    assert_eq!(told["model_type"], "llama");
    assert_eq!((&told["layers"], &told["context"]), (&json!(4), &json!(1024)));
    let [share] = &told["quantization"].as_array().unwrap()[..] else { panic!("{}", told["quantization"]) };
    assert_eq!((&share["packing"], &share["bits_per_value"]), (&json!("u4/64 bf16 + bf16"), &json!(4.5)));
    let share = |key: &str| share[key].as_u64().unwrap();
    assert_eq!(share("bytes") * 32, share("parameters") * 18);
    assert_eq!(share("expanded_bytes"), share("parameters") * 2);
    let roles = told["weights"].as_array().unwrap();
    let sum = |field: &str| roles.iter().map(|role| role[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("parameters"), told["parameters"].as_u64().unwrap());
    assert_eq!(sum("bytes"), told["weight_bytes"].as_u64().unwrap());
    let names = roles.iter().map(|role| role["role"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(names, ["embedding", "norms", "attention", "mlp"], "a tied head is the embedding");
    let told = answer(&architecture("qwen3_next"), &["--no-load"]);
    let roles = told["weights"].as_array().unwrap();
    let names = roles.iter().map(|role| role["role"].as_str().unwrap()).collect::<Vec<_>>();
    let expected = ["embedding", "norms", "attention", "recurrence", "mlp", "router", "experts", "head"];
    assert_eq!(names, expected);
}

#[test]
fn inspect_lists_memory_by_kind_of_state() {
    let memory = |name: &str, capacity: &str| {
        let arguments = ["--no-load", "--context", capacity, "--sequences", "3", "--kv-cache", "f32"];
        answer(&architecture(name), &arguments)["memory"].clone()
    };
    // Two layers each of two heads of 16, all of them with keys and values in four bytes.
    let position = 2 * 2 * 16 * 4;
    for (capacity, windowed) in [(8, 8), (400, 16)] {
        let told = memory("gpt_oss", &capacity.to_string());
        let groups = told["groups"].as_array().unwrap();
        let kinds =
            groups.iter().map(|group| (group["kind"].as_str().unwrap(), group["bytes"].as_u64().unwrap()));
        let expected = [("window", 2 * windowed * position), ("full", 2 * capacity * position)];
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
        assert_eq!(told["bytes"], json!(3 * 2 * (windowed + capacity) * position));
        assert_eq!(told["bytes_per_position"], json!(2 * position * if windowed < 16 { 2 } else { 1 }));
    }
    let told = memory("mamba2", "500");
    assert_eq!(told["bytes"], json!(3 * 3 * (160 * 3 + 8 * 16 * 16) * 4));
    assert_eq!(told["bytes_per_position"], json!(0));
    let told = memory("deepseek_v3", "10");
    assert_eq!(told["groups"][0]["bytes"], json!(3 * 10 * 40 * 4));
}

#[test]
fn load_reports_what_each_engine_does_with_the_model() {
    let asked = |name: &str| {
        let told = answer(&architecture(name), &["--context", "64"]);
        let mut engines = told["engines"].as_array().unwrap().clone();
        assert_eq!(engines.len(), mlxcel_session::available_backends().len());
        // It runs what its plugin runs, and there may be none.
        engines.retain(|engine| engine["engine"] != json!("pjrt"));
        for engine in &engines {
            assert_eq!(engine["runs"], json!(true), "{engine}");
            assert_eq!(engine["capabilities"]["context"], json!(64));
            assert_eq!(engine["capabilities"]["fork"], json!(true));
        }
        engines
    };
    assert!(asked("llama").iter().all(|engine| engine["capabilities"]["rewind"] == json!(true)));
    assert!(asked("lfm2").iter().all(|engine| engine["capabilities"]["rewind"] == json!(false)));
    let unasked = answer(&architecture("llama"), &["--no-load"]);
    let runs =
        unasked["engines"].as_array().unwrap().iter().map(|engine| &engine["runs"]).collect::<Vec<_>>();
    assert!(!runs.is_empty() && runs.iter().all(|runs| runs.is_null()), "{runs:?}");
}

#[test]
fn inspect_describes_the_network_as_text() {
    let told = inspect(&architecture("gpt_oss"), &["--no-load"]).printed();
    for line in [
        "gpt_oss: 483 K parameters in 965 KB, activations BF16",
        "  experts        24 tensors     398 K    797 KB  BF16",
        "state of a sequence of 512 positions, caches in bf16",
        "needs       attention, sliding window, attention sinks, clamped SwiGLU, experts",
    ] {
        assert!(told.contains(line), "{line:?} in\n{told}");
    }
}

#[test]
fn inspect_tells_what_a_draft_head_of_its_own_checkpoint_is_for() {
    let output = inspect(&fixture("eagle3/llama-head"), &["--no-load"]);
    assert_ne!(output.status, 0);
    assert!(output.err.contains("--draft-head"), "{}", output.err);
}

#[test]
fn inspect_tells_whether_a_draft_head_is_stored() {
    for (name, stored) in [("draft-heads/qwen3_next", true), ("architectures/qwen3_next", false)] {
        let model = fixture(name);
        assert_eq!(answer(&model, &["--no-load"])["draft_head"], stored, "{name}");
        let said = inspect(&model, &["--no-load"]).out;
        assert_eq!(said.contains("--speculate head"), stored, "{said}");
    }
}

#[test]
fn inspect_errors_are_one_line() {
    for (model, arguments, words) in [
        (architecture("absent"), &[][..], "--model"),
        (architecture("llama"), &["--context", "513"], "does not have this many positions"),
        (architecture("llama"), &["--kv-cache", "fp3"], "f32, bf16, f16 or int8"),
        (architecture("llama"), &["--backend", "abacus"], "abacus"),
    ] {
        inspect(&model, arguments).refused(2, &[words]);
    }
}

#[cfg(feature = "iree")]
#[test]
fn devices_are_listed_with_what_programs_are_compiled_for() {
    let devices = Run::of(&mut mlxcel(&["devices", "--json"])).json();
    let cpu = devices["devices"].as_array().unwrap().iter().find(|device| device["kind"] == "CPU").unwrap();
    assert!(cpu["target"].as_str().unwrap().starts_with("llvm-cpu:"), "{cpu}");
    Run::of(&mut mlxcel(&["generate", "--backend", "iree", "--device", "nothing"])).refused(2, &[]);
}
