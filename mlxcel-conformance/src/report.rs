//! Runs checks and reports the results.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use mlxcel_core::Capabilities;

use crate::checks::{ALL, Check, Need};
use crate::expectations::{Exception, Expectations};
use crate::failure::Failure;
use crate::subject::Subject;

/// The result of one check.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CheckResult {
    /// It passed.
    Passed,
    /// Not run: the engine does not claim a required capability, or the subject lacks a requirement.
    Unclaimed(Need),
    /// Skipped, for this reason.
    Skipped(String),
    /// It failed as expected, for this reason.
    ExpectedFailure(String, Failure),
    /// It failed, or passed unexpectedly.
    Failed(Failure),
}

impl CheckResult {
    /// Whether this is an unexpected failure.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Unclaimed(need) if need.is_of_subject() => {
                write!(f, "not run: the subject lacks {need}")
            }
            Self::Unclaimed(need) => write!(f, "not claimed: {need}"),
            Self::Skipped(reason) => write!(f, "skipped: {reason}"),
            Self::ExpectedFailure(reason, failure) => write!(f, "fails as expected ({reason}): {failure}"),
            Self::Failed(failure) => write!(f, "FAILED: {failure}"),
        }
    }
}

/// One line of a [`Report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReportLine {
    /// The check.
    pub check: &'static Check,
    /// Its result.
    pub result: CheckResult,
    /// Its duration.
    pub time: Duration,
}

/// All checks with their required capabilities and results; prints as a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The engine's name.
    pub backend: String,
    /// The engine's capabilities; `None` if the model could not be loaded.
    pub capabilities: Option<Capabilities>,
    /// Errors in the expectations themselves.
    pub defects: Vec<String>,
    /// One line per check.
    pub lines: Vec<ReportLine>,
}

impl Report {
    /// Whether there was no unexpected failure and the expectations are valid.
    pub fn passed(&self) -> bool {
        self.defects.is_empty() && !self.lines.iter().any(|line| line.result.is_failure())
    }

    /// The result of one check.
    pub fn result(&self, check: &str) -> Option<&CheckResult> {
        self.lines.iter().find(|line| line.check.name == check).map(|line| &line.result)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.capabilities {
            Some(claimed) => writeln!(f, "{}: {claimed}", self.backend)?,
            None => writeln!(f, "{}: the model was not loaded", self.backend)?,
        }
        let width = |text: &dyn Fn(&Check) -> usize| {
            self.lines.iter().map(|line| text(line.check)).max().unwrap_or(0)
        };
        let (name, property) = (width(&|check| check.name.len()), width(&|check| check.property.len()));
        let needs_width = width(&|check| needs(check).len());
        for ReportLine { check, result, time } in &self.lines {
            writeln!(
                f,
                "{:name$}  {:property$}  {:needs_width$}  {:>6.2} s  {result}",
                check.name,
                check.property,
                needs(check),
                time.as_secs_f64(),
            )?;
        }
        for defect in &self.defects {
            writeln!(f, "expectations: {defect}")?;
        }
        let count = |of: fn(&CheckResult) -> bool| self.lines.iter().filter(|line| of(&line.result)).count();
        write!(
            f,
            "{} passed, {} not claimed, {} skipped, {} expected failures, {} failed, {:.1} s",
            count(|result| matches!(result, CheckResult::Passed)),
            count(|result| matches!(result, CheckResult::Unclaimed(_))),
            count(|result| matches!(result, CheckResult::Skipped(_))),
            count(|result| matches!(result, CheckResult::ExpectedFailure(..))),
            count(CheckResult::is_failure),
            self.lines.iter().map(|line| line.time.as_secs_f64()).sum::<f64>(),
        )
    }
}

/// The requirements of a check, as a report prints them.
fn needs(check: &Check) -> String {
    check.needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Runs every check and returns a report. It prints nothing and does not panic.
pub fn run_all(subject: &Subject<'_>, expectations: &Expectations) -> Report {
    let lines = ALL
        .iter()
        .map(|check| {
            let started = Instant::now();
            let result = run(check, subject, expectations);
            ReportLine { check, result, time: started.elapsed() }
        })
        .collect();
    Report {
        backend: subject.backend().name().to_owned(),
        capabilities: subject.model().ok().map(|model| model.capabilities().clone()),
        defects: expectations.defects(),
        lines,
    }
}

/// Runs one check with its expectation.
pub fn run(check: &Check, subject: &Subject<'_>, expectations: &Expectations) -> CheckResult {
    let exception = expectations.of(check.name);
    match (catch(|| check.unmet(subject).map_err(Failure::from)), exception) {
        (Ok(Some(need)), None) => return CheckResult::Unclaimed(need),
        (Ok(Some(need)), Some(Exception::Skip(reason))) if need.is_of_every_subject() => {
            return CheckResult::Skipped(reason.clone());
        }
        (Ok(Some(need)), Some(_)) => {
            return CheckResult::Failed(Failure::new(format!(
                "its exception is stale: it needs {need}, and would not run anyway"
            )));
        }
        (Err(failure), _) => return CheckResult::Failed(failure),
        (Ok(None), _) => {}
    }
    match exception {
        Some(Exception::Skip(reason)) => CheckResult::Skipped(reason.clone()),
        Some(Exception::Failure(reason)) => match catch(|| (check.run)(subject)) {
            Err(failure) => CheckResult::ExpectedFailure(reason.clone(), failure),
            Ok(()) => CheckResult::Failed(Failure::new(format!(
                "it passes, but was expected to fail ({reason}): the exception is stale"
            ))),
        },
        None => match catch(|| (check.run)(subject)) {
            Ok(()) => CheckResult::Passed,
            Err(failure) => CheckResult::Failed(failure),
        },
    }
}

/// The result of `work`; an engine's panic is a failure.
fn catch<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    // After a panic only the loaded model is used, which is shared and which sessions do not change.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(Failure::new(format!("the engine panicked: {}", panic_message(&*panic)))))
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}
