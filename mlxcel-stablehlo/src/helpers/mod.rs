//! What models are written in: methods of [`Builder`](crate::Builder) above single operations.

mod attention;
mod broadcast;
pub(crate) mod cached_attention;
mod embedding;
mod experts;
mod kv_cache;
mod kv_row;
pub(crate) mod latent_attention;
mod linear;
mod norm;
pub(crate) mod recurrent;
mod rope;
pub(crate) mod routing;
mod softmax;
