//! Running decoder programs on the devices of a PJRT client.

use std::sync::Arc;
use std::time::Instant;

use mlxcel_core::{CancelToken, Error, ErrorKind, Result};
use mlxcel_graph::{
    Executor, Prepared, ProgramShape, Residents, ResultMeaning, RunError, StateLayout, StepInputs,
    StepOutputs,
};

use super::programs::{PjrtProgram, Programs};
use super::states::{Copies, PjrtState};
use super::weights::Weights;
use crate::ffi::Buffer;
use crate::parallel::state_sharding;
use crate::profile::Profiler;
use crate::sharding::Sharding;

/// Devices with a model's programs and weights on them.
pub(crate) struct PjrtExecutor {
    programs: Programs,
    weights: Weights,
    residents: Residents<Vec<Buffer>>,
    copies: Copies,
    profiler: Option<Profiler>,
}

impl PjrtExecutor {
    /// Programs and weights on their devices; residents are zero.
    /// Fails with [`ResourceExhausted`](mlxcel_core::ErrorKind::ResourceExhausted) where memory is short for
    /// residents.
    pub(crate) fn new(programs: Programs, weights: Weights, profiler: Option<Profiler>) -> Result<Self> {
        let residents = programs.residents().iter();
        let residents = residents.map(|resident| programs.mesh.zeros(&resident.ty, Sharding::Replicated));
        let residents = Residents::new(residents.collect::<Result<Vec<_>>>()?);
        Ok(Self { programs, weights, residents, copies: Copies::default(), profiler })
    }
}

impl Executor for PjrtExecutor {
    type State = PjrtState;
    type Program = Arc<PjrtProgram>;

    fn prepare(&self, shape: &ProgramShape, cancel: Option<&CancelToken>) -> Result<Prepared<Self::Program>> {
        self.programs.prepare(shape, cancel)
    }

    fn prepare_ahead(&self, shape: &ProgramShape) -> bool {
        self.programs.table.ready(shape).is_some()
    }

    fn allocate(&self, layout: &StateLayout, length: usize) -> Result<PjrtState> {
        let (mesh, ty) = (&self.programs.mesh, layout.tensor_type(length));
        let sharding = state_sharding(layout, length, mesh.count());
        Ok(PjrtState { shards: mesh.zeros(&ty, sharding)?, ty, sharding })
    }

    fn copy(
        &self,
        _layout: &StateLayout,
        (from, _): (&PjrtState, usize),
        (to, _): (&mut PjrtState, usize),
        _positions: usize,
    ) -> Result<()> {
        // All that both have room for: what lies behind the positions is not read before it is written.
        to.shards = self.copies.copy(&self.programs.mesh, from, &to.ty)?;
        Ok(())
    }

    fn read(
        &self,
        layout: &StateLayout,
        state: &PjrtState,
        length: usize,
        positions: usize,
    ) -> Result<Vec<u8>> {
        let whole = self.programs.mesh.read(&state.ty, state.sharding, &state.shards)?;
        let mut bytes = Vec::new();
        let size = layout.bytes(positions);
        bytes.try_reserve_exact(size).map_err(|_| Error::out_of_memory("read state", size))?;
        for part in layout.copy_segments(length, positions, positions) {
            bytes.extend_from_slice(&whole[part.from..part.from + part.bytes]);
        }
        Ok(bytes)
    }

    fn write(
        &self,
        layout: &StateLayout,
        state: &mut PjrtState,
        length: usize,
        positions: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let mesh = &self.programs.mesh;
        let mut whole = mesh.read(&state.ty, state.sharding, &state.shards)?;
        for part in layout.copy_segments(positions, length, positions) {
            whole[part.to..part.to + part.bytes].copy_from_slice(&bytes[part.from..part.from + part.bytes]);
        }
        state.shards = mesh.upload(&state.ty, state.sharding, &whole)?;
        Ok(())
    }

    fn write_resident(&self, argument: usize, slot: usize, bytes: &[u8]) -> Result<()> {
        let mesh = &self.programs.mesh;
        self.residents.change(argument, |shards| {
            let resident = &self.programs.residents()[argument];
            let range = resident.slot_range(slot, bytes.len())?;
            // A buffer never changes: the tensor goes back to the device as a new one.
            let mut whole = mesh.read(&resident.ty, Sharding::Replicated, shards)?;
            whole[range].copy_from_slice(bytes);
            *shards = Arc::new(mesh.upload(&resident.ty, Sharding::Replicated, &whole)?);
            Ok(())
        })
    }

    fn run(
        &self,
        program: &Arc<PjrtProgram>,
        inputs: &StepInputs,
        states: &mut [&mut [PjrtState]],
        wanted: &[usize],
    ) -> Result<StepOutputs, RunError> {
        let PjrtProgram { name, executable, signature, step, results, parts } = &**program;
        let (started, mesh) = (Instant::now(), &self.programs.mesh);
        let mut packed = Vec::with_capacity(step.bytes());
        for argument in inputs.arguments(signature) {
            packed.extend_from_slice(argument.map_err(RunError::before)?.1);
        }
        let step = mesh.upload(step, Sharding::Replicated, &packed).map_err(RunError::before)?;
        let mut given = Vec::with_capacity(signature.states.len());
        for argument in &signature.states {
            let state = states.get(argument.state.row).and_then(|row| row.get(argument.state.group));
            given.push(state.ok_or_else(|| RunError::before(lost(&argument.name)))?);
        }
        let residents = self.residents.current();
        let list = |device: usize| {
            let weights = self.weights.iter().filter_map(|shards| shards.get(device));
            let residents = residents.iter().filter_map(|shards| shards.get(device));
            let states = given.iter().filter_map(|state| state.shards.get(device));
            weights.chain(residents).chain(step.get(device)).chain(states).collect::<Vec<&Buffer>>()
        };
        let lists: Vec<Vec<&Buffer>> = (0..mesh.count()).map(list).collect();
        let ran = executable.run(&lists, parts).map_err(|error| {
            // What the plugin refused before it took a state over has left all of them as they were.
            let mut shards = given.iter().flat_map(|state| &state.shards);
            let begun = shards.any(|shard| shard.is_given_up().unwrap_or(true));
            if begun { RunError::from(error) } else { RunError::before(error) }
        })?;
        let mut by_result: Vec<Vec<Buffer>> =
            results.iter().map(|_| Vec::with_capacity(mesh.count())).collect();
        for device in ran {
            device.into_iter().zip(&mut by_result).for_each(|(buffer, shards)| shards.push(buffer));
        }
        let mut outputs = StepOutputs::default();
        for ((described, (ty, sharding)), shards) in signature.results.iter().zip(results).zip(by_result) {
            let read = || mesh.read(ty, *sharding, &shards);
            match described.meaning {
                ResultMeaning::Best => {
                    let words = bytemuck::pod_collect_to_vec::<u8, u32>(&read()?);
                    outputs.best = StepOutputs::decode_best(&words);
                }
                ResultMeaning::Logits | ResultMeaning::Hidden if wanted.is_empty() => {}
                ResultMeaning::Logits | ResultMeaning::Hidden => {
                    let bytes = read()?;
                    let width = ty.bytes() / ty.shape.first().copied().unwrap_or_default().max(1);
                    let row = |row: &usize| bytemuck::pod_collect_to_vec(&bytes[row * width..][..width]);
                    outputs.values = wanted.iter().map(row).collect();
                }
                ResultMeaning::States => outputs.states = bytemuck::pod_collect_to_vec(&read()?),
                ResultMeaning::State(whose) => {
                    let state = states.get_mut(whose.row).and_then(|row| row.get_mut(whose.group));
                    state.ok_or_else(|| lost(&whose.to_string()))?.shards = shards;
                }
            }
        }
        if let Some(profiler) = &self.profiler {
            profiler.note(name, started.elapsed(), || program.collectives().unwrap_or_default());
        }
        Ok(outputs)
    }
}

fn lost(name: &str) -> Error {
    Error::new(ErrorKind::Internal, "run program", "a state or result of the program is missing")
        .with_context("name", name)
}
