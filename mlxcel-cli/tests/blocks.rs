//! The pages of the documentation, and the console blocks in them.
#![allow(dead_code, reason = "the tests of the arguments and those that run blocks each use a part of it")]
#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::fs;
use std::path::{Path, PathBuf};

/// A page of the documentation.
pub(crate) struct Page {
    /// Its path from the repository's root.
    pub(crate) name: String,
    text: String,
}

/// The README files of the repository and its crates, and the book.
pub(crate) fn pages() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for path in paths(&folder) {
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.push(root.join("README.md"));
    files.extend(paths(root).into_iter().map(|folder| folder.join("README.md")));
    files.retain(|file| file.is_file() && file.extension().is_some_and(|extension| extension == "md"));
    files.sort();
    files
        .into_iter()
        .map(|file| Page {
            name: file.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"),
            text: fs::read_to_string(&file).unwrap(),
        })
        .collect()
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

impl Page {
    /// Whether users of the program read it, and not only those who work on it.
    pub(crate) fn is_for_users(&self) -> bool {
        let parts = ["docs/start/", "docs/guides/", "docs/deploy/", "docs/reference/"];
        self.name.ends_with("README.md") || parts.iter().any(|part| self.name.starts_with(part))
    }

    /// The console blocks that run the program, without what the page shows of the output: if lines begin
    /// with `$ `, the others are output.
    pub(crate) fn blocks(&self) -> Vec<String> {
        let blocks = self.text.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
        let blocks = blocks.filter(|(language, _)| matches!(*language, "console" | "sh"));
        let typed = blocks.map(|(_, block)| {
            let mut typed = block.lines().filter_map(|line| line.strip_prefix("$ ")).peekable();
            match typed.peek() {
                None => block.to_owned(),
                Some(_) => typed.collect::<Vec<_>>().join("\n"),
            }
        });
        let runs = |word: &str| word == "mlxcel" || word.ends_with("/mlxcel");
        typed.filter(|block| block.split_whitespace().any(runs)).collect()
    }

    /// The code in the text between blocks, such as `--name` and `mlxcel serve --port N`.
    pub(crate) fn codes(&self) -> impl Iterator<Item = &str> {
        let prose = self.text.split("\n```").step_by(2);
        // A backtick that is not closed must not turn the rest of the page around.
        let paragraphs = prose.flat_map(|text| text.split("\n\n"));
        paragraphs.flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2))
    }
}
