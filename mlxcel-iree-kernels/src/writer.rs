//! Writes the body of a kernel: MLIR operations, line by line, with generated value names, whose operands are
//! checked.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use crate::value::{Operand, Type, casts, listed};

/// The indentation of a kernel function's body.
const DEPTH: usize = 4;

/// The operations of a kernel, in the order in which they run.
///
/// Values have names such as `%sum_3`: a word that describes the value, and a number that makes it unique.
/// Constants are collected and written at the function's beginning.
///
/// Operations on operands of wrong types are written too, and the first is kept as the kernel's
/// [defect](Self::defect).
#[derive(Debug, Default)]
pub(crate) struct Writer {
    text: String,
    /// Blocks that are open.
    open: usize,
    /// The number of values per word.
    named: BTreeMap<String, usize>,
    /// The names of constants, by type and literal.
    constants: BTreeMap<(String, String), String>,
    defect: Option<String>,
}

impl Writer {
    /// An operation without results.
    pub(crate) fn line(&mut self, operation: impl Display) {
        let indent = 2 * (DEPTH + self.open);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:indent$}{operation}", "");
    }

    /// An operation whose result, named by `word` and a number, is no [`Operand`], such as a `memref`.
    pub(crate) fn define(&mut self, word: &str, operation: impl Display) -> String {
        let name = self.fresh(word);
        self.line(format_args!("{name} = {operation}"));
        name
    }

    /// An operation with one result of this type, named by `word` and a number. Its operands are not checked.
    pub(crate) fn set(&mut self, word: &str, ty: Type, operation: impl Display) -> Operand {
        Operand::new(self.define(word, operation), ty)
    }

    /// An unused name.
    pub(crate) fn fresh(&mut self, word: &str) -> String {
        let number = self.named.entry(word.to_owned()).or_default();
        *number += 1;
        format!("%{word}_{}", *number - 1)
    }

    /// What is wrong with the first operation that got operands of wrong types: the operation, what it takes,
    /// and what it got.
    pub(crate) fn defect(&self) -> Option<&str> {
        self.defect.as_deref()
    }

    /// Keeps a defect unless `holds`: `operation` takes `rule`, and got these operands.
    pub(crate) fn check(
        &mut self,
        holds: bool,
        operation: impl Display,
        rule: impl Display,
        operands: &[&Operand],
    ) {
        if !holds && self.defect.is_none() {
            let given: Vec<_> = operands.iter().map(|operand| format!("{operand}: {}", operand.ty)).collect();
            self.defect = Some(format!("{operation} takes {rule}, not ({})", given.join(", ")));
        }
    }

    fn check_indices(&mut self, operation: &str, operands: &[&Operand]) {
        let holds = operands.iter().all(|operand| operand.ty == Type::INDEX);
        self.check(holds, operation, "operands of type index", operands);
    }

    /// A constant: `literal` as MLIR writes it for an element, or a list of them; in every lane of a vector
    /// if it is one.
    pub(crate) fn constant(&mut self, literal: impl Display, ty: Type) -> Operand {
        let count = self.constants.len();
        let literal = if ty.is_vector() { format!("dense<{literal}>") } else { literal.to_string() };
        let name = self.constants.entry((ty.to_string(), literal));
        Operand::new(name.or_insert_with(|| format!("%constant_{count}")).clone(), ty)
    }

    /// A float as a [constant](Self::constant).
    pub(crate) fn float(&mut self, value: f32, ty: Type) -> Operand {
        self.constant(format_args!("{value:?}"), ty)
    }

    /// The constant `value` of type `index`.
    pub(crate) fn index(&mut self, value: usize) -> Operand {
        let name = self.constants.entry(("index".to_owned(), value.to_string()));
        Operand::new(name.or_insert_with(|| format!("%c{value}")).clone(), Type::INDEX)
    }

    /// `base + offset`, of type `index`; `base` itself for an offset of 0.
    pub(crate) fn offset(&mut self, word: &str, base: &Operand, offset: usize) -> Operand {
        if offset == 0 {
            self.check_indices("offset", &[base]);
            return base.clone();
        }
        let offset = self.index(offset);
        self.added(word, base, &offset)
    }

    /// `a + b`, of type `index`.
    pub(crate) fn added(&mut self, word: &str, a: &Operand, b: &Operand) -> Operand {
        self.check_indices("arith.addi", &[a, b]);
        self.set(word, Type::INDEX, format_args!("arith.addi {a}, {b} overflow<nsw, nuw> : index"))
    }

    /// `value · factor`, of type `index`.
    pub(crate) fn scaled(&mut self, word: &str, value: &Operand, factor: usize) -> Operand {
        let factor = self.index(factor);
        self.check_indices("arith.muli", &[value, &factor]);
        self.set(word, Type::INDEX, format_args!("arith.muli {value}, {factor} overflow<nsw, nuw> : index"))
    }

    /// `value / divisor`, rounded down, of type `index`; `value` itself for a divisor of 1.
    pub(crate) fn divided(&mut self, word: &str, value: &Operand, divisor: usize) -> Operand {
        if divisor == 1 {
            self.check_indices("divided", &[value]);
            return value.clone();
        }
        let divisor = self.index(divisor);
        self.check_indices("arith.divui", &[value, &divisor]);
        self.arith(word, "divui", value, &divisor)
    }

    /// `a op b` of values of one type, `op` being an operation of the dialect `arith` such as `addi`.
    pub(crate) fn arith(&mut self, word: &str, op: &str, a: &Operand, b: &Operand) -> Operand {
        let ty = a.ty;
        let floats = op.ends_with('f');
        let rule = if floats { "floats of one type" } else { "integers of one type" };
        let holds = ty == b.ty && ty.is_float() == floats;
        self.check(holds, format_args!("arith.{op}"), rule, &[a, b]);
        self.set(word, ty, format_args!("arith.{op} {a}, {b} : {ty}"))
    }

    /// `op` of floats, named with its dialect, such as `math.sqrt`.
    pub(crate) fn unary(&mut self, word: &str, op: &str, value: &Operand) -> Operand {
        let ty = value.ty;
        self.check(ty.is_float(), op, "floats", &[value]);
        self.set(word, ty, format_args!("{op} {value} : {ty}"))
    }

    /// `a · b + c` of vectors of floats.
    pub(crate) fn fma(&mut self, word: &str, a: &Operand, b: &Operand, c: &Operand) -> Operand {
        let ty = a.ty;
        let holds = ty.is_float() && ty.is_vector() && b.ty == ty && c.ty == ty;
        self.check(holds, "vector.fma", "vectors of floats of one type", &[a, b, c]);
        self.set(word, ty, format_args!("vector.fma {a}, {b}, {c} : {ty}"))
    }

    /// Whether `a` relates to `b`, lane by lane. Predicates are those of `arith.cmpf` for floats and
    /// `arith.cmpi` for all others.
    pub(crate) fn compare(&mut self, word: &str, predicate: &str, a: &Operand, b: &Operand) -> Operand {
        let ty = a.ty;
        let floats = predicate.starts_with('o');
        let op = if floats { "arith.cmpf" } else { "arith.cmpi" };
        let rule = if floats { "floats of one type" } else { "integers of one type" };
        let holds = ty == b.ty && ty.is_float() == floats;
        self.check(holds, format_args!("{op} {predicate}"), rule, &[a, b]);
        self.set(word, ty.of("i1"), format_args!("{op} {predicate}, {a}, {b} : {ty}"))
    }

    /// `a` where `condition` holds, else `b`; a condition of several lanes chooses lane by lane.
    pub(crate) fn select(&mut self, word: &str, condition: &Operand, a: &Operand, b: &Operand) -> Operand {
        let ty = a.ty;
        let holds = ty == b.ty && (condition.ty == Type::I1 || condition.ty == ty.of("i1"));
        self.check(holds, "arith.select", "a condition and two values of one type", &[condition, a, b]);
        let types = if condition.ty.is_vector() { format!("{}, {ty}", condition.ty) } else { ty.to_string() };
        self.set(word, ty, format_args!("arith.select {condition}, {a}, {b} : {types}"))
    }

    /// `op` of the dialect `arith`, such as `extf`, which turns each element of a value into one of type
    /// `element`.
    pub(crate) fn cast(&mut self, word: &str, op: &str, value: &Operand, element: &'static str) -> Operand {
        let (from, to) = (value.ty, value.ty.of(element));
        let op = format!("arith.{op}");
        self.check(casts(&op[6..], from, to), &op, format_args!("what it casts to {to}"), &[value]);
        self.set(word, to, format_args!("{op} {value} : {from} to {to}"))
    }

    /// The low and the high bfloat16 of each lane of a vector of 32-bit integers, as float32, whose upper
    /// half they are.
    pub(crate) fn halves(&mut self, word: &str, pairs: &Operand) -> [Operand; 2] {
        let (half, upper) = (self.constant(16, pairs.ty), self.constant(-65536, pairs.ty));
        let low = self.arith("shifted", "shli", pairs, &half);
        let high = self.arith("masked", "andi", pairs, &upper);
        [low, high].map(|bits| self.cast(word, "bitcast", &bits, "f32"))
    }

    /// The bits of a vector as another one.
    pub(crate) fn bitcast(&mut self, word: &str, value: &Operand, ty: Type) -> Operand {
        let from = value.ty;
        let holds = from.is_vector() && ty.is_vector() && from.bits().is_some() && from.bits() == ty.bits();
        self.check(holds, "vector.bitcast", format_args!("a vector of the size of {ty}"), &[value]);
        self.set(word, ty, format_args!("vector.bitcast {value} : {from} to {ty}"))
    }

    /// A scalar in all of `lanes`.
    pub(crate) fn broadcast(&mut self, word: &str, value: &Operand, lanes: usize) -> Operand {
        let ty = Type::vector(lanes, value.ty.element);
        self.check(!value.ty.is_vector(), "vector.broadcast", "a scalar", &[value]);
        self.set(word, ty, format_args!("vector.broadcast {value} : {} to {ty}", value.ty))
    }

    /// Scalars as a vector.
    pub(crate) fn elements(&mut self, word: &str, values: &[Operand]) -> Operand {
        let element = values.first().map_or(Type::INDEX, |value| value.ty);
        let ty = Type::vector(values.len(), element.element);
        let holds =
            !values.is_empty() && values.iter().all(|value| value.ty == Type::scalar(element.element));
        let operands: Vec<&Operand> = values.iter().collect();
        self.check(holds, "vector.from_elements", "scalars of one type", &operands);
        self.set(word, ty, format_args!("vector.from_elements {} : {ty}", listed(values)))
    }

    /// One element of a vector.
    pub(crate) fn extract(&mut self, word: &str, value: &Operand, place: usize) -> Operand {
        let ty = Type::scalar(value.ty.element);
        let holds = value.ty.is_vector() && place < value.ty.len();
        self.check(holds, "vector.extract", format_args!("a vector with an element {place}"), &[value]);
        self.set(word, ty, format_args!("vector.extract {value}[{place}] : {ty} from {}", value.ty))
    }

    /// Elements of two vectors: those at `places`, where the second's follow the first's.
    pub(crate) fn shuffle(&mut self, word: &str, a: &Operand, b: &Operand, places: &[usize]) -> Operand {
        let ty = Type::vector(places.len(), a.ty.element);
        let holds = a.ty.is_vector()
            && b.ty.is_vector()
            && a.ty.element == b.ty.element
            && places.iter().all(|&place| place < a.ty.len() + b.ty.len());
        self.check(holds, "vector.shuffle", format_args!("vectors with elements {places:?}"), &[a, b]);
        self.set(word, ty, format_args!("vector.shuffle {a}, {b} {places:?} : {}, {}", a.ty, b.ty))
    }

    /// The operation `kind`, such as `add` or `maximumf`, over all lanes.
    pub(crate) fn reduce(&mut self, word: &str, kind: &str, value: &Operand) -> Operand {
        let ty = Type::scalar(value.ty.element);
        self.check(value.ty.is_vector(), "vector.reduction", "a vector", &[value]);
        self.set(word, ty, format_args!("vector.reduction <{kind}>, {value} : {} into {ty}", value.ty))
    }

    /// An intrinsic of LLVM with a result of this type. Its operands are not checked.
    pub(crate) fn intrinsic(&mut self, word: &str, name: &str, operands: &[&Operand], ty: Type) -> Operand {
        let types = operands.iter().map(|operand| operand.ty.to_string()).collect::<Vec<_>>().join(", ");
        let operands = listed(operands.iter().copied());
        self.set(word, ty, format_args!("llvm.call_intrinsic \"{name}\"({operands}) : ({types}) -> {ty}"))
    }

    /// `scf.for` from `from` to `to` by `step`: `body` gets the index and the carried values, which begin
    /// with `carried`, and returns those of the next iteration. Returns the final ones.
    pub(crate) fn for_loop(
        &mut self,
        word: &str,
        [from, to, step]: [&Operand; 3],
        carried: &[Operand],
        body: impl FnOnce(&mut Self, &Operand, &[Operand]) -> Vec<Operand>,
    ) -> Vec<Operand> {
        self.check_indices("scf.for", &[from, to, step]);
        let index = Operand::new(self.fresh(word), Type::INDEX);
        let range = format!("scf.for {index} = {from} to {to} step {step}");
        if carried.is_empty() {
            self.line(format_args!("{range} {{"));
            self.open += 1;
            let next = body(self, &index, &[]);
            self.check_carried(carried, &next);
            self.open -= 1;
            self.line("}");
            return Vec::new();
        }
        let inside: Vec<Operand> =
            carried.iter().map(|start| Operand::new(self.fresh("carried"), start.ty)).collect();
        let total = self.fresh("total");
        let starts: Vec<String> =
            inside.iter().zip(carried).map(|(name, start)| format!("{name} = {start}")).collect();
        let types = carried.iter().map(|start| start.ty.to_string()).collect::<Vec<_>>().join(", ");
        let count = carried.len();
        self.line(format_args!("{total}:{count} = {range} iter_args({}) -> ({types}) {{", starts.join(", ")));
        self.open += 1;
        let next = body(self, &index, &inside);
        self.check_carried(carried, &next);
        self.line(format_args!("scf.yield {} : {types}", listed(&next)));
        self.open -= 1;
        self.line("}");
        let result = |(i, start): (usize, &Operand)| Operand::new(format!("{total}#{i}"), start.ty);
        carried.iter().enumerate().map(result).collect()
    }

    /// Checks that the values of a loop's next iteration have the types of those that it carries.
    fn check_carried(&mut self, carried: &[Operand], next: &[Operand]) {
        let holds = carried.iter().map(|value| value.ty).eq(next.iter().map(|value| value.ty));
        let types: Vec<_> = carried.iter().map(|value| value.ty.to_string()).collect();
        let operands: Vec<&Operand> = next.iter().collect();
        let rule = format!("as many values of the types that are carried, ({})", types.join(", "));
        self.check(holds, "scf.yield", rule, &operands);
    }

    /// `scf.if` without results: `then` runs where `condition`, of type `i1`, holds.
    pub(crate) fn if_then(&mut self, condition: &Operand, then: impl FnOnce(&mut Self)) {
        self.check(condition.ty == Type::I1, "scf.if", "a condition of type i1", &[condition]);
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
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn a_loop_carries_values_and_constants_come_first() {
        let mut w = Writer::default();
        let [zero, one, four] = [0, 1, 4].map(|value| w.index(value));
        let start = w.constant("0.0", Type::F32);
        assert_eq!(w.constant("0.0", Type::F32), start);
        let sums = w.for_loop("k", [&zero, &four, &one], &[start], |w, _, carried| {
            vec![w.arith("sum", "addf", &carried[0], &carried[0])]
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
        assert_eq!((w.finish(), w.defect()), (text[1..].to_owned(), None));
    }

    #[test]
    fn adding_zero_and_dividing_by_one_write_nothing() {
        let mut w = Writer::default();
        let row = w.set("row", Type::INDEX, "test.row");
        assert_eq!(w.offset("at", &row, 0), row);
        assert_eq!(w.divided("group", &row, 1), row);
        assert_eq!(w.offset("at", &row, 2).to_string(), "%at_0");
        assert!(w.finish().ends_with("%at_0 = arith.addi %row_0, %c2 overflow<nsw, nuw> : index\n"));
    }

    /// The defect after `write`, which gets values of type `f32`, `index` and `vector<4xf32>`.
    fn defect(write: impl FnOnce(&mut Writer, &Operand, &Operand, &Operand)) -> String {
        let mut w = Writer::default();
        let [x, at, lanes] = [("x", Type::F32), ("at", Type::INDEX), ("lanes", Type::vector(4, "f32"))]
            .map(|(word, ty)| w.set(word, ty, "test.value"));
        write(&mut w, &x, &at, &lanes);
        w.defect().unwrap_or_default().to_owned()
    }

    #[test]
    fn the_first_operation_on_operands_of_wrong_types_is_the_defect() {
        let mixed = defect(|w, x, _, lanes| {
            w.arith("sum", "addf", x, lanes);
            w.arith("sum", "addi", x, x);
        });
        assert_eq!(mixed, "arith.addf takes floats of one type, not (%x_0: f32, %lanes_0: vector<4xf32>)");
        let integers = defect(|w, x, _, _| _ = w.arith("sum", "addi", x, x));
        assert_eq!(integers, "arith.addi takes integers of one type, not (%x_0: f32, %x_0: f32)");
        let float = defect(|w, x, _, _| _ = w.offset("at", x, 2));
        assert_eq!(float, "arith.addi takes operands of type index, not (%x_0: f32, %c2: index)");
        let float = defect(|w, x, _, _| _ = w.divided("at", x, 1));
        assert_eq!(float, "divided takes operands of type index, not (%x_0: f32)");
        let narrowed = defect(|w, x, _, _| _ = w.cast("x", "extf", x, "bf16"));
        assert_eq!(narrowed, "arith.extf takes what it casts to bf16, not (%x_0: f32)");
        let smaller = defect(|w, _, _, lanes| _ = w.bitcast("x", lanes, Type::vector(4, "i16")));
        assert_eq!(
            smaller,
            "vector.bitcast takes a vector of the size of vector<4xi16>, not (%lanes_0: vector<4xf32>)"
        );
    }

    #[test]
    fn operations_of_all_kinds_check_their_operands() {
        type Write = fn(&mut Writer, &Operand, &Operand, &Operand);
        let wrong: [(&str, Write); 12] = [
            ("arith.muli", |w, x, _, _| _ = w.scaled("at", x, 2)),
            ("math.sqrt", |w, _, at, _| _ = w.unary("root", "math.sqrt", at)),
            ("vector.fma", |w, x, _, _| _ = w.fma("sum", x, x, x)),
            ("arith.cmpf ogt", |w, x, at, _| _ = w.compare("is", "ogt", x, at)),
            ("arith.cmpi ult", |w, x, _, _| _ = w.compare("is", "ult", x, x)),
            ("arith.select", |w, x, _, _| _ = w.select("chosen", x, x, x)),
            ("vector.broadcast", |w, _, _, lanes| _ = w.broadcast("x", lanes, 4)),
            ("vector.from_elements", |w, x, at, _| _ = w.elements("x", &[x.clone(), at.clone()])),
            ("vector.extract", |w, _, _, lanes| _ = w.extract("x", lanes, 4)),
            ("vector.shuffle", |w, _, _, lanes| _ = w.shuffle("x", lanes, lanes, &[7, 8])),
            ("vector.reduction", |w, x, _, _| _ = w.reduce("x", "add", x)),
            ("scf.if", |w, _, at, _| w.if_then(at, |_| ())),
        ];
        for (operation, write) in wrong {
            let defect = defect(write);
            assert!(defect.starts_with(&format!("{operation} takes ")), "{operation}: {defect}");
        }
    }

    #[test]
    fn a_loop_yields_the_types_that_it_carries() {
        let other = defect(|w, x, at, _| {
            w.for_loop("k", [at, at, at], from_ref(x), |_, index, _| vec![index.clone()]);
        });
        let rule = "scf.yield takes as many values of the types that are carried, (f32)";
        assert_eq!(other, format!("{rule}, not (%k_0: index)"));
        let none = defect(|w, x, at, _| _ = w.for_loop("k", [at, at, at], from_ref(x), |_, _, _| Vec::new()));
        assert_eq!(none, format!("{rule}, not ()"));
        let range = defect(|w, x, at, _| _ = w.for_loop("k", [at, x, at], &[], |_, _, _| Vec::new()));
        assert!(range.starts_with("scf.for takes operands of type index"), "{range}");
    }
}
