//! What an input led to, in words that are equal where the same code ran.

use std::error::Error as _;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

use mlxcel_core::{Error, Result};

/// What a target found out about an input. Inputs whose outcome is new are worth changing further.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome(String);

impl Outcome {
    /// An outcome in words; figures and quoted names in them do not count.
    pub fn new(words: impl Display) -> Self {
        Self(without_details(&words.to_string()))
    }

    /// A refusal: its kind, what it says and what its causes say.
    ///
    /// # Panics
    ///
    /// Where the error calls itself a defect of the library, or would harm a terminal that it is printed to.
    #[allow(clippy::panic, reason = "a finding")]
    pub fn refused(error: &Error) -> Self {
        let mut words = format!("{:?} {error}", error.kind());
        let mut cause = error.source();
        while let Some(error) = cause {
            words = format!("{words}: {error}");
            cause = error.source();
        }
        assert!(error.kind() != mlxcel_core::ErrorKind::Internal, "an internal error: {words}");
        assert!(!words.contains(char::is_control), "a message with control characters: {words:?}");
        assert!(words.len() < 100_000, "a message of {} bytes", words.len());
        let field = error.context("field").unwrap_or_default();
        Self::new(format!("{field} {words}"))
    }

    /// The outcome, or that of the error.
    pub fn of(result: Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self::refused(&error))
    }

    /// The outcome, then what came next.
    #[must_use]
    pub fn then(mut self, next: Self) -> Self {
        self.0.push(';');
        self.0.push_str(&next.0);
        self
    }

    /// A number that outcomes are told apart by.
    pub fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    /// The words.
    pub fn words(&self) -> &str {
        &self.0
    }
}

/// `text` without its digits and what it quotes, of which there is no end.
fn without_details(text: &str) -> String {
    let mut kept = String::new();
    let mut quote = None;
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => continue,
            None if matches!(c, '\'' | '`' | '"') => quote = Some(c),
            None => {}
        }
        if c.is_ascii_digit() {
            if !kept.ends_with('0') {
                kept.push('0');
            }
        } else {
            kept.push(c);
        }
        if kept.len() > 2000 {
            break;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_ignore_numbers_and_names() {
        let one = Outcome::new("tensor 'a.b' has 12 rows");
        assert_eq!(one, Outcome::new("tensor 'x' has 7 rows"));
        assert_ne!(one, Outcome::new("tensor 'x' has no rows"));
    }
}
