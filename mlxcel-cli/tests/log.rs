//! What the program logs.
#![cfg(feature = "portable")]

use std::process::Command;

/// Status and standard error of a short text with these variables.
fn logged(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mlxcel"));
    program
        .args(["generate", "--backend", "portable", "-n", "2"])
        .env_remove("MLXCEL_LOG")
        .env_remove("RUST_LOG");
    let output = program.envs(variables.iter().copied()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn events_are_logged_as_the_environment_says() {
    assert_eq!(logged(&[]), (Some(0), String::new()));
    for variable in ["MLXCEL_LOG", "RUST_LOG"] {
        let (status, said) = logged(&[(variable, "mlxcel=trace")]);
        assert!(status == Some(0) && said.contains("mlxcel_"), "{variable}: {said}");
    }
    assert_eq!(logged(&[("MLXCEL_LOG", "off"), ("RUST_LOG", "trace")]), (Some(0), String::new()));
    let (status, said) = logged(&[("MLXCEL_LOG", "mlxcel=loud")]);
    assert!(status == Some(2) && said.contains("MLXCEL_LOG") && said.lines().count() == 1, "{said}");
    // It may be meant for other programs.
    assert_eq!(logged(&[("RUST_LOG", "mlxcel=loud")]), (Some(0), String::new()));
}
