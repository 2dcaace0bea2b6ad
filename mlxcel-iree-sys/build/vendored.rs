//! The feature `vendored`: IREE's runtime from source, by a C compiler and nothing else.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sources::{Selection, files};
use crate::{compile, cuda, has_feature};

/// The archive.
const LIBRARY: &str = "mlxcel_iree";

pub(crate) fn build(system: &str) -> Result<(), String> {
    let variable = |name: &str| env::var(name).map_err(|_| format!("cargo did not set {name}"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    for folder in ["iree", "generated", "corrections"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    let environment = variable("CARGO_CFG_TARGET_ENV")?;
    check_platform(system, &environment, &variable("CARGO_CFG_TARGET_POINTER_WIDTH")?)?;
    let toolkit = if has_feature("CUDA") { Some(cuda::find_headers()?) } else { None };
    let files = files(Selection {
        system,
        msvc: environment == "msvc",
        architecture: &variable("CARGO_CFG_TARGET_ARCH")?,
        cuda: toolkit.is_some(),
        vulkan: has_feature("VULKAN"),
    });
    let sources = root.join("iree");
    if let Some(missing) = files.iter().find(|file| !sources.join(file).is_file()) {
        return Err(no_sources(&root, missing));
    }
    let mut build = compile::runtime(&root, true, None);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let compiled = |file: &String| match (corrected(file), file.ends_with(CLAIMS.0)) {
        (Some(correction), _) => Ok(root.join(correction)),
        (None, true) => with_claims(&root, &sources.join(file), &out),
        (None, false) => Ok(sources.join(file)),
    };
    let files = files.iter().map(compiled).collect::<Result<Vec<_>, _>>()?;
    build.file(root.join("generated/layout.c")).files(files);
    if let Some(toolkit) = toolkit {
        build.include(toolkit);
    }
    build.try_compile(LIBRARY).map_err(|error| {
        format!(
            "IREE's runtime could not be compiled: {error}\n\
             It takes a C compiler (Debian, Ubuntu: `apt install gcc`; Fedora: `dnf install gcc`; macOS: \
             `xcode-select --install`), or the one that CC names."
        )
    })?;
    let libraries: &[&str] = match system {
        "windows" => &["advapi32", "bcrypt", "dbghelp", "synchronization", "ws2_32"],
        "macos" | "ios" => &[],
        "android" => &["m", "dl"],
        // musl is one archive, and the linker may find libm of another C library.
        _ if environment == "musl" => &[],
        _ => &["m", "dl", "pthread"],
    };
    for library in libraries {
        println!("cargo::rustc-link-lib={library}");
    }
    Ok(())
}

/// What is compiled in the place of a file of IREE that has a defect.
fn corrected(file: &str) -> Option<&'static str> {
    let corrections = [
        ("/async/semaphore.c", "corrections/semaphore.c"),
        ("/threading/thread_pthreads.c", "corrections/thread_pthreads.c"),
        ("/local_task/task_queue.c", "corrections/task_queue.c"),
        ("/vulkan/command_buffer.c", "corrections/vulkan_command_buffer.c"),
        ("/vulkan/queue.c", "corrections/vulkan_queue.c"),
    ];
    corrections.into_iter().find_map(|(original, correction)| file.ends_with(original).then_some(correction))
}

/// The file of IREE in which workers claim workgroups, and the number that they claim there.
const CLAIMS: (&str, &str) = ("/local_task/block_processor.c", "counter + tiles_per_reservation");

/// Copies that file to `out`, with claims as `corrections/tile_claims.h` has them: no function of it can be
/// overridden alone.
fn with_claims(root: &Path, file: &Path, out: &Path) -> Result<PathBuf, String> {
    let (_, original) = CLAIMS;
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let (before, after) = text
        .split_once(original)
        .filter(|(_, after)| !after.contains(original))
        .ok_or_else(|| format!("{} does not have `{original}` once", file.display()))?;
    let claims = root.join("corrections/tile_claims.h");
    let text = format!(
        "#include \"{}\"\n{before}counter + mlxcel_tiles_to_claim(tile_count - counter, worker_count){after}",
        claims.display().to_string().replace('\\', "/"),
    );
    let corrected = out.join("block_processor.c");
    fs::write(&corrected, text).map_err(|error| format!("{}: {error}", corrected.display()))?;
    Ok(corrected)
}

/// Refuses platforms whose files are not in the list, or whose types are not those of the bindings.
fn check_platform(system: &str, environment: &str, pointer_width: &str) -> Result<(), String> {
    let known = match system {
        "windows" => environment == "msvc",
        "linux" | "android" | "macos" | "ios" => true,
        _ => false,
    };
    if known && pointer_width == "64" {
        return Ok(());
    }
    Err(format!(
        "mlxcel-iree-sys builds IREE's runtime for 64-bit Linux, Android, macOS, iOS and Windows (MSVC), and this target is none of \
         them ({system}, {environment}, {pointer_width} bits); the engine `portable` of mlxcel-session runs everywhere"
    ))
}

/// What to run where the sources are not there: in a clone of the repository, or in cargo's checkout of it.
fn no_sources(root: &Path, missing: &str) -> String {
    let repository = root.parent().unwrap_or(root);
    format!(
        "IREE's C sources are not in {root}: {missing} is missing.\n\
         The package on crates.io has them, the repository does not. To unpack them run\n\
         \n    cargo run --manifest-path {manifest} --package xtask -- setup --sources\n\n\
         once, and build again; in a clone, `cargo xtask setup` does that and the rest.",
        root = root.join("iree").display(),
        manifest = repository.join("Cargo.toml").display(),
    )
}
