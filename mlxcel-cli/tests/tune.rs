//! The program `tune`, as a user runs it.
#![cfg(feature = "iree")]

use std::fs;
use std::path::Path;

use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, Precision, SessionOptions};
use mlxcel_session::iree::IreeBackend;
use mlxcel_session::iree::tune::Schedule;

use crate::program::{Run, mlxcel};

fn tune(cache: &Path, arguments: &[&str]) -> Run {
    Run::of(mlxcel(&["tune"]).args(arguments).env("MLXCEL_CACHE_DIR", cache))
}

#[test]
fn a_measured_schedule_is_kept_and_the_model_generates_the_same_with_each() {
    let cache = tempfile::tempdir().unwrap();
    let model = crate::support::Fixture::named("llama").path;
    let told = tune(cache.path(), &["--model", model.to_str().unwrap(), "--json", "--threads", "2"]).json();
    assert_eq!(told["kept"], true);
    let chosen: Schedule = told["schedule"].as_str().unwrap().parse().unwrap();
    let comparisons = told["comparisons"].as_array().unwrap();
    assert!(comparisons.len() >= 2, "{told}");
    for comparison in comparisons {
        let candidates = comparison["candidates"].as_array().unwrap();
        assert!(
            candidates.len() > 1 && candidates.iter().all(|one| one["milliseconds"].as_f64() > Some(0.0))
        );
    }
    let kept: Vec<_> = fs::read_dir(cache.path().join("iree/schedules")).unwrap().collect();
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!(fs::read_to_string(kept.as_ref().unwrap().path()).unwrap().trim_end(), chosen.to_string());

    let options = LoadOptions::default().with_precision(Precision::Native).with_capacity(64);
    let generated = |engine: IreeBackend| {
        let engine = engine.with_cache_dir(cache.path().join("iree"));
        let model = engine.load(&model.as_path().into(), &options).unwrap();
        let mut session = model.open_session(&SessionOptions::default()).unwrap();
        let tokens = session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(8)).unwrap().tokens;
        (tokens, model.info().compile_time)
    };
    let (tokens, _) = generated(IreeBackend::new());
    // The programs of the schedule that was chosen are there already.
    let (same, compile_time) = generated(IreeBackend::new().with_schedule(chosen));
    assert_eq!((same, compile_time.is_zero()), (tokens.clone(), true));
    // A bundle follows the schedule that it is told to measure.
    let out = cache.path().join("bundle");
    let mut bundle = mlxcel(&["bundle", "--tune", "--context", "64", "--json", "--model"]);
    bundle.arg(&model).arg("--out").arg(&out).env("MLXCEL_CACHE_DIR", cache.path());
    let told = Run::of(&mut bundle).json();
    let kept_now = fs::read_to_string(kept.as_ref().unwrap().path()).unwrap();
    assert_eq!(told["schedule"].as_str(), Some(kept_now.trim_end()));
    // A damaged one is ignored.
    fs::write(kept.as_ref().unwrap().path(), "streams=999999999999 ahead=1 bf16=pairs\n").unwrap();
    assert_eq!(generated(IreeBackend::new()).0, tokens);
}

#[test]
fn what_has_no_schedule_says_so() {
    let cache = tempfile::tempdir().unwrap();
    let engine = IreeBackend::new()
        .with_cache_dir(cache.path())
        .with_compile_target("llvm-cpu:x86-64-v2".parse().unwrap());
    let model = crate::support::Fixture::named("llama").path;
    let error = engine.tune(&model.as_path().into(), &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no schedule"), "{error}");
    tune(cache.path(), &["--model", "missing"]).refused(2, &[]);
}
