//! What sequences keep, on the devices of a mesh, and how it becomes longer or another's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_core::Result;
use mlxcel_stablehlo::TensorType;

use crate::ffi::{Buffer, Executable};
use crate::mesh::MeshDevices;
use crate::sharding::Sharding;

/// What one group of layers keeps of a sequence: a part of it on each device.
pub(crate) struct PjrtState {
    pub(super) shards: Vec<Buffer>,
    pub(super) ty: TensorType,
    pub(super) sharding: Sharding,
}

/// Programs that copy states, by what they copy from and to.
#[derive(Default)]
pub(super) struct Copies(Mutex<HashMap<(TensorType, TensorType, Sharding), Arc<Executable>>>);

impl Copies {
    /// A copy of `from` as a state of type `to`: what both have room for, zeros behind it.
    /// Fails with [`ErrorKind::Compile`] where the plugin cannot, and those of running it.
    pub(super) fn copy(&self, mesh: &MeshDevices, from: &PjrtState, to: &TensorType) -> Result<Vec<Buffer>> {
        let key = (from.ty.clone(), to.clone(), from.sharding);
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let program = match copies.get(&key) {
            Some(program) => Arc::clone(program),
            None => {
                let text = copy_text(from, to, mesh.count());
                let program = Executable::compile(&mesh.client, &text, &mesh.options, mesh.count())?;
                let program = Arc::new(program);
                copies.insert(key, Arc::clone(&program));
                program
            }
        };
        drop(copies);
        let arguments: Vec<Vec<&Buffer>> = from.shards.iter().map(|shard| vec![shard]).collect();
        let results = program.run(&arguments, &[from.sharding.part(to, mesh.count())])?;
        Ok(results.into_iter().flatten().collect())
    }
}

/// The program of a copy.
fn copy_text(from: &PjrtState, to: &TensorType, devices: usize) -> String {
    let kept: Vec<usize> = from.ty.shape.iter().zip(&to.shape).map(|(from, to)| *from.min(to)).collect();
    let limits = kept.iter().map(|size| format!("0:{size}")).collect::<Vec<_>>().join(", ");
    let high: Vec<usize> = to.shape.iter().zip(&kept).map(|(to, kept)| to - kept).collect();
    let (none, from_type) = (vec![0; kept.len()], &from.ty);
    let zero = if to.element.is_float() { "0.0" } else { "0" };
    let (part, scalar) = (TensorType::new(to.element, kept), TensorType::new(to.element, []));
    let attribute = |ty: &TensorType| match devices {
        1 => String::new(),
        _ => format!(" {{{}}}", from.sharding.attribute(ty.rank(), devices)),
    };
    let [taken, given] = [from_type, to].map(attribute);
    format!(
        "module @copy {{
  func.func public @main(%from: {from_type}{taken}) -> ({to}{given}) {{
    %part = stablehlo.slice %from [{limits}] : ({from_type}) -> {part}
    %zero = stablehlo.constant dense<{zero}> : {scalar}
    %to = stablehlo.pad %part, %zero, low = {none:?}, high = {high:?}, interior = {none:?} : ({part}, {scalar}) -> {to}
    return %to : {to}
  }}
}}
"
    )
}
