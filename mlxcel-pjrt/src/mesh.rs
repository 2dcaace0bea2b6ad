//! The devices that a model runs on.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::TensorType;

use crate::ffi::{Buffer, Client};
use crate::messages::compile_options;
use crate::options::OptionValue;
use crate::sharding::{Sharding, strides};

/// The devices of a client that share a model, and how programs are compiled for them.
#[derive(Clone)]
pub(crate) struct MeshDevices {
    pub(crate) client: Client,
    /// Their indices among the client's.
    devices: Vec<usize>,
    /// What programs are compiled with, serialized.
    pub(crate) options: Vec<u8>,
}

impl MeshDevices {
    /// The first `count` devices of a client from `first` on.
    /// Fails with [`ErrorKind::InvalidInput`] where there are fewer.
    pub(crate) fn new(
        client: Client,
        first: usize,
        count: usize,
        overrides: &[(String, OptionValue)],
    ) -> Result<Self> {
        let available = client.device_count();
        if count == 0 || first.checked_add(count).is_none_or(|end| end > available) {
            let message = "the PJRT client has fewer devices than requested";
            return Err(Error::new(ErrorKind::InvalidInput, "load model", message)
                .with_context("field", if first == 0 { "mesh" } else { "device" })
                .with_context("first", first)
                .with_context("wanted", count)
                .with_context("devices", available));
        }
        let devices: Vec<usize> = (first..first + count).collect();
        let ids: Vec<i32> =
            devices.iter().map(|&device| Ok(client.device(device)?.0)).collect::<Result<_>>()?;
        let options = compile_options(&ids, overrides);
        Ok(Self { client, devices, options })
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// Copies a tensor whose bytes are at hand to the devices, each getting its part.
    pub(crate) fn upload(&self, ty: &TensorType, sharding: Sharding, bytes: &[u8]) -> Result<Vec<Buffer>> {
        let Sharding::Split(dimension) = sharding else {
            return self.devices.iter().map(|&device| self.client.upload(device, ty, bytes, &[])).collect();
        };
        let (part, strides) = (sharding.part(ty, self.count()), strides(ty));
        let step = part.shape.get(dimension).zip(strides.get(dimension)).map_or(0, |(a, b)| a * b);
        let upload = |(index, &device): (usize, &usize)| {
            // A part of the outermost dimension lies in one piece.
            let (end, strides) =
                if dimension == 0 { ((index + 1) * step, &[][..]) } else { (bytes.len(), &strides[..]) };
            let from = bytes.get(index * step..end).unwrap_or_default();
            self.client.upload(device, &part, from, strides)
        };
        self.devices.iter().enumerate().map(upload).collect()
    }

    /// Zeros.
    /// Fails with [`ErrorKind::ResourceExhausted`] where memory is short.
    pub(crate) fn zeros(&self, ty: &TensorType, sharding: Sharding) -> Result<Vec<Buffer>> {
        let part = sharding.part(ty, self.count());
        let zeros: Box<[u8]> = bytemuck::allocation::try_zeroed_slice_box(part.bytes())
            .map_err(|()| Error::out_of_memory("allocate state", part.bytes()))?;
        let upload = |&device: &usize| self.client.upload(device, &part, &zeros, &[]);
        self.devices.iter().map(upload).collect()
    }

    /// Reads a tensor back: of one that is split, its parts, put together.
    pub(crate) fn read(&self, ty: &TensorType, sharding: Sharding, shards: &[Buffer]) -> Result<Vec<u8>> {
        let (Sharding::Split(dimension), [_, ..]) = (sharding, shards) else {
            let lost = || Error::new(ErrorKind::Internal, "read back", "a tensor is not on any device");
            return shards.first().ok_or_else(lost)?.read();
        };
        let part = sharding.part(ty, self.count());
        let run = strides(&part).get(dimension).zip(part.shape.get(dimension)).map_or(0, |(a, b)| a * b);
        let size = ty.bytes();
        let whole = bytemuck::allocation::try_zeroed_slice_box(size);
        let mut whole: Box<[u8]> = whole.map_err(|()| Error::out_of_memory("read back", size))?;
        for (index, shard) in shards.iter().enumerate() {
            let bytes = shard.read()?;
            // A run of each part stands behind those of the parts before it.
            let places = whole.chunks_exact_mut((run * self.count()).max(1));
            for (from, to) in bytes.chunks_exact(run.max(1)).zip(places) {
                to[index * run..][..run].copy_from_slice(from);
            }
        }
        Ok(whole.into_vec())
    }
}
