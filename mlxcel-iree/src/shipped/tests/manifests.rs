//! What is written, as far as no compiler is needed to see it.

use mlxcel_core::ErrorKind;

use super::*;

fn text_bundle(options: &BundleOptions) -> (TempDir, Manifest) {
    let place = tempfile::tempdir().unwrap();
    let options = options.clone().with_targets([STABLEHLO]);
    let manifest =
        write(&without_compiler(), &fixture("llama").into(), place.path().join("bundle"), &options);
    (place, manifest.unwrap())
}

#[test]
fn manifests_round_trip() {
    let load = load_options().with_capacity(150).with_sequences(2);
    let (place, manifest) = text_bundle(&BundleOptions::from(load).with_every_position(true));
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
    let place = tempfile::tempdir().unwrap();
    let options = short().with_targets([STABLEHLO]).with_weights(false);
    let source = fixture("storyteller-4bit").as_path().into();
    let manifest = write(&without_compiler(), &source, place.path().join("bundle"), &options).unwrap();
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
    let (place, manifest) = text_bundle(&short());
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

/// Writes the tensors of a safetensors file into two, with their index.
fn write_shards(from: &Path, folder: &Path) {
    let file = fs::read(from).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let names: Vec<&String> = header.keys().filter(|name| *name != "__metadata__").collect();
    let mut map = serde_json::Map::new();
    for (number, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let shard = format!("model-0000{}-of-00002.safetensors", number + 1);
        let (mut entries, mut bytes) = (serde_json::Map::new(), Vec::new());
        for name in names {
            let mut entry = header[*name].clone();
            let range = [0, 1].map(|at: usize| entry["data_offsets"][at].as_u64().unwrap() as usize);
            entry["data_offsets"] = serde_json::json!([bytes.len(), bytes.len() + range[1] - range[0]]);
            bytes.extend_from_slice(&data[range[0]..range[1]]);
            entries.insert((*name).clone(), entry);
            map.insert((*name).clone(), shard.clone().into());
        }
        let header = serde_json::to_vec(&entries).unwrap();
        let content = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
        fs::write(folder.join(shard), content).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn sharded_weights_are_copied_with_their_index() {
    let place = tempfile::tempdir().unwrap();
    let checkpoint = place.path().join("checkpoint");
    fs::create_dir(&checkpoint).unwrap();
    fs::copy(fixture("llama").join("config.json"), checkpoint.join("config.json")).unwrap();
    write_shards(&fixture("llama").join("model.safetensors"), &checkpoint);
    let folder = place.path().join("bundle");
    let options = short().with_targets([STABLEHLO]);
    let manifest = write(&without_compiler(), &checkpoint.as_path().into(), &folder, &options).unwrap();
    let names: Vec<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        names,
        [
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors"
        ]
    );
    let fingerprint = |folder: &Path| mlxcel_models::Checkpoint::open(folder).unwrap().fingerprint();
    assert_eq!(fingerprint(&folder), fingerprint(&fixture("llama")));
    Bundle::open(&folder).unwrap().verify().unwrap();
}

#[test]
fn bundles_are_reproducible() {
    let read = |place: &TempDir| fs::read(place.path().join("bundle/bundle.json")).unwrap();
    assert_eq!(read(&text_bundle(&short()).0), read(&text_bundle(&short()).0));
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
    let field = |options: BundleOptions| refused(options).context("field").unwrap_or_default().to_owned();
    assert_eq!(field(load_options().with_capacity(513).into()), "capacity");
    assert_eq!(field(load_options().with_capacity(0).into()), "capacity");
    assert_eq!(field(load_options().with_sequences(0).into()), "sequences");
    assert_eq!(field(load_options().with_threads(2).into()), "threads");
    let error = refused(short().with_targets([STABLEHLO, STABLEHLO]));
    assert_eq!((error.kind(), error.context("target")), (ErrorKind::InvalidInput, Some(STABLEHLO)));
    let error = refused(short().with_targets(["llvm-cpu:x86-64-v3", "LLVM-CPU:x86_64/x86-64-v3"]));
    assert_eq!(error.context("target"), Some("llvm-cpu:x86-64-v3"));
    let error = refused(short().with_targets(["llvm-cpu:abacus"]));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("abacus"), "{error}");
    let error = refused(short().with_targets(["steam"]));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_folder_without_manifest_is_not_a_bundle() {
    let error = Bundle::open(fixture("llama")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = Bundle::open("/nowhere").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
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
