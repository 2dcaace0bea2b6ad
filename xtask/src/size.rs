//! `size`: how large an application becomes, for each feature set of `mlxcel-session`.
//!
//! The same program is built with each in release mode and stripped. The first line, a program without the
//! crate, is what Rust itself takes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::checks::in_ci;
use crate::workspace::{Workspace, cargo_program};
use crate::{process, setup};

/// What to do with the sizes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also write them into docs/internals/binary-size.md
    #[arg(long)]
    write: bool,
}

/// Where they are kept, relative to the repository, and the lines around them there.
const PAGE: &str = "docs/internals/binary-size.md";
const BEGIN: &str = "<!-- `cargo xtask size --write` writes this table -->\n";
const END: &str = "<!-- end of the table -->\n";

/// What is built: a name for people, and the features; without features, a program that does not use the
/// crate.
const PROGRAMS: [(&str, Option<&str>); 7] = [
    ("nothing", None),
    ("`portable` (default)", Some("portable")),
    ("`iree-runtime`: opens bundles", Some("iree-runtime")),
    ("`iree`", Some("iree")),
    ("`pjrt`", Some("pjrt")),
    ("`mlx` (without libmlx, which is a shared library)", Some("mlx")),
    ("`portable`, `iree`, `pjrt` and `mlx`", Some("portable,iree,pjrt,mlx")),
];

const NOTHING: &str = "fn main() { println!(\"hello\"); }\n";
/// Answers a question; every engine that is compiled in can be chosen.
const HELLO: &str = r#"use mlxcel_session::{Message, Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(std::env::args().nth(1).ok_or("usage: hello FOLDER")?)?;
    for piece in model.chat(&[Message::user("Hello!")], &Options::new(64))? {
        print!("{}", piece?);
    }
    Ok(())
}
"#;

/// Builds the programs and prints the table.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    setup::run(workspace)?;
    let target = workspace.metadata()?.target_directory.into_std_path_buf().join("size");
    let mut table = String::from("| features | megabytes |\n|---|---|\n");
    for (name, features) in PROGRAMS {
        let bytes =
            build(workspace, &target, features).with_context(|| format!("the program with {name}"))?;
        eprintln!("{name}: {bytes} bytes");
        writeln!(table, "| {name} | {:.1} |", bytes as f64 / 1e6).context("writing the table")?;
    }
    println!("{table}");
    if in_ci() {
        // Where GitHub shows it beside the run.
        if let Some(summary) = std::env::var_os("GITHUB_STEP_SUMMARY") {
            fs::write(summary, &table).context("writing the summary of the run")?;
        }
    }
    if arguments.write {
        write_page(&workspace.root().join(PAGE), &table)?;
    }
    Ok(())
}

/// Builds one program and gives its size in bytes.
fn build(workspace: &Workspace, target: &Path, features: Option<&str>) -> Result<u64> {
    let project = target.join("hello");
    fs::create_dir_all(project.join("src")).with_context(|| format!("making {}", project.display()))?;
    let mut manifest =
        "[package]\nname = \"hello\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
                        [profile.release]\nstrip = true\n"
            .to_owned();
    if let Some(features) = features {
        let list = features.split(',').map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let path = workspace.root().join("mlxcel-session");
        manifest.push_str(&format!(
            "\n[dependencies]\nmlxcel-session = {{ path = '{}', default-features = false, features = [{list}] }}\n",
            path.display()
        ));
    }
    let program = if features.is_some() { HELLO } else { NOTHING };
    // The versions that the workspace is tested with; cargo drops what is not needed.
    fs::write(project.join("Cargo.toml"), manifest)
        .and_then(|()| fs::write(project.join("src/main.rs"), program))
        .and_then(|()| fs::copy(workspace.root().join("Cargo.lock"), project.join("Cargo.lock")))
        .with_context(|| format!("writing into {}", project.display()))?;
    let mut command = std::process::Command::new(cargo_program());
    command.args(["build", "--quiet", "--release"]).current_dir(&project).env("CARGO_TARGET_DIR", target);
    if std::env::var_os("MLXCEL_MLX_DIR").is_none() {
        command.env("MLXCEL_MLX_DIR", workspace.toolchain().join("mlx"));
    }
    process::run(&mut command)?;
    let program = target.join("release").join(format!("hello{}", std::env::consts::EXE_SUFFIX));
    Ok(program.metadata().with_context(|| format!("reading {}", program.display()))?.len())
}

fn write_page(page: &Path, table: &str) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let replaced =
        replace(&text, table).with_context(|| format!("{} has no place for the table", page.display()))?;
    fs::write(page, replaced).with_context(|| format!("writing {}", page.display()))
}

fn replace(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_the_table_keeps_the_rest_of_the_page() {
        let page = include_str!("../../docs/internals/binary-size.md");
        let once = replace(page, "| a |\n").unwrap();
        assert!(once.contains("| a |") && once.len() < page.len());
        assert_eq!(replace(&once, "| a |\n").unwrap(), once);
        assert_eq!(replace("no table", ""), None);
    }
}
