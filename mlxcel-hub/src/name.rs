//! Hugging Face Hub names: `org/name`, with an optional revision and file.

use std::fmt;
use std::str::FromStr;

use mlxcel_core::{Error, ErrorKind, Result};

use mlxcel_models::files::check_name;

/// The revision where a name has none.
const MAIN: &str = "main";

/// The name of a model on the hub: `org/name`, optionally with a revision and a file.
///
/// | text | what it names |
/// |---|---|
/// | `org/name` | the model, at the revision `main` |
/// | `org/name@v1.0` | at a branch, a tag or a commit; `refs/pr/7` too |
/// | `org/name/file.gguf` | one file of a repository with several models in GGUF files, also in a folder |
/// | `org/name:Q4_K_M` | the model in GGUF files whose name has this label |
/// | `name` | a model without organization, as old ones in the cache are named |
///
/// ```
/// use mlxcel_hub::HubName;
///
/// let name: HubName = "org/name@v1.0:Q4_K_M".parse()?;
/// assert_eq!((name.repo(), name.revision(), name.label()), ("org/name", "v1.0", Some("Q4_K_M")));
/// assert!("../org/name".parse::<HubName>().is_err());
/// # Ok::<(), mlxcel_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HubName {
    repo: String,
    revision: String,
    part: Part,
}

/// What of a repository is named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    All,
    File(String),
    Label(String),
}

impl HubName {
    /// The repository: `org/name`, or `name` without organization.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The branch, tag or commit; defaults to `main`.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The file, if the name has one.
    pub fn file(&self) -> Option<&str> {
        match &self.part {
            Part::File(file) => Some(file),
            _ => None,
        }
    }

    /// The label that selects one of several GGUF models, such as `Q4_K_M`.
    pub fn label(&self) -> Option<&str> {
        match &self.part {
            Part::Label(label) => Some(label),
            _ => None,
        }
    }

    /// The same name at another revision. A revision may contain slashes, like branch names.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for an invalid revision.
    pub fn with_revision(mut self, revision: impl Into<String>) -> Result<Self> {
        let revision = revision.into();
        if !is_revision(&revision) {
            let message = "this is not a valid branch, tag or commit";
            return Err(
                Error::new(ErrorKind::InvalidInput, "name model", message).with_context("revision", revision)
            );
        }
        self.revision = revision;
        Ok(self)
    }

    /// The file called `file` of the same repository and revision.
    pub(super) fn with_file(mut self, file: String) -> Self {
        self.part = Part::File(file);
        self
    }

    /// The folder of the repository in a cache.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }

    /// The repository whose folder in a cache is called `folder`.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        let repo = folder.strip_prefix("models--")?.replace("--", "/");
        is_repo(&repo).then(|| Self { repo, revision: MAIN.to_owned(), part: Part::All })
    }
}

impl FromStr for HubName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            let message = "this is not a model name; names have the form org/name, org/name@revision, \
                 org/name/file.gguf and org/name:Q4_K_M";
            Error::new(ErrorKind::InvalidInput, "name model", message).with_context("name", text)
        })
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if self.revision != MAIN {
            write!(f, "@{}", self.revision)?;
        }
        match &self.part {
            Part::All => Ok(()),
            Part::File(file) => write!(f, "/{file}"),
            Part::Label(label) => write!(f, ":{label}"),
        }
    }
}

fn parse(text: &str) -> Option<HubName> {
    if text.len() > 1024 {
        return None;
    }
    let (text, label) = match text.split_once(':') {
        Some((text, label)) => (text, Some(label)),
        None => (text, None),
    };
    let (repo, revision, file) = match text.split_once('@') {
        Some((repo, rest)) => {
            let (revision, file) = split_revision(rest);
            (repo.to_owned(), revision, file)
        }
        None => {
            let mut pieces = text.splitn(3, '/');
            let repo = pieces.by_ref().take(2).collect::<Vec<_>>().join("/");
            (repo, MAIN, pieces.next())
        }
    };
    let part = match (file, label) {
        (None, None) => Part::All,
        (Some(file), None) if check_name(file, "").is_ok() => Part::File(file.to_owned()),
        (None, Some(label)) if is_word(label) => Part::Label(label.to_owned()),
        _ => return None,
    };
    let valid = is_repo(&repo) && is_revision(revision);
    valid.then(|| HubName { repo, revision: revision.to_owned(), part })
}

/// Takes apart what stands behind the `@`. The revision is one word, but for those of pull requests.
fn split_revision(text: &str) -> (&str, Option<&str>) {
    let words = if text.starts_with("refs/") { 3 } else { 1 };
    match text.match_indices('/').nth(words - 1) {
        Some((at, _)) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// What the hub allows as the name of a repository. Names of files are none, so that a path to a missing one
/// stays a path.
fn is_repo(text: &str) -> bool {
    let word = |word: &str| {
        word.len() <= 96
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && !word.starts_with(['-', '.'])
            && !word.ends_with(['-', '.'])
            && !word.is_empty()
    };
    let is_file = [".gguf", ".safetensors", ".json", ".git"].iter().any(|end| text.ends_with(end));
    let words = text.split('/').count() <= 2 && text.split('/').all(word);
    words && !is_file && !text.contains("--") && !text.contains("..")
}

fn is_revision(text: &str) -> bool {
    text.len() <= 255 && text.split('/').all(is_word)
}

/// A part of a path that leads nowhere else.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte))
        && !text.starts_with(['-', '.'])
        && !text.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (text, repo, revision, file, label) in [
            ("org/name", "org/name", "main", None, None),
            ("gpt2", "gpt2", "main", None, None),
            ("org/Name-1.5_B@v1.0", "org/Name-1.5_B", "v1.0", None, None),
            ("org/name@refs/pr/7", "org/name", "refs/pr/7", None, None),
            ("org/name@refs/pr/7/a.gguf", "org/name", "refs/pr/7", Some("a.gguf"), None),
            ("org/name@v1/q4/a.gguf", "org/name", "v1", Some("q4/a.gguf"), None),
            ("org/name/q4/a.gguf", "org/name", "main", Some("q4/a.gguf"), None),
            ("org/name:Q4_K_M", "org/name", "main", None, Some("Q4_K_M")),
        ] {
            let name: HubName = text.parse().unwrap();
            assert_eq!(
                (name.repo(), name.revision(), name.file(), name.label()),
                (repo, revision, file, label)
            );
            assert_eq!(name.to_string(), text);
        }
        let name: HubName = "org/name".parse().unwrap();
        assert_eq!(name.folder(), "models--org--name");
        assert_eq!(HubName::of_folder("models--org--name"), Some(name.clone()));
        assert_eq!(name.clone().with_revision("feature/x").unwrap().revision(), "feature/x");
        assert!(name.with_revision("../x").is_err());
    }

    #[test]
    fn paths_are_not_names() {
        for text in [
            "", "/", "/org/name", "./org/name", "../name", "org/..", "org/../name", "org//name", "~/name",
            "org/", "models/model.gguf", "model.gguf", "C:\\models", "org/na me", "org/name@",
            "org/name@../x", "org/name:", "org/name:a/b", "org/name/../x", "org/name@v1/../x", "org/na--me",
            "org/name/a.gguf:Q4", "org/name\0",
        ] {
            assert!(text.parse::<HubName>().is_err(), "{text:?}");
        }
        assert!("a/".repeat(4096).parse::<HubName>().is_err());
    }
}
