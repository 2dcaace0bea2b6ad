//! Adapters: models of their own to clients.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::adapter::write_adapter;
use crate::server::harness::Server;

/// Writes an adapter for the first query projections of the bundled model: pseudorandom numbers of this seed.
fn write(folder: &Path, seed: u64) {
    let queries = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"];
    write_adapter(folder, &queries.map(|module| (module, 192, 192)), 2, 1.0, seed);
}

fn text(server: &Server, model: &str) -> String {
    let body = json!({ "model": model, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": true });
    let answer = server.answer("/v1/completions", &body);
    assert_eq!(answer["model"], model);
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn models(server: &Server) -> Vec<(String, Option<String>)> {
    let (_, text) = server.get("/v1/models");
    let list: Value = serde_json::from_str(&text).unwrap();
    let described = list["data"].as_array().unwrap().iter();
    let name = |value: &Value| value.as_str().map(str::to_owned);
    described.map(|model| (name(&model["id"]).unwrap(), name(&model["parent"]))).collect()
}

#[test]
fn adapters_are_models_with_texts_and_figures_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let [poems, laws] = ["poems", "laws"].map(|name| folder.path().join(name));
    write(&poems, 1);
    write(&laws, 2);
    let named = |name: &str, folder: &Path| format!("{name}={}", folder.display());
    // One slot for two: they take turns.
    let arguments =
        ["--adapter", &named("poems", &poems), "--adapter", &named("laws", &laws), "--adapter-slots", "1"];
    let server = Server::start(&arguments);
    let base = || Some("storyteller".to_owned());
    let listed = [("storyteller", None), ("storyteller:laws", base()), ("storyteller:poems", base())];
    assert_eq!(models(&server), listed.map(|(name, parent)| (name.to_owned(), parent)));
    let names = ["storyteller", "storyteller:poems", "storyteller:laws"];
    let texts = names.map(|name| text(&server, name));
    assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2], "{texts:?}");
    assert_eq!(names.map(|name| text(&server, name)), texts);

    let question = json!([{ "role": "user", "content": "Hello" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "model": names[1], "max_tokens": 4, "messages": question })),
        ("/v1/messages", json!({ "model": names[1], "max_tokens": 4, "messages": question })),
        ("/v1/responses", json!({ "model": names[1], "max_output_tokens": 16, "input": "Hello" })),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!((status, answer["model"].as_str()), (200, Some(names[1])), "{path}: {answer}");
    }
    let (_, figures) = server.get("/metrics");
    let figure = |name: &str, adapter: &str| {
        let line = format!("mlxcel_adapter_{name}{{model=\"storyteller\",adapter=\"{adapter}\"}} ");
        let value = figures.lines().find_map(|own| own.strip_prefix(&line));
        value.unwrap_or_else(|| panic!("no {line} in {figures}")).parse::<u32>().unwrap()
    };
    assert_eq!((figure("requests_total", "poems"), figure("requests_total", "laws")), (5, 2));
    assert_eq!(figure("generated_tokens_total", "laws"), 24);

    // What would be computed without the adapter is refused.
    for (path, body) in [
        ("/v1/embeddings", json!({ "model": names[1], "input": "Hello" })),
        ("/v1/rerank", json!({ "model": names[1], "query": "Hello", "documents": ["Hello"] })),
        ("/v1/completions", json!({ "model": names[1], "prompt": "Hello", "echo": true, "logprobs": 1 })),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("model")), "{path}: {answer}");
    }
    for name in ["poems", "storyteller:", "storyteller:none", "other:poems"] {
        let (status, _) = server.post("/v1/completions", &json!({ "model": name, "prompt": "Hello" }));
        assert_eq!(status, 404, "{name}");
    }
    // Clients load none unless the server is told to.
    let (status, _) =
        server.post("/v1/load_lora_adapter", &json!({ "lora_name": "a", "lora_path": "poems" }));
    assert_eq!(status, 404);
}

#[test]
fn clients_load_and_unload_adapters_of_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = folder.path().join("allowed");
    write(&allowed.join("poems"), 1);
    write(&folder.path().join("secret"), 2);
    fs::create_dir(allowed.join("empty")).unwrap();
    let server = Server::start(&["--adapters-at-runtime", allowed.to_str().unwrap()]);
    let load = |name: &str, path: &str| {
        server.post("/v1/load_lora_adapter", &json!({ "lora_name": name, "lora_path": path }))
    };
    let unload = |name: &str| server.post("/v1/unload_lora_adapter", &json!({ "lora_name": name }));
    let absolute = allowed.join("poems");
    let told = json!("Success: LoRA adapter 'poems' added successfully.");
    assert_eq!(load("poems", absolute.to_str().unwrap()), (200, told));
    let plain = text(&server, "storyteller");
    assert_ne!(text(&server, "storyteller:poems"), plain);
    // A name that is taken, and folders that are elsewhere, missing or of something else.
    assert_eq!(load("poems", "poems").0, 400);
    let outside = load("secret", "../secret");
    assert_eq!((outside.0, outside.1["error"]["param"].as_str()), (400, Some("lora_path")), "{outside:?}");
    assert_eq!(load("secret", "none").1, outside.1);
    assert_eq!(load("empty", "empty").0, 400);
    assert_eq!(load("a b", "poems").0, 400);
    assert_eq!(models(&server).len(), 2);

    assert_eq!(unload("none").0, 404);
    assert_eq!(unload("poems"), (200, json!("Success: LoRA adapter 'poems' removed successfully.")));
    assert_eq!(models(&server).len(), 1);
    let gone = server.post("/v1/completions", &json!({ "model": "storyteller:poems", "prompt": "Hello" }));
    assert_eq!(gone.0, 404);
    // It may come back, and its figures with it.
    assert_eq!(load("again", "poems").0, 200);
    assert!(server.get("/metrics").1.contains("adapter=\"again\"}"));
}
