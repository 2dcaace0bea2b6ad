use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A cache with the repository `org/name`.
struct Cache {
    _folder: tempfile::TempDir,
    cache: HubCache,
    repo: PathBuf,
}

fn cache() -> Cache {
    let folder = tempfile::tempdir().unwrap();
    let cache = HubCache::at(folder.path().join("hub"));
    let repo = cache.folder().join("models--org--name");
    for part in ["blobs", "refs"] {
        fs::create_dir_all(repo.join(part)).unwrap();
    }
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    Cache { _folder: folder, cache, repo }
}

impl Cache {
    /// Puts a file into a snapshot as the hub's clients do: a link into `blobs`.
    #[cfg(unix)]
    fn put(&self, commit: &str, name: &str, content: &str) {
        let blob = format!("blob-{}", name.replace('/', "-"));
        fs::write(self.repo.join("blobs").join(&blob), content).unwrap();
        let link = self.repo.join("snapshots").join(commit).join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let up = "../".repeat(name.split('/').count() + 1);
        std::os::unix::fs::symlink(format!("{up}blobs/{blob}"), link).unwrap();
    }

    fn find(&self, name: &str) -> Result<Option<Found>> {
        self.cache.find(&name.parse().unwrap())
    }
}

#[test]
fn the_cache_folder_follows_the_environment_variables_of_huggingface_hub() {
    let of = |set: &[(&str, &str)], home: Option<&str>| {
        let get = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        HubCache::from_variables(get, home.map(Into::into)).map(|cache| cache.folder)
    };
    let path = |text: &str| Some(PathBuf::from(text));
    let all = [("HF_HUB_CACHE", "/hub"), ("HF_HOME", "/hf"), ("XDG_CACHE_HOME", "/xdg")];
    assert_eq!(of(&all, Some("/home")), path("/hub"));
    assert_eq!(of(&all[1..], Some("/home")), path("/hf/hub"));
    assert_eq!(of(&all[2..], Some("/home")), path("/xdg/huggingface/hub"));
    assert_eq!(of(&[("HF_HOME", "")], Some("/home")), path("/home/.cache/huggingface/hub"));
    assert_eq!(of(&[("HUGGINGFACE_HUB_CACHE", "/old")], None), path("/old"));
    assert_eq!(of(&[], None), None);
}

#[cfg(unix)]
#[test]
fn names_resolve_to_snapshots_by_branch_tag_or_commit() {
    let cache = cache();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        cache.put(COMMIT, file, "{}");
    }
    let found = cache.find("org/name").unwrap().unwrap();
    assert_eq!(found.path, cache.repo.join("snapshots").join(COMMIT));
    assert_eq!((found.commit.as_str(), found.missing.len()), (COMMIT, 0));
    assert_eq!(cache.find(&format!("org/name@{COMMIT}")).unwrap().unwrap(), found);
    for absent in ["org/other", "org/name@v1", &format!("org/name@{OTHER}"), "org/name/a.gguf"] {
        assert_eq!(cache.find(absent).unwrap(), None, "{absent}");
    }
    fs::create_dir_all(cache.repo.join("refs/refs/pr")).unwrap();
    fs::write(cache.repo.join("refs/refs/pr/7"), format!("{COMMIT}\n")).unwrap();
    assert_eq!(cache.find("org/name@refs/pr/7").unwrap().unwrap(), found);

    let listed = cache.cache.snapshots().unwrap();
    let [snapshot] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((snapshot.name.to_string().as_str(), snapshot.bytes), ("org/name", 6));
    assert_eq!(snapshot.files, ["config.json", "model.safetensors", "tokenizer.json"]);
}

#[cfg(unix)]
#[test]
fn missing_files_of_a_checkpoint_are_named() {
    let cache = cache();
    cache.put(COMMIT, "config.json", "{}");
    assert_eq!(cache.find("org/name").unwrap().unwrap().missing, ["weights"]);
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    cache.put(COMMIT, "model.safetensors.index.json", index);
    cache.put(COMMIT, "model-1.safetensors", "");
    assert_eq!(cache.find("org/name").unwrap().unwrap().missing, ["model-2.safetensors"]);
    cache.put(COMMIT, "model-2.safetensors", "");
    assert!(cache.find("org/name").unwrap().unwrap().missing.is_empty());
    fs::remove_file(cache.repo.join("blobs/blob-model-1.safetensors")).unwrap();
    assert_eq!(cache.find("org/name").unwrap().unwrap().missing, ["model-1.safetensors"]);
}

#[cfg(unix)]
#[test]
fn missing_modules_of_sentence_transformers_are_named() {
    let cache = cache();
    for file in ["config.json", "model.safetensors"] {
        cache.put(COMMIT, file, "{}");
    }
    let modules = r#"[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Dense", "path": "2_Dense"},
                      {"type": "a.Normalize", "path": "3_Normalize"}]"#;
    cache.put(COMMIT, "modules.json", modules);
    let files = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"];
    for (there, file) in files.iter().enumerate() {
        assert_eq!(cache.find("org/name").unwrap().unwrap().missing, files[there..]);
        cache.put(COMMIT, file, "{}");
    }
    assert!(cache.find("org/name").unwrap().unwrap().missing.is_empty());
    for (modules, kind) in [
        ("{}", ErrorKind::Corrupt),
        (r#"[{"type": "Pooling", "path": "../1_Pooling"}]"#, ErrorKind::InvalidInput),
    ] {
        fs::write(cache.repo.join("blobs/blob-modules.json"), modules).unwrap();
        assert_eq!(cache.find("org/name").unwrap_err().kind(), kind);
    }
}

#[cfg(unix)]
#[test]
fn a_gguf_file_is_found_by_its_name_or_label() {
    let cache = cache();
    cache.put(COMMIT, "m-Q4_K_M.gguf", "");
    let folder = cache.repo.join("snapshots").join(COMMIT);
    assert_eq!(cache.find("org/name").unwrap().unwrap().path, folder.join("m-Q4_K_M.gguf"));
    cache.put(COMMIT, "q8/m-Q8_0.gguf", "");
    assert_eq!(cache.find("org/name:Q8_0").unwrap().unwrap().path, folder.join("q8/m-Q8_0.gguf"));
    assert_eq!(cache.find("org/name/q8/m-Q8_0.gguf").unwrap().unwrap().path, folder.join("q8/m-Q8_0.gguf"));
    assert_eq!(cache.find("org/name").unwrap_err().kind(), ErrorKind::InvalidInput);
    let names: Vec<_> =
        cache.cache.snapshots().unwrap()[0].gguf_models().iter().map(HubName::to_string).collect();
    assert_eq!(names, ["org/name/m-Q4_K_M.gguf", "org/name/q8/m-Q8_0.gguf"]);
    assert_eq!(cache.find("org/name:Q2_K").unwrap(), None);
}

#[cfg(unix)]
#[test]
fn corrupt_or_escaping_cache_entries_are_rejected() {
    use std::os::unix::fs::symlink;

    let cache = cache();
    cache.put(COMMIT, "config.json", "{}");
    fs::write(cache.repo.parent().unwrap().join("secret.gguf"), "GGUF").unwrap();
    let folder = cache.repo.join("snapshots").join(COMMIT);
    symlink("../../../secret.gguf", folder.join("m.gguf")).unwrap();
    assert_eq!(cache.find("org/name/m.gguf").unwrap_err().kind(), ErrorKind::InvalidInput);
    // A circle of folders is not walked.
    symlink(".", folder.join("self")).unwrap();
    assert_eq!(cache.cache.snapshots().unwrap()[0].files, ["config.json", "m.gguf", "self"]);
    for content in ["", "../../..", "main", &"a".repeat(1 << 20)] {
        fs::write(cache.repo.join("refs/main"), content).unwrap();
        assert_eq!(cache.find("org/name").unwrap_err().kind(), ErrorKind::Corrupt, "{:.9}", content);
    }
}
