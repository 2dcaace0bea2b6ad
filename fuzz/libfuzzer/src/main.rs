//! The target that `MLXCEL_FUZZ_TARGET` names, driven by libFuzzer; `cargo xtask fuzz TARGET --guided` builds
//! and starts it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mlxcel_fuzz::Target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("MLXCEL_FUZZ_TARGET").expect("MLXCEL_FUZZ_TARGET names a target");
    Target::find(&name).expect("there is such a target")
});

fuzz_target!(|input: &[u8]| {
    (TARGET.run)(input);
});
