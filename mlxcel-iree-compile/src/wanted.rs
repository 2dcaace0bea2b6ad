//! Load options that affect programs.

use mlxcel_core::{Error, ErrorKind, LoadOptions, Prepare, Result};
use mlxcel_graph::GraphModelOptions;
use mlxcel_iree_target::{DeviceDescription, ProgramOptions};

/// The device that is compiled for by default: this machine's processor.
pub(crate) fn here() -> DeviceDescription {
    DeviceDescription::of_driver("local-task")
}

/// The programs of a model that will be opened with `load`, by an engine with the options `wanted`; for one
/// sequence where nothing is said.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for options that do not affect programs, so that a caller does not expect an
/// effect.
pub(crate) fn graph_options(
    load: &LoadOptions,
    wanted: &ProgramOptions,
    operation: &'static str,
) -> Result<GraphModelOptions> {
    let running = [
        ("threads", load.threads.is_some()),
        ("device", load.device.is_some()),
        ("prepare", load.prepare != Prepare::default()),
    ];
    if let Some((field, _)) = running.into_iter().find(|(_, is_given)| *is_given) {
        let message = "the option applies when a model runs, not when its programs are compiled; pass it when opening the model";
        return Err(Error::new(ErrorKind::InvalidInput, operation, message).with_context("field", field));
    }
    let mut graph = GraphModelOptions::from(load);
    graph.sequences = load.sequences.unwrap_or(1);
    graph.kv_cache = wanted.kv_cache;
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_options_are_rejected_by_name() {
        let wanted = ProgramOptions::default();
        let graph = |load: LoadOptions| graph_options(&load, &wanted, "test");
        let load = LoadOptions::default().with_capacity(150);
        let found = graph(load.clone()).unwrap();
        assert_eq!((found.capacity, found.sequences), (Some(150), 1));
        assert_eq!(graph(load.clone().with_sequences(3)).unwrap().sequences, 3);
        for (load, field) in [
            (load.clone().with_threads(2), "threads"),
            (load.clone().with_device("local-sync"), "device"),
            (load.with_prepare(Prepare::Everything), "prepare"),
        ] {
            let error = graph(load).unwrap_err();
            assert_eq!((error.kind(), error.context("field")), (ErrorKind::InvalidInput, Some(field)));
        }
        let room = Some(mlxcel_core::AdapterLimits::new(1, 8));
        let mut adapters = LoadOptions::default();
        adapters.adapters = room;
        assert_eq!(graph(adapters).unwrap().adapters, room);
    }
}
