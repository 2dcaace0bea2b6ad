//! Layers and other methods of [`Builder`](crate::Builder) above single operations.

pub(crate) mod attention;
mod broadcast;
mod embedding;
mod experts;
mod linear;
mod norm;
pub(crate) mod recurrent;
mod rope;
pub(crate) mod routing;
mod softmax;
