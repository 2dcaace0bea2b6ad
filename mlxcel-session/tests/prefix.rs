//! Texts are the same with and without reuse of computed prefixes.

use mlxcel_core::SamplingFields;
use mlxcel_core::reference::ReferenceBackend;
use mlxcel_session::{Capabilities, Model, Options, PrefixCache, TokenId};

use crate::engine::harness::Faulty;

/// A prompt that shares `shared` tokens with the others.
fn prompt(shared: usize, number: TokenId) -> Vec<TokenId> {
    (0..shared as TokenId).map(|i| i * 7 % 60).chain([number, 5, number]).collect()
}

#[test]
fn prefix_reuse_changes_no_token() {
    for rewind in [true, false] {
        let capabilities =
            Capabilities::new(2, 4096).with_snapshot(true).with_rewind(rewind).with_logits(true);
        let backend =
            ReferenceBackend::new().with_capabilities(capabilities.with_sampling(SamplingFields::NONE));
        let plain = Model::from_parts(backend.model().unwrap(), None);
        let reusing = plain.clone().with_prefix_cache(PrefixCache::new(1 << 20));
        let (mut reused, mut cases) = (0, 0);
        for (seed, shared) in (0..40).zip([50, 50, 30, 64].into_iter().cycle()) {
            let options = Options::new(12).with_temperature(if seed % 3 == 0 { 0.0 } else { 1.0 });
            let options = options.with_seed(seed).with_repetition_penalty(1.2);
            let prompt = prompt(shared, seed as TokenId % 9);
            let run = |model: &Model| model.stream(&prompt, &options).unwrap().complete().unwrap();
            let (expected, found) = (run(&plain), run(&reusing));
            assert_eq!(expected.tokens, found.tokens, "rewind {rewind}, seed {seed}");
            assert_eq!(expected.logprobs, found.logprobs);
            assert_eq!(expected.usage.reused_tokens, 0);
            reused += usize::from(found.usage.reused_tokens >= 30);
            cases += 1;
        }
        assert!(reused > cases / 2, "rewind {rewind}: {reused} of {cases}");
    }
}

#[test]
fn a_prefix_that_cannot_be_kept_does_not_fail_its_text() {
    let capabilities = Capabilities::new(2, 4096).with_snapshot(true).with_logits(true);
    let backend = ReferenceBackend::new().with_capabilities(capabilities);
    let plain = Model::from_parts(backend.model().unwrap(), None);
    let mut faulty = Faulty::new(&plain);
    faulty.unkept = Some(50);
    let cache = PrefixCache::new(1 << 20);
    let model = faulty.model().with_prefix_cache(cache.clone());
    for number in 0..3 {
        let run = |model: &Model| {
            model.stream(&prompt(50, number), &Options::new(12)).unwrap().complete().unwrap().tokens
        };
        assert_eq!(run(&model), run(&plain));
    }
    assert_eq!(cache.stats().entries, 3);
}
