//! A layer of Vulkan by which a test has the driver fail, or watches it: `layer.c`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of the files that direct the layer, in the process that has it.
const FOLDER: &str = "MLXCEL_TEST_LAYER";

/// A file that says that a test ran in its own process.
const STARTED: &str = "started";

/// The layer of this process.
pub(super) struct Layer {
    folder: PathBuf,
}

impl Layer {
    /// Runs the test `name` in a process that has the layer, and returns the layer there. Returns none in the
    /// process that started the other, once it has passed.
    pub(super) fn of_test(name: &str) -> Option<Self> {
        if let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) {
            fs::write(folder.join(STARTED), "").unwrap();
            return Some(Self { folder });
        }
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", name, "--nocapture"]).env(FOLDER, folder.path());
        child.env("VK_LAYER_PATH", built()).env("VK_INSTANCE_LAYERS", "VK_LAYER_MLXCEL_test");
        assert!(child.status().unwrap().success(), "{name}");
        assert!(folder.path().join(STARTED).exists(), "there is no test {name}");
        None
    }

    /// How many bytes of the devices' memory are allocated.
    pub(super) fn bytes_in_use(&self) -> u64 {
        fs::read_to_string(self.folder.join("in_use")).unwrap().parse().unwrap()
    }

    /// Lets allocations fail beyond so many bytes in use, or none.
    pub(super) fn limit(&self, bytes: Option<u64>) {
        self.set("limit", bytes);
    }

    /// Has subgroups of this size reported, instead of the driver's.
    pub(super) fn report_subgroups(&self, size: u32) {
        self.set("subgroups", Some(size.into()));
    }

    /// Has the device be lost at the next submission, or after it.
    pub(super) fn lose(&self, after_submission: bool) {
        self.set(if after_submission { "hangs" } else { "lost" }, Some(1));
    }

    /// Lets devices that are opened from now on work.
    pub(super) fn recover(&self) {
        self.set("hangs", None);
        self.set("lost", None);
    }

    /// A file is there at once as a whole: the layer reads it on other threads.
    fn set(&self, file: &str, value: Option<u64>) {
        let path = self.folder.join(file);
        match value {
            Some(value) => {
                let written = self.folder.join("written");
                fs::write(&written, value.to_string()).unwrap();
                fs::rename(written, path).unwrap();
            }
            None if path.exists() => fs::remove_file(path).unwrap(),
            None => {}
        }
    }
}

/// The folder with the layer and its manifest, for the loader.
fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vulkan-layer");
        fs::create_dir_all(&folder).unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let library = folder.join("layer.so");
        let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I"]);
        compiler.arg(here.join("../mlxcel-iree-sys/iree/third_party/vulkan_headers/include"));
        compiler.arg("-o").arg(&library).arg(here.join("tests/vulkan/layer.c"));
        assert!(compiler.status().unwrap().success());
        let manifest = serde_json::json!({
            "file_format_version": "1.0.0",
            "layer": {
                "name": "VK_LAYER_MLXCEL_test",
                "type": "GLOBAL",
                "library_path": library,
                "api_version": "1.3.0",
                "implementation_version": "1",
                "description": "fails as a test asks",
            },
        });
        fs::write(folder.join("layer.json"), manifest.to_string()).unwrap();
        folder
    })
}
