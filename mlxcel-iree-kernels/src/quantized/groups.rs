//! Scales and offsets of groups, in any storage format.

use mlxcel_models::packing::{Offset, Scale};
use mlxcel_models::{Packing, Part};

use super::small_float::SmallFloat;
use super::weight::Weight;
use crate::value::Operand;
use crate::view::Locality;
use crate::writer::Writer;

/// The groups of one row, or of the rows of a panel.
pub(super) struct Groups<'a> {
    pub(super) packing: Packing,
    pub(super) weight: &'a Weight,
    /// The rows of a panel; none for one row.
    pub(super) lanes: Option<usize>,
    /// The index before that of a group, and the one after it.
    pub(super) before: &'a Operand,
    pub(super) behind: Option<&'a Operand>,
}

impl Groups<'_> {
    /// The scale of a group times `factor`, a power of two.
    pub(super) fn scale(&self, w: &mut Writer, group: &Operand, factor: f32) -> Operand {
        let part = Part::Scales;
        let (scale, factor) = match self.packing.scale {
            Scale::Float(_) => (self.float(w, part, group), factor),
            Scale::E8M0 => {
                let byte = self.load(w, part, group);
                let exponent = w.cast("cast", "extui", &byte, "i32");
                let place = w.constant(23, exponent.ty);
                let bits = w.arith("bits", "shli", &exponent, &place);
                // 2^-127, with exponent 0, is subnormal; the bits of every other power are larger.
                let least = w.constant(1 << 22, bits.ty);
                let bits = w.arith("bits", "maxsi", &bits, &least);
                (w.cast("cast", "bitcast", &bits, "f32"), factor)
            }
            Scale::E4M3 => {
                let byte = self.load(w, part, group);
                let bits = w.cast("cast", "extui", &byte, "i16");
                let eight = w.constant(8, bits.ty);
                let bits = w.arith("bits", "shli", &bits, &eight);
                let kind = SmallFloat::E4M3;
                (kind.widened(w, &bits), factor * kind.factor())
            }
            Scale::Bytes { signed, groups, .. } => {
                let number = self.byte(w, part, group, signed);
                let shared = self.shared(w, Part::ScaleFactors, group, groups);
                (w.arith("scale", "mulf", &shared, &number), factor)
            }
        };
        if factor == 1.0 {
            return scale;
        }
        let factor = w.float(factor, scale.ty);
        w.arith("scale", "mulf", &scale, &factor)
    }

    /// The offset that is added to a group's scaled numbers, if any.
    pub(super) fn offset(&self, w: &mut Writer, group: &Operand) -> Option<Operand> {
        match self.packing.offset {
            Offset::None => None,
            Offset::Float(_) => Some(self.float(w, Part::Offsets, group)),
            Offset::Zeros => {
                let zero = self.byte(w, Part::Offsets, group, false);
                let scale = self.scale(w, group, 1.0);
                let subtracted = w.arith("subtracted", "mulf", &scale, &zero);
                Some(w.unary("offset", "arith.negf", &subtracted))
            }
            Offset::Bytes { groups, .. } => {
                let number = self.byte(w, Part::Offsets, group, false);
                let shared = self.shared(w, Part::OffsetFactors, group, groups);
                let subtracted = w.arith("subtracted", "mulf", &shared, &number);
                Some(w.unary("offset", "arith.negf", &subtracted))
            }
        }
    }

    /// Prefetches a group's scale and offset if these are floats. Bytes are so few that a prefetch costs more
    /// than it saves.
    pub(super) fn prefetch(&self, w: &mut Writer, group: &Operand) {
        let scales = matches!(self.packing.scale, Scale::Float(_)).then_some(Part::Scales);
        let offsets = matches!(self.packing.offset, Offset::Float(_)).then_some(Part::Offsets);
        let at: Vec<&Operand> = [self.before, group].into_iter().chain(self.behind).collect();
        for part in scales.into_iter().chain(offsets) {
            self.weight.part(part).prefetch(w, &at, Locality::First);
        }
    }

    /// An element of a part as stored.
    fn load(&self, w: &mut Writer, part: Part, index: &Operand) -> Operand {
        let at: Vec<&Operand> = [self.before, index].into_iter().chain(self.behind).collect();
        let view = self.weight.part(part);
        match self.lanes {
            None => view.element(w, "stored", &at),
            Some(lanes) => view.load(w, "stored", &at, lanes),
        }
    }

    /// A float in float32.
    fn float(&self, w: &mut Writer, part: Part, index: &Operand) -> Operand {
        let stored = self.load(w, part, index);
        if stored.ty.element == "f32" { stored } else { w.cast("cast", "extf", &stored, "f32") }
    }

    /// A byte in float32.
    fn byte(&self, w: &mut Writer, part: Part, index: &Operand, signed: bool) -> Operand {
        let byte = self.load(w, part, index);
        let number = w.cast("cast", if signed { "extsi" } else { "extui" }, &byte, "i32");
        w.cast("cast", "sitofp", &number, "f32")
    }

    /// The float shared by `groups` groups, including `group`.
    fn shared(&self, w: &mut Writer, part: Part, group: &Operand, groups: usize) -> Operand {
        let index = w.divided("shared", group, groups);
        self.float(w, part, &index)
    }
}
