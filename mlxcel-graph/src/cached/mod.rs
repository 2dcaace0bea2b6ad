//! Attention over KV caches, as composite operations with a decomposition into plain StableHLO.
//!
//! A composite writes a row's new tokens into the row's cache and attends to the cache. Its decomposition
//! attends to the whole cache under a mask; a kernel that replaces it reads only the positions in use.

mod attention;
mod compressed;
mod latent;
mod row;
mod selection;
mod slots;

pub use attention::{CachedAttention, CachedAttentionOperands, cached_attention};
pub use compressed::{CompressedAttention, CompressedAttentionOperands, compressed_attention};
pub use latent::{LatentAttention, LatentAttentionOperands, latent_attention};
pub use selection::{PositionSelection, PositionSelectionOperands, Selected, select_positions};
