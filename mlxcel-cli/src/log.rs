//! Events of the libraries, on standard error.

use std::{env, io};

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::prelude::*;

use crate::report::Failure;

/// The variable that chooses events; RUST_LOG if it is not set.
const LOG: &str = "MLXCEL_LOG";

/// Prints the events that the environment asks for; none by default, as errors are one line.
///
/// # Errors
///
/// A failure that names the variable if it is no list of targets and levels.
pub(crate) fn to_stderr() -> Result<(), Failure> {
    let Some(targets) = targets()? else { return Ok(()) };
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).without_time();
    // If standard error cannot be written, there is nowhere to report.
    let layer = layer.log_internal_errors(false).with_filter(targets);
    tracing_subscriber::registry().with(layer).init();
    Ok(())
}

fn targets() -> Result<Option<Targets>, Failure> {
    let set = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    let Some(own) = set(LOG) else {
        // It is for other programs too, some of which know more than targets and levels.
        return Ok(set("RUST_LOG").and_then(|common| common.parse().ok()));
    };
    own.parse().map(Some).map_err(|error: ParseError| {
        Failure::Usage(format!("{LOG}: {error}; use such as mlxcel=debug or off"))
    })
}
