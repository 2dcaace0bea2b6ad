//! Attention over the caches of sequences, as composites with a plain decomposition.
//!
//! A composite writes a row's new tokens into the row's cache and attends to what the cache holds. Its decomposition attends to the
//! whole cache under a mask; a kernel in its place reads the positions in use alone.

mod attention;
mod latent;
mod row;
mod slots;

pub use attention::{CACHED_ATTENTION, CachedAttention, CachedAttentionOperands, cached_attention};
pub use latent::{LATENT_ATTENTION, LatentAttention, LatentAttentionOperands, latent_attention};
