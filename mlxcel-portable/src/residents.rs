//! Residents: what the host writes beside the weights changes the rows that use it, and no others.

use std::path::Path;

use mlxcel_core::{AdapterLimits, ErrorKind, Precision};
use mlxcel_graph::{Executor, GraphModelOptions, Outputs, ProgramShape, ProgramWriter, Resident, StepInputs};
use mlxcel_models::Checkpoint;

use crate::eval::Workers;
use crate::executor::PortableExecutor;

/// A program of a prompt of four tokens and of two decoding rows.
fn shape() -> ProgramShape {
    ProgramShape { rows: vec![4, 1, 1], length: 64, outputs: Outputs::Last }
}

fn executor(architecture: &str, adapters: Option<AdapterLimits>) -> (PortableExecutor, ProgramWriter) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(architecture);
    let checkpoint = Checkpoint::open(folder).unwrap();
    let mut options = GraphModelOptions::default();
    (options.precision, options.adapters) = (Precision::Exact, adapters);
    let writer = ProgramWriter::new(checkpoint.decoder().unwrap(), &options).unwrap();
    (PortableExecutor::new(checkpoint, writer.clone(), Workers::new(1).unwrap()).unwrap(), writer)
}

/// The logits of the last token of each row of [`shape`], whose adapters are in these slots.
fn logits(executor: &PortableExecutor, writer: &ProgramWriter, adapters: &[i32]) -> Vec<Vec<f32>> {
    let shape = shape();
    let rotary = writer.decoder.ropes().into_iter().map(|rope| {
        let mut table = (Vec::new(), Vec::new());
        for position in [0, 1, 2, 3, 0, 0] {
            let start = table.0.len();
            table.0.resize(start + rope.rotary_dim / 2, 0.0);
            table.1.resize(start + rope.rotary_dim / 2, 0.0);
            rope.cos_sin(position, 4, &mut table.0[start..], &mut table.1[start..]);
        }
        table
    });
    let inputs = StepInputs {
        tokens: vec![7, 12, 3, 40, 9, 9],
        positions: vec![0, 0, 0],
        last: vec![3, 4, 5],
        adapters: adapters.to_vec(),
        rotary: rotary.collect(),
        ..StepInputs::default()
    };
    let state = |layout| executor.allocate(layout, shape.length).unwrap();
    let mut states: Vec<Vec<_>> = (0..3).map(|_| writer.layouts.iter().map(state).collect()).collect();
    let mut states: Vec<_> = states.iter_mut().map(Vec::as_mut_slice).collect();
    let program = executor.prepare(&shape, None).unwrap().program;
    executor
        .run(&program, &inputs, &mut states, &[0, 1, 2])
        .map_err(|error| error.into_error())
        .unwrap()
        .values
}

/// Fills a slot of every resident by `value`, a function of the resident and the element.
fn fill(executor: &PortableExecutor, writer: &ProgramWriter, slot: usize, value: fn(usize, usize) -> f32) {
    for (index, resident) in writer.residents.iter().enumerate() {
        let values = (0..resident.slot_bytes() / 4).map(|element| value(index, element));
        let values: Vec<f32> = values.collect();
        executor.write_resident(index, slot, bytemuck::cast_slice(&values)).unwrap();
    }
}

fn some(index: usize, element: usize) -> f32 {
    ((index * 7 + element * 13) % 11) as f32 / 40.0 - 0.1
}

fn differs(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-3)
}

#[test]
fn a_resident_changes_the_rows_that_use_its_slot_and_no_others() {
    for architecture in ["llama", "lfm2", "deepseek_v3"] {
        let (plain, plain_writer) = executor(architecture, None);
        let without = logits(&plain, &plain_writer, &[]);
        let (adapted, writer) = executor(architecture, Some(AdapterLimits::new(2, 3)));
        // Zeros, and no adapter at all, change nothing.
        assert_eq!(logits(&adapted, &writer, &[-1, 0, 1]), without, "{architecture}");
        fill(&adapted, &writer, 1, some);
        assert_eq!(logits(&adapted, &writer, &[-1, 0, -1]), without, "{architecture}");
        let one = logits(&adapted, &writer, &[1, -1, 1]);
        assert!(differs(&one[0], &without[0]) && differs(&one[2], &without[2]), "{architecture}");
        assert_eq!(one[1], without[1], "{architecture}");
        fill(&adapted, &writer, 0, |index, element| some(index + 1, element + 5));
        let two = logits(&adapted, &writer, &[1, 0, 1]);
        assert_eq!((&two[0], &two[2]), (&one[0], &one[2]), "{architecture}");
        assert!(differs(&two[1], &two[2]), "{architecture}");
        // What is written once more is gone.
        fill(&adapted, &writer, 1, |_, _| 0.0);
        let gone = logits(&adapted, &writer, &[1, -1, 1]);
        assert_eq!(gone, without, "{architecture}");
    }
}

#[test]
fn a_rank_that_is_padded_with_zeros_changes_nothing() {
    let (narrow, narrow_writer) = executor("llama", Some(AdapterLimits::new(1, 2)));
    fill(&narrow, &narrow_writer, 0, some);
    let expected = logits(&narrow, &narrow_writer, &[0, 0, 0]);
    let (wide, writer) = executor("llama", Some(AdapterLimits::new(3, 5)));
    for (index, resident) in writer.residents.iter().enumerate() {
        let own = narrow_writer.residents[index].slot_bytes() / 4;
        let own: Vec<f32> = (0..own).map(|element| some(index, element)).collect();
        let width = resident.ty.shape[2];
        let padded: Vec<f32> = match resident.content {
            Resident::AdapterA(_) => own.iter().copied().chain(std::iter::repeat_n(0.0, 3 * width)).collect(),
            Resident::AdapterB(_) => own.chunks(2).flat_map(|row| [row[0], row[1], 0.0, 0.0, 0.0]).collect(),
        };
        wide.write_resident(index, 2, bytemuck::cast_slice(&padded)).unwrap();
    }
    assert_eq!(logits(&wide, &writer, &[2, 2, 2]), expected);
}

#[test]
fn models_without_room_for_adapters_have_the_same_programs_as_before() {
    let (executor, writer) = executor("llama", None);
    let signature = writer.signature(&shape());
    assert!(signature.residents.is_empty());
    assert!(signature.inputs.iter().all(|input| input.name != "adapters"));
    assert_eq!(executor.write_resident(0, 0, &[]).unwrap_err().kind(), ErrorKind::Internal);
    let (_, adapted) = self::executor("llama", Some(AdapterLimits::new(1, 1)));
    assert_eq!(adapted.residents.len(), 2 * 7 * writer.decoder.layers.len());
}
