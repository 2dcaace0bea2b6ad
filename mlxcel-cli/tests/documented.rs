//! The console blocks of the documentation that run the program, run as they are by a shell: in a folder
//! where each model has the bundled model's weights, with a `cargo` and others that install nothing.
#![cfg(all(unix, feature = "portable"))]

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::blocks::{Page, pages};
use crate::program::{Run, copy_of_storyteller};
use crate::support::write_script;

/// `mlxcel`, whose servers end when they are ready.
const PROGRAM: &str = "#!/bin/sh
[ \"$1\" = serve ] || exec \"$MLXCEL\" \"$@\"
\"$MLXCEL\" \"$@\" > address &
until [ -s address ]; do kill -0 $! 2> /dev/null || { wait $!; exit; }; sleep 0.1; done
kill $! && wait $!
";

/// What installs: with `--root FOLDER`, the program is put into that folder.
const INSTALLER: &str = "#!/bin/sh
while [ $# -gt 1 ]; do
    if [ \"$1\" = --root ]; then mkdir -p \"$2/bin\" && ln -s \"$MLXCEL\" \"$2/bin/mlxcel\"; fi
    shift
done
";

const LINE: &str = "Tell me a story about a fox named Pip.\n";

/// Whether a block needs the engine `iree`, which compiles for a while.
fn compiles(block: &str) -> bool {
    block.contains("mlxcel bundle ") || block.contains("mlxcel tune ")
}

/// Whether a block needs a plugin that is not there, or an engine that is not compiled in.
fn lacks_plugin(block: &str) -> bool {
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.toolchain/pjrt");
    block.contains("--backend pjrt") && !(cfg!(feature = "pjrt") && plugin.exists())
}

/// Runs the chosen blocks of the pages for users, each in a folder of its own.
fn run(chosen: impl Fn(&str) -> bool) -> usize {
    let programs = tempfile::tempdir().unwrap();
    write_script(&programs.path().join("mlxcel"), PROGRAM);
    for name in ["cargo", "pip", "rustup", "sudo"] {
        write_script(&programs.path().join(name), INSTALLER);
    }
    let model = copy_of_storyteller();
    let config = model.path().join("config.json");
    // The pages have models with longer contexts.
    let text = fs::read_to_string(&config).unwrap();
    let long = text.replace("\"max_position_embeddings\": 1024", "\"max_position_embeddings\": 8192");
    assert_ne!(text, long);
    fs::write(&config, long).unwrap();

    let mut count = 0;
    for page in pages().iter().filter(|page| page.is_for_users()) {
        for block in page.blocks().iter().filter(|block| chosen(block)) {
            run_block(page, block, programs.path(), model.path());
            count += 1;
        }
    }
    count
}

fn run_block(page: &Page, block: &str, programs: &Path, model: &Path) {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let words: Vec<&str> = block.split_whitespace().collect();
    for pair in words.windows(2).filter(|pair| pair[0] == "--model") {
        let link = place.join(pair[1]);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        if !link.exists() {
            symlink(model, link).unwrap();
        }
    }
    symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.toolchain"), place.join(".toolchain")).unwrap();
    fs::create_dir(place.join("hub")).unwrap();
    fs::write(place.join("text.txt"), LINE.repeat(4)).unwrap();
    fs::write(place.join("mlxcel.toml"), "port = 0\n").unwrap();

    let mut path = programs.as_os_str().to_owned();
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-ec", block]).current_dir(place).env("PATH", path).env("HOME", place);
    shell.env("MLXCEL", env!("CARGO_BIN_EXE_mlxcel")).env("MLXCEL_CONFIG", place.join("mlxcel.toml"));
    shell.env("HF_HUB_CACHE", place.join("hub")).env("MLXCEL_CACHE_DIR", place.join("cache"));
    shell.env("MLXCEL_BACKEND", "portable");
    let Run { status, out, err } = Run::with_input(&mut shell, LINE.as_bytes());
    assert_eq!(status, 0, "{}:\n{block}\n{out}{err}", page.name);
}

#[test]
fn blocks_of_the_documentation_run() {
    let count = run(|block| !compiles(block) && !lacks_plugin(block));
    assert!(count >= 6, "{count} blocks");
}

/// Bundles of some contexts and targets compile for minutes.
#[cfg(feature = "iree")]
mod nightly {
    #[test]
    fn blocks_that_compile_run() {
        let count = super::run(super::compiles);
        assert!(count >= 2, "{count} blocks");
    }
}
