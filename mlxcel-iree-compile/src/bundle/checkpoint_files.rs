//! The files of a checkpoint that go into a bundle.

use mlxcel_core::Result;
use mlxcel_models::Checkpoint;

/// Files that describe the model, which is the same in a bundle.
const DESCRIPTIONS: [&str; 3] = ["config.json", "README.md", "MODEL_CARD.md"];

/// The index of sharded weights; it goes where they go.
const INDEX: &str = "model.safetensors.index.json";

/// The name of weights in one file.
const SINGLE: &str = "model.safetensors";

/// Shows each small file of `checkpoint` to `each`, with its name. Of a GGUF file its metadata has most of
/// them, so they are not written a second time.
pub(super) fn side_files(
    checkpoint: &Checkpoint,
    with_weights: bool,
    mut each: impl FnMut(&str, &[u8]) -> Result<()>,
) -> Result<()> {
    // Of weights in one file an index says nothing, whatever it says.
    let sharded = with_weights && checkpoint.copied_weight_files().any(|(name, _)| name != SINGLE);
    let described = DESCRIPTIONS.into_iter().chain(sharded.then_some(INDEX)).map(str::to_owned);
    for name in checkpoint.side_files()?.into_iter().chain(described) {
        if let Some(content) = checkpoint.stored_file(&name)? {
            each(&name, &content)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names = Vec::new();
        side_files(&Checkpoint::open(folder).unwrap(), true, |name, _| {
            names.push(name.to_owned());
            Ok(())
        })
        .unwrap();
        names
    }

    #[test]
    fn the_modules_behind_an_encoder_are_among_its_files() {
        let found = names(&fixture("encoders/bert"));
        let expected =
            ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"];
        assert!(expected.iter().all(|name| found.iter().any(|found| found == name)), "{found:?}");
        // A GGUF file has them in itself.
        assert_eq!(names(&fixture("gguf-encoders/bert/model.gguf")), [""; 0]);
    }

    #[test]
    fn templates_settings_of_packing_and_licences_are_copied() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::create_dir(folder.join("additional_chat_templates")).unwrap();
        let expected =
            ["NOTICE.md", "additional_chat_templates/tools.jinja", "quantize_config.json", "config.json"];
        for name in expected.into_iter().chain(["handler.py", "additional_chat_templates/notes.bin"]) {
            fs::write(folder.join(name), "{}").unwrap();
        }
        for name in ["config.json", "model.safetensors"] {
            fs::copy(fixture("architectures/llama").join(name), folder.join(name)).unwrap();
        }
        assert_eq!(names(folder), expected);
        // Those beside GGUF files, if their folder is opened.
        for name in ["config.json", "model.safetensors"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
        fs::copy(fixture("gguf-encoders/bert/model.gguf"), folder.join("model.gguf")).unwrap();
        assert_eq!(names(folder), expected[..3]);
    }
}
