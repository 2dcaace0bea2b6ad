//! Figures of speed in the README and in the part of the book for users: a paragraph with one links to the
//! page of internals on which that figure was measured.

use std::fs;

use anyhow::Result;

use super::links::{links, resolve};
use super::markdown::{pages, prose};
use crate::workspace::Workspace;

/// The pages, or folders of pages.
const PLACES: [&str; 5] = ["README.md", "docs/start/", "docs/guides/", "docs/deploy/", "docs/reference/"];
/// Where measurements are.
const INTERNALS: &str = "docs/internals/";
/// What follows a figure of speed.
const UNITS: [&str; 8] = ["×", "x", "times", "%", "ms", "tok/s", "texts/s", "GB/s"];

/// Figures that the linked pages lack, or without a link.
pub(super) fn defects(workspace: &Workspace) -> Result<Vec<String>> {
    let mut defects = Vec::new();
    for (page, text) in pages(workspace)? {
        if !PLACES.iter().any(|place| page.starts_with(place)) {
            continue;
        }
        let prose: Vec<&str> = prose(&text).collect();
        for paragraph in prose.join("\n").split("\n\n") {
            let measured: Vec<String> = links(paragraph)
                .map(|link| resolve(&page, link.file))
                .filter(|target| target.starts_with(INTERNALS))
                .filter_map(|target| fs::read_to_string(workspace.root().join(target)).ok())
                .collect();
            let is_measured =
                |number: &str| measured.iter().flat_map(|text| words(text)).any(|w| w == number);
            let unknown = figures(paragraph).filter(|(number, _)| !is_measured(number));
            defects.extend(unknown.map(|(number, unit)| {
                format!("{page}: {number} {unit}: the paragraph links to no page of {INTERNALS} that has it")
            }));
        }
    }
    Ok(defects)
}

/// The numbers of a paragraph that a unit of speed follows, with the unit.
fn figures(paragraph: &str) -> impl Iterator<Item = (&str, &str)> {
    let next = words(paragraph).skip(1);
    words(paragraph).zip(next).filter(|(number, unit)| {
        UNITS.contains(unit) && number.bytes().all(|byte| byte.is_ascii_digit() || b".,".contains(&byte))
    })
}

/// Words and numbers without the punctuation around them; the ends of a range are two.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| letter.is_whitespace() || "–-|()".contains(letter));
    let words = words.map(|word| word.trim_matches(|letter| "*:;,.?![]".contains(letter)));
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_a_unit_of_speed_are_figures() {
        let text = "It is **1.18 ×** (1.07–2.47 times) as fast as 2 threads, reads 1,024 GB/s and is many times\n\
                    30 %, after 12 s; four times a day.";
        let found: Vec<_> = figures(text).collect();
        assert_eq!(found, [("1.18", "×"), ("2.47", "times"), ("1,024", "GB/s"), ("30", "%")]);
    }
}
