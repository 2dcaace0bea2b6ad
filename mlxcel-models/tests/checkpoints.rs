//! What a checkpoint gives: tensors, files, stop tokens, identity; single, sharded and embedded.

use std::borrow::Cow;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::common::{Draft, repository};
use mlxcel_core::{ErrorKind, ModelSource};
use mlxcel_models::{Checkpoint, ElementType, Selection, WeightRef};
use safetensors::Dtype;
use serde_json::{Value, json};

macro_rules! storyteller_file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../examples/models/storyteller/", $name)).as_slice())
    };
}

static STORYTELLER: &[(&str, &[u8])] = &[
    storyteller_file!("config.json"),
    storyteller_file!("generation_config.json"),
    storyteller_file!("model.safetensors"),
    storyteller_file!("tokenizer.json"),
];

#[test]
fn tensors_are_the_bytes_of_the_file() {
    let checkpoint = Checkpoint::open(repository("examples/models/storyteller")).unwrap();
    let file = fs::read(repository("examples/models/storyteller/model.safetensors")).unwrap();
    let reference = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(checkpoint.tensors().count(), reference.len());
    for (name, view) in checkpoint.tensors() {
        let expected = reference.tensor(name).unwrap();
        assert_eq!(view.element_type, ElementType::BF16);
        assert_eq!((&view.shape[..], view.bytes), (expected.shape(), expected.data()), "{name}");
        assert_eq!(checkpoint.tensor(name).unwrap(), view);
    }
}

#[test]
fn an_embedded_checkpoint_equals_the_folder() {
    let embedded = Checkpoint::from_files(STORYTELLER).unwrap();
    let folder = Checkpoint::open(repository("examples/models/storyteller")).unwrap();
    assert_eq!(embedded.path(), None);
    assert_eq!(folder.path(), Some(&*repository("examples/models/storyteller")));
    assert_eq!(embedded.decoder().unwrap(), folder.decoder().unwrap());
    assert_eq!(embedded.stop_tokens(), folder.stop_tokens());
    assert_eq!(embedded.fingerprint(), folder.fingerprint());
    assert!(embedded.tensors().eq(folder.tensors()));
    let read = |checkpoint: &Checkpoint, name| checkpoint.file(name).unwrap().map(Cow::into_owned);
    assert_eq!(read(&embedded, "tokenizer.json"), read(&folder, "tokenizer.json"));
    assert!(read(&folder, "tokenizer.json").is_some());
    assert_eq!(read(&embedded, "absent.json"), None);
    assert_eq!(read(&folder, "absent.json"), None);
}

#[test]
fn a_model_source_leads_to_its_checkpoint() {
    let folder =
        Checkpoint::from_source(&ModelSource::from(repository("fixtures/architectures/llama"))).unwrap();
    assert_eq!(folder.path(), Some(&*repository("fixtures/architectures/llama")));
    assert_eq!(Checkpoint::from_source(&ModelSource::Embedded(STORYTELLER)).unwrap().path(), None);
    let error = Checkpoint::from_source(&ModelSource::BuiltIn("toy".to_owned())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_checkpoint_is_shared_between_threads() {
    let checkpoint = Arc::new(Draft::llama().write().open().unwrap());
    let shared = Arc::clone(&checkpoint);
    let other = std::thread::spawn(move || shared.fingerprint()).join().unwrap();
    assert_eq!(other, checkpoint.fingerprint());
}

#[test]
fn shards_give_the_same_as_one_file() {
    let draft = Draft::llama();
    let (single, sharded) = (draft.write(), draft.write_sharded());
    let (single, sharded) = (single.open().unwrap(), sharded.open().unwrap());
    assert!(single.tensors().eq(sharded.tensors()));
    assert_eq!(single.decoder().unwrap(), sharded.decoder().unwrap());
    assert_eq!(single.fingerprint(), sharded.fingerprint());
}

#[test]
fn weight_files_are_listed_with_their_content() {
    let draft = Draft::llama();
    let (single, sharded) = (draft.write(), draft.write_sharded());
    let files = |folder: &crate::common::Written| -> Vec<(String, Vec<u8>)> {
        let checkpoint = folder.open().unwrap();
        checkpoint.weight_files().map(|(name, content)| (name.to_owned(), content.to_vec())).collect()
    };
    assert_eq!(files(&single), [("model.safetensors".to_owned(), draft.safetensors(|_| true))]);
    let shards = files(&sharded);
    assert!(
        shards.len() > 1 && shards.iter().all(|(name, content)| name.contains("-of-") && content.len() > 8)
    );
}

#[test]
fn a_single_file_takes_precedence_over_an_index() {
    let written = Draft::llama().write();
    written.put("model.safetensors.index.json", b"not even JSON");
    assert!(written.open().is_ok());
}

#[test]
fn unaligned_tensors_are_read() {
    let draft = Draft::llama();
    let mut file = draft.safetensors(|_| true);
    // One more space behind the header moves all data off its alignment.
    let length = u64::from_le_bytes(file[..8].try_into().unwrap());
    file[..8].copy_from_slice(&(length + 1).to_le_bytes());
    file.insert(8 + length as usize, b' ');
    let written = draft.write();
    written.put("model.safetensors", &file);
    let checkpoint = written.open().unwrap();
    for (name, (_, _, bytes)) in &draft.tensors {
        assert_eq!(checkpoint.tensor(name).unwrap().bytes, bytes);
    }
    assert!(checkpoint.decoder().is_ok());
}

#[test]
fn a_weight_is_the_tensor_or_the_rows_that_it_names() {
    let draft = Draft::llama().with("fused", Dtype::F32, &[6, 2, 3]).with("packed", Dtype::F4, &[2, 3]);
    let checkpoint = draft.write().open().unwrap();
    let bytes = &draft.tensors["fused"].2;
    let fused = WeightRef::new("fused", ElementType::F32, [6, 2, 3]);
    assert_eq!(&checkpoint.weight(&fused).unwrap().bytes[..], &bytes[..]);

    let middle = fused.clone().rows(2, 3);
    let view = checkpoint.weight(&middle).unwrap();
    assert_eq!((&view.shape[..], &view.bytes[..]), (&[3, 2, 3][..], &bytes[2 * 24..5 * 24]));
    assert_eq!((middle.elements(), middle.byte_len()), (18, 72));
    assert_eq!(middle.to_string(), "fused[2..5] F32 [3, 2, 3]");
    let last = middle.rows(2, 1);
    assert_eq!(checkpoint.weight(&last).unwrap().bytes, &bytes[4 * 24..5 * 24]);

    for misfit in [
        WeightRef::new("fused", ElementType::F16, [6, 2, 3]),
        WeightRef::new("fused", ElementType::F32, [6, 7]),
        WeightRef::new("fused", ElementType::F32, [6, 7]).rows(0, 1),
        fused.clone().rows(5, 2),
        fused.clone().rows(usize::MAX, 2),
        WeightRef::new("packed", ElementType::F4, [2, 3]).rows(1, 1),
    ] {
        let error = checkpoint.weight(&misfit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let error = checkpoint.weight(&WeightRef::new("none", ElementType::F32, [1])).unwrap_err();
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::NotFound, Some("none")));
}

#[test]
fn a_weight_is_gathered_from_its_tensors() {
    let mut draft = Draft::llama();
    for name in ["first", "second"] {
        draft.put(name, Dtype::U8, &[4, 3]);
    }
    draft.put("narrow", Dtype::U8, &[2, 1, 3]);
    let [first, second, narrow] = ["first", "second", "narrow"].map(|name| draft.tensors[name].2.clone());
    let checkpoint = draft.write().open().unwrap();
    let bytes = |weight: &WeightRef| checkpoint.weight(weight).unwrap().bytes.into_owned();
    let of = |name: &str| WeightRef::new(name, ElementType::U8, [4, 3]);

    let stacked = of("first").stacked([of("second")]);
    assert_eq!((&stacked.shape[..], bytes(&stacked)), (&[2, 4, 3][..], [&first[..], &second].concat()));
    assert_eq!(stacked.to_string(), "first to second U8 [2, 4, 3]");

    let transposed = of("first").transposed();
    let column = |index: usize| first.iter().skip(index).step_by(3).copied().collect::<Vec<_>>();
    assert_eq!(transposed.shape, [3, 4]);
    assert_eq!(bytes(&transposed), [column(0), column(1), column(2)].concat());
    assert_eq!(bytes(&transposed.clone().rows(1, 1)), column(1), "rows count after the transposition");
    let both = of("first").stacked([of("second")]).transposed();
    assert_eq!(bytes(&both)[..12], bytes(&transposed));
    let of_one = WeightRef::new("narrow", ElementType::U8, [2, 1, 3]).transposed();
    assert_eq!((&of_one.shape[..], bytes(&of_one)), (&[2, 3, 1][..], narrow));

    let odd = Selection { axis: 0, start: 1, run: 1, stride: 2, runs: 2 };
    let rows = of("first").select(odd);
    assert_eq!((&rows.shape[..], bytes(&rows)), (&[2, 3][..], [&first[3..6], &first[9..12]].concat()));
    let columns = of("first").select(Selection { axis: 1, start: 1, run: 2, stride: 2, runs: 1 });
    assert_eq!(bytes(&columns), [&first[1..3], &first[4..6], &first[7..9], &first[10..12]].concat());
    assert_eq!(bytes(&of("first").reshaped([2, 6])), first);
    let beyond = of("first").select(Selection { runs: 3, ..odd });
    assert_eq!(checkpoint.weight(&beyond).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn stop_tokens_come_from_generation_settings_before_the_models() {
    let stop = |config: Option<Value>, generation: Option<Value>| {
        let draft = Draft::llama();
        let draft = if let Some(value) = config { draft.set("eos_token_id", value) } else { draft };
        let written = draft.write();
        if let Some(generation) = generation {
            written.put("generation_config.json", generation.to_string().as_bytes());
        }
        written.open().map(|checkpoint| checkpoint.stop_tokens().to_vec())
    };
    const NONE: [u32; 0] = [];
    let some = |value| Some(json!({"eos_token_id": value}));
    assert_eq!(stop(Some(json!(3)), None).unwrap(), [3]);
    assert_eq!(stop(Some(json!(3)), some(json!([5, 6, 7]))).unwrap(), [5, 6, 7]);
    assert_eq!(stop(Some(json!([3, 4])), some(Value::Null)).unwrap(), [3, 4]);
    assert_eq!(stop(Some(json!([3, 4])), Some(json!({}))).unwrap(), [3, 4]);
    assert_eq!(stop(Some(json!(-1)), None).unwrap(), NONE);
    // By default, transformers assumes 2 for a Llama; null says that there is none.
    assert_eq!(stop(None, None).unwrap(), [2]);
    assert_eq!(stop(Some(Value::Null), None).unwrap(), NONE);
    for wrong in [json!("</s>"), json!([1, "x"]), json!(1.5), json!(1u64 << 40)] {
        let error = stop(None, some(wrong)).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some("eos_token_id")));
        assert!(error.context("path").unwrap().ends_with("generation_config.json"));
    }
}

#[test]
fn stamps_differ_once_a_file_is_written_again() {
    assert_eq!(Checkpoint::from_files(STORYTELLER).unwrap().stamp(), None);
    let folder = Draft::llama().with("large", Dtype::U8, &[100_000]).write();
    let path = folder.path("model.safetensors");
    // A file that was written just now may be written again in the same tick of its clock.
    assert_eq!(folder.open().unwrap().stamp(), None);
    let written = |seconds_ago: u64| {
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds_ago)).unwrap();
    };
    let stamp = || folder.open().unwrap().stamp().unwrap();
    written(20);
    let original = stamp();
    assert_eq!((original.len(), &stamp()), (64, &original));
    // Between the samples of the fingerprint.
    let mut bytes = fs::read(&path).unwrap();
    let position = bytes.len() - 30_000;
    bytes[position] ^= 1;
    fs::write(&path, bytes).unwrap();
    written(10);
    assert_ne!(stamp(), original);
}

#[test]
fn fingerprints_differ_between_models() {
    let fingerprint = |draft: &Draft| draft.write().open().unwrap().fingerprint();
    let draft = Draft::llama().with("large", Dtype::U8, &[100_000]);
    let original = fingerprint(&draft);
    assert_eq!(original.len(), 64);
    assert!(original.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(original, fingerprint(&draft));
    let mut others = vec![
        fingerprint(&draft.clone().set("rope_theta", json!(5.0))),
        fingerprint(&draft.clone().with("large", Dtype::I8, &[100_000])),
        fingerprint(&draft.clone().with("large", Dtype::U8, &[1000, 100])),
        fingerprint(&draft.clone().without("large")),
    ];
    for position in [0, 25_000, 50_000, 75_000, 99_999] {
        let mut changed = draft.clone();
        changed.tensors.get_mut("large").unwrap().2[position] ^= 1;
        others.push(fingerprint(&changed));
    }
    let mut changed = draft.clone();
    changed.tensors.get_mut("model.norm.weight").unwrap().2[9] ^= 1;
    others.push(fingerprint(&changed));
    others.push(original);
    let count = others.len();
    others.sort();
    others.dedup();
    assert_eq!(others.len(), count);
}

#[test]
fn files_outside_of_the_folder_are_rejected() {
    let checkpoint = Draft::llama().write().open().unwrap();
    for name in ["../config.json", "/etc/hostname", "a/../../b", ".", "", "a\\b", "C:x", "a\0b"] {
        assert_eq!(checkpoint.file(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name}");
    }
}
