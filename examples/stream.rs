//! Streams several answers at once from one model, in steps that they share.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use futures_util::StreamExt;
use futures_util::stream::select_all;
use mlxcel_session::{Engine, Model, Options};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Model::open(MODEL)?)?;
    let mut streams = Vec::new();
    for (number, prompt) in ["Once upon a time", "The little owl", "Pip the fox"].into_iter().enumerate() {
        // With the feature `async`, a request is a `Stream` of its pieces. Dropping it cancels the request.
        let pieces = engine.generate(prompt, &Options::new(40))?.into_async();
        streams.push(pieces.map(move |piece| piece.map(|piece| (number, piece))));
    }
    let mut pieces = select_all(streams);
    while let Some(piece) = pieces.next().await {
        let (number, piece) = piece?;
        writeln!(stdout(), "{number}: {piece:?}")?;
    }
    let stats = engine.stats();
    writeln!(stdout(), "{} tokens in {} passes over the weights", stats.generated_tokens, stats.passes)?;
    Ok(())
}
