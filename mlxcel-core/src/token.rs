//! Tokens.

/// A token id: its index in the model's vocabulary.
pub type TokenId = u32;
