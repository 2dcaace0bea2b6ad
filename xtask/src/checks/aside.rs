//! A check that runs beside the others, as a process of its own.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{Check, Done};
use crate::workspace::Workspace;

/// A check whose folder of compiled code is its own: it computes while another one waits for a single thread
/// of the compiler or the linker. What it prints is kept until its turn.
pub(super) struct Aside {
    pub(super) check: Check,
    process: Child,
    output: PathBuf,
}

impl Aside {
    pub(super) fn start(workspace: &Workspace, check: Check) -> Result<Self> {
        let folder = workspace.metadata()?.target_directory.into_std_path_buf();
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let output = folder.join(format!("{}.log", check.name()));
        let file = File::create(&output).with_context(|| format!("creating {}", output.display()))?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["test", "--only", &check.name()]).stdin(Stdio::null());
        command.stdout(file.try_clone().context("writing the output")?).stderr(file);
        let process = command.spawn().with_context(|| format!("starting the check {}", check.name()))?;
        Ok(Self { check, process, output })
    }

    /// Waits for its end, and prints what it printed.
    pub(super) fn finish(mut self) -> Result<Done> {
        let status = self.process.wait().context("waiting for the check")?;
        let text = fs::read(&self.output).with_context(|| format!("reading {}", self.output.display()))?;
        std::io::stderr().write_all(&text).context("writing to standard error")?;
        if !status.success() {
            bail!("its output stands above: {status}");
        }
        let text = String::from_utf8_lossy(&text);
        // The last line of a summary: the name, the outcome, the time, and the remark.
        let remark =
            text.lines().last().and_then(|line| line.split_once(" s  ")).map_or("", |(_, remark)| remark);
        Ok(Done::Checked(remark.trim().to_owned()))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // After `finish` it has ended, and neither call does anything.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
