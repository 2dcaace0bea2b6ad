//! The manifest of a bundle that its caller trusts.

use std::cell::OnceCell;
use std::fs;

use mlxcel_core::{Backend, LoadOptions, Precision, Result};
use mlxcel_iree::IreeBackend;
use mlxcel_iree::bundle::{Bundle, BundleOptions, STABLEHLO, write};
use tempfile::TempDir;

use super::place::fixture;
use crate::outcome::Outcome;
use crate::target::Target;

pub(super) const TARGET: Target = Target {
    name: "bundle",
    about: "bundle.json of a bundle as text: opened, shown, verified, loaded without a compiler, trusted and not",
    run,
    memory: 128,
    seconds: 10,
    longest: 256 << 10,
    seeds,
    ..Target::USUAL
};

thread_local! {
    static PLACE: OnceCell<Option<TempDir>> = const { OnceCell::new() };
}

fn engine() -> IreeBackend {
    IreeBackend::new().with_compiler("/there/is/no/iree-compile").with_cache_dir("/proc/no/cache")
}

/// The bundle, and the text of its manifest as it was written.
fn written() -> Result<(TempDir, Vec<u8>)> {
    let place = tempfile::tempdir().map_err(|error| {
        mlxcel_core::Error::new(mlxcel_core::ErrorKind::Io, "fuzz", "no folder").with_source(error)
    })?;
    let folder = place.path().join("bundle");
    let load = LoadOptions::default().with_precision(Precision::Exact).with_capacity(150);
    let options = BundleOptions::from(load).with_targets([STABLEHLO]);
    write(&engine(), &fixture("llama").into(), &folder, &options)?;
    let text = fs::read(folder.join("bundle.json")).unwrap_or_default();
    Ok((place, text))
}

fn run(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        let Some(place) = place.get_or_init(|| written().ok().map(|(place, _)| place)) else {
            return Outcome::new("no bundle");
        };
        let folder = place.path().join("bundle");
        if fs::write(folder.join("bundle.json"), input).is_err() {
            return Outcome::new("no place");
        }
        let opened = Bundle::open(&folder).and_then(|bundle| {
            let shown = bundle.manifest().to_string();
            bundle.verify()?;
            Ok(Outcome::new(shown))
        });
        let options = LoadOptions::default().with_precision(Precision::Exact).with_capacity(16);
        let loads = [engine().with_trusted_bundle(&folder), engine()];
        let loads = loads
            .iter()
            .map(|engine| engine.load(&folder.as_path().into(), &options).map(|_| Outcome::new("loaded")));
        let all = std::iter::once(opened).chain(loads);
        all.map(Outcome::of).reduce(Outcome::then).unwrap_or_default()
    })
}

fn seeds() -> Vec<Vec<u8>> {
    written().map(|(_, text)| text).into_iter().collect()
}
