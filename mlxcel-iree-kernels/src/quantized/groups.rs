//! Scales and offsets of groups, in any storage format.

use mlxcel_models::packing::{Offset, Scale};
use mlxcel_models::{Packing, Part};

use super::extent::{Extent, SmallFloat};
use super::weight::Weight;
use crate::view::Locality;
use crate::writer::Writer;

/// The groups of one row, or of the rows of a panel.
pub(super) struct Groups<'a> {
    pub(super) packing: Packing,
    pub(super) weight: &'a Weight,
    pub(super) extent: Extent,
    /// The index before that of a group, and the one after it.
    pub(super) before: &'a str,
    pub(super) behind: Option<&'a str>,
}

impl Groups<'_> {
    /// The scale of a group times `factor`, a power of two.
    pub(super) fn scale(&self, w: &mut Writer, group: &str, factor: f32) -> String {
        let (extent, part) = (self.extent, Part::Scales);
        let (scale, factor) = match self.packing.scale {
            Scale::Float(_) => (self.float(w, part, group), factor),
            Scale::E8M0 => {
                let ty = extent.ty("i32");
                let byte = self.load(w, part, group, "i8");
                let exponent = extent.cast(w, "extui", &byte, "i8", "i32");
                let place = extent.constant(w, 23, "i32");
                let bits = w.arith("bits", "shli", &exponent, &place, &ty);
                // 2^-127, with exponent 0, is subnormal; the bits of every other power are larger.
                let least = extent.constant(w, 1 << 22, "i32");
                let bits = w.arith("bits", "maxsi", &bits, &least, &ty);
                (extent.cast(w, "bitcast", &bits, "i32", "f32"), factor)
            }
            Scale::E4M3 => {
                let byte = self.load(w, part, group, "i8");
                let bits = extent.cast(w, "extui", &byte, "i8", "i16");
                let eight = extent.constant(w, 8, "i16");
                let bits = w.arith("bits", "shli", &bits, &eight, &extent.ty("i16"));
                let kind = SmallFloat::E4M3;
                (extent.small_float(w, &bits, kind), factor * kind.factor())
            }
            Scale::Bytes { signed, groups, .. } => {
                let number = self.byte(w, part, group, signed);
                let shared = self.shared(w, Part::ScaleFactors, group, groups);
                (w.arith("scale", "mulf", &shared, &number, &extent.ty("f32")), factor)
            }
        };
        if factor == 1.0 {
            return scale;
        }
        let factor = extent.float(w, factor);
        w.arith("scale", "mulf", &scale, &factor, &extent.ty("f32"))
    }

    /// The offset that is added to a group's scaled numbers, if any.
    pub(super) fn offset(&self, w: &mut Writer, group: &str) -> Option<String> {
        let floats = self.extent.ty("f32");
        match self.packing.offset {
            Offset::None => None,
            Offset::Float(_) => Some(self.float(w, Part::Offsets, group)),
            Offset::Zeros => {
                let zero = self.byte(w, Part::Offsets, group, false);
                let scale = self.scale(w, group, 1.0);
                let subtracted = w.arith("subtracted", "mulf", &scale, &zero, &floats);
                Some(w.set("offset", format_args!("arith.negf {subtracted} : {floats}")))
            }
            Offset::Bytes { groups, .. } => {
                let number = self.byte(w, Part::Offsets, group, false);
                let shared = self.shared(w, Part::OffsetFactors, group, groups);
                let subtracted = w.arith("subtracted", "mulf", &shared, &number, &floats);
                Some(w.set("offset", format_args!("arith.negf {subtracted} : {floats}")))
            }
        }
    }

    /// Prefetches a group's scale and offset if these are floats. Bytes are so few that a prefetch costs more than it saves.
    pub(super) fn prefetch(&self, w: &mut Writer, group: &str) {
        let scales = matches!(self.packing.scale, Scale::Float(_)).then_some(Part::Scales);
        let offsets = matches!(self.packing.offset, Offset::Float(_)).then_some(Part::Offsets);
        let at: Vec<&str> = [self.before, group].into_iter().chain(self.behind).collect();
        for part in scales.into_iter().chain(offsets) {
            self.weight.part(part).prefetch(w, &at, Locality::First);
        }
    }

    /// An element of a part as stored.
    fn load(&self, w: &mut Writer, part: Part, index: &str, element: &str) -> String {
        let at: Vec<&str> = [self.before, index].into_iter().chain(self.behind).collect();
        let view = self.weight.part(part);
        match self.extent {
            Extent::One => view.element(w, "stored", &at),
            Extent::Vector(_) => view.load(w, "stored", &at, &self.extent.ty(element)),
        }
    }

    /// A float in float32.
    fn float(&self, w: &mut Writer, part: Part, index: &str) -> String {
        let element = self.packing.element(part);
        let element = super::weight::element(element);
        let stored = self.load(w, part, index, element);
        if element == "f32" { stored } else { self.extent.cast(w, "extf", &stored, element, "f32") }
    }

    /// A byte in float32.
    fn byte(&self, w: &mut Writer, part: Part, index: &str, signed: bool) -> String {
        let byte = self.load(w, part, index, "i8");
        let number = self.extent.cast(w, if signed { "extsi" } else { "extui" }, &byte, "i8", "i32");
        self.extent.cast(w, "sitofp", &number, "i32", "f32")
    }

    /// The float shared by `groups` groups, including `group`.
    fn shared(&self, w: &mut Writer, part: Part, group: &str, groups: usize) -> String {
        let index = w.divided("shared", group, groups);
        self.float(w, part, &index)
    }
}
