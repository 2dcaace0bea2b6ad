//! The API that applications meet first: a program in the documentation uses each of its methods, and the
//! compiler checks these programs.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

use super::architecture::rust_files;
use super::markdown::{lines, pages};
use crate::workspace::Workspace;

/// The types, of which every public method is in a program.
const TYPES: [&str; 16] = [
    "AdapterPool", "ChatOptions", "Conversation", "EmbedOptions", "Engine", "EngineOptions", "Error",
    "Grammar", "Model", "OpenOptions", "Options", "Request", "RerankOptions", "ScoreOptions", "Toolbox",
    "Tools",
];
/// Where they are defined.
const SOURCES: [&str; 2] = ["mlxcel-session/src", "mlxcel-core/src"];

/// Methods that no program uses.
pub(super) fn defects(workspace: &Workspace) -> Result<Vec<String>> {
    let mut defined = BTreeSet::new();
    for folder in SOURCES {
        for file in rust_files(&workspace.root().join(folder))? {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            defined.extend(methods(&text));
        }
    }
    let mut used = BTreeSet::new();
    for (_, text) in pages(workspace)? {
        let programs =
            lines(&text).filter(|(language, _)| language.is_some_and(|name| name.starts_with("rust")));
        used.extend(programs.flat_map(|(_, line)| calls(line)).map(str::to_owned));
    }
    let unused = defined.into_iter().filter(|(_, method)| !used.contains(method));
    Ok(unused
        .map(|(name, method)| format!("no program in the documentation uses {name}::{method}"))
        .collect())
}

/// The public methods of [`TYPES`] that a file defines. The macro `parameters!` defines builders of `Options`.
fn methods(text: &str) -> BTreeSet<(&'static str, String)> {
    let (mut found, mut of, mut is_macro) = (BTreeSet::new(), None, false);
    for line in text.lines() {
        if line.starts_with("impl") || line.starts_with("parameters! {") {
            is_macro = line.starts_with("parameters!");
            let head = line.split(" {").next().filter(|head| !head.contains(" for "));
            let name = if is_macro { Some("Options") } else { head.and_then(|head| head.rsplit(' ').next()) };
            let name = name.and_then(|name| name.split('<').next());
            of = TYPES.iter().copied().find(|known| name == Some(*known));
        }
        let Some(of) = of else { continue };
        let named = match is_macro {
            true => line.split(", ").map(str::trim_start).find(|part| part.starts_with("with_")),
            false => line.strip_prefix("    pub fn ").or_else(|| setter(line)),
        };
        let name = named.and_then(|named| named.split(['(', '<']).next());
        found.extend(name.map(|name| (of, name.to_owned())));
    }
    found
}

/// A row of `setters!`.
fn setter(line: &str) -> Option<&str> {
    line.strip_prefix("        ").filter(|row| row.starts_with("with_") && row.contains(") =>"))
}

/// The names in a line of a program that follow a dot or `::`.
fn calls(line: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let names = line.split(['.', ':']).skip(1);
    names.filter_map(move |rest| rest.split(|letter| !is_of_name(letter)).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_calls_are_found() {
        let text = "impl Options {\n    pub fn new(n: usize) -> Self {}\n    pub(crate) fn a(&self) {}\n\
                    \x20   setters! {\n        with_seed(seed: u64) => seed = seed;\n    }\n}\n\
                    impl Default for Options {\n    fn default() {}\n}\nimpl Model {\n    pub fn chat<T>(t: T) {}\n}\n\
                    impl<'f> Tools<'f> {\n    pub fn b() {}\n}\nimpl Other {\n    pub fn c() {}\n}\n\
                    parameters! { $\n    Xtc => xtc: Xtc, with_xtc(xtc: Xtc) = Some(xtc),\n}\n";
        let found = [
            ("Model", "chat"),
            ("Options", "new"),
            ("Options", "with_seed"),
            ("Options", "with_xtc"),
            ("Tools", "b"),
        ];
        let found = found.map(|(of, name)| (of, name.to_owned()));
        assert_eq!(methods(text), BTreeSet::from(found));
        let line = "let a = Options::new(4).with_seed(1); model.generate_as::<T>(b)";
        let called: Vec<_> = calls(line).filter(|name| !name.is_empty()).collect();
        assert_eq!(called, ["new", "with_seed", "generate_as"]);
    }
}
