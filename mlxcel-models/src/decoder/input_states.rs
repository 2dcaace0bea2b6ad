//! The input of draft heads.

use super::{Linear, Norm};

/// How a draft head reads a token's embedding beside the hidden state of the token before it in the model
/// that it drafts for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputStates {
    /// Its layers read `projection([embedding_norm(embedding), state_norm(state)])`, where the state is that
    /// after the model's last norm (DeepSeek-AI, 2024, "DeepSeek-V3 Technical Report", section 2.2).
    Projected {
        /// The norm of the embedding.
        embedding_norm: Norm,
        /// The norm of the state, `hidden_size` wide.
        state_norm: Norm,
        /// `2 · hidden_size` to `hidden_size`.
        projection: Linear,
    },
    /// The state is the residual stream, and the first block's operation reads `[embedding_norm(embedding),
    /// norm_before(stream)]`, twice as wide as those of other blocks (Li et al., 2025, "EAGLE-3: Scaling up
    /// Inference Acceleration of Large Language Models via Training-Time Test").
    Beside {
        /// The norm of the embedding.
        embedding_norm: Norm,
        /// The norm of the state before it becomes the stream, if there is one.
        state_norm: Option<Norm>,
    },
}
