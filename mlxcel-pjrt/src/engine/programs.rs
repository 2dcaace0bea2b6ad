//! The compiled programs of one model, made as shapes are first needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_core::{CancelToken, Control, Error, LoadProgress, LoadStage, Precision, ProgressFn, Result};
use mlxcel_graph::{ENTRY, ProgramShape, ProgramWriter, ResultMeaning, Signature};
use mlxcel_stablehlo::TensorType;

use super::entry::{Argument, Entry};
use super::mesh::MeshDevices;
use crate::ffi::Executable;
use crate::parallel::state_sharding;
use crate::sharding::Sharding;
use crate::store::Store;

/// A program on the devices, and what it takes and gives.
pub(crate) struct PjrtProgram {
    pub(super) executable: Executable,
    pub(super) signature: Signature,
    /// The type of the one tensor that its small inputs come in.
    pub(super) step: TensorType,
    /// Of each result how it lies, and the type of what one device gives.
    pub(super) results: Vec<(Sharding, TensorType)>,
    pub(super) parts: Vec<TensorType>,
}

impl PjrtProgram {
    /// What the plugin's compiler made of it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) where the plugin does not show it.
    pub(crate) fn optimized(&self) -> Result<Vec<u8>> {
        self.executable.optimized()
    }
}

/// A place for one program; whoever holds it makes it.
type Slot = Arc<Mutex<Option<Arc<PjrtProgram>>>>;

/// The programs of one model.
pub(crate) struct Programs {
    pub(super) mesh: MeshDevices,
    writer: ProgramWriter,
    /// Of each weight how it lies.
    shardings: Vec<Sharding>,
    precision: Precision,
    store: Store,
    progress: Option<ProgressFn>,
    slots: Mutex<HashMap<ProgramShape, Slot>>,
}

impl Programs {
    pub(crate) fn new(
        mesh: MeshDevices,
        writer: ProgramWriter,
        shardings: Vec<Sharding>,
        precision: Precision,
        store: Store,
        progress: Option<ProgressFn>,
    ) -> Self {
        Self { mesh, writer, shardings, precision, store, progress, slots: Mutex::default() }
    }

    /// The program for `shape`, made if it is not there, and how long it took to compile.
    ///
    /// # Errors
    ///
    /// [`Compile`](mlxcel_core::ErrorKind::Compile), [`Cancelled`](mlxcel_core::ErrorKind::Cancelled) before it.
    pub(crate) fn prepare(
        &self,
        shape: &ProgramShape,
        cancel: Option<&CancelToken>,
    ) -> Result<(Arc<PjrtProgram>, Duration)> {
        let slot = self.slot(shape);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = &*slot {
            return Ok((Arc::clone(program), Duration::ZERO));
        }
        let control = cancel.map(Control::cancelled_by).unwrap_or_default();
        control.check("compile program")?;
        self.report(0);
        let started = Instant::now();
        let named = |error: Error| error.with_context("program", shape);
        let (program, compiled) = self.make(shape).map_err(named)?;
        let program = Arc::new(program);
        *slot = Some(Arc::clone(&program));
        self.report(1);
        Ok((program, if compiled { started.elapsed() } else { Duration::ZERO }))
    }

    /// Whether the program for `shape` is there.
    pub(super) fn is_ready(&self, shape: &ProgramShape) -> bool {
        // A place that is held has somebody making the program.
        self.slot(shape).try_lock().is_ok_and(|slot| slot.is_some())
    }

    fn report(&self, done: u64) {
        if let Some(progress) = &self.progress {
            progress(LoadProgress::new(LoadStage::Compile, done, 1));
        }
    }

    fn slot(&self, shape: &ProgramShape) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(shape.clone()).or_default())
    }

    /// How a state of a group lies for programs of `length`.
    pub(super) fn state_sharding(&self, group: usize, length: usize) -> Sharding {
        let layout = self.writer.layouts.get(group);
        layout.map_or(Sharding::Replicated, |layout| state_sharding(layout, length, self.mesh.count()))
    }

    /// What `main` of the program with this signature takes and gives.
    fn entry(&self, signature: &Signature, length: usize) -> Entry {
        let weights = signature.weights.iter().zip(&self.shardings).map(|(weight, sharding)| {
            Argument::Tensor { ty: weight.ty.clone(), sharding: *sharding, becomes: None }
        });
        let inputs = signature.inputs.iter().map(|input| Argument::Packed(input.ty.clone()));
        let states = signature.states.iter().map(|state| Argument::Tensor {
            ty: state.ty.clone(),
            sharding: self.state_sharding(state.state.group, length),
            becomes: Some(state.becomes),
        });
        let results = signature.results.iter().map(|result| {
            let sharding = match result.meaning {
                // Logits stay where they are computed: few are asked for.
                ResultMeaning::Logits => Sharding::by(1, &result.ty, self.mesh.count()),
                ResultMeaning::Best | ResultMeaning::Hidden => Sharding::Replicated,
                ResultMeaning::State(state) => self.state_sharding(state.group, length),
            };
            (result.ty.clone(), sharding)
        });
        let results = results.collect();
        Entry {
            arguments: weights.chain(inputs).chain(states).collect(),
            results,
            devices: self.mesh.count(),
        }
    }

    /// The text of the program for `shape`, as the plugin is given it.
    ///
    /// # Errors
    ///
    /// Those of writing the graph.
    pub(crate) fn text(&self, shape: &ProgramShape) -> Result<String> {
        let program = self.writer.program(shape)?;
        let entry = self.entry(&program.signature, shape.length);
        entry.write(program.module, ENTRY, self.precision == Precision::Exact)
    }

    fn make(&self, shape: &ProgramShape) -> Result<(PjrtProgram, bool)> {
        let signature = self.writer.signature(shape);
        let entry = self.entry(&signature, shape.length);
        let span = tracing::info_span!("compile", program = %shape, devices = self.mesh.count());
        let (executable, compiled) = span.in_scope(|| self.store.get(&self.mesh, &self.text(shape)?))?;
        let part = |(ty, sharding): &(TensorType, Sharding)| sharding.part(ty, self.mesh.count());
        let parts = entry.results.iter().map(part).collect();
        let step = entry.packed_type();
        let results = entry.results.into_iter().map(|(ty, sharding)| (sharding, ty)).collect();
        Ok((PjrtProgram { executable, signature, step, results, parts }, compiled))
    }
}
