//! The headers that IREE's own build generates: by flatcc, compiled here, and by a script of IREE's.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Schemas below `runtime/src/`; their readers and verifiers stand in the same places.
const SCHEMAS: [&str; 5] = [
    "iree/base/internal/flatcc/dummy.fbs",
    "iree/schemas/bytecode_module_def.fbs",
    "iree/schemas/cuda_executable_def.fbs",
    "iree/schemas/executable_debug_info.fbs",
    "iree/schemas/vulkan_executable_def.fbs",
];
const INSTRUCTIONS: &str = "iree/vm/bytecode/isa/isa.json";
const INSTRUCTION_TABLE: &str = "iree/vm/bytecode/isa/op_table.h";
const INSTRUCTION_SCRIPT: &str = "build_tools/scripts/generate_vm_isa.py";

/// Folders of flatcc with C files that are all of its compiler, and those that it shares.
const FLATCC_FOLDERS: [&str; 2] = ["src/compiler", "src/compiler/hash_tables"];
const FLATCC_FILES: [&str; 7] = [
    "src/cli/flatcc_cli.c",
    "src/runtime/builder.c",
    "src/runtime/emitter.c",
    "src/runtime/refmap.c",
    "external/hash/cmetrohash64.c",
    "external/hash/str_set.c",
    "external/hash/ptr_set.c",
];

/// Writes the headers below `include`.
pub(super) fn write(upstream: &Path, include: &Path) -> Result<()> {
    let tools = tempfile::tempdir().context("making a folder")?;
    let flatcc = tools.path().join("flatcc");
    compile_flatcc(&upstream.join("third_party/flatcc"), &flatcc)?;
    let sources = upstream.join("runtime/src");
    for schema in SCHEMAS {
        let place = include.join(schema);
        let folder = parent(&place)?;
        let mut command = Command::new(&flatcc);
        command.args(["--reader", "--verifier", "-I"]).arg(&sources).arg("-o").arg(folder);
        run(command.arg(sources.join(schema)))?;
    }
    let table = include.join(INSTRUCTION_TABLE);
    parent(&table)?;
    let mut command = Command::new("python3");
    command.arg("-I").arg(upstream.join(INSTRUCTION_SCRIPT)).arg("--schema").arg(sources.join(INSTRUCTIONS));
    run(command.arg("--op-table").arg(table))
}

fn compile_flatcc(flatcc: &Path, program: &Path) -> Result<()> {
    let mut command = Command::new("cc");
    command.args(["-O1", "-w", "-o"]).arg(program);
    for folder in ["include", "external", "config"] {
        command.arg("-I").arg(flatcc.join(folder));
    }
    for folder in FLATCC_FOLDERS.map(|folder| flatcc.join(folder)) {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let file = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            if file.extension().is_some_and(|extension| extension == "c") {
                command.arg(file);
            }
        }
    }
    run(command.args(FLATCC_FILES.map(|file| flatcc.join(file))))
}

/// The folder of a file, which is made if it is missing.
fn parent(file: &Path) -> Result<&Path> {
    let folder = file.parent().with_context(|| format!("{} has no folder", file.display()))?;
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(())
}
