//! Outputs after the last whole panel, with weights row by row: one workgroup each, over all rows of
//! activations.

use super::product::{Arrangement, Buffers, Product};
use crate::value::{Operand, Type};
use crate::writer::Writer;

/// Computes output `rest` after the last panel.
pub(super) fn write(product: &Product, w: &mut Writer, buffers: &Buffers, rest: &Operand) {
    let Arrangement { chunks, blocks, tiles, block_units, tile_rows } = product.arrangement;
    let column = w.offset("column", rest, product.outputs - product.rest());
    let start = w.scaled("start", &column, product.inputs);
    let none = w.constant("0.0", Type::vector(tile_rows, "f32"));
    let [zero, one, all_tiles, all_blocks] = [0, 1, chunks * tiles, blocks].map(|value| w.index(value));
    w.for_loop("tile", [&zero, &all_tiles, &one], &[], |w, tile, _| {
        let tiles = w.index(tiles);
        let chunk = w.arith("chunk", "divui", tile, &tiles);
        let in_chunk = w.arith("in_chunk", "remui", tile, &tiles);
        let sums = w.for_loop("block", [&zero, &all_blocks, &one], &[none], |w, block, sums| {
            // [chunks][blocks][tiles]
            let of_chunk = w.scaled("at", &chunk, blocks);
            let of_block = w.added("at", &of_chunk, block);
            let of_block = w.arith("at", "muli", &of_block, &tiles);
            let x = w.added("at", &of_block, &in_chunk);
            let x = w.scaled("at", &x, block_units * tile_rows);
            let first = w.scaled("first", block, block_units);
            let inputs = w.index(product.inputs);
            let left = w.arith("left", "subi", &inputs, &first);
            let most = w.index(block_units);
            let count = w.arith("count", "minui", &left, &most);
            let from = w.added("from", &start, &first);
            w.for_loop("input", [&zero, &count, &one], sums, |w, input, sums| {
                let at = w.added("at", &from, input);
                let weight = product.element(w, buffers, &at);
                let weight = w.broadcast("weights", &weight, tile_rows);
                let at = w.scaled("at", input, tile_rows);
                let at = w.added("at", &x, &at);
                let activations = buffers.x.load(w, "x", &[&at], tile_rows);
                vec![w.fma("sum", &weight, &activations, &sums[0])]
            })
        });
        let first = w.scaled("row", tile, tile_rows);
        for i in 0..tile_rows {
            let row = w.offset("row", &first, i);
            let sum = w.extract("sum", &sums[0], i);
            let rows = w.index(product.rows);
            let inside = w.compare("inside", "ult", &row, &rows);
            w.if_then(&inside, |w| buffers.out.store(w, &sum, &[&row, &column]));
        }
        Vec::new()
    });
}
