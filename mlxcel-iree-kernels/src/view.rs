//! Reading and writing memory in kernels.

use crate::writer::Writer;

/// Memory in a kernel: a buffer, a part of one, or the worker's stack; name and type of a `memref`.
///
/// A place is one index per dimension.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) name: String,
    pub(crate) ty: String,
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
    pub(crate) fn new(name: String, ty: String) -> Self {
        Self { name, ty }
    }

    /// `count` elements on the worker's stack, aligned to cache lines. They keep values across loop iterations only if allocated
    /// outside of the loop.
    pub(crate) fn on_stack(w: &mut Writer, word: &str, count: usize, element: &str) -> Self {
        let ty = format!("memref<{count}x{element}>");
        // In the generic form: the pretty one cannot express the alignment.
        let name = w.set(
            word,
            format_args!(
                "\"memref.alloca\"() <{{alignment = 64 : i64, operandSegmentSizes = array<i32: 0, 0>}}> : () -> {ty}"
            ),
        );
        Self { name, ty }
    }

    /// Its name and type.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.name, &self.ty)
    }

    /// The element at a place.
    pub(crate) fn element(&self, w: &mut Writer, word: &str, at: &[&str]) -> String {
        w.set(word, format_args!("memref.load {}[{}] : {}", self.name, at.join(", "), self.ty))
    }

    /// The vector of this type that begins at a place.
    pub(crate) fn load(&self, w: &mut Writer, word: &str, at: &[&str], vector: &str) -> String {
        w.set(word, format_args!("vector.load {}[{}] : {}, {vector}", self.name, at.join(", "), self.ty))
    }

    /// Writes one element.
    pub(crate) fn put(&self, w: &mut Writer, value: &str, at: &[&str]) {
        w.line(format_args!("memref.store {value}, {}[{}] : {}", self.name, at.join(", "), self.ty));
    }

    /// Writes a vector of this type.
    pub(crate) fn store(&self, w: &mut Writer, value: &str, at: &[&str], vector: &str) {
        let at = at.join(", ");
        w.line(format_args!("vector.store {value}, {}[{at}] : {}, {vector}", self.name, self.ty));
    }

    /// Prefetches the cache line of a place, which need not exist.
    pub(crate) fn prefetch(&self, w: &mut Writer, at: &[&str], locality: Locality) {
        let (at, locality) = (at.join(", "), locality as u8);
        w.line(format_args!(
            "memref.prefetch {}[{at}], read, locality<{locality}>, data : {}",
            self.name, self.ty
        ));
    }
}
