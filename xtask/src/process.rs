//! Running other programs, with errors that say which one failed and how.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

/// The command as a person would type it: without its environment and the program's folder.
fn display(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let words: Vec<_> = [program].into_iter().chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// Runs `command` with this program's output streams; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| not_started(command))?;
    succeeded(command, status)
}

fn not_started(command: &Command) -> String {
    format!("`{}` could not be started", display(command))
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", display(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to standard output; the error of a failure holds its standard
/// error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| not_started(command))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", display(command), output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote no UTF-8", display(command)))
}

/// The first file of this name in a folder of PATH.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Runs `command`, passes each line of its standard output on and shows it to `see`.
pub(crate) fn run_watched(command: &mut Command, mut see: impl FnMut(&str)) -> Result<()> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| not_started(command))?;
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        // Bytes, not strings: what a test prints need not be UTF-8.
        while reader.read_until(b'\n', &mut line).context("reading a program's output")? > 0 {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            see(text.trim_end());
            line.clear();
        }
    }
    let status = child.wait().with_context(|| format!("waiting for `{}`", display(command)))?;
    succeeded(command, status)
}

/// Runs a cargo command, passes its JSON messages to `see`, and shows its diagnostics.
pub(crate) fn for_each_message(mut command: Command, mut see: impl FnMut(Message)) -> Result<()> {
    command.arg("--message-format=json").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("starting cargo")?;
    let mut output = BufReader::new(child.stdout.take().context("cargo has no output")?);
    for message in Message::parse_stream(&mut output) {
        let message = message.context("reading what cargo says")?;
        if let Message::CompilerMessage(own) = &message {
            eprint!("{}", own.message.rendered.as_deref().unwrap_or_default());
        }
        see(message);
    }
    // To the end, so that cargo never waits for a reader.
    output.read_to_end(&mut Vec::new()).context("reading what cargo says")?;
    let status = child.wait().context("waiting for cargo")?;
    if !status.success() {
        bail!("cargo failed ({status})");
    }
    Ok(())
}
