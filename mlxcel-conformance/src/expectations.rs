//! Skipped checks and expected failures of an engine, with reasons.

use crate::checks::Check;

/// Skipped checks and expected failures, each with a reason.
///
/// Stale exceptions fail: an expected failure that passes, or an exception of a check that would not run
/// anyway.
///
/// ```
/// let expectations = mlxcel_conformance::Expectations::none()
///     .skip("batches_take_one_pass", "the simulator counts a pass a row")
///     .expect_failure("fills_exactly", "driver 1.2 loses the last position; fixed in 1.3");
/// assert!(expectations.defects().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    check: String,
    exception: Exception,
}

/// One exception from the rule that every check passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exception {
    Skip(String),
    Failure(String),
}

impl Expectations {
    /// No exceptions: every check whose requirements are met must pass.
    pub fn none() -> Self {
        Self::default()
    }

    /// Skips a check.
    #[must_use]
    pub fn skip(mut self, check: impl Into<String>, reason: impl Into<String>) -> Self {
        self.entries.push(Entry { check: check.into(), exception: Exception::Skip(reason.into()) });
        self
    }

    /// Expects a check to fail.
    #[must_use]
    pub fn expect_failure(mut self, check: impl Into<String>, reason: impl Into<String>) -> Self {
        self.entries.push(Entry { check: check.into(), exception: Exception::Failure(reason.into()) });
        self
    }

    pub(crate) fn of(&self, check: &str) -> Option<&Exception> {
        self.entries.iter().find(|entry| entry.check == check).map(|entry| &entry.exception)
    }

    /// Errors in the list itself: unknown or duplicate checks, missing reasons.
    pub fn defects(&self) -> Vec<String> {
        let mut defects = Vec::new();
        for (i, Entry { check, exception }) in self.entries.iter().enumerate() {
            if Check::named(check).is_none() {
                defects.push(format!("unknown check `{check}`"));
            }
            if self.entries[..i].iter().any(|earlier| earlier.check == *check) {
                defects.push(format!("`{check}` is listed twice"));
            }
            let (Exception::Skip(reason) | Exception::Failure(reason)) = exception;
            if reason.trim().is_empty() {
                defects.push(format!("`{check}` is excepted without a reason"));
            }
        }
        defects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_repeated_or_unexplained_checks_are_rejected() {
        let expectations = Expectations::none()
            .skip("chunked_prefil", "a typo")
            .skip("chunked_prefill", " ")
            .expect_failure("chunked_prefill", "a duplicate");
        let defects = expectations.defects();
        assert_eq!(
            defects,
            [
                "unknown check `chunked_prefil`",
                "`chunked_prefill` is excepted without a reason",
                "`chunked_prefill` is listed twice"
            ]
        );
    }
}
