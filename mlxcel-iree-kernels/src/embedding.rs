//! Embedding lookups in a table in panels, which the model's head may multiply by.

use mlxcel_stablehlo::{Builder, Composite, ElementType, Result, TensorType, Value};

use super::kernels::{Description, Kernel};
use super::layout::{TensorRole, WeightLayout};
use super::value::{Operand, Type};
use super::writer::Writer;
use crate::context::{Context, knows_attributes};

/// Replaces a lookup by a kernel that gathers each row from its panel, as float32.
///
/// A table that is not an argument is not in panels, and is left to the compiler.
pub(super) fn lower<'f>(
    composite: &Composite<'_, 'f>,
    b: &mut Builder<'f>,
    context: &mut Context,
) -> Result<Option<Vec<Value<'f>>>> {
    let [table, ids] = *composite.operands else { return Ok(None) };
    let Some(out) = composite.decomposition.result_types().next().cloned() else { return Ok(None) };
    let element = b.ty(table).element;
    let count = b.ty(ids).elements();
    let &[rows, width] = &b.ty(table).shape[..] else { return Ok(None) };
    let in_panels =
        knows_attributes(composite, &[]) && context.in_panels(b, table, TensorRole::Dense(element));
    if !in_panels || b.ty(ids).element != ElementType::I32 || [rows, width, count].contains(&0) {
        return Ok(None);
    }
    let layout =
        WeightLayout::of(TensorRole::Dense(element), &[rows, width], Some(context.instructions.lanes()));
    let WeightLayout::Panels { lanes, depth } = layout else { return Ok(None) };
    let lookup = Lookup { count, rows, width, element, lanes, depth };
    let ids = b.reshape(ids, &[count])?;
    let results = vec![TensorType::new(ElementType::F32, [count, width])];
    let found = context.kernels.call(b, &lookup, &[table, ids], results)?;
    Ok(Some(vec![b.reshape(found[0], &out.shape)?]))
}

/// `count` rows of a table `[rows, width]` in panels.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    count: usize,
    rows: usize,
    width: usize,
    element: ElementType,
    lanes: usize,
    depth: usize,
}

impl Description for Lookup {
    /// One workgroup for each row.
    fn kernel(&self) -> Kernel {
        let Self { count, rows, width, element, lanes, depth } = *self;
        let mut kernel = Kernel::new(format!("embedding_{element}_{count}x{width}"), [count, 1, 1]);
        let bindings = [kernel.panel_operand("table"), kernel.operand("ids"), kernel.result("out")];
        let table = kernel.view("table", &bindings[0], &[rows * width], element.mlir());
        let ids = kernel.view("ids", &bindings[1], &[count], "i32");
        let out = kernel.view("out", &bindings[2], &[count, width], "f32");
        let token = kernel.workgroup(0);
        let w = &mut kernel.body;

        // An id past the table's end reads the nearest row.
        let id = ids.element(w, "id", &[&token]);
        let (first, last) = (w.constant(0, Type::I32), w.constant(rows - 1, Type::I32));
        let id = w.arith("id", "maxsi", &id, &first);
        let id = w.arith("id", "minsi", &id, &last);
        let row = w.cast("row", "index_cast", &id, "index");

        let copy = |w: &mut Writer, from: &Operand, to: &Operand| {
            let value = table.element(w, "value", &[from]);
            let value = match element {
                ElementType::F32 => value,
                _ => w.cast("value", "extf", &value, "f32"),
            };
            out.store(w, &value, &[&token, to]);
        };
        let lanes_index = w.index(lanes);
        let panel = w.arith("panel", "divui", &row, &lanes_index);
        let lane = w.arith("lane", "remui", &row, &lanes_index);
        let start = w.scaled("start", &panel, lanes * width);
        let [zero, one] = [0, 1].map(|value| w.index(value));
        let in_rows = w.index(rows / lanes * lanes);
        let in_panel = w.compare("in_panel", "ult", &row, &in_rows);
        w.if_then(&in_panel, |w| {
            let steps = w.index(width / depth);
            let of_lane = w.scaled("at", &lane, depth);
            let of_lane = w.added("at", &start, &of_lane);
            w.for_loop("step", [&zero, &steps, &one], &[], |w, step, _| {
                let from = w.scaled("from", step, lanes * depth);
                let from = w.added("from", &of_lane, &from);
                let to = w.scaled("to", step, depth);
                for i in 0..depth {
                    let (from, to) = (w.offset("from", &from, i), w.offset("to", &to, i));
                    copy(w, &from, &to);
                }
                Vec::new()
            });
            for i in width / depth * depth..width {
                let from = w.added("from", &start, &lane);
                let from = w.offset("from", &from, i * lanes);
                let to = w.index(i);
                copy(w, &from, &to);
            }
        });
        if rows % lanes > 0 {
            let as_stored = w.compare("as_stored", "uge", &row, &in_rows);
            w.if_then(&as_stored, |w| {
                let start = w.scaled("start", &row, width);
                let all = w.index(width);
                w.for_loop("input", [&zero, &all, &one], &[], |w, to, _| {
                    let from = w.added("from", &start, to);
                    copy(w, &from, to);
                    Vec::new()
                });
            });
        }
        kernel
    }
}
