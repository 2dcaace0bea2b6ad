//! portable
