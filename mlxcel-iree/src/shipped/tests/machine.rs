//! What needs the compiler and a device: bundles that are written and run.

use std::collections::BTreeSet;

use mlxcel_core::{CancelToken, ErrorKind, LoadStage, ModelSource, Row, StepOutput, Want};

use super::*;

#[test]
fn a_bundle_runs_without_compiler_and_cache() {
    assert_eq!(generate(&without_compiler(), written()).unwrap(), ANSWER);
    Bundle::open(written()).unwrap().verify().unwrap();
}

#[test]
fn weights_are_laid_out_for_their_target_only() {
    let bundle = copy(written());
    let manifest = Bundle::open(bundle.path()).unwrap().manifest().clone();
    let laid_out = manifest.targets[0].laid_out.clone().expect("there are kernels for this processor");
    assert!(manifest.targets[1].laid_out.is_none(), "text takes weights as they are stored");
    assert!(manifest.to_string().contains("mapped from"), "{manifest}");
    // The checkpoint's own file is there too, and is not what is read.
    let path = bundle.path().join(&laid_out.file.path);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, vec![0; whole.len()]).unwrap();
    assert_refused(bundle.path(), ErrorKind::Corrupt, &[".bin"]);
    fs::write(&path, &whole[1..]).unwrap();
    assert_refused(bundle.path(), ErrorKind::Corrupt, &[".bin"]);
    fs::remove_file(&path).unwrap();
    assert_refused(bundle.path(), ErrorKind::NotFound, &[".bin"]);
    // Opening samples the file, and `verify` reads it.
    let mut changed = whole;
    let large =
        manifest.weights.iter().max_by_key(|weight| weight.tensor.shape.iter().product::<usize>()).unwrap();
    changed[laid_out.places[&large.name] as usize + 300] ^= 1;
    fs::write(&path, changed).unwrap();
    let error = Bundle::open(bundle.path()).unwrap().verify().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn bundles_without_laid_out_weights_repack_at_load() {
    let place = tempfile::tempdir().unwrap();
    let source = fixture("llama").as_path().into();
    for (name, options) in [
        ("as stored", short().with_laid_out_weights(false)),
        ("without", short().with_weights(false)),
        ("two", short().with_targets(["llvm-cpu:host", "llvm-cpu:x86-64-v3"])),
    ] {
        let folder = place.path().join(name);
        let manifest = write(&engine(), &source, &folder, &options).unwrap();
        assert!(manifest.targets.iter().all(|target| target.laid_out.is_none()), "{name}");
        let engine = without_compiler().with_bundle(&folder);
        assert_eq!(generate(&engine, &fixture("llama")).unwrap(), ANSWER, "{name}");
    }
}

#[test]
fn a_bundle_claims_the_capabilities_of_its_programs_up_to_its_capacity() {
    let model = trusting(written()).load(&written().into(), &load_options()).unwrap();
    let capabilities = model.capabilities();
    assert_eq!((capabilities.sequences, capabilities.context, capabilities.every_position), (1, 150, false));
    assert_eq!(model.info().compile_time, std::time::Duration::ZERO);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let mut out = StepOutput::default();
    for tokens in [&[1; 100][..], &[2], &[3; 48], &[4]] {
        session.step(&[Row::logits(sequence, tokens)], &Default::default(), &mut out).unwrap();
        assert!(out.rows()[0].is_ok(), "{:?}", out.rows());
    }
    session.rewind(sequence, 3).unwrap();
    session.step(&[Row::logits(sequence, &[5])], &Default::default(), &mut out).unwrap();
    assert!(out.rows()[0].is_ok());
    let scored = Row::new(sequence, &[1, 2], Want::likelihoods(0));
    session.step(&[scored], &Default::default(), &mut out).unwrap();
    assert_eq!(out.rows()[0].as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn options_select_the_contents_of_a_bundle() {
    let place = tempfile::tempdir().unwrap();
    let progress = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&progress);
    let load = load_options()
        .with_capacity(150)
        .with_sequences(2)
        .with_progress(move |step| seen.lock().unwrap().push((step.stage, step.done, step.total)));
    let options = BundleOptions::from(load).with_every_position(true);
    let folder = place.path().join("bundle");
    let manifest = write(&engine(), &fixture("llama").into(), &folder, &options).unwrap();
    let names: BTreeSet<_> = manifest.programs.iter().map(|program| program.name.clone()).collect();
    let chunks = ["16", "16+1", "128", "128+1"];
    let chunks = chunks.iter().flat_map(|rows| [format!("{rows}@320"), format!("{rows}@320 every position")]);
    assert_eq!(names, chunks.chain(["1@320", "1x2@320"].map(str::to_owned)).collect());
    assert_eq!(manifest.targets.len(), 1);
    assert!(manifest.targets[0].target.starts_with("llvm-cpu:"));
    assert!(manifest.compiler.as_deref().is_some_and(|revision| revision.starts_with("3.13.0")));

    let progress = progress.lock().unwrap();
    assert!(
        progress.contains(&(LoadStage::Compile, 0, 10)) && progress.contains(&(LoadStage::Compile, 10, 10))
    );
    let copied = progress.iter().rfind(|(stage, ..)| *stage == LoadStage::Weights).unwrap();
    assert!(copied.1 == copied.2 && copied.1 > 200_000);

    let model = trusting(&folder).load(&folder.as_path().into(), &load_options()).unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let (one, other) = (session.open().unwrap(), session.open().unwrap());
    let rows = [Row::new(one, &[1, 2, 3], Want::likelihoods(2)), Row::new(other, &[4], Want::likelihoods(2))];
    let mut out = StepOutput::default();
    session.step(&rows, &Default::default(), &mut out).unwrap();
    assert!(out.rows().iter().all(Result::is_ok), "{:?}", out.rows());
}

#[test]
fn a_bundle_without_weights_runs_with_its_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("bundle");
    let manifest = write(&engine(), &fixture("llama").into(), &folder, &short().with_weights(false)).unwrap();
    assert!(!manifest.weights_included && !folder.join("model.safetensors").exists());
    assert!(folder.join("config.json").exists());

    let bundled = without_compiler().with_bundle(&folder);
    assert_eq!(
        generate(&bundled, &fixture("llama")).unwrap(),
        generate(&engine(), &fixture("llama")).unwrap()
    );

    let error = load_error(&without_compiler(), &folder);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("without weights"), "{error}");
    let error = load_error(&bundled, &fixture("llama-linear"));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let error = load_error(&bundled, &place.path().join("nowhere"));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(!error.message().contains("without weights"), "{error}");
}

#[test]
fn a_bundle_can_be_embedded_in_the_binary() {
    fn files(folder: &Path, prefix: &str, out: &mut Vec<(&'static str, &'static [u8])>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                files(&entry.path(), &format!("{name}/"), out);
            } else {
                out.push((name.leak(), fs::read(entry.path()).unwrap().leak()));
            }
        }
    }
    let mut embedded = Vec::new();
    files(written(), "", &mut embedded);
    let source = ModelSource::Embedded(embedded.leak());
    without_compiler().load(&source, &load_options()).unwrap();
}

#[test]
fn cancelled_or_failed_bundles_leave_no_files() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("bundle");
    let cancel = CancelToken::new();
    cancel.cancel();
    let source = fixture("llama").into();
    let error =
        write(&without_compiler(), &source, &folder, &load_options().with_cancel(cancel).into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let error = write(&without_compiler(), &source, &folder, &short()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Toolchain);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_best_matching_target_runs_and_foreign_targets_are_rejected() {
    let place = tempfile::tempdir().unwrap();
    let source = fixture("llama").into();
    let folder = place.path().join("several");
    let targets = ["llvm-cpu:x86_64/generic", "llvm-cpu:x86-64-v2"];
    write(&engine(), &source, &folder, &short().with_targets(targets)).unwrap();
    assert_eq!(generate(&without_compiler(), &folder).unwrap(), ANSWER);
    let chosen = |device: &crate::DeviceDescription| {
        let bundle = Bundle::open(&folder).unwrap();
        let index = bundle.choose_target(&crate::CompileBackends::builtin(), None, device)?;
        Ok::<_, Error>(bundle.manifest().targets[index].target.clone())
    };
    let device = crate::DeviceDescription::of_driver("local-task");
    let of = |family: &str, features: &[&str]| {
        device.clone().with_processor(crate::Processor::new(family, features.iter().copied()))
    };
    assert_eq!(chosen(&device).unwrap(), "llvm-cpu:x86-64-v2");
    assert_eq!(chosen(&of("x86_64", &["sse3"])).unwrap(), "llvm-cpu:x86_64/generic");
    let error = chosen(&of("aarch64", &["neon"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.context("targets").is_some_and(|targets| targets.contains("llvm-cpu:x86-64-v2")),
        "{error}"
    );
    assert_eq!(error.context("device"), Some("local-task on llvm-cpu:aarch64/generic"));

    let only = |target: &str| without_compiler().with_compile_target(target.parse().unwrap());
    assert_eq!(generate(&only("llvm-cpu:x86_64/generic"), &folder).unwrap(), ANSWER);
    let error = load_error(&only("llvm-cpu:x86-64-v3"), &folder);
    assert_eq!(
        (error.kind(), error.context("asked_for")),
        (ErrorKind::Unsupported, Some("llvm-cpu:x86-64-v3"))
    );

    let foreign = place.path().join("foreign");
    let options = short().with_targets(["llvm-cpu:neoverse-n1"]).with_weights(false);
    write(&engine(), &source, &foreign, &options).unwrap();
    let error = load_error(&without_compiler().with_bundle(&foreign), &fixture("llama"));
    assert_eq!(
        (error.kind(), error.context("target")),
        (ErrorKind::Unsupported, Some("llvm-cpu:neoverse-n1"))
    );
    assert!(error.context("processor").is_some_and(|name| name.starts_with("llvm-cpu:")), "{error}");
}

#[test]
fn patch_releases_and_unknown_manifest_fields_are_accepted() {
    let bundle = copy(written());
    let version = env!("CARGO_PKG_VERSION");
    let (minor, _) = version.rsplit_once('.').unwrap();
    edit(bundle.path(), &format!("\"{version}\""), &format!("\"{minor}.999\", \"colour\": \"green\""));
    generate(&without_compiler(), bundle.path()).unwrap();
}

#[test]
fn corrupt_or_missing_programs_are_rejected() {
    let bundle = copy(written());
    let path = first_program(bundle.path());
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    fs::write(&path, &flipped).unwrap();
    assert_refused(bundle.path(), ErrorKind::Corrupt, &["checksum", "vmfb"]);
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert_refused(bundle.path(), ErrorKind::Corrupt, &["size", "vmfb"]);
    fs::remove_file(&path).unwrap();
    assert_refused(bundle.path(), ErrorKind::NotFound, &["missing", "vmfb"]);
    fs::create_dir(&path).unwrap();
    assert_refused(bundle.path(), ErrorKind::Corrupt, &["regular file"]);
}

#[test]
fn manifests_with_missing_files_are_rejected() {
    for (from, to, words) in [
        ("\"capacity\": 150", "\"capacity\": 100000", ["capacity", "512"]),
        ("\"sequences\": 1", "\"sequences\": 0", ["sequences", "at least 1"]),
        ("\"chunk\": 64", "\"chunk\": 1", ["chunk", "two tokens"]),
    ] {
        let bundle = copy(written());
        edit(bundle.path(), from, to);
        assert_refused(bundle.path(), ErrorKind::InvalidInput, &words);
    }
    // Programs that sessions would need and that are not there.
    let bundle = copy(written());
    edit(bundle.path(), "\"every_position\": false", "\"every_position\": true");
    assert_refused(bundle.path(), ErrorKind::Corrupt, &["lacks a required program", "64@256 every position"]);
}

#[test]
fn a_bundle_opens_with_a_smaller_capacity() {
    let error =
        trusting(written()).load(&written().into(), &load_options().with_capacity(0)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let model = trusting(written()).load(&written().into(), &load_options().with_capacity(10)).unwrap();
    assert_eq!((model.capabilities().context, model.info().capacity), (10, 10));
}

#[test]
fn a_bundle_of_a_gguf_file_is_a_folder_with_that_file() {
    let source = fixture("../formats/gguf-llama-q4_k_m/tiny-llama-q4_k_m.gguf");
    let place = tempfile::tempdir().unwrap();
    for (name, options) in [("whole", short()), ("without", short().with_weights(false))] {
        let folder = place.path().join(name);
        let manifest = write(&engine(), &source.as_path().into(), &folder, &options).unwrap();
        let found = if manifest.weights_included {
            assert!(manifest.targets[0].laid_out.is_some());
            let names: Vec<_> = manifest.files.iter().map(|file| file.path.as_str()).collect();
            assert_eq!(names, ["tiny-llama-q4_k_m.gguf"], "its metadata has everything else");
            Bundle::open(&folder).unwrap().verify().unwrap();
            generate(&without_compiler(), &folder)
        } else {
            assert!(manifest.files.is_empty());
            generate(&without_compiler().with_bundle(&folder), &source)
        };
        assert_eq!(found.unwrap(), generate(&engine(), &source).unwrap(), "{name}");
    }
}
