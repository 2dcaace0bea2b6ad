//! Contract.
mod error;
pub use error::{Error, ErrorKind, Result};
