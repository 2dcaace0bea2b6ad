//! The test kit that proves an engine of the mlxcel contract.
//!
//! # Why a kit
//!
//! A trait says what can be called; what it must then do is said in words, and words can be misread. Here each promise of
//! [`mlxcel_core`]'s contract is a function that tries it on a real engine with a real model, from the outside, as an
//! application would: [`checks`]. There is no second implementation to agree with; an engine is held against itself (a prompt
//! in chunks against the same prompt at once, a batched sequence against the same one alone), and [`differential()`] holds two
//! engines against each other where there are two.
//!
//! The kit is itself proved by mutants: engines broken on purpose, each in one way. Every check kills at least one, named in its
//! docs, and every mutant is killed.
//!
//! # Use
//!
//! In the tests of an engine's crate, one test a property:
//!
//! ```
//! use mlxcel_conformance::{Expectations, Subject, suite};
//! use mlxcel_core::reference::ReferenceBackend;
//!
//! suite!(Subject::new(ReferenceBackend::new(), ReferenceBackend::source()), Expectations::none());
//! # fn main() {}
//! ```
//!
//! Or all at once, as a table of properties, capabilities and results:
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
//! A check of what an engine does not claim is not run, but that it answers
//! [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) is checked. Exceptions need a reason: [`Expectations`]. Where rounding
//! may tell, [`Tolerance`] says how much.
#![forbid(unsafe_code)]

pub mod checks;
mod differential;
mod expectations;
mod failure;
mod outlook;
mod report;
mod subject;
mod suite;
mod tolerance;

pub use checks::{Check, Need};
pub use differential::{Comparison, Differential, Divergence, Trace, TraceStep, differential};
pub use expectations::Expectations;
pub use failure::{Failure, Outcome};
pub use report::{CheckResult, Report, ReportLine, run, run_all};
pub use subject::Subject;
pub use suite::__hold;
pub use tolerance::Tolerance;
