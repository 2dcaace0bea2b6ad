//! The manifest `bundle.json`: everything needed to run the programs, with this or another runtime, and to
//! reject a model or machine that they do not fit.

mod adapters;
mod display;

use std::collections::BTreeMap;

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_graph::{GraphModelOptions, KvCacheType, Lengths, ProgramShape, WeightArgument};
use mlxcel_iree_kernels::Layouts;
use mlxcel_models::files::parse_json;
use mlxcel_models::{Decoder, Part, Rope, WeightRef, WeightRole};
use mlxcel_stablehlo::TensorType;
use serde::{Deserialize, Serialize};

pub use adapters::AdapterRoom;

use crate::file::check_path;
pub use crate::file::{FileEntry, OPERATION};
use crate::laid_out::LaidOut;
use crate::revision::{RELEASE, Revision};

/// The manifest's file name.
pub const MANIFEST: &str = "bundle.json";

/// The value of a manifest's `format`.
const FORMAT: &str = "mlxcel bundle";

/// Incremented when older readers would misinterpret a manifest; not for fields that they may ignore.
const FORMAT_VERSION: u32 = 5;

/// The target of programs as plain StableHLO text, for other compilers.
pub const STABLEHLO: &str = "stablehlo";

/// The manifest of a bundle, `bundle.json`.
///
/// A program takes its arguments in this order: the [`weights`](Self::weights), the
/// [residents](AdapterRoom::residents) of adapters if there is room for some, then its
/// [`inputs`](ProgramDescription::inputs).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The kind of file.
    format: String,
    /// The layout of the manifest.
    format_version: u32,
    /// The version of this crate that wrote it.
    pub crate_version: String,
    /// The release of IREE that the programs are compiled for.
    pub iree_release: String,
    /// The compiler's revision; `None` if nothing was compiled.
    #[serde(default)]
    pub compiler: Option<String>,
    /// The model of the programs.
    pub model: ModelDescription,
    /// Whether the weights are in the bundle.
    pub weights_included: bool,
    /// The precision of the programs: `exact` or `native`.
    pub precision: String,
    /// The element type of the KV cache, such as `int8`, if it differs from that of the precision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<String>,
    /// The maximum number of concurrent sequences per session.
    pub sequences: usize,
    /// The maximum number of tokens per sequence.
    pub capacity: usize,
    /// The largest prompt chunk in tokens.
    pub chunk: usize,
    /// Smaller prompt chunks with programs, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub smaller_chunks: Vec<usize>,
    /// The KV-length buckets of the programs, ascending.
    pub lengths: Vec<usize>,
    /// Whether there are programs with results at every position.
    pub every_position: bool,
    /// Whether there are programs for verification of draft tokens.
    #[serde(default)]
    pub verification: bool,
    /// Whether there are programs with hidden states.
    #[serde(default)]
    pub hidden_states: bool,
    /// The rotary embeddings with their tables as inputs of the programs, in the order of those inputs: at
    /// position `p` the tables hold the cosine and the sine of `p · inv_freq[i]`, a product in single
    /// precision, times `attention_factor`.
    pub rotary: Vec<Rope>,
    /// The tensors of the weights, in the order in which every program takes them.
    pub weights: Vec<Weight>,
    /// The room for adapters that the programs have; `None` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<AdapterRoom>,
    /// The programs; each exists for every target.
    pub programs: Vec<ProgramDescription>,
    /// The targets with their files.
    pub targets: Vec<Target>,
    /// The checkpoint's files that are in the bundle.
    pub files: Vec<FileEntry>,
}

/// Identifies a model and describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelDescription {
    /// The architecture's name in `config.json`.
    pub model_type: String,
    /// The identity of configuration and weights ([`mlxcel_models::Checkpoint::fingerprint`]).
    pub fingerprint: String,
    /// The number of token ids.
    pub vocabulary_size: usize,
    /// The hidden size of the residual stream.
    pub hidden_size: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of parameters.
    pub parameters: u64,
    /// The size of the stored weights in bytes.
    pub weight_bytes: u64,
    /// The tokens that end a text.
    pub stop_tokens: Vec<u32>,
    /// A readable summary of the network.
    pub summary: String,
}

/// A weight as a program takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Weight {
    /// The name of the argument.
    pub name: String,
    /// The weight's role.
    pub role: WeightRole,
    /// The part of a packed weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// How its elements are read from the checkpoint, and their type and shape.
    #[serde(flatten)]
    pub tensor: WeightRef,
}

/// One program: its shape, its inputs after the weights, and its results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProgramDescription {
    /// Its name, such as `64+1@1024`: a chunk of 64 tokens and a decoding row over 1,024 positions.
    pub name: String,
    /// The maximum number of tokens of each row, the maximum number of positions in the states of each row
    /// (unless a window bounds them), and the program's outputs.
    #[serde(flatten)]
    pub shape: ProgramShape,
    /// The arguments that come after the weights, in order.
    pub inputs: Vec<Tensor>,
    /// The results, in order.
    pub results: Vec<Tensor>,
}

/// An input or a result of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tensor {
    /// One of `tokens` (each row's ids, padded), `positions` (of each row's first token), `last` (the index
    /// among all tokens of each row's last one that is not padding), `cos.0` and `sin.0` (for each
    /// token's position; see [`Manifest::rotary`]), `state.0.1` (the state of the second group of layers
    /// for row 0, initially zero); as results `best` (most likely token and the bits of its log
    /// probability), `logits`, and the states.
    ///
    /// A cache has a dimension of positions; position `p` is at `p` modulo its size. So a program for a
    /// greater length takes the same positions in a larger state, or the same state if a window bounds
    /// it.
    pub name: String,
    /// The element type as MLIR names it.
    pub element_type: String,
    /// The sizes of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The input whose storage this result may reuse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_over: Option<String>,
}

impl Tensor {
    pub(crate) fn new(name: impl Into<String>, ty: &TensorType) -> Self {
        let element_type = ty.element.mlir().to_owned();
        Self { name: name.into(), element_type, shape: ty.shape.clone(), takes_over: None }
    }
}

/// The programs of one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Target {
    /// The target, such as `llvm-cpu:znver4`; `stablehlo` for programs as plain text.
    pub target: String,
    /// The CPU features required to run them, by the compiler's names.
    #[serde(default)]
    pub required_features: Vec<String>,
    /// The weights that the programs expect in another layout than rows: by argument name, the panels, such
    /// as `panels-16 bf16`, into which matrices must be packed before they are passed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weight_layouts: BTreeMap<String, String>,
    /// The weights in that layout, if the bundle contains them in addition to the checkpoint's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub laid_out: Option<LaidOut>,
    /// The program that checks a device before it is given the model, for targets of accelerators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_check: Option<FileEntry>,
    /// The public function of each program.
    pub entry: String,
    /// A file for each of [`Manifest::programs`], in that order.
    pub programs: Vec<FileEntry>,
}

/// The part that all manifest versions have.
#[derive(Deserialize)]
struct Head {
    format: String,
    format_version: u32,
    crate_version: String,
    iree_release: String,
    #[serde(default)]
    compiler: Option<String>,
}

impl Manifest {
    /// Parses the manifest at `location`, and rejects what this version cannot run.
    ///
    /// Unknown fields are ignored; an incompatible change increments the format version.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a manifest that is damaged, contradicts itself or names files outside of
    /// the folder, [`ErrorKind::Unsupported`] for one of another format version, of an incompatible
    /// version of this crate, or of another release of IREE.
    pub fn parse(text: &[u8], location: &str) -> Result<Self> {
        let head: Head = parse_json(location, text, "this is not a bundle's manifest, or it is truncated")?;
        head.check().map_err(|error| error.with_context("path", location))?;
        let manifest: Self = parse_json(location, text, "the manifest lacks a field or is malformed")?;
        manifest.check_shape().map_err(|error| error.with_context("path", location))?;
        Ok(manifest)
    }

    /// The manifest as text.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "write bundle", "the manifest cannot be written as JSON")
                .with_source(error)
        })?;
        text.push('\n');
        Ok(text)
    }

    /// A manifest of `decoder` with these options, without targets and files.
    ///
    /// # Errors
    /// The errors of options out of range.
    pub fn new(
        model: ModelDescription,
        decoder: &Decoder,
        weights: &[WeightArgument],
        options: &GraphModelOptions,
        programs: Vec<ProgramDescription>,
    ) -> Result<Self> {
        let mut chunks = options.chunks.clone();
        chunks.sort_unstable();
        let chunk = chunks.pop().unwrap_or_default();
        let kv_cache = (options.kv_cache != KvCacheType::default()).then(|| options.kv_cache.to_string());
        Ok(Self {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            crate_version: env!("CARGO_PKG_VERSION").to_owned(),
            iree_release: RELEASE.to_owned(),
            compiler: None,
            model,
            weights_included: false,
            precision: options.precision.to_string(),
            kv_cache,
            sequences: options.sequences,
            capacity: options.capacity_for(decoder)?,
            chunk,
            smaller_chunks: chunks,
            lengths: options.lengths_for(decoder)?.buckets().to_vec(),
            every_position: options.every_position,
            verification: options.verification,
            hidden_states: options.hidden_states,
            rotary: decoder.ropes().into_iter().cloned().collect(),
            weights: weights.iter().map(Weight::from).collect(),
            adapters: None,
            programs,
            targets: Vec::new(),
            files: Vec::new(),
        })
    }

    /// The options of a model with these programs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for inconsistent values.
    pub fn graph_options(&self) -> Result<GraphModelOptions> {
        let mut options = GraphModelOptions::default();
        options.precision = self.precision.parse()?;
        if let Some(kv_cache) = &self.kv_cache {
            options.kv_cache = kv_cache.parse()?;
        }
        options.capacity = Some(self.capacity);
        options.sequences = self.sequences;
        options.chunks = self.smaller_chunks.iter().copied().chain([self.chunk]).collect();
        options.lengths = Some(Lengths::from_buckets(self.lengths.clone())?);
        options.every_position = self.every_position;
        options.verification = self.verification;
        options.hidden_states = self.hidden_states;
        options.adapters = self.adapters.as_ref().map(AdapterRoom::limits);
        Ok(options)
    }

    /// The index of the program for `shape`.
    pub fn program(&self, shape: &ProgramShape) -> Option<usize> {
        self.programs.iter().position(|program| program.shape == *shape)
    }

    /// Every file of the bundle except the manifest.
    pub fn all_files(&self) -> impl Iterator<Item = &FileEntry> {
        let laid_out = self.targets.iter().filter_map(|target| target.laid_out.as_ref());
        let programs = self.targets.iter().flat_map(|target| &target.programs);
        let checks = self.targets.iter().filter_map(|target| target.device_check.as_ref());
        programs.chain(laid_out.map(|laid_out| &laid_out.file)).chain(checks).chain(&self.files)
    }

    /// Whether the programs have an argument `name` whose layout may differ.
    fn has_matrix(&self, name: &str) -> bool {
        let residents = self.adapters.iter().flat_map(|room| &room.residents);
        self.weights.iter().any(|weight| weight.name == name)
            || residents.map(|tensor| &tensor.name).any(|known| known == name)
    }

    /// Refuses a manifest that contradicts itself or refers to files outside of the bundle.
    fn check_shape(&self) -> Result<()> {
        let corrupt = |message: &'static str| Error::new(ErrorKind::Corrupt, OPERATION, message);
        // Sums and products of values below this do not overflow.
        let figures = [&self.sequences, &self.capacity, &self.chunk]
            .into_iter()
            .chain(&self.smaller_chunks)
            .chain(&self.lengths);
        if figures.into_iter().any(|&figure| u32::try_from(figure).is_err()) {
            return Err(corrupt("the manifest's numbers are out of range"));
        }
        self.graph_options()
            .map_err(|error| corrupt("the manifest's numbers are inconsistent").with_source(error))?;
        if self.adapters.as_ref().is_some_and(|room| !room.is_in_range()) {
            return Err(corrupt("the manifest's room for adapters is out of range"));
        }
        for target in &self.targets {
            if let Some(name) = target.weight_layouts.keys().find(|name| !self.has_matrix(name)) {
                return Err(corrupt("a target has a layout for an unknown weight")
                    .with_context("target", target.target.escape_debug())
                    .with_context("weight", name.escape_debug()));
            }
            if target.programs.len() != self.programs.len() {
                return Err(corrupt("a target does not have one file per program")
                    .with_context("target", target.target.escape_debug()));
            }
        }
        for file in self.all_files() {
            check_path(&file.path)?;
            if file.sha256.len() != 64 || !file.sha256.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(corrupt("a file has no SHA-256").with_context("file", file.path.escape_debug()));
            }
        }
        Ok(())
    }
}

impl Head {
    fn check(&self) -> Result<()> {
        let refused = |message: String| Error::unsupported(OPERATION, message);
        if self.format != FORMAT {
            return Err(Error::new(ErrorKind::Corrupt, OPERATION, "this is the manifest of something else")
                .with_context("format", self.format.escape_debug()));
        }
        if self.format_version != FORMAT_VERSION {
            return Err(refused(format!(
                "the bundle is of format version {}, and this version of mlxcel-iree reads {FORMAT_VERSION}; write it again",
                self.format_version
            ))
            .with_context("written_by", self.crate_version.escape_debug()));
        }
        let own = env!("CARGO_PKG_VERSION");
        if compatible_part(&self.crate_version) != compatible_part(own) {
            return Err(refused(format!(
                "the bundle was written by version {} of mlxcel-iree, and this is {own}; write it again",
                self.crate_version.escape_debug()
            )));
        }
        if self.iree_release != RELEASE {
            return Err(refused(format!(
                "the bundle was compiled for IREE {}, and the runtime here is {}; write it again",
                self.iree_release.escape_debug(),
                RELEASE
            )));
        }
        let compiler = self.compiler.as_deref().map(Revision::of_text);
        if let Some(compiler) = compiler.filter(|compiler| !compiler.is_of_release()) {
            return Err(refused(format!(
                "the bundle was compiled by another revision of IREE's compiler than that of release {}; write it again with that",
                RELEASE
            ))
            .with_context("compiler", compiler.as_str().escape_debug()));
        }
        Ok(())
    }
}

/// The part of a version that compatible versions share: `0.3` of `0.3.1`, `2` of `2.4.0`.
fn compatible_part(version: &str) -> &str {
    let mut dots = version.match_indices('.').map(|(at, _)| at);
    let end = if version.starts_with("0.") { dots.nth(1) } else { dots.next() };
    &version[..end.unwrap_or(version.len())]
}

impl Target {
    /// The programs for a target, with a file for each.
    pub fn new(
        target: String,
        required_features: Vec<String>,
        layouts: &Layouts,
        entry: String,
        programs: Vec<FileEntry>,
    ) -> Self {
        let panels = layouts.in_panels().map(|(name, panels)| (name.to_owned(), panels.to_string()));
        Self {
            target,
            required_features,
            weight_layouts: panels.collect(),
            laid_out: None,
            device_check: None,
            entry,
            programs,
        }
    }

    /// Whether these programs are text for other compilers.
    pub fn is_text(&self) -> bool {
        self.target == STABLEHLO
    }

    /// The layouts of the weights.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a layout that this version does not know.
    pub fn layouts(&self) -> Result<Layouts> {
        let read = |(name, layout): (&String, &String)| {
            let panels = layout.parse().map_err(|error: Error| {
                Error::unsupported(
                    OPERATION,
                    "the programs take weights in a layout that this version of mlxcel-iree does not know; write the bundle \
                     again with this version, or open it with the one that wrote it",
                )
                .with_context("target", self.target.escape_debug())
                .with_context("weight", name.escape_debug())
                .with_context("layout", layout.escape_debug())
                .with_source(error)
            })?;
            Ok((name.clone(), Some(panels)))
        };
        self.weight_layouts.iter().map(read).collect()
    }
}

impl From<&WeightArgument> for Weight {
    fn from(argument: &WeightArgument) -> Self {
        let WeightArgument { name, role, weight: _, part, tensor, ty: _ } = argument;
        Self { name: name.clone(), role: *role, part: *part, tensor: tensor.elements_only() }
    }
}
