//! What is refused, and what is left alone.

use super::*;

#[test]
fn impossible_requests_are_rejected_and_leave_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let refused = |checkpoint: &Checkpoint, options: &QuantizeOptions| {
        let error = quantize(checkpoint, folder.path().join("out"), options).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0], "{error}");
        error
    };
    let mut mixed = QuantizeOptions::default();
    mixed.recipe = Some(Recipe::Mixed2And6);
    for (options, field) in [
        (QuantizeOptions::new(7, 64), "bits"),
        (QuantizeOptions::new(4, 48), "group_size"),
        (QuantizeOptions::of(Scheme { group_size: 64, ..Scheme::of_mode(Mode::Mxfp4) }), "group_size"),
        (QuantizeOptions::default().with_override("lm_head=7".parse().unwrap()), "bits"),
        (QuantizeOptions::default().with_override("*.o_porj=8".parse().unwrap()), "tensor"),
        (mixed, "recipe"),
        (QuantizeOptions::default().with_shard_bytes(10), "shard_bytes"),
        (QuantizeOptions::default().with_write(WriteOptions::default().with_threads(0)), "threads"),
    ] {
        let error = refused(&checkpoint, &options);
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
    }
    let cancel = CancelToken::new();
    let cancels = cancel.clone();
    let write = WriteOptions::default().with_cancel(cancel).with_progress(move |_, _| cancels.cancel());
    let options = QuantizeOptions::default().with_write(write);
    assert_eq!(refused(&checkpoint, &options).kind(), ErrorKind::Cancelled);
}

#[test]
fn existing_files_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::write(&out, "mine").unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let error = quantize(&checkpoint, &out, &QuantizeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    let error = quantize(&checkpoint, folder.path().join("no/out"), &QuantizeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(names(folder.path()), ["out"]);
}

#[test]
fn a_nan_weight_is_rejected_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = "model.layers.2.self_attn.o_proj.weight";
    let broken = changed(folder.path(), name, |bytes| bytes[100..102].copy_from_slice(&[0xc0, 0x7f]));
    let checkpoint = Checkpoint::open(broken).unwrap();
    let error = quantize(&checkpoint, folder.path().join("out"), &QuantizeOptions::default()).unwrap_err();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Corrupt, Some(name)));
    assert_eq!(names(folder.path()), ["changed"]);
}

#[cfg(unix)]
#[test]
fn files_outside_of_the_checkpoint_are_not_copied_through_links() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    // As the Hugging Face cache keeps a checkpoint.
    let snapshot = folder.path().join("models--a--b/snapshots/0123");
    let blobs = folder.path().join("models--a--b/blobs");
    for folder in [&snapshot, &blobs] {
        fs::create_dir_all(folder).unwrap();
    }
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(storyteller().join(name), blobs.join(name)).unwrap();
        symlink(Path::new("../../blobs").join(name), snapshot.join(name)).unwrap();
    }
    fs::create_dir(snapshot.join("LICENSES")).unwrap();
    let out = folder.path().join("out");
    quantize(&Checkpoint::open(&snapshot).unwrap(), &out, &QuantizeOptions::default()).unwrap();
    assert_eq!(names(&out), ["config.json", "model.safetensors", "tokenizer.json"]);

    fs::write(folder.path().join("secret"), "secret").unwrap();
    symlink("../../../secret", snapshot.join("LICENSE")).unwrap();
    let out = folder.path().join("other");
    let error =
        quantize(&Checkpoint::open(&snapshot).unwrap(), &out, &QuantizeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.context("path").is_some_and(|path| path.ends_with("LICENSE")), "{error}");
    assert!(!out.exists());

    fs::remove_file(snapshot.join("LICENSE")).unwrap();
    fs::remove_file(snapshot.join("model.safetensors")).unwrap();
    symlink(storyteller().join("model.safetensors"), snapshot.join("model.safetensors")).unwrap();
    let error =
        quantize(&Checkpoint::open(&snapshot).unwrap(), &out, &QuantizeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.context("path").is_some_and(|path| path.ends_with("model.safetensors")), "{error}");
}
