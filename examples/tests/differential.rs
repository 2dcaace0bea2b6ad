//! Every two engines that are compiled in say the same about every fixture that both run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod support;

use std::sync::Arc;

use mlxcel_conformance::{Tolerance, differential};
use mlxcel_core::{Backend, ErrorKind, LoadOptions, Model, Precision};
use support::{Fixture, engines_and_plugin};

/// The checkpoint on an engine; none where the engine does not run it, and says so.
fn load(engine: &dyn Backend, fixture: &Fixture, precision: Precision) -> Option<Arc<dyn Model>> {
    let options = LoadOptions::default().with_precision(precision);
    match engine.load(&fixture.path.clone().into(), &options) {
        Ok(model) => Some(model),
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        Err(error) => panic!("{} on {}: {error}", fixture.name, engine.name()),
    }
}

/// The bundled model, it in four bits, and every architecture.
fn every_fixture() -> Vec<Fixture> {
    let folder = Fixture::named("llama").path.parent().unwrap().to_owned();
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let named = names.into_iter().map(|name| Fixture::named(name.leak()));
    [Fixture::storyteller(), Fixture::named("storyteller-4bit")].into_iter().chain(named).collect()
}

fn engines_agree(precision: Precision, fixtures: Vec<Fixture>, tolerance: impl Fn(&str) -> Tolerance) {
    let engines = engines_and_plugin();
    for fixture in fixtures {
        let prompts: Vec<_> = fixture.cases().into_iter().map(|case| case.prompt).collect();
        let models: Vec<_> =
            engines.iter().filter_map(|engine| load(&**engine, &fixture, precision)).collect();
        if precision == Precision::Exact {
            assert_eq!(models.len(), engines.len(), "an engine does not run {}", fixture.name);
        }
        for (index, a) in models.iter().enumerate() {
            for b in &models[index + 1..] {
                let report = differential(&**a, &**b, &prompts, 16, &tolerance(fixture.name)).unwrap();
                assert!(report.passed(), "{} at {precision} precision: {report}", fixture.name);
            }
        }
    }
}

#[test]
fn engines_agree_at_exact_precision() {
    engines_agree(Precision::Exact, every_fixture(), |_| Tolerance::of(Precision::Exact));
}

#[test]
fn engines_agree_at_native_precision() {
    let named = ["llama", "llama-linear", "mistral", "storyteller-4bit"].map(Fixture::named);
    let fixtures = std::iter::once(Fixture::storyteller()).chain(named).collect();
    engines_agree(Precision::Native, fixtures, |fixture| {
        let mut tolerance = Tolerance::of(Precision::Native);
        // Two roundings may lie on both sides of the exact value; with random weights each is up to 1e-2 off (`oracles`), of
        // mistral 1.1e-2.
        tolerance.logits = match fixture {
            "llama" | "llama-linear" => 2e-2,
            "mistral" => 3e-2,
            _ => tolerance.logits,
        };
        tolerance
    });
}
