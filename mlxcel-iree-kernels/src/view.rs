//! Reading and writing memory in kernels.

use crate::value::{Operand, Type, listed};
use crate::writer::Writer;

/// Memory in a kernel: a buffer, a part of one, or the worker's stack; a `memref`.
///
/// A place is one index per dimension.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) name: String,
    /// The type as MLIR writes it.
    pub(crate) ty: String,
    /// The number of dimensions.
    pub(crate) rank: usize,
    /// The type of an element.
    pub(crate) element: &'static str,
}

/// How long prefetched data stays in caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locality {
    /// In L2: it is read once, or much later.
    Second = 2,
    /// In L1.
    First = 3,
}

impl View {
    /// Contiguous elements: the result of an operation that `operation` writes for the view's type.
    pub(crate) fn new<T: std::fmt::Display>(
        w: &mut Writer,
        word: &str,
        shape: &[usize],
        element: &'static str,
        operation: impl FnOnce(&str) -> T,
    ) -> Self {
        let sizes: String = shape.iter().map(|size| format!("{size}x")).collect();
        let ty = format!("memref<{sizes}{element}>");
        Self { name: w.define(word, operation(&ty)), ty, rank: shape.len(), element }
    }

    /// Elements on the worker's stack, aligned to cache lines. They keep values across loop iterations only
    /// if allocated outside of the loop.
    pub(crate) fn on_stack(w: &mut Writer, word: &str, shape: &[usize], element: &'static str) -> Self {
        // In the generic form: the pretty one cannot express the alignment.
        let attributes = "alignment = 64 : i64, operandSegmentSizes = array<i32: 0, 0>";
        Self::new(w, word, shape, element, |ty| {
            format!("\"memref.alloca\"() <{{{attributes}}}> : () -> {ty}")
        })
    }

    /// The element at a place.
    pub(crate) fn element(&self, w: &mut Writer, word: &str, at: &[&Operand]) -> Operand {
        let at = self.place(w, "memref.load", at);
        w.set(word, Type::scalar(self.element), format_args!("memref.load {at} : {}", self.ty))
    }

    /// The vector of `lanes` elements that begins at a place.
    pub(crate) fn load(&self, w: &mut Writer, word: &str, at: &[&Operand], lanes: usize) -> Operand {
        let at = self.place(w, "vector.load", at);
        let ty = Type::vector(lanes, self.element);
        w.set(word, ty, format_args!("vector.load {at} : {}, {ty}", self.ty))
    }

    /// Writes an element, or a vector of them that begins at a place.
    pub(crate) fn store(&self, w: &mut Writer, value: &Operand, at: &[&Operand]) {
        let ty = value.ty;
        let operation = if ty.is_vector() { "vector.store" } else { "memref.store" };
        let at = self.place(w, operation, at);
        let holds = ty.element == self.element;
        w.check(holds, operation, format_args!("elements of {}: {}", self.name, self.ty), &[value]);
        if ty.is_vector() {
            w.line(format_args!("vector.store {value}, {at} : {}, {ty}", self.ty));
        } else {
            w.line(format_args!("memref.store {value}, {at} : {}", self.ty));
        }
    }

    /// Prefetches the cache line of a place, which need not exist.
    pub(crate) fn prefetch(&self, w: &mut Writer, at: &[&Operand], locality: Locality) {
        let (at, locality) = (self.place(w, "memref.prefetch", at), locality as u8);
        w.line(format_args!("memref.prefetch {at}, read, locality<{locality}>, data : {}", self.ty));
    }

    /// A place as operations write it, once it is checked.
    fn place(&self, w: &mut Writer, operation: &str, at: &[&Operand]) -> String {
        let holds = at.len() == self.rank && at.iter().all(|index| index.ty == Type::INDEX);
        w.check(
            holds,
            operation,
            format_args!("an index for each dimension of {}: {}", self.name, self.ty),
            at,
        );
        format!("{}[{}]", self.name, listed(at.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defect after an access to memory of type `memref<2x8xbf16>`, with an index, and a value of type
    /// `f32`.
    fn defect(access: impl FnOnce(&mut Writer, &View, &Operand, &Operand)) -> String {
        let mut w = Writer::default();
        let view = View::on_stack(&mut w, "sums", &[2, 8], "bf16");
        let (at, x) = (w.index(1), w.set("x", Type::F32, "test.value"));
        access(&mut w, &view, &at, &x);
        w.defect().unwrap_or_default().to_owned()
    }

    #[test]
    fn memory_holds_its_own_elements() {
        let fits = defect(|w, view, at, _| {
            let (one, all) = (view.element(w, "x", &[at, at]), view.load(w, "x", &[at, at], 8));
            view.store(w, &one, &[at, at]);
            view.store(w, &all, &[at, at]);
        });
        assert_eq!(fits, "");
        let other = defect(|w, view, at, x| view.store(w, x, &[at, at]));
        assert_eq!(other, "memref.store takes elements of %sums_0: memref<2x8xbf16>, not (%x_0: f32)");
        let vector = defect(|w, view, at, x| {
            let x = w.broadcast("x", x, 4);
            view.store(w, &x, &[at, at]);
        });
        assert!(vector.starts_with("vector.store takes elements of %sums_0"), "{vector}");
    }

    #[test]
    fn a_place_is_an_index_for_each_dimension() {
        let float = defect(|w, view, at, x| _ = view.load(w, "x", &[at, x], 8));
        let rule = "takes an index for each dimension of %sums_0: memref<2x8xbf16>";
        assert_eq!(float, format!("vector.load {rule}, not (%c1: index, %x_0: f32)"));
        let one = defect(|w, view, at, _| _ = view.element(w, "x", &[at]));
        assert_eq!(one, format!("memref.load {rule}, not (%c1: index)"));
        let prefetched = defect(|w, view, at, _| view.prefetch(w, &[at], Locality::First));
        assert_eq!(prefetched, format!("memref.prefetch {rule}, not (%c1: index)"));
    }
}
