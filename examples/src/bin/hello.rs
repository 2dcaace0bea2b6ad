//! The smallest program: the bundled model tells a story.
#![forbid(unsafe_code)]

use std::io::{Write, stdout};

use mlxcel_examples::bundled;
use mlxcel_session::{Message, Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(bundled::storyteller())?; // or the path of a checkpoint folder
    let question = Message::user("Tell me a story about a fox named Pip.");
    for piece in model.chat(&[question], &Options::default())? {
        write!(stdout(), "{}", piece?)?;
        stdout().flush()?;
    }
    writeln!(stdout())?;
    Ok(())
}
