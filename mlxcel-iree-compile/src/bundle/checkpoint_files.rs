//! The files of a checkpoint that go into a bundle.

use mlxcel_core::Result;
use mlxcel_models::Checkpoint;
use mlxcel_models::text_head::TextHead;

/// Files other than weights that a model needs when it is opened or copied.
const SIDE_FILES: [&str; 24] = [
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "rwkv_vocab_v20230424.txt",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "NOTICE.md",
    "NOTICE.txt",
    "USE_POLICY.md",
    "README.md",
    "MODEL_CARD.md",
];

/// The index of sharded weights; it goes where they go.
const INDEX: &str = "model.safetensors.index.json";

/// The name of weights in one file.
const SINGLE: &str = "model.safetensors";

/// Shows each small file of `checkpoint` to `each`, with its name. Of a GGUF file its metadata has most of
/// them, so they are not written a second
/// time.
pub(super) fn side_files(
    checkpoint: &Checkpoint,
    with_weights: bool,
    mut each: impl FnMut(&str, &[u8]) -> Result<()>,
) -> Result<()> {
    // Of weights in one file an index says nothing, whatever it says.
    let sharded = with_weights && checkpoint.copied_weight_files().any(|(name, _)| name != SINGLE);
    // Some keep their licences in a folder of this name.
    let is_folder = |name: &&str| checkpoint.path().is_some_and(|folder| folder.join(name).is_dir());
    for name in SIDE_FILES.into_iter().chain(sharded.then_some(INDEX)).filter(|name| !is_folder(name)) {
        if let Some(content) = checkpoint.stored_file(name)? {
            each(name, &content)?;
        }
    }
    for name in TextHead::module_files(checkpoint)? {
        if let Some(content) = checkpoint.stored_file(&name)? {
            each(&name, &content)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_modules_behind_an_encoder_are_among_its_files() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let names = |folder: &str| {
            let mut names = Vec::new();
            side_files(&Checkpoint::open(fixtures.join(folder)).unwrap(), true, |name, _| {
                names.push(name.to_owned());
                Ok(())
            })
            .unwrap();
            names
        };
        let found = names("encoders/bert");
        let expected =
            ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"];
        assert!(expected.iter().all(|name| found.iter().any(|found| found == name)), "{found:?}");
        // A GGUF file has them in itself.
        assert_eq!(names("gguf-encoders/bert"), [""; 0]);
    }
}
