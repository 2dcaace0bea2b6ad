//! Work shared out to threads; see [`mlxcel_iree_target::threads`].

pub(crate) use mlxcel_iree_target::threads::{catch_panic, share_out};
