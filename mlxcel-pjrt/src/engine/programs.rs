//! The compiled programs of one model, made as shapes are first needed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_core::{
    CancelToken, Control, LoadOptions, LoadProgress, LoadStage, Precision, ProgressFn, Result,
};
use mlxcel_graph::{
    ENTRY, Prepared, ProgramShape, ProgramTable, ProgramWriter, ResidentArgument, ResultMeaning, Signature,
    WeightArgument,
};
use mlxcel_stablehlo::TensorType;

use super::entry::{Argument, Entry};
use super::xla_cpu;
use crate::collectives::Collective;
use crate::ffi::Executable;
use crate::mesh::MeshDevices;
use crate::messages;
use crate::parallel::state_sharding;
use crate::sharding::Sharding;
use crate::store::Store;

/// A program on the devices, and what it takes and gives.
pub(crate) struct PjrtProgram {
    pub(super) name: String,
    pub(super) executable: Executable,
    pub(super) signature: Signature,
    /// The type of the one tensor that its small inputs come in.
    pub(super) step: TensorType,
    /// Of each result the type and how it lies, and the type of what one device gives.
    pub(super) results: Vec<(TensorType, Sharding)>,
    pub(super) parts: Vec<TensorType>,
}

impl PjrtProgram {
    /// What it moves between devices, as the plugin's compiler made it.
    /// Fails with [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) where the plugin does not show it.
    pub(crate) fn collectives(&self) -> Result<Vec<Collective>> {
        messages::collectives(&self.executable.optimized()?)
    }
}

/// The programs of one model.
pub(crate) struct Programs {
    pub(crate) mesh: MeshDevices,
    writer: ProgramWriter,
    /// Of each weight how it lies.
    shardings: Vec<Sharding>,
    is_exact: bool,
    store: Store,
    progress: Option<ProgressFn>,
    pub(super) table: ProgramTable<Arc<PjrtProgram>>,
}

impl Programs {
    pub(crate) fn new(
        mesh: MeshDevices,
        writer: ProgramWriter,
        shardings: Vec<Sharding>,
        store: Store,
        options: &LoadOptions,
    ) -> Self {
        let (is_exact, progress) = (options.precision == Precision::Exact, options.progress.clone());
        Self { mesh, writer, shardings, is_exact, store, progress, table: ProgramTable::default() }
    }

    /// The tensors of the weights that all programs take, and how each lies.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (&WeightArgument, Sharding)> {
        self.writer.weights.iter().zip(self.shardings.iter().copied())
    }

    /// The tensors that all programs take and the host rewrites; each lies on every device.
    pub(super) fn residents(&self) -> &[ResidentArgument] {
        &self.writer.residents
    }

    /// The program for `shape`, made if it is not there: compiling cannot be cancelled, but waiting for
    /// others and what comes before can.
    pub(crate) fn prepare(
        &self,
        shape: &ProgramShape,
        cancel: Option<&CancelToken>,
    ) -> Result<Prepared<Arc<PjrtProgram>>> {
        self.table.get_or_make(shape, cancel, || {
            cancel.map(Control::cancelled_by).unwrap_or_default().check("compile program")?;
            self.report(0);
            let made = self.make(shape)?;
            self.report(1);
            Ok(made)
        })
    }

    fn report(&self, done: u64) {
        if let Some(progress) = &self.progress {
            progress(LoadProgress::new(LoadStage::Compile, done, 1));
        }
    }

    /// What `main` of the program with this signature takes and gives.
    fn entry(&self, signature: &Signature, length: usize) -> Entry {
        let devices = self.mesh.count();
        let of_state = |group: usize| {
            let layout = self.writer.layouts.get(group);
            layout.map_or(Sharding::Replicated, |layout| state_sharding(layout, length, devices))
        };
        let weights = self.weights().map(|(weight, sharding)| Argument::Tensor {
            ty: weight.ty.clone(),
            sharding,
            becomes: None,
        });
        let residents = self.residents().iter().map(|resident| Argument::Tensor {
            ty: resident.ty.clone(),
            sharding: Sharding::Replicated,
            becomes: None,
        });
        let inputs = signature.inputs.iter().map(|input| Argument::Packed(input.ty.clone()));
        let states = signature.states.iter().map(|state| Argument::Tensor {
            ty: state.ty.clone(),
            sharding: of_state(state.state.group),
            becomes: Some(state.becomes),
        });
        let results = signature.results.iter().map(|result| {
            let sharding = match result.meaning {
                // Logits stay where they are computed: few are asked for.
                ResultMeaning::Logits => Sharding::by(1, &result.ty, devices),
                ResultMeaning::Best | ResultMeaning::Hidden | ResultMeaning::States => Sharding::Replicated,
                ResultMeaning::State(state) => of_state(state.group),
            };
            (result.ty.clone(), sharding)
        });
        let results = results.collect();
        Entry { arguments: weights.chain(residents).chain(inputs).chain(states).collect(), results, devices }
    }

    fn make(&self, shape: &ProgramShape) -> Result<Prepared<Arc<PjrtProgram>>> {
        let started = Instant::now();
        let signature = self.writer.signature(shape);
        let entry = self.entry(&signature, shape.length);
        let span = tracing::info_span!("compile", program = %shape, devices = self.mesh.count());
        let (executable, is_new) = span.in_scope(|| {
            let mut module = self.writer.program(shape)?.module;
            if self.mesh.client.is_cpu()? {
                xla_cpu::rewrite(&mut module);
            }
            let text = entry.write(module, ENTRY, self.is_exact)?;
            self.store.get(&self.mesh, &text)
        })?;
        let part = |(ty, sharding): &(TensorType, Sharding)| sharding.part(ty, self.mesh.count());
        let (parts, step) = (entry.results.iter().map(part).collect(), entry.packed_type());
        let name = shape.to_string();
        let program = PjrtProgram { name, executable, signature, step, results: entry.results, parts };
        let compile_time = if is_new { started.elapsed() } else { Duration::ZERO };
        Ok(Prepared { program: Arc::new(program), compile_time })
    }
}
