//! What rewriting composites into calls of kernels knows and collects.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use mlxcel_core::Precision;
use mlxcel_stablehlo::{Attribute, Builder, Composite, Value};

use crate::instructions::Instructions;
use crate::kernels::Kernels;
use crate::layout::{TensorRole, WeightLayout};
use crate::rms_norm::Norm;

/// The context of rewriting composites, and what it collects.
#[derive(Debug)]
pub(crate) struct Context {
    /// The instructions that kernels may use.
    pub(crate) instructions: Instructions,
    /// The precision to which kernels may round.
    pub(crate) precision: Precision,
    /// The arguments that cannot lie in panels, by name.
    pub(crate) as_stored: HashSet<String>,
    /// The arguments that kernels want in panels, by name, with their contents.
    pub(crate) asked: RefCell<HashMap<String, TensorRole>>,
    /// The kernels so far.
    pub(crate) kernels: Kernels,
    /// Those of them that are norms, by name.
    pub(crate) norms: HashMap<String, Norm>,
}

impl Context {
    pub(crate) fn new(instructions: Instructions, precision: Precision, as_stored: HashSet<String>) -> Self {
        Self {
            instructions,
            precision,
            as_stored,
            asked: RefCell::default(),
            kernels: Kernels::default(),
            norms: HashMap::new(),
        }
    }

    /// Whether a kernel gets `value` in panels, with elements `contents`: an argument that nothing reads as
    /// stored.
    pub(crate) fn in_panels<'f>(&self, b: &Builder<'f>, value: Value<'f>, contents: TensorRole) -> bool {
        let layout = WeightLayout::of(contents, &b.ty(value).shape, Some(self.instructions.lanes()));
        let Some(name) = b.argument_name(value) else { return false };
        layout != WeightLayout::Rows
            && !self.as_stored.contains(name)
            && *self.asked.borrow_mut().entry(name.to_owned()).or_insert(contents) == contents
    }
}

/// The tokens of each row, from the attribute `rows`; none if it is missing or something else.
pub(crate) fn rows(composite: &Composite<'_, '_>) -> Option<Vec<usize>> {
    let Some(Attribute::Text(rows)) = composite.attribute("rows") else { return None };
    rows.split(',').map(|tokens| tokens.parse().ok()).collect()
}

/// The attribute `layer`; none if it is missing or something else. It is no part of what a kernel computes,
/// since calls of all layers share kernels.
pub(crate) fn layer(composite: &Composite<'_, '_>) -> Option<i32> {
    let Some(&Attribute::Int(layer)) = composite.attribute("layer") else { return None };
    i32::try_from(layer).ok()
}

/// Whether all attributes of `composite` are in `known`. An unknown one may change what it computes, so such
/// a composite keeps its decomposition.
pub(crate) fn knows_attributes(composite: &Composite<'_, '_>, known: &[&str]) -> bool {
    composite.attributes.iter().all(|(name, _)| known.contains(&name.as_str()))
}
