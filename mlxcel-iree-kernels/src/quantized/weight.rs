//! The parts of a packed weight as views of their buffers.

use mlxcel_graph::packed::operand_parts;
use mlxcel_models::{ElementType, Part};

use super::form::Form;
use crate::view::View;

/// The views of all parts, in one layout.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    codes: View,
    others: Vec<(Part, View)>,
}

impl Weight {
    /// Views of the parts of a form, each as `view` makes it of the part's index and name.
    pub(super) fn new(form: &Form, mut view: impl FnMut(usize, Part) -> View) -> Self {
        let codes = view(0, Part::Codes);
        let parts = operand_parts(&form.packing).enumerate().skip(1);
        let others = parts.map(|(index, part)| (part, view(index, part))).collect();
        Self { codes, others }
    }

    /// The codes: in panels words `[panels, words, lanes]`, in stored rows 16 bits each.
    pub(super) fn codes(&self) -> &View {
        &self.codes
    }

    /// A part that the packing has.
    pub(super) fn part(&self, part: Part) -> &View {
        self.others.iter().find(|(name, _)| *name == part).map_or(&self.codes, |(_, view)| view)
    }
}

impl Form {
    /// The elements of a part per output, and their type, if the weight is in panels.
    pub(super) fn in_panels(&self, part: Part) -> (usize, &'static str) {
        match part {
            Part::Codes => (self.words(), self.word()),
            _ => (self.packing.width(part, self.inputs), element(self.packing.element(part))),
        }
    }

    /// The same for rows as stored.
    pub(super) fn as_stored(&self, part: Part) -> (usize, &'static str) {
        match part {
            Part::Codes => (self.inputs * self.packing.bits / 16, "i16"),
            _ => self.in_panels(part),
        }
    }
}

/// An element type without its signedness.
pub(super) fn element(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "f16",
        ElementType::BF16 => "bf16",
        ElementType::U8 | ElementType::I8 => "i8",
        _ => "f32",
    }
}

/// The name in labels.
pub(super) fn name(part: Part) -> &'static str {
    match part {
        Part::Codes => "codes",
        Part::Scales => "scales",
        Part::ScaleFactors => "scale_factors",
        Part::Offsets => "offsets",
        Part::OffsetFactors => "offset_factors",
        Part::Order => "order",
    }
}
