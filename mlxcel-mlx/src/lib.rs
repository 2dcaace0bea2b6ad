//! The MLX engine of mlxcel: decoders as array programs on [MLX](https://github.com/ml-explore/mlx), lazily evaluated.
//!
//! # Why an eager engine
//!
//! MLX is at home on Apple silicon and also runs on CUDA and on Linux processors. A step of a model is written down
//! as operations on arrays, which compute nothing until they are evaluated; then all rows of the step, prompt chunks
//! and decoding rows of whatever lengths, are one graph that reads each weight once. Nothing is compiled beforehand:
//! a model opens as fast as its files can be mapped, and shapes may change from step to step.
//!
//! [`MlxBackend`] is the whole engine. A model is a folder with a Hugging Face checkpoint, as its authors published
//! it or as MLX quantized it:
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
//! # What it runs
//!
//! Every feature of [`Decoder`](mlxcel_models::Decoder)'s vocabulary, through the one walk of
//! [`mlxcel_models::walk`], quantized or not. What a sequence keeps follows from the model:
//!
//! | state | memory of a sequence | `rewind` |
//! |---|---|---|
//! | keys and values of all positions | grows with them | yes |
//! | keys and values of a sliding window | grows up to the window; so does the time of a step | no, unless no sequence is longer than the window |
//! | latents of all positions (latent attention) | grows with them | yes |
//! | convolutions and recurrences | fixed, float32 | no |
//!
//! `fork` and `snapshot` work for all of them. A model claims `rewind` where all of its layers can do it. Results depend neither
//! on how a prompt is cut into chunks nor on what shares a batch, but for rounding; of models whose rotary frequencies depend
//! on the length of the sequence (LongRoPE), a sequence that crosses such a length is computed again from its tokens.
//!
//! Experts cost what they read: a decoding step reads the matrices of the chosen experts alone, and in a prompt's pass each is
//! read once for all of its tokens.
//!
//! # What it takes to build
//!
//! A C++20 compiler, and MLX 0.32.4 as its wheels have it; MLX itself is not compiled. The build script looks for it
//! in the folder that `MLXCEL_MLX_DIR` names (one with `include/` and `lib/`), and where that is not set asks the
//! Python on `PATH`:
//!
//! ```text
//! pip install "mlx[cpu]==0.32.4"       Linux with glibc 2.35 or newer, x86-64 or arm64
//! pip install "mlx[cuda12]==0.32.4"    Linux with an NVIDIA GPU
//! pip install "mlx==0.32.4"            macOS 14 or newer on Apple silicon
//! ```
//!
//! # What was run where
//!
//! | where | |
//! |---|---|
//! | Linux x86-64, CPU | built, and held to every test of this repository |
//! | Linux arm64, CPU | the wheel is pinned by hash; not run by us |
//! | macOS, Metal | the wheel's layout is known to the build script, and what it gives the linker was accepted by LLVM's; not run by us |
//! | Linux, CUDA | the wheel has the layout of the CPU's; not run by us |
//!
//! # BLAS on Linux
//!
//! The wheel for Linux brings the reference BLAS, 60 times slower at a product of 256×2048×2048 than OpenBLAS on one
//! thread. By default that does not matter: this crate's own kernels compute the products of a decoder on a CPU, and
//! a run calls no function of BLAS. With [`with_cpu_kernels(false)`](MlxBackend::with_cpu_kernels) it does. MLX finds
//! its BLAS by the name of a file beside it, so another one can stand there: in a checkout of mlxcel,
//! `cargo xtask setup --openblas` makes such a copy of MLX, and building with `MLXCEL_MLX_DIR=.toolchain/openblas/mlx`
//! takes it. OpenBLAS runs on all cores, which small products on a busy machine pay for; `OPENBLAS_NUM_THREADS` sets
//! another number.
//!
//! # How a program finds MLX, and how to ship one
//!
//! A program that is built with this crate names libmlx by the absolute path that the build script found, so it runs
//! on the machine that built it without any setting, and no longer than the library stays there.
//!
//! To ship a program, build it with `MLXCEL_MLX_LINK=soname` in the environment: then it asks for `libmlx.so` by
//! name, and says where that is by an `rpath` of its own, which its build script (not a dependency's) can set:
//!
//! ```no_run
//! println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../mlx/lib"); // on macOS: @loader_path/../mlx/lib
//! ```
//!
//! Beside it lie, out of the wheel and with these places relative to one another:
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
//! With CUDA, libmlx's own `rpath` names the packages of NVIDIA's that lie beside `mlx` in Python's folder.
//!
//! MLX is under the MIT licence; of the libraries beside it on Linux, BLAS and LAPACK are under BSD-3-Clause,
//! libgfortran under GPL-3.0 with GCC's runtime exception, and libquadmath under LGPL-2.1. The wheel lists them in
//! `mlx_cpu-0.32.4.dist-info/sboms/`.
//!
//! A build script of a package that depends on this crate directly is told the folder of the library in
//! `DEP_MLX_LIB_DIR`.

#![deny(unsafe_code)]

mod array;
mod device;
mod engine;
#[allow(unsafe_code, reason = "MLX is a C++ library; everything unsafe about it is in here")]
mod ffi;
mod kernels;

pub use engine::{MlxBackend, WeightQuantization};
