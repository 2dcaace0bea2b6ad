//! Outputs after the last whole panel, with weights row by row: one workgroup each, over all rows of activations.

use super::product::{Arrangement, Buffers, Product};
use crate::writer::Writer;

/// Computes output `rest` after the last panel.
pub(super) fn write(product: &Product, w: &mut Writer, buffers: &Buffers, rest: &str) {
    let Arrangement { chunks, blocks, tiles, block_units, tile_rows } = product.arrangement;
    let vector = format!("vector<{tile_rows}xf32>");
    let column = w.offset("column", rest, product.outputs - product.rest());
    let start = w.scaled("start", &column, product.inputs);
    let none = w.constant("dense<0.0>", &vector);
    let [zero, one, all_tiles, all_blocks] = [0, 1, chunks * tiles, blocks].map(|value| w.index(value));
    w.for_loop("tile", [&zero, &all_tiles, &one], &[], |w, tile, _| {
        let tiles = w.index(tiles);
        let chunk = w.arith("chunk", "divui", tile, &tiles, "index");
        let in_chunk = w.arith("in_chunk", "remui", tile, &tiles, "index");
        let sums =
            w.for_loop("block", [&zero, &all_blocks, &one], &[(none, vector.clone())], |w, block, sums| {
                // [chunks][blocks][tiles]
                let of_chunk = w.scaled("at", &chunk, blocks);
                let of_block = w.added("at", &of_chunk, block);
                let of_block = w.arith("at", "muli", &of_block, &tiles, "index");
                let x = w.added("at", &of_block, &in_chunk);
                let x = w.scaled("at", &x, block_units * tile_rows);
                let first = w.scaled("first", block, block_units);
                let inputs = w.index(product.inputs);
                let left = w.arith("left", "subi", &inputs, &first, "index");
                let most = w.index(block_units);
                let count = w.arith("count", "minui", &left, &most, "index");
                let from = w.added("from", &start, &first);
                let carried = [(sums[0].clone(), vector.clone())];
                w.for_loop("input", [&zero, &count, &one], &carried, |w, input, sums| {
                    let at = w.added("at", &from, input);
                    let weight = product.element(w, buffers, &at);
                    let weight =
                        w.set("weights", format_args!("vector.broadcast {weight} : f32 to {vector}"));
                    let at = w.scaled("at", input, tile_rows);
                    let at = w.added("at", &x, &at);
                    let activations = buffers.x.load(w, "x", &[&at], &vector);
                    vec![w.set(
                        "sum",
                        format_args!("vector.fma {weight}, {activations}, {} : {vector}", sums[0]),
                    )]
                })
            });
        let first = w.scaled("row", tile, tile_rows);
        for i in 0..tile_rows {
            let row = w.offset("row", &first, i);
            let sum = w.set("sum", format_args!("vector.extract {}[{i}] : f32 from {vector}", sums[0]));
            let rows = w.index(product.rows);
            let inside = w.set("inside", format_args!("arith.cmpi ult, {row}, {rows} : index"));
            w.if_then(&inside, |w| {
                buffers.out.put(w, &sum, &[&row, &column]);
            });
        }
        Vec::new()
    });
}
