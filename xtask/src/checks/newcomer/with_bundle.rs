//! Writes a bundle where the compiler is, `with-bundle write MODEL BUNDLE`, and opens it on a machine without
//! one, `with-bundle run BUNDLE`.
use mlxcel_session::iree::IreeBackend;
use mlxcel_session::iree::bundle::{self, BundleOptions};
use mlxcel_session::{LoadOptions, Message, Model, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", model, folder] => {
            let options = BundleOptions::from(LoadOptions::default().with_capacity(128));
            let manifest = bundle::write(&IreeBackend::new(), &model.into(), folder, &options)?;
            println!("{manifest}");
            Ok(())
        }
        ["run", folder] => {
            let engine = IreeBackend::new().with_trusted_bundle(folder);
            let model = Model::load(&engine, folder, &LoadOptions::default())?;
            let question = Message::user("Tell me a story about a fox named Pip.");
            let story: String = model.chat(&[question], &Options::new(32))?.collect::<Result<_, _>>()?;
            println!("{story}");
            if story.contains("Pip") { Ok(()) } else { Err("the text is not a story about Pip".into()) }
        }
        _ => Err("usage: with-bundle write MODEL BUNDLE, or with-bundle run BUNDLE".into()),
    }
}
