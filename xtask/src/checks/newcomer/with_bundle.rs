use mlxcel_session::iree::IreeBackend;
use mlxcel_session::{LoadOptions, Message, Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bundle = std::env::args().nth(1).ok_or("usage: with-bundle FOLDER")?;
    let engine = IreeBackend::new().with_trusted_bundle(&bundle);
    let model = Model::load(&engine, bundle, &LoadOptions::default())?;
    let question = Message::user("Tell me a story about a fox named Pip.");
    let story: String = model.chat(&[question], &Options::new(32))?.collect::<Result<_, _>>()?;
    println!("{story}");
    if story.contains("Pip") { Ok(()) } else { Err("that was no story about Pip".into()) }
}
