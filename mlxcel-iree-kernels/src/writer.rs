//! Writes the body of a kernel: MLIR operations, line by line, with generated value names.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// The indentation of a kernel function's body.
const DEPTH: usize = 4;

/// The operations of a kernel, in the order in which they run.
///
/// Values are their names, such as `%sum_3`: a word that describes the value, and a number that makes it unique. Constants are
/// collected and written at the function's beginning.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    text: String,
    /// Blocks that are open.
    open: usize,
    /// The number of values per word.
    named: BTreeMap<String, usize>,
    /// The names of constants, by type and literal.
    constants: BTreeMap<(String, String), String>,
}

impl Writer {
    /// An operation without results.
    pub(crate) fn line(&mut self, operation: impl Display) {
        let indent = 2 * (DEPTH + self.open);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:indent$}{operation}", "");
    }

    /// An operation with one result, named by `word` and a number.
    pub(crate) fn set(&mut self, word: &str, operation: impl Display) -> String {
        let name = self.fresh(word);
        self.line(format_args!("{name} = {operation}"));
        name
    }

    /// An unused name.
    pub(crate) fn fresh(&mut self, word: &str) -> String {
        let number = self.named.entry(word.to_owned()).or_default();
        *number += 1;
        format!("%{word}_{}", *number - 1)
    }

    /// A constant: `literal` as MLIR writes it for the type, such as `dense<0.0>` for `vector<16xf32>`.
    pub(crate) fn constant(&mut self, literal: impl Display, ty: impl Display) -> String {
        let count = self.constants.len();
        let key = (ty.to_string(), literal.to_string());
        self.constants.entry(key).or_insert_with(|| format!("%constant_{count}")).clone()
    }

    /// The constant `value` of type `index`.
    pub(crate) fn index(&mut self, value: usize) -> String {
        let key = ("index".to_owned(), value.to_string());
        self.constants.entry(key).or_insert_with(|| format!("%c{value}")).clone()
    }

    /// `base + offset`, of type `index`; `base` itself for an offset of 0.
    pub(crate) fn offset(&mut self, word: &str, base: &str, offset: usize) -> String {
        if offset == 0 {
            return base.to_owned();
        }
        let offset = self.index(offset);
        self.set(word, format_args!("arith.addi {base}, {offset} overflow<nsw, nuw> : index"))
    }

    /// `a + b`, of type `index`.
    pub(crate) fn added(&mut self, word: &str, a: &str, b: &str) -> String {
        self.set(word, format_args!("arith.addi {a}, {b} overflow<nsw, nuw> : index"))
    }

    /// `value · factor`, of type `index`.
    pub(crate) fn scaled(&mut self, word: &str, value: &str, factor: usize) -> String {
        let factor = self.index(factor);
        self.set(word, format_args!("arith.muli {value}, {factor} overflow<nsw, nuw> : index"))
    }

    /// `value / divisor`, rounded down, of type `index`; `value` itself for a divisor of 1.
    pub(crate) fn divided(&mut self, word: &str, value: &str, divisor: usize) -> String {
        if divisor == 1 {
            return value.to_owned();
        }
        let divisor = self.index(divisor);
        self.arith(word, "divui", value, &divisor, "index")
    }

    /// `a op b` of a type, `op` being an operation of the dialect `arith` such as `addi`.
    pub(crate) fn arith(&mut self, word: &str, op: &str, a: &str, b: &str, ty: &str) -> String {
        self.set(word, format_args!("arith.{op} {a}, {b} : {ty}"))
    }

    /// `scf.for` from `from` to `to` by `step`: `body` gets the index and the carried values and returns those of the next
    /// iteration. Returns the final ones.
    ///
    /// Carried values are pairs of the initial value and its type.
    pub(crate) fn for_loop(
        &mut self,
        word: &str,
        [from, to, step]: [&str; 3],
        carried: &[(String, String)],
        body: impl FnOnce(&mut Self, &str, &[String]) -> Vec<String>,
    ) -> Vec<String> {
        let index = self.fresh(word);
        let range = format!("scf.for {index} = {from} to {to} step {step}");
        if carried.is_empty() {
            self.line(format_args!("{range} {{"));
            self.open += 1;
            body(self, &index, &[]);
            self.open -= 1;
            self.line("}");
            return Vec::new();
        }
        let inside: Vec<String> = carried.iter().map(|_| self.fresh("carried")).collect();
        let total = self.fresh("total");
        let starts: Vec<String> =
            inside.iter().zip(carried).map(|(name, (start, _))| format!("{name} = {start}")).collect();
        let types = carried.iter().map(|(_, ty)| ty.as_str()).collect::<Vec<_>>().join(", ");
        let count = carried.len();
        self.line(format_args!("{total}:{count} = {range} iter_args({}) -> ({types}) {{", starts.join(", ")));
        self.open += 1;
        let next = body(self, &index, &inside);
        self.line(format_args!("scf.yield {} : {types}", next.join(", ")));
        self.open -= 1;
        self.line("}");
        (0..count).map(|i| format!("{total}#{i}")).collect()
    }

    /// `scf.if` without results: `then` runs where `condition`, of type `i1`, holds.
    pub(crate) fn if_then(&mut self, condition: &str, then: impl FnOnce(&mut Self)) {
        self.line(format_args!("scf.if {condition} {{"));
        self.open += 1;
        then(self);
        self.open -= 1;
        self.line("}");
    }

    /// The constants and then the operations.
    pub(super) fn finish(&self) -> String {
        let indent = 2 * DEPTH;
        let mut text = String::new();
        for ((ty, literal), name) in &self.constants {
            let _ = writeln!(text, "{:indent$}{name} = arith.constant {literal} : {ty}", "");
        }
        text + &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_carries_values_and_constants_come_first() {
        let mut w = Writer::default();
        let [zero, one, four] = [0, 1, 4].map(|value| w.index(value));
        let start = w.constant("0.0", "f32");
        assert_eq!(w.constant("0.0", "f32"), start);
        let carried = [(start, "f32".to_owned())];
        let sums = w.for_loop("k", [&zero, &four, &one], &carried, |w, _, carried| {
            vec![w.arith("sum", "addf", &carried[0], &carried[0], "f32")]
        });
        w.line(format_args!("use {}", sums[0]));
        let text = "
        %constant_3 = arith.constant 0.0 : f32
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c4 = arith.constant 4 : index
        %total_0:1 = scf.for %k_0 = %c0 to %c4 step %c1 iter_args(%carried_0 = %constant_3) -> (f32) {
          %sum_0 = arith.addf %carried_0, %carried_0 : f32
          scf.yield %sum_0 : f32
        }
        use %total_0#0
";
        assert_eq!(w.finish(), text[1..]);
    }

    #[test]
    fn adding_zero_and_dividing_by_one_write_nothing() {
        let mut w = Writer::default();
        assert_eq!(w.offset("at", "%row", 0), "%row");
        assert_eq!(w.offset("at", "%row", 2), "%at_0");
        assert!(w.finish().contains("%at_0 = arith.addi %row, %c2"));
        assert_eq!(w.divided("group", "%chunk", 1), "%chunk");
    }
}
