//! How a model is spread over devices, and what its programs move between them.

use std::fmt;

use mlxcel_core::{LoadOptions, ModelSource, Result};

use crate::backend::PjrtBackend;
use crate::collectives::{Collective, Listed};
use crate::platform::Platform;
use crate::sharding::Sharding;

/// What [`PjrtBackend::inspect`] found. Prints as a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The plugin and its devices.
    pub platform: Platform,
    /// How many devices share the model.
    pub devices: usize,
    /// The bytes of all weights.
    pub weight_bytes: u64,
    /// The bytes of the weights on each device.
    pub weight_bytes_per_device: u64,
    /// The weights of two dimensions or more that every device has whole, with their bytes.
    pub replicated: Vec<(String, u64)>,
    /// The programs that a generation begins with, and what each moves between devices in a step.
    pub programs: Vec<(String, Vec<Collective>)>,
}

impl PjrtBackend {
    /// Reports how the model in `source` is distributed over the devices, and which collectives the initial
    /// programs of a generation have, which are compiled for that. No weights are read.
    ///
    /// # Errors
    ///
    /// Those of loading a model, and [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) where the plugin
    /// does not show compiled programs.
    pub fn inspect(&self, source: &ModelSource, options: &LoadOptions) -> Result<Inspection> {
        let opened = self.open(source, options)?;
        let mesh = &opened.programs.mesh;
        let mut found = Inspection {
            platform: Platform::of(&mesh.client)?,
            devices: mesh.count(),
            weight_bytes: 0,
            weight_bytes_per_device: 0,
            replicated: Vec::new(),
            programs: Vec::new(),
        };
        for (argument, sharding) in opened.programs.weights() {
            let bytes = argument.ty.bytes() as u64;
            found.weight_bytes += bytes;
            found.weight_bytes_per_device += sharding.part(&argument.ty, found.devices).bytes() as u64;
            if sharding == Sharding::Replicated && argument.ty.rank() >= 2 && found.devices > 1 {
                found.replicated.push((argument.name.clone(), bytes));
            }
        }
        for shape in opened.shapes {
            let program = opened.programs.prepare(&shape, options.cancel.as_ref())?.program;
            found.programs.push((shape.to_string(), program.collectives()?));
        }
        Ok(found)
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.platform)?;
        let percent = 100.0 * self.weight_bytes_per_device as f64 / self.weight_bytes.max(1) as f64;
        writeln!(
            f,
            "weights   {} bytes, {} of them ({percent:.1} %) on each of {} devices",
            self.weight_bytes, self.weight_bytes_per_device, self.devices
        )?;
        for (name, bytes) in &self.replicated {
            writeln!(f, "          {name}: replicated, {bytes} bytes")?;
        }
        for (program, collectives) in &self.programs {
            write!(f, "program   {program}: {}", Listed(collectives))?;
        }
        Ok(())
    }
}
