//! Maps GGUF architectures to families: config fields and tensor names.
//!
//! The mappings follow `llama.cpp`'s converter, and its graphs where files are silent. An architecture is an
//! entry in [`known`], with a function for what a table cannot express.

mod draft;
mod known;
mod rope;

use mlxcel_core::{Error, Result};
use serde_json::{Map, Value};

use super::Gguf;
use super::header::OPERATION;
use draft::Draft;

/// The key that names the architecture.
pub(super) const ARCHITECTURE: &str = "general.architecture";

/// An architecture of GGUF, and the family that it is.
pub(super) struct Architecture {
    /// Its name, which all of its keys begin with.
    pub(super) name: &'static str,
    /// The `model_type` of the family.
    pub(super) model_type: &'static str,
    /// The order of the rows of projections.
    pub(super) rows: Rows,
    /// Whether the converter has added one to the factors of norms.
    pub(super) whole_norms: bool,
    /// Keys without the architecture's name, and the settings that they are. Those of [`known::COMMON`] are
    /// everybody's.
    pub(super) settings: &'static [&'static [Setting]],
    /// Settings that files say nothing of.
    pub(super) fixed: &'static [(&'static str, Fixed)],
    /// Tensors of the first layer, and the settings that are true where these are there and false otherwise.
    pub(super) present: &'static [Setting],
    /// Whether layers differ in their numbers of heads, which `adapt` then reads.
    pub(super) heads_by_layer: bool,
    /// What stands before the names of tensors, and before the number of a layer behind that.
    pub(super) base: [&'static str; 2],
    /// Names of tensors that are not those of [`known::TENSORS`]; the first of several counts.
    pub(super) tensors: &'static [&'static [Name]],
    /// The names of a draft head, which the first layer behind the others is; none if the family's are not
    /// known.
    pub(super) draft_head: Option<&'static DraftHead>,
    /// What is to be done beyond that.
    pub(super) adapt: fn(&mut Draft<'_>) -> Result<()>,
    /// Tensors that files have as settings, under the names that families know.
    pub(super) vectors: fn(&Draft<'_>) -> Result<Vectors>,
}

/// The order of the rows of projections in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// As published; queries and keys are rotated in halves.
    Halves,
    /// As published; queries and keys are rotated in pairs of neighbours.
    Pairs,
    /// Rows of queries and keys, which were published for a rotation in halves, are reordered for one in
    /// pairs.
    Paired,
    /// Rows of fused queries, keys and values, which were published by head, are regrouped by projection.
    Ungrouped,
    /// Rotated in halves; columns of some weights are in another order too, or their values multiplied.
    Changed,
}

impl Rows {
    /// Whether queries and keys are rotated in pairs of neighbours.
    pub(super) fn are_rotated_in_pairs(self) -> bool {
        matches!(self, Self::Pairs | Self::Paired)
    }
}

/// A key of GGUF without the architecture's name, and the setting that it is.
pub(super) type Setting = (&'static str, &'static str);

/// The name of a tensor in GGUF, without the number of its layer, that which families know it by, and what is
/// to be undone. A name with its ending goes before one without, of which the ending is kept.
pub(super) type Name = (&'static str, &'static str, Change);

/// The names of a draft head, in which `#` stands for the number of layers before it.
pub(super) struct DraftHead {
    /// What stands before the names of its layer's tensors.
    pub(super) layer: &'static str,
    /// Its other modules, by the whole names that families know them by. An embedding and a head of its own,
    /// which some files have, are those of the model.
    pub(super) modules: &'static [(&'static str, &'static str)],
}

impl DraftHead {
    /// The name of a tensor behind the layers, which is `rest` without the number of its layer; none for one
    /// that has no place in the head.
    fn target(&self, architecture: &Architecture, layers: usize, rest: &str) -> Option<(String, Change)> {
        let (stem, ending) = rest.rsplit_once('.').unwrap_or((rest, ""));
        let own = self.modules.iter().find(|(known, _)| *known == stem);
        let (to, change) = match own {
            Some((_, to)) => (format!("{to}.{ending}"), Change::Keep),
            None => {
                let (to, change) = architecture.part(rest)?;
                (format!("{}{to}", self.layer), change)
            }
        };
        Some((to.replacen('#', &layers.to_string(), 1), change))
    }
}

impl Architecture {
    /// The name of a part of the network or of a layer, and what is to be undone.
    fn part(&self, rest: &str) -> Option<(String, Change)> {
        let (stem, ending) = rest.rsplit_once('.').unwrap_or((rest, ""));
        let names = || self.tensors.iter().copied().flatten().chain(known::TENSORS);
        let whole =
            names().find(|(known, ..)| *known == rest).map(|(_, to, change)| ((*to).to_owned(), *change));
        // Others, such as a scale, change what the tensor beside them means.
        let is_known = ["", "weight", "bias"].contains(&ending);
        whole.or_else(|| {
            let (_, to, change) = names().find(|(known, ..)| *known == stem && is_known)?;
            Some((format!("{to}.{ending}"), *change))
        })
    }
}

/// Tensors of one dimension by name.
pub(super) type Vectors = Vec<(String, Vec<f32>)>;

/// What the converter has done to a tensor, to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Unchanged, or stacked.
    Keep,
    /// Stored as a vector; originally `[1, n]`.
    Row,
    /// Dropped a dimension of one; originally `[channels, 1, taps]`.
    Taps,
    /// Dropped a dimension of one; `[channels, taps, 1]` where mlx-lm has converted.
    TapsLast,
    /// Reshaped; originally a vector.
    Flat,
    /// Added dimensions of one.
    Ones,
    /// Replaced `x` by `exp(x)`, perhaps with a dimension of one behind.
    Exponential,
    /// Replaced `x` by `-exp(x)`, perhaps with a dimension of one behind.
    NegatedExponential,
    /// Stacked several tensors: `#` in the name stands for the number of each.
    Each,
}

/// A setting that is the same in all files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fixed {
    Flag(bool),
    Text(&'static str),
    Null,
}

impl Fixed {
    fn value(self) -> Value {
        match self {
            Self::Flag(flag) => Value::Bool(flag),
            Self::Text(text) => text.into(),
            Self::Null => Value::Null,
        }
    }
}

/// The architecture with this name, if it is known.
pub(super) fn named(name: &str) -> Option<&'static Architecture> {
    known::ALL.iter().copied().find(|architecture| architecture.name == name)
}

/// The architecture of a file.
///
/// # Errors
///
/// [`Unsupported`](mlxcel_core::ErrorKind::Unsupported) for one that is not known, with those that are.
pub(super) fn find(gguf: &Gguf) -> Result<&'static Architecture> {
    let metadata = gguf.metadata();
    let name = metadata.text(ARCHITECTURE)?.ok_or_else(|| metadata.absent(ARCHITECTURE))?;
    named(name).ok_or_else(|| {
        let known = known::ALL.iter().map(|architecture| architecture.name).collect::<Vec<_>>().join(", ");
        let message = format!(
            "the architecture '{}' is not known in GGUF files; supported: {known}",
            name.escape_debug()
        );
        Error::unsupported(OPERATION, message)
            .with_context("key", ARCHITECTURE)
            .with_context("path", metadata.location)
    })
}

/// The whole key of the file's architecture.
pub(super) fn key(gguf: &Gguf, key: &str) -> Result<String> {
    Ok(Draft::new(gguf, find(gguf)?).key(key))
}

/// The settings of `config.json`.
pub(super) fn config(gguf: &Gguf) -> Result<Map<String, Value>> {
    let metadata = gguf.metadata();
    if metadata.text("general.type")? == Some("adapter") {
        let message =
            "the file holds only an adapter; open its base model with room for adapters and load it there";
        return Err(Error::unsupported(OPERATION, message).with_context("path", metadata.location));
    }
    let architecture = find(gguf)?;
    let mut draft = Draft::new(gguf, architecture);
    draft.common()?;
    (architecture.adapt)(&mut draft)?;
    rope::check_dimensions(&draft)?;
    Ok(draft.fields)
}

/// Where a tensor goes: its name for families, with `#` for the number of one of several, and what is to be
/// undone. None for one that is of no use to the network, such as what becomes a setting; an error for one
/// that has no place in the architecture.
pub(super) fn target(
    architecture: &Architecture,
    layers: usize,
    name: &str,
) -> std::result::Result<Option<(String, Change)>, ()> {
    const SETTINGS: [&str; 3] =
        ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
    let (layer, rest) = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((number, rest)) => (Some(number.parse::<usize>().map_err(|_| ())?), rest),
        None => (None, name),
    };
    // Older files have these for each layer.
    if SETTINGS.contains(&rest) || rest == "attn_rot_embd.weight" || rest.starts_with("rope_freqs") {
        return Ok(None);
    }
    // Behind the layers are those that predict several tokens at once, the first of which is the draft head.
    if layer.is_some_and(|layer| layer >= layers) {
        let head = architecture.draft_head.filter(|_| layer == Some(layers));
        return Ok(head.and_then(|head| head.target(architecture, layers, rest)));
    }
    let (to, change) = architecture.part(rest).ok_or(())?;
    let [base, layers] = architecture.base;
    Ok(Some(match layer {
        Some(layer) => (format!("{base}{layers}{layer}.{to}"), change),
        None if BESIDE.iter().any(|module| to.starts_with(module)) => (to, change),
        None => (format!("{base}{to}"), change),
    }))
}

/// Modules beside the network, whose names have no base.
const BESIDE: [&str; 4] = ["lm_head", "score", "2_Dense", "3_Dense"];

/// The tensors that the file has as settings.
pub(super) fn vectors(gguf: &Gguf, architecture: &'static Architecture) -> Result<Vectors> {
    (architecture.vectors)(&Draft::new(gguf, architecture))
}

/// How many layers the network has, without those that predict several tokens at once.
pub(super) fn layers(gguf: &Gguf, architecture: &'static Architecture) -> Result<usize> {
    Draft::new(gguf, architecture).layers()
}

#[cfg(test)]
mod tests;
