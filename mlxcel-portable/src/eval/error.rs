//! Errors of planning and running a program.

use mlxcel_stablehlo::TensorType;

/// The result type of planning and running.
pub type Result<T, E = EvalError> = std::result::Result<T, E>;

/// Errors of planning and running a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The module has no function of this name.
    #[error("the module has no function `{name}`")]
    NoSuchFunction {
        /// The name that was looked for.
        name: String,
    },
    /// The program contains an operation that only a particular compiler can run.
    #[error("{what} cannot be evaluated")]
    Unsupported {
        /// What it is, by name.
        what: String,
    },
    /// The module violates a rule that the builder enforces.
    #[error("the module is not well formed")]
    Malformed(#[from] mlxcel_stablehlo::Error),
    /// The number of inputs is not the number of arguments.
    #[error("the program takes {expected} inputs, but {actual} were given")]
    InputCount {
        /// The number of arguments.
        expected: usize,
        /// The number of inputs.
        actual: usize,
    },
    /// An input's type differs from the argument's.
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
    /// A borrowed input's number of bytes differs from its type's.
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
    /// The number of elements of a new tensor differs from its type's.
    #[error("{ty} takes {expected} bytes, but {actual} were given")]
    TensorLength {
        /// The type asked for.
        ty: TensorType,
        /// The bytes it takes.
        expected: usize,
        /// The bytes given.
        actual: usize,
    },
    /// Memory for a tensor could not be allocated.
    #[error("there is no memory for a tensor of {bytes} bytes")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
    },
    /// The cancellation hook returned true.
    #[error("the run was cancelled")]
    Cancelled,
    /// The worker threads could not be started.
    #[error("worker threads could not be started")]
    Threads(#[source] Box<dyn std::error::Error + Send + Sync>),
}
