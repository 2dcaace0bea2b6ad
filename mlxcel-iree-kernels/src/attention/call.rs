//! The operands and attributes of a composite of attention over caches.

use mlxcel_graph::composites::LATENT_ATTENTION;
use mlxcel_stablehlo::{Attribute, Composite, Value};

use crate::context::{self, knows_attributes};

/// A composite `mlxcel.cached_attention` or `mlxcel.latent_attention`, decoded.
pub(super) struct Call<'a, 'f> {
    /// The queries.
    pub(super) query: Value<'f>,
    /// None for latent attention.
    pub(super) value: Option<Value<'f>>,
    pub(super) tables: Option<[Value<'f>; 2]>,
    pub(super) positions: Value<'f>,
    pub(super) sinks: Option<Value<'f>>,
    pub(super) caches: &'a [Value<'f>],
    /// How many tokens each row has.
    pub(super) rows: Vec<usize>,
    pub(super) settings: Settings,
}

/// The attributes that all composites of attention share, where they have them.
pub(super) struct Settings {
    pub(super) scale: f32,
    pub(super) soft_cap: Option<f32>,
    pub(super) window: Option<usize>,
    /// Whether the window is the length of chunks.
    pub(super) chunked: bool,
    /// Whether there are cosines and sines among the operands.
    rotary: bool,
    /// Whether there are sinks among them.
    pub(super) sinks: bool,
}

impl Settings {
    /// None if the composite has attributes that are not `known`, or of other types.
    pub(super) fn of(composite: &Composite<'_, '_>, known: &[&str]) -> Option<Self> {
        if !knows_attributes(composite, known) {
            return None;
        }
        let flag = |name, default| match composite.attribute(name) {
            Some(&Attribute::Bool(value)) => Some(value),
            Some(_) => None,
            None => Some(default),
        };
        let Some(&Attribute::Float(scale)) = composite.attribute("scale") else { return None };
        let soft_cap = match composite.attribute("soft_cap") {
            Some(&Attribute::Float(cap)) => Some(cap),
            Some(_) => return None,
            None => None,
        };
        let window = match composite.attribute("window") {
            Some(&Attribute::Int(window)) => Some(usize::try_from(window).ok()?),
            Some(_) => return None,
            None => None,
        };
        let (chunked, rotary, sinks) =
            (flag("chunked", false)?, flag("rotary", true)?, flag("sinks", false)?);
        Some(Self { scale, soft_cap, window, chunked, rotary, sinks })
    }
}

impl<'a, 'f> Call<'a, 'f> {
    /// None if the composite has unknown attributes, or attributes of other types.
    pub(super) fn of(composite: &Composite<'a, 'f>) -> Option<Self> {
        let latent = composite.name == LATENT_ATTENTION;
        let known: &[_] = if latent {
            &["layer", "rows", "scale"]
        } else {
            &["layer", "rows", "scale", "soft_cap", "window", "chunked", "rotary", "sinks"]
        };
        let settings = Settings::of(composite, known)?;
        let rows = context::rows(composite)?;
        let (&[query, _], operands) = composite.operands.split_first_chunk()?;
        let (value, operands) = take(operands, !latent)?;
        let (cos, operands) = take(operands, settings.rotary)?;
        let (sin, operands) = take(operands, settings.rotary)?;
        let (&positions, operands) = operands.split_first()?;
        let (sinks, caches) = take(operands, settings.sinks)?;
        Some(Self {
            query,
            value,
            tables: cos.zip(sin).map(|(cos, sin)| [cos, sin]),
            positions,
            sinks,
            caches,
            rows,
            settings,
        })
    }
}

/// The first of `operands` if it is `wanted`, and the remaining operands; none if it is missing.
fn take<'a, 'f>(operands: &'a [Value<'f>], wanted: bool) -> Option<(Option<Value<'f>>, &'a [Value<'f>])> {
    if !wanted {
        return Some((None, operands));
    }
    let (&first, others) = operands.split_first()?;
    Some((Some(first), others))
}
