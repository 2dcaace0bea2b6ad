//! Static programs: `tests-external/from-scratch`, linked with musl, opens a bundle of the bundled checkpoint
//! and writes the oracle's text. So it does in a folder with nothing else, if root runs the check.
//!
//! Continuous integration has rustup install the target's standard library.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use object::Object;

use super::Done;
use super::external::{External, MODEL};
use super::missing::{fetched_by_rustup, has_target, left_out};
use crate::process;
use crate::workspace::Workspace;

/// The folder below `tests-external/`.
pub(super) const PACKAGE: &str = "from-scratch";

/// Started several times: a defect in how threads start shows in some runs only.
const STARTS: usize = 10;

pub(super) fn check(workspace: &Workspace) -> Result<Done> {
    if !cfg!(target_os = "linux") {
        return Ok(Done::Unchecked("musl is a C library for Linux".to_owned()));
    }
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    if !has_target(&target) && !fetched_by_rustup(&["target", "add", &target])? {
        return Ok(Done::Unchecked(format!("the target is not installed: rustup target add {target}")));
    }
    if process::on_path("musl-gcc").is_none() {
        return left_out("there is no C compiler for musl: apt-get install musl-tools".to_owned());
    }
    let image = tempfile::tempdir().context("making a folder for the image")?;
    let bundle = image.path().join("model");
    let mut write = workspace.program("mlxcel", "programs")?;
    write.args(["bundle", "--precision", "exact", "--context", "128"]);
    write.arg("--model").arg(workspace.root().join(MODEL));
    process::run(write.arg("--out").arg(&bundle))?;

    let built = workspace.metadata()?.target_directory.into_std_path_buf();
    let package = External::prepare(workspace, PACKAGE, image.path(), &built)?;
    process::run(package.cargo("build").args(["--target", &target]))?;
    let program = image.path().join(PACKAGE);
    fs::copy(built.join(&target).join("debug").join(PACKAGE), &program).context("copying the program")?;
    is_static(&program)?;

    let expected = expected_text(workspace)?;
    let tells_the_story = |command: &mut Command| {
        let text = process::output(command)?;
        ensure!(text.trim() == expected, "it wrote {text:?} instead of {expected:?}");
        anyhow::Ok(())
    };
    (0..STARTS).try_for_each(|_| tells_the_story(Command::new(&program).arg(&bundle)))?;
    let is_root = process::output(Command::new("id").arg("-u")).is_ok_and(|user| user.trim() == "0");
    if !is_root {
        return Ok(Done::Checked(format!("{target}: the oracle's text; not without other files: not root")));
    }
    tells_the_story(Command::new("chroot").arg(image.path()).args([&format!("/{PACKAGE}"), "/model"]))
        .context("in a folder without other files")?;
    Ok(Done::Checked(format!("{target}: the oracle's text, without other files too")))
}

fn is_static(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("parsing {}", program.display()))?;
    if file.section_by_name(".interp").is_some() {
        bail!("{} is linked dynamically", program.display());
    }
    Ok(())
}

/// The answer to the program's question, by the checkpoint's oracle.
fn expected_text(workspace: &Workspace) -> Result<String> {
    let path = workspace.root().join(MODEL).join("oracle.json");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let oracle: serde_json::Value = serde_json::from_str(&text).context("parsing the oracle")?;
    let completion = oracle["cases"][0]["completion"].as_str();
    Ok(completion.context("the oracle's first case has no completion")?.trim().to_owned())
}
