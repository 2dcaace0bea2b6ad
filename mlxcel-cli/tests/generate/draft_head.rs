//! `--speculate head`, the checkpoint's own draft head, and `--draft-head`, that of another.

use super::{BACKENDS, ids, json};
use crate::program::fixture;

#[test]
fn a_draft_head_drafts_the_same_text() {
    drafts_the_same_text("draft-heads/qwen3_5_text-trained", &["--speculate", "head"]);
}

#[test]
fn a_draft_head_of_its_own_checkpoint_drafts_the_same_text() {
    for (model, head) in [("llama", "llama-head"), ("qwen3", "qwen3-gguf-head/model.gguf")] {
        let head = fixture(&format!("eagle3/{head}"));
        drafts_the_same_text(&format!("eagle3/{model}"), &["--draft-head", head.to_str().unwrap()]);
    }
}

fn drafts_the_same_text(model: &str, draft: &[&str]) {
    let folder = fixture(model);
    let prompt = ids(&[25, 14, 15, 24, 5, 15, 24, 5, 25, 14, 11, 5, 9, 21, 28, 5, 28, 15, 25, 14]);
    for backend in BACKENDS {
        let arguments = ["--backend", backend, "--precision", "exact", "--model", folder.to_str().unwrap()];
        let arguments = [&arguments[..], &["--tokens", &prompt, "-n", "120", "--ignore-eos"]].concat();
        let plain = json(&arguments);
        let drafting = json(&[&arguments[..], draft].concat());
        assert_eq!(drafting["tokens"], plain["tokens"], "{backend}");
        assert_eq!(plain["drafted"], 0);
        assert!(drafting["drafted"].as_u64() > Some(0), "{backend}: {drafting}");
    }
}
