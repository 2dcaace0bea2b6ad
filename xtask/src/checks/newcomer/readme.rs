//! README's first lines, run in an empty folder.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::Machine;
use crate::process;
use crate::setup::symlink;
use crate::workspace::Workspace;

/// The line that a newcomer types.
const ADD: &str = "cargo add mlxcel-session";

/// Runs the console block of README that adds the crate, and then the program that follows it, on the bundled
/// model; the project, and how long each stage took.
pub(super) fn run(workspace: &Workspace, machine: &Machine) -> Result<(PathBuf, String)> {
    let readme = workspace.root().join("README.md");
    let text = fs::read_to_string(&readme).with_context(|| format!("reading {}", readme.display()))?;
    let lines = Lines::of(&text)?;
    let project = machine.new_project("readme")?;
    process::run(machine.command(Path::new("/bin/sh"), &project).arg("-ec").arg(lines.console))
        .context("README's lines")?;
    fs::write(project.join("src/main.rs"), lines.program).context("writing README's program")?;

    let model = project.join(lines.model);
    fs::create_dir_all(model.parent().context("README's model has no folder")?)
        .and_then(|()| symlink(&machine.model, &model))
        .context("putting a model where README has one")?;
    let start = Instant::now();
    let build = || process::run(machine.cargo(&project).args(["build", "--quiet"]));
    build().context("building README's program")?;
    let built = start.elapsed().as_secs_f64();
    let program = || machine.command(&machine.built("readme"), &project);
    let said = process::output(&mut program()).context("README's program")?;
    if said.trim().is_empty() {
        bail!("README's program printed nothing");
    }

    fs::write(project.join("src/main.rs"), lines.marked()?).context("writing README's program with marks")?;
    build().context("building README's program with marks")?;
    let [opened, began, ended] = seconds(program()).context("timing README's program")?;
    let times = format!(
        "built in {built:.1} s, opened in {opened:.2} s, first text after {began:.2} s, answered in {ended:.2} s"
    );
    Ok((project, times))
}

/// How long after its start a program writes its first and its second byte on standard error, and ends.
fn seconds(mut program: Command) -> Result<[f64; 3]> {
    let start = Instant::now();
    let mut child = program.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut marks = child.stderr.take().context("the program has no standard error")?;
    let mut until = |bytes: &mut [u8]| marks.read_exact(bytes).map(|()| start.elapsed().as_secs_f64());
    let (opened, began) = (until(&mut [0])?, until(&mut [0])?);
    marks.read_to_end(&mut Vec::new())?;
    let ended = start.elapsed().as_secs_f64();
    if !child.wait()?.success() {
        bail!("it failed");
    }
    Ok([opened, began, ended])
}

/// What README tells a newcomer to type.
#[derive(Debug, PartialEq, Eq)]
struct Lines<'a> {
    console: &'a str,
    program: &'a str,
    /// The path that the program opens.
    model: &'a str,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Result<Self> {
        let mut blocks = blocks(text);
        let adds = |content: &str| content.lines().any(|line| line.trim() == ADD);
        let (_, console) = blocks
            .find(|(language, content)| *language == "console" && adds(content))
            .with_context(|| format!("README has no console block with `{ADD}`"))?;
        let (_, program) = blocks
            .find(|(language, _)| language.starts_with("rust"))
            .context("README has no program after that block")?;
        let (_, rest) = program.split_once("Model::open(\"").context("README's program opens no model")?;
        let (model, _) = rest.split_once('"').context("README's program has an open string")?;
        Ok(Self { console, program, model })
    }

    /// The program, which writes to standard error at once: a point when its model is open, and then its
    /// answer.
    fn marked(&self) -> Result<String> {
        let opens = self.program.lines().find(|line| line.contains("Model::open(\"") && line.ends_with(';'));
        let opens = opens.context("README's program opens no model in a line of its own")?;
        let marked = self.program.replace(opens, &format!("{opens} eprint!(\".\");"));
        Ok(marked.replace(" print!(", " eprint!("))
    }
}

/// The languages and contents of the fenced blocks.
fn blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cargo_add_block_and_the_program_after_it_are_extracted() {
        let text = "# a\n\n```console\ngit clone x\n```\n\n```console\ncargo add mlxcel-session\n```\n\n```rust,no_run\n\
                    let model = Model::open(\"models/a\")?;\n```\n\n```rust\nother()\n```\n";
        let lines = Lines::of(text).unwrap();
        assert_eq!(lines.console, "cargo add mlxcel-session");
        assert_eq!((lines.program, lines.model), ("let model = Model::open(\"models/a\")?;", "models/a"));
        assert!(Lines::of("```console\nls\n```").is_err());
    }

    #[test]
    fn the_readme_contains_a_quickstart() {
        let lines = Lines::of(include_str!("../../../../README.md")).unwrap();
        assert_eq!(lines.marked().unwrap().matches("eprint!(").count(), 2);
    }
}
