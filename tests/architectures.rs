//! Every family on every engine against transformers' float32 results: whole prompts, any prefill chunking,
//! and batched with others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{
    Case, FOLDER_VARIABLE, Fixture, STATES, covering, engines_and_plugin, load, parts, runs, spares,
};
use mlxcel_core::{
    Backend, Control, GenerateExt, GenerateOptions, InferenceSession, InferenceSessionExt, Precision, Row,
    SamplingPlan, SequenceId, SessionOptions, StepOutput,
};

/// Below this margin of the oracle's best logit over its second, a float32 engine may honestly choose the
/// other token.
const HONEST_MARGIN: f32 = 1e-3;
/// The largest difference of log probabilities.
const LOGPROBS: f32 = 3e-3;
/// The largest difference of prefill logits, relative to the largest magnitude.
const LOGITS: f32 = 1e-3;
/// How many further folders are drawn for IREE.
const DRAWN: usize = 1;
/// Folders that these engines run in batches, which are programs of their own: conformance holds batches of
/// the other kinds of state.
const BATCHED: [&str; 4] = ["gemma3n_text", "gpt_oss", "kimi_linear", "qwen3_next"];

type Checked = Result<(), String>;

fn folders() -> Vec<Fixture> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/architectures");
    let root = std::env::var_os(FOLDER_VARIABLE).map_or_else(own, PathBuf::from);
    let mut paths: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| Fixture { name: path.file_name().unwrap().to_str().unwrap().to_owned().leak(), path })
        .collect()
}

/// Feeds a prompt in chunks and gives the sequence with the last position's logits.
fn prefill(session: &mut dyn InferenceSession, prompt: &[u32], chunk: usize) -> (SequenceId, Vec<f32>) {
    let sequence = session.open().unwrap();
    let mut last = Vec::new();
    let count = prompt.len().div_ceil(chunk);
    for (i, tokens) in prompt.chunks(chunk).enumerate() {
        let row = if i + 1 == count { Row::logits(sequence, tokens) } else { Row::extend(sequence, tokens) };
        let result = session.run_row(row, &Control::default()).unwrap();
        last = result.into_logits().unwrap_or_default();
    }
    (sequence, last)
}

fn check_logits(what: &str, logits: &[f32], case: &Case) -> Checked {
    let scale = case.prefill_logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    let pairs = logits.iter().zip(&case.prefill_logits);
    let error = pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs())) / scale;
    if logits.len() == case.prefill_logits.len() && error <= LOGITS {
        return Ok(());
    }
    Err(format!("{what}: {} logits differ by {error}", logits.len()))
}

/// Compares generated tokens with the oracle's up to the first difference that its margin excuses.
fn check_tokens(what: &str, case: &Case, tokens: &[u32], logprobs: &[f32]) -> Checked {
    for (i, (&token, &logprob)) in tokens.iter().zip(logprobs).enumerate() {
        if token != case.greedy[i] {
            return if case.margins[i] < HONEST_MARGIN {
                Ok(())
            } else {
                Err(format!("{what}: token {i} is {token}, not {}", case.greedy[i]))
            };
        }
        if (logprob - case.logprobs[i]).abs() > LOGPROBS {
            return Err(format!("{what}: log probability {i} is {logprob}, not {}", case.logprobs[i]));
        }
    }
    Ok(())
}

fn check_whole(session: &mut dyn InferenceSession, cases: &[Case]) -> Checked {
    for (i, case) in cases.iter().enumerate() {
        let (sequence, logits) = prefill(session, &case.prompt, usize::MAX);
        session.close(sequence).unwrap();
        check_logits(&format!("case {i}"), &logits, case)?;
        let options = GenerateOptions::new(case.greedy.len());
        let generation = session.generate_greedy(&case.prompt, &options).unwrap();
        if generation.tokens.len() != case.greedy.len() {
            return Err(format!("case {i}: {} tokens", generation.tokens.len()));
        }
        check_tokens(&format!("case {i}"), case, &generation.tokens, &generation.logprobs)?;
    }
    Ok(())
}

/// The longest prompt in chunks of each size, and what follows it.
fn check_chunks(session: &mut dyn InferenceSession, cases: &[Case]) -> Checked {
    let plan = SamplingPlan::greedy();
    let case = cases.iter().max_by_key(|case| case.prompt.len()).unwrap();
    for chunk in [1, 7, 64] {
        let what = format!("in chunks of {chunk}");
        let (sequence, logits) = prefill(session, &case.prompt, chunk);
        check_logits(&what, &logits, case)?;
        let (mut tokens, mut logprobs) = (vec![case.greedy[0]], vec![case.logprobs[0]]);
        for &expected in &case.greedy[..case.greedy.len() - 1] {
            let next = session.decode_step(&[(sequence, expected)], &plan, &Control::default()).unwrap();
            let next = next[0].as_ref().unwrap();
            tokens.push(next.token);
            logprobs.push(next.logprob);
            if next.token != case.greedy[tokens.len() - 1] {
                break;
            }
        }
        session.close(sequence).unwrap();
        check_tokens(&what, case, &tokens, &logprobs)?;
    }
    Ok(())
}

/// All cases together, each joining when those before it are some tokens ahead.
fn check_batch(session: &mut dyn InferenceSession, cases: &[Case]) -> Checked {
    let plan = SamplingPlan::greedy();
    let mut running: Vec<(SequenceId, Vec<u32>, Vec<f32>)> = Vec::new();
    for _ in cases {
        running.push((session.open().unwrap(), Vec::new(), Vec::new()));
        for _ in 0..3 {
            let feeds: Vec<Vec<u32>> = running
                .iter()
                .zip(cases)
                .map(|((_, tokens, _), case)| match tokens.len() {
                    0 => case.prompt.clone(),
                    // The oracle's tokens, so that an honest difference does not end the comparison.
                    ahead => vec![case.greedy[ahead - 1]],
                })
                .collect();
            let rows: Vec<_> =
                running.iter().zip(&feeds).map(|((id, ..), feed)| Row::next(*id, feed, &plan)).collect();
            let mut out = StepOutput::new();
            session.step(&rows, &Control::default(), &mut out).unwrap();
            for ((_, tokens, logprobs), row) in running.iter_mut().zip(out.take()) {
                let token = row.unwrap().into_token().unwrap();
                tokens.push(token.token);
                logprobs.push(token.logprob);
            }
        }
    }
    for (i, ((sequence, tokens, logprobs), case)) in running.iter().zip(cases).enumerate() {
        session.close(*sequence).unwrap();
        check_tokens(&format!("batched, sequence {i}"), case, tokens, logprobs)?;
    }
    Ok(())
}

fn check(engine: &dyn Backend, fixture: &Fixture) -> Checked {
    let model = load(engine, fixture, Precision::Exact);
    let mut session = model.open_session(&SessionOptions::default()).unwrap();
    let cases = fixture.cases();
    check_whole(&mut *session, &cases)?;
    check_chunks(&mut *session, &cases)?;
    if !spares(engine) || BATCHED.contains(&fixture.name) {
        check_batch(&mut *session, &cases)?;
    }
    Ok(())
}

/// The folders that engines which compile run: those with all kinds of parts, and [`DRAWN`] of the others,
/// which are other ones in each run.
fn compiled(folders: &[Fixture]) -> BTreeSet<&'static str> {
    let mut compiled = covering(folders, &STATES, parts);
    let others: Vec<_> =
        folders.iter().map(|folder| folder.name).filter(|name| !compiled.contains(name)).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as usize;
    compiled.extend(others.into_iter().cycle().skip(now % folders.len()).take(DRAWN));
    compiled
}

#[test]
fn every_family_is_exact_on_every_engine() {
    let folders = folders();
    assert!(std::env::var_os(FOLDER_VARIABLE).is_some() || folders.len() >= 37, "{} folders", folders.len());
    let compiled = &compiled(&folders);
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        // Folders by turns, so that compilers of one and runs of another share the processor.
        let halves = [0, 1].map(|half| {
            let folders = &folders;
            scope.spawn(move || {
                let mut failures = Vec::new();
                for fixture in folders.iter().skip(half).step_by(2) {
                    for engine in engines_and_plugin() {
                        if !runs(&*engine, fixture, compiled) {
                            continue;
                        }
                        if let Err(error) = check(&*engine, fixture) {
                            failures.push(format!("{} {}: {error}", engine.name(), fixture.name));
                        }
                    }
                }
                failures
            })
        });
        failures.extend(halves.into_iter().flat_map(|half| half.join().unwrap()));
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
