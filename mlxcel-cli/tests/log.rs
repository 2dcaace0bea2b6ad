//! What the program logs.
#![cfg(feature = "portable")]

use crate::program::{Run, mlxcel};

/// A short text with these variables.
fn logged(variables: &[(&str, &str)]) -> Run {
    let mut program = mlxcel(&["generate", "--backend", "portable", "-n", "2"]);
    program.env_remove("MLXCEL_LOG").env_remove("RUST_LOG");
    Run::of(program.envs(variables.iter().copied()))
}

#[test]
fn events_are_logged_as_the_environment_says() {
    logged(&[]).printed();
    for variable in ["MLXCEL_LOG", "RUST_LOG"] {
        let run = logged(&[(variable, "mlxcel=trace")]);
        assert!(run.status == 0 && run.err.contains("mlxcel_"), "{variable}: {run:?}");
    }
    logged(&[("MLXCEL_LOG", "off"), ("RUST_LOG", "trace")]).printed();
    logged(&[("MLXCEL_LOG", "mlxcel=loud")]).refused(2, &["MLXCEL_LOG"]);
    // It may be meant for other programs.
    logged(&[("RUST_LOG", "mlxcel=loud")]).printed();
}
