//! What there is to say about a checkpoint: its network, weights, states, and the engines that run it.

use std::collections::BTreeMap;
use std::fmt;

use mlxcel_models::{Checkpoint, Decoder, StateShape, WeightRef};
use mlxcel_session::mlxcel_core::{
    Capabilities, Capability, CapabilityValue, Error, ErrorKind, LoadOptions, Model, ModelPart, Result,
    SamplingField, one_line,
};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A checkpoint's account, printable and serialisable.
#[derive(Debug, Serialize)]
pub(crate) struct Inspection {
    pub(crate) model_type: String,
    /// What the user should know about what is left out.
    pub(crate) notes: Vec<String>,
    /// The network in words, a few lines.
    pub(crate) network: String,
    /// Whether it stores a draft head that `--speculate head` drafts with.
    pub(crate) draft_head: bool,
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    pub(crate) layers: usize,
    pub(crate) stop_tokens: Vec<u32>,
    /// The type in which the authors run activations.
    pub(crate) activations: String,
    pub(crate) parameters: u64,
    /// What they take in the files.
    pub(crate) weight_bytes: u64,
    /// How packed weights are packed, and how much is packed so; empty if none is.
    pub(crate) quantization: Vec<PackingShare>,
    pub(crate) weights: Vec<WeightGroup>,
    pub(crate) memory: Memory,
    /// The parts of the vocabulary that an engine must know to run it.
    pub(crate) features: Vec<&'static str>,
    pub(crate) engines: Vec<EngineAnswer>,
}

/// The weights that one packing packs.
#[derive(Debug, Default, Serialize)]
pub(crate) struct PackingShare {
    /// Its text, such as `u4/64 bf16 + bf16`.
    pub(crate) packing: String,
    /// The bits that a value takes, its share of scales and offsets included.
    pub(crate) bits_per_value: f64,
    pub(crate) weights: usize,
    pub(crate) parameters: u64,
    /// Their packed size, as loaded by engines with kernels for the packing.
    pub(crate) bytes: u64,
    /// What they take in the type of activations, as engines load them that must expand them.
    pub(crate) expanded_bytes: u64,
}

/// The weights of one role with the same storage format.
#[derive(Debug, Default, Serialize)]
pub(crate) struct WeightGroup {
    pub(crate) role: &'static str,
    pub(crate) storage: String,
    pub(crate) tensors: usize,
    pub(crate) parameters: u64,
    /// What they take in the files.
    pub(crate) bytes: u64,
}

/// What the states of sequences take, without what engines add to fill up pages and chunks.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    /// The positions of one sequence that it is stated for.
    pub(crate) capacity: usize,
    pub(crate) sequences: usize,
    /// The type of keys, values and latents; recurrent states are float32.
    pub(crate) cache_type: &'static str,
    /// For each layout of states what one sequence takes.
    pub(crate) groups: Vec<StateBytes>,
    /// Of all groups and sequences.
    pub(crate) bytes: u64,
    /// Of one sequence for each further position.
    pub(crate) bytes_per_position: u64,
}

/// What the states of layers with one layout take for one sequence.
#[derive(Debug, Serialize)]
pub(crate) struct StateBytes {
    /// `full`, `window`, `latent` or `fixed`.
    pub(crate) kind: &'static str,
    /// What one layer keeps, in words.
    pub(crate) layout: String,
    pub(crate) layers: usize,
    /// What all of them take.
    pub(crate) bytes: u64,
}

/// What an engine says to the checkpoint.
#[derive(Debug, Default, Serialize)]
pub(crate) struct EngineAnswer {
    pub(crate) engine: String,
    /// Nothing where it was not asked, or could not answer.
    pub(crate) runs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capabilities: Option<EngineCapabilities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) load_seconds: Option<f64>,
    /// Why it does not run the checkpoint, or could not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// What an engine claims for the checkpoint. Serialises as a map of the fields of [`Capabilities`], with all
/// of them in words as `summary`.
#[derive(Debug)]
pub(crate) struct EngineCapabilities(Capabilities);

impl Serialize for EngineCapabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self(claimed) = self;
        let mut map = serializer.serialize_map(Some(Capability::ALL.len() + 1))?;
        map.serialize_entry("summary", &claimed.to_string())?;
        for &capability in Capability::ALL {
            let name = capability.as_str();
            match claimed.value(capability) {
                CapabilityValue::Flag(claimed) => map.serialize_entry(name, &claimed)?,
                CapabilityValue::Limit(number) | CapabilityValue::Size(number) => {
                    map.serialize_entry(name, &number)?;
                }
                CapabilityValue::Fields(fields) => {
                    let fields: Vec<_> = fields.iter().map(SamplingField::as_str).collect();
                    map.serialize_entry(name, &fields)?;
                }
                other => map.serialize_entry(name, &format!("{other:?}"))?,
            }
        }
        map.end()
    }
}

/// What keys, values and latents are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheType {
    pub(crate) name: &'static str,
    /// Bytes of one value, scales of 8-bit values left out.
    pub(crate) bytes: usize,
}

impl CacheType {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name == name)
    }

    /// Every type.
    pub(crate) const ALL: [Self; 4] = [
        Self { name: "f32", bytes: 4 },
        Self { name: "bf16", bytes: 2 },
        Self { name: "f16", bytes: 2 },
        Self { name: "int8", bytes: 1 },
    ];
}

impl Inspection {
    /// The account of `checkpoint` but for engines, with states for `sequences` of `capacity` positions
    /// (defaults to the context), caches in `cache` (defaults to the checkpoint's own type of
    /// activations).
    ///
    /// # Errors
    ///
    /// Those of [`Checkpoint::decoder`], and [`ErrorKind::InvalidInput`] for a capacity beyond the context.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        capacity: Option<usize>,
        sequences: usize,
        cache: Option<CacheType>,
    ) -> Result<Self> {
        let decoder = checkpoint.decoder()?;
        let capacity = capacity.unwrap_or(decoder.context_length);
        if capacity > decoder.context_length {
            let message = "the model does not have this many positions";
            return Err(Error::new(ErrorKind::InvalidInput, "inspect", message)
                .with_context("capacity", capacity)
                .with_context("limit", decoder.context_length));
        }
        let own = CacheType::named(&decoder.element_type.to_string().to_lowercase());
        let cache = cache.or(own).unwrap_or(CacheType::ALL[0]);
        let weights = weight_groups(&decoder);
        let quantization = packing_shares(&decoder);
        let head = LoadOptions::default().with_part(ModelPart::DraftHead);
        let draft_head = checkpoint.decoder_for(&head).is_ok();
        Ok(Self {
            network: decoder.to_string(),
            draft_head,
            context: decoder.context_length,
            vocabulary: decoder.vocabulary_size,
            layers: decoder.layers.len(),
            stop_tokens: checkpoint.stop_tokens().to_vec(),
            activations: decoder.element_type.to_string(),
            parameters: decoder.parameters(),
            weight_bytes: decoder.weight_bytes(),
            quantization,
            weights,
            memory: Memory::new(&decoder, capacity, sequences, cache),
            features: decoder.features().iter().map(|feature| feature.name()).collect(),
            engines: Vec::new(),
            model_type: decoder.model_type,
            notes: decoder.notes,
        })
    }
}

fn packing_shares(decoder: &Decoder) -> Vec<PackingShare> {
    let mut shares = BTreeMap::new();
    for weight in decoder.weights() {
        let Some(packing) = weight.packing() else { continue };
        let share = shares.entry(packing.to_string()).or_insert_with(|| PackingShare {
            packing: packing.to_string(),
            bits_per_value: packing.bits_per_value(),
            ..PackingShare::default()
        });
        let values = weight.elements() as u64;
        share.weights += 1;
        share.parameters += values;
        share.bytes += weight_bytes(weight);
        share.expanded_bytes += values * decoder.element_type.bits() as u64 / 8;
    }
    shares.into_values().collect()
}

/// What a weight takes with all of its parts.
fn weight_bytes(weight: &WeightRef) -> u64 {
    weight.tensors().map(|tensor| tensor.byte_len() as u64).sum()
}

fn weight_groups(decoder: &Decoder) -> Vec<WeightGroup> {
    let mut groups = BTreeMap::new();
    for (weight, role) in decoder.weights().zip(decoder.weight_roles()) {
        let group = groups.entry((role, weight.storage())).or_insert_with(|| WeightGroup {
            role: role.name(),
            storage: weight.storage(),
            ..WeightGroup::default()
        });
        group.tensors += 1;
        group.parameters += weight.elements() as u64;
        group.bytes += weight_bytes(weight);
    }
    groups.into_values().collect()
}

impl Memory {
    fn new(decoder: &Decoder, capacity: usize, sequences: usize, cache: CacheType) -> Self {
        let mut groups = Vec::new();
        let (mut bytes, mut bytes_per_position) = (0, 0);
        for group in decoder.state_groups() {
            let (kind, layout, width) = match &group.shape {
                StateShape::Cache { kv_heads, head_dim, window: None } => {
                    ("full", format!("keys and values of {kv_heads} heads of {head_dim}"), cache.bytes)
                }
                StateShape::Cache { kv_heads, head_dim, window: Some(window) } => {
                    let layout =
                        format!("keys and values of {kv_heads} heads of {head_dim}, of {window} positions");
                    ("window", layout, cache.bytes)
                }
                StateShape::Latent { width } => ("latent", format!("latents of {width}"), cache.bytes),
                StateShape::Fixed { shape } => ("fixed", format!("{shape:?} whatever the length"), 4),
            };
            let of = |positions| (group.shape.values(positions) * group.layers * width) as u64;
            bytes += of(capacity);
            bytes_per_position += of(capacity + 1) - of(capacity);
            groups.push(StateBytes { kind, layout, layers: group.layers, bytes: of(capacity) });
        }
        bytes *= sequences as u64;
        Self { capacity, sequences, cache_type: cache.name, groups, bytes, bytes_per_position }
    }
}

/// The text for people.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.network)?;
        if self.draft_head {
            writeln!(f, "  draft head stored: `--speculate head` drafts with it")?;
        }
        writeln!(f)?;
        writeln!(f, "weights")?;
        for WeightGroup { role, storage, tensors, parameters, bytes } in &self.weights {
            let (parameters, bytes) = (scaled(*parameters, ""), scaled(*bytes, "B"));
            writeln!(f, "  {role:<10} {tensors:>6} tensors {parameters:>9} {bytes:>9}  {storage}")?;
        }
        if !self.quantization.is_empty() {
            writeln!(f, "\npackings")?;
        }
        for PackingShare { packing, bits_per_value, weights, parameters, bytes, expanded_bytes } in
            &self.quantization
        {
            let parameters = scaled(*parameters, "");
            let (bytes, expanded) = (scaled(*bytes, "B"), scaled(*expanded_bytes, "B"));
            writeln!(
                f,
                "  {packing:<24} {bits_per_value:>5.2} bits a value, {weights} weights of {parameters} in {bytes}, expanded {expanded}"
            )?;
        }
        let Memory { capacity, sequences, cache_type, groups, bytes, bytes_per_position } = &self.memory;
        writeln!(f, "\nstate of a sequence of {capacity} positions, caches in {cache_type}")?;
        for StateBytes { kind, layout, layers, bytes } in groups {
            writeln!(f, "  {kind:<10} {layers:>6} layers  {:>19}  {layout}", scaled(*bytes, "B"))?;
        }
        let (bytes, each) = (scaled(*bytes, "B"), scaled(*bytes_per_position, "B"));
        writeln!(f, "  {bytes} for {sequences} sequences, {each} for each further position of one")?;
        writeln!(f, "\nneeds       {}", self.features.join(", "))?;
        writeln!(f, "\nengines")?;
        for answer in &self.engines {
            write!(f, "  {:<10} {}", answer.engine, answer.words())?;
            if let Some(claimed) = &answer.capabilities {
                write!(f, ", loaded in {:.1} s: {}", answer.load_seconds.unwrap_or_default(), claimed.0)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A number with three digits and a unit.
fn scaled(number: u64, unit: &str) -> String {
    let mut value = number as f64;
    let mut prefix = "";
    for next in ["K", "M", "G", "T"] {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        prefix = next;
    }
    let digits = match value {
        _ if prefix.is_empty() => 0,
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$} {prefix}{unit}").trim_end().to_owned()
}

impl EngineAnswer {
    /// That of an engine that was not asked.
    pub(crate) fn not_asked(engine: &str) -> Self {
        Self { engine: engine.to_owned(), ..Self::default() }
    }

    /// That of an engine that was asked to load the checkpoint.
    pub(crate) fn of(engine: &str, loaded: std::result::Result<&(dyn Model + 'static), &Error>) -> Self {
        let answer = Self::not_asked(engine);
        match loaded {
            Ok(model) => Self {
                runs: Some(true),
                capabilities: Some(EngineCapabilities(model.capabilities().clone())),
                load_seconds: Some(model.info().load_time.as_secs_f64()),
                ..answer
            },
            // Any other error concerns the machine, not the checkpoint.
            Err(error) => Self {
                runs: (error.kind() == ErrorKind::Unsupported).then_some(false),
                error: Some(one_line(error)),
                ..answer
            },
        }
    }

    /// What it says, in words.
    pub(crate) fn words(&self) -> String {
        match (self.runs, self.error.as_deref()) {
            (Some(true), _) => "runs it".to_owned(),
            (Some(false), error) => format!("does not run it: {}", error.unwrap_or_default()),
            (None, Some(error)) => format!("cannot tell: {error}"),
            (None, None) => "not asked".to_owned(),
        }
    }
}
