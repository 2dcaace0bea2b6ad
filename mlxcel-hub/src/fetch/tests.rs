use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::server::{Behaviour, COMMIT, Hub, git, sha256};
use super::*;

const INDEX: &str = "model.safetensors.index.json";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// Bytes that do not repeat soon.
fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A hub with a sharded checkpoint and files that no checkpoint needs, and a place for a cache.
struct Place {
    hub: Hub,
    options: FetchOptions,
    cache: HubCache,
    _folder: tempfile::TempDir,
}

fn place_with(files: &[(&str, &[u8])]) -> Place {
    let hub = Hub::with(files);
    let folder = tempfile::tempdir().unwrap();
    let cache = HubCache::at(folder.path().join("hub"));
    let mut options = FetchOptions::from_variables(|_| None, None, Some(cache.clone()));
    (options.endpoint, options.retries) = (format!("{}/", hub.endpoint), 2);
    Place { hub, options, cache, _folder: folder }
}

fn place() -> Place {
    let index = json!({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).to_string();
    place_with(&[
        ("README.md", b"read me"),
        ("config.json", b"{\"model_type\": \"llama\"}"),
        ("tokenizer.json", b"{}"),
        ("additional_chat_templates/of tools.jinja", b"{{ tools }}"),
        (INDEX, index.as_bytes()),
        (SHARDS[0], &bytes(300_000, 1)),
        (SHARDS[1], &bytes(200_000, 2)),
        ("pytorch_model.bin", &bytes(2_000, 3)),
        ("original/config.json", b"{}"),
    ])
}

impl Place {
    fn fetch(&self, name: &str) -> Result<PathBuf> {
        fetch(&name.parse().unwrap(), &self.options)
    }

    fn refused(&self, change: impl FnOnce(&mut Behaviour)) -> Error {
        self.hub.behave(change);
        self.fetch("org/name").unwrap_err()
    }

    fn blob(&self, content: &[u8]) -> PathBuf {
        self.cache.folder().join("models--org--name/blobs").join(sha256(content))
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn only_checkpoint_files_are_fetched_in_the_layout_of_huggingface_hub() {
    let mut place = place();
    let told = Arc::new(AtomicU64::new(0));
    let (last, total) = (Arc::clone(&told), 500_000);
    place.options.progress = Some(Arc::new(move |progress| {
        assert!(progress.done <= progress.total && progress.total > total);
        last.fetch_max(progress.done, Ordering::Relaxed);
        assert!(last.load(Ordering::Relaxed) <= progress.done);
    }));
    let folder = place.fetch("org/name").unwrap();
    assert!(told.load(Ordering::Relaxed) > total);
    place.options.progress = None;
    let cached = place.cache.snapshots().unwrap();
    let expected = [
        "additional_chat_templates/of tools.jinja",
        "config.json",
        SHARDS[0],
        SHARDS[1],
        INDEX,
        "tokenizer.json",
    ];
    assert_eq!((cached.len(), &cached[0].files[..]), (1, &expected.map(str::to_owned)[..]));
    assert_eq!(fs::read(folder.join(SHARDS[0])).unwrap(), bytes(300_000, 1));
    let found = place.cache.find(&"org/name".parse().unwrap()).unwrap().unwrap();
    assert_eq!((found.path, found.missing.len()), (folder.clone(), 0));
    assert_eq!(found.commit, COMMIT);
    #[cfg(unix)]
    for (file, up, sum) in [
        (SHARDS[0], "../../", sha256(&bytes(300_000, 1))),
        ("additional_chat_templates/of tools.jinja", "../../../", git(b"{{ tools }}")),
    ] {
        assert_eq!(fs::read_link(folder.join(file)).unwrap(), Path::new(&format!("{up}blobs/{sum}")));
    }
    place.hub.requests();
    // What is there is not fetched again, and by a commit the same is found.
    assert_eq!(place.fetch("org/name@refs/pr/7").unwrap(), folder);
    assert_eq!(place.fetch(&format!("org/name@{COMMIT}")).unwrap(), folder);
    let requests = place.hub.requests();
    assert!(requests.iter().all(|request| request.path.starts_with("/api/")), "{requests:?}");
}

#[test]
fn the_modules_of_sentence_transformers_are_fetched() {
    let modules = json!([
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
        {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"},
    ]);
    let modules = modules.to_string();
    let files: [(&str, &[u8]); 9] = [
        ("1_Pooling/config.json", b"{}"),
        ("2_Dense/config.json", b"{}"),
        ("2_Dense/model.safetensors", &bytes(2_000, 1)),
        ("config.json", b"{}"),
        ("config_sentence_transformers.json", b"{}"),
        ("model.safetensors", &bytes(3_000, 2)),
        ("modules.json", modules.as_bytes()),
        ("sentence_bert_config.json", b"{}"),
        ("2_Dense/pytorch_model.bin", &bytes(2_000, 3)),
    ];
    let place = place_with(&files);
    let folder = place.fetch("org/name").unwrap();
    let wanted: Vec<_> = files[..8].iter().map(|(name, _)| *name).collect();
    assert_eq!(place.cache.snapshots().unwrap()[0].files, wanted);
    let found = place.cache.find(&"org/name".parse().unwrap()).unwrap().unwrap();
    assert_eq!((found.path, found.missing.len()), (folder.clone(), 0));
    // A copy without them is completed.
    for file in ["modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"] {
        fs::remove_file(folder.join(file)).unwrap();
    }
    place.fetch("org/name").unwrap();
    assert_eq!(place.cache.snapshots().unwrap()[0].files, wanted);
}

#[test]
fn modules_that_are_absent_or_outside_of_the_folder_are_rejected() {
    for (path, kind) in [
        ("1_Pooling", ErrorKind::NotFound),
        ("../1_Pooling", ErrorKind::InvalidInput),
        ("/1_Pooling", ErrorKind::InvalidInput),
        ("", ErrorKind::InvalidInput),
    ] {
        let modules = json!([{"type": "sentence_transformers.models.Pooling", "path": path}]).to_string();
        let place = place_with(&[
            ("config.json", b"{}"),
            ("model.safetensors", &bytes(3_000, 2)),
            ("modules.json", modules.as_bytes()),
        ]);
        assert_eq!(place.fetch("org/name").unwrap_err().kind(), kind, "{path}");
        assert!(!place.cache.folder().join("models--org--name/refs").exists());
    }
}

#[test]
fn the_token_is_not_sent_to_redirect_targets() {
    let place = place();
    let error = place.refused(|hub| hub.token = Some("hf_secret"));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("HF_TOKEN"), "{error}");
    assert_eq!(error.context("hub"), Some("Invalid username or password."));

    let Place { hub, options, .. } = &place;
    let name = "org/name".parse().unwrap();
    let wrong = fetch(&name, &options.clone().with_token("hf_wrong".to_owned())).unwrap_err();
    assert!(wrong.message().contains("HF_TOKEN"), "{wrong}");
    hub.requests();
    let options = options.clone().with_token("hf_secret".to_owned());
    fetch(&name, &options).unwrap();
    let requests = hub.requests();
    assert_eq!(requests.iter().filter(|request| request.storage).count(), 2);
    for request in requests {
        let expected = (!request.storage).then_some("Bearer hf_secret");
        assert_eq!(request.authorization.as_deref(), expected, "{}", request.path);
    }
    hub.behave(|hub| hub.gated = true);
    let gated = fetch(&name, &options).unwrap_err();
    assert!(gated.message().contains("terms"), "{gated}");
    for error in [wrong, gated] {
        assert!(!format!("{error:?} {options:?}").contains("hf_"), "{error:?}");
    }
    let broken = fetch(&name, &options.with_token("a\r\nb".to_owned())).unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_dropped_download_resumes() {
    let place = place();
    // Every connection breaks: 300,000 bytes come in three pieces, and 200,000 in two.
    place.hub.behave(|hub| hub.drop_after = Some(100_001));
    let folder = place.fetch("org/name").unwrap();
    assert_eq!(fs::read(folder.join(SHARDS[1])).unwrap(), bytes(200_000, 2));
    let requests = place.hub.requests();
    let ranges: Vec<_> =
        requests.iter().filter(|request| request.storage).map(|request| request.range.as_deref()).collect();
    assert_eq!(ranges, [None, Some("bytes=100001-"), Some("bytes=200002-"), None, Some("bytes=100001-")]);
}

#[test]
fn a_stalled_server_counts_as_dropped() {
    let mut place = place();
    (place.options.timeout, place.options.retries) = (Duration::from_secs(1), 20);
    place.hub.behave(|hub| hub.silent_after = Some(150_000));
    let folder = place.fetch("org/name").unwrap();
    assert_eq!(fs::read(folder.join(SHARDS[0])).unwrap(), bytes(300_000, 1));
}

#[test]
fn a_dripping_or_silent_hub_is_given_up_as_a_whole() {
    let mut place = place();
    (place.options.retries, place.options.patience) = (1_000_000, Duration::from_millis(300));
    place.hub.behave(|hub| hub.drips = true);
    let error = place.fetch("org/name").unwrap_err();
    assert_eq!((error.kind(), error.context("seconds")), (ErrorKind::Io, Some("0.3")));
    // One that never begins to answer: each request times out, and the next one is made.
    place.options.timeout = Duration::from_millis(50);
    place.hub.behave(|hub| (hub.drips, hub.silent_after) = (false, Some(0)));
    let error = place.fetch("org/name").unwrap_err();
    assert_eq!((error.kind(), error.context("seconds")), (ErrorKind::Io, Some("0.3")));
}

#[test]
fn a_cancelled_download_leaves_no_snapshot_and_resumes() {
    let mut place = place();
    let cancel = CancelToken::new();
    let heard = cancel.clone();
    place.options.cancel = Some(cancel);
    place.options.progress = Some(Arc::new(move |progress| {
        // Progress is reported periodically, and first when the download starts.
        if progress.done > 0 {
            heard.cancel();
        }
    }));
    assert_eq!(place.fetch("org/name").unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(place.cache.find(&"org/name".parse().unwrap()).unwrap(), None);
    // As a process that was killed leaves it.
    let shard = bytes(300_000, 1);
    fs::write(place.blob(&shard).with_extension("incomplete"), &shard[..250_000]).unwrap();
    place.hub.requests();
    (place.options.cancel, place.options.progress) = (None, None);
    place.fetch("org/name").unwrap();
    let requests = place.hub.requests();
    let first = requests.iter().find(|request| request.storage).unwrap();
    assert_eq!(first.range.as_deref(), Some("bytes=250000-"));
}

#[test]
fn what_a_killed_process_of_the_same_number_left_is_in_no_ones_way() {
    let place = place();
    let folder = place.cache.folder().join("models--org--name/snapshots").join(COMMIT);
    fs::create_dir_all(&folder).unwrap();
    for number in 0..1000 {
        fs::write(folder.join(format!(".mlxcel-{}-{number}", std::process::id())), "").unwrap();
    }
    assert_eq!(place.fetch("org/name").unwrap(), folder);
}

#[test]
fn a_file_that_cannot_be_put_into_its_place_leaves_no_draft() {
    let place = place();
    let folder = place.cache.folder().join("models--org--name/snapshots").join(COMMIT);
    fs::create_dir_all(folder.join("config.json/of somebody")).unwrap();
    assert_eq!(place.fetch("org/name").unwrap_err().operation(), OPERATION);
    let left = files_below(&folder);
    assert!(left.iter().all(|path| !path.to_string_lossy().contains(".mlxcel-")), "{left:?}");
}

#[test]
fn without_range_support_the_whole_file_is_fetched_again() {
    let place = place();
    let shard = bytes(300_000, 1);
    fs::create_dir_all(place.blob(&shard).parent().unwrap()).unwrap();
    fs::write(place.blob(&shard).with_extension("incomplete"), &shard[..250_000]).unwrap();
    place.hub.behave(|hub| hub.no_ranges = true);
    assert_eq!(fs::read(place.fetch("org/name").unwrap().join(SHARDS[0])).unwrap(), shard);
}

#[test]
fn corrupt_files_are_fetched_once_more_and_then_rejected() {
    let place = place();
    let shard = bytes(300_000, 1);
    let part = place.blob(&shard).with_extension("incomplete");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    // Of another file, whole, and longer than it should be.
    for length in [100, 300_000, 300_001] {
        fs::write(&part, bytes(length, 9)).unwrap();
        assert_eq!(fs::read(place.fetch("org/name").unwrap().join(SHARDS[0])).unwrap(), shard);
        fs::remove_file(place.blob(&shard)).unwrap();
    }
    for (content, words) in [(bytes(300_000, 4), "sum"), (bytes(300_001, 4), "more bytes")] {
        let error = place.refused(|hub| hub.damaged = Some(content));
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(words), "{error}");
        assert!(!place.blob(&shard).exists());
    }
    let error = place.refused(|hub| (hub.damaged, hub.tag) = (None, Some(sha256(b"another"))));
    assert!(error.message().contains("tag"), "{error}");
}

#[test]
fn missing_repositories_revisions_and_files_are_named() {
    let place = place();
    for (name, words) in [
        ("org/none", "no such model"),
        ("org/name@v9", "no such revision"),
        ("org/name/none.gguf", "no file none.gguf"),
        ("org/name:Q4_K_M", "no GGUF file"),
    ] {
        let error = place.fetch(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    let pickles = place_with(&[("config.json", b"{}"), ("pytorch_model.bin", &bytes(2_000, 3))]);
    assert_eq!(pickles.fetch("org/name").unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(files_below(pickles.cache.folder()).is_empty());
    let offline = FetchOptions { offline: true, ..place.options.clone() };
    place.hub.requests();
    assert!(fetch(&"org/name".parse().unwrap(), &offline).unwrap_err().message().contains("HF_HUB_OFFLINE"));
    assert_eq!(place.hub.requests().len(), 0);
}

#[test]
fn one_gguf_model_of_several_is_fetched() {
    let files = ["m-Q4_K_M.gguf", "m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
    let content = [bytes(1_000, 1), bytes(1_000, 2), bytes(10, 3)];
    let all: Vec<_> = files.iter().zip(&content).map(|(&name, content)| (name, &content[..])).collect();
    let place = place_with(&all);
    let path = place.fetch("org/name:Q8_0").unwrap();
    assert!(path.ends_with(Path::new(COMMIT).join(files[1])));
    assert_eq!(place.cache.snapshots().unwrap()[0].files, files[1..]);
    let error = place.fetch("org/name").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let path = place.fetch("org/name/m-Q4_K_M.gguf").unwrap();
    assert_eq!(fs::read(path).unwrap(), content[0]);
}

#[test]
fn busy_responses_are_retried() {
    let place = place();
    place.hub.behave(|hub| hub.busy = (2, 503));
    place.fetch("org/name").unwrap();
    let error = place.refused(|hub| hub.busy = (3, 429));
    assert_eq!((error.kind(), error.context("status")), (ErrorKind::Io, Some("429")));
    // No server listens here.
    let at = |endpoint: &str| FetchOptions { endpoint: endpoint.to_owned(), ..place.options.clone() };
    let closed = FetchOptions { retries: 0, ..at("http://127.0.0.1:1") };
    let error = fetch(&"org/name".parse().unwrap(), &closed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains("cannot be reached"), "{error}");
    for endpoint in ["", "huggingface.co", "file:///etc", "http://a@b"] {
        let error = fetch(&"org/name".parse().unwrap(), &at(endpoint)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{endpoint:?}");
    }
}

#[test]
fn redirect_loops_end() {
    let place = place();
    let endpoint = place.hub.endpoint.clone();
    let around = format!("/org/name/resolve/{COMMIT}/{}", SHARDS[0]);
    for target in [
        around.clone(),
        format!("{endpoint}{around}"),
        "ftp://a/b".to_owned(),
        "../x".to_owned(),
        "http://".to_owned(),
    ] {
        let error = place.refused(|hub| hub.redirect = Some(target.clone()));
        assert_eq!(error.kind(), ErrorKind::Io, "{target}: {error}");
        assert!(error.message().contains("nowhere"), "{target}: {error}");
    }
}

/// A listing whose files are not what files should be.
fn listing(siblings: &Value) -> Value {
    json!({"sha": COMMIT, "siblings": siblings})
}

#[test]
fn a_hostile_listing_cannot_escape_the_cache_or_exceed_the_size_limit() {
    let place = place();
    let sum = sha256(b"x");
    let file = |name: &str, size: Value| json!({"rfilename": name, "size": size, "lfs": {"sha256": sum, "size": size}});
    let config = file("config.json", json!(2));
    for (siblings, kind) in [
        (json!([file("../m.gguf", json!(1))]), ErrorKind::InvalidInput),
        (json!([file("/tmp/m.gguf", json!(1))]), ErrorKind::InvalidInput),
        (json!([file("a\\..\\m.gguf", json!(1))]), ErrorKind::InvalidInput),
        (json!([file("m.gguf", json!(u64::MAX))]), ErrorKind::ResourceExhausted),
        (
            json!([
                file("m-00001-of-00002.gguf", json!(1_u64 << 62)),
                file("m-00002-of-00002.gguf", json!(u64::MAX))
            ]),
            ErrorKind::ResourceExhausted,
        ),
        (json!([file("m-00001-of-99999.gguf", json!(1))]), ErrorKind::NotFound),
        (json!([file("m.gguf", json!(-1))]), ErrorKind::Corrupt),
        (json!([file("m.gguf", Value::Null)]), ErrorKind::Corrupt),
        (
            json!([{"rfilename": "m.gguf", "size": 1, "lfs": {"sha256": "../../x", "size": 1}}]),
            ErrorKind::Corrupt,
        ),
        (json!([{"rfilename": "m.gguf", "size": 1, "blobId": "/etc/passwd"}]), ErrorKind::Corrupt),
        (json!([{"rfilename": "m.gguf", "size": 1}]), ErrorKind::Corrupt),
        (json!([config, file("model.safetensors", json!(1))]), ErrorKind::Corrupt),
        (
            json!([file("config.json", json!(1_u64 << 40)), file("model.safetensors", json!(1))]),
            ErrorKind::Corrupt,
        ),
        (json!([config, file(INDEX, json!(1_u64 << 40))]), ErrorKind::Corrupt),
        (json!("all"), ErrorKind::Corrupt),
    ] {
        let error = place.refused(|hub| hub.listing = Some(listing(&siblings)));
        assert_eq!(error.kind(), kind, "{siblings}: {error}");
    }
    for commit in ["main", "../../x", "", &"A".repeat(40)] {
        let error = place.refused(|hub| hub.listing = Some(json!({"sha": commit, "siblings": []})));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{commit}");
    }
    let written = files_below(place.cache.folder());
    assert!(written.iter().all(|path| fs::metadata(path).unwrap().len() == 0), "{written:?}");

    // An index is the repository's own word.
    let index = json!({"weight_map": {"a": "../w.safetensors"}}).to_string();
    place.hub.behave(|hub| {
        hub.listing = None;
        hub.files.insert(INDEX.to_owned(), index.into_bytes());
    });
    assert_eq!(place.fetch("org/name").unwrap_err().kind(), ErrorKind::InvalidInput);
    let few = self::place();
    let error =
        fetch(&"org/name".parse().unwrap(), &few.options.clone().with_max_bytes(499_999)).unwrap_err();
    assert_eq!((error.kind(), error.context("allowed")), (ErrorKind::ResourceExhausted, Some("499999")));
}

#[test]
fn concurrent_fetches_download_each_blob_once() {
    let place = place();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| place.fetch("org/name").unwrap());
        }
    });
    assert_eq!(place.hub.requests().iter().filter(|request| request.storage).count(), 2);
}
