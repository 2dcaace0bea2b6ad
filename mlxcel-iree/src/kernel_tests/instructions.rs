//! The instructions in compiled kernels, by name: whether each target's code is what the kernels were written
//! for. Nothing is run.

use mlxcel_core::Precision;
use mlxcel_graph::layers;
use mlxcel_graph::packed::{PackedWeight, packed_linear};
use mlxcel_iree_target::ResolvedTarget;
use mlxcel_models::Packing;
use mlxcel_stablehlo::ElementType::{BF16, F32};
use mlxcel_stablehlo::{ElementType, Module, TensorType};

use super::packed::part_types;
use super::{arguments, lower};
use crate::testing::{compiler, resolved};
use mlxcel_iree_compile::compiler::CompileOptions;

/// Numbers of rows past which a weight streams, one and several, and such that are computed in blocks.
const ROWS: [usize; 3] = [1, 5, 64];

/// Inputs and outputs of each layer.
const SIZES: [usize; 2] = [256, 1024];

/// The assembly of a program's kernels.
struct Assembly(String);

impl Assembly {
    fn of(text: &str, target: &ResolvedTarget) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = CompileOptions::new(target.clone());
        let dump = format!("--iree-hal-dump-executable-intermediates-to={}", folder.path().display());
        options.flags.push(dump);
        compiler().compile(text, &options, None).unwrap();
        let paths = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "s"));
        Self(files.map(|path| std::fs::read_to_string(path).unwrap()).collect())
    }

    /// The code of the kernel whose name begins like this.
    fn kernel(&self, name: &str) -> &str {
        let start = self.0.find(&format!("\n{name}_")).unwrap_or_else(|| panic!("no {name} in the assembly"));
        let kernel = &self.0[start..];
        &kernel[..kernel.find(".Lfunc_end").unwrap_or(kernel.len())]
    }
}

/// Whether an instruction is in code, and not only one whose name begins or ends with its own; of registers
/// and of x86-64's fused multiply-adds, the kind is enough.
fn has(code: &str, word: &str) -> bool {
    let part = |letter: char| letter.is_ascii_alphanumeric();
    code.match_indices(word).any(|(at, _)| {
        let kind = word.starts_with('%') || word == "vfmadd";
        !code[..at].ends_with(part) && (kind || !code[at + word.len()..].starts_with(part))
    })
}

#[track_caller]
fn check(code: &str, present: &[&str], absent: &[&str], what: &str) {
    for word in present {
        assert!(has(code, word), "{what}: no {word}");
    }
    for word in absent {
        assert!(!has(code, word), "{what}: {word}");
    }
}

/// A linear layer over bfloat16 weights for each number of rows.
fn layers(x: ElementType) -> Module {
    let [inputs, outputs] = SIZES;
    Module::of_function("kernels", "main", |b| {
        let w = b.argument("w", TensorType::new(BF16, [outputs, inputs]))?;
        let mut layer = |rows| {
            let x = b.argument(format!("x{rows}"), TensorType::new(x, [rows, inputs]))?;
            layers::linear(b, x, w, None, F32)
        };
        ROWS.into_iter().map(&mut layer).collect()
    })
    .unwrap()
}

#[test]
fn kernels_use_the_vector_width_and_instructions_of_their_target() {
    let text = |target: &str, x| lower(&layers(x), &resolved(target), Precision::Native).unwrap();
    let avx2 = text("llvm-cpu:x86-64-v3", BF16);
    assert!(avx2.contains("vector<8xf32>") && !avx2.contains("vector<16x") && !avx2.contains("llvm.x86"));
    let avx512 = text("llvm-cpu:cascadelake", BF16);
    assert!(avx512.contains("vector<16xf32>") && !avx512.contains("llvm.x86.avx512bf16"));
    assert!(text("llvm-cpu:znver4", BF16).contains("llvm.x86.avx512bf16.dpbf16ps.512"));
    assert!(!text("llvm-cpu:znver4", F32).contains("llvm.x86"), "float32 activations are not rounded");
    let neon = text("llvm-cpu:apple-m1", BF16);
    assert!(neon.contains("vector<4xf32>") && !neon.contains("llvm.aarch64"));
    assert!(!text("llvm-cpu:neoverse-v2", F32).contains("llvm.aarch64"), "nor are they on Arm");
}

/// A layer over packed weights of each packing for each number of rows.
fn packed_layers(packings: &[&str]) -> Module {
    let [inputs, outputs] = SIZES;
    Module::of_function("kernels", "main", |b| {
        let mut results = Vec::new();
        for text in packings {
            let packing: Packing = text.parse().unwrap();
            for rows in ROWS {
                let name = format!("{text}.{rows}");
                let x = b.argument(format!("{name}.x"), TensorType::new(F32, [rows, inputs]))?;
                let parts = arguments(b, &name, &part_types(&packing, outputs, inputs))?;
                results.push(packed_linear(b, x, &PackedWeight { packing, parts }, None, F32)?);
            }
        }
        Ok(results)
    })
    .unwrap()
}

/// Each target is compiled for anew.
mod nightly {
    use super::*;

    #[test]
    fn compiled_kernels_have_the_instructions_that_they_are_written_for() {
        // A target, what its code for few rows has, what that for many has, and what neither has.
        type Words = &'static [&'static str];
        let targets: [(&str, Words, Words, Words); 6] = [
            ("llvm-cpu:x86-64-v3", &["vfmadd", "%ymm"], &["vfmadd", "%ymm"], &["%zmm", "vdpbf16ps"]),
            ("llvm-cpu:cascadelake", &["vfmadd", "%zmm"], &["vfmadd", "%zmm"], &["vdpbf16ps"]),
            ("llvm-cpu:cooperlake", &["vfmadd", "%zmm"], &["vfmadd", "%zmm"], &["vdpbf16ps"]),
            ("llvm-cpu:znver4", &["vdpbf16ps", "%zmm"], &["vdpbf16ps", "%zmm"], &[]),
            ("llvm-cpu:apple-m1", &["fmla"], &["fmla"], &["bfdot", "bfmmla"]),
            ("llvm-cpu:neoverse-v2", &["bfdot"], &["bfmmla"], &["fmla"]),
        ];
        for (name, few, many, absent) in targets {
            let target = resolved(name);
            let assembly = Assembly::of(&lower(&layers(BF16), &target, Precision::Native).unwrap(), &target);
            for rows in ROWS {
                let code = assembly.kernel(&format!("mlxcel_linear_bf16_{rows}x256x1024"));
                let present = if rows == 64 { many } else { few };
                check(code, present, absent, &format!("{name} with {rows} rows"));
            }
        }
    }

    #[test]
    fn packed_weights_use_int8_dot_products_where_available() {
        const FOUR: (&str, &str) = ("u4/64 bf16 + bf16", "u4_64_bf16_bf16");
        const EIGHT: (&str, &str) = ("u8/64 bf16 + bf16", "u8_64_bf16_bf16");
        const TABLE: (&str, &str) = ("iq4nl/32 f16", "iq4nl_32_f16");
        // A target, and of each packing what the code for few rows has, and what that for many.
        let targets = [
            ("llvm-cpu:cascadelake", [["vpdpbusd"; 2]; 3]),
            ("llvm-cpu:alderlake", [["vpdpbusd"; 2]; 3]),
            ("llvm-cpu:cortex-a72", [["fmla"; 2]; 3]),
            ("llvm-cpu:neoverse-n1", [["sdot"; 2]; 3]),
            ("llvm-cpu:neoverse-v1", [["sdot", "smmla"], ["usdot", "usmmla"], ["sdot", "smmla"]]),
        ];
        let all = ["vpdpbusd", "sdot", "usdot", "smmla", "usmmla"];
        for (name, words) in targets {
            let (target, packings) = (resolved(name), [FOUR, EIGHT, TABLE]);
            let text =
                lower(&packed_layers(&packings.map(|(text, _)| text)), &target, Precision::Native).unwrap();
            let assembly = Assembly::of(&text, &target);
            let arithmetic = if words[0][0] == "fmla" { "float" } else { "16bit" };
            for ((_, packing), words) in packings.iter().zip(words) {
                for rows in ROWS {
                    let label = format!("mlxcel_linear_{packing}_{arithmetic}_{rows}x256x1024");
                    let word = words[usize::from(rows == 64)];
                    let absent: Vec<&str> = all.into_iter().filter(|other| *other != word).collect();
                    check(
                        assembly.kernel(&label),
                        &[word],
                        &absent,
                        &format!("{name}, {packing}, {rows} rows"),
                    );
                }
            }
        }
    }
}
