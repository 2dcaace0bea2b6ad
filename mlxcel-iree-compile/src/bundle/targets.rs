//! The targets of a bundle.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_graph::{ENTRY, GraphModelOptions, ProgramShape, ProgramWriter};
use mlxcel_iree_kernels::{EXPORT_ENTRY, Layouts, export, suited};
use mlxcel_iree_target::cpu::Code;
use mlxcel_iree_target::manifest::STABLEHLO;
use mlxcel_iree_target::{CPU_BACKEND, CompileTarget, ProgramOptions, ResolvedTarget};
use mlxcel_models::Decoder;

use super::options::BundleOptions;
use super::staging::OPERATION;
use crate::programs::ProgramCompiler;
use crate::toolchain::Toolchain;
use crate::wanted::here;

/// One thing to write programs for.
pub(super) struct BundleTarget {
    /// Its name; of a compile target all that it means, `host` resolved.
    pub(super) name: String,
    /// The features that a processor needs to run the programs.
    pub(super) required_features: Vec<String>,
    writer: ProgramWriter,
    /// None if programs are written as text.
    compiler: Option<ProgramCompiler>,
}

impl BundleTarget {
    /// All targets in `options`, without duplicates, with programs for sessions of `graph`, which records
    /// where our kernels attend.
    ///
    /// All targets have the same programs, so lengths are wide only where that costs nothing on any.
    pub(super) fn all(
        toolchain: &Toolchain,
        wanted: &ProgramOptions,
        options: &BundleOptions,
        decoder: &Decoder,
        graph: &mut GraphModelOptions,
    ) -> Result<Vec<Self>> {
        let named = options.targets.iter().map(|name| Some(name.as_str()));
        let named = named.chain(options.targets.is_empty().then_some(None));
        let resolved = named.map(|name| match name {
            Some(STABLEHLO) => Ok(None),
            _ => {
                let target: Option<CompileTarget> = name.map(str::parse).transpose()?;
                wanted.resolve(target.as_ref(), &here()).map(Some)
            }
        });
        let resolved = resolved.collect::<Result<Vec<_>>>()?;
        let hardware = |target: &Option<ResolvedTarget>| target.as_ref().map(ResolvedTarget::hardware);
        // Where one of the targets is a text, its compiler's hardware is not known.
        if let Some(hardware) = resolved.iter().map(hardware).collect::<Option<Result<Vec<_>>>>() {
            *graph = suited(graph.clone(), decoder, &hardware?);
        }
        if let Some(tokens) = wanted.prefill_chunk {
            graph.limit_chunks(tokens);
        }
        let writer = ProgramWriter::new(decoder.clone(), graph)?;
        let mut targets: Vec<Self> = Vec::with_capacity(resolved.len());
        for target in resolved {
            let target = Self::new(toolchain, target, writer.clone())?;
            if targets.iter().any(|known| known.name == target.name) {
                return Err(Error::new(ErrorKind::InvalidInput, OPERATION, "a target is listed twice")
                    .with_context("target", target.name));
            }
            targets.push(target);
        }
        Ok(targets)
    }

    fn new(toolchain: &Toolchain, target: Option<ResolvedTarget>, writer: ProgramWriter) -> Result<Self> {
        let Some(target) = target else {
            let name = STABLEHLO.to_owned();
            return Ok(Self { name, required_features: Vec::new(), writer, compiler: None });
        };
        let (name, of_target) = (target.to_string(), target.target());
        let required_features = match of_target.backend() {
            CPU_BACKEND => Code::of(of_target)?.features.into_iter().map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let compiler = ProgramCompiler::new(writer.clone(), target, toolchain.artifacts()?)?;
        Ok(Self { name, required_features, writer, compiler: Some(compiler) })
    }

    /// Whether the compiler makes the programs.
    pub(super) fn is_compiled(&self) -> bool {
        self.compiler.is_some()
    }

    /// How the programs take their weights.
    pub(super) fn layouts(&self) -> Result<Layouts> {
        let compiler = self.compiler.as_ref();
        compiler.map_or_else(|| Ok(Layouts::default()), |compiler| compiler.layouts().cloned())
    }

    /// The content of a program's file.
    pub(super) fn make(&self, shape: &ProgramShape, options: &BundleOptions) -> Result<Vec<u8>> {
        match &self.compiler {
            Some(compiler) => Ok(compiler.compile(shape, options.load.cancel.as_ref())?.bytes),
            None => Ok(export(&self.writer.program(shape)?.module)?.into_bytes()),
        }
    }

    /// The program that checks a device, for accelerators.
    pub(super) fn device_check(&self, options: &BundleOptions) -> Result<Option<Vec<u8>>> {
        let is_accelerator =
            |compiler: &&ProgramCompiler| compiler.target().target().backend() != CPU_BACKEND;
        let compiler = self.compiler.as_ref().filter(is_accelerator);
        let check = compiler.map(|compiler| compiler.device_check(options.load.cancel.as_ref()));
        Ok(check.transpose()?.map(|artifact| artifact.bytes))
    }

    /// The public function of the programs.
    pub(super) fn entry(&self) -> &'static str {
        if self.is_compiled() { ENTRY } else { EXPORT_ENTRY }
    }

    /// How their files' names end.
    pub(super) fn extension(&self) -> &'static str {
        if self.is_compiled() { "vmfb" } else { "mlir" }
    }

    /// The folder that they are in.
    pub(super) fn folder(&self) -> String {
        format!("programs/{}", plain_name(&self.name))
    }
}

/// The name of a target as files can have it.
pub(super) fn plain_name(target: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.+".contains(c) { c } else { '-' };
    target.chars().map(plain).collect()
}
