//! Opens a checkpoint folder through MLX and lets it tell a story: `with-mlx MODEL`.

use std::error::Error;
use std::io::{self, Write};

use mlxcel_session::{Message, Model, OpenOptions, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: with-mlx MODEL")?;
    let model = Model::open_with(folder, &OpenOptions::default().with_backend("mlx"))?;
    let question = Message::user("Tell me a story about a fox named Pip.");

    let mut story = String::new();
    for piece in model.chat(&[question], &Options::new(64))? {
        let piece = piece?;
        print!("{piece}");
        io::stdout().flush()?;
        story.push_str(&piece);
    }
    println!();
    if !story.contains("Pip") {
        return Err(format!("the text is not a story about Pip: {story:?}").into());
    }
    Ok(())
}
