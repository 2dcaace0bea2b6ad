//! `from-scratch BUNDLE` prints a story.

use mlxcel_session::iree::IreeBackend;
use mlxcel_session::{LoadOptions, Message, Model, Options, Precision};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bundle = std::env::args().nth(1).ok_or("usage: from-scratch BUNDLE")?;
    let engine = IreeBackend::new().with_trusted_bundle(&bundle);
    // The precision of the bundle.
    let load = LoadOptions::default().with_precision(Precision::Exact);
    let model = Model::load(&engine, bundle.as_str(), &load)?;
    let question = Message::user("Tell me a story about a fox named Pip.");
    let story: String = model.chat(&[question], &Options::new(100))?.collect::<Result<_, _>>()?;
    println!("{story}");
    Ok(())
}
