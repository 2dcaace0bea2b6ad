//! What sequences keep, on the devices of a mesh, and how it becomes longer or another's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_stablehlo::{Literal, ModuleBuilder, TensorType};

use super::entry::{Argument, Entry};
use super::mesh::MeshDevices;
use crate::ffi::{Buffer, Executable};
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
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Compile`] where the plugin cannot, and those of running it.
    pub(super) fn copy(&self, mesh: &MeshDevices, from: &PjrtState, to: &TensorType) -> Result<Vec<Buffer>> {
        let key = (from.ty.clone(), to.clone(), from.sharding);
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let program = match copies.get(&key) {
            Some(program) => Arc::clone(program),
            None => {
                let program = Arc::new(mesh.compile(&copy_text(from, to, mesh.count())?)?);
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
fn copy_text(from: &PjrtState, to: &TensorType, devices: usize) -> Result<String> {
    const COPY: &str = "copy";
    let failed = |error: mlxcel_stablehlo::Error| {
        Error::new(ErrorKind::Internal, "copy state", "a state cannot be copied to this length")
            .with_source(error)
    };
    let mut module = ModuleBuilder::new(COPY);
    let built = module.function(COPY, |b| {
        let x = b.argument("from", from.ty.clone())?;
        let kept: Vec<usize> = from.ty.shape.iter().zip(&to.shape).map(|(from, to)| *from.min(to)).collect();
        let start = vec![0; kept.len()];
        let part = b.slice(x, &start, &kept)?;
        let zero = Literal::scalar_from_f64(to.element, 0.0);
        let zero = zero.ok_or_else(|| {
            mlxcel_stablehlo::Error::new(
                mlxcel_stablehlo::ErrorKind::Element,
                COPY,
                "the element has no zero",
            )
        })?;
        let zero = b.constant(zero)?;
        let low = vec![0; kept.len()];
        let high: Vec<i64> = to.shape.iter().zip(&kept).map(|(to, kept)| (to - kept) as i64).collect();
        Ok(vec![b.pad(part, zero, &low, &high, &start)?])
    });
    built.map_err(failed)?;
    let entry = Entry {
        arguments: vec![Argument::Tensor { ty: from.ty.clone(), sharding: from.sharding, becomes: None }],
        results: vec![(to.clone(), from.sharding)],
        devices,
    };
    entry.write(module.finish(), COPY, false)
}
