//! What the safe crate does not have: quantizing a file, and what llama.cpp was built with.

use std::ffi::{CStr, CString};

use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;

/// Writes `from` to `to` in the type `kind`.
pub(crate) fn quantize(from: &str, to: &str, kind: &str, threads: i32) -> Result<()> {
    let (source, target) = (CString::new(from)?, CString::new(to)?);
    // SAFETY: the function has no preconditions.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = threads;
    params.ftype = match kind {
        "q8_0" => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        "q4_0" | "q4_0-pure" => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        "q4_k_m" => sys::LLAMA_FTYPE_MOSTLY_Q4_K_M,
        "q6_k" => sys::LLAMA_FTYPE_MOSTLY_Q6_K,
        "iq4_nl" => sys::LLAMA_FTYPE_MOSTLY_IQ4_NL,
        _ => bail!("quantizes to q8_0, q4_0, q4_0-pure, q4_k_m, q6_k and iq4_nl, not to {kind}"),
    };
    // By default the embedding of a 4-bit model, where it is the head too, has 6 bits.
    params.pure_ = kind.ends_with("-pure");
    // SAFETY: both names are strings that end in a zero and outlive the call, and so do the parameters, which
    // own nothing.
    let status = unsafe { sys::llama_model_quantize(source.as_ptr(), target.as_ptr(), &params) };
    if status != 0 {
        bail!("llama_model_quantize of {from} to {kind} failed ({status})");
    }
    Ok(())
}

/// llama.cpp's own line about the instructions that it uses.
pub(crate) fn system_info() -> String {
    // SAFETY: the function gives a string that ends in a zero and stays.
    let text = unsafe { CStr::from_ptr(sys::llama_print_system_info()) };
    text.to_string_lossy().trim().to_owned()
}
