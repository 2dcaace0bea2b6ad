//! The order of modules inside each crate: `lib.rs` is above all of them, and they import each other in one
//! direction.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::architecture::rust_files;

/// What is out of order in the crate `name` with sources in `folder`.
pub(super) fn defects(name: &str, folder: &Path) -> Result<Vec<String>> {
    let Ok(root) = fs::read_to_string(folder.join("lib.rs")) else { return Ok(Vec::new()) };
    let modules: BTreeSet<&str> = root.lines().filter_map(declared).collect();
    let mut defects = Vec::new();
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in rust_files(folder)? {
        let inside = file.strip_prefix(folder).unwrap_or(&file);
        let first = inside.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let own = first.unwrap_or_default();
        let own = own.strip_suffix(".rs").unwrap_or(&own);
        if !modules.contains(own) || inside.to_string_lossy().contains("test") {
            continue;
        }
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        for used in imports(&text) {
            if modules.contains(used.as_str()) {
                if used != own {
                    arrows.entry(own.to_owned()).or_default().insert(used);
                }
            } else {
                defects.push(format!(
                    "{}: imports `crate::{used}` through lib.rs; import it from the module that defines it",
                    file.display()
                ));
            }
        }
    }
    defects.extend(
        circles(&arrows)
            .into_iter()
            .map(|circle| format!("{name}: the modules {} import each other", circle.join(", "))),
    );
    Ok(defects)
}

/// The module that a line of `lib.rs` declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.strip_suffix(';')?;
    let (visibility, module) = line.split_once("mod ")?;
    (visibility.is_empty() || visibility.starts_with("pub")).then_some(module)
}

/// The first name of each path in `text` that begins with `crate::`, before its tests.
fn imports(text: &str) -> Vec<String> {
    let code = text.find("\nmod tests {").map_or(text, |tests| &text[..tests]);
    let lines: Vec<&str> =
        code.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code)).collect();
    let code = lines.join("\n");
    let mut names = Vec::new();
    for (at, found) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$' || c == ':') {
            continue;
        }
        let rest = &code[at + found.len()..];
        match rest.strip_prefix('{') {
            None => names.push(first_word(rest).to_owned()),
            Some(list) => {
                let mut depth = 0_usize;
                let mut start = 0;
                for (index, character) in list.char_indices() {
                    match character {
                        '{' => depth += 1,
                        ',' | '}' if depth == 0 => {
                            names.push(first_word(list[start..index].trim_start()).to_owned());
                            start = index + 1;
                            if character == '}' {
                                break;
                            }
                        }
                        '}' => depth -= 1,
                        _ => {}
                    }
                }
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The sets of modules that reach each other, sorted.
fn circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            for next in arrows.get(module).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|module| (module.as_str(), reached(module))).collect();
    let mut circles: Vec<Vec<String>> = Vec::new();
    for (module, seen) in &all {
        if seen.contains(module) && !circles.iter().flatten().any(|known| known == module) {
            let mutual =
                seen.iter().filter(|other| all.get(*other).is_some_and(|back| back.contains(module)));
            circles.push(mutual.map(|&other| other.to_owned()).collect());
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_the_first_names_of_paths() {
        let text = "use crate::a::{B, C};\nuse crate::{d::{e, f}, G};\n// crate::no\nfn x() { crate::h::i() }\n#[cfg(test)]\nmod tests {\nuse crate::t;";
        assert_eq!(imports(text), ["a", "d", "G", "h"]);
        assert_eq!(["pub mod a;", "mod b;", "pub use a::c;"].map(declared), [Some("a"), Some("b"), None]);
    }

    #[test]
    fn modules_that_reach_each_other_are_circles() {
        let arrows = |list: &[(&str, &str)]| {
            let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (from, to) in list {
                arrows.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            }
            circles(&arrows)
        };
        assert!(arrows(&[("a", "b"), ("a", "c"), ("b", "c")]).is_empty());
        assert_eq!(arrows(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]), [["a", "b", "c"]]);
    }
}
