//! Every input of the corpus, as it is: what once did harm does none.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

use mlxcel_fuzz::{Target, corpus};

#[test]
fn all_inputs_of_the_corpus_end_well() {
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
fn every_folder_of_the_corpus_is_that_of_a_target() {
    let folder = corpus::repository().join("fuzz/corpus");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(Target::find(&name).is_some(), "{name}");
    }
}
