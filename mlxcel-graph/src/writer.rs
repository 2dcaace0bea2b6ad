//! Writes the programs of a model.

use std::sync::Arc;

use mlxcel_core::Result;
use mlxcel_models::Decoder;

use crate::model::GraphModelOptions;
use crate::numerics::Numerics;
use crate::program::Program;
use crate::program::write;
use crate::resident::ResidentArgument;
use crate::shape::ProgramShape;
use crate::signature::{Signature, WeightArgument, weight_arguments};
use crate::state::StateLayout;

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
    /// The resident arguments of all programs.
    pub residents: Arc<[ResidentArgument]>,
}

impl ProgramWriter {
    /// A writer for `decoder` and sessions with `options`.
    ///
    /// # Errors
    ///
    /// The errors of [`GraphModelOptions::layouts`], [`GraphModelOptions::residents`] and
    /// [`weight_arguments`].
    pub fn new(decoder: Decoder, options: &GraphModelOptions) -> Result<Self> {
        let (numerics, layouts) = (options.numerics(&decoder)?, options.layouts(&decoder)?);
        let residents = options.residents(&decoder)?.into();
        Ok(Self { residents, ..Self::with_layouts(decoder, numerics, layouts)? })
    }

    /// A writer for `decoder` with these element types and state layouts, without residents.
    ///
    /// # Errors
    ///
    /// The errors of [`weight_arguments`].
    pub fn with_layouts(decoder: Decoder, numerics: Numerics, layouts: Vec<StateLayout>) -> Result<Self> {
        let weights = weight_arguments(&decoder)?.into();
        Ok(Self { decoder, numerics, layouts, weights, residents: Arc::default() })
    }

    /// The signature of the program for `shape`.
    pub fn signature(&self, shape: &ProgramShape) -> Signature {
        let (weights, residents) = (Arc::clone(&self.weights), Arc::clone(&self.residents));
        Signature::with_tensors(weights, residents, &self.decoder, &self.layouts, shape)
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
