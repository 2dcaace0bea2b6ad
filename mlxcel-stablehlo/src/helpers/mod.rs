//! What models are written in: methods of [`Builder`](crate::Builder) above single operations.

mod attention;
mod broadcast;
mod embedding;
mod linear;
mod norm;
pub(crate) mod quantized;
mod rope;
mod softmax;
