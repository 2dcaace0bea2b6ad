//! The server, driven by clients for Python: OpenAI's and Anthropic's own, frameworks that are clients of
//! OpenAI's API, and a browser.
//!
//! The clients come from PyPI, and are installed when a check first runs, not by `setup`. The browser is the
//! system's.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Done;
use super::bundle::without_wheels;
use super::missing::left_out;
use crate::process;
use crate::setup::{Packages, find_python};
use crate::workspace::Workspace;

/// Clients that drive the server.
struct Clients {
    packages: Packages<'static>,
    scripts: &'static [&'static str],
}

const OFFICIAL: Clients = Clients {
    packages: Packages::new(
        "clients",
        "tests-external/clients/requirements.txt",
        "OpenAI's and Anthropic's clients (about 10 MB)",
    ),
    scripts: &["tests-external/clients/drive_openai.py", "tests-external/clients/drive_anthropic.py"],
};

const FRAMEWORKS: Clients = Clients {
    packages: Packages::new(
        "frameworks",
        "tests-external/clients/frameworks.txt",
        "LangChain, LlamaIndex, OpenAI's Agents SDK and lm-eval (about 100 MB)",
    ),
    scripts: &["tests-external/clients/drive_frameworks.py"],
};

const PAGE: Clients = Clients {
    packages: Packages::new(
        "page",
        "tests-external/clients/page.txt",
        "Playwright, which drives a browser (about 45 MB)",
    ),
    scripts: &["tests-external/clients/drive_page.py"],
};

/// Programs that are Chromium, the smallest first.
const BROWSERS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// By OpenAI's and Anthropic's own clients.
pub(super) fn by_official_clients(workspace: &Workspace) -> Result<Done> {
    drive(workspace, &OFFICIAL, None)
}

/// By frameworks.
pub(super) fn by_frameworks(workspace: &Workspace) -> Result<Done> {
    drive(workspace, &FRAMEWORKS, None)
}

/// By its page, in a browser.
pub(super) fn by_page(workspace: &Workspace) -> Result<Done> {
    let Some(browser) = BROWSERS.into_iter().find_map(process::on_path) else {
        return Ok(Done::Unchecked(format!("there is no Chromium (`apt install {}`)", BROWSERS[0])));
    };
    drive(workspace, &PAGE, Some(browser))
}

fn drive(
    workspace: &Workspace,
    Clients { packages, scripts }: &Clients,
    browser: Option<PathBuf>,
) -> Result<Done> {
    let python = find_python()?;
    if let Some(reason) = without_wheels(&python)? {
        return left_out(reason);
    }
    let packages = packages.install(workspace)?;
    let mut start = workspace.program("mlxcel", "programs")?;
    start.args(["serve", "--port", "0", "--backend", "portable"]);
    let server = Server::start(&mut start)?;
    let mut said = Vec::new();
    for script in *scripts {
        let mut drive = Command::new(&python);
        drive.arg(workspace.root().join(script)).arg(&server.address);
        drive.env("PYTHONPATH", &packages).env("PYTHONNOUSERSITE", "1");
        // A proxy of this machine does not lead to its loopback.
        drive.env("NO_PROXY", "*");
        if let Some(browser) = &browser {
            drive.env("CHROMIUM", browser);
        }
        match process::output(&mut drive)?.trim() {
            "" => bail!("{script} checked nothing"),
            checked => said.push(checked.to_owned()),
        }
    }
    Ok(Done::Checked(said.join(", ")))
}

/// A running server, ended when this is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("starting the server")?;
        let mut address = String::new();
        let stdout = child.stdout.take();
        let server = |address: String| Self { child, address };
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut address).context("reading the server's address")?;
        }
        let server = server(address.trim().to_owned());
        if !server.address.starts_with("http://") {
            bail!("the server did not start");
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
