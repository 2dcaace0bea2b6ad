//! The text of sample programs, compared with `tests/golden`. `MLXCEL_UPDATE_GOLDEN=1` rewrites those files.

use std::path::Path;

#[test]
fn samples_print_as_their_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = std::env::var_os("MLXCEL_UPDATE_GOLDEN").is_some();
    let mut differing = Vec::new();
    for (name, module) in crate::support::samples::all() {
        let file = folder.join(format!("{name}.mlir"));
        if update {
            std::fs::write(&file, module.to_string()).unwrap();
        } else if std::fs::read_to_string(&file).unwrap_or_default() != module.to_string() {
            differing.push(name);
        }
    }
    assert!(
        differing.is_empty(),
        "not as in tests/golden: {differing:?} (MLXCEL_UPDATE_GOLDEN=1 rewrites them)"
    );
}

#[test]
fn the_stock_compiler_verifies_the_samples() {
    let Some(compiler) = crate::support::stock_compiler() else { return };
    let samples = crate::support::samples::all();
    let texts: Vec<String> = samples.iter().map(|(_, module)| module.to_string()).collect();
    for ((name, module), outcome) in samples.iter().zip(crate::support::verify(&compiler, &texts)) {
        assert_eq!(module.verify(), Ok(()), "{name}");
        assert_eq!(outcome, Ok(()), "{name}");
    }
}

#[test]
fn samples_cover_every_operation() {
    let samples = crate::support::samples::all();
    let mut seen = std::collections::BTreeSet::new();
    for function in samples.iter().flat_map(|(_, module)| &module.functions) {
        function.body.walk(&mut |op| {
            seen.insert(op.kind.name());
        });
    }
    let missing: Vec<&str> = crate::support::every_operation().filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
