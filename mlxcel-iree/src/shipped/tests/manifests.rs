//! What is written, as far as no compiler is needed to see it.

use mlxcel_core::ErrorKind;

use super::*;

/// A bundle of a fixture as text, in the folder `bundle` of a place.
fn text_bundle(name: &str, options: BundleOptions) -> (TempDir, Manifest) {
    let place = tempfile::tempdir().unwrap();
    let (folder, options) = (place.path().join("bundle"), options.with_targets([STABLEHLO]));
    let manifest = write(&without_compiler(), &fixture(name).into(), folder, &options);
    (place, manifest.unwrap())
}

#[test]
fn manifests_round_trip() {
    let load = load_options().with_capacity(150).with_sequences(2);
    let (place, manifest) = text_bundle("llama", BundleOptions::from(load).with_every_position(true));
    let bundle = Bundle::open(place.path().join("bundle")).unwrap();
    assert_eq!(*bundle.manifest(), manifest);
    bundle.verify().unwrap();
    let shown = manifest.to_string();
    assert!(shown.contains("stablehlo: 6 programs") && shown.contains("weights included"), "{shown}");
}

#[test]
fn the_kv_cache_type_is_recorded_and_checked_when_opening() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("bundle");
    let engine = without_compiler().with_kv_cache(crate::KvCacheType::Int8);
    let written =
        write(&engine, &fixture("llama").into(), &folder, &short().with_targets([STABLEHLO])).unwrap();
    assert_eq!(written.kv_cache.as_deref(), Some("int8"));
    assert!(written.to_string().contains("KV cache int8"), "{written}");
    // It is refused for what it is, which is text, and not for its cache.
    let error = load_error(&engine, &folder);
    assert!(error.message().contains("text for other compilers"), "{error}");
    let error = load_error(&without_compiler(), &folder);
    assert_eq!((error.context("field"), error.context("bundle")), (Some("KV cache"), Some("int8")));
}

#[test]
fn packed_weights_are_listed_tensor_by_tensor() {
    let (_place, manifest) = text_bundle("storyteller-4bit", short().with_weights(false));
    let shown: Vec<String> = manifest.weights[..4].iter().map(|weight| weight.tensor.to_string()).collect();
    assert_eq!(
        shown,
        [
            "model.embed_tokens.weight U32 [729, 24]",
            "model.embed_tokens.scales BF16 [729, 3]",
            "model.embed_tokens.biases BF16 [729, 3]",
            "model.layers.0.input_layernorm.weight BF16 [192]",
        ]
    );
}

#[test]
fn exported_text_is_plain_stablehlo() {
    let (place, manifest) = text_bundle("llama", short());
    let target = &manifest.targets[0];
    assert_eq!((target.target.as_str(), target.entry.as_str()), (STABLEHLO, "main"));
    for (file, program) in target.programs.iter().zip(&manifest.programs) {
        let text = fs::read_to_string(place.path().join("bundle").join(&file.path)).unwrap();
        assert!(text.contains("func.func public @main("), "{}", file.path);
        assert!(!text.contains("composite") && !text.contains("custom_call") && !text.contains("flow."));
        let dialects: std::collections::BTreeSet<&str> = text
            .split_whitespace()
            .filter_map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).split_once('.'))
            .map(|(dialect, _)| dialect)
            .filter(|dialect| dialect.chars().all(|c| c.is_ascii_lowercase()) && !dialect.is_empty())
            .collect();
        assert_eq!(dialects, ["func", "stablehlo", "tf"].into(), "{}", file.path);
        let arguments = text.lines().nth(1).unwrap().matches(": tensor<").count();
        assert_eq!(arguments, manifest.weights.len() + program.inputs.len());
    }
    assert_eq!(manifest.weights[0].tensor.tensor, "model.embed_tokens.weight");
    assert_eq!((manifest.rotary.len(), manifest.rotary[0].inv_freq.len()), (1, 8));
}

#[test]
fn sharded_weights_are_copied_with_their_index() {
    let (place, manifest) = text_bundle("olmo2", short());
    let names = manifest.files.iter().map(|file| &*file.path).filter(|name| name.contains("safetensors"));
    let shards = (1..=4).map(|number| format!("model-0000{number}-of-00004.safetensors"));
    let expected: Vec<_> = std::iter::once("model.safetensors.index.json".to_owned()).chain(shards).collect();
    assert_eq!(names.collect::<Vec<_>>(), expected);
    let folder = place.path().join("bundle");
    let fingerprint = |folder: &Path| mlxcel_models::Checkpoint::open(folder).unwrap().fingerprint();
    assert_eq!(fingerprint(&folder), fingerprint(&fixture("olmo2")));
    Bundle::open(&folder).unwrap().verify().unwrap();
    // Of weights in one file an index says nothing.
    let (_place, manifest) = text_bundle("storyteller-4bit", short());
    assert!(manifest.files.iter().all(|file| !file.path.ends_with("index.json")));
}

#[test]
fn bundles_are_reproducible() {
    let read = |place: &TempDir| fs::read(place.path().join("bundle/bundle.json")).unwrap();
    assert_eq!(read(&text_bundle("llama", short()).0), read(&text_bundle("llama", short()).0));
}

#[test]
fn invalid_bundle_requests_are_rejected_by_name() {
    let place = tempfile::tempdir().unwrap();
    let refused = |options: BundleOptions| {
        let folder = place.path().join("bundle");
        let error = write(&without_compiler(), &fixture("llama").into(), folder, &options).unwrap_err();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        error
    };
    for (load, field) in [
        (load_options().with_capacity(513), "capacity"),
        (load_options().with_capacity(0), "capacity"),
        (load_options().with_sequences(0), "sequences"),
        (load_options().with_threads(2), "threads"),
    ] {
        assert_eq!(refused(load.into()).context("field"), Some(field));
    }
    for (targets, named) in [
        (&[STABLEHLO, STABLEHLO][..], STABLEHLO),
        (&["llvm-cpu:x86-64-v3", "LLVM-CPU:x86_64/x86-64-v3"], "llvm-cpu:x86-64-v3"),
        (&["llvm-cpu:abacus"], "llvm-cpu:abacus"),
        (&["steam"], "steam"),
    ] {
        let error = refused(short().with_targets(targets.iter().copied()));
        assert_eq!((error.kind(), error.context("target")), (ErrorKind::InvalidInput, Some(named)));
    }
}

#[test]
fn a_folder_without_manifest_is_not_a_bundle() {
    for folder in [fixture("llama"), "/nowhere".into()] {
        assert_eq!(Bundle::open(folder).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[cfg(unix)]
#[test]
fn files_outside_of_the_checkpoint_are_not_copied_through_links() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = place.path().join("checkpoint");
    fs::create_dir_all(checkpoint.join("NOTICE")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture("llama").join(name), checkpoint.join(name)).unwrap();
    }
    let write = |name: &str| {
        let options = short().with_targets([STABLEHLO]);
        write(&without_compiler(), &checkpoint.as_path().into(), place.path().join(name), &options)
    };
    assert_eq!(write("without").unwrap().files.len(), 2);
    fs::write(place.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", checkpoint.join("LICENSE")).unwrap();
    let error = write("with").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.context("path").is_some_and(|path| path.ends_with("LICENSE")), "{error}");
    fs::remove_file(checkpoint.join("LICENSE")).unwrap();
    fs::rename(checkpoint.join("model.safetensors"), place.path().join("private")).unwrap();
    std::os::unix::fs::symlink("../private", checkpoint.join("model.safetensors")).unwrap();
    let error = write("with").unwrap_err();
    assert!(error.context("path").is_some_and(|path| path.ends_with("model.safetensors")), "{error}");
    assert!(!place.path().join("with").exists());
}
