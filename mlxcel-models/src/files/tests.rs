use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn kind(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, ErrorKind> {
    read_in(folder, name).map_err(|error| error.kind())
}

#[test]
fn files_beyond_their_size_limit_are_not_read() {
    let place = folder();
    for name in ["config.json", "tokenizer.json", "chat_template.jinja", "bundle.json", "README.md"] {
        let limit = FileKind::of(name).limit();
        let file = File::create(place.path().join(name)).unwrap();
        // Sparse, so that it takes no room on the disk.
        file.set_len(limit + 1).unwrap();
        assert_eq!(kind(place.path(), name), Err(ErrorKind::Corrupt), "{name}");
    }
    fs::write(place.path().join("config.json"), "{}").unwrap();
    assert_eq!(kind(place.path(), "config.json"), Ok(Some(b"{}".to_vec())));
    assert_eq!(kind(place.path(), "none.json"), Ok(None));
    assert_eq!(kind(place.path(), "config.json/none"), Ok(None));
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_rejected_without_blocking() {
    let place = folder();
    let pipe = place.path().join("config.json");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(kind(place.path(), "config.json"), Err(ErrorKind::Corrupt));
    assert!(open_regular(&pipe).unwrap().is_none());
    assert!(open_regular(Path::new("/dev/zero")).unwrap().is_none());
    assert!(open_regular(place.path()).unwrap().is_none());
}

#[cfg(unix)]
#[test]
fn a_dangling_link_is_an_error_not_a_missing_file() {
    let folder = folder();
    std::os::unix::fs::symlink("nowhere", folder.path().join("chat_template.jinja")).unwrap();
    assert_eq!(kind(folder.path(), "chat_template.jinja"), Err(ErrorKind::Corrupt));
    assert_eq!(kind(folder.path(), "config.json"), Ok(None));
}

#[cfg(unix)]
#[test]
fn links_are_followed_within_the_folder_and_into_the_blobs_of_its_cache() {
    use std::os::unix::fs::symlink;

    let place = folder();
    let snapshot = place.path().join("models--a--b/snapshots/0123");
    let blobs = place.path().join("models--a--b/blobs");
    for folder in [&snapshot, &blobs] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(blobs.join("4567"), "blob").unwrap();
    fs::write(place.path().join("secret"), "secret").unwrap();
    fs::write(snapshot.join("real"), "real").unwrap();
    let link = |to: &str, name: &str| symlink(to, snapshot.join(name)).unwrap();
    link("../../blobs/4567", "config.json");
    link("real", "inside");
    link("../../../secret", "outside");
    link(place.path().join("secret").to_str().unwrap(), "absolute");
    link("../../../", "up");
    link("circle", "circle");
    assert_eq!(kind(&snapshot, "config.json"), Ok(Some(b"blob".to_vec())));
    assert_eq!(kind(&snapshot, "inside"), Ok(Some(b"real".to_vec())));
    for name in ["outside", "absolute", "up/secret"] {
        assert_eq!(kind(&snapshot, name), Err(ErrorKind::InvalidInput), "{name}");
    }
    assert_eq!(kind(&snapshot, "circle"), Err(ErrorKind::Io));

    // By a link to the folder nothing changes.
    symlink(&snapshot, place.path().join("model")).unwrap();
    assert_eq!(kind(&place.path().join("model"), "config.json"), Ok(Some(b"blob".to_vec())));
    assert_eq!(kind(&place.path().join("model"), "outside"), Err(ErrorKind::InvalidInput));

    // Blobs that are links out of the cache are rejected.
    fs::rename(&blobs, place.path().join("private")).unwrap();
    symlink(place.path().join("private"), &blobs).unwrap();
    assert_eq!(kind(&snapshot, "config.json"), Err(ErrorKind::InvalidInput));
}
