//! Products of bytes: the processor's instructions for them, and whether they take a weight's bytes as
//! signed.
//!
//! Activations are signed. x86-64 multiplies them with unsigned bytes; Arm with signed ones and, if it has
//! products of matrices, also with unsigned ones.

use super::form::Arithmetic;
use super::product::Product;
use crate::value::{Operand, Type};
use crate::vector_set::VectorSet;
use crate::writer::Writer;

/// Subtracted from 8-bit codes that become signed.
pub(super) const CENTRE: u8 = 128;

impl Product {
    /// Whether codes are multiplied as signed bytes: on Arm those whose values fit signed bytes, and 8-bit
    /// codes if there is no instruction for unsigned ones.
    pub(super) fn signed(&self) -> bool {
        let fits = self.table().is_some() || self.form.packing.bits < 8;
        self.instructions.set == VectorSet::Neon && (fits || !self.instructions.int8_mm)
    }

    /// Whether codes are unsigned, and are made signed.
    pub(super) fn is_centred(&self) -> bool {
        let eight = self.table().is_none() && self.form.packing.bits == 8;
        self.arithmetic != Arithmetic::Float && eight && self.signed()
    }

    /// 8-bit codes minus [`CENTRE`].
    pub(super) fn centred(&self, w: &mut Writer, codes: &Operand) -> Operand {
        let signs = w.constant(i32::from_ne_bytes([CENTRE; 4]), codes.ty);
        w.arith("centred", "xori", codes, &signs)
    }

    /// `sum` plus the products of an operand's bytes with those of activations: four bytes at a time, or
    /// matrices.
    pub(super) fn add_products(
        &self,
        w: &mut Writer,
        sum: &Operand,
        operand: &Operand,
        x: &Operand,
    ) -> Operand {
        let lanes = self.form.lanes;
        let bytes = Type::vector(lanes * 4, "i8");
        let [operand, x] = [operand, x].map(|value| w.bitcast("bytes", value, bytes));
        let name = match self.instructions.set {
            VectorSet::Neon => {
                let name = match (self.matrices, self.signed()) {
                    (false, true) => "sdot",
                    (false, false) => "usdot",
                    (true, true) => "smmla",
                    (true, false) => "usmmla",
                };
                format!("llvm.aarch64.neon.{name}.v4i32.v16i8")
            }
            VectorSet::Avx512 | VectorSet::Avx2 => format!("llvm.x86.avx512.vpdpbusd.{}", 32 * lanes),
        };
        w.intrinsic("sum", &name, &[sum, &operand, &x], sum.ty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::Instructions;
    use crate::quantized::form::Form;

    fn product(set: VectorSet, int8_mm: bool, packing: &str, rows: usize) -> Product {
        let instructions = Instructions { int8_dot: true, int8_mm, ..Instructions::new(set) };
        let packing = packing.parse().unwrap();
        let form = Form { outputs: 64, inputs: 256, packing, lanes: instructions.lanes() };
        Product::new(form, Arithmetic::Int16Split, instructions, rows)
    }

    #[test]
    fn codes_have_the_signedness_that_the_instruction_takes() {
        let of = |set, int8_mm, packing| {
            let product = product(set, int8_mm, packing, 1);
            (product.signed(), product.is_centred(), product.zero())
        };
        for set in [VectorSet::Avx512, VectorSet::Avx2] {
            assert_eq!(of(set, false, "u8-128/32 f16"), (false, false, 128));
            assert_eq!(of(set, false, "u4-8/32 f16"), (false, false, 8));
            assert_eq!(of(set, false, "iq4nl/32 f16"), (false, false, 127));
        }
        for int8_mm in [false, true] {
            assert_eq!(of(VectorSet::Neon, int8_mm, "u4-8/32 f16"), (true, false, 8));
            assert_eq!(of(VectorSet::Neon, int8_mm, "u6-32/16 i8*f16/16"), (true, false, 32));
            assert_eq!(of(VectorSet::Neon, int8_mm, "iq4nl/32 f16"), (true, false, 0));
            assert_eq!(of(VectorSet::Neon, int8_mm, "e2m1/32 e8m0"), (true, false, 0));
        }
        assert_eq!(of(VectorSet::Neon, true, "u8-128/32 f16"), (false, false, 128));
        assert_eq!(of(VectorSet::Neon, false, "u8-128/32 f16"), (true, true, 0));
        assert_eq!(of(VectorSet::Neon, false, "u8/32 f16 + f16"), (true, true, -128));
    }

    #[test]
    fn matrices_are_for_rows_whose_sums_do_not_fit_registers() {
        let of = |int8_mm, rows| {
            let product = product(VectorSet::Neon, int8_mm, "u4-8/32 f16", rows);
            (product.matrices, product.width(), product.units())
        };
        assert_eq!(of(true, 6), (false, 4, 8));
        assert_eq!(of(true, 7), (true, 8, 4));
        assert_eq!(of(false, 7), (false, 4, 8));
    }
}
