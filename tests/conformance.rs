//! Every engine that is compiled in holds the contract with a model of each kind of state, and nothing is
//! excepted.

use std::path::Path;

use crate::support::Fixture;
use mlxcel_conformance::{Expectations, Subject, suite};
use mlxcel_core::{Backend, FaultPoint, Faults, LoadOptions, ModelSource, Precision};

#[path = "support/broken.rs"]
mod broken;

use broken::break_weights;

/// A checkpoint on `engine`: with room for two prompt chunks and a little, so that whatever grows does.
/// `faulty` makes an engine of it whose device fails at one of `points`.
fn subject<E: Backend + Clone + 'static, F: Backend + 'static>(
    engine: E,
    points: &[FaultPoint],
    faulty: fn(E, Faults) -> F,
    fixture: Fixture,
) -> Subject<'static> {
    let load =
        LoadOptions::default().with_precision(Precision::Exact).with_capacity(crate::support::CAPACITY);
    let prompts: Vec<_> = fixture.cases().into_iter().map(|case| case.prompt).collect();
    let (other, other_source) = (engine.clone(), ModelSource::Folder(Fixture::named("llama").path));
    let failing = engine.clone();
    let (broken, broken_load, path) = (engine.clone(), load.clone(), fixture.path.clone());
    let broken_path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken").join(engine.name()).join(fixture.name);
    Subject::new(engine, fixture.path)
        .with_load(load)
        .with_prompts(prompts)
        .with_other_model(move || other.load(&other_source, &LoadOptions::default()))
        .with_faulty(points.iter().copied(), move |faults| Box::new(faulty(failing.clone(), faults)))
        .with_broken_weights(move || {
            break_weights(&path, &broken_path);
            broken.load(&broken_path.clone().into(), &broken_load)
        })
}

/// A checkpoint with a state that grows and one that does not; for engines that compile, one whose programs
/// are small.
fn mixed(engine: &dyn Backend) -> Fixture {
    Fixture::named(if crate::support::spares(engine) { "lfm2" } else { "qwen3_next" })
}

/// The suite on one checkpoint of each kind of state, for an engine that can be made to fail at `$points`.
/// `$thrifty` is the engine for all kinds but the first, if it compiles programs for each. The kinds after
/// `nightly` are held in a night only.
macro_rules! kinds {
    (
        $engine:ty, $new:expr, $thrifty:expr, $points:expr;
        $($kind:ident),+; nightly $($nightly_kind:ident),*
    ) => {
        use super::*;

        fn full() -> Subject<'static> {
            subject($new, &$points, <$engine>::with_faults, Fixture::storyteller())
        }

        fn thrifty(fixture: Fixture) -> Subject<'static> {
            subject($thrifty, &$points, <$engine>::with_faults, fixture)
        }

        fn windowed() -> Subject<'static> {
            thrifty(Fixture::named("mistral")).with_window(16).with_bounded_state(16)
        }

        fn latent() -> Subject<'static> {
            thrifty(Fixture::named("deepseek_v3"))
        }

        fn indexed() -> Subject<'static> {
            thrifty(Fixture::named("glm_moe_dsa"))
        }

        fn compressed() -> Subject<'static> {
            thrifty(Fixture::named("deepseek_v4"))
        }

        fn recurrent() -> Subject<'static> {
            thrifty(Fixture::named("mamba2")).with_bounded_state(1)
        }

        fn shifted() -> Subject<'static> {
            thrifty(Fixture::named("rwkv7")).with_bounded_state(1)
        }

        fn mixed() -> Subject<'static> {
            thrifty(super::mixed(&$thrifty))
        }

        $(mod $kind {
            use super::*;

            suite!(super::$kind(), Expectations::none());
        })+

        mod nightly {
            $(mod $nightly_kind {
                use super::super::*;

                suite!(super::super::$nightly_kind(), Expectations::none());
            })*
        }
    };
}

#[cfg(feature = "portable")]
mod portable {
    use mlxcel_session::portable::PortableBackend;

    kinds!(
        PortableBackend, PortableBackend::new(), PortableBackend::new(), FaultPoint::ALL;
        full, windowed, latent, recurrent, mixed; nightly indexed, compressed, shifted
    );
}

#[cfg(feature = "iree")]
mod iree {
    use mlxcel_session::iree::IreeBackend;

    // What sequences keep of each kind is `mlxcel-graph`'s, which the portable engine is held to, and the
    // programs of each are compared with oracles.
    kinds!(
        IreeBackend, IreeBackend::new().with_cache_dir(crate::support::cache_dir()), crate::support::iree(), FaultPoint::ALL;
        full, windowed; nightly latent, indexed, compressed, recurrent, shifted, mixed
    );
}

#[cfg(feature = "pjrt")]
mod pjrt {
    use mlxcel_conformance::run_all;
    use mlxcel_session::pjrt::PjrtBackend;

    use super::*;

    /// Each kind by one test, since there may be no plugin to hold. XLA compiles for a minute or more for
    /// each.
    fn hold(devices: usize, fixture: Fixture, narrow: fn(Subject<'static>) -> Subject<'static>) {
        let Some(engine) = crate::support::pjrt() else { return };
        let engine = engine.with_mesh(devices);
        let subject = narrow(subject(engine, &FaultPoint::ALL, PjrtBackend::with_faults, fixture));
        let report = run_all(&subject, &Expectations::none());
        assert!(report.passed(), "{report}");
    }

    #[test]
    fn full() {
        hold(1, Fixture::storyteller(), |subject| subject);
    }

    mod nightly {
        use super::*;

        #[test]
        fn full_on_two_devices() {
            hold(2, Fixture::named("qwen3"), |subject| subject);
        }

        #[test]
        fn windowed() {
            hold(1, Fixture::named("mistral"), |subject| subject.with_window(16).with_bounded_state(16));
        }

        #[test]
        fn latent() {
            hold(1, Fixture::named("deepseek_v3"), |subject| subject);
        }

        #[test]
        fn indexed() {
            hold(1, Fixture::named("glm_moe_dsa"), |subject| subject);
        }

        #[test]
        fn recurrent() {
            hold(1, Fixture::named("mamba2"), |subject| subject.with_bounded_state(1));
        }

        #[test]
        fn mixed() {
            let Some(engine) = crate::support::pjrt() else { return };
            hold(1, super::super::mixed(&engine), |subject| subject);
        }
    }
}

#[cfg(feature = "mlx")]
mod mlx {
    use mlxcel_session::mlx::MlxBackend;

    // Prompts are cut: by default a chunk is longer than the sequences here. Nothing is compiled, and nothing
    // is copied on the device before it is computed with. The tests of `mlxcel-mlx` hold each kind too.
    kinds!(
        MlxBackend,
        MlxBackend::new().with_prefill_chunk(24),
        MlxBackend::new().with_prefill_chunk(24),
        [FaultPoint::Allocation, FaultPoint::Dispatch, FaultPoint::ReadBack];
        full, windowed; nightly latent, indexed, compressed, recurrent, shifted, mixed
    );
}
