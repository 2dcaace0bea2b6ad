//! iree
