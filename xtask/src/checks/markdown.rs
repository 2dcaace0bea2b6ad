//! Markdown, as far as checks read it.

use std::fs;
use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::workspace::Workspace;

/// The repository's pages, by their paths from its root, with their texts.
pub(crate) fn pages(workspace: &Workspace) -> Result<Vec<(String, String)>> {
    let mut git = Command::new("git");
    git.current_dir(workspace.root())
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]);
    let listed = process::output(&mut git)?;
    let names = listed.lines().filter(|page| !page.starts_with("fixtures/"));
    // A page that was just removed may still be listed.
    let read = |name: &str| Some((name.to_owned(), fs::read_to_string(workspace.root().join(name)).ok()?));
    Ok(names.filter_map(read).collect())
}

/// The lines of a page without its fences, each with the language of the fenced block that contains it.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (Option<&str>, &str)> {
    let mut language = None;
    text.lines().filter_map(move |line| match line.trim_start().strip_prefix("```") {
        None => Some((language, line)),
        Some(fence) => {
            language = if language.is_none() { Some(fence.trim()) } else { None };
            None
        }
    })
}

/// The lines outside of fenced blocks.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = &str> {
    lines(text).filter(|(language, _)| language.is_none()).map(|(_, line)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_language_of_their_block() {
        let text = "a\n```rust,no_run\nb\n```\n\n  ```\n  c\n  ```\nd";
        let found: Vec<_> = lines(text).collect();
        let expected = [(None, "a"), (Some("rust,no_run"), "b"), (None, ""), (Some(""), "  c"), (None, "d")];
        assert_eq!(found, expected);
        assert_eq!(prose(text).collect::<Vec<_>>(), ["a", "", "d"]);
    }
}
