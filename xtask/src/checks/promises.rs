//! What SECURITY.md promises is held by tests that it names, as `folder/file.rs::name`: each is there, and each line of its last table
//! has one.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

const FILE: &str = "SECURITY.md";

/// Names of tests that are not there, and lines that name none.
pub(super) fn defects(workspace: &Workspace) -> Result<Vec<String>> {
    let text = fs::read_to_string(workspace.root().join(FILE)).context("reading SECURITY.md")?;
    let mut defects = Vec::new();
    for (line, tests) in lines(&text) {
        if tests.is_empty() {
            defects.push(format!("{FILE}: no test is named for: {line}"));
        }
        for (file, name) in tests {
            let source = fs::read_to_string(workspace.root().join(file)).unwrap_or_default();
            if !source.contains(&format!("fn {name}(")) {
                defects.push(format!("{FILE} names {file}::{name}, which is not there"));
            }
        }
    }
    Ok(defects)
}

/// The lines of the table of what fell, each with the tests that it names: their files and names.
fn lines(text: &str) -> impl Iterator<Item = (&str, Vec<(&str, &str)>)> {
    let table = text.lines().skip_while(|line| *line != "| what fell | held by |").skip(2);
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
        let text = "| input | trusted |\n|---|---|\n| x | `a.rs::b` |\n\n| what fell | held by |\n|---|---|\n\
                    | one | `a/b.rs::c`, `d.rs::e` |\n| two | nothing |\n\nEnd `f.rs::g`.";
        let found: Vec<_> = lines(text).collect();
        assert_eq!(found, [("one", vec![("a/b.rs", "c"), ("d.rs", "e")]), ("two", vec![])]);
    }
}
