//! A tensor on a device.

use mlxcel_core::{Error, Result};
use mlxcel_stablehlo::TensorType;

use super::client::Client;
use super::sys;

/// A tensor on a device, which is freed with it. One that was given up to a program is gone: using it again
/// is an error.
pub(crate) struct Buffer {
    client: Client,
    raw: *mut sys::RawBuffer,
    ty: TensorType,
}

// SAFETY: PJRT's buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let arguments = sys::BufferDestroy { buffer: self.raw, ..Default::default() };
        let plugin = self.client.plugin();
        plugin.free(plugin.api().buffer_destroy, arguments, "free buffer");
    }
}

impl Buffer {
    /// A buffer of the client with no other owner.
    pub(super) fn new(client: Client, raw: *mut sys::RawBuffer, ty: TensorType) -> Self {
        Self { client, raw, ty }
    }

    pub(super) fn raw(&self) -> *mut sys::RawBuffer {
        self.raw
    }

    /// Its elements, dense and row-major, once they are there. This is where the failure of a program that
    /// was to write them shows. Fails where the program did, and with
    /// [`ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted).
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        const OPERATION: &str = "read back";
        let (size, plugin) = (self.ty.bytes(), self.client.plugin());
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| Error::out_of_memory(OPERATION, size))?;
        bytes.resize(size, 0u8);
        // The row-major layout, the last dimension nearest; a device may keep another.
        let minor_to_major: Vec<i64> = (0..self.ty.rank() as i64).rev().collect();
        let tiled = sys::Tiled {
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..Default::default()
        };
        let mut layout = sys::HostLayout { tiled, ..Default::default() };
        // A plugin refuses bytes that are too few.
        let arguments = sys::BufferToHost {
            buffer: self.raw,
            layout: (&raw mut layout).cast(),
            data: bytes.as_mut_ptr().cast(),
            size,
            ..Default::default()
        };
        let begun = plugin.call(plugin.api().buffer_to_host, arguments, OPERATION)?;
        // SAFETY: the event is this call's; the bytes are written before it is ready, and borrowed until
        // then.
        unsafe { plugin.wait(begun.event, OPERATION) }?;
        Ok(bytes)
    }

    /// Whether a program has taken it over.
    pub(crate) fn is_given_up(&self) -> Result<bool> {
        let arguments = sys::BufferIsDeleted { buffer: self.raw, ..Default::default() };
        let plugin = self.client.plugin();
        Ok(plugin.call(plugin.api().buffer_is_deleted, arguments, "look at buffer")?.deleted)
    }

    /// Where it lies, for tests of what is updated in place.
    /// Fails with [`ErrorKind::Unsupported`] where devices do not tell.
    #[cfg(test)]
    pub(crate) fn address(&self) -> Result<usize> {
        let arguments = sys::BufferPointer { buffer: self.raw, ..Default::default() };
        let plugin = self.client.plugin();
        Ok(plugin.call(plugin.api().buffer_unsafe_pointer, arguments, "look at buffer")?.pointer)
    }
}
