//! From a shape to a compiled program: the graph is written, lowered for the target, and compiled or found in the cache.

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{Numerics, ProgramShape, decoder_program};
use mlxcel_models::Decoder;
use mlxcel_stablehlo::ElementType;

use super::blame::blame;
use crate::artifact::{Artifact, Artifacts};
use crate::backend::ResolvedTarget;
use crate::compiler::{CompileOptions, Compiler};
use crate::lowering::{CPU, attends_in_use, lower};

/// Compiles the programs of one model for one target.
#[derive(Clone, Debug)]
pub(crate) struct ProgramCompiler {
    decoder: Decoder,
    numerics: Numerics,
    target: ResolvedTarget,
    artifacts: Artifacts,
}

impl ProgramCompiler {
    /// Programs of `decoder` that compute with `numerics`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where programs for the target do not compute in that type: for some the compiler does not
    /// come to an end.
    pub(crate) fn new(
        decoder: Decoder,
        numerics: Numerics,
        target: ResolvedTarget,
        artifacts: Artifacts,
    ) -> Result<Self> {
        for element in [numerics.operand, numerics.kv] {
            // Bytes are no type to compute in, yet what is kept in them can be on a processor.
            let kept = element == ElementType::I8 && target.target().backend() == CPU;
            if !kept && target.element_type_for(element) != element {
                let message =
                    "programs for the target do not compute in this type; with exact precision they do";
                return Err(Error::new(ErrorKind::Unsupported, "choose precision", message)
                    .with_context("element_type", element.mlir())
                    .with_context("target", target));
            }
        }
        Ok(Self { decoder, numerics, target, artifacts })
    }

    /// What the programs are compiled for.
    pub(crate) fn target(&self) -> &ResolvedTarget {
        &self.target
    }

    /// Whether attention takes as long as the positions in use say: then lengths may be wide.
    pub(crate) fn attends_in_use(&self) -> Result<bool> {
        attends_in_use(&self.decoder, &self.target)
    }

    /// The text that the compiler is given for `shape`.
    pub(crate) fn text(&self, shape: &ProgramShape) -> Result<String> {
        let program = decoder_program(&self.decoder, self.numerics, shape)?;
        lower(&program.module, &self.target, self.numerics.precision)
    }

    /// The compiled program for `shape`.
    ///
    /// # Errors
    ///
    /// Those of writing the graph and of [`Artifacts::get`].
    pub(crate) fn compile(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Artifact> {
        let text = self.text(shape)?;
        let label = format!("{} {shape} {}", self.decoder.model_type, self.numerics.operand.mlir());
        let made = self.artifacts.get(&text, &self.options().with_label(label), cancel);
        let artifact = made.map_err(|error| blame(error, &text, &self.decoder))?;
        tracing::debug!(program = %shape, target = %self.target, compiled = artifact.compiled, seconds = artifact.elapsed.as_secs_f64(), "ready");
        Ok(artifact)
    }

    /// What `compiler` makes of `text`, which [`text`](Self::text) gave, in a way of its own; the cache has no part in it.
    ///
    /// # Errors
    ///
    /// Those of [`Compiler::revision`] and [`Compiler::compile`].
    pub(crate) fn compile_text(
        &self,
        compiler: &Compiler,
        text: &str,
        options: &CompileOptions,
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<u8>> {
        compiler.revision(cancel)?;
        compiler.compile(text, options, cancel).map_err(|error| blame(error, text, &self.decoder))
    }

    /// How programs are compiled.
    pub(crate) fn options(&self) -> CompileOptions {
        CompileOptions::new(self.target.clone())
    }
}
