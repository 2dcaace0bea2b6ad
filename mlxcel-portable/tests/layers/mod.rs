//! Layers and their composites, evaluated and compared with plain computations.

mod activations;
mod cached_attention;
mod dense;
mod experts;
mod latent_attention;
mod packed;
mod recurrent;
mod selection;
mod support;
