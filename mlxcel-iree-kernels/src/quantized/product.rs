//! The inner part of a product with packed values: words of a panel become operands, operands meet activations, and what a
//! group sums to is scaled.

use super::form::{Arithmetic, Form};
use crate::instructions::{Instructions, VectorSet};
use crate::writer::Writer;

/// The operations of one arithmetic on one form of weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    /// How the weight is packed.
    pub(super) form: Form,
    /// What activations are.
    pub(super) arithmetic: Arithmetic,
    /// The processor's instructions.
    pub(super) instructions: Instructions,
}

/// Where the parts of a call lie: names and types of views in a kernel.
#[derive(Clone, Debug)]
pub(super) struct View {
    name: String,
    ty: String,
}

impl View {
    pub(super) fn new(name: String, ty: String) -> Self {
        Self { name, ty }
    }

    /// Its name and type.
    pub(super) fn parts(&self) -> (&str, &str) {
        (&self.name, &self.ty)
    }

    /// One element.
    pub(super) fn element(&self, w: &mut Writer, word: &str, at: &[&str]) -> String {
        w.set(word, format_args!("memref.load {}[{}] : {}", self.name, at.join(", "), self.ty))
    }

    /// A vector of elements.
    pub(super) fn load(&self, w: &mut Writer, word: &str, at: &[&str], vector: &str) -> String {
        w.set(word, format_args!("vector.load {}[{}] : {}, {vector}", self.name, at.join(", "), self.ty))
    }

    /// Asks for the line of an element, which need not exist.
    pub(super) fn prefetch(&self, w: &mut Writer, at: &[&str]) {
        w.line(format_args!(
            "memref.prefetch {}[{}], read, locality<3>, data : {}",
            self.name,
            at.join(", "),
            self.ty
        ));
    }

    /// Writes a vector of elements.
    pub(super) fn store(&self, w: &mut Writer, value: &str, at: &[&str], vector: &str) {
        w.line(format_args!(
            "vector.store {value}, {}[{}] : {}, {vector}",
            self.name,
            at.join(", "),
            self.ty
        ));
    }

    /// Writes one element.
    pub(super) fn put(&self, w: &mut Writer, value: &str, at: &[&str]) {
        w.line(format_args!("memref.store {value}, {}[{}] : {}", self.name, at.join(", "), self.ty));
    }
}

impl Product {
    /// A vector of `element`, one a lane.
    pub(super) fn vector(&self, element: &str) -> String {
        format!("vector<{}x{element}>", self.form.lanes)
    }

    /// The type of operands, and of a group's sums.
    pub(super) fn operand(&self) -> String {
        self.vector(self.arithmetic.lane())
    }

    /// The operands in a word of each lane, in the order of their values.
    pub(super) fn unpack(&self, w: &mut Writer, word: &str) -> Vec<String> {
        let (words, floats) = (self.vector("i32"), self.vector("f32"));
        let table = self.table(w);
        let steps = self.arithmetic.steps(&self.form);
        let operand = |w: &mut Writer, shift: usize, mask: u32| {
            let shift_by = w.constant(format!("dense<{shift}>"), &words);
            let shifted = if shift == 0 {
                word.to_owned()
            } else {
                w.arith("shifted", "shrui", word, &shift_by, &words)
            };
            if let Some(table) = &table {
                // The instruction reads the lowest four bits of an index.
                let name = "llvm.x86.avx512.permvar.sf.512";
                let types = format!("({floats}, {words}) -> {floats}");
                return w.set(
                    "values",
                    format_args!("llvm.call_intrinsic \"{name}\"({table}, {shifted}) : {types}"),
                );
            }
            let keeps_all = u32::MAX >> shift & !mask == 0;
            let values = if keeps_all {
                shifted
            } else {
                let mask = w.constant(format!("dense<{mask}>"), &words);
                w.arith("values", "andi", &shifted, &mask, &words)
            };
            if self.arithmetic != Arithmetic::Float {
                return values;
            }
            w.set("values", format_args!("arith.sitofp {values} : {words} to {floats}"))
        };
        steps.iter().map(|step| operand(w, step.shift, step.mask)).collect()
    }

    /// The floats that four bits can mean, where one instruction looks sixteen of them up.
    fn table(&self, w: &mut Writer) -> Option<String> {
        let looks_up = self.arithmetic == Arithmetic::Float
            && self.form.bits == 4
            && self.instructions.set == VectorSet::Avx512;
        let values = (0..16).map(|value| format!("{value}.0")).collect::<Vec<_>>().join(", ");
        looks_up.then(|| w.constant(format!("dense<[{values}]>"), self.vector("f32")))
    }

    /// A sum of nothing.
    pub(super) fn nothing(&self, w: &mut Writer) -> String {
        let zero = if self.arithmetic == Arithmetic::Float { "dense<0.0>" } else { "dense<0>" };
        w.constant(zero, self.operand())
    }

    /// The activations that meet every lane of an operand: [`width`](Arithmetic::width) of them, from `x` at `at`.
    pub(super) fn broadcast(&self, w: &mut Writer, x: &View, at: &[&str]) -> String {
        let lane = self.arithmetic.lane();
        let one = x.element(w, "x", at);
        w.set("x", format_args!("vector.broadcast {one} : {lane} to {}", self.operand()))
    }

    /// `sum` and the products of an operand with activations.
    pub(super) fn accumulate(&self, w: &mut Writer, sum: &str, operand: &str, x: &str) -> String {
        let (words, lanes) = (self.vector("i32"), self.form.lanes);
        if self.arithmetic == Arithmetic::Float {
            return w.set("sum", format_args!("vector.fma {operand}, {x}, {sum} : {}", self.vector("f32")));
        }
        let bytes = format!("vector<{}xi8>", lanes * 4);
        let [operand, x] = [operand, x]
            .map(|value| w.set("bytes", format_args!("vector.bitcast {value} : {words} to {bytes}")));
        let name = format!("llvm.x86.avx512.vpdpbusd.{}", 32 * lanes);
        let types = format!("({words}, {bytes}, {bytes}) -> {words}");
        w.set("sum", format_args!("llvm.call_intrinsic \"{name}\"({sum}, {operand}, {x}) : {types}"))
    }

    /// Scale or bias of each lane in float32.
    pub(super) fn of_group(&self, w: &mut Writer, view: &View, at: &[&str]) -> String {
        let (stored, floats) = (self.vector(self.form.scale.mlir()), self.vector("f32"));
        let value = view.load(w, "stored", at, &stored);
        if stored == floats {
            return value;
        }
        w.set("of_group", format_args!("arith.extf {value} : {stored} to {floats}"))
    }

    /// `total` and what a group adds to it: the scaled sum of its products, of which each plane has one, and the bias times the
    /// sum of its activations.
    pub(super) fn add_group(
        &self,
        w: &mut Writer,
        total: &str,
        sums: &[String],
        [scale, bias]: [&str; 2],
        [x_scale, x_sum]: [&str; 2],
    ) -> String {
        let (floats, words) = (self.vector("f32"), self.vector("i32"));
        let mut sum = sums.first().cloned().unwrap_or_default();
        let mut scale = scale.to_owned();
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
        w.set("total", format_args!("vector.fma {bias}, {x_sum}, {total} : {floats}"))
    }

    /// Scale and sum of a group of activations, in every lane.
    pub(super) fn of_activations(&self, w: &mut Writer, meta: &View, group: &str, row: &str) -> [String; 2] {
        [0, 1].map(|part| {
            if part == 0 && self.arithmetic == Arithmetic::Float {
                return String::new();
            }
            let place = w.index(part);
            let value = meta.element(w, "of_x", &[group, row, &place]);
            w.set("of_x", format_args!("vector.broadcast {value} : f32 to {}", self.vector("f32")))
        })
    }
}
