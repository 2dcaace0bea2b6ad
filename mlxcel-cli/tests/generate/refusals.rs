//! What is refused, by name.

use super::*;

#[test]
fn invalid_arguments_are_rejected_by_name() {
    let long = "word ".repeat(2000);
    let cases: &[(&[&str], &[&str])] = &[
        (&["--unknown"], &["--unknown"]),
        (&["--tokens", "1,x"], &["'x'", "--tokens"]),
        (&["--tokens", ""], &["--tokens"]),
        (&["--tokens", "-1"], &["-1"]),
        (&["--tokens", "4294967296"], &["4294967296"]),
        (&["--tokens", "1", "--prompt", "a"], &["--tokens", "--prompt"]),
        (&["--prompt", ""], &["empty"]),
        (&["-n", "many"], &["many"]),
        (&["--precision", "double"], &["double", "exact"]),
        (&["--backend", "steam"], &["steam", "compiled_in"]),
        (&["--model", "."], &["--prompt"]),
        (&["--tokens", "0,729"], &["729", "vocabulary"]),
        (&["--tokens", "0,4294967295"], &["4294967295", "vocabulary"]),
        (&["--temperature", "-1"], &["--temperature", "'-1'", "at least 0"]),
        (&["--temperature=-1"], &["temperature"]),
        (&["--temperature", "1", "--top-p", "2"], &["--top-p", "at most 1"]),
        (&["--top-k", "0"], &["--top-k", "at least 1"]),
        (&["--threads", "-1"], &["--threads", "at least 1"]),
        (&["-n", "-1"], &["--max-tokens", "at least 0"]),
        (&["--prompt-file", "/nope"], &["/nope"]),
        (&["--prompt-file", "a", "--prompt", "b"], &["--prompt-file", "--prompt"]),
        // Before the model is opened.
        (&["--model", "/nope", "--prompt", "a", "--json-schema", "/no-schema"], &["/no-schema"]),
        (&["--model", "/nope", "--prompt", "a", "--draft", "/no-draft"], &["--draft /no-draft"]),
        (&["--model", "/nope", "--prompt", "a", "--temperature", "-1"], &["--temperature"]),
        (&["--temperature", "1", "--xtc-probability", "2"], &["--xtc-probability", "from 0 to 1"]),
        (&["--xtc-threshold", "0.2"], &["--xtc-probability"]),
        (&["--logit-bias", "3"], &["--logit-bias", "equals sign"]),
        (&["--logit-bias", "100000=1"], &["--logit-bias", "100000", "vocabulary"]),
        (&["--allowed-tokens", "100000"], &["--allowed-tokens", "100000", "vocabulary"]),
        (&["--seed", "luck"], &["--seed", "random"]),
        (&["--top-logprobs", "2"], &["--json"]),
        (&["--stop", ""], &["stop"]),
        (&["--prompt", &long], &["context"]),
        (&["--prompt", "Tell me a story.", "--context", "5"], &["context"]),
        (&["--threads", "100000"], &["--threads", "256", "100000"]),
        (&["--context", "0"], &["0"]),
        (&["--context", "1000000"], &["--context", "1000000"]),
        (&["--regex", "(a"], &["unclosed group"]),
        (&["--speculate", "head"], &["draft heads", "'llama'"]),
    ];
    for backend in BACKENDS {
        for (arguments, words) in cases {
            let run = if arguments.contains(&"--backend") {
                generate(arguments)
            } else {
                generate(&[&["--backend", backend][..], arguments].concat())
            };
            run.refused(2, words);
        }
    }
    generate_with(&[], "", &[("MLXCEL_BACKEND", "steam")]).refused(2, &["steam", "MLXCEL_BACKEND"]);
}

#[test]
fn drafts_that_cannot_draft_are_refused_before_the_model_is_opened() {
    let own = copy_of_storyteller();
    let own = own.path().to_str().unwrap();
    for (draft, words) in [
        ("encoders/bert", &["--draft", "encoder"][..]),
        ("gguf-encoders/bert/model.gguf", &["--draft", "encoder"]),
        ("architectures/llama", &["--draft", "256", "729"]),
        ("adapters/llama-attention", &["--draft", "LoRA adapter"]),
        ("adapters/llama-all-gguf/adapter.gguf", &["adapter.gguf", "only an adapter"]),
        ("README.md", &["README.md", "no GGUF file"]),
        ("adapters", &["adapters", "config.json"]),
        (own, &["--draft", "the model itself"]),
    ] {
        let draft = fixture(draft);
        // What is wrong with the model comes later.
        let arguments =
            ["--model", own, "--prompt", "Hi", "--context", "1000000", "--draft", draft.to_str().unwrap()];
        for backend in BACKENDS {
            generate(&[&arguments[..], &["--backend", backend]].concat()).refused(2, words);
        }
    }
}

#[test]
fn incomplete_checkpoints_are_rejected_with_the_defect() {
    let none = tempfile::tempdir().unwrap();
    let unknown = copy_of_storyteller();
    let config = fs::read_to_string(unknown.path().join("config.json")).unwrap();
    fs::write(unknown.path().join("config.json"), config.replace("\"llama\"", "\"alpaca\"")).unwrap();
    let cut = copy_of_storyteller();
    let weights = fs::read(cut.path().join("model.safetensors")).unwrap();
    fs::write(cut.path().join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    let spoilt_tokenizer = copy_of_storyteller();
    fs::write(spoilt_tokenizer.path().join("tokenizer.json"), "{").unwrap();
    let spoilt_template = copy_of_storyteller();
    fs::write(spoilt_template.path().join("chat_template.jinja"), "{% if %}").unwrap();
    let [no_tokenizer, no_weights] = ["tokenizer.json", "model.safetensors"].map(|missing| {
        let folder = copy_of_storyteller();
        fs::remove_file(folder.path().join(missing)).unwrap();
        folder
    });
    let missing = none.path().join("missing");
    let cases: &[(&Path, &[&str])] = &[
        (&missing, &["missing"]),
        (none.path(), &["config.json"]),
        (unknown.path(), &["alpaca"]),
        (cut.path(), &["model.safetensors"]),
        (spoilt_tokenizer.path(), &["tokenizer.json"]),
        (spoilt_template.path(), &["chat_template.jinja"]),
        (no_tokenizer.path(), &["tokenizer.json"]),
        (no_weights.path(), &["model.safetensors"]),
    ];
    for backend in BACKENDS {
        for (folder, words) in cases {
            let folder = folder.to_str().unwrap();
            generate(&["--backend", backend, "--model", folder, "--prompt", "Hi"]).refused(2, words);
        }
    }
}

#[test]
fn a_program_without_subcommand_names_its_help() {
    Run::of(&mut mlxcel(&[])).refused(2, &["mlxcel --help"]);
}
