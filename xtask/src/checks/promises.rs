//! The regression tests that the page on hardening names, as `folder/file.rs::name`: each exists, and each
//! line of its table of defects has one.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

const FILE: &str = "docs/internals/hardening.md";

/// Named tests that do not exist, and lines without tests.
pub(super) fn defects(workspace: &Workspace) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.root().join(FILE)).with_context(|| format!("reading {FILE}"))?;
    let mut defects = Vec::new();
    if lines(&text).next().is_none() {
        defects.push(format!("{FILE} has no table of defects with their regression tests"));
    }
    for (line, tests) in lines(&text) {
        if tests.is_empty() {
            defects.push(format!("{FILE} names no test for: {line}"));
        }
        for (file, name) in tests {
            let source = fs::read_to_string(workspace.root().join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {name}(")) {
                defects.push(format!("{FILE} names {file}::{name}, which does not exist"));
            }
        }
    }
    Ok(defects)
}

/// The lines of the table of defects, each with the files and names of its tests.
fn lines(text: &str) -> impl Iterator<Item = (&str, Vec<(&str, &str)>)> {
    let table = text.lines().skip_while(|line| *line != "| defect | regression tests |").skip(2);
    table.take_while(|line| line.starts_with('|')).filter_map(|line| {
        let (what, held_by) = line.trim_matches('|').split_once('|')?;
        let names = held_by.split('`').skip(1).step_by(2);
        Some((what.trim(), names.filter_map(|name| name.split_once(".rs::").map(|_| split(name))).collect()))
    })
}

/// `folder/file.rs::name` as file and name.
fn split(test: &str) -> (&str, &str) {
    test.split_once("::").unwrap_or((test, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_paths_are_read_from_the_table() {
        let text = "| input | trusted |\n|---|---|\n| x | `a.rs::b` |\n\n| defect | regression tests |\n|---|---|\n\
                    | one | `a/b.rs::c`, `d.rs::e` |\n| two | nothing |\n\nEnd `f.rs::g`.";
        let found: Vec<_> = lines(text).collect();
        assert_eq!(found, [("one", vec![("a/b.rs", "c"), ("d.rs", "e")]), ("two", vec![])]);
    }
}
