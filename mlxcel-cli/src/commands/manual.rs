//! Completions for shells, and manual pages.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::commands::definition;
use crate::report::Failure;

/// Print completions for a shell.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages: mlxcel.1, and one for each subcommand.
#[derive(Args)]
pub(crate) struct Pages {
    /// The folder to write, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn completions(arguments: &Completions) -> Result<(), Failure> {
    // Written whole, so that a reader who leaves is an error and not a panic.
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition(), "mlxcel", &mut text);
    Ok(io::Write::write_all(&mut io::stdout(), &text)?)
}

pub(crate) fn pages(arguments: &Pages) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let failed = |error: io::Error| Failure::Usage(format!("write {}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(definition(), folder).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_manual_page_with_the_exit_status() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("man1");
        pages(&Pages { folder: place.clone() }).unwrap();
        for command in definition().get_subcommands() {
            let page = fs::read_to_string(place.join(format!("mlxcel-{}.1", command.get_name()))).unwrap();
            assert!(page.contains("Exit status"), "{page}");
        }
    }
}
