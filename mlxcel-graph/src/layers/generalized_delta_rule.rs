//! The generalised delta rule.

use mlxcel_stablehlo::{Builder, Error, ErrorKind, Result, Value};

use super::recurrent::{RecurrentRows, composite, each_row, each_token};
use crate::composites::GENERALIZED_DELTA_RULE;

/// The generalised delta rule (Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution") token
/// by token: the state `S` of a head, `[k, v]`, becomes `e^decay · S + rewrite ⊗ Sᵀ removal + key ⊗ value`,
/// whose middle reads `S` before the decay; the result is `Sᵀ query`, and zero for padding.
///
/// Makes the composite [`GENERALIZED_DELTA_RULE`], whose decomposition is a loop over each row's tokens.
///
/// Operands are query and key `[N, H, k]`, value `[N, H, v]`, and decay, removal and rewrite `[N, H, k]`, all
/// f32. States are `[layers, H, k, v]`. Returns `[N, H, v]` and the new states.
///
/// # Errors
/// As for [`causal_convolution`](super::causal_convolution).
pub fn generalized_delta_rule<'f>(
    b: &mut Builder<'f>,
    operands: [Value<'f>; 6],
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    const OP: &str = "generalized_delta_rule";
    let [query, key, value, decay, removal, rewrite] = operands;
    let keys = b.shape(key);
    let (&[tokens, heads, key_dim], &[_, _, value_dim]) = (&keys[..], &b.shape(value)[..]) else {
        return Err(Error::new(ErrorKind::Shape, OP, "key must be [N, H, k] and value [N, H, v]"));
    };
    let alike = [query, decay, removal, rewrite].iter().all(|&operand| b.shape(operand) == keys);
    if !alike || b.shape(value) != [tokens, heads, value_dim] {
        let detail = "query, decay, removal and rewrite must be of key's shape, and value have as many tokens and heads";
        return Err(Error::new(ErrorKind::Shape, OP, detail));
    }
    rows.check(b, OP, &operands, &[heads, key_dim, value_dim])?;
    composite(b, GENERALIZED_DELTA_RULE, operands, rows, decomposed)
}

fn decomposed<'f>(
    b: &mut Builder<'f>,
    operands: [Value<'f>; 6],
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    let [_, key, value, ..] = operands;
    let (keys, values) = (b.shape(key), b.shape(value));
    let (heads, key_dim, value_dim) = (keys[1], keys[2], values[2]);
    let (full, twice) = ([heads, key_dim, value_dim], [heads, 2, key_dim, value_dim]);
    each_row(b, rows, &operands, |b, inputs, count, state| {
        each_token(b, inputs, count, state, &[heads, value_dim], |b, inputs, state| {
            let [query, key, value, decay, removal, rewrite] = *inputs else {
                unreachable!("a token has as many inputs as its row");
            };
            let decay = b.exponential(decay)?;
            // One sum over the state for all that is read of it, and the new state follows from what that gives:
            // IREE's compiler may write the new state where the old one is, and does not wait for other reads.
            let from_state = b.multiply(query, decay)?;
            let [from_state, removal] =
                [from_state, removal].map(|operand| b.reshape(operand, &[heads, 1, key_dim]));
            let by = b.concatenate(&[from_state?, removal?], 1)?;
            let by = b.broadcast_in_dim(by, &twice, &[0, 1, 2])?;
            let states = b.broadcast_in_dim(state, &twice, &[0, 2, 3])?;
            let read = b.multiply(states, by)?;
            let read = b.sum(read, &[2])?;
            let part = |b: &mut Builder<'f>, index: usize| {
                let part = b.slice(read, &[0, index, 0], &[heads, index + 1, value_dim])?;
                b.reshape(part, &[heads, value_dim])
            };
            let (mut mixed, removed) = (part(b, 0)?, part(b, 1)?);
            let wide = b.broadcast_in_dim(decay, &full, &[0, 1])?;
            let mut state = b.multiply(state, wide)?;
            for (written, by) in [(removed, rewrite), (value, key)] {
                let own = b.multiply(query, by)?;
                let own = b.sum(own, &[1])?;
                let own = b.broadcast_in_dim(own, &[heads, value_dim], &[0])?;
                let own = b.multiply(own, written)?;
                mixed = b.add(mixed, own)?;
                let by = b.broadcast_in_dim(by, &full, &[0, 1])?;
                let written = b.broadcast_in_dim(written, &full, &[0, 2])?;
                let change = b.multiply(by, written)?;
                state = b.add(state, change)?;
            }
            Ok((mixed, state))
        })
    })
}
