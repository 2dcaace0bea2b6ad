//! Every description of a checkpoint, walked by operations in plain loops, against what transformers computes.

use crate::support::{Fixture, expect_close};
use crate::{architectures, encoders, formats, naive};
use mlxcel_conformance::OracleCase;
use mlxcel_models::Checkpoint;

fn check(Fixture { name, path }: Fixture) {
    let oracle = Fixture { name, path: path.clone() }.oracle();
    let checkpoint = Checkpoint::open(path).unwrap();
    let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{name}: {error}"));
    for (index, case) in oracle.cases.iter().enumerate() {
        let OracleCase { prompt, greedy, logprobs, margins, prefill_logits, .. } = case;
        let all = [&prompt[..], &greedy[..greedy.len() - 1]].concat();
        let logits = naive::logits(&checkpoint, &decoder, &all).unwrap();
        let rows = logits.rows().skip(prompt.len() - 1).collect::<Vec<_>>();
        let largest = prefill_logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let error = rows[0].iter().zip(prefill_logits).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(error <= 1e-3 * largest, "{name}, case {index}: logits differ by {error} of {largest}");
        for (step, row) in rows.iter().enumerate() {
            let token = greedy[step] as usize;
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = row.iter().map(|logit| (logit - best).exp()).sum();
            let logprob = row[token] - best - sum.ln();
            let error = (logprob - logprobs[step]).abs();
            assert!(error <= 3e-3, "{name}, case {index}, step {step}: log probabilities differ by {error}");
            if margins[step] > 1e-3 {
                assert!(row[token] == best, "{name}, case {index}, step {step}: another token is best");
            }
        }
    }
}

#[test]
fn descriptions_match_the_logits_of_transformers() {
    architectures::folders().into_iter().for_each(check);
}

#[test]
fn packed_weights_unpack_as_in_transformers() {
    formats::folders().into_iter().for_each(check);
}

#[test]
fn descriptions_of_encoders_match_the_hidden_states_of_transformers() {
    for folder in encoders::folders() {
        let name = folder.display();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{name}: {error}"));
        // Rerankers can be decoders.
        assert_eq!(decoder.is_bidirectional(), decoder.head.is_none(), "{name}");
        assert!(decoder.head.is_some() || decoder.state_groups().is_empty(), "{name}");
        for encoders::HiddenCase { tokens, types, first, mean, last } in encoders::Oracle::of(&folder).hidden
        {
            let states = naive::hidden(&checkpoint, &decoder, &tokens, &types).unwrap();
            let rows = states.rows().collect::<Vec<_>>();
            let average = |element| rows.iter().map(|row| row[element]).sum::<f32>() / rows.len() as f32;
            let average: Vec<f32> = (0..mean.len()).map(average).collect();
            for (found, expected) in [(rows[0], &first), (&average[..], &mean), (rows[rows.len() - 1], &last)]
            {
                expect_close(
                    &format!("{name}, {} tokens", tokens.len()),
                    found,
                    expected,
                    encoders::DIFFERENCE,
                );
            }
        }
    }
}
