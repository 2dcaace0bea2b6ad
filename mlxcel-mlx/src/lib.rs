//! The MLX engine of mlxcel: decoders as array programs on [MLX](https://github.com/ml-explore/mlx), lazily evaluated.
//!
//! # Why an eager engine
//!
//! MLX is made for Apple silicon and also runs on CUDA and Linux CPUs. A step of a model is a graph of lazy
//! array operations; when it is evaluated, all rows of the step, prompt chunks and decoding rows of any
//! length, read each weight once. Nothing is compiled ahead of time: a model opens as fast as its files can
//! be mapped, and shapes may change from step to step.
//!
//! [`MlxBackend`] is the engine. A model is a folder with a Hugging Face checkpoint, original or quantized by
//! MLX:
//!
//! ```no_run
//! use mlxcel_core::{Backend, GenerateExt, GenerateOptions, LoadOptions, SessionOptions};
//!
//! let model = mlxcel_mlx::MlxBackend::new().load(&"models/llama".into(), &LoadOptions::default())?;
//! let mut session = model.open_session(&SessionOptions::default())?;
//! println!("{:?}", session.generate_greedy(&[1, 2, 3], &GenerateOptions::new(16))?.tokens);
//! # Ok::<(), mlxcel_core::Error>(())
//! ```
//!
//! # Supported models
//!
//! All features of [`Decoder`](mlxcel_models::Decoder), quantized or not, through [`mlxcel_models::walk`].
//! The state of a sequence depends on the model's layers:
//!
//! | state | memory of a sequence | `rewind` |
//! |---|---|---|
//! | keys and values of all positions | grows with them | yes |
//! | keys and values of a sliding window | grows up to the window; so does the time of a step | no, unless no sequence is longer than the window |
//! | latents of all positions (latent attention) | grows with them | yes |
//! | convolutions and recurrences | fixed, float32 | no |
//!
//! `fork` and `snapshot` work for all of them, and so does dropping the draft tokens of a row. A model claims
//! `rewind` if all of its layers support it.
//! Results do not depend on prefill chunking or batch composition, up to rounding. For models whose rotary
//! frequencies depend on the length of the sequence (LongRoPE), a sequence that crosses such a length is
//! recomputed from its tokens.
//!
//! Mixtures of experts read only the matrices of the selected experts; a prefill pass reads each of them once
//! for all of its tokens.
//!
//! # Building
//!
//! Building needs a C++20 compiler and MLX 0.32.4 from its wheel; MLX itself is not compiled. The build
//! script looks for it in the folder `MLXCEL_MLX_DIR` (with `include/` and `lib/`), and if that is unset, in
//! the packages of the Python on `PATH`:
//!
//! ```text
//! pip install "mlx[cpu]==0.32.4"       Linux with glibc 2.35 or newer, x86-64 or arm64
//! pip install "mlx[cuda12]==0.32.4"    Linux with an NVIDIA GPU
//! pip install "mlx==0.32.4"            macOS 14 or newer on Apple silicon
//! ```
//!
//! # Tested platforms
//!
//! | platform | status |
//! |---|---|
//! | Linux x86-64, CPU | built, and passes every test of this repository |
//! | Linux arm64, CPU | the wheel is pinned by hash; not run by us |
//! | macOS, Metal | the build script knows the wheel's layout, and LLVM's linker accepted its arguments; not run by us |
//! | Linux, CUDA (the wheel for CUDA 13) | oracles on one GPU, an NVIDIA H200; `Exact` needs `MLX_ENABLE_TF32=0` in the environment |
//!
//! # BLAS on Linux
//!
//! The Linux wheel contains the reference BLAS, which is 60 times slower than single-threaded OpenBLAS for a
//! product of 256×2048×2048. By default this does not matter, because this crate's own CPU kernels compute
//! all matrix products and BLAS is never called. It matters with
//! [`with_cpu_kernels(false)`](MlxBackend::with_cpu_kernels). MLX loads BLAS from a file in its own folder,
//! which can be replaced: in a checkout of mlxcel, `cargo xtask setup --openblas` creates a copy of MLX with
//! OpenBLAS; build with `MLXCEL_MLX_DIR=.toolchain/openblas/mlx` to use it. OpenBLAS uses all cores,
//! which slows down small products on a busy machine; set `OPENBLAS_NUM_THREADS` to limit it.
//!
//! # Linking and shipping MLX
//!
//! By default a program links libmlx by the absolute path that the build script found, so it runs on the
//! build machine without configuration, as long as the library stays there.
//!
//! To ship a program, build it with `MLXCEL_MLX_LINK=soname` in the environment. It then links `libmlx.so` by
//! name and needs an `rpath`, which the build script of the program (not of a dependency) can set:
//!
//! ```no_run
//! println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../mlx/lib"); // on macOS: @loader_path/../mlx/lib
//! ```
//!
//! Ship these files of the wheel, with these relative paths:
//!
//! ```text
//! Linux                               macOS
//! bin/program                         bin/program
//! mlx/lib/libmlx.so                   mlx/lib/libmlx.dylib
//! mlx_cpu.libs/                       mlx/lib/libjaccl.dylib
//!     libblas-….so, liblapack-….so,   mlx/lib/mlx.metallib
//!     libgfortran-….so, libquadmath-….so
//! ```
//!
//! With CUDA, libmlx's own `rpath` refers to NVIDIA's packages next to `mlx` in Python's site-packages.
//!
//! MLX is under the MIT licence; of the libraries beside it on Linux, BLAS and LAPACK are under BSD-3-Clause,
//! libgfortran under GPL-3.0 with GCC's runtime exception, and libquadmath under LGPL-2.1. The wheel lists
//! them in `mlx_cpu-0.32.4.dist-info/sboms/`.
//!
//! The build script of a package that depends on this crate directly gets the folder of the library in
//! `DEP_MLX_LIB_DIR`.

#![deny(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod array;
mod device;
mod engine;
#[allow(unsafe_code, reason = "MLX is a C++ library; all its unsafe code is in here")]
mod ffi;
mod kernels;

pub use engine::{MlxBackend, WeightQuantization};
