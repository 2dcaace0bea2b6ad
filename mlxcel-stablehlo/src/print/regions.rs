//! Operations with regions; those of reductions and scatter are implied by the module and spelled out here.

use std::fmt;

use super::Writer;
use super::ops::numbers;
use crate::module::{Op, Reduction, ScatterDimensions, ScatterUpdate, ValueId};
use crate::types::{ElementType, TensorType};

impl Writer<'_, '_> {
    pub(super) fn while_loop(&mut self, op: &Op) -> fmt::Result {
        let initial: Vec<String> = op.operands.iter().map(|&operand| self.name(operand).to_owned()).collect();
        let types = self.types(&op.operands, false);
        self.define(&op.results)?;
        // One set of names serves both regions.
        let names: Vec<String> = initial.iter().map(|_| self.fresh()).collect();
        for region in &op.regions {
            for (&argument, name) in region.arguments.iter().zip(&names) {
                self.set_name(argument, name.clone());
            }
        }
        let pairs: Vec<String> =
            names.iter().zip(&initial).map(|(name, initial)| format!("{name} = {initial}")).collect();
        writeln!(self.out, "stablehlo.while({}) : {types}", pairs.join(", "))?;
        for (keyword, region) in ["cond {\n", "} do {\n"].into_iter().zip(&op.regions) {
            self.indent()?;
            self.out.write_str(keyword)?;
            self.block(region, "stablehlo.return")?;
        }
        self.indent()?;
        self.out.write_str("}\n")
    }

    pub(super) fn scatter(
        &mut self,
        op: &Op,
        dimensions: &ScatterDimensions,
        update: ScatterUpdate,
        unique_indices: bool,
    ) -> fmt::Result {
        let (operands, signature) = (self.list(&op.operands), self.signature(op));
        let scalar = self.scalar_of(op.operands.first());
        self.define(&op.results)?;
        let numbers = numbers(&[
            ("update_window_dims", &dimensions.update_window_dims),
            ("inserted_window_dims", &dimensions.inserted_window_dims),
            ("scatter_dims_to_operand_dims", &dimensions.scatter_dims_to_operand_dims),
        ]);
        let vector = dimensions.index_vector_dim;
        writeln!(
            self.out,
            "\"stablehlo.scatter\"({operands}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{numbers}index_vector_dim = {vector}>, unique_indices = {unique_indices}}}> ({{"
        )?;
        let (old, new) = (self.fresh(), self.fresh());
        self.line(&format!("^bb0({old}: {scalar}, {new}: {scalar}):"), 0)?;
        let result = match update {
            ScatterUpdate::Replace => new,
            ScatterUpdate::Add => self.defined(&format!("add {old}, {new} : {scalar}"), 1)?,
        };
        self.line(&format!("stablehlo.return {result} : {scalar}"), 1)?;
        self.line(&format!("}}) : {signature}"), 0)
    }

    pub(super) fn reduce(&mut self, op: &Op, reduction: Reduction, dimensions: &[usize]) -> fmt::Result {
        let operand = self.list(&op.operands);
        let (types, results) = (self.types(&op.operands, false), self.types(&op.results, true));
        let scalar = self.scalar_of(op.operands.first());
        let initial = self.constant(&neutral(reduction, scalar.element), &scalar)?;
        self.define(&op.results)?;
        let (name, dimensions) = (reduction.joins_by().name(), super::text::bracketed(dimensions));
        writeln!(
            self.out,
            "stablehlo.reduce({operand} init: {initial}) applies stablehlo.{name} across dimensions = {dimensions} : ({types}, {scalar}) -> {results}"
        )
    }

    /// A reduction of pairs that starts at what loses against every element: not a number (the least integer)
    /// at the highest index. Its order is total, so that the result does not depend on how a compiler
    /// splits the reduction.
    pub(super) fn reduce_argmax(&mut self, op: &Op, dimension: usize) -> fmt::Result {
        let [values, indices] = op.operands[..] else { return Ok(()) };
        let (value, index) = (self.scalar_of(Some(&values)), self.scalar_of(Some(&indices)));
        let float = value.element.is_float();
        let worst = if float { not_a_number(value.element) } else { neutral(Reduction::Max, value.element) };
        let worst = self.constant(&worst, &value)?;
        let last = self.constant(&neutral(Reduction::Min, index.element), &index)?;
        let (values, indices) = (self.name(values).to_owned(), self.name(indices).to_owned());
        let (types, results) = (self.types(&op.operands, false), self.types(&op.results, true));
        self.define(&op.results)?;
        writeln!(
            self.out,
            "stablehlo.reduce({values} init: {worst}), ({indices} init: {last}) across dimensions = [{dimension}] : ({types}, {value}, {index}) -> {results}"
        )?;
        let [va, vb, ia, ib] = [(); 4].map(|()| self.fresh());
        self.line(&format!("reducer({va}: {value}, {vb}: {value}) ({ia}: {index}, {ib}: {index}) {{"), 0)?;
        let above = self.compare("GT", &va, &vb, &value)?;
        let equal = self.compare("EQ", &va, &vb, &value)?;
        let earlier = self.compare("LT", &ia, &ib, &index)?;
        let (above, equal) = if float {
            let a_is_none = self.compare("NE", &va, &va, &value)?;
            let b_is_none = self.compare("NE", &vb, &vb, &value)?;
            let both = self.logic("and", &a_is_none, &b_is_none)?;
            let only_b = self.logic("xor", &b_is_none, &both)?;
            (self.logic("or", &above, &only_b)?, self.logic("or", &equal, &both)?)
        } else {
            (above, equal)
        };
        let tie = self.logic("and", &equal, &earlier)?;
        let first = self.logic("or", &above, &tie)?;
        let value_result = self.select(&first, &va, &vb, &value)?;
        let index_result = self.select(&first, &ia, &ib, &index)?;
        self.line(&format!("stablehlo.return {value_result}, {index_result} : {value}, {index}"), 1)?;
        self.line("}", 0)
    }

    pub(super) fn scalar_of(&self, value: Option<&ValueId>) -> TensorType {
        let element = value.and_then(|value| self.function.values.get(value.index())).map(|ty| ty.element);
        TensorType::scalar(element.unwrap_or(ElementType::I1))
    }

    fn line(&mut self, text: &str, deeper: usize) -> fmt::Result {
        self.depth += deeper;
        self.indent()?;
        self.depth -= deeper;
        writeln!(self.out, "{text}")
    }

    /// An operation of the reducer, by the name of its result.
    fn defined(&mut self, op: &str, deeper: usize) -> Result<String, fmt::Error> {
        let name = self.fresh();
        self.line(&format!("{name} = stablehlo.{op}"), deeper)?;
        Ok(name)
    }

    fn constant(&mut self, text: &str, ty: &TensorType) -> Result<String, fmt::Error> {
        self.defined(&format!("constant dense<{text}> : {ty}"), 0)
    }

    fn compare(&mut self, direction: &str, a: &str, b: &str, ty: &TensorType) -> Result<String, fmt::Error> {
        let kind = kind(ty.element);
        self.defined(&format!("compare {direction}, {a}, {b}, {kind} : ({ty}, {ty}) -> tensor<i1>"), 1)
    }

    fn logic(&mut self, op: &str, a: &str, b: &str) -> Result<String, fmt::Error> {
        self.defined(&format!("{op} {a}, {b} : tensor<i1>"), 1)
    }

    fn select(&mut self, condition: &str, a: &str, b: &str, ty: &TensorType) -> Result<String, fmt::Error> {
        self.defined(&format!("select {condition}, {a}, {b} : tensor<i1>, {ty}"), 1)
    }
}

/// How `compare` reads elements.
pub(super) fn kind(element: ElementType) -> &'static str {
    match element {
        ElementType::F32 | ElementType::F16 | ElementType::BF16 => "FLOAT",
        ElementType::I64 | ElementType::I32 | ElementType::I8 | ElementType::I4 => "SIGNED",
        ElementType::I1 | ElementType::U32 | ElementType::U8 | ElementType::U4 => "UNSIGNED",
    }
}

/// What changes nothing when joined.
fn neutral(reduction: Reduction, element: ElementType) -> String {
    let integer = |smallest: bool| {
        let bits = element.bits();
        let bound = match (element.is_signed(), smallest) {
            (true, true) => -(1i128 << (bits - 1)),
            (true, false) => (1i128 << (bits - 1)) - 1,
            (false, true) => 0,
            (false, false) => (1i128 << bits) - 1,
        };
        bound.to_string()
    };
    let infinity = |negative: bool| match (element, negative) {
        (ElementType::F16, false) => "0x7C00".to_owned(),
        (ElementType::F16, true) => "0xFC00".to_owned(),
        (ElementType::BF16, false) => "0x7F80".to_owned(),
        (ElementType::BF16, true) => "0xFF80".to_owned(),
        (_, false) => "0x7F800000".to_owned(),
        (_, true) => "0xFF800000".to_owned(),
    };
    match (reduction, element.is_float()) {
        (Reduction::Sum, true) => "0.0".to_owned(),
        (Reduction::Sum, false) => "0".to_owned(),
        (Reduction::Product, true) => "1.0".to_owned(),
        (Reduction::Product, false) => "1".to_owned(),
        (Reduction::Max, true) => infinity(true),
        (Reduction::Max, false) => integer(true),
        (Reduction::Min, true) => infinity(false),
        (Reduction::Min, false) => integer(false),
        (Reduction::And, _) => "true".to_owned(),
        (Reduction::Or, _) => "false".to_owned(),
    }
}

fn not_a_number(element: ElementType) -> String {
    match element {
        ElementType::F16 => "0x7E00",
        ElementType::BF16 => "0x7FC0",
        _ => "0x7FC00000",
    }
    .to_owned()
}
