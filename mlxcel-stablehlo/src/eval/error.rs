//! Why a program cannot be planned or run.

use crate::types::TensorType;

/// What planning and running answer.
pub type Result<T, E = EvalError> = std::result::Result<T, E>;

/// Why a program cannot be planned or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The module has no function of this name.
    #[error("the module has no function `{name}`")]
    NoSuchFunction {
        /// The name that was looked for.
        name: String,
    },
    /// The program holds something that only a particular compiler can run.
    #[error("{what} cannot be evaluated")]
    Unsupported {
        /// What it is, by name.
        what: String,
    },
    /// The module breaks a rule that the builder keeps.
    #[error("the module is not well formed")]
    Malformed(#[from] crate::error::Error),
    /// The number of inputs is not the number of arguments.
    #[error("the program takes {expected} inputs, but {actual} were given")]
    InputCount {
        /// The number of arguments.
        expected: usize,
        /// The number of inputs.
        actual: usize,
    },
    /// An input has another type than its argument.
    #[error("input {index} (`{argument}`) must be {expected}, but is {actual}")]
    InputType {
        /// Which argument.
        index: usize,
        /// Its name.
        argument: String,
        /// Its type.
        expected: TensorType,
        /// The input's type.
        actual: TensorType,
    },
    /// A borrowed input has another number of bytes than its type takes.
    #[error("input {index} (`{argument}`) must have {expected} bytes, but has {actual}")]
    InputLength {
        /// Which argument.
        index: usize,
        /// Its name.
        argument: String,
        /// The bytes of its type.
        expected: usize,
        /// The input's bytes.
        actual: usize,
    },
    /// The elements of a new tensor do not fill its type.
    #[error("{ty} takes {expected} bytes, but {actual} were given")]
    TensorLength {
        /// The type asked for.
        ty: TensorType,
        /// The bytes it takes.
        expected: usize,
        /// The bytes given.
        actual: usize,
    },
    /// The system did not give the memory for a tensor.
    #[error("there is no memory for a tensor of {bytes} bytes")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
    },
    /// The cancellation hook said so.
    #[error("the run was cancelled")]
    Cancelled,
    /// The operating system did not give the worker threads.
    #[error("worker threads could not be started")]
    Threads(#[source] Box<dyn std::error::Error + Send + Sync>),
}
