//! Quantizing checkpoints: against what mlx-lm made of the same one, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mlxcel_core::{CancelToken, ErrorKind};
use mlxcel_models::quantize::{QuantizeOptions, quantize};
use mlxcel_models::{Checkpoint, ElementType, TensorView, WeightRef};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn storyteller() -> PathBuf {
    repository().join("examples/models/storyteller")
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn tensors(checkpoint: &Checkpoint) -> BTreeMap<&str, TensorView<'_>> {
    checkpoint.tensors().collect()
}

/// A checkpoint like the story teller, with `change` done to the bytes of one tensor.
fn changed(folder: &Path, tensor: &str, change: impl FnOnce(&mut [u8])) -> PathBuf {
    let to = folder.join("changed");
    fs::create_dir(&to).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(storyteller().join(name), to.join(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let bytes = checkpoint.tensor(tensor).unwrap().bytes;
    let (_, file) = checkpoint.weight_files().next().unwrap();
    let at = bytes.as_ptr().addr() - file.as_ptr().addr();
    let mut content = file.to_vec();
    change(&mut content[at..at + bytes.len()]);
    fs::write(to.join("model.safetensors"), content).unwrap();
    to
}

#[test]
fn every_tensor_is_that_of_mlx() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("storyteller-4bit");
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&seen);
    let options = QuantizeOptions::default()
        .with_threads(3)
        .with_progress(move |done, total| reported.lock().unwrap().push((done, total)));
    let written = quantize(&checkpoint, &out, &options).unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&(written.bytes_before, written.bytes_before)));

    let ours = Checkpoint::open(&out).unwrap();
    let theirs = Checkpoint::open(repository().join("fixtures/storyteller-4bit")).unwrap();
    assert_eq!(ours.decoder().unwrap(), theirs.decoder().unwrap());
    let (ours, theirs) = (tensors(&ours), tensors(&theirs));
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, tensor) in &ours {
        assert_eq!(tensor, &theirs[name], "{name}");
    }
    assert_eq!(written.modules * 3 + written.kept, ours.len());
    assert_eq!(written.bytes, ours.values().map(|tensor| tensor.bytes.len() as u64).sum::<u64>());
    // All that generating needs is there, and nothing else.
    let mut expected = names(&storyteller());
    expected.retain(|name| name != "README.md" && name != "made-by");
    assert_eq!(names(&out), expected);
    assert_eq!(
        fs::read(out.join("tokenizer.json")).unwrap(),
        fs::read(storyteller().join("tokenizer.json")).unwrap()
    );
    assert_eq!(names(folder.path()), ["storyteller-4bit"]);
}

#[test]
fn each_size_of_group_and_value_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    for (bits, group_size) in [(8, 32), (8, 64), (4, 128), (8, 128)] {
        let out = folder.path().join(format!("{bits}-{group_size}"));
        let written = quantize(&checkpoint, &out, &QuantizeOptions::new(bits, group_size)).unwrap();
        let ours = Checkpoint::open(&out).unwrap();
        let decoder = ours.decoder().unwrap();
        let quantized = decoder.weights().filter(|weight| weight.packed.is_some());
        assert_eq!(quantized.count(), written.modules);
        // Rows of 192 are no groups of 128: these stay.
        assert_eq!(decoder.weight(decoder.embedding.weight).packed.is_none(), group_size == 128);
        let down =
            decoder.weights().find(|weight| weight.tensor == "model.layers.0.mlp.down_proj.weight").unwrap();
        let packing = down.packing().unwrap();
        assert_eq!((packing.bits, packing.group_size), (bits, group_size));
        for tensor in down.tensors() {
            let view = ours.weight(tensor).unwrap();
            assert!(view.bytes.as_ptr().addr().is_multiple_of(4));
        }
    }
}

#[test]
fn the_matrices_of_experts_are_packed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let checkpoint = Checkpoint::open(repository().join("fixtures/architectures/mixtral")).unwrap();
    quantize(&checkpoint, &out, &QuantizeOptions::new(4, 64)).unwrap();
    let ours = Checkpoint::open(&out).unwrap();
    let decoder = ours.decoder().unwrap();
    let experts: Vec<_> = decoder.weights().filter(|weight| weight.shape.len() == 3).collect();
    assert_eq!(experts.len(), 3 * decoder.layers.len());
    for weight in experts {
        assert_eq!(weight.tensors().count(), 3, "words, scales and biases of {weight}");
        for tensor in weight.tensors() {
            assert_eq!(ours.weight(tensor).unwrap().shape, tensor.stored_shape());
            assert_eq!(ours.mapped_weight(tensor).unwrap().unwrap().len(), weight.shape[0]);
        }
    }
}

#[test]
fn every_family_opens_again_as_the_same_network() {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(repository().join("fixtures/architectures")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let out = folder.path().join(name);
        quantize(&checkpoint, &out, &QuantizeOptions::new(8, 32)).unwrap();
        let ours = Checkpoint::open(&out).unwrap();
        let decoder = ours.decoder().unwrap_or_else(|error| panic!("{name}: {error}"));
        let before = checkpoint.decoder().unwrap();
        assert_eq!((&decoder.layers, decoder.parameters()), (&before.layers, before.parameters()), "{name}");
        let packed = decoder.weights().filter(|weight| weight.packed.is_some()).count();
        // Those of GPT-2's layers are stored the other way round, and stay.
        let least = if name == "gpt2" { 1 } else { decoder.layers.len() };
        assert!(packed >= least, "{name}: {packed} weights are packed");
        for tensor in decoder.weights().flat_map(WeightRef::tensors) {
            let view = ours.weight(tensor).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                (&view.shape, view.bytes.len()),
                (&tensor.stored_shape(), tensor.byte_len()),
                "{name}: {tensor}"
            );
        }
    }
}

#[test]
fn values_are_within_the_rounding_of_their_scales() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    quantize(&checkpoint, &out, &QuantizeOptions::new(8, 32)).unwrap();
    let ours = Checkpoint::open(&out).unwrap();
    let name = "model.layers.1.mlp.up_proj";
    let before = checkpoint.tensor(&format!("{name}.weight")).unwrap();
    let tensor = |role| ours.tensor(&format!("{name}.{role}")).unwrap();
    let (words, scales, biases) = (tensor("weight"), tensor("scales"), tensor("biases"));
    assert_eq!((words.element_type, scales.element_type), (ElementType::U32, before.element_type));
    let floats = |view: &TensorView<'_>| -> Vec<f32> {
        let bf16 = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
        assert_eq!(view.element_type, ElementType::BF16);
        view.bytes.chunks_exact(2).map(bf16).collect()
    };
    let (before, scales, biases) = (floats(&before), floats(&scales), floats(&biases));
    for (index, (value, &packed)) in before.iter().zip(words.bytes).enumerate() {
        let (scale, bias) = (scales[index / 32], biases[index / 32]);
        let error = (value - (scale * f32::from(packed) + bias)).abs();
        // Half a step, and what rounding scale and bias to bfloat16 adds: 255 steps' worth of a 512th each.
        assert!(error <= scale.abs() * 1.5, "{index}: {error} {scale}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let refused = |checkpoint: &Checkpoint, options: &QuantizeOptions| {
        let error = quantize(checkpoint, folder.path().join("out"), options).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0], "{error}");
        error
    };
    for (options, field) in [
        (QuantizeOptions::new(3, 64), "bits"),
        (QuantizeOptions::new(4, 48), "group_size"),
        (QuantizeOptions::default().with_threads(0), "threads"),
    ] {
        let error = refused(&checkpoint, &options);
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
    }
    let cancel = CancelToken::new();
    let cancels = cancel.clone();
    let options = QuantizeOptions::default().with_cancel(cancel).with_progress(move |_, _| cancels.cancel());
    assert_eq!(refused(&checkpoint, &options).kind(), ErrorKind::Cancelled);

    let quantized = Checkpoint::open(repository().join("fixtures/storyteller-4bit")).unwrap();
    let error = refused(&quantized, &QuantizeOptions::default());
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some("quantization")));
}

#[test]
fn what_stands_in_the_place_stays() {
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
fn a_weight_without_numbers_is_named() {
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
fn what_links_point_to_outside_of_the_checkpoint_is_not_copied() {
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
