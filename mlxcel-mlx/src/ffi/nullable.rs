//! Functions with optional arguments: references in Rust, nullable pointers in C++.
//!
//! The C++ side requires that a pointer is null or points to a live value until the call returns; it keeps
//! none (an array that it keeps is copied, which shares its node).

use std::ptr;

use super::error::Caught;
use super::sys::{Arrays, ElementCode, Tensor};
use super::{Handle, sys};

/// A pointer to the array, or null.
pub(super) fn pointer(a: Option<&Tensor>) -> *const Tensor {
    a.map_or(ptr::null(), ptr::from_ref)
}

/// A packed weight: the words, a scale per group, in the affine mode a bias per group.
#[derive(Clone, Copy)]
pub(crate) struct PackedTensor<'a> {
    pub(crate) words: &'a Tensor,
    pub(crate) scales: &'a Tensor,
    pub(crate) biases: Option<&'a Tensor>,
    pub(crate) group_size: i32,
    pub(crate) bits: i32,
    pub(crate) mode: &'a str,
}

pub(crate) fn rms_norm(x: &Tensor, weight: Option<&Tensor>, eps: f32) -> Caught<Handle> {
    // SAFETY: the pointers are null or made from references that outlive the call.
    unsafe { sys::rms_norm(x, pointer(weight), eps) }
}

pub(crate) fn layer_norm(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Caught<Handle> {
    // SAFETY: the pointers are null or made from references that outlive the call.
    unsafe { sys::layer_norm(x, pointer(weight), pointer(bias), eps) }
}

pub(crate) fn attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    scale: f32,
    causal: bool,
    mask: Option<&Tensor>,
    sinks: Option<&Tensor>,
) -> Caught<Handle> {
    // SAFETY: the pointers are null or made from references that outlive the call.
    unsafe { sys::attention(queries, keys, values, scale, causal, pointer(mask), pointer(sinks)) }
}

pub(crate) fn quantize(w: &Tensor, group_size: i32, bits: i32, mode: &str) -> Caught<cxx::UniquePtr<Arrays>> {
    sys::quantize(w, group_size, bits, mode)
}

pub(crate) fn dequantize(w: &PackedTensor<'_>, element: ElementCode) -> Caught<Handle> {
    let biases = pointer(w.biases);
    // SAFETY: the pointers are null or made from references that outlive the call.
    unsafe { sys::dequantize(w.words, w.scales, biases, w.group_size, w.bits, w.mode, element) }
}

pub(crate) fn quantized_matmul(x: &Tensor, w: &PackedTensor<'_>, transposed: bool) -> Caught<Handle> {
    let biases = pointer(w.biases);
    // SAFETY: the pointers are null or made from references that outlive the call.
    unsafe { sys::quantized_matmul(x, w.words, w.scales, biases, transposed, w.group_size, w.bits, w.mode) }
}

pub(crate) fn gather_qmm(
    x: &Tensor,
    w: &PackedTensor<'_>,
    indices: &Tensor,
    transposed: bool,
    sorted: bool,
) -> Caught<Handle> {
    let biases = pointer(w.biases);
    // SAFETY: the pointers are null or made from references that outlive the call.
    unsafe {
        sys::gather_qmm(
            x, w.words, w.scales, biases, indices, transposed, w.group_size, w.bits, w.mode, sorted,
        )
    }
}
