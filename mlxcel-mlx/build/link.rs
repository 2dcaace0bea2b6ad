//! Links the final program with libmlx so that the loader finds it again.
//!
//! Cargo hands the final linker a dependency's libraries and where they are, but none of its other arguments,
//! so no path that is searched at run time can be set here. The name of a library can: a program asks the
//! loader for a shared library by the name that the linker found *in* it. So the linker is shown a stand-in
//! for libmlx, made here, that has the same symbols and the absolute path of the real one as its name.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Architecture, Object, ObjectSymbol, SymbolKind, SymbolScope};

use crate::locate::Mlx;

/// How libmlx is linked: `path` (the default) as above, `soname` by its plain name.
pub(crate) const VARIABLE: &str = "MLXCEL_MLX_LINK";

/// The stand-in's name: not libmlx, lest a loader that is shown its folder takes it for that.
const STAND_IN: &str = "mlxcel_mlx";

/// Prints what cargo hands the linker. `compiler` starts the C++ compiler for the target.
pub(crate) fn link(mlx: &Mlx, compiler: &Command) -> Result<(), String> {
    let way = env::var(VARIABLE).unwrap_or_default();
    match way.as_str() {
        "" | "path" => {
            let folder = stand_in(mlx.library(), compiler)?;
            println!("cargo:rustc-link-search=native={}", folder.display());
            println!("cargo:rustc-link-lib=dylib={STAND_IN}");
        }
        "soname" => {
            let folder = mlx.library().parent().unwrap_or(Path::new("/"));
            println!("cargo:rustc-link-search=native={}", folder.display());
            println!("cargo:rustc-link-lib=dylib=mlx");
        }
        other => return Err(format!("{VARIABLE} is `{other}`; it may be `path` or `soname`")),
    }
    Ok(())
}

/// Makes the stand-in for `library` and gives the folder that it is in.
fn stand_in(library: &Path, compiler: &Command) -> Result<PathBuf, String> {
    let bytes = fs::read(library).map_err(|error| format!("reading {}: {error}", library.display()))?;
    let file = object::File::parse(&*bytes)
        .map_err(|error| format!("{} is no shared library: {error}", library.display()))?;
    let (found, wanted) = (file.architecture(), target_architecture());
    if wanted.is_some_and(|wanted| wanted != found) {
        return Err(format!(
            "{} is for the architecture {found:?}, and the target is another; name MLX for the target in {}",
            library.display(),
            crate::locate::VARIABLE
        ));
    }
    let symbols = Symbols::of(&file);
    if symbols.is_empty() {
        return Err(format!("{} exports nothing", library.display()));
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("stand-in");
    fs::create_dir_all(&folder).map_err(|error| format!("creating {}: {error}", folder.display()))?;
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))
    };
    if library.extension().is_some_and(|extension| extension == "dylib") {
        // Apple's linkers take a library described in text.
        write(&folder.join(format!("lib{STAND_IN}.tbd")), symbols.text_stub(library)?)?;
        return Ok(folder);
    }
    let source = folder.join("symbols.s");
    write(&source, symbols.assembly())?;
    let output = folder.join(format!("lib{STAND_IN}.so"));
    let mut command = Command::new(compiler.get_program());
    command.args(compiler.get_args()).args(["-shared", "-nostdlib", "-Xlinker", "-soname", "-Xlinker"]);
    command.arg(library).arg("-o").arg(&output).arg(&source);
    let run = command.output().map_err(|error| format!("starting the C++ compiler: {error}"))?;
    if !run.status.success() {
        return Err(format!(
            "the stand-in for {} could not be linked: {}",
            library.display(),
            String::from_utf8_lossy(&run.stderr)
        ));
    }
    Ok(folder)
}

/// The architecture that is compiled for, of those that MLX is built for.
fn target_architecture() -> Option<Architecture> {
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => Some(Architecture::X86_64),
        Ok("aarch64") => Some(Architecture::Aarch64),
        _ => None,
    }
}

/// What a library exports, by name; each set in the order of the names, so that the stand-in is the same each
/// time.
#[derive(Default)]
struct Symbols<'a> {
    functions: BTreeSet<(&'a str, bool)>,
    data: BTreeSet<(&'a str, bool, u64)>,
    thread_local: BTreeSet<(&'a str, bool)>,
}

impl<'a> Symbols<'a> {
    fn of(file: &object::File<'a>) -> Self {
        let mut symbols = Self::default();
        // Mach-O keeps what is exported among all symbols.
        let listed: Vec<_> = match file {
            object::File::Elf64(_) => file.dynamic_symbols().collect(),
            _ => file.symbols().filter(|symbol| symbol.scope() == SymbolScope::Dynamic).collect(),
        };
        for symbol in listed.iter().filter(|symbol| symbol.is_definition()) {
            let Ok(name) = symbol.name() else { continue };
            let weak = symbol.is_weak();
            match symbol.kind() {
                SymbolKind::Text => drop(symbols.functions.insert((name, weak))),
                SymbolKind::Tls => drop(symbols.thread_local.insert((name, weak))),
                _ => drop(symbols.data.insert((name, weak, symbol.size()))),
            }
        }
        symbols
    }

    fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// All symbols, without anything behind them, in an assembler's language that GNU's and LLVM's share for
    /// all processors.
    fn assembly(&self) -> String {
        let mut text = String::new();
        let mut define = |section: &str, name: &str, weak: bool, kind: &str, size: u64| {
            let binding = if weak { ".weak" } else { ".globl" };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{section}\n{binding} {name}\n.type {name}, %{kind}\n{name}:\n.size {name}, {size}"
            );
        };
        for (name, weak) in &self.functions {
            define(".text", name, *weak, "function", 0);
        }
        for (name, weak, size) in &self.data {
            define(".data", name, *weak, "object", *size);
        }
        for (name, weak) in &self.thread_local {
            define(".section .tbss,\"awT\",%nobits", name, *weak, "tls_object", 8);
        }
        text.push_str(".section .note.GNU-stack,\"\",%progbits\n");
        text
    }

    /// The library as a text-based stub, version 4.
    fn text_stub(&self, library: &Path) -> Result<String, String> {
        let path = library
            .to_str()
            .filter(|path| !path.contains(['\'', '\n']))
            .ok_or_else(|| format!("the path {} cannot be written into a stub", library.display()))?;
        let architecture =
            if target_architecture() == Some(Architecture::X86_64) { "x86_64" } else { "arm64" };
        let list = |names: &mut dyn Iterator<Item = &'a str>| {
            names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
        };
        let mut all =
            self.functions.iter().copied().chain(self.data.iter().map(|(name, weak, _)| (*name, *weak)));
        let (weak, strong): (Vec<_>, Vec<_>) = all.by_ref().partition(|(_, weak)| *weak);
        Ok(format!(
            "--- !tapi-tbd\n\
             tbd-version: 4\n\
             targets: [ {architecture}-macos ]\n\
             install-name: '{path}'\n\
             exports:\n  \
               - targets: [ {architecture}-macos ]\n    \
                 symbols: [ {} ]\n    \
                 weak-symbols: [ {} ]\n    \
                 thread-local-symbols: [ {} ]\n\
             ...\n",
            list(&mut strong.iter().map(|(name, _)| *name)),
            list(&mut weak.iter().map(|(name, _)| *name)),
            list(&mut self.thread_local.iter().map(|(name, _)| *name)),
        ))
    }
}
