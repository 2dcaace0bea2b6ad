//! Completes many prompts in order, as many at once as the engine computes together.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use mlxcel_session::{Engine, Model, Options, PrefixCache};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // Beginnings that prompts share are computed once.
    let model = Model::open(MODEL)?.with_prefix_cache(PrefixCache::new(64 << 20));
    let engine = Engine::new(model)?;
    let animals = ["fox", "owl", "hedgehog", "frog", "mouse"];
    let prompts = animals.map(|animal| format!("Once upon a time there was a little {animal}"));
    for (prompt, completion) in engine.map(prompts.iter(), |_| Options::new(20)) {
        // One prompt that fails does not end the others.
        match completion {
            Ok(completion) => writeln!(stdout(), "{prompt}{}", completion.text)?,
            Err(error) => writeln!(stdout(), "{prompt}: {error}")?,
        }
    }
    let stats = engine.stats();
    writeln!(stdout(), "{} tokens in {} passes", stats.computed_tokens, stats.passes)?;
    Ok(())
}
