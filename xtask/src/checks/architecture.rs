//! The architecture as a check: which crate may use which, where `unsafe` may stand, and that the tests are there that SECURITY.md names.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};

use super::{imports, promises};
use crate::workspace::Workspace;

/// A crate, how high it stands, and the crates of this repository that it may depend on.
struct Rule {
    name: &'static str,
    layer: u8,
    may_use: &'static [&'static str],
    unsafe_code: Unsafe,
}

/// What a crate's roots say about unsafe code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsafe {
    /// `#![forbid(unsafe_code)]`
    Forbidden,
    /// `#![deny(unsafe_code)]`, and leave given in these modules only (files or folders of `src/`).
    Within(&'static [&'static str]),
}

/// The arrows of docs/architecture.md; what is not here is a defect.
const RULES: &[Rule] = &[
    Rule { name: "mlxcel-core", layer: 0, may_use: &[], unsafe_code: Unsafe::Forbidden },
    Rule { name: "mlxcel-stablehlo", layer: 0, may_use: &[], unsafe_code: Unsafe::Forbidden },
    Rule { name: "mlxcel-conformance", layer: 1, may_use: &["mlxcel-core"], unsafe_code: Unsafe::Forbidden },
    Rule {
        name: "mlxcel-models",
        layer: 1,
        may_use: &["mlxcel-core"],
        // A file is memory-mapped in one place.
        unsafe_code: Unsafe::Within(&["bytes"]),
    },
    Rule {
        name: "mlxcel-quantize",
        layer: 2,
        may_use: &["mlxcel-core", "mlxcel-models"],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-hub",
        layer: 2,
        may_use: &["mlxcel-core", "mlxcel-models"],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-graph",
        layer: 2,
        may_use: &["mlxcel-core", "mlxcel-models", "mlxcel-stablehlo"],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-portable",
        layer: 3,
        may_use: &["mlxcel-core", "mlxcel-models", "mlxcel-stablehlo", "mlxcel-graph"],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-iree-sys",
        layer: 0,
        may_use: &[],
        // Declarations of functions in C.
        unsafe_code: Unsafe::Within(&["bindings"]),
    },
    Rule { name: "mlxcel-iree-generate", layer: 5, may_use: &[], unsafe_code: Unsafe::Forbidden },
    Rule {
        name: "mlxcel-iree-kernels",
        layer: 3,
        may_use: &["mlxcel-core", "mlxcel-models", "mlxcel-stablehlo", "mlxcel-graph"],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-iree-target",
        layer: 4,
        may_use: &["mlxcel-core", "mlxcel-models", "mlxcel-stablehlo", "mlxcel-graph", "mlxcel-iree-kernels"],
        // What a child process does before it becomes another program.
        unsafe_code: Unsafe::Within(&["child"]),
    },
    Rule {
        name: "mlxcel-iree-compile",
        layer: 5,
        may_use: &[
            "mlxcel-core",
            "mlxcel-models",
            "mlxcel-stablehlo",
            "mlxcel-graph",
            "mlxcel-iree-kernels",
            "mlxcel-iree-target",
        ],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-iree",
        layer: 6,
        may_use: &[
            "mlxcel-core",
            "mlxcel-models",
            "mlxcel-stablehlo",
            "mlxcel-graph",
            "mlxcel-iree-kernels",
            "mlxcel-iree-sys",
            "mlxcel-iree-target",
            "mlxcel-iree-compile",
        ],
        // The one module that talks to the C runtime.
        unsafe_code: Unsafe::Within(&["ffi"]),
    },
    Rule {
        name: "mlxcel-mlx",
        layer: 6,
        may_use: &["mlxcel-core", "mlxcel-models"],
        // The one module that talks to the C++ library.
        unsafe_code: Unsafe::Within(&["ffi"]),
    },
    Rule {
        name: "mlxcel-pjrt",
        layer: 3,
        may_use: &["mlxcel-core", "mlxcel-models", "mlxcel-stablehlo", "mlxcel-graph"],
        // The one module that talks to plugins.
        unsafe_code: Unsafe::Within(&["ffi"]),
    },
    Rule {
        name: "mlxcel-session",
        layer: 7,
        may_use: &[
            "mlxcel-core",
            "mlxcel-models",
            "mlxcel-hub",
            "mlxcel-portable",
            "mlxcel-iree",
            "mlxcel-mlx",
            "mlxcel-pjrt",
        ],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule { name: "mlxcel-server", layer: 8, may_use: &["mlxcel-session"], unsafe_code: Unsafe::Forbidden },
    Rule {
        name: "mlxcel-cli",
        layer: 9,
        may_use: &[
            "mlxcel-conformance",
            "mlxcel-models",
            "mlxcel-quantize",
            "mlxcel-session",
            "mlxcel-server",
        ],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule { name: "mlxcel-tests", layer: 9, may_use: &["mlxcel-session"], unsafe_code: Unsafe::Forbidden },
    Rule {
        name: "mlxcel-examples",
        layer: 9,
        may_use: &["mlxcel-core", "mlxcel-session", "mlxcel-server", "mlxcel-stablehlo"],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule {
        name: "mlxcel-benches",
        layer: 8,
        may_use: &[
            "mlxcel-core",
            "mlxcel-models",
            "mlxcel-quantize",
            "mlxcel-iree",
            "mlxcel-mlx",
            "mlxcel-pjrt",
            "mlxcel-session",
        ],
        // Loops in assembly, which measure the processor.
        unsafe_code: Unsafe::Within(&["peak"]),
    },
    Rule {
        name: "mlxcel-fuzz",
        layer: 8,
        may_use: &[
            "mlxcel-core",
            "mlxcel-models",
            "mlxcel-stablehlo",
            "mlxcel-portable",
            "mlxcel-iree",
            "mlxcel-session",
        ],
        unsafe_code: Unsafe::Forbidden,
    },
    Rule { name: "xtask", layer: 8, may_use: &[], unsafe_code: Unsafe::Forbidden },
];

pub(super) fn check(workspace: &Workspace) -> Result<String> {
    let metadata = workspace.metadata()?;
    let mut defects = dependency_defects(&metadata);
    for package in metadata.workspace_packages() {
        defects.extend(unsafe_defects(package)?);
        let sources = package.manifest_path.with_file_name("src").into_std_path_buf();
        defects.extend(imports::defects(&package.name, &sources)?);
    }
    defects.extend(promises::defects(workspace)?);
    if !defects.is_empty() {
        for defect in &defects {
            eprintln!("{defect}");
        }
        bail!("{} defects", defects.len());
    }
    Ok(format!("{} crates", metadata.workspace_members.len()))
}

fn rule(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

fn dependency_defects(metadata: &Metadata) -> Vec<String> {
    let mut defects = Vec::new();
    for package in metadata.workspace_packages() {
        let Some(from) = rule(&package.name) else {
            defects.push(format!("{} is missing in the architecture's table ({})", package.name, file!()));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(to) = rule(&dependency.name) else { continue };
            defects.extend(arrow_defect(from, to, dependency.kind));
        }
    }
    defects
}

/// Tests may look sideways (one engine held against another), never up.
fn arrow_defect(from: &Rule, to: &Rule, kind: DependencyKind) -> Option<String> {
    let allowed = match kind {
        DependencyKind::Development => to.layer <= from.layer,
        _ => from.may_use.contains(&to.name),
    };
    (!allowed).then(|| format!("{} depends on {}, which the architecture does not allow", from.name, to.name))
}

/// Every root of the package must rule unsafe code out; the compiler enforces it from there on.
fn unsafe_defects(package: &Package) -> Result<Vec<String>> {
    let Some(rule) = rule(&package.name) else { return Ok(Vec::new()) };
    let mut defects = Vec::new();
    for target in &package.targets {
        let is_product = target.kind.iter().any(|kind| matches!(kind, TargetKind::Lib | TargetKind::Bin));
        if !is_product {
            continue;
        }
        let root = target.src_path.as_std_path();
        let text = fs::read_to_string(root).with_context(|| format!("reading {}", root.display()))?;
        let wanted = match rule.unsafe_code {
            Unsafe::Forbidden => "#![forbid(unsafe_code)]",
            Unsafe::Within(_) => "#![deny(unsafe_code)]",
        };
        if !text.contains(wanted) {
            defects.push(format!("{}: `{wanted}` is missing", root.display()));
        }
    }
    if let Unsafe::Within(places) = rule.unsafe_code {
        let source = package.manifest_path.with_file_name("src").into_std_path_buf();
        for file in rust_files(&source)? {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let inside = file.strip_prefix(&source).unwrap_or(&file);
            for granted in modules_granted_unsafe(inside, &text) {
                if !places.iter().any(|place| granted.starts_with(place)) {
                    let granted = granted.display();
                    defects.push(format!(
                        "{}: module {granted} allows unsafe code, which only {} may",
                        package.name,
                        places.join(", ")
                    ));
                }
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

    fn defect(from: &str, to: &str, kind: DependencyKind) -> bool {
        arrow_defect(rule(from).unwrap(), rule(to).unwrap(), kind).is_some()
    }

    #[test]
    fn every_dependency_in_the_table_points_down() {
        for from in RULES {
            for to in from.may_use {
                assert!(rule(to).unwrap().layer < from.layer, "{} -> {to}", from.name);
            }
        }
    }

    #[test]
    fn upward_and_sideways_dependencies_are_defects() {
        assert!(!defect("mlxcel-session", "mlxcel-core", DependencyKind::Normal));
        assert!(defect("mlxcel-core", "mlxcel-session", DependencyKind::Normal));
        assert!(!defect("mlxcel-iree", "mlxcel-iree-compile", DependencyKind::Normal));
        assert!(defect("mlxcel-iree-compile", "mlxcel-iree", DependencyKind::Development));
        assert!(defect("mlxcel-iree", "mlxcel-portable", DependencyKind::Normal));
        assert!(!defect("mlxcel-iree", "mlxcel-portable", DependencyKind::Development));
        assert!(defect("mlxcel-iree", "mlxcel-session", DependencyKind::Development));
        assert!(defect("mlxcel-stablehlo", "mlxcel-models", DependencyKind::Build));
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
