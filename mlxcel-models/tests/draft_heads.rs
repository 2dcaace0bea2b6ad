//! Draft heads against transformers' `MtpModel`: states, logits and chains of drafts, walked by operations in
//! plain loops; and the checkpoints that have none.

use std::path::Path;

use crate::common::draft_heads::{DraftOracle, checkpoints, expect_rows, is_alone};
use crate::common::{Draft, repository};
use crate::naive;
use mlxcel_core::{ErrorKind, LoadOptions, ModelPart, Result};
use mlxcel_models::{Checkpoint, Decoder};
use safetensors::Dtype;
use serde_json::json;

pub(crate) const SAFETENSORS: &str = "draft-heads";
const GGUF: &str = "gguf-draft-heads";

/// Asks for the draft head.
pub(crate) fn head() -> LoadOptions {
    LoadOptions::default().with_part(ModelPart::DraftHead)
}

fn check(folder: &Path) {
    check_with(folder, &Checkpoint::open(folder).unwrap());
}

/// Checks a model and its head, which `checkpoint` has.
pub(crate) fn check_with(folder: &Path, checkpoint: &Checkpoint) {
    let name = folder.file_name().unwrap().to_string_lossy();
    let whole = checkpoint.decoder_for(&LoadOptions::default().with_output_states(true));
    let decoder = checkpoint.decoder_for(&head()).unwrap_or_else(|error| panic!("{name}: {error}"));
    for (index, case) in DraftOracle::of(folder).cases.iter().enumerate() {
        let what = |part: &str| format!("{name}, case {index}: {part}");
        match &whole {
            Err(error) => assert!(is_alone(folder) && error.kind() == ErrorKind::NotFound, "{name}: {error}"),
            Ok(whole) => {
                let states = naive::hidden(checkpoint, whole, &case.prompt, &[]).unwrap();
                expect_rows(&what("states"), states.rows(), &case.states);
            }
        }

        let given = case.head.states.len();
        let (mut tokens, mut fed) = case.fed();
        let [states, logits] = naive::draft_head(checkpoint, &decoder, &tokens, &fed).unwrap();
        expect_rows(&what("states of the head"), states.rows(), &case.head.states);
        expect_rows(&what("logits of the head"), logits.rows(), &case.head.logits);

        // Each draft is fed with the head's own state of the token before it.
        for (draft, &token) in case.chain.tokens[..case.chain.tokens.len() - 1].iter().enumerate() {
            let [states, _] = naive::draft_head(checkpoint, &decoder, &tokens, &fed).unwrap();
            fed.extend_from_slice(states.rows().next_back().unwrap());
            tokens.push(token);
            let [states, logits] = naive::draft_head(checkpoint, &decoder, &tokens, &fed).unwrap();
            let [states, logits] = [&states, &logits].map(|tensor| tensor.rows().skip(given + draft));
            expect_rows(&what("chained states"), states, &case.chain.states[draft..=draft]);
            expect_rows(&what("chained logits"), logits, &case.chain.logits[draft..=draft]);
        }
    }
}

#[test]
fn draft_heads_match_the_states_and_logits_of_transformers() {
    let folders = checkpoints(SAFETENSORS);
    assert!(folders.len() >= 7, "{} folders", folders.len());
    folders.iter().for_each(|folder| check(folder));
}

#[test]
fn draft_heads_of_gguf_files_match_the_states_and_logits_of_transformers() {
    let folders = checkpoints(GGUF);
    assert!(folders.len() >= 7, "{} folders", folders.len());
    folders.iter().for_each(|folder| check(folder));
}

/// The head of a changed checkpoint.
fn described(draft: &Draft) -> Result<Decoder> {
    draft.write().open()?.decoder_for(&head())
}

#[test]
fn a_head_is_one_layer_with_the_weights_of_the_main_model_around_it() {
    let folders = checkpoints(SAFETENSORS).into_iter().chain(checkpoints(GGUF));
    for folder in folders.filter(|folder| !is_alone(folder)) {
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let (whole, head) = (checkpoint.decoder().unwrap(), checkpoint.decoder_for(&head()).unwrap());
        let name = folder.display();
        assert!(whole.input_states.is_none() && whole.output_states.is_none(), "{name}");
        assert!(head.input_states.is_some() && head.output_states.is_some(), "{name}");
        assert_eq!((head.layers.len(), head.vocabulary_size), (1, whole.vocabulary_size), "{name}");
        let tensors =
            |decoder: &Decoder| decoder.weights().map(|weight| weight.tensor.clone()).collect::<Vec<_>>();
        let (of_whole, of_head) = (tensors(&whole), tensors(&head));
        let shared: Vec<_> = of_head.iter().filter(|tensor| of_whole.contains(tensor)).collect();
        let own_head = !whole.head.unwrap().tied;
        assert_eq!(shared.len(), 1 + usize::from(own_head), "{name}: {shared:?}");
    }
}

#[test]
fn families_without_known_heads_are_refused() {
    let error = described(&Draft::llama()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // Names of a head do not make one.
    let named = Draft::llama().with("mtp.fc.weight", Dtype::BF16, &[8, 16]);
    assert_eq!(described(&named).unwrap_err().kind(), ErrorKind::Unsupported);
    let mamba = Checkpoint::open(repository("fixtures/architectures/mamba2")).unwrap();
    assert_eq!(mamba.decoder_for(&head()).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn checkpoints_without_their_head_are_refused_by_the_missing_tensor() {
    for (name, tensor) in [
        ("deepseek_v3", "model.layers.3.eh_proj.weight"),
        ("glm4_moe", "model.layers.3.eh_proj.weight"),
        ("glm4_moe_lite", "model.layers.3.eh_proj.weight"),
        ("qwen3_5_moe_text", "mtp.fc.weight"),
        ("qwen3_5_text", "mtp.fc.weight"),
        ("qwen3_next", "mtp.fc.weight"),
    ] {
        let error = described(&Draft::fixture(name)).unwrap_err();
        assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::NotFound, Some(tensor)), "{name}");
    }
    for (name, tensor) in [
        ("deepseek_v2", None),
        ("glm4_moe_lite", Some("model.layers.3.eh_proj.weight")),
        ("qwen3_5_text", Some("mtp.fc.weight")),
        ("qwen3_next", Some("mtp.fc.weight")),
    ] {
        let folder = repository("fixtures/gguf-architectures").join(name);
        let error = Checkpoint::open(folder).unwrap().decoder_for(&head()).unwrap_err();
        let kind = if tensor.is_some() { ErrorKind::NotFound } else { ErrorKind::Unsupported };
        assert_eq!((error.kind(), error.context("tensor")), (kind, tensor), "{name}");
    }
}

#[test]
fn heads_with_missing_or_misshapen_tensors_are_refused_by_name() {
    for (name, projection, rest) in [
        (
            "deepseek_v3",
            "model.layers.3.eh_proj.weight",
            ["enorm", "hnorm", "shared_head.norm", "self_attn.o_proj"],
        ),
        (
            "qwen3_5_text",
            "mtp.fc.weight",
            ["norm", "pre_fc_norm_hidden", "layers.0.mlp.up_proj", "pre_fc_norm_embedding"],
        ),
    ] {
        let draft = Draft::draft_head(name);
        assert!(described(&draft).is_ok(), "{name}");
        let base = projection.trim_end_matches("eh_proj.weight").trim_end_matches("fc.weight");
        for module in rest {
            let tensor = format!("{base}{module}.weight");
            let error = described(&draft.clone().without(&tensor)).unwrap_err();
            let found = (error.kind(), error.context("tensor"));
            assert_eq!(found, (ErrorKind::NotFound, Some(&tensor[..])), "{error}");
        }
        // As wide as the embedding alone, and as two layers.
        for shape in [[32, 32], [64, 64]] {
            let error = described(&draft.clone().with(projection, Dtype::BF16, &shape)).unwrap_err();
            let found = (error.kind(), error.context("tensor"));
            assert_eq!(found, (ErrorKind::Corrupt, Some(projection)), "{error}");
        }
    }
}

#[test]
fn models_that_do_not_generate_return_no_states() {
    let checkpoint = Checkpoint::open(repository("fixtures/encoders/bert")).unwrap();
    let error = checkpoint.decoder_for(&LoadOptions::default().with_output_states(true)).unwrap_err();
    let found = (error.kind(), error.context("field"));
    assert_eq!(found, (ErrorKind::Unsupported, Some("output_states")), "{error}");
}

/// Nobody keeps the states that a head was fed, so a sequence of one cannot be computed again.
#[test]
fn heads_whose_sequences_may_have_to_be_computed_again_are_refused() {
    let longrope = json!({
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, "factor": 8.0,
        "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
    });
    let draft = Draft::draft_head("glm4_moe").set("rope_parameters", longrope);
    assert!(draft.decoder().is_ok(), "{}", draft.decoder().unwrap_err());
    assert_eq!(described(&draft).unwrap_err().kind(), ErrorKind::Unsupported);
}
