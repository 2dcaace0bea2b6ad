//! How IREE's C files are compiled.

use std::env;
use std::path::Path;

/// A build of the runtime in the folder `root`, which has IREE's sources in `iree/` and what is generated
/// from them in `generated/`. Its functions are renamed if `renamed` is set, so that they do not clash with
/// another IREE. A build script gets its platform by cargo; another program names the `host`.
pub(crate) fn runtime(root: &Path, renamed: bool, host: Option<&str>) -> cc::Build {
    let sources = root.join("iree");
    let generated = root.join("generated/include");
    let mut build = cc::Build::new();
    if let Some(host) = host {
        build.host(host).target(host).cargo_metadata(false);
    }
    build
        .warnings(false)
        // The scheduler of kernels is optimized in debug builds too.
        .opt_level(2)
        .debug(false)
        .include(&generated)
        .include(sources.join("runtime/src"))
        .include(sources.join("third_party/flatcc/include"))
        .include(sources.join("third_party/vulkan_headers/include"))
        .include(&sources)
        .define("NDEBUG", None)
        // How long threads wait for a kernel before they sleep. Kernels of a step follow one another within
        // microseconds, and on virtual machines waking takes longer than that.
        .define("IREE_TASK_WARM_WAIT_SPIN_NS", "100000")
        .define("IREE_TASK_WARM_WAIT_LOOKAHEAD_SPIN_NS", "100000")
        .define("IREE_TASK_WARM_WAIT_TRANSITION_SPIN_NS", "50000")
        .define("IREE_ALLOCATOR_SYSTEM_CTL", "iree_allocator_libc_ctl");
    let names = root.join("generated/names.h");
    if build.try_get_compiler().is_ok_and(|compiler| compiler.is_like_msvc()) {
        build.std("c11").flag("/Zc:preprocessor").flag("/bigobj");
        for name in ["WIN32_LEAN_AND_MEAN", "NOMINMAX", "_USE_MATH_DEFINES", "_CRT_SECURE_NO_WARNINGS"] {
            build.define(name, None);
        }
        if renamed {
            build.flag(format!("/FI{}", names.display()));
        }
    } else {
        // Statuses contain source paths; those of the build machine are removed.
        let places = format!("-ffile-prefix-map={}=iree", sources.display());
        build.std("gnu11").flag_if_supported("-fvisibility=hidden").flag_if_supported(places);
        if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "musl") {
            let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
            // `futex.h` uses `struct timespec`, which the headers that it includes declare with glibc only.
            build.flag("-include").flag("time.h");
            // Debian's `musl-gcc` has no headers of the kernel; they are beside those of glibc.
            for folder in ["/usr/include".to_owned(), format!("/usr/include/{architecture}-linux-gnu")] {
                build.flag("-idirafter").flag(folder);
            }
        }
        if renamed {
            build.flag("-include").flag(&names);
        }
    }
    build
}
