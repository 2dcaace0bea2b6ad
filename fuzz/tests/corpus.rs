//! Every input of the corpus, as it is: what once did harm does none.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

use mlxcel_fuzz::{Target, corpus};

#[test]
fn corpus_inputs_produce_no_findings() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_mlxcel-fuzz"))
        .args(["run", "--seconds", "0", "--jobs", "2", "--folder"])
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for target in Target::all() {
        assert!(said.contains(&format!("\n{} ", target.name)), "{} did not run: {said}", target.name);
    }
}

#[test]
fn every_corpus_folder_belongs_to_a_target() {
    let folder = corpus::repository().join("fuzz/corpus");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(Target::find(&name).is_some(), "{name}");
    }
}
