//! One name for one concept: the name of a public type occurs once among the crates.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use cargo_metadata::Package;

use super::architecture::rust_files;
use super::packages::is_published;

/// Names of several types, and why. No other name may occur twice.
const SHARED: &[(&str, &str)] = &[
    ("Argument", "of a StableHLO function, and of a call of a compiled one"),
    ("Arrangement", "of the experts of a description, and of the words of a packing"),
    ("Block", "of a decoder, and of a StableHLO region"),
    ("Code", "of a packing, and the instructions that a target has"),
    ("Comparison", "StableHLO's attribute; elsewhere a result"),
    ("CompressedAttention", "the description, and the layer that computes it"),
    ("ElementType", "mlxcel-stablehlo depends on no other crate"),
    ("Error", "mlxcel-stablehlo depends on no other crate"),
    ("ErrorKind", "mlxcel-stablehlo depends on no other crate"),
    ("ExpertGroups", "the description, and the layer that computes it"),
    ("Failure", "of a check of the test kit, and of a child process"),
    ("Function", "of a StableHLO module, and of a compiled program"),
    ("LatentAttention", "the description, and the layer that computes it"),
    ("Model", "of the contract, and of applications, which wraps it with a tokenizer"),
    ("Origins", "of the parts of a text, and of pages that may use a server"),
    ("Profile", "of the IREE engine and of PJRT"),
    ("Profiler", "of the IREE engine and of PJRT"),
    ("Program", "a StableHLO program, one that the evaluator prepared, and one that IREE compiled"),
    ("ProgramProfile", "of the IREE engine and of PJRT"),
    ("Result", "each is of its crate's `Error`"),
    ("Selection", "of files of a repository, and of rows of a weight"),
    ("Tensor", "of the evaluator, and of a bundle's manifest"),
];

/// Names that occur twice and are not in [`SHARED`], and entries of it that are out of date.
pub(super) fn defects<'p>(packages: impl IntoIterator<Item = &'p Package>) -> Result<Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        // A library's names alone are seen by others.
        let folder = package.manifest_path.with_file_name("src").into_std_path_buf();
        if !folder.join("lib.rs").exists() || !is_published(package) {
            continue;
        }
        for file in rust_files(&folder)? {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            for name in text.lines().filter_map(public_type) {
                let inside = file.strip_prefix(&folder).unwrap_or(&file);
                places.entry(name.to_owned()).or_default().push(format!(
                    "{}/{}",
                    package.name,
                    inside.display()
                ));
            }
        }
    }
    Ok(unexpected(&places, SHARED))
}

fn unexpected(places: &BTreeMap<String, Vec<String>>, shared: &[(&str, &str)]) -> Vec<String> {
    let mut defects = Vec::new();
    for (name, files) in places {
        let known = shared.iter().any(|(shared, _)| shared == name);
        if files.len() > 1 && !known {
            defects.push(format!("the name `{name}` stands for several public types: {}", files.join(", ")));
        }
    }
    for (name, _) in shared {
        if places.get(*name).is_none_or(|files| files.len() < 2) {
            defects
                .push(format!("`{name}` stands for one public type: remove it from xtask's list of names"));
        }
    }
    defects
}

/// The type that a line declares as public.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest =
        ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_occur_twice_need_a_reason() {
        let types: Vec<_> = ["pub struct A<T>(T);", "    pub enum B {", "pub(crate) struct C;", "struct D;"]
            .into_iter()
            .filter_map(public_type)
            .collect();
        assert_eq!(types, ["A", "B"]);
        let place = |file: &str| file.to_owned();
        let places = BTreeMap::from([
            (place("A"), vec![place("x/lib.rs"), place("y/lib.rs")]),
            (place("B"), vec![place("x/lib.rs")]),
        ]);
        assert_eq!(unexpected(&places, &[("A", "reason")]), [""; 0]);
        assert_eq!(unexpected(&places, &[]).len(), 1);
        assert_eq!(unexpected(&places, &[("A", "reason"), ("B", "reason")]).len(), 1);
    }
}
