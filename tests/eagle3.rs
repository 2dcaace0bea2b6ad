//! EAGLE-3 draft heads on every engine against their reference: the states that the model returns, the head's
//! logits and states, and chains of drafts; whole, in chunks, batched and rewound.

use std::path::Path;

use crate::draft_heads::check;
use crate::support::{engines_and_plugin, is_wanted, spares};

#[test]
fn every_eagle3_head_is_exact_on_every_engine() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/eagle3");
    for name in ["llama", "qwen3"] {
        let (model, head) = (fixtures.join(name), fixtures.join(format!("{name}-head")));
        for engine in engines_and_plugin() {
            // Engines that compile run one.
            if is_wanted(&*engine) && (name == "llama" || !spares(&*engine)) {
                check(&*engine, &model, Some(&head));
            }
        }
    }
}
