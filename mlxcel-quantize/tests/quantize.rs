//! Quantizing checkpoints: against what mlx-lm made of the same one, and what is refused.

mod refusals;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mlxcel_core::{CancelToken, ErrorKind};
use mlxcel_models::packing::{Packing, Part, Scale, decode_row};
use mlxcel_models::read::Float;
use mlxcel_models::{Checkpoint, ElementType, TensorView, WeightRef};
use mlxcel_quantize::{Mode, QuantizeOptions, Recipe, Scheme, WriteOptions, quantize};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn storyteller() -> PathBuf {
    repository().join("examples/models/storyteller")
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
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
fn every_tensor_equals_mlxs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("storyteller-4bit");
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&seen);
    let write = WriteOptions::default()
        .with_threads(3)
        .with_progress(move |done, total| reported.lock().unwrap().push((done, total)));
    let options = QuantizeOptions::default().with_write(write);
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
    assert_eq!(written.modules.len() * 3 + written.kept, ours.len());
    assert_eq!(written.bytes, ours.values().map(|tensor| tensor.bytes.len() as u64).sum::<u64>());
    // All that generating needs is there, and nothing else.
    let mut expected = names(&storyteller());
    expected.retain(|name| !["README.md", "made-by", "oracle.json"].contains(&name.as_str()));
    assert_eq!(names(&out), expected);
    let [copied, own] = [&out, &storyteller()].map(|at| fs::read(at.join("tokenizer.json")).unwrap());
    assert_eq!(copied, own);
    assert_eq!(names(folder.path()), ["storyteller-4bit"]);
}

#[test]
fn further_chat_templates_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let from = changed(folder.path(), "model.norm.weight", |_| {});
    let template = "additional_chat_templates/tools.jinja";
    fs::create_dir(from.join("additional_chat_templates")).unwrap();
    fs::write(from.join(template), "{{ tools }}").unwrap();
    let out = folder.path().join("out");
    quantize(&Checkpoint::open(&from).unwrap(), &out, &QuantizeOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(out.join(template)).unwrap(), "{{ tools }}");
}

#[test]
fn every_group_size_and_bit_width_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    for (bits, group_size) in [(2, 32), (3, 64), (5, 32), (6, 64), (8, 32), (4, 128), (8, 128)] {
        let out = folder.path().join(format!("{bits}-{group_size}"));
        let written = quantize(&checkpoint, &out, &QuantizeOptions::new(bits, group_size)).unwrap();
        let ours = Checkpoint::open(&out).unwrap();
        let decoder = ours.decoder().unwrap();
        let quantized = decoder.weights().filter(|weight| weight.packed.is_some());
        assert_eq!(quantized.count(), written.modules.len());
        // Rows of 192 are not divisible into groups of 128: these stay.
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
        assert!(weight.tensor.contains("block_sparse_moe.switch_mlp."), "{weight}");
        for tensor in weight.tensors() {
            assert_eq!(ours.weight(tensor).unwrap().shape, tensor.stored_shape());
            assert_eq!(ours.mapped_weight(tensor).unwrap().unwrap().len(), 1);
        }
    }
}

fn floats(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    let float = Float::of(element).unwrap();
    let mut values = vec![0.0; bytes.len() / float.bytes()];
    float.read(bytes, &mut values);
    values
}

/// The values of a weight, packed or not.
fn values(checkpoint: &Checkpoint, weight: &WeightRef) -> Vec<f32> {
    let mut views: Vec<_> = weight.tensors().map(|part| checkpoint.weight(part).unwrap()).collect();
    let Some(packing) = weight.packing() else {
        return floats(weight.element, &views[0].bytes);
    };
    let order = packing.parts().any(|part| part == Part::Order).then(|| views.pop().unwrap());
    let columns = *weight.shape.last().unwrap();
    let mut values = vec![0.0; weight.elements()];
    let rows = values.len() / columns;
    for (index, values) in values.chunks_mut(columns).enumerate() {
        let row = |bytes: &[u8]| bytes[bytes.len() / rows * index..bytes.len() / rows * (index + 1)].to_vec();
        let parts: Vec<_> = views.iter().map(|view| row(&view.bytes)).collect();
        decode_row(&packing, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), values).unwrap();
        if let Some(order) = &order {
            let inputs = order.bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
            let by_column = values.to_vec();
            inputs.zip(by_column).for_each(|(input, value)| values[input as usize] = value);
        }
    }
    values
}

/// The root of the mean square of differences over that of the first.
fn deviation(before: &[f32], after: &[f32]) -> f64 {
    assert_eq!(before.len(), after.len());
    let sum = |squares: &mut dyn Iterator<Item = f64>| squares.sum::<f64>();
    let differences = sum(&mut before.iter().zip(after).map(|(a, b)| f64::from(a - b).powi(2)));
    (differences / sum(&mut before.iter().map(|a| f64::from(*a).powi(2))).max(1e-30)).sqrt()
}

#[test]
fn every_family_opens_again_as_the_same_network_with_the_same_values() {
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
        assert_eq!(decoder.parameters(), before.parameters(), "{name}");
        // Their norms are stored as mlx-lm converts them.
        let shifted = ["qwen3_next", "step3p5"].contains(&name);
        assert!(shifted || decoder.layers == before.layers, "{name}");
        let packed = decoder.weights().filter(|weight| weight.packed.is_some()).count();
        // Those of GPT-2's layers are stored the other way round, and stay.
        let least = if name == "gpt2" { 1 } else { decoder.layers.len() };
        assert!(packed >= least, "{name}: {packed} weights are packed");
        let roles = decoder.weight_roles();
        for ((before, after), role) in before.weights().zip(decoder.weights()).zip(roles) {
            assert_eq!(before.shape, after.shape, "{name}: {after}");
            let (mut was, is) = (values(&checkpoint, before), values(&ours, after));
            if shifted && was != is && before.shape.len() == 1 {
                was.iter_mut().for_each(|value| *value += 1.0);
            }
            let allowed = if after.packed.is_some() || was != is && shifted { 0.01 } else { 0.0 };
            assert!(deviation(&was, &is) <= allowed, "{name}: {role} {before} {after}");
        }
    }
}

#[test]
fn each_mode_writes_its_format() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    for (mode, packing, allowed) in [
        (Mode::Mxfp4, Packing::MXFP4, 0.2),
        (Mode::Mxfp8, Packing::MXFP8, 0.05),
        (Mode::Nvfp4, Packing::NVFP4, 0.15),
    ] {
        let out = folder.path().join(mode.name());
        let written = quantize(&checkpoint, &out, &QuantizeOptions::of(Scheme::of_mode(mode))).unwrap();
        let ours = Checkpoint::open(&out).unwrap();
        let (before, after) = (checkpoint.decoder().unwrap(), ours.decoder().unwrap());
        assert_eq!(before.layers, after.layers);
        for module in &written.modules {
            assert_eq!(module.packing, packing);
            let find = |decoder: &mlxcel_models::Decoder| {
                let name = format!("{}.weight", module.name);
                decoder.weights().find(|weight| weight.tensor == name).unwrap().clone()
            };
            let (was, is) = (values(&checkpoint, &find(&before)), values(&ours, &find(&after)));
            let told = module.relative_rms;
            assert!((deviation(&was, &is) - told).abs() <= told * 1e-4 && told < allowed, "{module:?}");
            let largest = was.iter().zip(&is).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert_eq!(module.largest, largest);
        }
    }
}

#[test]
fn every_supported_format_can_be_requantized() {
    let folder = tempfile::tempdir().unwrap();
    let formats = fs::read_dir(repository().join("fixtures/formats")).unwrap();
    let formats = formats.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    for path in formats.chain([repository().join("fixtures/storyteller-4bit")]) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let out = folder.path().join(name);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let written = quantize(&checkpoint, &out, &QuantizeOptions::new(8, 32)).unwrap();
        let ours = Checkpoint::open(&out).unwrap();
        let before = checkpoint.decoder().unwrap();
        let after = ours.decoder().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(before.layers, after.layers, "{name}");
        assert!(written.modules.iter().all(|module| module.relative_rms < 0.01), "{name}: {written:?}");
        for (before, after) in before.weights().zip(after.weights()) {
            let affine = after.packing().is_none_or(|packing| matches!(packing.scale, Scale::Float(_)));
            assert!(affine && (after.packed.is_some() || before.packed.is_none()), "{name}: {after}");
            let off = deviation(&values(&checkpoint, before), &values(&ours, after));
            assert!(off <= if after.packed.is_some() { 0.01 } else { 0.0 }, "{name}: {off} {before} {after}");
        }
        if name == "storyteller-4bit" {
            assert_eq!(tensors(&ours).len(), tensors(&checkpoint).len());
        }
        let mut tensors = ours.tensors();
        assert!(tensors.all(|(name, _)| !name.ends_with("qweight") && !name.contains("_blocks")), "{name}");
    }
}

#[test]
fn settings_list_per_module_differences() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let settings = |out: &Path| -> serde_json::Value {
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["quantization"], config["quantization_config"]);
        config["quantization"].clone()
    };
    let out = folder.path().join("mixed");
    let options = QuantizeOptions::of_recipe(Recipe::Mixed3And6, 32)
        .with_override("*.o_proj=8/64".parse().unwrap())
        .with_override("model.layers.0.*.o_proj=5".parse().unwrap());
    let written = quantize(&checkpoint, &out, &options).unwrap();
    let told = settings(&out);
    assert_eq!((&told["bits"], &told["group_size"]), (&3.into(), &32.into()));
    assert_eq!(told["mode"], "affine");
    // The value and down projections of two of four layers, and what was said.
    assert_eq!(told.as_object().unwrap().len(), 3 + 2 * 2 + 4, "{told}");
    for (module, bits, group_size) in [
        ("model.layers.0.self_attn.o_proj", 5, 32),
        ("model.layers.1.self_attn.o_proj", 8, 64),
        ("model.layers.3.mlp.down_proj", 6, 32),
        ("model.embed_tokens", 3, 32),
    ] {
        let found = written.modules.iter().find(|found| found.name == module).unwrap();
        assert_eq!(found.packing, Packing::affine(bits, group_size, ElementType::BF16), "{module}");
    }
    let ours = Checkpoint::open(&out).unwrap();
    assert_eq!(ours.decoder().unwrap().layers, checkpoint.decoder().unwrap().layers);

    let out = folder.path().join("floats");
    let options = QuantizeOptions::of(Scheme::of_mode(Mode::Mxfp4))
        .with_override("model.embed_tokens=8".parse().unwrap());
    quantize(&checkpoint, &out, &options).unwrap();
    let expected = serde_json::json!({
        "mode": "mxfp4", "bits": 4, "group_size": 32,
        "model.embed_tokens": { "mode": "affine", "bits": 8, "group_size": 64 },
    });
    assert_eq!(settings(&out), expected);
    Checkpoint::open(&out).unwrap().decoder().unwrap();
}

#[test]
fn interrupted_quantization_resumes_with_complete_files() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let options = QuantizeOptions::default().with_shard_bytes(1 << 18);
    let expected = quantize(&checkpoint, &whole, &options).unwrap();
    assert!(expected.files > 3 && expected.resumed == 0, "{expected:?}");
    let interrupt = |at: f64| {
        let cancel = CancelToken::new();
        let cancels = cancel.clone();
        let write = WriteOptions::default().with_cancel(cancel).with_progress(move |done, total| {
            if done as f64 > total as f64 * at {
                cancels.cancel();
            }
        });
        let error = quantize(&checkpoint, &out, &options.clone().with_write(write)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(!out.exists());
    };
    interrupt(0.6);
    assert_eq!(names(folder.path()), [".mlxcel-quantize-out", "whole"]);
    // Neither with other options nor from another checkpoint.
    let other = Checkpoint::open(repository().join("fixtures/storyteller-4bit")).unwrap();
    let wider = QuantizeOptions::new(8, 64).with_shard_bytes(1 << 18);
    for (checkpoint, options) in [(&checkpoint, &wider), (&other, &options)] {
        let error = quantize(checkpoint, &out, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("interrupted"), "{error}");
    }
    // Broken off a second time, and with half a file left as by a process that was killed.
    interrupt(0.7);
    fs::write(folder.path().join(".mlxcel-quantize-out/partial"), "half").unwrap();
    let resumed = quantize(&checkpoint, &out, &options).unwrap();
    assert!(resumed.resumed > 0 && resumed.resumed < expected.files, "{resumed:?}");
    assert_eq!((&resumed.modules, resumed.bytes), (&expected.modules, expected.bytes));
    assert_eq!(names(folder.path()), ["out", "whole"]);
    assert_eq!(names(&out), names(&whole));
    for name in names(&out) {
        assert_eq!(fs::read(out.join(&name)).unwrap(), fs::read(whole.join(&name)).unwrap(), "{name}");
    }

    fs::remove_dir_all(&out).unwrap();
    interrupt(0.6);
    let fresh =
        quantize(&checkpoint, &out, &wider.with_write(WriteOptions::default().with_restart(true))).unwrap();
    assert_eq!(fresh.resumed, 0);
    assert_eq!(names(folder.path()), ["out", "whole"]);
}

#[test]
fn the_leftover_of_a_published_checkpoint_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    quantize(&checkpoint, &out, &QuantizeOptions::default()).unwrap();
    // As by a process that was killed after its last rename.
    let work = folder.path().join(".mlxcel-quantize-out");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("made-from"), "").unwrap();
    let error = quantize(&checkpoint, &out, &QuantizeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(names(folder.path()), ["out"]);
}

#[cfg(unix)]
#[test]
fn a_process_that_ends_early_keeps_complete_files_only() {
    use std::process::{Command, Stdio};

    // In a process of its own, since it can create no folder afterwards.
    let Some(place) = std::env::var_os("MLXCEL_TEST_PLACE") else {
        for at in ["0", "0.6"] {
            let place = tempfile::tempdir().unwrap();
            let ended = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "quantize::a_process_that_ends_early_keeps_complete_files_only"])
                .env("MLXCEL_TEST_PLACE", place.path())
                .env("MLXCEL_TEST_AT", at)
                .stdout(Stdio::null())
                .status();
            assert!(ended.unwrap().success());
            let left = names(place.path());
            if at == "0" {
                assert_eq!(left, [""; 0]);
            } else {
                let files = names(&place.path().join(&left[0]));
                assert!(
                    !files.contains(&"partial".to_owned()) && files.contains(&"out".to_owned()),
                    "{files:?}"
                );
            }
        }
        return;
    };
    let at: f64 = std::env::var("MLXCEL_TEST_AT").unwrap().parse().unwrap();
    let write = WriteOptions::default().with_progress(move |done, total| {
        if done as f64 > total as f64 * at {
            mlxcel_models::files::remove_unfinished();
            std::process::exit(0);
        }
    });
    let options = QuantizeOptions::default().with_shard_bytes(1 << 18).with_write(write);
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    quantize(&checkpoint, Path::new(&place).join("out"), &options).unwrap();
}

#[test]
fn results_do_not_depend_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(storyteller()).unwrap();
    let [one, many] = [1, 5].map(|threads| {
        let out = folder.path().join(threads.to_string());
        let write = WriteOptions::default().with_threads(threads);
        quantize(&checkpoint, &out, &QuantizeOptions::new(5, 32).with_write(write)).unwrap()
    });
    assert_eq!(one, many);
}
