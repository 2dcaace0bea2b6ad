//! Memory of Rust's that MLX reads where it is: weights in a mapped file.

use std::any::Any;
use std::sync::Arc;

use super::error::Caught;
use super::{Handle, sys};

/// Keeps memory alive for MLX, which drops it, on whichever thread, when the last array that uses the memory goes.
pub(crate) struct Region {
    _owner: Arc<dyn Any + Send + Sync>,
}

/// An array over the bytes of `source`, which the caller has checked to be as many as `shape` and `element` say, and
/// aligned to the element's size. Fewer than eight bytes are copied.
pub(crate) fn from_shared<T>(source: &Arc<T>, shape: &[i32], element: sys::ElementCode) -> Caught<Handle>
where
    T: AsRef<[u8]> + Send + Sync + 'static,
{
    let bytes = (**source).as_ref();
    if bytes.len() < 8 {
        return sys::from_bytes(bytes, shape, element);
    }
    let region = Box::new(Region { _owner: source.clone() });
    // SAFETY: the bytes are borrowed of the owner, which is shared and not changed as long as the clone in `region` exists, so they stay
    // in their place, unchanged, as long as that borrow could last. The array's memory owns `region` and drops it last, on whichever
    // thread: the owner is `Send` and `Sync`. The caller has checked length and alignment. MLX does not write to memory that it does
    // not own (`array::is_donatable`).
    unsafe { sys::from_region(region, bytes.as_ptr(), shape, element) }
}
