//! The links of the documentation: each relative link of a Markdown file leads to a file of the repository,
//! and to a heading of it if it names one; each page of the book is in its summary.

use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use super::markdown::{pages, prose};
use crate::workspace::Workspace;

const SUMMARY: &str = "docs/SUMMARY.md";

/// Links that lead nowhere, and pages that the summary leaves out.
pub(super) fn defects(workspace: &Workspace) -> Result<Vec<String>> {
    let mut defects = Vec::new();
    let mut summarized = HashSet::new();
    let mut book = Vec::new();
    for (page, text) in pages(workspace)? {
        for link in links(&text) {
            let target = resolve(&page, link.file);
            if page == SUMMARY {
                summarized.insert(target.clone());
            }
            if let Some(defect) = defect(workspace.root(), &target, link.heading)? {
                defects.push(format!("{page} links to {}{}: {defect}", link.file, link.heading));
            }
        }
        if page.starts_with("docs/") && page != SUMMARY {
            book.push(PathBuf::from(page));
        }
    }
    let missing = book.iter().filter(|page| !summarized.contains(*page));
    defects.extend(missing.map(|page| format!("{SUMMARY} does not list {}", page.display())));
    Ok(defects)
}

/// What is wrong with a link to `heading` (empty, or with its `#`) of `target`.
fn defect(root: &Path, target: &Path, heading: &str) -> Result<Option<&'static str>> {
    let path = root.join(target);
    if !path.exists() {
        return Ok(Some("there is no such file"));
    }
    let Some(heading) = heading.strip_prefix('#') else { return Ok(None) };
    if path.extension().is_none_or(|extension| extension != "md") {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok((!headings(&text).any(|anchor| anchor == heading)).then_some("there is no such heading"))
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link<'a> {
    /// Relative to the page; empty for the page itself.
    pub(super) file: &'a str,
    /// Empty, or with its `#`.
    heading: &'a str,
}

/// The relative links of a page outside of its code blocks.
pub(super) fn links(text: &str) -> impl Iterator<Item = Link<'_>> {
    prose(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| {
        let target = rest.split_once(')')?.0;
        if target.contains("://") || target.starts_with("mailto:") || target.contains(' ') {
            return None;
        }
        let split = target.find('#').unwrap_or(target.len());
        let (file, heading) = target.split_at(split);
        Some(Link { file, heading })
    })
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn headings(text: &str) -> impl Iterator<Item = String> + '_ {
    prose(text).filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// The target of a link in `page`, from the repository's root.
pub(super) fn resolve(page: &str, file: &str) -> PathBuf {
    if file.is_empty() {
        return PathBuf::from(page);
    }
    let mut resolved = Path::new(page).parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::Normal(name) => resolved.push(name),
            _ => {}
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_outside_of_code_are_found_and_resolved() {
        let text = "[a](../b/c.md#of-it) and [w](https://x.org/y)\n```\n[no](no.md)\n```\n[here](#top)\n";
        let found: Vec<_> = links(text).collect();
        let expected = [Link { file: "../b/c.md", heading: "#of-it" }, Link { file: "", heading: "#top" }];
        assert_eq!(found, expected);
        assert_eq!(resolve("docs/a/page.md", "../b/c.md"), PathBuf::from("docs/b/c.md"));
        assert_eq!(resolve("README.md", ""), PathBuf::from("README.md"));
    }

    #[test]
    fn headings_have_the_anchors_of_github() {
        let text = "# What `mlxcel` is, and why\n```\n# no\n```\n## The server\n";
        let found: Vec<_> = headings(text).collect();
        assert_eq!(found, ["what-mlxcel-is-and-why", "the-server"]);
    }
}
