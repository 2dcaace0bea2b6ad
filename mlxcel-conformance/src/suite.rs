//! One test per property.

use crate::checks::Check;
use crate::expectations::Expectations;
use crate::report::{CheckResult, run};
use crate::subject::Subject;

/// Generates a `#[test]` for each check, and one that validates the expectations.
///
/// A check whose requirement on the [`Subject`] is not set fails unless it is skipped with a reason, so that
/// no check silently never runs.
///
/// The first argument is an expression for the [`Subject`] (evaluated once per process; its model is shared
/// by the tests), the second one for the [`Expectations`]:
///
/// ```
/// use mlxcel_conformance::{Expectations, Subject, suite};
/// use mlxcel_core::reference::ReferenceBackend;
///
/// suite!(Subject::new(ReferenceBackend::new(), ReferenceBackend::source()), Expectations::none());
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! suite {
    ($factory:expr, $expectations:expr $(,)?) => {
        use $crate::__hold;

        fn __subject() -> &'static $crate::Subject<'static> {
            static SUBJECT: ::std::sync::OnceLock<$crate::Subject<'static>> = ::std::sync::OnceLock::new();
            SUBJECT.get_or_init(|| $factory)
        }

        #[test]
        fn expectations_are_in_order() {
            let expectations: $crate::Expectations = $expectations;
            let defects = expectations.defects();
            assert!(defects.is_empty(), "{defects:?}");
        }

        $crate::__tests!($expectations);
    };
}

/// Panics unless the check holds, does not apply, or is excepted. An unset requirement on the subject is not
/// a reason to skip.
#[doc(hidden)]
#[allow(clippy::panic, reason = "this is how a test fails")]
pub fn __hold(name: &str, subject: &Subject<'_>, expectations: &Expectations) {
    let Some(check) = Check::named(name) else { panic!("unknown check `{name}`") };
    let engine = subject.backend().name();
    match run(check, subject, expectations) {
        CheckResult::Failed(failure) => panic!("{engine} ({}): {failure}", check.property),
        CheckResult::Unclaimed(need) if need.is_of_every_subject() => {
            panic!("{engine} ({}): the subject lacks {need}; skip the check if it cannot", check.property)
        }
        _ => {}
    }
}
