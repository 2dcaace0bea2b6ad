//! How a program ends: its exit status, and one line about what went wrong.

use std::error::Error as StdError;
use std::io::{self, Write};
use std::process::ExitCode;

use mlxcel_core::Printable;
use mlxcel_session::{Error, ErrorKind};

/// Why a program did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The library's error.
    Library(Error),
    /// The output could not be written.
    Output(io::Error),
    /// The arguments are invalid, in words.
    Usage(String),
    /// The program did its work and found something wrong, in words.
    Finding(String),
}

/// Reads the arguments, runs the program with them and ends it as [`exit`] does. A program that is ended by a signal removes what
/// it had half made.
pub fn launch<A: clap::Parser>(run: impl FnOnce(A) -> Result<(), Failure>) -> ExitCode {
    launch_until(|arguments| {
        #[cfg(unix)]
        crate::signals::clean_up_on_signals(&crate::Interrupt::default());
        run(arguments)
    })
}

/// As [`launch`], for a program that listens to signals itself, and ends in order when one comes.
pub fn launch_until<A: clap::Parser>(run: impl FnOnce(A) -> Result<(), Failure>) -> ExitCode {
    match A::try_parse() {
        Ok(arguments) => exit(run(arguments)),
        // Help and version are not errors.
        Err(answer) if !answer.use_stderr() => exit(answer.print().map_err(Failure::from)),
        Err(error) => exit(Err(error.into())),
    }
}

/// Writes `value` as JSON on a line of its own.
pub fn json_line(mut out: impl io::Write, value: &impl serde::Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
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
        // The error comes first, then usage and hints.
        let text = error.render().to_string();
        let what = text.split("\n\nUsage:").next().unwrap_or(&text);
        let what = what.split("\n\nFor more information").next().unwrap_or(what);
        Self::Usage(what.trim_start_matches("error: ").to_owned())
    }
}

impl Failure {
    /// 2 for invalid arguments or input, 1 for other errors.
    pub fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Output(_) | Self::Finding(_) => 1,
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
            Self::Library(error) => one_line(error),
        }
    }
}

/// The exit status of a program that ended with `result`, after one line on standard error where it failed. A reader that
/// closed the other end of a pipe has had enough: no failure.
pub fn exit(result: Result<(), Failure>) -> ExitCode {
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

/// An error and its causes on one line, separated by colons.
pub fn one_line(error: &dyn StdError) -> String {
    let mut line = joined(&error.to_string());
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(": ");
        line.push_str(&joined(&cause.to_string()));
        source = cause.source();
    }
    line
}

/// `text` without line breaks, and without what would steer the terminal.
fn joined(text: &str) -> String {
    Printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_print_with_their_causes_on_one_line() {
        let error = Error::new(ErrorKind::Corrupt, "open checkpoint", "it is cut")
            .with_context("path", "a/b")
            .with_source("line 1\n  line 2");
        assert_eq!(one_line(&error), "open checkpoint: it is cut (path: a/b): line 1 line 2");
        let error = error.with_source(format!("\u{1b}[31m{}", "x".repeat(1 << 20)));
        let line = one_line(&error);
        assert!(line.contains("\\u{1b}[31mxxx") && line.len() < 3000, "{line}");
    }

    #[test]
    fn invalid_input_exits_with_2_and_other_errors_with_1() {
        let status = |kind| Failure::from(Error::new(kind, "x", "y")).status();
        assert_eq!(status(ErrorKind::NotFound), 2);
        assert_eq!(status(ErrorKind::Toolchain), 1);
        assert_eq!(status(ErrorKind::Device), 1);
    }
}
