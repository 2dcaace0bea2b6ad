//! The supported release of IREE, and parsing of a compiler's revision.

use std::fmt;

/// The release of IREE that compiles and runs programs.
pub const RELEASE: &str = "3.13.0";

/// The commit of that release in IREE's repository, as its compiler prints it.
pub const COMMIT: &str = "89ece87b89852100c0a4ac3d515e14842d090967";

/// A compiler's revision: `3.13.0rc20261016 @ 89ece87b…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision(String);

impl Revision {
    /// Finds the revision in what `iree-compile --version` prints.
    pub fn parse(output: &str) -> Option<Self> {
        let text = output.lines().find_map(|line| line.trim().strip_prefix("IREE compiler version "))?.trim();
        let revision = Self(text.to_owned());
        revision.release().is_some().then_some(revision)
    }

    /// Parses a revision written with [`as_str`](Self::as_str).
    pub fn recorded(text: &str) -> Option<Self> {
        let revision = Self(text.to_owned());
        (revision.release().is_some() && !text.contains('\n')).then_some(revision)
    }

    /// A revision from any text.
    pub fn of_text(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The commit that it was built from, if it is stated.
    fn commit(&self) -> Option<&str> {
        let (_, commit) = self.0.split_once('@')?;
        Some(commit.trim()).filter(|commit| !commit.is_empty())
    }

    /// Whether it is exactly the runtime's release, identified by its commit: development builds have the
    /// version number of a release, but may have another program format.
    pub fn is_of_release(&self) -> bool {
        self.release() == Some(RELEASE)
            && self.commit().is_none_or(|commit| commit.len() >= 7 && COMMIT.starts_with(commit))
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The release that it belongs to: three numbers with dots, without the suffix of a candidate or a
    /// development build.
    pub fn release(&self) -> Option<&str> {
        let end = self.0.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.0.len());
        let release = self.0[..end].trim_end_matches('.');
        (release.split('.').filter(|number| !number.is_empty()).count() == 3).then_some(release)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Revision;

    #[test]
    fn the_release_is_parsed_from_the_compilers_output() {
        let output = "IREE (https://iree.dev):\n  IREE compiler version 3.13.0rc20261016 @ 89ece87b\n  LLVM version 24.0.0git\n";
        let revision = Revision::parse(output).unwrap();
        assert_eq!(revision.as_str(), "3.13.0rc20261016 @ 89ece87b");
        assert_eq!(revision.release(), Some("3.13.0"));
        assert_eq!(Revision::parse("  IREE compiler version 3.13.0\n").unwrap().release(), Some("3.13.0"));
        assert_eq!(Revision::parse("gcc (Debian 12.2.0-14) 12.2.0"), None);
        assert_eq!(Revision::parse("IREE compiler version unknown"), None);
        assert_eq!(Revision::parse(""), None);
    }

    #[test]
    fn builds_of_another_commit_are_not_of_the_release() {
        let is_of_release = |text| Revision::of_text(text).is_of_release();
        assert!(is_of_release("3.13.0rc20261016 @ 89ece87b89852100c0a4ac3d515e14842d090967"));
        assert!(is_of_release("3.13.0 @ 89ece87b") && is_of_release("3.13.0"));
        for other in ["3.13.0.dev @ 0123456789", "3.12.0 @ 89ece87b", "3.13.0 @ 8", "", "steam"] {
            assert!(!is_of_release(other), "{other}");
        }
    }
}
