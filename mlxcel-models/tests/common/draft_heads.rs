//! Checkpoints with draft heads, in them or beside them, and what transformers and the reference of EAGLE-3
//! compute from them.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(serde::Deserialize)]
pub(crate) struct DraftOracle {
    pub(crate) cases: Vec<DraftCase>,
    /// The token of each of the head's logits in the file, if they are not those of all tokens.
    #[serde(default)]
    tokens: Vec<u32>,
}

#[derive(serde::Deserialize)]
pub(crate) struct DraftCase {
    pub(crate) prompt: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    prefill_logits: Vec<f32>,
    /// The main model's hidden states, one for each token of the prompt.
    pub(crate) states: Vec<Vec<f32>>,
    /// What the head makes of the tokens from the second to the first greedy one.
    pub(crate) head: HeadRows,
    /// What it drafts then.
    pub(crate) chain: Chain,
}

#[derive(serde::Deserialize)]
pub(crate) struct HeadRows {
    pub(crate) states: Vec<Vec<f32>>,
    pub(crate) logits: Vec<Vec<f32>>,
}

/// Drafts, each fed with the head's own state of the token before it.
#[derive(serde::Deserialize)]
pub(crate) struct Chain {
    pub(crate) tokens: Vec<u32>,
    /// After each of the tokens but the last.
    pub(crate) states: Vec<Vec<f32>>,
    pub(crate) logits: Vec<Vec<f32>>,
}

impl DraftOracle {
    /// That of the checkpoint with the name of this folder.
    pub(crate) fn of(folder: &Path) -> Self {
        let name = folder.file_name().unwrap().to_str().unwrap().trim_end_matches("-alone");
        let shared = fixtures("draft-heads").join(name).join("oracle.json");
        let own = folder.join("oracle.json");
        let path = if own.exists() { own } else { shared };
        let mut oracle: Self = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let Self { cases, tokens } = &mut oracle;
        for case in cases.iter_mut().filter(|_| !tokens.is_empty()) {
            let vocabulary = case.prefill_logits.len();
            for logits in case.head.logits.iter_mut().chain(&mut case.chain.logits) {
                let mut all = vec![f32::NEG_INFINITY; vocabulary];
                tokens.iter().zip(&*logits).for_each(|(&token, &logit)| all[token as usize] = logit);
                *logits = all;
            }
        }
        oracle
    }
}

impl DraftCase {
    /// The tokens that the head reads, each with the state of the token before it in the main model.
    pub(crate) fn fed(&self) -> (Vec<u32>, Vec<f32>) {
        ([&self.prompt[1..], &self.greedy[..1]].concat(), self.states.concat())
    }
}

fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
}

/// The checkpoints of a folder of fixtures.
pub(crate) fn checkpoints(parent: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixtures(parent)).unwrap();
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// The EAGLE-3 heads among the fixtures, each with its model.
pub(crate) const HEADS: [(&str, &str); 5] = [
    ("llama", "llama-head"),
    ("qwen3", "qwen3-head"),
    ("qwen3", "qwen3-layers-head"),
    ("qwen3", "qwen3-speculators-head"),
    ("qwen3", "qwen3-gguf-head"),
];

/// The folder with the oracle of such a head.
pub(crate) fn oracle(head: &str) -> PathBuf {
    // The GGUF file is another form of the same head.
    fixtures("eagle3").join(head.replace("gguf", "speculators"))
}

/// Whether the folder has the head without the layers of its model.
pub(crate) fn is_alone(folder: &Path) -> bool {
    folder.to_string_lossy().ends_with("-alone")
}

/// Whether rows are those of transformers, relative to the largest of each row or to 1.
pub(crate) fn expect_rows<'a>(what: &str, found: impl IntoIterator<Item = &'a [f32]>, expected: &[Vec<f32>]) {
    const DIFFERENCE: f32 = 1e-4;
    let found: Vec<_> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        let finite = expected.iter().filter(|x| x.is_finite());
        let scale = finite.fold(1f32, |most, x| most.max(x.abs()));
        let error = |(a, b): (&f32, &f32)| if a == b { 0.0 } else { (a - b).abs() };
        let error = found.iter().zip(expected).map(error).fold(0f32, f32::max);
        assert!(found.len() == expected.len() && error <= DIFFERENCE * scale, "{what}, row {index}: {error}");
    }
}
