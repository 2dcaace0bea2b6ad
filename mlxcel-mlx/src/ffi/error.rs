//! Converts C++ exceptions to errors.

use mlxcel_core::{Error, ErrorKind, Result};

/// The return type of a bridged function.
pub(crate) type Caught<T> = std::result::Result<T, cxx::Exception>;

/// Converts the return value of a bridged function into a result; `operation` names the attempt.
pub(crate) fn check<T>(answer: Caught<T>, operation: &'static str) -> Result<T> {
    answer.map_err(|exception| describe(exception.what(), operation))
}

/// The error for an exception's text, whose first letter `cpp/bridge.h` chooses by the exception's type; MLX's
/// own message is its source.
fn describe(text: &str, operation: &'static str) -> Error {
    let (kind, words) = match (text.get(..1), text.get(1..)) {
        (Some("M"), Some(words)) => (ErrorKind::ResourceExhausted, words),
        (Some("A"), Some(words)) => (ErrorKind::Internal, words),
        // Metal and CUDA report a failed allocation like any other failure, and so does an evaluation whose
        // task failed on MLX's own thread.
        (Some("D"), Some(words)) if words.contains("malloc]") || words.contains("bad_alloc") => {
            (ErrorKind::ResourceExhausted, words)
        }
        (Some("D"), Some(words)) => (ErrorKind::Device, words),
        _ => (ErrorKind::Device, text),
    };
    let message = match kind {
        ErrorKind::ResourceExhausted => "out of memory",
        ErrorKind::Internal => "MLX refused the arguments",
        _ => "MLX reported a failure",
    };
    Error::new(kind, operation, message).with_source(words)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn the_error_kind_follows_the_exception_and_keeps_its_message() {
        let of = |text| {
            let error = describe(text, "evaluate");
            (error.kind(), error.source().unwrap().to_string())
        };
        assert_eq!(of("Mstd::bad_alloc"), (ErrorKind::ResourceExhausted, "std::bad_alloc".to_owned()));
        assert_eq!(of("A[matmul] no"), (ErrorKind::Internal, "[matmul] no".to_owned()));
        assert_eq!(of("Dit broke"), (ErrorKind::Device, "it broke".to_owned()));
        assert_eq!(of("D[metal::malloc] too large").0, ErrorKind::ResourceExhausted);
        assert_eq!(of("").0, ErrorKind::Device);
    }
}
