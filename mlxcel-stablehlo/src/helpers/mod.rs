//! What models are written in: methods of [`Builder`](crate::Builder) above single operations.

mod attention;
mod broadcast;
mod linear;
mod norm;
mod rope;
mod softmax;
