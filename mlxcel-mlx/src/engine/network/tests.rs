//! All architectures with activations of the checkpoint's type, as on a GPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlxcel_core::{LoadOptions, ModelPart};
use mlxcel_models::{Checkpoint, Feature, WeightRef};

use super::*;
use crate::device::Device;
use crate::engine::options::WeightQuantization;
use crate::engine::weights::Treatment;

/// The error of the logits after the oracle's first prompt, relative to the largest, and whether there are
/// experts; none if MLX cannot run these experts on a CPU. Also feeds one more token.
fn run(folder: &Path, activation: DType) -> Option<(f32, bool)> {
    let text = std::fs::read(folder.join("oracle.json")).unwrap();
    let oracle: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let case = &oracle["cases"][0];
    let of = |name: &str| serde_json::from_value::<Vec<f32>>(case[name].clone()).unwrap();
    let prompt: Vec<u32> = of("prompt").iter().map(|&token| token as u32).collect();

    let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
    let decoder = checkpoint.decoder().unwrap();
    // On a CPU, MLX multiplies by selected matrices in float32, or packed.
    let has_experts = decoder.features().contains(Feature::Experts);
    let is_packable = |weight: &WeightRef| weight.shape.last().is_some_and(|&width| width % 32 == 0);
    if has_experts && !decoder.weights().filter(|weight| weight.shape.len() == 3).all(is_packable) {
        return None;
    }
    let quantize = has_experts.then(|| WeightQuantization::affine(8, 32).unwrap());
    let treatment = Treatment { quantize, ..Treatment::default() };
    let weights = Weights::load(&checkpoint, &decoder, treatment, &LoadOptions::default()).unwrap();
    let numerics = Numerics { activation, kv: activation };
    let network = Network::new(decoder, weights, Compute::new(None), numerics, 100).unwrap();

    let feed = |tokens: &[u32], position: usize, states: Option<&States>| {
        let tokens = Array::from_slice(tokens, &[tokens.len()]).unwrap();
        let count = tokens.len();
        let span = Span { start: 0, count, position, length: position + count, adapter: None };
        let inputs = Inputs { tokens: &tokens, types: None, states: None };
        let last = Array::from_slice(&[count as u32 - 1], &[1]).unwrap();
        let (outputs, states) =
            network.run(inputs, &[span], &[states], (Wanted::Some(&last), RowSlots::default()), 0).unwrap();
        let logits = outputs.logits;
        (logits.unwrap().to_vec::<f32>().unwrap(), states)
    };
    let (logits, states) = feed(&prompt, 0, None);
    let (next, _) = feed(&[of("greedy")[0] as u32], prompt.len(), states.first());
    assert!(next.iter().all(|logit| logit.is_finite()));
    Some((relative_error(&logits, &of("prefill_logits")), has_experts))
}

/// The largest difference relative to the largest magnitude.
fn relative_error(found: &[f32], expected: &[f32]) -> f32 {
    let scale = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
    found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / scale
}

#[test]
fn every_architecture_runs_with_narrow_activations() {
    Device::Cpu.select().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures");
    let mut folders: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut count = 0;
    for folder in folders {
        let Some((error, has_experts)) = run(&folder, DType::BF16) else { continue };
        count += 1;
        // Rounding makes routers select other experts.
        assert!(error < if has_experts { 1.0 } else { 0.1 }, "{}: {error}", folder.display());
    }
    assert!(count >= 30, "{count} ran");
}

#[test]
fn draft_heads_read_states_with_narrow_activations() {
    Device::Cpu.select().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/draft-heads/qwen3_5_text");
    let checkpoint = Arc::new(Checkpoint::open(folder).unwrap());
    let options = LoadOptions::default().with_part(ModelPart::DraftHead);
    let run = |activation| {
        let decoder = checkpoint.decoder_for(&options).unwrap();
        let (count, width) = (6, decoder.hidden_size);
        let weights = Weights::load(&checkpoint, &decoder, Treatment::default(), &options).unwrap();
        let numerics = Numerics { activation, kv: activation };
        let network = Network::new(decoder, weights, Compute::new(None), numerics, 100).unwrap();
        let tokens = Array::from_slice(&[5u32, 6, 7, 8, 9, 10], &[count]).unwrap();
        let states: Vec<f32> = (0..count * width).map(|index| (index as f32 * 0.7).sin()).collect();
        let states = Array::from_slice(&states, &[count, width]).unwrap();
        let inputs = Inputs { tokens: &tokens, types: None, states: Some(&states) };
        let span = Span { start: 0, count, position: 0, length: count, adapter: None };
        let (outputs, _) =
            network.run(inputs, &[span], &[None], (Wanted::All, RowSlots::default()), 0).unwrap();
        [outputs.logits, outputs.states].map(|values| values.unwrap().to_vec::<f32>().unwrap())
    };
    for (narrow, wide) in run(DType::BF16).iter().zip(run(DType::F32)) {
        let error = relative_error(narrow, &wide);
        assert!(error < 0.1, "{error}");
    }
}
