//! How a model is spread over devices, and what its programs move between them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mlxcel_core::{LoadOptions, ModelSource, Result};
use mlxcel_graph::{GraphModelOptions, ProgramWriter};
use mlxcel_models::{Checkpoint, FeatureSet};

use crate::backend::{NAME, PjrtBackend};
use crate::engine::Programs;
use crate::hlo::{Collective, collectives};
use crate::parallel::weight_shardings;
use crate::platform::Platform;
use crate::sharding::Sharding;
use crate::store::Store;

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
    /// Tells how the model in `source` is spread over the devices, and which collectives the programs that a generation begins with have,
    /// which are compiled for that. No weights are read.
    ///
    /// # Errors
    ///
    /// Those of loading a model, and [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) where the plugin does not show compiled programs.
    pub fn inspect(&self, source: &ModelSource, options: &LoadOptions) -> Result<Inspection> {
        let checkpoint = Checkpoint::from_source(source)?;
        let decoder = checkpoint.decoder()?;
        decoder.require(&FeatureSet::all(), NAME)?;
        let mut graph = GraphModelOptions::from(options);
        graph.kv_cache = self.kv_cache();
        let shapes = graph.prepared_programs(&decoder, options.prepare)?;
        let mesh = self.devices(options)?;
        let devices = mesh.count();
        let platform = Platform::of(mesh.client())?;
        let store = Store::open(self.cache_dir(), !self.is_cached(), mesh.client())?;
        let writer = ProgramWriter::new(decoder.clone(), &graph)?;
        let arguments = Arc::clone(&writer.weights);
        let shardings = weight_shardings(&decoder, &arguments, devices);
        let lie: Vec<_> = arguments.iter().zip(&shardings).collect();
        let programs = Programs::new(mesh, writer, shardings.clone(), options.precision, store, None);
        let mut inspected = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let (program, _) = programs.prepare(&shape, options.cancel.as_ref())?;
            inspected.push((shape.to_string(), collectives(&program.optimized()?)?));
        }
        let whole = lie.iter().filter(|(argument, sharding)| {
            **sharding == Sharding::Replicated && argument.ty.rank() >= 2 && devices > 1
        });
        Ok(Inspection {
            platform,
            devices,
            weight_bytes: lie.iter().map(|(argument, _)| argument.ty.bytes() as u64).sum(),
            weight_bytes_per_device: lie
                .iter()
                .map(|(argument, sharding)| sharding.part(&argument.ty, devices).bytes() as u64)
                .sum(),
            replicated: whole
                .map(|(argument, _)| (argument.name.clone(), argument.ty.bytes() as u64))
                .collect(),
            programs: inspected,
        })
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
            let mut alike: BTreeMap<&Collective, usize> = BTreeMap::new();
            for collective in collectives {
                *alike.entry(collective).or_default() += 1;
            }
            let total: u64 = collectives.iter().map(|collective| collective.bytes).sum();
            writeln!(
                f,
                "program   {program}: {} collectives, {total} bytes on each device",
                collectives.len()
            )?;
            for (Collective { operation, bytes }, count) in alike {
                writeln!(f, "          {count} x {operation} of {bytes} bytes")?;
            }
        }
        Ok(())
    }
}
