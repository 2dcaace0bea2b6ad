//! Drafts change no token of a generation.

use mlxcel_core::reference::ReferenceBackend;
use mlxcel_core::{
    Capabilities, FinishReason, GenerateOptions, Generation, InferenceSession, LogitsSampler, Model, Result,
    SampledToken, SamplingContext, SamplingParams, SamplingPlan, SessionOptions, TokenChoice, TokenId,
    TokenMask,
};

/// The most likely allowed token that is not the last two.
struct Host;

impl LogitsSampler for Host {
    fn sample(&self, logits: &[f32], context: &SamplingContext<'_>) -> Result<SampledToken> {
        assert_eq!(context.drawn.len(), context.generated().len());
        let last = &context.tokens[context.tokens.len().saturating_sub(2)..];
        let allowed =
            |token: &TokenId| !last.contains(token) && context.mask.is_none_or(|mask| mask.allows(*token));
        let best = (0..logits.len() as TokenId)
            .filter(allowed)
            .max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]));
        Ok(SampledToken::new(best.unwrap_or(0), -1.0))
    }
}

type Ran = (Vec<SampledToken>, Option<FinishReason>, usize);

/// Generates after `prompt`, calling `draft` before each row; also returns the number of passes.
fn run(
    model: &dyn Model,
    prompt: &[TokenId],
    options: &GenerateOptions,
    choice: TokenChoice,
    mut draft: impl FnMut(&mut Generation),
) -> Ran {
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let capacity = session.capabilities().context;
    let mut generation = Generation::new(prompt, capacity, options.clone(), choice).unwrap();
    let mut tokens = Vec::new();
    loop {
        draft(&mut generation);
        let Some(token) = generation.advance(&mut session, sequence).unwrap() else { break };
        tokens.push(token);
        let state = session.state(sequence).unwrap();
        assert!(state.position >= generation.computed(), "{state:?}");
    }
    let position = session.state(sequence).unwrap().position;
    assert_eq!(position, generation.computed(), "nothing but the text is left in the sequence");
    assert!(generation.accepted() <= generation.drafted());
    let said: Vec<TokenId> = tokens.iter().map(|token| token.token).collect();
    assert_eq!(said, generation.generated());
    (tokens, generation.finish_reason(), session.stats().passes as usize)
}

fn choices() -> Vec<fn() -> TokenChoice> {
    fn engine(params: SamplingParams) -> TokenChoice {
        let model = ReferenceBackend::new().model().unwrap();
        TokenChoice::Engine(SamplingPlan::negotiate(&params, model.capabilities()).unwrap())
    }
    let drawn = || {
        let params = SamplingParams::greedy().with_temperature(1.1).with_top_p(0.95).with_seed(5);
        engine(params.with_repetition_penalty(1.2).with_frequency_penalty(0.3))
    };
    vec![|| engine(SamplingParams::greedy()), drawn, || TokenChoice::Host(Box::new(Host))]
}

#[test]
fn drafts_change_neither_tokens_nor_the_end() {
    let model = ReferenceBackend::new().model().unwrap();
    let stops = GenerateOptions::new(60).with_stop_tokens([0, 7, 9]).with_top(2);
    for options in [GenerateOptions::new(40).with_top(3), GenerateOptions::new(1), stops] {
        for (kind, choice) in choices().into_iter().enumerate() {
            for seed in 0..12u32 {
                let prompt: Vec<TokenId> = (0..20).map(|i| (seed * 31 + i * 17) % 61 + 1).collect();
                let plain = run(&*model, &prompt, &options, choice(), |_| {});
                let text: Vec<TokenId> = plain.0.iter().map(|token| token.token).collect();
                let speculated = run(&*model, &prompt, &options, choice(), |generation| {
                    let said = generation.generated().len();
                    let mut draft: Vec<TokenId> = text.iter().skip(said).take(5).copied().collect();
                    // Sometimes all are right, sometimes one is wrong, sometimes they go beyond the end.
                    if let Some(token) = draft.get_mut((said + seed as usize) % 7) {
                        *token = (*token + 1) % 64;
                    }
                    draft.extend([3, 4]);
                    generation.set_drafts(&draft);
                });
                assert_eq!((&plain.0, plain.1), (&speculated.0, speculated.1), "choice {kind}, seed {seed}");
                assert!(
                    plain.0.len() < 12 || 3 * speculated.2 < 2 * plain.2,
                    "{} of {}",
                    speculated.2,
                    plain.2
                );
            }
        }
    }
}

#[test]
fn drafts_are_limited_by_row_capacity_text_and_masks() {
    let capacity = 8;
    let start = |options| {
        let choice = TokenChoice::Engine(SamplingPlan::greedy());
        Generation::new(&[1, 2, 3], capacity, options, choice).unwrap()
    };
    let mut generation = start(GenerateOptions::new(100));
    assert_eq!(generation.set_drafts(&[4; 20]), 5, "the sequence has room for so many");
    let sequence = mlxcel_core::SequenceId::new(0);
    let row = |generation: &Generation, most| {
        generation.row(sequence, most).map(|row| (row.tokens.to_vec(), row.want.drafts()))
    };
    assert_eq!(row(&generation, 2), Some((vec![1, 2], None)));
    assert_eq!(row(&generation, 3), Some((vec![1, 2, 3], None)));
    assert_eq!(row(&generation, 5), Some((vec![1, 2, 3, 4, 4], Some(2))));
    let mask = TokenMask::allowing(64, [4]);
    generation.set_masks(vec![mask.clone(), mask]);
    assert_eq!(row(&generation, 9), Some((vec![1, 2, 3], None)), "they were made for other masks");
    assert_eq!(generation.set_drafts(&[4; 20]), 1);
    let mut generation = start(GenerateOptions::new(3));
    assert_eq!(generation.set_drafts(&[4; 20]), 2);
    assert_eq!(start(GenerateOptions::new(1)).set_drafts(&[4]), 0);
}

#[test]
fn masks_apply_to_each_draft_token() {
    let model = ReferenceBackend::new().model().unwrap();
    let allowed = |index: usize| TokenMask::allowing(64, (0..64).filter(|t| *t as usize % 3 == index % 3));
    for choice in choices() {
        let masked = |drafts: usize| {
            let plan = choice();
            run(&*model, &[1, 2, 3], &GenerateOptions::new(12), plan, |generation| {
                let said = generation.generated().len();
                generation.set_masks((said..=said + drafts).map(allowed).collect());
                generation.set_drafts(&vec![generation.tokens()[0]; drafts]);
            })
        };
        let (plain, drafted) = (masked(0), masked(4));
        assert!(plain.0.iter().enumerate().all(|(i, token)| token.token as usize % 3 == i % 3));
        assert_eq!(plain.0, drafted.0);
    }
}

#[test]
fn an_engine_without_verification_refuses_drafts() {
    let most = Capabilities::new(8, 1024).with_logits(true).with_rewind(true);
    let model = ReferenceBackend::new().with_capabilities(most).model().unwrap();
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let sequence = session.open().unwrap();
    let choice = TokenChoice::Engine(SamplingPlan::greedy());
    let mut generation = Generation::new(&[1], 1024, GenerateOptions::new(9), choice).unwrap();
    generation.set_drafts(&[2]);
    let error = generation.advance(&mut session, sequence).unwrap_err();
    assert_eq!(error.context("capability"), Some("verification"));
}
