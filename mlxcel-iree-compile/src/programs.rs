//! From a shape to a compiled program: the graph is written, lowered for the target, and compiled or found in the cache.

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{Program, ProgramShape, ProgramWriter};
use mlxcel_iree_kernels::lower;
use mlxcel_iree_target::{CPU_BACKEND, ResolvedTarget};
use mlxcel_stablehlo::ElementType;

use crate::artifact::{Artifact, Artifacts};
use crate::blame::blame;
use crate::compiler::{CompileOptions, Compiler};

/// Compiles the programs of one model for one target.
#[derive(Clone, Debug)]
pub struct ProgramCompiler {
    writer: ProgramWriter,
    target: ResolvedTarget,
    artifacts: Artifacts,
}

impl ProgramCompiler {
    /// Compiles what `writer` writes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where programs for the target do not compute in that type: for some the compiler does not
    /// come to an end.
    pub fn new(writer: ProgramWriter, target: ResolvedTarget, artifacts: Artifacts) -> Result<Self> {
        for element in [writer.numerics.operand, writer.numerics.kv] {
            // Bytes are no type to compute in, yet what is kept in them can be on a processor.
            let kept = element == ElementType::I8 && target.target().backend() == CPU_BACKEND;
            if !kept && target.element_type_for(element) != element {
                let message =
                    "programs for the target do not compute in this type; with exact precision they do";
                return Err(Error::new(ErrorKind::Unsupported, "choose precision", message)
                    .with_context("element_type", element.mlir())
                    .with_context("target", target));
            }
        }
        Ok(Self { writer, target, artifacts })
    }

    /// What the programs are compiled for.
    pub fn target(&self) -> &ResolvedTarget {
        &self.target
    }

    /// The graph for `shape`.
    pub fn program(&self, shape: &ProgramShape) -> Result<Program> {
        self.writer.program(shape)
    }

    /// The text that the compiler is given for `shape`.
    pub fn text(&self, shape: &ProgramShape) -> Result<String> {
        lower(&self.program(shape)?.module, self.target.hardware()?, self.writer.numerics.precision)
    }

    /// The compiled program for `shape`.
    ///
    /// # Errors
    ///
    /// Those of writing the graph and of [`Artifacts::get`].
    pub fn compile(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Artifact> {
        let ProgramWriter { decoder, numerics, .. } = &self.writer;
        let text = self.text(shape)?;
        let label = format!("{} {shape} {}", decoder.model_type, numerics.operand.mlir());
        let made = self.artifacts.get(&text, &self.options().with_label(label), cancel);
        let artifact = made.map_err(|error| blame(error, &text, decoder))?;
        tracing::debug!(program = %shape, target = %self.target, compiled = artifact.compiled, seconds = artifact.elapsed.as_secs_f64(), "ready");
        Ok(artifact)
    }

    /// What `compiler` makes of `text`, which [`text`](Self::text) gave, in a way of its own; the cache has no part in it.
    ///
    /// # Errors
    ///
    /// Those of [`Compiler::revision`] and [`Compiler::compile`].
    pub fn compile_text(
        &self,
        compiler: &Compiler,
        text: &str,
        options: &CompileOptions,
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<u8>> {
        compiler.revision(cancel)?;
        compiler.compile(text, options, cancel).map_err(|error| blame(error, text, &self.writer.decoder))
    }

    /// How programs are compiled.
    pub fn options(&self) -> CompileOptions {
        CompileOptions::new(self.target.clone())
    }
}
