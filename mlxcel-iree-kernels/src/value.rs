//! Values of kernels: each has a name and a type.

use std::fmt;

/// The type of a value: a scalar, or a vector of one dimension. Prints as in MLIR, such as `vector<16xf32>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    /// The MLIR name of an element's type, such as `bf16`.
    pub(crate) element: &'static str,
    /// The elements of a vector; none for a scalar.
    lanes: Option<usize>,
}

impl Type {
    pub(crate) const INDEX: Self = Self::scalar("index");
    pub(crate) const I1: Self = Self::scalar("i1");
    pub(crate) const I32: Self = Self::scalar("i32");
    pub(crate) const F32: Self = Self::scalar("f32");

    pub(crate) const fn scalar(element: &'static str) -> Self {
        Self { element, lanes: None }
    }

    pub(crate) const fn vector(lanes: usize, element: &'static str) -> Self {
        Self { element, lanes: Some(lanes) }
    }

    /// As many of other elements.
    pub(crate) const fn of(self, element: &'static str) -> Self {
        Self { element, ..self }
    }

    pub(crate) const fn is_vector(self) -> bool {
        self.lanes.is_some()
    }

    /// How many elements it has.
    pub(crate) fn len(self) -> usize {
        self.lanes.unwrap_or(1)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self.element, "f16" | "bf16" | "f32" | "f64")
    }

    /// The bits of an element; none for `index`, whose size the target determines.
    pub(crate) fn element_bits(self) -> Option<usize> {
        self.element.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse().ok()
    }

    /// The bits of all elements.
    pub(crate) fn bits(self) -> Option<usize> {
        Some(self.element_bits()? * self.len())
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lanes {
            Some(lanes) => write!(f, "vector<{lanes}x{}>", self.element),
            None => f.write_str(self.element),
        }
    }
}

/// A value that operations of a kernel take. Prints as its name, such as `%sum_3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    name: String,
    pub(crate) ty: Type,
}

impl Operand {
    pub(crate) fn new(name: String, ty: Type) -> Self {
        Self { name, ty }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Several values, as operations list them.
pub(crate) fn listed<'a>(values: impl IntoIterator<Item = &'a Operand>) -> String {
    values.into_iter().map(|value| value.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether the operation `op` of the dialect `arith` turns elements of `from` into those of `to`.
pub(crate) fn casts(op: &str, from: Type, to: Type) -> bool {
    let (float, to_float) = (from.is_float(), to.is_float());
    let (index, to_index) = (from.element == "index", to.element == "index");
    let (bits, to_bits) = (from.element_bits(), to.element_bits());
    match op {
        "extf" => float && to_float && bits < to_bits,
        "truncf" => float && to_float && bits > to_bits,
        "extsi" | "extui" => !float && !to_float && !index && bits < to_bits,
        "trunci" => !float && !to_float && !to_index && bits > to_bits,
        "sitofp" => !float && !index && to_float,
        "fptosi" => float && !to_float && !to_index,
        "index_cast" | "index_castui" => !float && !to_float && index != to_index,
        "bitcast" => bits.is_some() && bits == to_bits,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_print_as_in_mlir_and_know_their_size() {
        let lanes = Type::vector(8, "bf16");
        assert_eq!((lanes.to_string(), lanes.bits()), ("vector<8xbf16>".to_owned(), Some(128)));
        assert_eq!((lanes.of("i1").to_string(), Type::F32.bits()), ("vector<8xi1>".to_owned(), Some(32)));
        assert_eq!((Type::INDEX.to_string(), Type::INDEX.bits()), ("index".to_owned(), None));
    }

    #[test]
    fn casts_widen_narrow_or_keep_bits_as_their_names_say() {
        let known = [
            ("extf", "bf16", "f32"),
            ("truncf", "f32", "f16"),
            ("extsi", "i8", "i32"),
            ("extui", "i8", "i16"),
            ("trunci", "i32", "i8"),
            ("sitofp", "i8", "f32"),
            ("fptosi", "f32", "i32"),
            ("index_cast", "i32", "index"),
            ("index_castui", "i1", "index"),
            ("bitcast", "i16", "f16"),
        ];
        for (op, from, to) in known {
            let [from, to] = [from, to].map(Type::scalar);
            assert!(casts(op, from, to), "{op} {from} {to}");
            assert!(
                op.starts_with("index_cast") || op == "bitcast" || !casts(op, to, from),
                "{op} {to} {from}"
            );
            assert!(!casts(op, Type::INDEX, Type::INDEX), "{op}");
        }
    }
}
