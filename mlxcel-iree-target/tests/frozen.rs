//! Manifests that an earlier version wrote are read, or rejected by name; `frozen/VERSION` has them as that
//! version wrote them.
#![allow(clippy::unwrap_used, clippy::panic)]

use mlxcel_core::ErrorKind;
use mlxcel_iree_target::RELEASE;
use mlxcel_iree_target::manifest::Manifest;

const MANIFEST: &str = include_str!("frozen/0.1/bundle.json");

#[test]
fn manifests_of_earlier_versions_are_read_or_rejected_by_name() {
    let is_current =
        env!("CARGO_PKG_VERSION").starts_with("0.1.") && MANIFEST.contains(&format!("\"{RELEASE}\""));
    match Manifest::parse(MANIFEST.as_bytes(), "bundle.json") {
        Ok(manifest) => {
            assert_eq!((manifest.capacity, manifest.programs.len(), manifest.targets.len()), (64, 2, 1));
            assert_eq!(
                Manifest::parse(manifest.to_json().unwrap().as_bytes(), "bundle.json").unwrap(),
                manifest
            );
        }
        Err(error) => assert!(!is_current && error.kind() == ErrorKind::Unsupported, "{error}"),
    }
}

#[test]
fn manifests_of_other_formats_are_rejected_with_the_version_that_wrote_them() {
    for version in [4, 94] {
        let other = MANIFEST.replace("\"format_version\": 5", &format!("\"format_version\": {version}"));
        let error = Manifest::parse(other.as_bytes(), "bundle.json").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.context("written_by").is_some());
    }
}
