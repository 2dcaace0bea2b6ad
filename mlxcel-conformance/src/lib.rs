//! A conformance test kit for engines of the mlxcel contract.
//!
//! # Why a test kit
//!
//! A trait defines what can be called, but its behaviour is specified in prose, which can be misread. Here
//! each promise of [`mlxcel_core`]'s contract is an executable check on a real engine with a real model,
//! through the public API, as an application uses it: [`checks`]. No second implementation is needed: an
//! engine is compared with itself (a chunked prompt with the same prompt at once, a batched sequence with the
//! same one alone). To compare two engines, use [`differential()`]; to compare one with the recorded results of a
//! reference implementation, [`Oracle`].
//!
//! The kit itself is tested with mutants: engines that are deliberately broken, each in one way. Every check
//! kills at least one mutant, named in its docs, and every mutant is killed.
//!
//! # Use
//!
//! In the tests of an engine's crate, one test per property:
//!
//! ```
//! use mlxcel_conformance::{Expectations, Subject, suite};
//! use mlxcel_core::reference::ReferenceBackend;
//!
//! suite!(Subject::new(ReferenceBackend::new(), ReferenceBackend::source()), Expectations::none());
//! # fn main() {}
//! ```
//!
//! Or run all checks and print a table of properties, capabilities and results:
//!
//! ```
//! use mlxcel_conformance::{Expectations, Subject, run_all};
//! use mlxcel_core::reference::ReferenceBackend;
//!
//! let subject = Subject::new(ReferenceBackend::new(), ReferenceBackend::source());
//! let report = run_all(&subject, &Expectations::none());
//! println!("{report}");
//! assert!(report.passed());
//! ```
//!
//! Checks of unclaimed capabilities are not run; instead the kit checks that these return
//! [`Unsupported`](mlxcel_core::ErrorKind::Unsupported). Exceptions need a reason: [`Expectations`].
//! [`Tolerance`] bounds differences by rounding.
#![forbid(unsafe_code)]

pub mod checks;
mod differential;
mod expectations;
mod failure;
mod oracle;
mod outlook;
mod report;
mod subject;
mod suite;
mod tolerance;
mod walk;

pub use checks::{Check, Need};
pub use differential::{Comparison, Differential, Divergence, Trace, TraceStep, differential};
pub use expectations::Expectations;
pub use failure::{Failure, Outcome};
pub use oracle::{Oracle, OracleCase, prefill_logits};
pub use report::{CheckResult, Report, ReportLine, run, run_all};
pub use subject::Subject;
pub use suite::__hold;
pub use tolerance::Tolerance;
