//! Operations without regions, one line each.

use std::fmt;

use super::literal::dense;
use super::regions::kind;
use super::text::{Dictionary, Quoted, Symbol, bracketed};
use super::{CustomCall, Writer};
use crate::module::{Attribute, DotDimensions, GatherDimensions, Op, OpKind};

impl Writer<'_, '_> {
    /// `%result = stablehlo.name operands, attributes : types`.
    pub(super) fn plain(&mut self, op: &Op) -> fmt::Result {
        let operands = self.list(&op.operands);
        let result = self.types(&op.results, true);
        let signature = self.signature(op);
        self.define(&op.results)?;
        let name = op.kind.name();
        let text = match &op.kind {
            OpKind::Constant(literal) => {
                return writeln!(self.out, "stablehlo.constant {} : {result}", dense(literal));
            }
            OpKind::Iota { dimension } => {
                return writeln!(self.out, "stablehlo.iota dim = {dimension} : {result}");
            }
            OpKind::Reshape
            | OpKind::Convert
            | OpKind::BitcastConvert
            | OpKind::DynamicUpdateSlice
            | OpKind::Unary(_)
            | OpKind::Binary(_)
            | OpKind::Select
            | OpKind::Clamp => format!("stablehlo.{name} {operands}"),
            OpKind::BroadcastInDim { dimensions } | OpKind::Transpose { permutation: dimensions } => {
                format!("stablehlo.{name} {operands}, dims = {}", bracketed(dimensions))
            }
            OpKind::Slice { start, limit, stride } => {
                let bounds: Vec<String> = (start.iter().zip(limit).zip(stride))
                    .map(|((start, limit), stride)| match stride {
                        1 => format!("{start}:{limit}"),
                        _ => format!("{start}:{limit}:{stride}"),
                    })
                    .collect();
                format!("stablehlo.slice {operands} {}", bracketed(&bounds))
            }
            OpKind::DynamicSlice { sizes } => {
                format!("stablehlo.dynamic_slice {operands}, sizes = {}", bracketed(sizes))
            }
            OpKind::Concatenate { dimension } => {
                format!("stablehlo.concatenate {operands}, dim = {dimension}")
            }
            OpKind::Pad { low, high, interior } => {
                let (low, high, interior) = (bracketed(low), bracketed(high), bracketed(interior));
                format!("stablehlo.pad {operands}, low = {low}, high = {high}, interior = {interior}")
            }
            OpKind::Gather { dimensions } => {
                format!("\"stablehlo.gather\"({operands}) <{{{}}}>", gather(dimensions))
            }
            OpKind::Compare(comparison) => {
                let kind = kind(self.scalar_of(op.operands.first()).element);
                format!("stablehlo.compare {}, {operands}, {kind}", comparison.name())
            }
            OpKind::DotGeneral { dimensions } => {
                let precision = if self.highest_precision { ", precision = [HIGHEST, HIGHEST]" } else { "" };
                format!("stablehlo.dot_general {operands}{}{precision}", dot(dimensions))
            }
            OpKind::Composite { name, decomposition, attributes } => {
                let (name, decomposition) = (Quoted(name), Symbol(decomposition));
                let attributes = match attributes.is_empty() {
                    true => String::new(),
                    false => format!("composite_attributes = {}, ", Dictionary(attributes)),
                };
                format!(
                    "stablehlo.composite {name} {operands} {{{attributes}decomposition = {decomposition}}}"
                )
            }
            OpKind::Call { function } => format!("func.call {}({operands})", Symbol(function)),
            OpKind::CustomCall { target, attributes, has_side_effect } => {
                let custom = self.custom_calls.and_then(|write| {
                    let operands = op.operands.iter().map(|&operand| self.name(operand)).collect();
                    write(&CustomCall { target, attributes, operands, signature: &signature })
                });
                if let Some(text) = custom {
                    return writeln!(self.out, "{text}");
                }
                let attributes = custom_call_attributes(attributes, *has_side_effect);
                format!("stablehlo.custom_call {}({operands}){attributes}", Symbol(target))
            }
            // Those with regions are written by `Writer::op`'s other branches.
            OpKind::Scatter { .. } | OpKind::Reduce { .. } | OpKind::ReduceArgMax { .. } | OpKind::While => {
                return Ok(());
            }
        };
        writeln!(self.out, "{text} : {signature}")
    }
}

fn custom_call_attributes(attributes: &[(String, Attribute)], has_side_effect: bool) -> String {
    let mut entries = Vec::new();
    if has_side_effect {
        entries.push("has_side_effect = true".to_owned());
    }
    if !attributes.is_empty() {
        entries.push(format!("mhlo.backend_config = {}", Dictionary(attributes)));
    }
    if entries.is_empty() { String::new() } else { format!(" {{{}}}", entries.join(", ")) }
}

fn gather(dimensions: &GatherDimensions) -> String {
    let numbers = numbers(&[
        ("offset_dims", &dimensions.offset_dims),
        ("collapsed_slice_dims", &dimensions.collapsed_slice_dims),
        ("start_index_map", &dimensions.start_index_map),
    ]);
    let vector = dimensions.index_vector_dim;
    let sizes = match &dimensions.slice_sizes[..] {
        [] => "array<i64>".to_owned(),
        sizes => format!("array<i64: {}>", bracketed(sizes).trim_matches(['[', ']'])),
    };
    format!(
        "dimension_numbers = #stablehlo.gather<{numbers}index_vector_dim = {vector}>, indices_are_sorted = false, slice_sizes = {sizes}"
    )
}

fn dot(dimensions: &DotDimensions) -> String {
    let mut text = String::new();
    if !dimensions.lhs_batch.is_empty() {
        let (lhs, rhs) = (bracketed(&dimensions.lhs_batch), bracketed(&dimensions.rhs_batch));
        text.push_str(&format!(", batching_dims = {lhs} x {rhs}"));
    }
    let (lhs, rhs) = (bracketed(&dimensions.lhs_contracting), bracketed(&dimensions.rhs_contracting));
    text.push_str(&format!(", contracting_dims = {lhs} x {rhs}"));
    text
}

/// `name = [..], ` for each list that is not empty: a dimension numbers attribute leaves the others out.
pub(super) fn numbers(lists: &[(&str, &Vec<usize>)]) -> String {
    let given = lists.iter().filter(|(_, list)| !list.is_empty());
    given.map(|(name, list)| format!("{name} = {}, ", bracketed(list))).collect()
}
