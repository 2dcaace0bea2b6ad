//! `release-notes`: what has to agree before a release is published.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::checks::is_published;
use crate::workspace::Workspace;

/// Which release.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The tag, such as v0.1.0
    tag: String,
}

/// Prints the changelog's text for the tag; an error if a published crate has another version, or the
/// changelog has no section for it.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let version = arguments.tag.strip_prefix('v').context("a tag is `v` and a version, such as v0.1.0")?;
    for package in workspace.metadata()?.workspace_packages() {
        if is_published(package) && package.version.to_string() != version {
            bail!("the tag is {}, and {} has version {}", arguments.tag, package.name, package.version);
        }
    }
    let changelog = workspace.root().join("CHANGELOG.md");
    let text = fs::read_to_string(&changelog).with_context(|| format!("reading {}", changelog.display()))?;
    let notes = section(&text, version).with_context(|| {
        format!("CHANGELOG.md has no section `## {version}` with text: rename `Unreleased` to the version")
    })?;
    println!("{notes}");
    Ok(())
}

/// The text below the heading `## VERSION`, which a date may follow.
fn section<'a>(changelog: &'a str, version: &str) -> Option<&'a str> {
    changelog.split("\n## ").skip(1).find_map(|section| {
        let (heading, text) = section.split_once('\n')?;
        (heading.split_whitespace().next() == Some(version) && !text.trim().is_empty()).then_some(text.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_a_version_is_found() {
        let text =
            "# Changelog\n\n## Unreleased\n\nnew\n\n## 0.1.0 (2026-12-01)\n\n### Added\n\n- a\n\n## 0.0.1\n";
        assert_eq!(section(text, "0.1.0"), Some("### Added\n\n- a"));
        assert_eq!(section(text, "0.1"), None);
        assert_eq!(section(text, "0.0.1"), None);
    }
}
