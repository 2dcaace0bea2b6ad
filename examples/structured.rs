//! An answer as a value of a type: the text follows the type's JSON schema, token by token.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};

use mlxcel_session::{Model, Options, schemars};
use serde::Deserialize;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");

#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct Animal {
    /// Bounds keep a small model from writing on and on.
    #[schemars(length(max = 20))]
    name: String,
    kind: Kind,
    #[schemars(range(min = 0, max = 8))]
    legs: u8,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
enum Kind {
    Bird,
    Fish,
    Mammal,
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(MODEL)?;
    let animal: Animal = model.generate_as("Pip is a little fox. As JSON: ", &Options::new(100))?;
    writeln!(stdout(), "{} has {} legs ({:?})", animal.name, animal.legs, animal.kind)?;
    Ok(())
}
