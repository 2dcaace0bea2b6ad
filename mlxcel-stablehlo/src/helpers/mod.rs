//! What models are written in: methods of [`Builder`](crate::Builder) above single operations.

mod broadcast;
