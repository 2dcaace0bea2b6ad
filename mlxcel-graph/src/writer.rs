//! The programs of one model, whichever are asked for.

use mlxcel_core::Result;
use mlxcel_models::Decoder;

use crate::{GraphModelOptions, Numerics, Program, ProgramShape, StateLayout, decoder_program};

/// Writes the programs of one model as graphs.
#[derive(Clone, Debug)]
pub struct ProgramWriter {
    /// The network.
    pub decoder: Decoder,
    /// What it computes in.
    pub numerics: Numerics,
    /// What sequences keep of it.
    pub layouts: Vec<StateLayout>,
}

impl ProgramWriter {
    /// Programs of `decoder` for sessions with `options`.
    ///
    /// # Errors
    ///
    /// Those of [`GraphModelOptions::layouts`].
    pub fn new(decoder: Decoder, options: &GraphModelOptions) -> Result<Self> {
        let (numerics, layouts) = (options.numerics(&decoder)?, options.layouts(&decoder)?);
        Ok(Self { decoder, numerics, layouts })
    }

    /// The program for `shape`.
    ///
    /// # Errors
    ///
    /// Those of [`decoder_program`].
    pub fn program(&self, shape: &ProgramShape) -> Result<Program> {
        decoder_program(&self.decoder, self.numerics, &self.layouts, shape)
    }
}
