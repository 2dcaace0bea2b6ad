//! Tensors on the device that are rewritten between passes.

use std::sync::Arc;

use mlxcel_core::Result;
use mlxcel_graph::{ResidentArgument, Residents};
use mlxcel_iree_kernels::{Layouts, Panels};
use mlxcel_iree_runtime::{Buffer, Device};

/// The residents of a model, as its programs read them.
pub(crate) struct ResidentTensors {
    arguments: Arc<[ResidentArgument]>,
    /// How kernels want the matrices of each.
    panels: Vec<Option<Panels>>,
    tensors: Residents<Buffer>,
}

impl ResidentTensors {
    /// Zeros, for programs that read them in these `layouts`.
    pub(super) fn new(
        device: &Device,
        arguments: Arc<[ResidentArgument]>,
        layouts: &Layouts,
    ) -> Result<Self> {
        let tensors = arguments.iter().map(|argument| device.allocate(argument.ty.bytes()));
        let tensors = Residents::new(tensors.collect::<Result<Vec<_>>>()?);
        let panels = arguments.iter().map(|argument| layouts.get(&argument.name)).collect();
        Ok(Self { arguments, panels, tensors })
    }

    /// The tensors for a pass that begins now.
    pub(super) fn current(&self) -> Arc<Vec<Arc<Buffer>>> {
        self.tensors.current()
    }

    /// [`Executor::write_resident`](mlxcel_graph::Executor::write_resident).
    pub(super) fn write(&self, index: usize, slot: usize, bytes: &[u8]) -> Result<()> {
        self.tensors.change(index, |tensor| {
            let argument = &self.arguments[index];
            let range = argument.slot_range(slot, bytes.len())?;
            let packed = self.panels[index].map(|panels| panels.pack(&argument.ty.shape[1..], bytes));
            if Arc::get_mut(tensor).is_none() {
                // A running pass reads the old one.
                let copy = tensor.device().allocate(tensor.size())?;
                tensor.copy_to(0, &copy, 0, tensor.size())?;
                *tensor = Arc::new(copy);
            }
            tensor.write(range.start, packed.as_deref().unwrap_or(bytes))
        })
    }
}
