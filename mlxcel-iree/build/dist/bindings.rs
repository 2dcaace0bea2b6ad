//! Bindings by bindgen, with the settings of `eerie-sys`: both features give the same names and types.

use std::env;
use std::path::{Path, PathBuf};

/// What a distribution installs of IREE's interface and this crate uses. The header of the bytecode module is not among
/// it: that one includes headers of flatcc, which distributions leave out.
const HEADERS: &[&str] = &[
    "iree/base/api.h",
    "iree/async/frontier_tracker.h",
    "iree/async/util/proactor_pool.h",
    "iree/hal/api.h",
    "iree/hal/driver_registry.h",
    "iree/hal/drivers/init.h",
    "iree/hal/local/loaders/embedded_elf_loader.h",
    "iree/modules/hal/debugging.h",
    "iree/modules/hal/module.h",
    "iree/modules/hal/types.h",
    "iree/vm/api.h",
];

/// Writes `iree_runtime.rs` into cargo's output folder.
pub(super) fn generate(include: &Path) -> Result<(), String> {
    if let Some(missing) = HEADERS.iter().find(|header| !include.join(header).is_file()) {
        return Err(format!("the IREE distribution lacks the header {missing} in {}", include.display()));
    }
    let source = HEADERS.iter().map(|header| format!("#include \"{header}\"\n")).collect::<String>();
    let target = bindgen::RustTarget::stable(88, 0).map_err(|error| error.to_string())?;
    let bindings = bindgen::Builder::default()
        .header_contents("iree_runtime.h", &source)
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_type("iree_.*")
        .allowlist_function("iree_.*")
        .allowlist_var("(iree_|IREE_).*")
        .derive_default(true)
        .size_t_is_usize(true)
        .generate_comments(false)
        .layout_tests(false)
        .formatter(bindgen::Formatter::Prettyplease)
        .rust_target(target)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .generate()
        .map_err(|error| {
            format!("no bindings could be made from the headers in {}: {error}", include.display())
        })?;
    let out = env::var_os("OUT_DIR").map(PathBuf::from).ok_or("cargo gave no OUT_DIR")?;
    bindings.write_to_file(out.join("iree_runtime.rs")).map_err(|error| format!("writing bindings: {error}"))
}
