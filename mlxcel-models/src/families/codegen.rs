//! CodeGen: GPT-J with one matrix of queries, values and keys, in that order, for each of four parts of the
//! heads.
//!
//! Config fields, defaults and arithmetic follow transformers' `CodeGenConfig` and `CodeGenForCausalLM`.

use super::gptj::decoder;
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["codegen"], &[50_256], describe);

/// The parts of the heads.
const PARTS: usize = 4;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    decoder(roles, |name, sizes| {
        if !sizes.query_heads.is_multiple_of(PARTS) {
            let message = format!("{} heads do not form {PARTS} parts", sizes.query_heads);
            return Err(roles.config.wrong("n_head", message));
        }
        let fused = roles.fused(&format!("{name}.qkv_proj"), 3 * sizes.hidden, sizes.hidden, false)?;
        let run = sizes.hidden / PARTS;
        let rows = |start| Selection { axis: 0, start, run, stride: 3 * run, runs: PARTS };
        Ok([0, 2 * run, run].map(|start| fused.select(rows(start))))
    })
}
