//! Bundles that are not what they were, or not for what they are opened for: each refused with the reason,
//! before a program of them is looked at, so that none needs to be compiled.

use mlxcel_core::ErrorKind::{Corrupt, InvalidInput, Unsupported};

use super::*;

#[test]
fn bundles_of_other_versions_are_rejected() {
    let version = env!("CARGO_PKG_VERSION");
    let cases: [(&str, &str, &[&str]); 5] = [
        ("\"format_version\": 5", "\"format_version\": 4", &["format version 4", "reads 5", version]),
        (
            &format!("\"crate_version\": \"{version}\""),
            "\"crate_version\": \"7.5.1\"",
            &["7.5.1", version, "write it again"],
        ),
        ("\"iree_release\": \"3.13.0\"", "\"iree_release\": \"3.12.0\"", &["IREE 3.12.0", "3.13.0"]),
        ("\"compiler\": null", "\"compiler\": \"3.13.0 @ 0123456789\"", &["another revision", "0123456789"]),
        // What a later format adds, and names in its version, does not get in the way of saying so.
        ("\"format_version\": 5", "\"format_version\": 9, \"model\": 3", &["format version 9"]),
    ];
    for (from, to, words) in cases {
        let bundle = copy(text());
        edit(bundle.path(), from, to);
        assert_refused(bundle.path(), Unsupported, words);
    }
}

#[test]
fn weight_layouts_of_other_versions_are_rejected() {
    let bundle = copy(text());
    edit(bundle.path(), "\"target\": \"stablehlo\"", "\"target\": \"llvm-cpu:x86_64/generic\"");
    let weight = Bundle::open(bundle.path()).unwrap().manifest().weights[0].name.clone();
    let layouts = format!("\"weight_layouts\": {{\"{weight}\": \"tiles-3x5\"}}, \"entry\":");
    edit(bundle.path(), "\"entry\":", &layouts);
    assert_refused(bundle.path(), Unsupported, &["layout", "tiles-3x5", "write the bundle again"]);
}

#[test]
fn unknown_weight_layouts_are_rejected() {
    let bundle = copy(text());
    edit(bundle.path(), "\"entry\":", "\"weight_layouts\": {\"kneecap\": \"panels-8 f32\"}, \"entry\":");
    assert_refused(bundle.path(), Corrupt, &["kneecap", "layout for an unknown weight"]);
}

#[test]
fn truncated_or_foreign_manifests_are_rejected() {
    let bundle = copy(text());
    let path = bundle.path().join("bundle.json");
    let text = fs::read(&path).unwrap();
    for length in [0, 1, text.len() / 3, text.len() - 2] {
        fs::write(&path, &text[..length]).unwrap();
        assert_refused(bundle.path(), Corrupt, &["bundle.json"]);
    }
    fs::write(
        &path,
        "{\"format\": \"zip\", \"format_version\": 1, \"crate_version\": \"1\", \"iree_release\": \"1\"}",
    )
    .unwrap();
    assert_refused(bundle.path(), Corrupt, &["something else", "zip"]);
}

#[test]
fn paths_outside_of_the_bundle_are_rejected() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let secret = secret.path().to_str().unwrap();
    for path in ["../../../../etc/passwd", "/etc/passwd", secret, "programs/../../x", "C:/x"] {
        let bundle = copy(text());
        edit(bundle.path(), "\"path\": \"programs/", &format!("\"path\": \"{path}\", \"was\": \"programs/"));
        assert_refused(bundle.path(), Corrupt, &["outside of the bundle"]);
    }
}

#[test]
fn changed_weights_and_settings_are_rejected() {
    let bundle = copy(text());
    let path = bundle.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let last = weights.len() - 1;
    weights[last] ^= 1;
    fs::write(&path, &weights).unwrap();
    assert_refused(bundle.path(), Corrupt, &["weights or config.json"]);

    let bundle = copy(text());
    let config = bundle.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 2e-06")).unwrap();
    assert_ne!(fs::read_to_string(&config).unwrap(), text);
    assert_refused(bundle.path(), Corrupt, &["weights or config.json"]);
}

#[test]
fn full_verification_finds_changes_that_sampling_misses() {
    let bundle = copy(text());
    let path = bundle.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let checkpoint = mlxcel_models::Checkpoint::open(bundle.path()).unwrap();
    let sum = checkpoint.fingerprint();
    // The first element of a sample's neighbourhood that the fingerprint does not see.
    let start = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let unseen = (start + 300..weights.len()).step_by(64).find(|&at| {
        weights[at] ^= 1;
        fs::write(bundle.path().join("new"), &weights).unwrap();
        fs::rename(bundle.path().join("new"), &path).unwrap();
        mlxcel_models::Checkpoint::open(bundle.path()).unwrap().fingerprint() == sum
    });
    assert!(unseen.is_some());
    let error = Bundle::open(bundle.path()).unwrap().verify().unwrap_err();
    assert_eq!(error.kind(), Corrupt);
    assert!(error.context("path").unwrap().ends_with("model.safetensors"), "{error}");
}

#[test]
fn a_bundle_without_programs_is_rejected_as_stablehlo_only() {
    assert_eq!(Bundle::open(text()).unwrap().manifest().compiler, None);
    assert_refused(text(), Unsupported, &["for other compilers", "stablehlo", "local-task"]);
}

#[test]
fn a_bundle_is_refused_for_hidden_states_that_its_programs_do_not_return() {
    let (engine, load) = (trusting(text()), load_options().with_output_states(true));
    let error = engine.load(&text().into(), &load).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.context("field")), (Unsupported, Some("output_states")), "{error}");
}

#[test]
fn contradictory_manifests_are_rejected() {
    for (from, to) in [
        ("\"chunk\": 64", "\"chunk\": 18446744073709551615"),
        ("\"capacity\": 150", "\"capacity\": -1"),
        ("\"precision\": \"exact\"", "\"precision\": \"double\""),
        ("\"lengths\": [\n    256", "\"lengths\": [\n    256,\n    256"),
        ("\"sha256\": \"", "\"sha256\": \"x"),
    ] {
        let bundle = copy(text());
        edit(bundle.path(), from, to);
        assert_refused(bundle.path(), Corrupt, &["bundle.json"]);
    }
}

#[test]
fn options_beyond_the_compiled_programs_are_rejected() {
    let refused = |options: &LoadOptions| {
        let error = trusting(text()).load(&text().into(), options).map(drop).unwrap_err();
        let context = |key| error.context(key).unwrap_or_default().to_owned();
        (error.kind(), [context("field"), context("asked_for"), context("bundle")])
    };
    let words = |words: [&str; 3]| words.map(str::to_owned);
    assert_eq!(refused(&LoadOptions::default()), (Unsupported, words(["precision", "native", "exact"])));
    assert_eq!(
        refused(&load_options().with_capacity(151)),
        (InvalidInput, words(["capacity", "151", "150"]))
    );
    assert_eq!(refused(&load_options().with_sequences(2)), (InvalidInput, words(["sequences", "2", "1"])));
}
