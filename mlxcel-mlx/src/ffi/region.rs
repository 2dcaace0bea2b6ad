//! Rust memory that MLX reads in place: weights in a mapped file.

use std::any::Any;
use std::sync::Arc;

use super::error::Caught;
use super::{Handle, sys};

/// Keeps memory alive for MLX, which drops it, on any thread, with the last array that uses the memory.
pub(crate) struct Region {
    _owner: Arc<dyn Any + Send + Sync>,
}

/// An array over the bytes of `source`, whose number must match `shape` and `element`, and which must be
/// aligned to the element's size; otherwise an error. Fewer than eight bytes are copied.
pub(crate) fn from_shared<T>(source: &Arc<T>, shape: &[i32], element: sys::ElementCode) -> Caught<Handle>
where
    T: AsRef<[u8]> + Send + Sync + 'static,
{
    let bytes = (**source).as_ref();
    if bytes.len() < 8 {
        return sys::from_bytes(bytes, shape, element);
    }
    let region = Box::new(Region { _owner: source.clone() });
    // SAFETY: the bytes are borrowed of the owner, which is shared and not changed as long as the clone in
    // `region` exists, so they stay in their place, unchanged, as long as that borrow could last. The
    // array's memory owns `region` and drops it last, on whichever thread: the owner is `Send` and
    // `Sync`. The other side checks length and alignment of this very slice. MLX does not write to memory
    // that it does not own (`array::is_donatable`).
    unsafe { sys::from_region(region, bytes, shape, element) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::device::Device;

    /// Memory that returns fewer bytes when read a second time.
    struct Shrinking(Vec<u32>, AtomicUsize);

    impl AsRef<[u8]> for Shrinking {
        fn as_ref(&self) -> &[u8] {
            let bytes = bytemuck::cast_slice(&self.0);
            if self.1.fetch_add(1, Ordering::Relaxed) == 0 { bytes } else { &bytes[..8] }
        }
    }

    #[test]
    fn the_checked_bytes_are_the_borrowed_bytes() {
        Device::Cpu.select().unwrap();
        let shrinking = Arc::new(Shrinking(vec![7; 64], AtomicUsize::new(0)));
        let code = sys::ElementCode::U32;
        assert!(from_shared(&shrinking, &[64], code).is_ok());
        assert!(from_shared(&shrinking, &[64], code).is_err());
        assert_eq!(Arc::strong_count(&shrinking), 1, "memory that was not lent is not held");
        let words = Arc::new(bytemuck::cast_slice::<u32, u8>(&[7; 64])[1..].to_vec());
        for shape in [&[63][..], &[-64], &[i32::MAX, i32::MAX, i32::MAX]] {
            assert!(from_shared(&words, shape, code).is_err(), "{shape:?}");
            assert!(sys::from_bytes(&words, shape, code).is_err(), "{shape:?}");
        }
    }
}
