//! EAGLE-3 draft heads on every engine against their reference: the states that the model returns, the head's
//! logits and states, and chains of drafts; whole, in chunks, batched and rewound.

use std::path::Path;

use crate::common::draft_heads::{HEADS, oracle};
use crate::draft_heads::check;
use crate::support::{engines_and_plugin, is_wanted, spares};

#[test]
fn every_eagle3_head_is_exact_on_every_engine() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/eagle3");
    for (model, head) in HEADS {
        for engine in engines_and_plugin() {
            // Engines that compile run one of the common layouts, and that with most norms.
            let is_spared = spares(&*engine) && !["llama-head", "qwen3-layers-head"].contains(&head);
            if is_wanted(&*engine) && !is_spared {
                check(&*engine, &fixtures.join(model), Some((&fixtures.join(head), &oracle(head))));
            }
        }
    }
}
