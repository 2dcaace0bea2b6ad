//! From a shape to a compiled program: writes the graph, lowers it for the target, and compiles it or takes
//! it from the cache.

use std::sync::{Arc, OnceLock};

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{Outputs, ProgramShape, ProgramWriter};
use mlxcel_iree_kernels::{Layouts, Lowered, device_check, lower};
use mlxcel_iree_target::{CPU_BACKEND, ResolvedTarget};
use mlxcel_models::Feature;
use mlxcel_stablehlo::ElementType;

use crate::artifact::{Artifact, Artifacts};
use crate::compiler::{CompileOptions, Compiler};
use crate::diagnostics::with_operation;

/// Fuses an operation into a dispatch that reads its result only if nothing else reads it.
const NO_SHARED_PRODUCERS: &str = "--iree-dispatch-creation-fuse-multi-use=false";

/// Compiles the programs of one model for one target.
#[derive(Clone, Debug)]
pub struct ProgramCompiler {
    writer: ProgramWriter,
    target: ResolvedTarget,
    artifacts: Artifacts,
    /// How the weights lie, once a program has been lowered.
    layouts: Arc<OnceLock<Layouts>>,
}

impl ProgramCompiler {
    /// Compiles programs written by `writer`, by the schedule of kernels that `target` has, else by the one
    /// that was [measured](crate::cache::Cache::keep_schedule) for the model's matrices.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if programs for the target do not support the element type: the compiler
    /// does not terminate for some.
    pub fn new(writer: ProgramWriter, target: ResolvedTarget, artifacts: Artifacts) -> Result<Self> {
        for element in [writer.numerics.operand, writer.numerics.kv] {
            // Processors do not compute in bytes, but can store caches in them.
            let kept = element == ElementType::I8 && target.target().backend() == CPU_BACKEND;
            if !kept && target.element_type_for(element) != element {
                let message =
                    "programs for the target do not compute in this type; with exact precision they do";
                return Err(Error::new(ErrorKind::Unsupported, "choose precision", message)
                    .with_context("element_type", element.mlir())
                    .with_context("target", target));
            }
        }
        let target = artifacts.scheduled(target, &writer);
        Ok(Self { writer, target, artifacts, layouts: Arc::default() })
    }

    /// The compile target.
    pub fn target(&self) -> &ResolvedTarget {
        &self.target
    }

    /// The writer of the graphs.
    pub fn writer(&self) -> &ProgramWriter {
        &self.writer
    }

    /// The lowered program for `shape`, the compiler's input.
    ///
    /// # Errors
    ///
    /// Those of writing and lowering the graph; [`ErrorKind::Internal`] if it reads a weight in another
    /// layout than the model's other programs.
    pub fn lowered(&self, shape: &ProgramShape) -> Result<Lowered> {
        let lowered = self.lower(shape)?;
        if reads_every_weight(shape) {
            self.layouts.get_or_init(|| lowered.layouts.clone());
        }
        self.layouts()?.check(&lowered.layouts)?;
        Ok(lowered)
    }

    fn lower(&self, shape: &ProgramShape) -> Result<Lowered> {
        let program = self.writer.program(shape)?;
        lower(&program.module, self.target.hardware()?, self.writer.numerics.precision)
    }

    /// The layouts of weights, common to all programs.
    ///
    /// # Errors
    ///
    /// Those of writing and lowering a graph.
    pub fn layouts(&self) -> Result<&Layouts> {
        if let Some(layouts) = self.layouts.get() {
            return Ok(layouts);
        }
        // A decoder without a head has programs for hidden states only.
        let outputs = if self.writer.decoder.head.is_some() { Outputs::Last } else { Outputs::Hidden };
        let smallest = ProgramShape { rows: vec![1], length: 256, outputs };
        let layouts = self.lower(&smallest)?.layouts;
        Ok(self.layouts.get_or_init(|| layouts))
    }

    /// The compiled program for `shape`.
    ///
    /// # Errors
    ///
    /// Those of writing the graph and of [`Artifacts::get`].
    pub fn compile(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Artifact> {
        let ProgramWriter { decoder, numerics, weights, .. } = &self.writer;
        let text = self.lowered(shape)?.text;
        let label = format!("{} {shape} {}", decoder.model_type, numerics.operand.mlir());
        let made = self.artifacts.get(&text, &self.options().with_label(label), cancel);
        let artifact = made.map_err(|error| with_operation(error, &text, weights))?;
        tracing::debug!(program = %shape, target = %self.target, compiled = artifact.compiled, seconds = artifact.elapsed.as_secs_f64(), "ready");
        Ok(artifact)
    }

    /// The compiled program of [`device_check`].
    ///
    /// # Errors
    ///
    /// Those of writing the graph and of [`Artifacts::get`].
    pub fn device_check(&self, cancel: Option<&CancelToken>) -> Result<Artifact> {
        let text = device_check::program(self.target.hardware()?)?;
        let options = CompileOptions::new(self.target.clone()).with_label("device check");
        self.artifacts.get(&text, &options, cancel)
    }

    /// What `compiler` makes of `text`, which [`lowered`](Self::lowered) gave, in a way of its own; the cache
    /// has no part in it.
    ///
    /// # Errors
    ///
    /// The errors of [`Compiler::revision`] and [`Compiler::compile`].
    pub fn compile_text(
        &self,
        compiler: &Compiler,
        text: &str,
        options: &CompileOptions,
        cancel: Option<&CancelToken>,
    ) -> Result<Vec<u8>> {
        compiler.revision(cancel)?;
        compiler
            .compile(text, options, cancel)
            .map_err(|error| with_operation(error, text, &self.writer.weights))
    }

    /// How the model's programs are compiled.
    pub fn options(&self) -> CompileOptions {
        let mut options = CompileOptions::new(self.target.clone());
        // Experts by token follow from no layer before. If several layers choose so, the compiler fuses an
        // operation that two of them share into a dispatch of the later one, which the earlier one then waits
        // for, and stops at "partition set out of order".
        if self.writer.decoder.features().contains(Feature::TokenRouter) {
            options.flags.push(NO_SHARED_PRODUCERS.to_owned());
        }
        options
    }
}

/// Whether no weight is unread by programs for `shape`: those without logits do not read the head.
fn reads_every_weight(shape: &ProgramShape) -> bool {
    shape.outputs != Outputs::Hidden
}

#[cfg(test)]
mod tests {
    use mlxcel_core::Precision;
    use mlxcel_graph::{Numerics, state_layouts};

    use super::*;
    use crate::cache::Cache;
    use crate::testing::{checkpoint, resolved};

    /// The flags of programs of a fixture that a target alone does not have.
    fn further_flags(fixture: &str) -> Vec<String> {
        let decoder = checkpoint(fixture).decoder().unwrap();
        let numerics = Numerics::new(Precision::Exact, &decoder).unwrap();
        let layouts = state_layouts(&decoder, numerics, 64).unwrap();
        let writer = ProgramWriter::with_layouts(decoder, numerics, layouts).unwrap();
        let (target, folder) = (resolved("llvm-cpu:x86-64-v3"), tempfile::tempdir().unwrap());
        let artifacts = Artifacts::new(None, Cache::open(Some(folder.path())).unwrap());
        let usual = CompileOptions::new(target.clone()).flags;
        let flags = ProgramCompiler::new(writer, target, artifacts).unwrap().options().flags;
        assert_eq!(flags[..usual.len()], usual);
        flags[usual.len()..].to_vec()
    }

    #[test]
    fn only_experts_by_token_limit_fusion() {
        assert_eq!(further_flags("deepseek_v4"), [NO_SHARED_PRODUCERS]);
        for fixture in ["llama", "deepseek_v32", "olmoe"] {
            assert!(further_flags(fixture).is_empty(), "{fixture}");
        }
    }
}
