//! How a subcommand ends: its exit status, and one line about what went wrong.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use mlxcel_session::mlxcel_core::{Printable, one_line};
use mlxcel_session::{Error, ErrorKind, TokenId, TokenLogprob};

/// Why a program did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    Library(Error),
    /// The output could not be written.
    Output(io::Error),
    /// The arguments are invalid, in words.
    Usage(String),
    /// The program did its work and found something wrong, in words.
    Finding(String),
}

/// Writes `value` as JSON on a line of its own.
pub(crate) fn json_line(mut out: impl io::Write, value: &impl serde::Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Serialises a path, which need not be UTF-8, as it is shown.
pub(crate) fn shown<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// One of the most likely tokens at a place.
#[derive(serde::Serialize)]
pub(crate) struct Likely {
    token: TokenId,
    logprob: f32,
}

impl From<&TokenLogprob> for Likely {
    fn from(&TokenLogprob { token, logprob, .. }: &TokenLogprob) -> Self {
        Self { token, logprob }
    }
}

/// Prints a result: as JSON, or as the text that `write` makes of it.
pub(crate) fn print<T: serde::Serialize>(
    json: bool,
    result: &T,
    write: impl FnOnce(&mut io::StdoutLock<'_>, &T) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json {
        json_line(&mut out, result)?;
    } else {
        write(&mut out, result)?;
    }
    Ok(out.flush()?)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Usage(clap_message(&error))
    }
}

/// What is wrong, without usage and hints, which follow it.
pub(crate) fn clap_message(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let what = text.split("\n\nUsage:").next().unwrap_or(&text);
    let what = what.split("\n\nFor more information").next().unwrap_or(what);
    what.trim_start_matches("error: ").to_owned()
}

impl Failure {
    /// 2 for invalid arguments or input, 1 for other errors.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Output(_) | Self::Finding(_) => 1,
            Self::Library(error) if is_cache(error) => 1,
            Self::Library(error) => match error.kind() {
                ErrorKind::InvalidInput
                | ErrorKind::NotFound
                | ErrorKind::Corrupt
                | ErrorKind::Unsupported
                | ErrorKind::CapacityExceeded => 2,
                _ => 1,
            },
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Usage(text) | Self::Finding(text) => joined(text),
            Self::Output(error) => format!("write output: {}", one_line(error)),
            Self::Library(error) => worded(error),
        }
    }

    /// The failure with the place in the configuration file that it comes from, if `find` finds one for its
    /// text.
    #[must_use]
    pub(crate) fn with_origin(self, find: impl FnOnce(&str) -> Option<String>) -> Self {
        let Some(origin) = find(&self.line()) else { return self };
        match self {
            Self::Usage(text) => Self::Usage(format!("{text} (from {origin})")),
            Self::Library(error) => Self::Library(error.with_context("from", origin)),
            other => other,
        }
    }
}

/// Rejects a file or folder to write that exists; `way_out` says what replaces it.
pub(crate) fn expect_new(out: &Path, way_out: &str) -> Result<(), Failure> {
    match out.symlink_metadata() {
        Ok(_) => Err(Failure::Usage(format!("--out {}: the path already exists; {way_out}", out.display()))),
        // What cannot be looked at is reported when it is written.
        Err(_) => Ok(()),
    }
}

/// Rejects a folder of --dir that does not exist.
pub(crate) fn expect_folder(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::Usage(format!("--dir {}: there is no such folder", folder.display())))
}

/// Prints a note on standard error.
pub(crate) fn note(words: &str) {
    // If standard error cannot be written either, there is nowhere to report.
    let _ = writeln!(io::stderr(), "note: {words}");
}

/// The exit status of a program that ended with `result`, after one line on standard error where it failed. A
/// reader that closed the other end of a pipe has had enough: no failure.
pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            // If standard error cannot be written either, there is nowhere to report.
            let _ = writeln!(io::stderr(), "error: {}", failure.line());
            ExitCode::from(failure.status())
        }
    }
}

/// The options that set fields which the library names.
const OPTIONS: [&str; 12] = [
    "context", "shard_size", "stride", "threads", "device", "sequences", "adapter_slots", "bits",
    "group_size", "logit_bias", "allowed_tokens", "forbidden_tokens",
];

/// The library's error, with the option that sets the field it is about.
fn worded(error: &Error) -> String {
    let line = own_features(&one_line(error));
    let field = error.context("field").filter(|_| error.kind() == ErrorKind::InvalidInput);
    let option = field.map(|field| match field {
        "capacity" => "context",
        "shard_bytes" => "shard_size",
        own => own,
    });
    match option.filter(|option| OPTIONS.contains(option)) {
        Some(option) => format!("--{}: {line}", option.replace('_', "-")),
        None if is_cache(error) => format!("{line}; set MLXCEL_CACHE_DIR to a folder that can be written"),
        None => line,
    }
}

/// Whether the cache of compiled programs cannot be written.
fn is_cache(error: &Error) -> bool {
    error.operation() == "store compiled programs in the cache folder"
}

/// `text` with the features of this program in place of those of the libraries, which have the same names.
pub(crate) fn own_features(text: &str) -> String {
    text.replace("mlxcel-session or mlxcel-iree", "mlxcel-cli")
        .replace("` of mlxcel-session", "` of mlxcel-cli")
}

/// `text` without line breaks, and without what would steer the terminal.
fn joined(text: &str) -> String {
    Printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_input_exits_with_2_and_other_errors_with_1() {
        let status = |kind| Failure::from(Error::new(kind, "x", "y")).status();
        assert_eq!(status(ErrorKind::NotFound), 2);
        assert_eq!(status(ErrorKind::Toolchain), 1);
        assert_eq!(status(ErrorKind::Device), 1);
    }
}
