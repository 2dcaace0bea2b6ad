//! The input of draft heads.

use super::{Linear, Norm};

/// How a draft head joins a token's embedding with the hidden state of the token before it in the model that it
/// drafts for: `projection([embedding_norm(embedding), state_norm(state)])` (DeepSeek-AI, 2024, "DeepSeek-V3
/// Technical Report", section 2.2). The state is that after the model's last norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputStates {
    /// The norm of the embedding.
    pub embedding_norm: Norm,
    /// The norm of the state, `hidden_size` wide.
    pub state_norm: Norm,
    /// `2 · hidden_size` to `hidden_size`.
    pub projection: Linear,
}
