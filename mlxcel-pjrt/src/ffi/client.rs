//! A client: a plugin's devices and their memory.

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::{ElementType, TensorType};

use super::buffer::Buffer;
use super::plugin::Plugin;
use super::{named, sys};
use crate::options::OptionValue;

/// A client of a plugin, with the devices of this process.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    plugin: Plugin,
    /// What it was opened with.
    options: Vec<(String, OptionValue)>,
    raw: *mut sys::RawClient,
    devices: Vec<*mut sys::RawDevice>,
}

// SAFETY: PJRT's clients may be used from any thread; devices live as long as their client.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let arguments = sys::ClientDestroy { client: self.raw, ..Default::default() };
        // Buffers and executables hold the client: there are none any more.
        self.plugin.free(self.plugin.api().client_destroy, arguments, "close client");
    }
}

/// Whether `bytes` hold a tensor of this type with this many bytes from one index of each dimension to the
/// next; dense and row-major where no strides are given.
fn hold(bytes: &[u8], strides: &[usize], ty: &TensorType) -> bool {
    if strides.is_empty() {
        return bytes.len() == ty.bytes();
    }
    let mut steps =
        strides.iter().zip(&ty.shape).map(|(stride, size)| stride.checked_mul(size.saturating_sub(1)));
    let last = steps.try_fold(ty.element.bytes_for(1), |end, step| end.checked_add(step?));
    strides.len() == ty.rank() && last.is_some_and(|last| last <= bytes.len())
}

impl Client {
    /// Asks the plugin for a client. `options` are the plugin's own.
    /// Fails for unknown options and missing devices.
    fn open(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<Self> {
        const OPERATION: &str = "open PJRT client";
        let named = named::to_plugin(options);
        let arguments =
            sys::ClientCreate { options: named.as_ptr(), option_count: named.len(), ..Default::default() };
        let raw = plugin.call(plugin.api().client_create, arguments, OPERATION)?.client;
        let (plugin, options) = (plugin.clone(), options.to_vec());
        let mut inner = Inner { plugin, options, raw, devices: Vec::new() };
        let arguments = sys::ClientDevices { client: raw, ..Default::default() };
        let plugin = &inner.plugin;
        let found = plugin.call(plugin.api().client_addressable_devices, arguments, OPERATION)?;
        // SAFETY: the list is the client's, of this many devices.
        inner.devices = unsafe { named::list(found.devices, found.count) }.to_vec();
        Ok(Self(Arc::new(inner)))
    }

    /// A client with these options that is open already, else a new one: some plugins take most of a device's
    /// memory for each.
    pub(crate) fn shared(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<Self> {
        static CLIENTS: Mutex<BTreeMap<String, Weak<Inner>>> = Mutex::new(BTreeMap::new());
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = format!("{} {options:?}", plugin.path().display());
        if let Some(client) = clients.get(&key).and_then(Weak::upgrade) {
            return Ok(Self(client));
        }
        let client = Self::open(plugin, options)?;
        clients.insert(key, Arc::downgrade(&client.0));
        Ok(client)
    }

    pub(crate) fn plugin(&self) -> &Plugin {
        &self.0.plugin
    }

    /// The plugin's options that it was opened with.
    pub(crate) fn options(&self) -> &[(String, OptionValue)] {
        &self.0.options
    }

    pub(super) fn raw(&self) -> *mut sys::RawClient {
        self.0.raw
    }

    /// How many devices this process has.
    pub(crate) fn device_count(&self) -> usize {
        self.0.devices.len()
    }

    /// Whether its devices are the processor.
    pub(crate) fn is_cpu(&self) -> Result<bool> {
        Ok(self.platform()?.0.eq_ignore_ascii_case("cpu"))
    }

    /// The platform's name, such as `cpu`, and what it says of its version.
    pub(crate) fn platform(&self) -> Result<(String, String)> {
        let api = self.plugin().api();
        Ok((self.text(api.client_platform_name)?, self.text(api.client_platform_version)?))
    }

    fn text(&self, function: sys::Call<sys::ClientText>) -> Result<String> {
        let arguments = sys::ClientText { client: self.raw(), ..Default::default() };
        let sys::ClientText { text, text_size, .. } =
            self.plugin().call(function, arguments, "describe platform")?;
        // SAFETY: the text is the client's.
        Ok(unsafe { named::text(text, text_size) })
    }

    /// The number by which compile options name a device, and its kind.
    pub(crate) fn device(&self, index: usize) -> Result<(i32, String)> {
        const OPERATION: &str = "describe device";
        let (plugin, api) = (self.plugin(), self.plugin().api());
        let device = sys::DeviceDescription { device: self.raw_device(index)?, ..Default::default() };
        let description = plugin.call(api.device_get_description, device, OPERATION)?.description;
        let id = sys::DescriptionId { description, ..Default::default() };
        let id = plugin.call(api.description_id, id, OPERATION)?.id;
        let kind = sys::DescriptionText { description, ..Default::default() };
        let kind = plugin.call(api.description_kind, kind, OPERATION)?;
        // SAFETY: the text is the device's.
        Ok((id, unsafe { named::text(kind.text, kind.text_size) }))
    }

    fn raw_device(&self, index: usize) -> Result<*mut sys::RawDevice> {
        self.0.devices.get(index).copied().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "find device", "the PJRT client has fewer devices")
                .with_context("device", index)
                .with_context("devices", self.0.devices.len())
        })
    }

    /// A copy of `bytes` on a device, which have so many from one index of each dimension to the next, or are
    /// dense where no strides are given; the bytes are free when it returns.
    /// Fails with [`ErrorKind::ResourceExhausted`] where memory is short, [`ErrorKind::Internal`] for bytes
    /// that are not those of the type.
    pub(crate) fn upload(
        &self,
        device: usize,
        ty: &TensorType,
        bytes: &[u8],
        strides: &[usize],
    ) -> Result<Buffer> {
        const OPERATION: &str = "upload to device";
        if !hold(bytes, strides, ty) {
            let message = "a tensor's bytes do not match its type";
            return Err(Error::new(ErrorKind::Internal, OPERATION, message).with_context("type", ty));
        }
        let dims: Vec<i64> = ty.shape.iter().map(|&size| size as i64).collect();
        let strides: Vec<i64> = strides.iter().map(|&stride| stride as i64).collect();
        // Small inputs are gone at once; a transfer of more may take its time, and is waited for.
        let is_small = bytes.len() <= 1 << 20;
        let semantics =
            if is_small { sys::IMMUTABLE_ONLY_DURING_CALL } else { sys::IMMUTABLE_UNTIL_TRANSFER_COMPLETES };
        let arguments = sys::BufferFromHost {
            client: self.raw(),
            data: bytes.as_ptr().cast(),
            element: buffer_type(ty.element),
            dims: dims.as_ptr(),
            dim_count: dims.len(),
            byte_strides: strides.as_ptr(),
            stride_count: strides.len(),
            semantics,
            device: self.raw_device(device)?,
            ..Default::default()
        };
        let begun = self.plugin().call(self.plugin().api().client_buffer_from_host, arguments, OPERATION)?;
        let buffer = Buffer::new(self.clone(), begun.buffer, ty.clone());
        // SAFETY: the event is this call's; after it the bytes are not read any more.
        unsafe { self.plugin().wait(begun.done, OPERATION) }?;
        Ok(buffer)
    }
}

/// The number of an element type in PJRT.
fn buffer_type(element: ElementType) -> i32 {
    match element {
        ElementType::I1 => 1,
        ElementType::I8 => 2,
        ElementType::I32 => 4,
        ElementType::I64 => 5,
        ElementType::U8 => 6,
        ElementType::U32 => 8,
        ElementType::F16 => 10,
        ElementType::F32 => 11,
        ElementType::BF16 => 13,
        ElementType::I4 => 21,
        ElementType::U4 => 22,
        // None, which a plugin refuses.
        _ => 0,
    }
}

/// A text as C takes it: a pointer, and beside it the length.
pub(super) fn pointer(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_to_hold_all_elements() {
        let ty = TensorType::new(ElementType::F32, [3, 2]);
        let bytes = [0; 64];
        assert!(hold(&bytes[..24], &[], &ty) && !hold(&bytes[..25], &[], &ty));
        // Two columns of four.
        assert!(hold(&bytes[..2 * 16 + 8], &[16, 4], &ty) && !hold(&bytes[..2 * 16 + 7], &[16, 4], &ty));
        assert!(!hold(&bytes, &[16], &ty) && !hold(&bytes, &[usize::MAX, 4], &ty));
    }
}
