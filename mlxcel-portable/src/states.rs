//! What sequences keep, on models of each kind: it grows, wraps, is forked, restored and computed again
//! without a trace.

use std::path::Path;
use std::sync::Arc;

use mlxcel_core::{
    Control, ErrorKind, InferenceSession, LoadOptions, Model, Precision, Row, RowResult, SequenceId,
    SessionOptions, Snapshot, StepOutput, Want,
};
use mlxcel_graph::{GraphModel, GraphModelOptions, ProgramWriter, model_info};
use mlxcel_models::{Checkpoint, Decoder, LongRope, Mixer, Operation};

use crate::eval::Workers;
use crate::executor::PortableExecutor;

/// The largest difference of a logit, relative to the largest, between sums in other orders.
const TOLERANCE: f32 = 1e-4;

fn checkpoint(architecture: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures").join(architecture);
    Checkpoint::open(folder).unwrap()
}

/// A model of `decoder`, which prompts are fed to in chunks of `chunk`.
fn load(checkpoint: Checkpoint, decoder: &Decoder, chunk: usize, capacity: usize) -> Arc<dyn Model> {
    let mut options = GraphModelOptions::default();
    options.precision = Precision::Exact;
    options.chunks = vec![chunk];
    options.capacity = Some(capacity);
    let info = model_info("portable", &checkpoint, decoder);
    let workers = Workers::new(1).unwrap();
    let writer = ProgramWriter::new(decoder.clone(), &options).unwrap();
    let executor = PortableExecutor::new(checkpoint, writer, workers).unwrap();
    Arc::new(GraphModel::new(executor, decoder, info, &options).unwrap())
}

/// A model of an architecture, with a context of at least `capacity`.
fn model(architecture: &str, chunk: usize, capacity: usize) -> Arc<dyn Model> {
    let checkpoint = checkpoint(architecture);
    let mut decoder = checkpoint.decoder().unwrap();
    decoder.context_length = decoder.context_length.max(capacity);
    load(checkpoint, &decoder, chunk, capacity)
}

fn open(model: &Arc<dyn Model>) -> Box<dyn InferenceSession> {
    model.open_session(&SessionOptions::default()).unwrap()
}

fn text(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| 3 + (i * 37 + i * i % 11) % 250).collect()
}

/// The logits of each row's last token, in one step.
fn step(session: &mut dyn InferenceSession, rows: &[(SequenceId, &[u32])]) -> Vec<Vec<f32>> {
    let mut out = StepOutput::default();
    let rows: Vec<_> = rows.iter().map(|(sequence, tokens)| Row::logits(*sequence, tokens)).collect();
    session.step(&rows, &Control::default(), &mut out).unwrap();
    let logits = out.take().into_iter().map(|row| row.unwrap().into_logits().unwrap());
    logits.collect()
}

fn logits(session: &mut dyn InferenceSession, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    step(session, &[(sequence, tokens)]).remove(0)
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    let scale = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(error <= TOLERANCE * scale, "{what}: {error} of {scale}");
}

#[test]
fn a_ring_cache_attends_to_the_same_positions_as_a_full_cache() {
    let text = text(200);
    // The ring of the one is 64 positions long, and wraps thrice; that of the other is longer than the text.
    let (ring, full) = (model("mistral", 8, 210), model("mistral", 210, 210));
    let (mut ring, mut full) = (open(&ring), open(&full));
    let other = ring.open().unwrap();
    let [a, b] = [ring.open().unwrap(), full.open().unwrap()];
    let mut fed = 0;
    for (count, with_other) in
        [(3, false), (50, false), (1, true), (9, true), (70, false), (1, false), (66, true)]
    {
        let (tokens, single) = (&text[fed..fed + count], &text[fed..fed + 1]);
        let rows = [(a, tokens), (other, single)];
        let found = step(&mut *ring, &rows[..1 + usize::from(with_other)]).remove(0);
        fed += count;
        assert_near(&found, &logits(&mut *full, b, tokens), &format!("after {fed}"));
    }
    assert_eq!(fed, 200);
}

#[test]
fn a_windows_memory_is_the_same_after_4096_tokens_as_after_256() {
    let model = model("mistral", 64, 5000);
    let mut session = open(&model);
    let sequence = session.open().unwrap();
    let text = text(4096);
    let mut out = StepOutput::default();
    let mut held = |session: &mut dyn InferenceSession, tokens: &[u32]| {
        session.step(&[Row::extend(sequence, tokens)], &Control::default(), &mut out).unwrap();
        assert!(out.rows()[0].is_ok());
        session.stats().kv_bytes
    };
    let at_256 = held(&mut *session, &text[..256]);
    let at_4096 = held(&mut *session, &text[256..]);
    assert_eq!(session.state(sequence).unwrap().position, 4096);
    // Three layers, keys and values of two heads of 16, float32; a window of 16 and a chunk of 64 in a ring
    // of 128.
    assert_eq!((at_256, at_4096), (3 * 2 * 2 * 16 * 4 * 128, at_256));
}

/// Architectures of which each keeps something else: all positions, a window, both by turns, latents, these
/// and keys of an indexer, what does not grow, both by turns.
const KINDS: [&str; 8] =
    ["llama", "mistral", "gpt_oss", "deepseek_v3", "deepseek_v32", "deepseek_v4", "mamba2", "qwen3_next"];

#[test]
fn every_kind_of_state_is_forked_and_restored() {
    let text = text(270);
    for architecture in KINDS {
        let model = model(architecture, 8, 400);
        let (mut session, mut elsewhere) = (open(&model), open(&model));
        // Within the first ring, at its end, and behind it; before the second length.
        for split in [20, 64, 140, 250] {
            let original = session.open().unwrap();
            logits(&mut *session, original, &text[..split]);
            let fork = session.fork(original).unwrap();
            let snapshot = session.snapshot(original).unwrap();
            let snapshot = Snapshot::from_bytes(&snapshot.to_bytes()).unwrap();
            let restored = elsewhere.restore(&snapshot).unwrap();
            // The original continues with something else first.
            logits(&mut *session, original, &[9, 8, 7]);
            let whole = session.open().unwrap();
            let expected = logits(&mut *session, whole, &text[..split + 9]);
            let what = format!("{architecture} at {split}");
            let rest = &text[split..split + 9];
            assert_near(&logits(&mut *session, fork, rest), &expected, &format!("fork of {what}"));
            assert_near(&logits(&mut *elsewhere, restored, rest), &expected, &format!("restored {what}"));
            let mut payload = snapshot.payload().to_vec();
            payload.pop();
            let cut = Snapshot::new(snapshot.identity().clone(), split, payload);
            assert_eq!(elsewhere.restore(&cut).unwrap_err().kind(), ErrorKind::Corrupt);
            for sequence in [original, fork, whole] {
                session.close(sequence).unwrap();
            }
            elsewhere.close(restored).unwrap();
        }
        // What does not grow is there before anything is fed, and stays out of empty snapshots.
        let empty = session.open().unwrap();
        let snapshot = session.snapshot(empty).unwrap();
        let restored = elsewhere.restore(&snapshot).unwrap();
        let expected = logits(&mut *session, empty, &text[..5]);
        assert_near(&logits(&mut *elsewhere, restored, &text[..5]), &expected, architecture);
    }
}

#[test]
fn a_short_sequence_shrinks_after_a_pass_with_a_long_one() {
    let model = model("llama", 64, 1000);
    let mut session = open(&model);
    let text = text(600);
    let (short, long) = (session.open().unwrap(), session.open().unwrap());
    logits(&mut *session, long, &text[..590]);
    let alone = session.stats().kv_bytes;
    logits(&mut *session, short, &text[..5]);
    let own = session.stats().kv_bytes - alone;
    step(&mut *session, &[(short, &text[5..6]), (long, &text[590..591])]);
    assert!(session.stats().kv_bytes > alone + own, "they shared a pass");
    // Not at once, so that rows that come and go do not have states copied to and fro.
    logits(&mut *session, short, &text[6..7]);
    assert!(session.stats().kv_bytes > alone + own);
    let mut found = Vec::new();
    for token in text[7..70].chunks(1) {
        found = logits(&mut *session, short, token);
    }
    assert_eq!(session.stats().kv_bytes, alone + own);
    let whole = session.open().unwrap();
    assert_near(&found, &logits(&mut *session, whole, &text[..70]), "short again");
}

#[test]
fn rewind_is_exact_or_refused() {
    let text = text(90);
    // A ring of 128 positions holds all that 60 and a chunk can write; it does not hold 70 and a chunk.
    for (architecture, capacity, claimed) in [
        ("llama", 100, true),
        ("mistral", 60, true),
        ("mistral", 70, false),
        ("deepseek_v3", 100, true),
        ("deepseek_v32", 100, true),
        ("lfm2", 60, false),
    ] {
        let model = model(architecture, 64, capacity);
        assert_eq!(model.capabilities().rewind, claimed, "{architecture} of {capacity}");
        let mut session = open(&model);
        let sequence = session.open().unwrap();
        logits(&mut *session, sequence, &text[..50]);
        if !claimed {
            for position in [20, 50] {
                let error = session.rewind(sequence, position).unwrap_err();
                let found = (error.kind(), error.context("capability"));
                assert_eq!(found, (ErrorKind::Unsupported, Some("rewind")));
            }
            continue;
        }
        session.rewind(sequence, 20).unwrap();
        let again = logits(&mut *session, sequence, &text[30..40]);
        let fresh = session.open().unwrap();
        let tokens = [&text[..20], &text[30..40]].concat();
        assert_near(&again, &logits(&mut *session, fresh, &tokens), architecture);
    }
}

/// A decoder whose frequencies are others beyond 40 positions.
fn long_rope() -> (Checkpoint, Decoder) {
    let checkpoint = checkpoint("llama");
    let mut decoder = checkpoint.decoder().unwrap();
    for block in decoder.layers.iter_mut().flat_map(|layer| &mut layer.blocks) {
        if let Operation::Mixer(Mixer::Attention(attention)) = &mut block.operation {
            let rope = attention.core.rope.as_mut().unwrap();
            let inv_freq = rope.inv_freq.iter().map(|frequency| frequency / 3.0).collect();
            rope.long = Some(LongRope { inv_freq, original_context: 40, attention_factor: None });
        }
    }
    (checkpoint, decoder)
}

#[test]
fn longrope_switches_frequencies_as_if_always_long() {
    let (checkpoint, decoder) = long_rope();
    let model = load(checkpoint, &decoder, 64, 160);
    let mut session = open(&model);
    let text = text(90);
    let mut whole = |length: usize| {
        let sequence = session.open().unwrap();
        let found = logits(&mut *session, sequence, &text[..length]);
        session.close(sequence).unwrap();
        found
    };
    let expected = [30, 40, 41, 47, 60, 90].map(|length| (length, whole(length)));
    // Frequencies make a difference.
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(!near(&expected[1].1, &expected[2].1));
    for chunk in [1, 7, 64] {
        let (sequence, beside) = (session.open().unwrap(), session.open().unwrap());
        let mut fed = 0;
        for (length, expected) in &expected {
            while fed < *length {
                let next = (fed + chunk).min(*length);
                let rows = [(sequence, &text[fed..next]), (beside, &text[fed..fed + 1])];
                let found = step(&mut *session, &rows).remove(0);
                fed = next;
                if fed == *length {
                    assert_near(&found, expected, &format!("{length} in chunks of {chunk}"));
                }
            }
        }
        session.close(sequence).unwrap();
        session.close(beside).unwrap();
    }
    // Back below the boundary, by way of a fork and a snapshot, and across it once more.
    let (_, at_30) = &expected[0];
    let (_, at_60) = &expected[4];
    let before = session.stats().tokens;
    let sequence = session.open().unwrap();
    logits(&mut *session, sequence, &text[..50]);
    session.rewind(sequence, 25).unwrap();
    let fork = session.fork(sequence).unwrap();
    let snapshot = session.snapshot(fork).unwrap();
    session.close(sequence).unwrap();
    let restored = session.restore(&snapshot).unwrap();
    for sequence in [fork, restored] {
        assert_near(&logits(&mut *session, sequence, &text[25..30]), at_30, "short again");
        assert_near(&logits(&mut *session, sequence, &text[30..60]), at_60, "long again");
        assert_eq!(session.state(sequence).unwrap().position, 60);
    }
    // What is computed again when the frequencies change is not counted.
    assert_eq!(session.stats().tokens - before, 50 + 2 * (5 + 30));
}

#[test]
fn logits_depend_on_earlier_positions_only() {
    let (checkpoint, decoder) = long_rope();
    let model = load(checkpoint, &decoder, 16, 160);
    let mut session = open(&model);
    let text = text(60);
    let beside = session.open().unwrap();
    // In chunks that end before, at and behind the boundary of 40, or on both sides of it.
    for chunk in [1, 7, 20, 60] {
        let sequence = session.open().unwrap();
        let mut positions = Vec::new();
        for chunk in text.chunks(chunk) {
            let scored = Row::new(sequence, chunk, Want::likelihoods(0));
            let mut out = StepOutput::default();
            session.step(&[Row::extend(beside, &text[..1]), scored], &Control::default(), &mut out).unwrap();
            match out.take().remove(1).unwrap() {
                RowResult::Likelihoods(own) => positions.extend(own),
                other => panic!("{other:?} in place of positions"),
            }
        }
        assert_eq!((positions.len(), session.state(sequence).unwrap().position), (60, 60));
        for at in [0, 20, 38, 39, 40, 41, 59] {
            let whole = session.open().unwrap();
            let logits = logits(&mut *session, whole, &text[..=at]);
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total = logits.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln();
            let error = (positions[at].best.logprob + total).abs();
            assert!(error < TOLERANCE, "position {at} in chunks of {chunk}: {error}");
            session.close(whole).unwrap();
        }
        session.close(sequence).unwrap();
    }
}

#[test]
fn a_cancelled_recomputation_is_completed_later() {
    let (checkpoint, decoder) = long_rope();
    let model = load(checkpoint, &decoder, 8, 160);
    let mut session = open(&model);
    let text = text(60);
    let [sequence, whole] = [session.open().unwrap(), session.open().unwrap()];
    logits(&mut *session, sequence, &text[..38]);
    let cancel = mlxcel_core::CancelToken::new();
    cancel.cancel();
    let mut out = StepOutput::default();
    let rows = [Row::logits(sequence, &text[38..50])];
    session.step(&rows, &Control::cancelled_by(&cancel), &mut out).unwrap();
    assert_eq!(out.rows()[0].as_ref().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(session.state(sequence).unwrap().position, 38);
    let snapshot = session.snapshot(sequence).unwrap();
    let restored = session.restore(&snapshot).unwrap();
    let expected = logits(&mut *session, whole, &text[..50]);
    for sequence in [sequence, restored] {
        assert_near(&logits(&mut *session, sequence, &text[38..50]), &expected, "after a cancelled step");
    }
}

#[test]
fn nan_weights_fail_every_row_and_poison_its_sequence() {
    use mlxcel_core::{Capabilities, SamplingParams, SamplingPlan, TokenMask};

    let folder = tempfile::tempdir().unwrap();
    let source = checkpoint("llama");
    std::fs::copy(source.path().unwrap().join("config.json"), folder.path().join("config.json")).unwrap();
    let mut weights = std::fs::read(source.path().unwrap().join("model.safetensors")).unwrap();
    let at = weights.len() - 2;
    // The last tensor ends in the bfloat16 NaN.
    weights[at..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let options = LoadOptions::default().with_precision(Precision::Exact);
    let model =
        mlxcel_core::Backend::load(&crate::backend::PortableBackend::new(), &folder.path().into(), &options)
            .unwrap();
    let mut session = open(&model);
    let plan = SamplingPlan::negotiate(&SamplingParams::default(), &Capabilities::new(1, 1)).unwrap();
    let mask = TokenMask::allowing(model.info().vocabulary_size, [5, 6]);
    let wants = [
        Want::token(&plan),
        Want::token(&plan).with_masks(std::slice::from_ref(&mask)),
        Want::token(&plan).with_top(3),
        Want::logits(),
        Want::likelihoods(1),
    ];
    for want in wants {
        let sequence = session.open().unwrap();
        let mut out = StepOutput::default();
        session.step(&[Row::new(sequence, &[3, 4], want)], &Control::default(), &mut out).unwrap();
        let error = out.rows()[0].as_ref().unwrap_err();
        let found = (error.kind(), error.message());
        assert_eq!(found, (ErrorKind::Device, "a logit is not a number"), "{want:?}");
        assert!(session.state(sequence).unwrap().poisoned);
        session.close(sequence).unwrap();
    }
}
