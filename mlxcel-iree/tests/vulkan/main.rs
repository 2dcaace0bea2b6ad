//! Models on a Vulkan device, against transformers' float32 results. Without a GPU, Mesa's software driver
//! runs them: `cargo xtask test --only vulkan` installs or names it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, missing_docs)]

#[path = "../../../tests/support/broken.rs"]
mod broken;
mod device;
mod exact;
mod failures;
mod kinds;
mod layer;

use std::path::{Path, PathBuf};

use mlxcel_core::{LoadOptions, Precision};
use mlxcel_iree::IreeBackend;
use mlxcel_iree::devices::{self, DeviceInfo};

/// A checkpoint whose programs are small.
const LLAMA: &str = "architectures/llama";
/// A prompt of it, and what follows.
const LLAMA_PROMPT: [u32; 5] = [12, 176, 62, 160, 111];
const LLAMA_GREEDY: [u32; 6] = [223, 54, 213, 72, 1, 99];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

fn engine() -> IreeBackend {
    IreeBackend::new()
        .with_cache_dir(Path::new(env!("CARGO_TARGET_TMPDIR")).join("vulkan-cache"))
        .with_prefill_chunk(16)
}

fn options() -> LoadOptions {
    LoadOptions::default().with_precision(Precision::Exact).with_device("vulkan").with_capacity(160)
}

/// The device that the driver's name alone means.
fn own_device() -> DeviceInfo {
    let mut listed = devices::list().into_iter();
    let own = listed.find(|info| info.device.starts_with("vulkan:") && info.is_default);
    own.unwrap_or_else(|| panic!("no Vulkan device: {:?}", devices::list()))
}

fn llama() -> PathBuf {
    root().join(LLAMA)
}
