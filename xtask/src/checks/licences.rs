//! Licences and sources of the dependencies, held against `deny.toml`.
//!
//! cargo-deny does it where it is installed. Else the part that needs no knowledge from outside is done here from
//! the same file: each licence expression must be satisfied by what `[licenses]` allows, and each package must come
//! from crates.io. Known vulnerabilities (`cargo deny check advisories`) change without a change of ours, so they
//! are the matter of a job of the hosted workflow and no part of this check.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use cargo_metadata::Package;
use spdx::{Expression, Licensee, ParseMode};

use crate::process;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    if process::output(Command::new("cargo-deny").arg("--version")).is_ok() {
        process::run(&mut workspace.cargo(&[
            "deny",
            "--all-features",
            "check",
            "bans",
            "licenses",
            "sources",
        ]))?;
        return Ok("by cargo-deny".to_owned());
    }
    let path = workspace.root().join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let policy = Policy::parse(&text).with_context(|| format!("in {}", path.display()))?;

    let metadata = workspace.metadata()?;
    let foreign: Vec<_> = metadata.packages.iter().filter(|package| package.source.is_some()).collect();
    let defects: Vec<_> = foreign.iter().filter_map(|package| policy.defect(package)).collect();
    if !defects.is_empty() {
        for defect in &defects {
            eprintln!("{defect}");
        }
        bail!("{} packages do not keep to deny.toml", defects.len());
    }
    Ok(format!(
        "licences and sources of {} packages, without cargo-deny, which is not installed",
        foreign.len()
    ))
}

/// What `deny.toml` allows.
struct Policy {
    licences: Vec<Licensee>,
    /// More licences, for single packages.
    exceptions: BTreeMap<String, Vec<Licensee>>,
}

impl Policy {
    fn parse(text: &str) -> Result<Self> {
        let document: toml::Table = text.parse()?;
        let section = document.get("licenses").context("no [licenses]")?;
        let licences = licensees(section.get("allow").context("no `allow` in [licenses]")?)?;
        let mut exceptions = BTreeMap::new();
        for exception in section.get("exceptions").and_then(toml::Value::as_array).into_iter().flatten() {
            let name = exception
                .get("crate")
                .and_then(toml::Value::as_str)
                .context("an exception has no `crate`")?;
            let allowed = exception.get("allow").context("an exception has no `allow`")?;
            exceptions.insert(name.to_owned(), licensees(allowed)?);
        }
        Ok(Self { licences, exceptions })
    }

    /// What is wrong with a package, if something is.
    fn defect(&self, package: &Package) -> Option<String> {
        let named = format!("{} {}", package.name, package.version);
        if !package.source.as_ref().is_some_and(cargo_metadata::Source::is_crates_io) {
            return Some(format!("{named} does not come from crates.io"));
        }
        let Some(licence) = &package.license else { return Some(format!("{named} states no licence")) };
        match self.allows(&package.name, licence) {
            Ok(true) => None,
            Ok(false) => Some(format!("{named}: `{licence}` is not allowed")),
            Err(error) => Some(format!("{named}: `{licence}`: {error}")),
        }
    }

    fn allows(&self, package: &str, licence: &str) -> Result<bool> {
        // Old packages write `MIT/Apache-2.0`.
        let expression = Expression::parse_mode(licence, ParseMode::LAX)?;
        let more = self.exceptions.get(package).map(Vec::as_slice).unwrap_or_default();
        Ok(expression.evaluate(|required| {
            self.licences.iter().chain(more).any(|licensee| licensee.satisfies(required))
        }))
    }
}

fn licensees(list: &toml::Value) -> Result<Vec<Licensee>> {
    let list = list.as_array().context("`allow` is no list")?;
    list.iter()
        .map(|entry| {
            let name = entry.as_str().context("an allowed licence is no string")?;
            Licensee::parse(name).with_context(|| format!("`{name}` is no SPDX licence"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_held_against_the_policy() {
        let policy = Policy::parse(
            r#"
            [licenses]
            allow = ["MIT", "Apache-2.0 WITH LLVM-exception"]
            exceptions = [{ allow = ["Unicode-3.0"], crate = "unicode-ident" }]
            "#,
        )
        .unwrap();
        assert!(policy.allows("a", "MIT OR GPL-3.0-only").unwrap());
        assert!(policy.allows("a", "MIT/Apache-2.0").unwrap());
        assert!(!policy.allows("a", "MIT AND GPL-3.0-only").unwrap());
        assert!(!policy.allows("a", "Apache-2.0").unwrap());
        assert!(policy.allows("a", "Apache-2.0 WITH LLVM-exception").unwrap());
        assert!(policy.allows("unicode-ident", "(MIT OR Apache-2.0) AND Unicode-3.0").unwrap());
        assert!(!policy.allows("b", "MIT AND Unicode-3.0").unwrap());
        assert!(policy.allows("b", "no licence at all").is_err());
    }

    #[test]
    fn the_policy_of_the_repository_is_readable() {
        let policy = Policy::parse(include_str!("../../../deny.toml")).unwrap();
        assert!(policy.allows("a", "MIT OR Apache-2.0").unwrap());
        assert!(!policy.allows("a", "GPL-3.0-only").unwrap());
    }
}
