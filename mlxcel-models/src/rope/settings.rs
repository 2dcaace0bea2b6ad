//! Rotary embedding fields of `config.json`, in both layouts.

use mlxcel_core::Result;

use super::llama3::Llama3;
use super::longrope::LongFactors;
use super::yarn::Yarn;
use super::{LongRope, Rope, frequencies};
use crate::config::Fields;

const SCALING: &str = "rope_scaling";
const PARAMETERS: &str = "rope_parameters";
const ORIGINAL: &str = "original_max_position_embeddings";
const PARTIAL: &str = "partial_rotary_factor";
/// Whether the converter of a GGUF file has put the rows of rotated elements beside each other in pairs,
/// whatever the family.
pub(crate) const ROWS_IN_PAIRS: &str = "rotated_in_pairs";
/// Explicit frequency divisors, as GGUF files have them instead of a formula.
const FACTORS: &str = "freq_factors";
/// The kind of scaling that leaves a part of the pairs as they are.
const PROPORTIONAL: &str = "proportional";
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// How a family reads its rotary embedding, and what it assumes where the settings are silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeSettings<'a> {
    /// The model's settings.
    pub(crate) config: Fields<'a>,
    /// The width of a head.
    pub(crate) head_dim: usize,
    /// The most positions of a sequence.
    pub(crate) context_length: usize,
    /// The key beside `rope_scaling` that gives the base of the frequencies.
    pub(crate) theta_key: &'static str,
    /// The base where no setting gives one.
    pub(crate) theta: f64,
    /// Whether only a part of each head is rotated.
    pub(crate) partial: Partial,
    /// Whether adjacent elements are pairs.
    pub(crate) interleaved: bool,
    /// The kinds of scaling that the family supports.
    pub(crate) kinds: Kinds,
}

/// Whether a family rotates parts of heads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Partial {
    /// Complete heads.
    Whole,
    /// Complete heads, whatever `partial_rotary_factor` says, which only scalings read.
    Unscaled,
    /// The fraction `partial_rotary_factor` of the rope settings object, or this key outside of it.
    Part {
        /// The key.
        key: &'static str,
        /// The factor if there is none.
        default: f64,
    },
    /// The fraction `partial_rotary_factor` of the rope settings object, which no key outside of it sets.
    Inner {
        /// The factor if there is none.
        default: f64,
    },
    /// The same as `Part`, where an odd number of elements means nothing.
    Even {
        /// The key.
        key: &'static str,
        /// The factor if there is none.
        default: f64,
    },
}

/// The kinds of scaling that a family supports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kinds {
    /// All types.
    All,
    /// All types; `dynamic` with an `alpha` multiplies the base by `alpha^(dim / (dim − 2))`, whatever the
    /// length (Hunyuan; the NTK-aware scaling of bloc97, 2023).
    NtkAlpha,
    /// Phi-3.5-MoE's: none, or LongRoPE with a factor of cosines and sines for sequences within the original
    /// context and another for longer ones. The divisors of longer sequences are read and, as in
    /// transformers, not used.
    ScaledLongRope,
    /// Phi-3's: none, or LongRoPE, whose older names are `su` and `yarn`.
    LongRope {
        /// The original context where the settings have none.
        original_context: usize,
    },
}

/// The rotary embeddings of layers that see everything and of those that see a window.
#[derive(Clone, Debug)]
pub(crate) struct LayerRopes {
    pub(crate) full: Rope,
    pub(crate) sliding: Rope,
}

/// Whether settings describe a rotary embedding. If they do not, a family may assume one, whose original
/// context is `original`: transformers would put what they say beside it into that one.
pub(crate) fn is_described(config: Fields<'_>, original: f64) -> Result<bool> {
    if config.object(SCALING)?.is_some() || config.get(PARAMETERS).is_some() {
        return Ok(true);
    }
    for (key, assumed) in [(ORIGINAL, original), (PARTIAL, 1.0)] {
        if let Some(number) = config.number(key)?.filter(|number| *number != assumed) {
            let message = format!("{number} is not supported without {PARAMETERS}; {assumed} is assumed");
            return Err(config.unsupported(key, message));
        }
    }
    Ok(false)
}

/// The key that names the kind of scaling, and the kind.
fn kind_of(scaling: Fields<'_>) -> Result<(&'static str, &str)> {
    let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
    Ok((key, scaling.text(key)?.unwrap_or("default")))
}

/// Refuses a `rope_scaling` that transformers would not read alone, because it adds it to settings of a layer
/// type, `other`, whose kind has the newer name: these it would complete, and a kind by the older name it
/// would not see.
pub(crate) fn refuse_parts(scaling: Fields<'_>, other: Option<Fields<'_>>) -> Result<()> {
    let (key, kind) = kind_of(scaling)?;
    if key == "type" && kind != "default" {
        let message = format!("'{}' is not supported under this name, but as rope_type", kind.escape_debug());
        return Err(scaling.unsupported(key, message));
    }
    let is_new = |key: &&str| !matches!(*key, "type" | "rope_theta") && !scaling.mentions(key);
    match other.and_then(|other| other.keys().find(is_new).map(|key| (other, key))) {
        Some((other, key)) => {
            let message = format!("it is not supported in addition to {SCALING}, which does not have it");
            Err(other.unsupported(key, message))
        }
        None => Ok(()),
    }
}

/// Where settings of one rotary embedding are looked for.
struct Place<'a> {
    /// The object of rotary settings.
    scaling: Option<Fields<'a>>,
    /// The object that says whether YaRN truncates: in settings by layer type that around those of the types,
    /// where transformers looks for it.
    truncate: Option<Fields<'a>>,
    theta: f64,
    /// The original context where `scaling` has none; one outside of it goes before it.
    outer_original: Option<f64>,
}

impl<'a> RopeSettings<'a> {
    /// Complete heads.
    pub(crate) fn new(config: Fields<'a>, head_dim: usize, context_length: usize) -> Self {
        Self {
            config,
            head_dim,
            context_length,
            theta_key: "rope_theta",
            theta: 10_000.0,
            partial: Partial::Whole,
            interleaved: false,
            kinds: Kinds::All,
        }
    }

    /// Reads one rotary embedding for all layers, in either layout: `rope_parameters` with all settings, or
    /// `rope_theta` beside `rope_scaling`. A theta inside the object goes before one outside, and
    /// `rope_scaling` before `rope_parameters`, as in transformers.
    pub(crate) fn read(&self) -> Result<Rope> {
        let scaling = match self.config.object(SCALING)? {
            Some(scaling) => Some(scaling),
            None => self.config.object(PARAMETERS)?,
        };
        for layer_type in LAYER_TYPES {
            if let Some(nested) = scaling.filter(|scaling| scaling.get(layer_type).is_some()) {
                let message =
                    "rotary settings by layer type are not supported for this model_type".to_owned();
                return Err(nested.unsupported(layer_type, message));
            }
        }
        let outer = self.config.positive(ORIGINAL)?;
        let outer_original = match self.kinds {
            Kinds::All | Kinds::NtkAlpha => outer,
            // transformers does not read the outer one for this class.
            Kinds::ScaledLongRope => None,
            Kinds::LongRope { original_context } => Some(outer.unwrap_or(original_context as f64)),
        };
        let theta = self.config.positive(self.theta_key)?.unwrap_or(self.theta);
        self.read_at(&Place { scaling, truncate: scaling, theta, outer_original })
    }

    /// The rotary embedding of Llama 3.1's scaling, whatever the settings say about scaling.
    pub(crate) fn llama3(&self, scaling: Llama3) -> Result<Rope> {
        let place = Place { scaling: None, truncate: None, theta: self.theta, outer_original: None };
        let mut rope = self.read_at(&place)?;
        scaling.apply(&mut rope.inv_freq);
        Ok(rope)
    }

    /// Reads one for each type of layer: `rope_parameters.full_attention` and
    /// `rope_parameters.sliding_attention`, or in the older layout `rope_theta` and `rope_scaling` for
    /// the former and `local.0` for the latter, whose base defaults to `local.1`.
    pub(crate) fn read_by_layer_type(&self, local: (Option<&str>, f64)) -> Result<LayerRopes> {
        let parameters = self.config.object(PARAMETERS)?;
        let nested = |layer_type: &str| match parameters {
            Some(parameters) => parameters.object(layer_type),
            None => Ok(None),
        };
        let [full, sliding] = [nested(LAYER_TYPES[0])?, nested(LAYER_TYPES[1])?];
        let theta_of = |object: Option<Fields<'a>>| match object {
            Some(object) => object.positive("rope_theta"),
            None => Ok(None),
        };
        let theta = match theta_of(full)? {
            Some(theta) => theta,
            None => self.config.positive(self.theta_key)?.unwrap_or(self.theta),
        };
        let scaling = match self.config.object(SCALING)? {
            Some(scaling) => {
                refuse_parts(scaling, full)?;
                Some(scaling)
            }
            None => full,
        };
        let full = self.read_at(&Place { scaling, truncate: parameters, theta, outer_original: None })?;
        let theta = match local.0 {
            Some(key) => self.config.positive(key)?.unwrap_or(local.1),
            None => local.1,
        };
        let sliding =
            self.read_at(&Place { scaling: sliding, truncate: parameters, theta, outer_original: None })?;
        Ok(LayerRopes { full, sliding })
    }

    fn read_at(&self, place: &Place<'a>) -> Result<Rope> {
        let &Place { scaling, truncate, theta, outer_original } = place;
        let theta = match scaling {
            Some(scaling) => scaling.positive("rope_theta")?.unwrap_or(theta),
            None => theta,
        };
        // Of those whose heads turn as a whole by other settings.
        let fits = matches!(
            (self.kinds, self.partial),
            (Kinds::All | Kinds::NtkAlpha, Partial::Whole | Partial::Unscaled)
        );
        let (key, kind) = scaling.map(kind_of).transpose()?.unwrap_or(("rope_type", "default"));
        if fits && kind == PROPORTIONAL {
            let number = |key, default| match scaling {
                Some(scaling) => Ok(scaling.positive(key)?.unwrap_or(default)),
                None => Ok(default),
            };
            let outer = self.config.positive(PARTIAL)?.unwrap_or(1.0);
            return self.proportional(theta, number(PARTIAL, outer)?, number("factor", 1.0)?);
        }
        let dim = self.rotated(scaling, kind)?;
        let mut rope = Rope {
            rotary_dim: dim + dim % 2,
            inv_freq: frequencies(theta, dim),
            attention_factor: 1.0,
            interleaved: self.config.flag(ROWS_IN_PAIRS)?.unwrap_or(self.interleaved),
            delay: 0,
            long: None,
        };
        let Some(scaling) = scaling else { return Ok(rope) };
        // transformers lets the outer field win where both are there.
        let original = || match outer_original {
            Some(length) => Ok(length),
            None => Ok(scaling.positive(ORIGINAL)?.unwrap_or(self.context_length as f64)),
        };
        // These scale pairs by themselves, and transformers counts half a pair less than it has frequencies.
        if dim % 2 == 1 && matches!(kind, "yarn" | "longrope" | "su") {
            let message = format!("rope of type '{kind}' is not supported for {dim} elements of a head");
            return Err(scaling.unsupported(key, message));
        }
        match (self.kinds, kind) {
            (_, "default") => {}
            // The base grows once a sequence exceeds `max_position_embeddings`; engines bound sequences to
            // that.
            (Kinds::NtkAlpha, "dynamic") if scaling.number("alpha")?.is_some_and(|alpha| alpha != 0.0) => {
                let stretch = scaling.required_positive("alpha")?.powf(dim as f64 / (dim as f64 - 2.0));
                if !stretch.is_finite() {
                    let message = format!("heads of {dim} elements have no stretched frequencies");
                    return Err(scaling.unsupported("alpha", message));
                }
                rope.inv_freq = frequencies(theta * stretch, dim);
            }
            (Kinds::All | Kinds::NtkAlpha, "dynamic") => {
                scaling.required_positive("factor")?;
            }
            (Kinds::All | Kinds::NtkAlpha, "linear") => {
                let factor = scaling.required_positive("factor")? as f32;
                rope.inv_freq.iter_mut().for_each(|frequency| *frequency /= factor);
            }
            (_, FACTORS) => {
                let factors = scaling.positives(FACTORS)?.ok_or_else(|| scaling.absent(FACTORS))?;
                if factors.len() != rope.inv_freq.len() {
                    let message =
                        format!("{} factors are given for {} pairs", factors.len(), rope.inv_freq.len());
                    return Err(scaling.wrong(FACTORS, message));
                }
                for (frequency, factor) in rope.inv_freq.iter_mut().zip(factors) {
                    *frequency /= factor as f32;
                }
            }
            (Kinds::All | Kinds::NtkAlpha, "llama3") => {
                Llama3::read(scaling, original()?)?.apply(&mut rope.inv_freq)
            }
            (Kinds::All | Kinds::NtkAlpha, "yarn") => {
                let truncate = match truncate {
                    Some(object) => object.flag("truncate")?.unwrap_or(true),
                    None => true,
                };
                let yarn = Yarn::read(scaling, truncate, original()?, self.context_length)?;
                rope.inv_freq = yarn.frequencies(theta, dim);
                rope.attention_factor = yarn.attention_factor;
            }
            (Kinds::ScaledLongRope, "longrope") => {
                let factors =
                    LongFactors::read(scaling, rope.inv_freq.len(), original()?, self.context_length)?;
                let (short, long) = factors.frequencies(theta, dim);
                let scale = |key: &str| scaling.number(key)?.ok_or_else(|| scaling.absent(key));
                rope.attention_factor = scale("short_mscale")? as f32;
                let attention_factor = Some(scale("long_mscale")? as f32);
                rope.long = Some(LongRope { inv_freq: short.clone(), attention_factor, ..long });
                rope.inv_freq = short;
            }
            (_, "longrope") | (Kinds::LongRope { .. }, "su" | "yarn") => {
                let factors =
                    LongFactors::read(scaling, rope.inv_freq.len(), original()?, self.context_length)?;
                let (short, long) = factors.frequencies(theta, dim);
                rope.attention_factor = factors.attention_factor;
                rope.inv_freq = short;
                rope.long = Some(long);
            }
            (kinds, other) => {
                let known = match kinds {
                    Kinds::All | Kinds::NtkAlpha if fits => {
                        "default, dynamic, linear, llama3, proportional, yarn and longrope are"
                    }
                    Kinds::All | Kinds::NtkAlpha => "default, dynamic, linear, llama3, yarn and longrope are",
                    Kinds::ScaledLongRope | Kinds::LongRope { .. } => "default and longrope are",
                };
                let message = format!(
                    "rope of type '{}' is not supported for this model_type; {known}",
                    other.escape_debug()
                );
                return Err(scaling.unsupported(key, message));
            }
        }
        let long = rope.long.iter().flat_map(|LongRope { inv_freq, .. }| inv_freq);
        if rope.inv_freq.iter().chain(long).all(|frequency| frequency.is_finite())
            && rope.attention_factor.is_finite()
        {
            return Ok(rope);
        }
        Err(scaling.wrong(key, "these settings give infinite frequencies".to_owned()))
    }

    /// The rotary embedding of layers of one type, by `rope_parameters`, which must have the type; `None`
    /// without `rope_parameters`.
    pub(crate) fn read_type(&self, layer_type: &str) -> Result<Option<Rope>> {
        let Some(parameters) = self.config.object(PARAMETERS)? else { return Ok(None) };
        let Some(scaling) = parameters.object(layer_type)? else { return Err(parameters.absent(layer_type)) };
        let theta = scaling.required_positive("rope_theta")?;
        let place = Place { scaling: Some(scaling), truncate: Some(parameters), theta, outer_original: None };
        let partial = match (self.partial, kind_of(scaling)?.1) {
            // The default is not one of scalings.
            (Partial::Inner { default: _ }, kind) if kind != "default" => Partial::Inner { default: 1.0 },
            (partial, _) => partial,
        };
        Self { partial, ..*self }.read_at(&place).map(Some)
    }

    /// [`read_type`](Self::read_type), or what is `assumed` without `rope_parameters`. `rope_scaling` beside it
    /// is refused: transformers does not read it for such families.
    pub(crate) fn read_type_or(
        &self,
        layer_type: &str,
        assumed: impl FnOnce(&Self) -> Result<Rope>,
    ) -> Result<Rope> {
        if self.config.object(SCALING)?.is_some() {
            let message = format!("settings by layer type, in {PARAMETERS}, are supported alone");
            return Err(self.config.unsupported(SCALING, message));
        }
        self.read_type(layer_type)?.map_or_else(|| assumed(self), Ok)
    }

    /// The rotary embedding of this base, or another in `scaling`, which becomes settings of one type of layers
    /// in transformers.
    pub(crate) fn read_with(&self, scaling: Option<Fields<'a>>, theta: f64) -> Result<Rope> {
        self.read_at(&Place { scaling, truncate: None, theta, outer_original: None })
    }

    /// Pairs of complete heads, of which only the first `part` turn, with the frequencies that they have
    /// where all turn, divided by `factor` (Gemma 4).
    pub(crate) fn proportional(&self, theta: f64, part: f64, factor: f64) -> Result<Rope> {
        let turning = (part * self.head_dim as f64 / 2.0) as usize;
        if self.head_dim % 2 == 1 || part > 1.0 {
            let message =
                format!("heads of {} elements cannot be rotated in pairs, {part} of them", self.head_dim);
            return Err(self.config.wrong("head_dim", message));
        }
        let mut inv_freq = frequencies(theta, self.head_dim);
        inv_freq.iter_mut().skip(turning).for_each(|frequency| *frequency = 0.0);
        inv_freq.iter_mut().for_each(|frequency| *frequency /= factor as f32);
        Ok(Rope {
            rotary_dim: self.head_dim,
            inv_freq,
            attention_factor: 1.0,
            interleaved: self.interleaved,
            delay: 0,
            long: None,
        })
    }

    /// How many elements of a head are rotated; an odd number has a pair of its own for the last.
    fn rotated(&self, scaling: Option<Fields<'_>>, kind: &str) -> Result<usize> {
        let inner = scaling.filter(|scaling| scaling.mentions(PARTIAL));
        let (fields, key) = match (inner, self.partial) {
            (Some(inner), _) => (inner, PARTIAL),
            (None, Partial::Part { key, .. } | Partial::Even { key, .. }) => (self.config, key),
            (None, Partial::Whole | Partial::Unscaled | Partial::Inner { .. }) => (self.config, PARTIAL),
        };
        let is_ignored = kind == "default" && matches!(self.partial, Partial::Whole | Partial::Unscaled);
        let given = match (inner, self.partial) {
            (None, Partial::Inner { .. }) => None,
            (_, Partial::Unscaled) if is_ignored => None,
            // Beside other settings a null keeps transformers from assuming the family's factor.
            (None, Partial::Part { .. } | Partial::Even { .. }) if fields.is_null(key) && key == PARTIAL => {
                Some(1.0)
            }
            (Some(_), _) | (None, Partial::Part { .. } | Partial::Even { .. })
                if fields.is_null(key) && !is_ignored =>
            {
                return Err(fields.wrong(key, "null should be a number".to_owned()));
            }
            _ => fields.number(key)?,
        };
        let factor = match (given, self.partial) {
            (Some(factor), Partial::Part { .. } | Partial::Inner { .. } | Partial::Even { .. }) => factor,
            (
                None,
                Partial::Part { default, .. } | Partial::Inner { default } | Partial::Even { default, .. },
            ) => default,
            (None | Some(1.0), Partial::Whole | Partial::Unscaled) => 1.0,
            (Some(factor), Partial::Whole | Partial::Unscaled) => {
                let message =
                    format!("rotating only {factor} of each head is not supported for this model_type");
                return Err(fields.unsupported(key, message));
            }
        };
        let dim = (self.head_dim as f64 * factor) as usize;
        if dim % 2 == 1 && matches!(self.partial, Partial::Even { .. }) {
            let message = format!("rotating {dim} elements of each head is not supported, an even number is");
            return Err(fields.unsupported(key, message));
        }
        // An odd number has room for the other element of its last pair.
        if dim == 0 || dim > self.head_dim || dim + dim % 2 > self.head_dim {
            let message = match self.partial {
                Partial::Whole | Partial::Unscaled => "the number should be even".to_owned(),
                Partial::Part { .. } | Partial::Inner { .. } | Partial::Even { .. } => {
                    format!("{factor} of them are rotated, which should be an even number")
                }
            };
            let message =
                format!("heads of {} elements cannot be rotated in pairs; {message}", self.head_dim);
            return Err(self.config.wrong("head_dim", message));
        }
        Ok(dim)
    }
}
