//! The sampler beside llama.cpp's, from a file that `tests/fixtures/llama_sampling.cpp` writes.

use super::*;

#[derive(Deserialize)]
pub(super) struct MirostatRun {
    tau: f32,
    eta: f32,
    steps: Vec<MirostatStep>,
}

#[derive(Deserialize)]
struct MirostatStep {
    vector: usize,
    token: TokenId,
    logprob: f32,
    probabilities: Vec<Option<f64>>,
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../../tests/fixtures/llama_sampling.json")).unwrap()
}

#[test]
fn the_sampled_distribution_matches_llama_cpp() {
    let fixture = fixture();
    assert!(fixture.cases.len() > 80);
    fixture.assert_distributions();
}

#[test]
fn mirostat_adapts_as_in_llama_cpp() {
    let Fixture { vectors, mirostat, .. } = fixture();
    let mirostat = mirostat.unwrap();
    let params = SamplingParams::greedy()
        .with_temperature(1.0)
        .with_mirostat(Mirostat::new(mirostat.tau, mirostat.eta));
    let sampler = HostSampler::new(params).unwrap();
    let mut drawn = Vec::new();
    for (number, step) in mirostat.steps.iter().enumerate() {
        let mut context = SamplingContext::new(&[], 0);
        context.drawn = &drawn;
        let found = sampler.distribution(&vectors[step.vector].logits, &context).unwrap();
        assert_probabilities(&found, &step.probabilities, &format!("step {number}"));
        let chosen = found.iter().find(|(token, _)| *token == step.token).unwrap().1;
        assert!((chosen.ln() - f64::from(step.logprob)).abs() < TOLERANCE, "step {number}");
        drawn.push(step.logprob);
    }
}
