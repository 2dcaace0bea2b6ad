//! The inner part of a product with packed values: words of a panel become operands, operands are multiplied with activations,
//! and a chunk's sum is scaled.

use std::ops::Range;

use mlxcel_models::Packing;
use mlxcel_models::packing::{Code, Offset};

use super::bytes::CENTRE;
use super::extent::{Extent, SmallFloat};
use super::form::{Arithmetic, Form};
use super::groups::Groups;
use super::weight::Weight;
use crate::instructions::{Instructions, VectorSet};
use crate::layout::Planes;
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
    /// Whether two rows are multiplied with two outputs at a time, as 2×8-byte matrices; pays off if codes are unpacked for many rows.
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

    /// How many vectors of a chunk's sums stay in registers, for each plane of activations; the remainder is for words,
    /// activations and totals.
    pub(super) fn sums(&self) -> usize {
        self.instructions.registers() * 3 / 4 / self.arithmetic.planes()
    }

    /// The most rows whose sums over a chunk stay in registers, for two panels.
    pub(super) fn few(&self) -> usize {
        self.sums() / MANY_TOGETHER
    }

    /// The most rows that are multiplied as codes are unpacked: their chunk sums and totals stay in registers, for one panel.
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
    pub(super) fn vector(&self, element: &str) -> String {
        format!("vector<{}x{element}>", self.form.lanes)
    }

    /// The type of operands, and of a chunk's sums.
    pub(super) fn operand(&self) -> String {
        self.vector(self.arithmetic.lane())
    }

    /// The operands of some codes of a unit, in order, given the unit's words of each lane; four codes at a time.
    pub(super) fn unpack(&self, w: &mut Writer, words: &[String], codes: Range<usize>) -> Vec<String> {
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
    fn four_codes(&self, w: &mut Writer, planes: Planes, words: &[String], first: usize) -> String {
        let ty = self.vector("i32");
        let (word, bit) = planes.low_bit(first);
        let mut low = self.shifted(w, &words[word], bit, 0);
        if planes.low < 8 {
            let mask = self.whole().constant(w, Planes::mask(planes.low), "i32");
            low = w.arith("low", "andi", &low, &mask, &ty);
        }
        if planes.high == 0 {
            return low;
        }
        let high = self.shifted(w, &words[planes.words() - 1], planes.high_bit(first), planes.low);
        let mask = self.whole().constant(w, Planes::mask(planes.high) << planes.low, "i32");
        let high = w.arith("high", "andi", &high, &mask, &ty);
        w.arith("codes", "ori", &low, &high, &ty)
    }

    /// Words with bit `from` shifted to bit `to`.
    fn shifted(&self, w: &mut Writer, word: &str, from: usize, to: usize) -> String {
        if from == to {
            return word.to_owned();
        }
        let by = self.whole().constant(w, from.abs_diff(to), "i32");
        w.arith("shifted", if from > to { "shrui" } else { "shli" }, word, &by, &self.vector("i32"))
    }

    /// One byte of each lane in float32; signed if it comes from a [table](Self::table).
    fn widened(&self, w: &mut Writer, bytes: &str, byte: usize) -> String {
        let ty = self.vector("i32");
        let value = if self.table().is_some() {
            let high = self.shifted(w, bytes, 8 * byte, 24);
            let place = self.whole().constant(w, 24, "i32");
            w.arith("value", "shrsi", &high, &place, &ty)
        } else {
            let low = self.shifted(w, bytes, 8 * byte, 0);
            let mask = self.whole().constant(w, 0xff, "i32");
            w.arith("value", "andi", &low, &mask, &ty)
        };
        self.whole().cast(w, "sitofp", &value, "i32", "f32")
    }

    /// Some of the 8-bit floats in the words of a unit, two per word, divided by their [factor](SmallFloat::factor). The words are
    /// split side by side.
    fn small_floats(&self, w: &mut Writer, words: &[String], codes: Range<usize>) -> Vec<String> {
        let kind = if self.form.packing.code == Code::E4M3 { SmallFloat::E4M3 } else { SmallFloat::E5M2 };
        let (lanes, [first, second]) = (self.form.lanes, [0, words.len() - 1].map(|word| &words[word]));
        let (one, both) = (self.whole(), Extent::Vector(2 * lanes));
        let all: Vec<usize> = (0..2 * lanes).collect();
        let types = format!("{0}, {0}", one.ty("i16"));
        let low = w.set("words", format_args!("vector.shuffle {first}, {second} {all:?} : {types}"));
        let eight = both.constant(w, 8, "i16");
        let high = w.arith("high", "shli", &low, &eight, &both.ty("i16"));
        let halves = [high, low].map(|high| both.small_half(w, &high, kind));
        let types = format!("{0}, {0}", both.ty("f16"));
        let float = |code: usize| {
            let (half, places) = (&halves[code % 2], &all[code / 2 * lanes..][..lanes]);
            let half = w.set("half", format_args!("vector.shuffle {half}, {half} {places:?} : {types}"));
            one.cast(w, "extf", &half, "f16", "f32")
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
    fn looked_up(&self, w: &mut Writer, table: &[f32], words: &str, bit: usize) -> String {
        let (ints, floats) = (self.vector("i32"), self.vector("f32"));
        let shifted = self.shifted(w, words, bit, 0);
        let table = w.constant(format!("dense<{table:?}>"), &floats);
        // The instruction reads the lowest four bits of an index.
        let name = "llvm.x86.avx512.permvar.sf.512";
        let types = format!("({floats}, {ints}) -> {floats}");
        w.set("values", format_args!("llvm.call_intrinsic \"{name}\"({table}, {shifted}) : {types}"))
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
    fn looked_up_bytes(&self, w: &mut Writer, table: [i8; 16], indices: &str) -> String {
        let (ints, count) = (self.vector("i32"), self.form.lanes * 4);
        let bytes = format!("vector<{count}xi8>");
        let least = self.zero();
        let entries = table.map(|entry| (i16::from(entry) + least) as u8 as i8);
        let all: Vec<i8> = entries.into_iter().cycle().take(count).collect();
        let table = w.constant(format!("dense<{all:?}>"), &bytes);
        let indices = w.set("indices", format_args!("vector.bitcast {indices} : {ints} to {bytes}"));
        let name = match self.instructions.set {
            VectorSet::Avx512 => "llvm.x86.avx512.pshuf.b.512",
            VectorSet::Avx2 => "llvm.x86.avx2.pshuf.b",
            VectorSet::Neon => "llvm.aarch64.neon.tbl1.v16i8",
        };
        let types = format!("({bytes}, {bytes}) -> {bytes}");
        let entries =
            w.set("entries", format_args!("llvm.call_intrinsic \"{name}\"({table}, {indices}) : {types}"));
        w.set("values", format_args!("vector.bitcast {entries} : {bytes} to {ints}"))
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

    /// What is subtracted from every code, if groups have no other offset and sums are integers. The initial value of a sum includes it,
    /// at no instruction.
    pub(super) fn subtracted(&self) -> Option<i16> {
        let alone = self.arithmetic != Arithmetic::Float && self.form.packing.offset == Offset::None;
        Some(self.zero()).filter(|&zero| alone && zero != 0)
    }

    /// Whether a group adds an offset to its scaled sum, so that the sum of activations is needed.
    fn adds_offset(&self) -> bool {
        self.subtracted().is_none() && (self.zero() != 0 || self.form.packing.offset != Offset::None)
    }

    /// A vector of all lanes.
    pub(super) fn whole(&self) -> Extent {
        Extent::Vector(self.form.lanes)
    }

    /// A zero sum.
    pub(super) fn nothing(&self, w: &mut Writer) -> String {
        let zero = if self.arithmetic == Arithmetic::Float { "dense<0.0>" } else { "dense<0>" };
        w.constant(zero, self.operand())
    }

    /// The initial values of a chunk's sums for a row, one per plane.
    pub(super) fn beginnings(&self, w: &mut Writer, meta: &View, chunk: &str, row: &str) -> Vec<String> {
        let mut beginnings = vec![self.nothing(w); self.arithmetic.planes()];
        if let (Some(_), Some(last)) = (self.subtracted(), beginnings.last_mut()) {
            let place = w.index(1);
            let bits = meta.element(w, "of_x", &[chunk, row, &place]);
            let bits = w.set("of_x", format_args!("arith.bitcast {bits} : f32 to i32"));
            *last = w.set("beginning", format_args!("vector.broadcast {bits} : i32 to {}", self.operand()));
        }
        beginnings
    }

    /// The activations multiplied with every lane of an operand: [`width`](Arithmetic::width) of them, from `x` at `at`.
    pub(super) fn broadcast(&self, w: &mut Writer, x: &View, at: &[&str]) -> String {
        let lane = self.arithmetic.lane();
        let one = x.element(w, "x", at);
        w.set("x", format_args!("vector.broadcast {one} : {lane} to {}", self.operand()))
    }

    /// `sum` plus the products of an operand with activations.
    pub(super) fn accumulate(&self, w: &mut Writer, sum: &str, operand: &str, x: &str) -> String {
        if self.arithmetic == Arithmetic::Float {
            return w.set("sum", format_args!("vector.fma {operand}, {x}, {sum} : {}", self.vector("f32")));
        }
        let words = self.vector("i32");
        self.add_products(w, sum, operand, (x, &words))
    }

    /// Prefetches what [`of_chunk`](Self::of_chunk) reads.
    pub(super) fn prefetch_of_chunk(&self, w: &mut Writer, weight: &Weight, panel: &str, chunk: &str) {
        let zero = w.index(0);
        let group = w.divided("group", chunk, self.form.packing.group_size / self.form.chunk());
        self.groups(weight, panel, &zero).prefetch(w, &group);
    }

    /// The groups of a panel.
    fn groups<'a>(&self, weight: &'a Weight, panel: &'a str, first: &'a str) -> Groups<'a> {
        let packing = self.form.packing;
        Groups { packing, weight, extent: self.whole(), before: panel, behind: Some(first) }
    }

    /// The scale of each lane of a panel for a chunk, and the factor of the sum of its activations, if any.
    pub(super) fn of_chunk(
        &self,
        w: &mut Writer,
        weight: &Weight,
        panel: &str,
        chunk: &str,
    ) -> (String, Option<String>) {
        let (extent, zero) = (self.whole(), w.index(0));
        let group = w.divided("group", chunk, self.form.packing.group_size / self.form.chunk());
        let groups = self.groups(weight, panel, &zero);
        let scale = groups.scale(w, &group, self.factor());
        let offset = groups.offset(w, &group);
        if self.zero() == 0 || self.subtracted().is_some() {
            return (scale, offset);
        }
        let floats = self.vector("f32");
        let zero = extent.float(w, -f32::from(self.zero()));
        let offset = match offset {
            Some(offset) => w.set("offset", format_args!("vector.fma {scale}, {zero}, {offset} : {floats}")),
            None => w.arith("offset", "mulf", &scale, &zero, &floats),
        };
        (scale, Some(offset))
    }

    /// `total` plus a chunk: the scaled sum of its products, one sum per plane, and the offset times the sum of its activations.
    pub(super) fn add_chunk(
        &self,
        w: &mut Writer,
        total: &str,
        sums: &[String],
        (scale, offset): &(String, Option<String>),
        [x_scale, x_sum]: &[String; 2],
    ) -> String {
        let (floats, words) = (self.vector("f32"), self.vector("i32"));
        let mut sum = sums.first().cloned().unwrap_or_default();
        let mut scale = scale.clone();
        if let [high, low] = sums {
            let eight = w.constant("dense<8>", &words);
            let high = w.arith("high", "shli", high, &eight, &words);
            sum = w.arith("sum", "addi", &high, low, &words);
        }
        if self.arithmetic != Arithmetic::Float {
            sum = w.set("sum", format_args!("arith.sitofp {sum} : {words} to {floats}"));
            scale = w.arith("scale", "mulf", &scale, x_scale, &floats);
        }
        let total = w.set("total", format_args!("vector.fma {sum}, {scale}, {total} : {floats}"));
        let Some(offset) = offset else { return total };
        w.set("total", format_args!("vector.fma {offset}, {x_sum}, {total} : {floats}"))
    }

    /// Scale and sum of a chunk of activations, in every lane; unused ones are empty.
    pub(super) fn of_activations(&self, w: &mut Writer, meta: &View, chunk: &str, row: &str) -> [String; 2] {
        let used = [self.arithmetic != Arithmetic::Float, self.adds_offset()];
        [0, 1].map(|part| {
            if !used[part] {
                return String::new();
            }
            let place = w.index(part);
            let value = meta.element(w, "of_x", &[chunk, row, &place]);
            w.set("of_x", format_args!("vector.broadcast {value} : f32 to {}", self.vector("f32")))
        })
    }
}
