//! Every family's description, walked by operations in plain loops, against what transformers computes.

use std::path::PathBuf;

use crate::common::repository;
use mlxcel_models::Checkpoint;
use serde::Deserialize;

#[derive(Deserialize)]
struct Oracle {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logprobs: Vec<f32>,
    margins: Vec<f32>,
    prefill_logits: Vec<f32>,
}

/// The folders with a `config.json` in a folder of this repository.
fn folders(parent: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository(parent)).unwrap();
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.join("config.json").exists());
    folders.sort();
    folders
}

#[test]
fn descriptions_match_the_logits_of_transformers() {
    let all = folders("fixtures/architectures");
    assert!(all.len() >= 37, "{all:?}");
    // The same variable as of the tests of engines: checkpoints to try before one is committed.
    let chosen = std::env::var("MLXCEL_ARCHITECTURES").map_or(all, |folder| folders(&folder));
    chosen.into_iter().for_each(check);
}

#[test]
fn packed_weights_unpack_as_in_transformers() {
    let folders = folders("fixtures/formats");
    assert!(folders.len() >= 6, "{folders:?}");
    folders.into_iter().for_each(check);
}

fn check(folder: PathBuf) {
    let family = folder.file_name().unwrap().to_string_lossy().into_owned();
    let oracle = std::fs::read(folder.join("oracle.json")).unwrap();
    let Oracle { cases } = serde_json::from_slice(&oracle).unwrap();
    let checkpoint = Checkpoint::open(folder).unwrap();
    let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{family}: {error}"));
    for (index, case) in cases.iter().enumerate() {
        let all = [&case.prompt[..], &case.greedy[..case.greedy.len() - 1]].concat();
        let logits = crate::naive::logits(&checkpoint, &decoder, &all).unwrap();
        let rows = logits.rows().skip(case.prompt.len() - 1).collect::<Vec<_>>();
        let largest = case.prefill_logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let error =
            rows[0].iter().zip(&case.prefill_logits).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(error <= 1e-3 * largest, "{family}, case {index}: logits differ by {error} of {largest}");
        for (step, row) in rows.iter().enumerate() {
            let token = case.greedy[step] as usize;
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = row.iter().map(|logit| (logit - best).exp()).sum();
            let logprob = row[token] - best - sum.ln();
            let error = (logprob - case.logprobs[step]).abs();
            assert!(
                error <= 3e-3,
                "{family}, case {index}, step {step}: log probabilities differ by {error}"
            );
            if case.margins[step] > 1e-3 {
                assert!(row[token] == best, "{family}, case {index}, step {step}: another token is best");
            }
        }
    }
}

#[derive(Deserialize)]
struct EncoderOracle {
    hidden: Vec<HiddenCase>,
}

#[derive(Deserialize)]
struct HiddenCase {
    tokens: Vec<u32>,
    types: Vec<u8>,
    first: Vec<f32>,
    mean: Vec<f32>,
    last: Vec<f32>,
}

#[test]
fn descriptions_of_encoders_match_the_hidden_states_of_transformers() {
    let folders = folders("fixtures/encoders");
    assert!(!folders.is_empty());
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let oracle = std::fs::read(folder.join("oracle.json")).unwrap();
        let EncoderOracle { hidden } = serde_json::from_slice(&oracle).unwrap();
        let checkpoint = Checkpoint::open(folder).unwrap();
        let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(decoder.is_bidirectional() && decoder.head.is_none() && decoder.state_groups().is_empty());
        for HiddenCase { tokens, types, first, mean, last } in hidden {
            let states = crate::naive::hidden(&checkpoint, &decoder, &tokens, &types).unwrap();
            let rows = states.rows().collect::<Vec<_>>();
            let average = |element| rows.iter().map(|row| row[element]).sum::<f32>() / rows.len() as f32;
            let average: Vec<f32> = (0..mean.len()).map(average).collect();
            for (found, expected) in [(rows[0], &first), (&average, &mean), (rows[rows.len() - 1], &last)] {
                let scale = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
                let error = found.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(
                    error <= 1e-5 * scale.max(1.0),
                    "{name}, {} tokens: {error} of {scale}",
                    tokens.len()
                );
            }
        }
    }
}
