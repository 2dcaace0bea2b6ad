//! The files of sentence-transformers: `modules.json`, and the folders of pooling and dense layers.

use mlxcel_core::{Error, ErrorKind, ModelSource, Result};

use super::classifier::matrix_values;
use super::{HeadLayer, TextHead, TokenPooling, answers};
use crate::checkpoint::Checkpoint;
use crate::config::{Config, Fields};
use crate::decoder::Activation;
use crate::element::ElementType;
use crate::files;
use crate::float::Float;
use crate::safetensors::read_header;
use crate::source::read_file;

const OPERATION: &str = "read sentence-transformers files";
const MODULES: &str = "modules.json";
/// What a module has in its folder.
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const LARGEST_WIDTH: usize = 1 << 20;
/// How many modules there may be.
const MOST_MODULES: usize = 64;

/// What pooling modes are called, in the older layout with `pooling_mode_` before them.
const MODES: [(&str, &str, TokenPooling); 6] = [
    ("cls", "pooling_mode_cls_token", TokenPooling::First),
    ("max", "pooling_mode_max_tokens", TokenPooling::Max),
    ("mean", "pooling_mode_mean_tokens", TokenPooling::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", TokenPooling::ScaledMean),
    ("weightedmean", "pooling_mode_weightedmean_tokens", TokenPooling::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", TokenPooling::Last),
];

impl TextHead {
    /// The head that makes embeddings: the modules behind the network that `modules.json` lists. `None` if
    /// there is no such file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for other modules and settings, by name; [`ErrorKind::Corrupt`] and
    /// [`ErrorKind::NotFound`] for invalid and missing files.
    pub fn of_embeddings(source: &ModelSource) -> Result<Option<Self>> {
        let Some(bytes) = read_file(source, MODULES)? else { return Ok(None) };
        let modules = Module::all(MODULES, &bytes)?;
        let mut head: Option<Self> = None;
        for module in &modules {
            let kind = module.kind();
            match (kind, &mut head) {
                ("Transformer", None) => {}
                ("Pooling", None) => head = Some(pooling(source, &module.path)?),
                ("Dense", Some(head)) => {
                    let layer = dense(source, &module.path, head.outputs())?;
                    head.layers.push(layer);
                }
                ("LayerNorm", Some(head)) => {
                    let layer = layer_norm(source, &module.path, head.outputs())?;
                    head.layers.push(layer);
                }
                ("Normalize", Some(head)) => {
                    expect_embeddings(source, &module.path)?;
                    head.layers.push(HeadLayer::Normalize);
                }
                // Does nothing but in training.
                ("Dropout", Some(_)) => {}
                // A reranker, which makes no embeddings.
                ("LogitScore", None) => answers::expect_yes_or_no(source, &config(source, &module.path)?)?,
                _ => {
                    let message = format!(
                        "the module '{}' is not supported there; Transformer, Pooling, then Dense, LayerNorm, \
                         Dropout and Normalize are",
                        kind.escape_debug()
                    );
                    return Err(Error::unsupported(OPERATION, message).with_context("path", MODULES));
                }
            }
        }
        Ok(head)
    }

    /// The names of the files in the folders of modules, which belong to a copy of `checkpoint` beside its
    /// `modules.json`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for an invalid `modules.json`; those of [`Checkpoint::file`].
    pub fn module_files(checkpoint: &Checkpoint) -> Result<Vec<String>> {
        let Some(bytes) = checkpoint.file(MODULES)? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for module in Module::all(MODULES, &bytes)?.iter().filter(|module| !module.path.is_empty()) {
            for name in [CONFIG, WEIGHTS].map(|name| format!("{}/{name}", module.path)) {
                if checkpoint.file(&name)?.is_some() {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// The names of the files without which [`of_embeddings`](Self::of_embeddings) fails: those of the
    /// modules that `bytes`, the content of a `modules.json` at `location`, lists. For downloading a
    /// checkpoint; names are as the list has them, and must be checked before they become paths.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for an invalid list.
    pub fn needed_files(location: &str, bytes: &[u8]) -> Result<Vec<String>> {
        let modules = Module::all(location, bytes)?;
        let files = |module: &Module| {
            let path = module.path.clone();
            module.needed().iter().map(move |name| format!("{path}/{name}"))
        };
        Ok(modules.iter().flat_map(files).collect())
    }
}

#[derive(serde::Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Module {
    /// Those that the `modules.json` at `location` lists.
    fn all(location: &str, bytes: &[u8]) -> Result<Vec<Self>> {
        let modules: Vec<Self> =
            files::parse_json(location, bytes, "it does not list modules with a type and a path")?;
        if modules.len() > MOST_MODULES {
            return Err(Error::new(ErrorKind::Corrupt, OPERATION, "there are too many modules")
                .with_context("path", location));
        }
        Ok(modules)
    }

    /// The name of its class, without that of the Python package.
    fn kind(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }

    /// The files in its folder that are read.
    fn needed(&self) -> &'static [&'static str] {
        match self.kind() {
            "Pooling" | "LogitScore" => &[CONFIG],
            "Dense" | "LayerNorm" => &[CONFIG, WEIGHTS],
            _ => &[],
        }
    }
}

/// `config.json` in the folder of a module.
fn config(source: &ModelSource, folder: &str) -> Result<Config> {
    let path = format!("{folder}/{CONFIG}");
    match read_file(source, &path)? {
        Some(bytes) => Config::parse(path, &bytes),
        None => Err(missing(path)),
    }
}

fn missing(path: String) -> Error {
    let message = "modules.json names this module, whose file is missing; download it";
    Error::new(ErrorKind::NotFound, OPERATION, message).with_context("path", path)
}

fn size(config: Fields<'_>, keys: [&str; 2]) -> Result<usize> {
    for key in keys {
        if let Some(size) = config.size(key, 1..=LARGEST_WIDTH)? {
            return Ok(size);
        }
    }
    Err(config.absent(keys[0]))
}

fn pooling(source: &ModelSource, folder: &str) -> Result<TextHead> {
    let config = config(source, folder)?;
    let config = config.fields();
    let modes = match config.text("pooling_mode") {
        Ok(Some(mode)) => vec![mode],
        Ok(None) => {
            let mut modes = Vec::new();
            for (mode, key, _) in MODES {
                if config.flag(key)? == Some(true) {
                    modes.push(mode);
                }
            }
            if modes.is_empty() { vec!["mean"] } else { modes }
        }
        Err(_) => config.texts("pooling_mode")?.unwrap_or_default(),
    };
    let pooling = |mode: &str| {
        let known = MODES.iter().find(|(name, ..)| *name == mode);
        known.map(|(.., pooling)| *pooling).ok_or_else(|| {
            let known = MODES.map(|(name, ..)| name).join(", ");
            let message = format!("pooling by '{}' is not supported; {known} are", mode.escape_debug());
            config.unsupported("pooling_mode", message)
        })
    };
    if modes.is_empty() || modes.len() > MODES.len() {
        return Err(config.wrong("pooling_mode", format!("there are {} modes", modes.len())));
    }
    let poolings = modes.into_iter().map(pooling).collect::<Result<Vec<_>>>()?;
    let includes_prompt = config.flag("include_prompt")?.unwrap_or(true);
    let inputs = size(config, ["embedding_dimension", "word_embedding_dimension"])?;
    Ok(TextHead { inputs, token_layers: Vec::new(), poolings, includes_prompt, layers: Vec::new() })
}

fn dense(source: &ModelSource, folder: &str, inputs: usize) -> Result<HeadLayer> {
    let config = config(source, folder)?;
    let config = config.fields();
    let (given, outputs) = (size(config, ["in_features"; 2])?, size(config, ["out_features"; 2])?);
    if given != inputs {
        let message = format!("{given} inputs are expected, and the layer before has {inputs} outputs");
        return Err(config.wrong("in_features", message));
    }
    if config.flag("use_residual")? == Some(true) {
        return Err(
            config.unsupported("use_residual", "dense layers with a residual are not supported".to_owned())
        );
    }
    expect_features(config)?;
    let name = config.text("activation_function")?.unwrap_or("torch.nn.Tanh");
    // Classes of other packages may have the same names.
    let class = name.strip_prefix("torch.").and_then(|class| class.rsplit('.').next());
    let activation = match class.unwrap_or_default() {
        "Identity" => None,
        "Tanh" => Some(Activation::Tanh),
        "GELU" => Some(Activation::Gelu),
        "ReLU" => Some(Activation::Relu),
        "SiLU" => Some(Activation::Silu),
        "Sigmoid" => Some(Activation::Sigmoid),
        _ => {
            let message = format!(
                "the activation '{}' is not supported; Identity, Tanh, GELU, ReLU, SiLU and Sigmoid are",
                name.escape_debug()
            );
            return Err(config.unsupported("activation_function", message));
        }
    };
    let path = format!("{folder}/{WEIGHTS}");
    let has_bias = config.flag("bias")?.unwrap_or(true);
    let Some(file) = read_file(source, &path)? else {
        let within = if has_bias { None } else { weight_within(source, folder, [outputs, inputs])? };
        let weight = within.ok_or_else(|| missing(path))?;
        return Ok(HeadLayer::Dense { weight, bias: None, activation });
    };
    let weight = tensor(&path, &file, "linear.weight", &[outputs, inputs])?;
    let bias = if has_bias { Some(tensor(&path, &file, "linear.bias", &[outputs])?) } else { None };
    Ok(HeadLayer::Dense { weight, bias, activation })
}

/// The layer norm in `folder`, as PyTorch has it.
fn layer_norm(source: &ModelSource, folder: &str, inputs: usize) -> Result<HeadLayer> {
    let config = config(source, folder)?;
    let config = config.fields();
    let dimension = size(config, ["dimension"; 2])?;
    if dimension != inputs {
        let message = format!("{dimension} inputs are expected, and the layer before has {inputs} outputs");
        return Err(config.wrong("dimension", message));
    }
    let path = format!("{folder}/{WEIGHTS}");
    let file = read_file(source, &path)?.ok_or_else(|| missing(path.clone()))?;
    let values = |name: &str| tensor(&path, &file, name, &[inputs]);
    Ok(HeadLayer::Norm { weight: values("norm.weight")?, bias: Some(values("norm.bias")?), epsilon: 1e-5 })
}

/// Fails if a module without weights, which may have no config, is for other features than the embedding.
fn expect_embeddings(source: &ModelSource, folder: &str) -> Result<()> {
    if folder.is_empty() {
        return Ok(());
    }
    let path = format!("{folder}/{CONFIG}");
    match read_file(source, &path)? {
        Some(bytes) => expect_features(Config::parse(path, &bytes)?.fields()),
        None => Ok(()),
    }
}

/// Fails if a module reads or writes other features than the embedding.
fn expect_features(config: Fields<'_>) -> Result<()> {
    for key in ["module_input_name", "module_output_name"] {
        if config.text(key)?.is_some_and(|name| name != "sentence_embedding") {
            return Err(config.unsupported(key, "layers of other features are not supported".to_owned()));
        }
    }
    Ok(())
}

/// The weight of a dense layer that is among those of the model, as GGUF files and copies of them have it.
fn weight_within(source: &ModelSource, folder: &str, shape: [usize; 2]) -> Result<Option<Vec<f32>>> {
    let checkpoint = Checkpoint::from_source(source)?;
    let module = format!("{folder}.linear");
    let is_there = checkpoint.has(&format!("{module}.weight"));
    if is_there { matrix_values(&checkpoint, &module, shape).map(Some) } else { Ok(None) }
}

/// The values of a tensor of a file.
fn tensor(path: &str, file: &[u8], name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let refuse = |kind, message: &str| {
        Error::new(kind, OPERATION, message.to_owned())
            .with_context("path", path)
            .with_context("tensor", name)
    };
    let entries = read_header(path, file)?;
    let entry = entries.into_iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| refuse(ErrorKind::NotFound, "the file does not have this tensor"))?;
    let bytes = file.get(entry.range.clone()).unwrap_or_default();
    if entry.shape != shape {
        return Err(refuse(ErrorKind::Corrupt, "its shape is not what the config says"));
    }
    floats(entry.element, bytes)
        .ok_or_else(|| refuse(ErrorKind::Unsupported, "its type is not a float of 16 or 32 bits"))
}

/// The elements of a dense tensor as float32.
pub(super) fn floats(element: ElementType, bytes: &[u8]) -> Option<Vec<f32>> {
    Float::of(element).map(|float| float.values(bytes))
}

#[cfg(test)]
mod tests;
