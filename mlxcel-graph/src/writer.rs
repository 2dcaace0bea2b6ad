//! Writes the programs of a model.

use std::sync::Arc;

use mlxcel_core::Result;
use mlxcel_models::Decoder;

use crate::program::write;
use crate::{
    GraphModelOptions, Numerics, Program, ProgramShape, Signature, StateLayout, WeightArgument,
    weight_arguments,
};

/// Writes the programs of one model as graphs.
#[derive(Clone, Debug)]
pub struct ProgramWriter {
    /// The network.
    pub decoder: Decoder,
    /// The element types.
    pub numerics: Numerics,
    /// The layouts of the states.
    pub layouts: Vec<StateLayout>,
    /// The weight arguments of all programs.
    pub weights: Arc<[WeightArgument]>,
}

impl ProgramWriter {
    /// A writer for `decoder` and sessions with `options`.
    ///
    /// # Errors
    ///
    /// The errors of [`GraphModelOptions::layouts`] and [`weight_arguments`].
    pub fn new(decoder: Decoder, options: &GraphModelOptions) -> Result<Self> {
        let (numerics, layouts) = (options.numerics(&decoder)?, options.layouts(&decoder)?);
        Self::with_layouts(decoder, numerics, layouts)
    }

    /// A writer for `decoder` with these element types and state layouts.
    ///
    /// # Errors
    ///
    /// The errors of [`weight_arguments`].
    pub fn with_layouts(decoder: Decoder, numerics: Numerics, layouts: Vec<StateLayout>) -> Result<Self> {
        let weights = weight_arguments(&decoder)?.into();
        Ok(Self { decoder, numerics, layouts, weights })
    }

    /// The signature of the program for `shape`.
    pub fn signature(&self, shape: &ProgramShape) -> Signature {
        Signature::with_weights(Arc::clone(&self.weights), &self.decoder, &self.layouts, shape)
    }

    /// The program for `shape`.
    ///
    /// # Errors
    ///
    /// The errors of [`decoder_program`](crate::decoder_program).
    pub fn program(&self, shape: &ProgramShape) -> Result<Program> {
        write(&self.decoder, self.numerics, self.signature(shape), shape)
    }
}
