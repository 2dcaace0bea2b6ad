//! The operations of `cpp/primitives/kernels.h`, as cxx binds them.

// For the macro's expanded code.
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments, missing_docs, unreachable_pub)]

use super::Handle;
use super::error::Caught;
use super::nullable::{PackedTensor, pointer};
use super::sys::Tensor;

pub(crate) use bound::{
    KernelSettings, kernel_attention, kernel_expert_linear, kernel_implementations, kernel_log_sum_exp,
    kernel_rotate, kernel_silu_mul,
};

#[cxx::bridge(namespace = "mlxcel")]
mod bound {
    /// How kernels run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct KernelSettings {
        /// The number of threads, at least one.
        threads: u32,
        /// The index in the list of implementations: 0 is the best.
        implementation: u32,
    }

    // SAFETY: functions declared without `unsafe` here are sound to call with any arguments:
    // `cpp/primitives/operands.cc` checks that ranks, shapes and types of the operands match what the
    // kernels read, and throws otherwise; each function that may throw returns a `Result`. Experts out of
    // range yield zeros.
    unsafe extern "C++" {
        include!("mlxcel-mlx/cpp/primitives/kernels.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type Tensor = crate::ffi::sys::Tensor;

        fn kernel_implementations() -> Result<Vec<String>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn kernel_linear(
            x: &Tensor,
            w: &Tensor,
            bias: *const Tensor,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn kernel_affine_linear(
            x: &Tensor,
            words: &Tensor,
            scales: &Tensor,
            biases: &Tensor,
            bias: *const Tensor,
            group_size: i32,
            bits: i32,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        fn kernel_expert_linear(
            x: &Tensor,
            experts: &Tensor,
            w: &Tensor,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        fn kernel_affine_expert_linear(
            x: &Tensor,
            experts: &Tensor,
            words: &Tensor,
            scales: &Tensor,
            biases: &Tensor,
            group_size: i32,
            bits: i32,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        fn kernel_attention(
            q: &Tensor,
            keys: &Tensor,
            values: &Tensor,
            scale: f32,
            window: i32,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        /// # Safety
        /// Pointers are null or to live arrays.
        unsafe fn kernel_rms_norm(
            x: &Tensor,
            weight: *const Tensor,
            epsilon: f32,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        fn kernel_log_sum_exp(x: &Tensor, settings: &KernelSettings) -> Result<UniquePtr<Tensor>>;
        fn kernel_silu_mul(
            gate: &Tensor,
            up: &Tensor,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
        fn kernel_rotate(
            x: &Tensor,
            cos: &Tensor,
            sin: &Tensor,
            settings: &KernelSettings,
        ) -> Result<UniquePtr<Tensor>>;
    }
}

pub(crate) fn kernel_linear(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    settings: &KernelSettings,
) -> Caught<Handle> {
    // SAFETY: the pointer is null or made from a reference that outlives the call.
    unsafe { bound::kernel_linear(x, w, pointer(bias), settings) }
}

pub(crate) fn kernel_affine_linear(
    x: &Tensor,
    (w, biases): (PackedTensor<'_>, &Tensor),
    bias: Option<&Tensor>,
    settings: &KernelSettings,
) -> Caught<Handle> {
    let PackedTensor { words, scales, group_size, bits, .. } = w;
    // SAFETY: the pointer is null or made from a reference that outlives the call.
    unsafe {
        bound::kernel_affine_linear(x, words, scales, biases, pointer(bias), group_size, bits, settings)
    }
}

pub(crate) fn kernel_affine_expert_linear(
    x: &Tensor,
    experts: &Tensor,
    (w, biases): (PackedTensor<'_>, &Tensor),
    settings: &KernelSettings,
) -> Caught<Handle> {
    let PackedTensor { words, scales, group_size, bits, .. } = w;
    bound::kernel_affine_expert_linear(x, experts, words, scales, biases, group_size, bits, settings)
}

pub(crate) fn kernel_rms_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    epsilon: f32,
    settings: &KernelSettings,
) -> Caught<Handle> {
    // SAFETY: the pointer is null or made from a reference that outlives the call.
    unsafe { bound::kernel_rms_norm(x, pointer(weight), epsilon, settings) }
}
