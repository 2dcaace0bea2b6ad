//! The architecture as a check: which crate may use which (`[package.metadata.architecture]` of each says
//! it), where `unsafe` may stand, that the tests exist that the hardening page names, and that links, figures
//! and programs of the documentation are in order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};

use super::{figures, imports, links, names, promises, snippets};
use crate::workspace::Workspace;

/// What `[package.metadata.architecture]` of a crate says.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(skip)]
    name: String,
    /// How high the crate stands: it depends on lower ones alone.
    layer: u8,
    /// The crates of this repository that it may depend on.
    #[serde(default)]
    uses: Vec<String>,
    /// The modules (files or folders of `src/`) that may contain unsafe code; without any, roots say
    /// `#![forbid(unsafe_code)]`.
    #[serde(default, rename = "unsafe")]
    unsafe_modules: Vec<String>,
}

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let metadata = workspace.metadata()?;
    let mut rules = BTreeMap::new();
    for package in metadata.workspace_packages() {
        rules.insert(package.name.clone(), rule(package)?);
    }
    let mut defects = dependency_defects(&metadata, &rules);
    for package in metadata.workspace_packages() {
        defects.extend(unsafe_defects(package, &rules[&package.name])?);
        let sources = package.manifest_path.with_file_name("src").into_std_path_buf();
        defects.extend(imports::defects(&package.name, &sources)?);
    }
    defects.extend(names::defects(metadata.workspace_packages())?);
    defects.extend(promises::defects(workspace)?);
    defects.extend(links::defects(workspace)?);
    defects.extend(figures::defects(workspace)?);
    defects.extend(snippets::defects(workspace)?);
    if !defects.is_empty() {
        for defect in &defects {
            eprintln!("{defect}");
        }
        bail!("{} defects", defects.len());
    }
    Ok(format!("{} crates", metadata.workspace_members.len()))
}

fn rule(package: &Package) -> Result<Rule> {
    let told = package.metadata.get("architecture").cloned().unwrap_or_default();
    let rule: Rule = serde_json::from_value(told)
        .with_context(|| format!("{}: [package.metadata.architecture]", package.manifest_path))?;
    Ok(Rule { name: package.name.clone(), ..rule })
}

fn dependency_defects(metadata: &Metadata, rules: &BTreeMap<String, Rule>) -> Vec<String> {
    let mut defects = Vec::new();
    for package in metadata.workspace_packages() {
        let from = &rules[&package.name];
        for dependency in &package.dependencies {
            let Some(to) = rules.get(&dependency.name) else { continue };
            defects.extend(arrow_defect(from, to, dependency.kind));
        }
    }
    defects
}

/// Tests may look sideways (one engine held against another), never up.
fn arrow_defect(from: &Rule, to: &Rule, kind: DependencyKind) -> Option<String> {
    let allowed = match kind {
        DependencyKind::Development => to.layer <= from.layer,
        _ => to.layer < from.layer && from.uses.contains(&to.name),
    };
    (!allowed).then(|| format!("{} depends on {}, which the architecture does not allow", from.name, to.name))
}

/// Every root of the package must rule unsafe code out; the compiler enforces it from there on.
fn unsafe_defects(package: &Package, rule: &Rule) -> Result<Vec<String>> {
    let mut defects = Vec::new();
    for target in &package.targets {
        let is_product = target.kind.iter().any(|kind| matches!(kind, TargetKind::Lib | TargetKind::Bin));
        if !is_product {
            continue;
        }
        let root = target.src_path.as_std_path();
        let text = fs::read_to_string(root).with_context(|| format!("reading {}", root.display()))?;
        let wanted =
            if rule.unsafe_modules.is_empty() { "#![forbid(unsafe_code)]" } else { "#![deny(unsafe_code)]" };
        if !text.contains(wanted) {
            defects.push(format!("{}: `{wanted}` is missing", root.display()));
        }
    }
    if rule.unsafe_modules.is_empty() {
        return Ok(defects);
    }
    let source = package.manifest_path.with_file_name("src").into_std_path_buf();
    for file in rust_files(&source)? {
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let inside = file.strip_prefix(&source).unwrap_or(&file);
        for granted in modules_granted_unsafe(inside, &text) {
            if !rule.unsafe_modules.iter().any(|place| granted.starts_with(place)) {
                defects.push(format!(
                    "{}: module {} allows unsafe code, which only {} may",
                    package.name,
                    granted.display(),
                    rule.unsafe_modules.join(", ")
                ));
            }
        }
    }
    Ok(defects)
}

/// The modules (paths below `src/`) to which attributes in `file` give leave.
fn modules_granted_unsafe(file: &Path, text: &str) -> Vec<PathBuf> {
    let own = match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") => file.parent().unwrap_or(Path::new("")).to_path_buf(),
        _ => file.with_extension(""),
    };
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut granted = Vec::new();
    for (start, _) in code.match_indices("#[").chain(code.match_indices("#![")) {
        let Some(attribute) = attribute_at(&code[start..]) else { continue };
        let gives_leave = ["allow(", "expect(", "warn("].iter().any(|word| attribute.contains(word));
        if gives_leave && attribute.contains("unsafe_code") {
            granted.push(match declared_module(&code[start + attribute.len()..]) {
                Some(name) => own.join(name),
                None => own.clone(),
            });
        }
    }
    granted
}

/// The text of the attribute that `code` begins with, from `#` to the closing bracket.
fn attribute_at(code: &str) -> Option<&str> {
    let mut depth = 0_usize;
    for (at, character) in code.char_indices() {
        match character {
            '[' => depth += 1,
            ']' if depth == 1 => return Some(&code[..=at]),
            ']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// The name in a `mod name;` that follows, after other attributes.
fn declared_module(code: &str) -> Option<&str> {
    let mut code = code.trim_start();
    while code.starts_with("#[") {
        code = code[attribute_at(code)?.len()..].trim_start();
    }
    let declaration = code.split_once(';')?.0;
    let (visibility, name) = declaration.split_once("mod ")?;
    let is_visibility = visibility.is_empty() || visibility.starts_with("pub");
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_visibility && is_name).then_some(name)
}

pub(super) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defect(from: (u8, &[&str]), to: (&str, u8), kind: DependencyKind) -> bool {
        let rule = |name: &str, layer, uses: &[&str]| Rule {
            name: name.to_owned(),
            layer,
            uses: uses.iter().map(|&name| name.to_owned()).collect(),
            unsafe_modules: Vec::new(),
        };
        arrow_defect(&rule("from", from.0, from.1), &rule(to.0, to.1, &[]), kind).is_some()
    }

    #[test]
    fn upward_and_sideways_dependencies_are_defects() {
        assert!(!defect((7, &["core"]), ("core", 0), DependencyKind::Normal));
        assert!(defect((7, &[]), ("core", 0), DependencyKind::Normal));
        assert!(defect((0, &["session"]), ("session", 7), DependencyKind::Normal));
        assert!(defect((6, &["mlx"]), ("mlx", 6), DependencyKind::Build));
        assert!(!defect((6, &[]), ("mlx", 6), DependencyKind::Development));
        assert!(defect((5, &[]), ("iree", 6), DependencyKind::Development));
    }

    #[test]
    fn permission_for_unsafe_code_is_detected() {
        let granted = |file: &str, text: &str| modules_granted_unsafe(Path::new(file), text);
        assert_eq!(granted("bytes.rs", "#[allow(unsafe_code)]\nfn f() {}"), [Path::new("bytes")]);
        assert_eq!(
            granted("lib.rs", "#[allow(unsafe_code)]\n#[cfg(unix)]\npub mod ffi;"),
            [Path::new("ffi")]
        );
        assert_eq!(granted("lib.rs", "#[allow(unsafe_code)]\nfn f() {}\nmod ffi;"), [Path::new("")]);
        assert_eq!(
            granted("ffi/device.rs", "#![expect(\n    unsafe_code,\n    reason = \"[handles]\"\n)]"),
            [Path::new("ffi/device")]
        );
        assert!(
            granted("lib.rs", "#![deny(unsafe_code)]\n// #[allow(unsafe_code)] is for others").is_empty()
        );
    }
}
