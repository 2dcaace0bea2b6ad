//! Programs for GPUs, for which the compiler's own code runs: rewritten to what it writes well, and kept
//! within what it can write.

mod barriers;
mod place;
mod shapes;
mod signs;
mod updates;

#[cfg(test)]
mod tests;

use mlxcel_stablehlo::{Block, Function, Module, Op, Printer};

use place::Place;

/// The text of `module`, which has no composites, for a GPU; `in_spirv` if that is programmed in SPIR-V.
pub(super) fn text(mut module: Module, in_spirv: bool) -> String {
    for function in &mut module.functions {
        rewrite_all(function);
        barriers::insert(function, in_spirv);
    }
    Printer::new(&module).custom_calls(&barriers::print).to_string()
}

fn rewrite_all(function: &mut Function) {
    for operations in [shapes::rewrite, updates::rewrite, signs::rewrite] {
        rewrite(function, operations);
    }
}

/// Offers each operation of `function` to `rewrite`, which writes others in its place or returns false.
fn rewrite(function: &mut Function, rewrite: fn(&mut Place<'_>, &Op) -> bool) {
    let mut body = std::mem::take(&mut function.body);
    rewrite_block(function, &mut body, rewrite);
    function.body = body;
}

fn rewrite_block(function: &mut Function, block: &mut Block, rewrite: fn(&mut Place<'_>, &Op) -> bool) {
    let ops = std::mem::take(&mut block.ops);
    let mut place = Place::new(function, ops.len());
    for mut op in ops {
        op.regions.iter_mut().for_each(|region| rewrite_block(place.function, region, rewrite));
        if !rewrite(&mut place, &op) {
            place.keep(op);
        }
    }
    block.ops = place.ops;
}
