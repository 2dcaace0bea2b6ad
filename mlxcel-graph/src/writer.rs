//! The programs of one model, whichever are asked for.

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
    /// What it computes in.
    pub numerics: Numerics,
    /// What sequences keep of it.
    pub layouts: Vec<StateLayout>,
    /// The weights that all programs take.
    pub weights: Arc<[WeightArgument]>,
}

impl ProgramWriter {
    /// Programs of `decoder` for sessions with `options`.
    ///
    /// # Errors
    ///
    /// Those of [`GraphModelOptions::layouts`] and [`weight_arguments`].
    pub fn new(decoder: Decoder, options: &GraphModelOptions) -> Result<Self> {
        let (numerics, layouts) = (options.numerics(&decoder)?, options.layouts(&decoder)?);
        Self::with_layouts(decoder, numerics, layouts)
    }

    /// Programs of `decoder` that compute in `numerics` over states that lie as `layouts` say.
    ///
    /// # Errors
    ///
    /// Those of [`weight_arguments`].
    pub fn with_layouts(decoder: Decoder, numerics: Numerics, layouts: Vec<StateLayout>) -> Result<Self> {
        let weights = weight_arguments(&decoder)?.into();
        Ok(Self { decoder, numerics, layouts, weights })
    }

    /// What the program for `shape` takes and gives.
    pub fn signature(&self, shape: &ProgramShape) -> Signature {
        Signature::with_weights(Arc::clone(&self.weights), &self.decoder, &self.layouts, shape)
    }

    /// The program for `shape`.
    ///
    /// # Errors
    ///
    /// Those of [`decoder_program`](crate::decoder_program).
    pub fn program(&self, shape: &ProgramShape) -> Result<Program> {
        write(&self.decoder, self.numerics, self.signature(shape), shape)
    }
}
