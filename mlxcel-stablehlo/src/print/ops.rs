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
        match &op.kind {
            OpKind::Constant(literal) => write!(self.out, "stablehlo.constant {} : {result}", dense(literal)),
            OpKind::Iota { dimension } => write!(self.out, "stablehlo.iota dim = {dimension} : {result}"),
            OpKind::Reshape
            | OpKind::Convert
            | OpKind::BitcastConvert
            | OpKind::DynamicUpdateSlice
            | OpKind::Unary(_)
            | OpKind::Binary(_)
            | OpKind::Select
            | OpKind::Clamp => write!(self.out, "stablehlo.{name} {operands} : {signature}"),
            OpKind::BroadcastInDim { dimensions } | OpKind::Transpose { permutation: dimensions } => {
                write!(
                    self.out,
                    "stablehlo.{name} {operands}, dims = {} : {signature}",
                    bracketed(dimensions)
                )
            }
            OpKind::Slice { start, limit, stride } => {
                let bounds: Vec<String> = (start.iter().zip(limit).zip(stride))
                    .map(|((start, limit), stride)| match stride {
                        1 => format!("{start}:{limit}"),
                        _ => format!("{start}:{limit}:{stride}"),
                    })
                    .collect();
                write!(self.out, "stablehlo.slice {operands} {} : {signature}", bracketed(&bounds))
            }
            OpKind::DynamicSlice { sizes } => {
                write!(
                    self.out,
                    "stablehlo.dynamic_slice {operands}, sizes = {} : {signature}",
                    bracketed(sizes)
                )
            }
            OpKind::Concatenate { dimension } => {
                write!(self.out, "stablehlo.concatenate {operands}, dim = {dimension} : {signature}")
            }
            OpKind::Pad { low, high, interior } => {
                let (low, high, interior) = (bracketed(low), bracketed(high), bracketed(interior));
                let counts = format!("low = {low}, high = {high}, interior = {interior}");
                write!(self.out, "stablehlo.pad {operands}, {counts} : {signature}")
            }
            OpKind::Gather { dimensions } => {
                write!(
                    self.out,
                    "\"stablehlo.gather\"({operands}) <{{{}}}> : {signature}",
                    gather(dimensions)
                )
            }
            OpKind::Compare(comparison) => {
                let kind = kind(self.scalar_of(op.operands.first()).element);
                write!(self.out, "stablehlo.compare {}, {operands}, {kind} : {signature}", comparison.name())
            }
            OpKind::DotGeneral { dimensions } => {
                let precision = if self.highest_precision { ", precision = [HIGHEST, HIGHEST]" } else { "" };
                write!(
                    self.out,
                    "stablehlo.dot_general {operands}{}{precision} : {signature}",
                    dot(dimensions)
                )
            }
            OpKind::Composite { name, decomposition, attributes } => {
                let (name, decomposition) = (Quoted(name), Symbol(decomposition));
                write!(self.out, "stablehlo.composite {name} {operands} {{")?;
                if !attributes.is_empty() {
                    write!(self.out, "composite_attributes = {}, ", Dictionary(attributes))?;
                }
                write!(self.out, "decomposition = {decomposition}}} : {signature}")
            }
            OpKind::Call { function } => {
                write!(self.out, "func.call {}({operands}) : {signature}", Symbol(function))
            }
            OpKind::CustomCall { target, attributes, has_side_effect } => {
                let custom = self.custom_calls.and_then(|write| {
                    let operands = op.operands.iter().map(|&operand| self.name(operand)).collect();
                    write(&CustomCall { target, attributes, operands, signature: &signature })
                });
                match custom {
                    Some(text) => self.out.write_str(&text),
                    None => {
                        let attributes = custom_call_attributes(attributes, *has_side_effect);
                        write!(
                            self.out,
                            "stablehlo.custom_call {}({operands}){attributes} : {signature}",
                            Symbol(target)
                        )
                    }
                }
            }
            // Those with regions are written by `Writer::op`'s other branches.
            OpKind::Scatter { .. } | OpKind::Reduce { .. } | OpKind::ReduceArgMax { .. } | OpKind::While => {
                Ok(())
            }
        }?;
        self.out.write_str("\n")
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
    let sizes: Vec<String> = dimensions.slice_sizes.iter().map(ToString::to_string).collect();
    let sizes =
        if sizes.is_empty() { "array<i64>".to_owned() } else { format!("array<i64: {}>", sizes.join(", ")) };
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
