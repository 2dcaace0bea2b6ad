//! The inner part of a product with packed values: words of a panel become operands, operands are multiplied
//! with activations, and a chunk's sum is scaled.

use std::ops::Range;

use mlxcel_models::Packing;
use mlxcel_models::packing::{Code, Offset};

use super::bytes::CENTRE;
use super::form::{Arithmetic, Form};
use super::groups::Groups;
use super::small_float::SmallFloat;
use super::weight::Weight;
use crate::instructions::Instructions;
use crate::layout::Planes;
use crate::value::{Operand, Type};
use crate::vector_set::VectorSet;
use crate::view::View;
use crate::writer::Writer;

/// The operations of one arithmetic on one form of weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// How the weight is packed.
    pub(super) form: Form,
    /// The format of activations.
    pub(super) arithmetic: Arithmetic,
    /// The processor's instructions.
    pub(super) instructions: Instructions,
    /// Whether two rows are multiplied with two outputs at a time, as 2×8-byte matrices; pays off if codes
    /// are unpacked for many rows.
    pub(super) matrices: bool,
}

/// Panels that are computed together for many rows: two make loads of activations cheap enough.
pub(super) const MANY_TOGETHER: usize = 2;

impl Product {
    /// The product of a weight with this many rows.
    pub(super) fn new(form: Form, arithmetic: Arithmetic, instructions: Instructions, rows: usize) -> Self {
        let mut product = Self { form, arithmetic, instructions, matrices: false };
        product.matrices = arithmetic != Arithmetic::Float && instructions.int8_mm && rows > product.few();
        product
    }

    /// How many vectors of a chunk's sums stay in registers, for each plane of activations; the remainder is
    /// for words, activations and totals.
    pub(super) fn sums(&self) -> usize {
        self.instructions.registers() * 3 / 4 / self.arithmetic.planes()
    }

    /// The most rows whose sums over a chunk stay in registers, for two panels.
    pub(super) fn few(&self) -> usize {
        self.sums() / MANY_TOGETHER
    }

    /// The most rows that are multiplied as codes are unpacked: their chunk sums and totals stay in
    /// registers, for one panel.
    pub(super) fn streamed(&self) -> usize {
        let rows = self.instructions.registers() * 3 / 4 / (self.arithmetic.planes() + 1);
        match self.instructions.set {
            VectorSet::Avx512 => rows.max(self.few()),
            VectorSet::Avx2 | VectorSet::Neon => self.few(),
        }
    }

    /// Consecutive activations multiplied with one lane at a time.
    pub(super) fn width(&self) -> usize {
        self.arithmetic.width() * if self.matrices { 2 } else { 1 }
    }

    /// How many such products a chunk has.
    pub(super) fn units(&self) -> usize {
        self.form.chunk() / self.width()
    }

    /// The type of [`width`](Self::width) activations of one plane.
    pub(super) fn met(&self) -> &'static str {
        if self.matrices { "i64" } else { self.arithmetic.lane() }
    }

    /// A vector of `element`, one per lane.
    pub(super) fn vector(&self, element: &'static str) -> Type {
        Type::vector(self.form.lanes, element)
    }

    /// The type of operands, and of a chunk's sums.
    pub(super) fn operand(&self) -> Type {
        self.vector(self.arithmetic.lane())
    }

    /// The operands of some codes of a unit, in order, given the unit's words of each lane; four codes at a
    /// time.
    pub(super) fn unpack(&self, w: &mut Writer, words: &[Operand], codes: Range<usize>) -> Vec<Operand> {
        let Some(planes) = self.form.planes() else {
            return self.small_floats(w, words, codes);
        };
        if let Some(table) = self.float_table() {
            return codes.map(|code| self.looked_up(w, &table, &words[0], planes.low_bit(code).1)).collect();
        }
        let table = self.table();
        let mut operands = Vec::new();
        for first in codes.step_by(4) {
            let mut bytes = self.four_codes(w, planes, words, first);
            if let Some(table) = table {
                bytes = self.looked_up_bytes(w, table, &bytes);
            }
            if self.is_centred() {
                bytes = self.centred(w, &bytes);
            }
            match self.arithmetic {
                Arithmetic::Float => operands.extend((0..4).map(|byte| self.widened(w, &bytes, byte))),
                _ => operands.push(bytes),
            }
        }
        operands
    }

    /// Codes `first` to `first + 3` of a unit, each in its own byte.
    fn four_codes(&self, w: &mut Writer, planes: Planes, words: &[Operand], first: usize) -> Operand {
        let (word, bit) = planes.low_bit(first);
        let mut low = self.shifted(w, &words[word], bit, 0);
        if planes.low < 8 {
            let mask = w.constant(Planes::mask(planes.low), self.vector("i32"));
            low = w.arith("low", "andi", &low, &mask);
        }
        if planes.high == 0 {
            return low;
        }
        let high = self.shifted(w, &words[planes.words() - 1], planes.high_bit(first), planes.low);
        let mask = w.constant(Planes::mask(planes.high) << planes.low, self.vector("i32"));
        let high = w.arith("high", "andi", &high, &mask);
        w.arith("codes", "ori", &low, &high)
    }

    /// Words with bit `from` shifted to bit `to`.
    fn shifted(&self, w: &mut Writer, word: &Operand, from: usize, to: usize) -> Operand {
        if from == to {
            return word.clone();
        }
        let by = w.constant(from.abs_diff(to), self.vector("i32"));
        w.arith("shifted", if from > to { "shrui" } else { "shli" }, word, &by)
    }

    /// One byte of each lane in float32; signed if it comes from a [table](Self::table).
    fn widened(&self, w: &mut Writer, bytes: &Operand, byte: usize) -> Operand {
        let value = if self.table().is_some() {
            let high = self.shifted(w, bytes, 8 * byte, 24);
            let place = w.constant(24, self.vector("i32"));
            w.arith("value", "shrsi", &high, &place)
        } else {
            let low = self.shifted(w, bytes, 8 * byte, 0);
            let mask = w.constant(0xff, self.vector("i32"));
            w.arith("value", "andi", &low, &mask)
        };
        w.cast("cast", "sitofp", &value, "f32")
    }

    /// Some of the 8-bit floats in the words of a unit, two per word, divided by their
    /// [factor](SmallFloat::factor). The words are split side by side.
    fn small_floats(&self, w: &mut Writer, words: &[Operand], codes: Range<usize>) -> Vec<Operand> {
        let kind = if self.form.packing.code == Code::E4M3 { SmallFloat::E4M3 } else { SmallFloat::E5M2 };
        let (lanes, [first, second]) = (self.form.lanes, [0, words.len() - 1].map(|word| &words[word]));
        let all: Vec<usize> = (0..2 * lanes).collect();
        let low = w.shuffle("words", first, second, &all);
        let eight = w.constant(8, low.ty);
        let high = w.arith("high", "shli", &low, &eight);
        let halves = [high, low].map(|high| kind.half(w, &high));
        let float = |code: usize| {
            let (half, places) = (&halves[code % 2], &all[code / 2 * lanes..][..lanes]);
            let half = w.shuffle("half", half, half, places);
            w.cast("cast", "extf", &half, "f32")
        };
        codes.map(float).collect()
    }

    /// The table of a four-bit code's values, if one instruction looks up sixteen floats.
    fn float_table(&self) -> Option<Vec<f32>> {
        let Packing { bits, code, .. } = self.form.packing;
        let looks_up =
            self.arithmetic == Arithmetic::Float && bits == 4 && self.instructions.set == VectorSet::Avx512;
        looks_up.then(|| code.numbers(bits))
    }

    /// The entries of a table of floats for the four bits from `bit` on of each lane.
    fn looked_up(&self, w: &mut Writer, table: &[f32], words: &Operand, bit: usize) -> Operand {
        let floats = self.vector("f32");
        let shifted = self.shifted(w, words, bit, 0);
        let table = w.constant(format_args!("{table:?}"), floats);
        // The instruction reads the lowest four bits of an index.
        w.intrinsic("values", "llvm.x86.avx512.permvar.sf.512", &[&table, &shifted], floats)
    }

    /// Integers proportional to the values of 4-bit codes; none if codes are integers themselves.
    pub(super) fn table(&self) -> Option<[i8; 16]> {
        match self.form.packing.code {
            // Halves, twice.
            Code::E2M1 => Some([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
            Code::Iq4Nl => Some([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]),
            _ => None,
        }
    }

    /// The entries of a table for the bytes of each lane; minus the least entry if they are multiplied as
    /// [unsigned](Self::signed) bytes.
    fn looked_up_bytes(&self, w: &mut Writer, table: [i8; 16], indices: &Operand) -> Operand {
        let count = self.form.lanes * 4;
        let bytes = Type::vector(count, "i8");
        let least = self.zero();
        let entries = table.map(|entry| (i16::from(entry) + least) as u8 as i8);
        let all: Vec<i8> = entries.into_iter().cycle().take(count).collect();
        let table = w.constant(format_args!("{all:?}"), bytes);
        let indices = w.bitcast("indices", indices, bytes);
        let name = match self.instructions.set {
            VectorSet::Avx512 => "llvm.x86.avx512.pshuf.b.512",
            VectorSet::Avx2 => "llvm.x86.avx2.pshuf.b",
            VectorSet::Neon => "llvm.aarch64.neon.tbl1.v16i8",
        };
        let entries = w.intrinsic("entries", name, &[&table, &indices], bytes);
        w.bitcast("values", &entries, self.vector("i32"))
    }

    /// Subtracted from a value as it is multiplied with activations.
    pub(super) fn zero(&self) -> i16 {
        let unsigned = self.arithmetic != Arithmetic::Float && !self.signed();
        match self.form.packing.code {
            Code::Integer { zero } if self.is_centred() => i16::from(zero) - i16::from(CENTRE),
            Code::Integer { zero } if self.float_table().is_none() => i16::from(zero),
            Code::E2M1 if unsigned => 12,
            Code::Iq4Nl if unsigned => 127,
            _ => 0,
        }
    }

    /// The factor of a value as it is multiplied with activations.
    fn factor(&self) -> f32 {
        match self.form.packing.code {
            Code::E2M1 if self.float_table().is_none() => 0.5,
            Code::E4M3 => SmallFloat::E4M3.factor(),
            _ => 1.0,
        }
    }

    /// What is subtracted from every code, if groups have no other offset and sums are integers. The initial
    /// value of a sum includes it, at no instruction.
    pub(super) fn subtracted(&self) -> Option<i16> {
        let alone = self.arithmetic != Arithmetic::Float && self.form.packing.offset == Offset::None;
        Some(self.zero()).filter(|&zero| alone && zero != 0)
    }

    /// Whether a group adds an offset to its scaled sum, so that the sum of activations is needed.
    fn adds_offset(&self) -> bool {
        self.subtracted().is_none() && (self.zero() != 0 || self.form.packing.offset != Offset::None)
    }

    /// A zero sum.
    pub(super) fn nothing(&self, w: &mut Writer) -> Operand {
        let zero = if self.arithmetic == Arithmetic::Float { "0.0" } else { "0" };
        w.constant(zero, self.operand())
    }

    /// The initial values of a chunk's sums for a row, one per plane.
    pub(super) fn beginnings(
        &self,
        w: &mut Writer,
        meta: &View,
        chunk: &Operand,
        row: &Operand,
    ) -> Vec<Operand> {
        let mut beginnings = vec![self.nothing(w); self.arithmetic.planes()];
        if let (Some(_), Some(last)) = (self.subtracted(), beginnings.last_mut()) {
            let place = w.index(1);
            let bits = meta.element(w, "of_x", &[chunk, row, &place]);
            let bits = w.cast("of_x", "bitcast", &bits, "i32");
            *last = w.broadcast("beginning", &bits, self.form.lanes);
        }
        beginnings
    }

    /// The activations multiplied with every lane of an operand: [`width`](Arithmetic::width) of them, from
    /// `x` at `at`.
    pub(super) fn broadcast(&self, w: &mut Writer, x: &View, at: &[&Operand]) -> Operand {
        let one = x.element(w, "x", at);
        w.broadcast("x", &one, self.form.lanes)
    }

    /// `sum` plus the products of an operand with activations.
    pub(super) fn accumulate(
        &self,
        w: &mut Writer,
        sum: &Operand,
        operand: &Operand,
        x: &Operand,
    ) -> Operand {
        if self.arithmetic == Arithmetic::Float {
            return w.fma("sum", operand, x, sum);
        }
        self.add_products(w, sum, operand, x)
    }

    /// Prefetches what [`of_chunk`](Self::of_chunk) reads.
    pub(super) fn prefetch_of_chunk(
        &self,
        w: &mut Writer,
        weight: &Weight,
        panel: &Operand,
        chunk: &Operand,
    ) {
        let zero = w.index(0);
        let group = w.divided("group", chunk, self.form.packing.group_size / self.form.chunk());
        self.groups(weight, panel, &zero).prefetch(w, &group);
    }

    /// The groups of a panel.
    fn groups<'a>(&self, weight: &'a Weight, panel: &'a Operand, first: &'a Operand) -> Groups<'a> {
        let packing = self.form.packing;
        Groups { packing, weight, lanes: Some(self.form.lanes), before: panel, behind: Some(first) }
    }

    /// The scale of each lane of a panel for a chunk, and the factor of the sum of its activations, if any.
    pub(super) fn of_chunk(
        &self,
        w: &mut Writer,
        weight: &Weight,
        panel: &Operand,
        chunk: &Operand,
    ) -> (Operand, Option<Operand>) {
        let zero = w.index(0);
        let group = w.divided("group", chunk, self.form.packing.group_size / self.form.chunk());
        let groups = self.groups(weight, panel, &zero);
        let scale = groups.scale(w, &group, self.factor());
        let offset = groups.offset(w, &group);
        if self.zero() == 0 || self.subtracted().is_some() {
            return (scale, offset);
        }
        let zero = w.float(-f32::from(self.zero()), scale.ty);
        let offset = match offset {
            Some(offset) => w.fma("offset", &scale, &zero, &offset),
            None => w.arith("offset", "mulf", &scale, &zero),
        };
        (scale, Some(offset))
    }

    /// `total` plus a chunk: the scaled sum of its products, one sum per plane, and the offset times the sum
    /// of its activations.
    pub(super) fn add_chunk(
        &self,
        w: &mut Writer,
        total: &Operand,
        sums: &[Operand],
        (scale, offset): &(Operand, Option<Operand>),
        [x_scale, x_sum]: &[Option<Operand>; 2],
    ) -> Operand {
        let mut sum = sums[0].clone();
        let mut scale = scale.clone();
        if let [high, low] = sums {
            let eight = w.constant(8, high.ty);
            let high = w.arith("high", "shli", high, &eight);
            sum = w.arith("sum", "addi", &high, low);
        }
        if let Some(x_scale) = x_scale {
            sum = w.cast("sum", "sitofp", &sum, "f32");
            scale = w.arith("scale", "mulf", &scale, x_scale);
        }
        let total = w.fma("total", &sum, &scale, total);
        let (Some(offset), Some(x_sum)) = (offset, x_sum) else { return total };
        w.fma("total", offset, x_sum, &total)
    }

    /// Scale, for fixed point, and sum, if it is used, of a chunk of activations in every lane.
    pub(super) fn of_activations(
        &self,
        w: &mut Writer,
        meta: &View,
        chunk: &Operand,
        row: &Operand,
    ) -> [Option<Operand>; 2] {
        let used = [self.arithmetic != Arithmetic::Float, self.adds_offset()];
        [0, 1].map(|part| {
            used[part].then(|| {
                let place = w.index(part);
                let value = meta.element(w, "of_x", &[chunk, row, &place]);
                w.broadcast("of_x", &value, self.form.lanes)
            })
        })
    }
}
