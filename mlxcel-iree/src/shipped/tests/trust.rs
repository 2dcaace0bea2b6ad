//! Whose programs are run.

use mlxcel_core::ErrorKind::{Toolchain, Unsupported};
use mlxcel_iree_target::hex;
use sha2::{Digest, Sha256};

use super::*;

/// Opens the model in `folder` as it is, trusting nothing.
fn load(engine: &IreeBackend, folder: &Path) -> Result<std::sync::Arc<dyn Model>> {
    engine.load(&folder.into(), &load_options())
}

/// Replaces every program by `content`, with its checksums in the manifest.
fn forge(bundle: &Path, content: &[u8]) {
    for file in Bundle::open(bundle).unwrap().manifest().targets.iter().flat_map(|target| &target.programs) {
        fs::write(bundle.join(&file.path), content).unwrap();
        edit(bundle, &file.sha256, &hex(&Sha256::digest(content)));
        edit(bundle, &format!("\"bytes\": {}", file.bytes), &format!("\"bytes\": {}", content.len()));
    }
}

#[test]
fn programs_of_an_untrusted_bundle_do_not_run() {
    let bundle = copy(written());
    forge(bundle.path(), b"a stranger's machine code");
    let error = load(&without_compiler(), bundle.path()).map(drop).unwrap_err();
    assert_eq!(error.kind(), Toolchain, "{error}");
    for word in ["nobody vouches", "with_trusted_bundle", "--trust-bundle"] {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    assert_eq!(error.context("path"), bundle.path().to_str());

    // With a compiler they are compiled again.
    assert_eq!(answer(&*load(&engine(), bundle.path()).unwrap()).unwrap(), ANSWER);

    // Said to be trusted, they are what is loaded.
    let error = load(&trusting(bundle.path()), bundle.path()).map(drop).unwrap_err();
    assert!(!error.to_string().contains("vouches"), "{error}");
}

#[test]
fn a_bundle_written_on_this_machine_runs_while_its_manifest_is_unchanged() {
    let here = IreeBackend::new().with_compiler("/no/iree-compile").with_cache_dir(shared().join("cache"));
    let bundle = copy(written());
    load(&here, bundle.path()).unwrap();
    edit(bundle.path(), "\"compiler\"", "\"colour\": \"green\", \"compiler\"");
    // A cache that has the records and no programs.
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = IreeBackend::new().with_compiler("/no/iree-compile").with_cache_dir(elsewhere.path());
    let records = elsewhere.path().join("bundles");
    fs::create_dir(&records).unwrap();
    for record in fs::read_dir(shared().join("cache/bundles")).unwrap() {
        let record = record.unwrap();
        fs::copy(record.path(), records.join(record.file_name())).unwrap();
    }
    assert_eq!(load(&moved, bundle.path()).map(drop).unwrap_err().kind(), Toolchain);
    load(&moved, written()).unwrap();
}

#[test]
fn trust_of_a_folder_applies_to_any_path_to_it_only() {
    let trusted = |folder: &Path| load(&trusting(folder), text()).map(drop).unwrap_err().kind();
    // This bundle is for other compilers, which is known once its manifest is looked at.
    assert_eq!(trusted(text()), Unsupported);
    assert_eq!(trusted(&text().join("../text/programs/..")), Unsupported);
    assert_eq!(trusted(written()), Toolchain);
    assert_eq!(trusted(text().parent().unwrap()), Toolchain);
    assert_eq!(trusted(Path::new("/nowhere")), Toolchain);
}

#[test]
fn a_manifest_can_be_trusted_by_its_sha256() {
    let sum = hex(&Sha256::digest(fs::read(text().join("bundle.json")).unwrap()));
    let trusted = |sum: &str| {
        let engine = without_compiler().with_trusted_manifest(sum);
        load(&engine, text()).map(drop).unwrap_err().kind()
    };
    assert_eq!(trusted(&sum.to_uppercase()), Unsupported);
    assert_eq!(trusted(&sum.replace(['0', '1'], "2")), Toolchain);
    assert_eq!(trusted(""), Toolchain);
}

#[test]
fn an_untrusted_manifest_is_not_parsed() {
    let bundle = copy(text());
    fs::write(bundle.path().join("bundle.json"), "{").unwrap();
    assert_eq!(load(&without_compiler(), bundle.path()).map(drop).unwrap_err().kind(), Toolchain);
    load(&engine(), bundle.path()).unwrap();
}

#[test]
fn a_bundle_without_weights_is_an_error_whether_trusted_or_not() {
    let bundle = copy(text());
    fs::remove_file(bundle.path().join("model.safetensors")).unwrap();
    edit(bundle.path(), "\"weights_included\": true", "\"weights_included\": false");
    let error = load(&without_compiler(), bundle.path()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("with_bundle"), "{error}");
}
