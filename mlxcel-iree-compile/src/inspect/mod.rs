//! Inspecting compilation: programs, intermediate stages, generated code, and a summary of a step.
//!
//! ```text
//! llama-inspected/
//!   summary.txt  summary.json         a step of each program: dispatches, bytes, the largest dispatches
//!   1-at-256/
//!     program.mlir                    the compiler's input
//!     phases/decoder.6.flow.mlir  …   the program at the end of each phase of the compiler
//!     code/…                          each kernel on its way to machine code, and that
//!     statistics.json                 the compiler's own account
//!     program.vmfb                    the runtime's input
//! ```
//!
//! If a program does not compile, the folder keeps the stages up to the failure.

mod flow;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_core::{Control, Error, ErrorKind, LoadOptions, LoadProgress, LoadStage, ModelSource, Result};
use mlxcel_graph::{ProgramShape, ProgramWriter};
use mlxcel_iree_kernels::{Lowered, suited};
use mlxcel_iree_target::describe::file_stem;
use mlxcel_iree_target::{CompileTarget, ProgramOptions};
use mlxcel_models::files::read_regular;
use mlxcel_models::{Checkpoint, Decoder};

use crate::compiler::CompileOptions;
use crate::programs::ProgramCompiler;
use crate::toolchain::Toolchain;
use crate::wanted::{graph_options, here};

pub use summary::{Dispatch, Summary};

const OPERATION: &str = "inspect programs";
/// The most bytes of a text that the compiler writes.
const LONGEST_TEXT: u64 = 1 << 30;

/// Options of [`inspect`]; start from [`InspectOptions::default`], or convert [`LoadOptions`] with
/// `InspectOptions::from`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InspectOptions {
    /// The options that the model is opened with: precision, capacity (defaults to the model's limit), and
    /// with `all_programs` the number of sequences (defaults to 1).
    ///
    /// `progress` reports compiled programs; `cancel` stops. `threads`, `device` and `prepare` are rejected,
    /// since nothing runs.
    pub load: LoadOptions,
    /// The compile target; defaults to the engine's choice.
    pub target: Option<CompileTarget>,
    /// Whether to compile every program that sessions can use, instead of the two that every generation
    /// starts with.
    pub all_programs: bool,
}

impl From<LoadOptions> for InspectOptions {
    fn from(load: LoadOptions) -> Self {
        Self { load, ..Self::default() }
    }
}

impl InspectOptions {
    mlxcel_core::setters! {
        /// Sets the compile target.
        with_target(target: CompileTarget) => target = Some(target);
        /// Sets whether to compile every program.
        with_all_programs(all: bool) => all_programs = all;
    }
}

/// Compiles programs of the model in `source` with the compiler of `toolchain`, writes their intermediate
/// stages to the new or empty folder `destination`, and returns a summary of a step of each.
///
/// # Errors
///
/// Those of opening the checkpoint; [`ErrorKind::InvalidInput`] for options out of range, for a folder
/// that has something in it and for one whose path is not Unicode; [`ErrorKind::Toolchain`] without a compiler, [`ErrorKind::Compile`] if it fails;
/// [`ErrorKind::Io`] and [`ErrorKind::ResourceExhausted`] of writing.
pub fn inspect(
    toolchain: &Toolchain,
    wanted: &ProgramOptions,
    source: &ModelSource,
    destination: impl AsRef<Path>,
    options: &InspectOptions,
) -> Result<Vec<Summary>> {
    let control = options.load.cancel.as_ref().map(Control::cancelled_by).unwrap_or_default();
    let decoder = Checkpoint::from_source(source)?.decoder()?;
    let mut graph = graph_options(&options.load, wanted, OPERATION)?;
    let target = wanted.resolve(options.target.as_ref(), &here())?;
    graph = suited(graph, &decoder, &[target.hardware()?]);
    if let Some(tokens) = wanted.prefill_chunk {
        graph.limit_chunks(tokens);
    }
    let writer = ProgramWriter::new(decoder.clone(), &graph)?;
    let compiler = ProgramCompiler::new(writer, target, toolchain.artifacts()?)?;
    let shapes = match options.all_programs {
        true => graph.programs(&decoder)?,
        false => graph.first_programs(&decoder)?,
    };
    let folder = Folder::new(destination.as_ref())?;
    let report = |done: usize| {
        if let Some(progress) = &options.load.progress {
            progress(LoadProgress::new(LoadStage::Compile, done as u64, shapes.len() as u64));
        }
    };
    let mut summaries = Vec::with_capacity(shapes.len());
    for (done, shape) in shapes.iter().enumerate() {
        control.check(OPERATION)?;
        report(done);
        let summary = one(toolchain, &compiler, &folder, shape, &decoder, options)
            .map_err(|error| error.with_context("program", shape))?;
        summaries.push(summary);
    }
    report(shapes.len());
    let text: String = summaries.iter().map(|summary| format!("{summary}\n")).collect();
    folder.write("summary.txt", text.as_bytes())?;
    folder.write_json("summary.json", &summaries)?;
    Ok(summaries)
}

/// Compiles one program and sums it up.
fn one(
    toolchain: &Toolchain,
    compiler: &ProgramCompiler,
    folder: &Folder,
    shape: &ProgramShape,
    decoder: &Decoder,
    options: &InspectOptions,
) -> Result<Summary> {
    let folder = folder.sub(&file_stem(shape))?;
    let Lowered { text, layouts, .. } = compiler.lowered(shape)?;
    folder.write("program.mlir", text.as_bytes())?;
    let (phases, code) = (folder.sub("phases")?, folder.sub("code")?);
    let statistics = folder.0.join("statistics.json");
    let mut how = compiler.options();
    how.flags.extend([
        format!("--dump-compilation-phases-to={}", phases.0.display()),
        format!("--iree-hal-dump-executable-files-to={}", code.0.display()),
        format!("--iree-scheduling-dump-statistics-file={}", statistics.display()),
        "--iree-scheduling-dump-statistics-format=json".to_owned(),
    ]);
    let binary = toolchain.compiler()?;
    let compile =
        |how: &CompileOptions| compiler.compile_text(&binary, &text, how, options.load.cancel.as_ref());
    // Where kernels are dumped, diagnostics point into the dump; asked again, the compiler names the
    // operation of the graph.
    let vmfb = compile(&how).map_err(|error| match error.kind() {
        ErrorKind::Compile => compile(&compiler.options()).err().unwrap_or(error),
        _ => error,
    })?;
    folder.write("program.vmfb", &vmfb)?;
    let flow = flow::read(&phases.find("flow.mlir")?);
    let statistics = Statistics::read(&statistics)?;
    let signature = compiler.writer().signature(shape);
    Summary::new(shape, compiler.target(), decoder, &signature, &layouts, flow, &statistics)
}

/// A folder that is written into.
struct Folder(PathBuf);

impl Folder {
    /// The folder at `path`, which is made unless it is there and empty.
    fn new(path: &Path) -> Result<Self> {
        let fail = |error| Error::io(OPERATION, path, error);
        fs::create_dir_all(path).map_err(fail)?;
        if fs::read_dir(path).map_err(fail)?.next().is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, OPERATION, "the folder is not empty")
                .with_context("path", path.display()));
        }
        // The compiler runs in a folder of its own.
        let path = fs::canonicalize(path).map_err(fail)?;
        if path.to_str().is_none() {
            let message = "the compiler takes only folders whose names are valid Unicode";
            return Err(
                Error::new(ErrorKind::InvalidInput, OPERATION, message).with_context("path", path.display())
            );
        }
        Ok(Self(path))
    }

    fn sub(&self, name: &str) -> Result<Self> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).map_err(|error| Error::io(OPERATION, &path, error))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, content).map_err(|error| Error::io(OPERATION, &path, error))
    }

    fn write_json(&self, name: &str, value: &impl serde::Serialize) -> Result<()> {
        let text = serde_json::to_vec_pretty(value).map_err(|error| {
            Error::new(ErrorKind::Internal, OPERATION, "a summary cannot be written as JSON")
                .with_source(error)
        })?;
        self.write(name, &text)
    }

    /// The text of the file whose name ends in `end`.
    fn find(&self, end: &str) -> Result<String> {
        let fail = |error| Error::io(OPERATION, &self.0, error);
        let names = fs::read_dir(&self.0).map_err(fail)?.flatten().map(|entry| entry.path());
        let path = names.into_iter().find(|path| path.to_string_lossy().ends_with(end)).ok_or_else(|| {
            Error::new(
                ErrorKind::Compile,
                OPERATION,
                "the compiler did not write the phase that the summary needs",
            )
            .with_context("phase", end)
        })?;
        let text = read_regular(&path, LONGEST_TEXT).map_err(|error| Error::io(OPERATION, &path, error))?;
        // What is not text is not what the summary looks for either.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The compiler's own account of a program.
struct Statistics(serde_json::Value);

impl Statistics {
    fn read(path: &Path) -> Result<Self> {
        let text = read_regular(path, LONGEST_TEXT).map_err(|error| Error::io(OPERATION, path, error))?;
        serde_json::from_slice(&text).map(Self).map_err(|error| {
            Error::new(ErrorKind::Compile, OPERATION, "the compiler's statistics have an unknown format")
                .with_context("path", path.display())
                .with_source(error)
        })
    }

    /// A number, such as `execution/copy-count`.
    fn count(&self, name: &str) -> Result<u64> {
        let number = self.0.pointer(&format!("/stream-aggregate/{name}"));
        number.and_then(serde_json::Value::as_u64).ok_or_else(|| {
            Error::new(ErrorKind::Compile, OPERATION, "the compiler's statistics lack a number")
                .with_context("number", name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_folder_that_the_compiler_cannot_be_told_is_refused_by_name() {
        use std::os::unix::ffi::OsStrExt as _;

        let place = tempfile::tempdir().unwrap();
        let odd = place.path().join(std::ffi::OsStr::from_bytes(b"inspected\xff"));
        let error = Folder::new(&odd).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.context("path").is_some_and(|path| path.contains("inspected")), "{error}");
        Folder::new(&place.path().join("with spaces, commas and \u{e4}")).unwrap();
    }
}
