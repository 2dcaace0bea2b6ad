//! The files of a repository that a checkpoint needs.

use std::collections::{BTreeSet, HashMap};

use mlxcel_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use mlxcel_models::files::{check_name, parse_json};
use mlxcel_models::text_head::TextHead;
use mlxcel_models::{GgufSplit, SMALL_FILES, gguf_models};

use crate::name::HubName;

const OPERATION: &str = "select files";
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The modules of sentence-transformers behind a network: pooling, dense layers, norms.
const MODULES: &str = "modules.json";

/// The settings of an adapter, and what its matrices are in: of PEFT, and of mlx-lm.
const ADAPTER: &str = "adapter_config.json";
const ADAPTER_WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapters.safetensors"];

/// The folder of further chat templates.
const TEMPLATES: &str = "additional_chat_templates/";

/// How many further chat templates are taken.
const MOST_TEMPLATES: usize = 64;

/// The files that a checkpoint needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Selection {
    /// Config, tokenizer and templates.
    pub small: Vec<String>,
    /// The index of sharded weights; its [`shards`] are needed too.
    pub index: Option<String>,
    /// The list of sentence-transformers' modules; their [`module_files`] are needed too.
    pub modules: Option<String>,
    /// The weight files, if there is no index.
    pub weights: Vec<String>,
    /// Whether the model is in GGUF format; the first weight file is then the one to open.
    pub gguf: bool,
    /// Whether these are the files of an adapter, not of a model.
    pub adapter: bool,
}

/// Selects the files of the checkpoint `name` from the `files` of a repository: config, tokenizer, templates
/// and settings of sentence-transformers, and `model.safetensors` or the index of its shards; those of an
/// adapter of PEFT or mlx-lm, if there is no model beside it; or the files of one GGUF model. Python pickles
/// are never selected.
///
/// # Errors
///
/// [`NotFound`](ErrorKind::NotFound) if the repository lacks the named file or label;
/// [`InvalidInput`](ErrorKind::InvalidInput) if the name does not select one of several GGUF models, and for
/// names that lead out of a folder; [`Unsupported`](ErrorKind::Unsupported) for weights in other formats.
pub fn select(name: &HubName, files: &[String]) -> Result<Selection> {
    let has = |file: &str| files.iter().any(|candidate| candidate == file);
    let failed = |kind, message: String| Error::new(kind, OPERATION, message).with_context("model", name);
    if let Some(file) = name.file() {
        if !has(file) {
            let message = format!("the repository has no file {}", file.escape_debug());
            return Err(failed(ErrorKind::NotFound, message));
        }
        if !file.ends_with(".gguf") {
            let message = "only GGUF files are opened by themselves; name the repository alone";
            return Err(failed(ErrorKind::Unsupported, message.to_owned()));
        }
        return in_gguf(name, file, files);
    }
    let plain = name.label().is_none() && has(CONFIG);
    if plain && (has(SINGLE) || has(INDEX)) {
        let templates = files.iter().filter(|file| {
            let template = file.strip_prefix(TEMPLATES).and_then(|file| file.strip_suffix(".jinja"));
            template.is_some_and(|template| !template.is_empty() && !template.contains(['/', '\\']))
        });
        let templates = templates.take(MOST_TEMPLATES).cloned();
        let small = [CONFIG].iter().chain(&SMALL_FILES).filter(|file| has(file));
        let small = small.map(|&file| file.to_owned()).chain(templates);
        let modules = has(MODULES).then(|| MODULES.to_owned());
        let mut selection = Selection { small: small.collect(), modules, ..Selection::default() };
        if has(SINGLE) {
            selection.weights.push(SINGLE.to_owned());
        } else {
            selection.index = Some(INDEX.to_owned());
        }
        for file in &selection.small {
            check_name(file, name)?;
        }
        return Ok(selection);
    }
    let adapter = ADAPTER_WEIGHTS.into_iter().find(|file| has(file));
    if let Some(weights) = adapter.filter(|_| name.label().is_none() && has(ADAPTER)) {
        let (small, weights) = (vec![ADAPTER.to_owned()], vec![weights.to_owned()]);
        return Ok(Selection { small, weights, adapter: true, ..Selection::default() });
    }
    let models = models_of(files);
    let matching: Vec<_> = match name.label() {
        Some(label) => models.iter().filter(|model| has_label(model, label)).collect(),
        None => models.iter().collect(),
    };
    let listed = || models.iter().take(64).map(String::as_str).collect::<Vec<_>>().join(", ");
    match &matching[..] {
        [model] => in_gguf(name, model, files),
        [] if models.is_empty() && name.label().is_none() => {
            let message =
                "the repository has neither safetensors nor GGUF weights; other formats are not read";
            Err(failed(ErrorKind::Unsupported, message.to_owned()))
        }
        [] => {
            let message = "no GGUF file of the repository has this label; name one of the files";
            Err(failed(ErrorKind::NotFound, message.to_owned()).with_context("files", listed()))
        }
        _ => {
            let message = "there are several models in GGUF files; name one, as in org/name:Q4_K_M or \
                           org/name/file.gguf";
            Err(failed(ErrorKind::InvalidInput, message.to_owned()).with_context("files", listed()))
        }
    }
}

/// The files that a shard index names, sorted.
///
/// # Errors
///
/// [`Corrupt`](ErrorKind::Corrupt) for an invalid index; [`InvalidInput`](ErrorKind::InvalidInput) for a
/// shard outside of the folder. Errors call the index `location`.
pub fn shards(location: &str, index: &[u8]) -> Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let index: Index = parse_json(location, index, "this is not a weight index; download it again")?;
    let shards: BTreeSet<_> = index.weight_map.into_values().collect();
    for shard in &shards {
        check_name(shard, location)?;
        if !shard.ends_with(".safetensors") {
            let message = "an index lists weight files that are not safetensors";
            return Err(Error::new(ErrorKind::Unsupported, OPERATION, message)
                .with_context("file", shard)
                .with_context("path", location));
        }
    }
    Ok(shards)
}

/// The files of the modules that `modules.json` lists: their configs, and the weights of dense layers.
///
/// # Errors
///
/// [`Corrupt`](ErrorKind::Corrupt) for an invalid list; [`InvalidInput`](ErrorKind::InvalidInput) for a
/// module outside of the folder. Errors call the list `location`.
pub fn module_files(location: &str, modules: &[u8]) -> Result<Vec<String>> {
    let files = TextHead::needed_files(location, modules)?;
    for file in &files {
        check_name(file, location)?;
    }
    Ok(files)
}

/// The files of the model in GGUF that `first` is one of.
fn in_gguf(name: &HubName, first: &str, files: &[String]) -> Result<Selection> {
    let weights = match GgufSplit::parse(first) {
        Some(split) if split.count <= files.len() => split.all().collect(),
        Some(_) => {
            let message = "the repository lacks files of the split model";
            return Err(Error::new(ErrorKind::NotFound, OPERATION, message)
                .with_context("file", first)
                .with_context("model", name));
        }
        None => vec![first.to_owned()],
    };
    for file in &weights {
        check_name(file, name)?;
    }
    Ok(Selection { weights, gguf: true, ..Selection::default() })
}

/// The models in GGUF among the files of a repository, of each its first file.
pub(super) fn models_of(files: &[String]) -> Vec<String> {
    let plain = files.iter().filter(|file| {
        let own = file.rsplit('/').next().unwrap_or(file);
        !own.starts_with("mmproj")
    });
    gguf_models(&plain.cloned().collect::<Vec<_>>())
}

/// Whether a file's name has a label such as `Q4_K_M` between its dashes and dots, in letters of either case.
fn has_label(file: &str, label: &str) -> bool {
    let (file, label) = (file.to_ascii_lowercase(), label.to_ascii_lowercase());
    let ends = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    file.match_indices(&label).any(|(at, found)| {
        ends(file[..at].chars().next_back()) && ends(file[at + found.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, files: &[&str]) -> Result<Selection> {
        let files: Vec<_> = files.iter().map(|&file| file.to_owned()).collect();
        select(&name.parse().unwrap(), &files)
    }

    #[test]
    fn a_checkpoint_is_settings_tokenizer_templates_and_safetensors() {
        let selected = of(
            "a/b",
            &[
                ".gitattributes",
                "README.md",
                "config.json",
                "model.safetensors",
                "pytorch_model.bin",
                "tokenizer.json",
                "original/config.json",
                "additional_chat_templates/tools.jinja",
                "additional_chat_templates/../x.jinja",
                "handler.py",
            ],
        )
        .unwrap();
        let small = ["config.json", "tokenizer.json", "additional_chat_templates/tools.jinja"];
        assert_eq!(selected.small, small);
        assert_eq!((&selected.weights[..], selected.gguf), (&["model.safetensors".to_owned()][..], false));
        let sharded = of("a/b", &["config.json", INDEX, "model-00001-of-00002.safetensors"]).unwrap();
        assert_eq!((sharded.index.as_deref(), sharded.weights.len()), (Some(INDEX), 0));
        let pickle = of("a/b", &["config.json", "pytorch_model.bin"]).unwrap_err();
        assert_eq!(pickle.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn an_adapter_is_settings_and_matrices() {
        let peft = ["README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"];
        let selected = of("a/b", &peft).unwrap();
        assert_eq!(
            (&*selected.small, &*selected.weights),
            (&["adapter_config.json".to_owned()][..], &[peft[2].to_owned()][..])
        );
        let mlx = of("a/b", &["adapter_config.json", "adapters.safetensors", "config.json"]).unwrap();
        assert_eq!((&*mlx.weights, mlx.adapter), (&["adapters.safetensors".to_owned()][..], true));
        let model =
            of("a/b", &["adapter_config.json", "adapters.safetensors", "config.json", SINGLE]).unwrap();
        assert_eq!((&*model.weights, model.adapter), (&[SINGLE.to_owned()][..], false));
        let pickle = of("a/b", &["adapter_config.json", "adapter_model.bin"]).unwrap_err();
        assert_eq!(pickle.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn one_of_several_gguf_models_is_named_by_file_or_label() {
        let files = [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "q8/m-Q8_0-00001-of-00002.gguf",
            "q8/m-Q8_0-00002-of-00002.gguf",
            "q8/mmproj-Q4_K_M.gguf",
        ];
        assert_eq!(of("a/b:q4_k_m", &files).unwrap().weights, ["m-Q4_K_M.gguf"]);
        assert_eq!(of("a/b:Q8_0", &files).unwrap().weights, files[2..4]);
        assert_eq!(of("a/b/m-Q4_K_S.gguf", &files).unwrap().weights, ["m-Q4_K_S.gguf"]);
        assert_eq!(of("a/b", &files[..1]).unwrap().weights, ["m-Q4_K_M.gguf"]);
        let error = of("a/b", &files).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.context("files").unwrap().contains("m-Q4_K_S.gguf"));
        for name in ["a/b:Q4", "a/b:Q4_K", "a/b/none.gguf"] {
            assert_eq!(of(name, &files).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        }
        let endless = of("a/b", &["m-00001-of-99999.gguf"]).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn names_outside_of_the_folder_are_rejected() {
        for file in ["../m.gguf", "/etc/m.gguf", "a/../../m.gguf", "c:\\m.gguf"] {
            assert_eq!(of("a/b", &[file]).unwrap_err().kind(), ErrorKind::InvalidInput, "{file}");
            let index = serde_json::json!({"weight_map": {"a": file}}).to_string();
            assert!(shards("index", index.as_bytes()).is_err());
        }
        let shards_of = |file: &str| {
            shards("index", serde_json::json!({"weight_map": {"a": file}}).to_string().as_bytes())
        };
        assert_eq!(shards_of("../w.safetensors").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(shards_of("w.bin").unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(shards_of("w.safetensors").unwrap().len(), 1);
        assert_eq!(shards("index", b"[]").unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
