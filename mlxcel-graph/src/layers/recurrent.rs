//! Recurrences over the tokens of each row, with state of fixed size: convolutions, the gated delta rule,
//! state spaces.

use mlxcel_stablehlo::{Attribute, Builder, Comparison, ElementType, Error, ErrorKind, Result, Value};

use crate::composites::{GATED_DELTA_RULE, SELECTIVE_STATE_SPACE, rows_attribute};
use crate::layers::join_rows;

/// The rows of a pass of `N` tokens, with their states.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentRows<'a, 'f> {
    /// The number of tokens of each row including padding; they add up to `N`.
    pub rows: &'a [usize],
    /// `[rows]` i32: the number of tokens of each row without padding, at least one. Padding follows them;
    /// it changes no state, and its results are meaningless.
    pub counts: Value<'f>,
    /// The layer of the states that is read and written.
    pub layer: usize,
    /// One state per row, f32, with a leading dimension of layers.
    pub states: &'a [Value<'f>],
}

/// A depthwise causal convolution: token `t` of a row gives `Σ weight[c, k] · x[t − K + 1 + k, c] + bias[c]`,
/// where earlier inputs come from the row's state, `[layers, C, K − 1]`, oldest first. `x` is `[N, C]` f32,
/// `weight` is `[C, K]`, and `bias` is `[C]`. Returns `[N, C]` and the new states.
///
/// # Errors
/// Operands with invalid ranks, element types or sizes; rows that do not add up to `N`; a layer that the
/// states do not have.
pub fn causal_convolution<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    weight: Value<'f>,
    bias: Option<Value<'f>>,
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    const OP: &str = "causal_convolution";
    let (&[_, channels], &[weight_channels, taps]) = (&b.shape(x)[..], &b.shape(weight)[..]) else {
        return Err(Error::new(ErrorKind::Shape, OP, "x must be [N, C] and weight [C, K]"));
    };
    let bias_fits = bias.is_none_or(|bias| b.shape(bias) == [channels]);
    if weight_channels != channels || taps == 0 || !bias_fits {
        return Err(Error::new(ErrorKind::Shape, OP, "weight must be [C, K] and bias [C] for x of [N, C]"));
    }
    rows.check(b, OP, &[x], &[channels, taps - 1])?;
    each_row(b, rows, &[x], |b, inputs, count, state| {
        let x = inputs[0];
        let tokens = b.shape(x)[0];
        let before = b.transpose(state, &[1, 0])?;
        let window = b.concatenate(&[before, x], 0)?;
        let product = |b: &mut Builder<'f>, tap: usize| {
            let input = b.slice(window, &[tap, 0], &[tap + tokens, channels])?;
            let factor = b.slice(weight, &[0, tap], &[channels, tap + 1])?;
            let factor = b.reshape(factor, &[channels])?;
            let factor = b.broadcast_in_dim(factor, &[tokens, channels], &[1])?;
            b.multiply(input, factor)
        };
        let mut y = product(b, 0)?;
        for tap in 1..taps {
            let part = product(b, tap)?;
            y = b.add(y, part)?;
        }
        if let Some(bias) = bias {
            let bias = b.broadcast_in_dim(bias, &[tokens, channels], &[1])?;
            y = b.add(y, bias)?;
        }
        let zero = b.scalar(0i32)?;
        let kept = b.dynamic_slice(window, &[count, zero], &[taps - 1, channels])?;
        Ok((y, b.transpose(kept, &[1, 0])?))
    })
}

/// Of each token the one before it in its row, and of a row's first what its state holds, `[layers, C, 1]`. `x`
/// is `[N, C]` f32. Returns `[N, C]` and the new states.
///
/// # Errors
/// As for [`causal_convolution`].
pub fn previous_tokens<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    const OP: &str = "previous_tokens";
    let &[_, channels] = &b.shape(x)[..] else {
        return Err(Error::new(ErrorKind::Shape, OP, "x must be [N, C]"));
    };
    rows.check(b, OP, &[x], &[channels, 1])?;
    each_row(b, rows, &[x], |b, inputs, count, state| {
        let x = inputs[0];
        let tokens = b.shape(x)[0];
        let before = b.reshape(state, &[1, channels])?;
        let window = b.concatenate(&[before, x], 0)?;
        // Not a constant, so that this is read of the window: IREE's compiler may write the new state where the
        // old one is, and waits for nothing but what the new one follows from.
        let zero = b.scalar(0i32)?;
        let first = b.minimum(count, zero)?;
        let previous = b.dynamic_slice(window, &[first, zero], &[tokens, channels])?;
        let kept = b.dynamic_slice(window, &[count, zero], &[1, channels])?;
        Ok((previous, b.reshape(kept, &[channels, 1])?))
    })
}

/// The gated delta rule (Yang et al. 2024, "Gated Delta Networks") token by token: the state `S` of a value
/// head, `[k, v]`, becomes `S' = e^decay · S`, with a decay for all of it or for each row, then `S' + key ⊗
/// beta · (value − S'ᵀ key)`; the result is `Sᵀ query`, and zero for padding.
///
/// Makes the composite [`GATED_DELTA_RULE`], whose decomposition is a loop over each row's tokens.
///
/// Operands are query and key `[N, Hk, k]`, value `[N, Hv, v]`, decay `[N, Hv]` or `[N, Hv, k]`, and beta
/// `[N, Hv]`, all f32; each key head serves `Hv / Hk` consecutive value heads. States are `[layers, Hv, k,
/// v]`. Returns `[N, Hv, v]` and the new states.
///
/// # Errors
/// As for [`causal_convolution`]; `Hv` that is not a multiple of `Hk`.
pub fn gated_delta_rule<'f>(
    b: &mut Builder<'f>,
    operands: [Value<'f>; 5],
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    const OP: &str = "gated_delta_rule";
    let [query, key, value, decay, beta] = operands;
    let (&[tokens, key_heads, key_dim], &[_, heads, value_dim]) = (&b.shape(key)[..], &b.shape(value)[..])
    else {
        return Err(Error::new(ErrorKind::Shape, OP, "key must be [N, Hk, k] and value [N, Hv, v]"));
    };
    let by_channel = b.shape(decay).len() == 3;
    let decays = if by_channel { vec![tokens, heads, key_dim] } else { vec![tokens, heads] };
    let gates = b.shape(decay) == decays && b.shape(beta) == [tokens, heads];
    if b.shape(query) != b.shape(key) || !gates || key_heads == 0 || heads % key_heads != 0 {
        let detail = "query must be of key's shape, decay [N, Hv] or [N, Hv, k], beta [N, Hv], and Hv a multiple of Hk";
        return Err(Error::new(ErrorKind::Shape, OP, detail));
    }
    rows.check(b, OP, &operands, &[heads, key_dim, value_dim])?;
    composite(b, GATED_DELTA_RULE, operands, rows, decomposed_delta_rule)
}

fn decomposed_delta_rule<'f>(
    b: &mut Builder<'f>,
    [query, key, value, decay, beta]: [Value<'f>; 5],
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    let (keys, values, decays) = (b.shape(key), b.shape(value), b.shape(decay));
    let [tokens, key_heads, key_dim] = dimensions(&keys)?;
    let [_, heads, value_dim] = dimensions(&values)?;
    let by_channel = decays.len() == 3;
    let mut repeat = |x: Value<'f>| {
        let shape = [tokens, key_heads, heads / key_heads, key_dim];
        let repeated = b.broadcast_in_dim(x, &shape, &[0, 1, 3])?;
        b.reshape(repeated, &[tokens, heads, key_dim])
    };
    let (query, key) = (repeat(query)?, repeat(key)?);
    let full = [heads, key_dim, value_dim];
    each_row(b, rows, &[query, key, value, decay, beta], |b, inputs, count, state| {
        each_token(b, inputs, count, state, &[heads, value_dim], |b, inputs, state| {
            let [query, key, value, decay, beta] = *inputs else {
                unreachable!("a token has as many inputs as its row");
            };
            let decay = b.exponential(decay)?;
            let decay = b.broadcast_in_dim(decay, &full, if by_channel { &[0, 1] } else { &[0] })?;
            let state = b.multiply(state, decay)?;
            let wide_key = b.broadcast_in_dim(key, &full, &[0, 1])?;
            let recalled = b.multiply(state, wide_key)?;
            let recalled = b.sum(recalled, &[1])?;
            let error = b.subtract(value, recalled)?;
            let beta = b.broadcast_in_dim(beta, &[heads, value_dim], &[0])?;
            let error = b.multiply(error, beta)?;
            let error = b.broadcast_in_dim(error, &full, &[0, 2])?;
            let change = b.multiply(wide_key, error)?;
            let state = b.add(state, change)?;
            let query = b.broadcast_in_dim(query, &full, &[0, 1])?;
            let read = b.multiply(state, query)?;
            Ok((b.sum(read, &[1])?, state))
        })
    })
}

/// A selective state space (Dao and Gu 2024, "Mamba-2") token by token: the state `S` of a head, `[p, n]`,
/// becomes `e^(dt · rate) · S + dt · x ⊗ input`; the result is `S · output`, and zero for padding.
///
/// Makes the composite [`SELECTIVE_STATE_SPACE`], whose decomposition is a loop over each row's tokens.
///
/// Operands are x `[N, H, p]`, dt `[N, H]`, rate `[1, H]`, or `[1, H, n]` for a rate of each number (Gu and
/// Dao 2023, "Mamba"), input and output `[N, G, n]`, all f32; each group serves `H / G` consecutive heads.
/// States are `[layers, H, p, n]`. Returns `[N, H, p]` and the new states.
///
/// # Errors
/// As for [`causal_convolution`]; `H` that is not a multiple of `G`.
pub fn selective_state_space<'f>(
    b: &mut Builder<'f>,
    operands: [Value<'f>; 5],
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    const OP: &str = "selective_state_space";
    let [x, dt, rate, input, output] = operands;
    let (&[tokens, heads, width], &[_, groups, size]) = (&b.shape(x)[..], &b.shape(input)[..]) else {
        return Err(Error::new(ErrorKind::Shape, OP, "x must be [N, H, p] and input [N, G, n]"));
    };
    let by_number = b.shape(rate) == [1, heads, size];
    let gates = b.shape(dt) == [tokens, heads] && (by_number || b.shape(rate) == [1, heads]);
    if b.shape(output) != b.shape(input) || !gates || groups == 0 || heads % groups != 0 {
        let detail =
            "output must be of input's shape, dt [N, H], rate [1, H] or [1, H, n], and H a multiple of G";
        return Err(Error::new(ErrorKind::Shape, OP, detail));
    }
    rows.check(b, OP, &[x, dt, input, output], &[heads, width, size])?;
    composite(b, SELECTIVE_STATE_SPACE, operands, rows, decomposed_state_space)
}

fn decomposed_state_space<'f>(
    b: &mut Builder<'f>,
    [x, dt, rate, input, output]: [Value<'f>; 5],
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    let (xs, inputs, rates) = (b.shape(x), b.shape(input), b.shape(rate));
    let [tokens, heads, width] = dimensions(&xs)?;
    let [_, groups, size] = dimensions(&inputs)?;
    let by_number = rates.len() == 3;
    // For all tokens at once: a rate that several rows' loops use makes IREE's compiler fuse across them
    // wrongly.
    let decay_shape = if by_number { vec![tokens, heads, size] } else { vec![tokens, heads] };
    let rate = b.reshape(rate, &decay_shape[1..])?;
    let rate = b.expand(rate, &decay_shape, &[0])?;
    let decay = b.broadcast_in_dim(dt, &decay_shape, &[0, 1])?;
    let decay = b.multiply(decay, rate)?;
    // Heads of one element have no dimension for it while they are computed.
    let flat = width == 1;
    let full = if flat { vec![heads, size] } else { vec![heads, width, size] };
    let last = full.len() - 1;
    let mixed = if flat { vec![heads] } else { vec![heads, width] };
    let x = if flat { b.reshape(x, &[tokens, heads])? } else { x };
    let mut repeat = |x: Value<'f>| {
        let repeated = b.broadcast_in_dim(x, &[tokens, groups, heads / groups, size], &[0, 1, 3])?;
        b.reshape(repeated, &[tokens, heads, size])
    };
    let (input, output) = (repeat(input)?, repeat(output)?);
    let (y, states) = each_row(b, rows, &[x, dt, decay, input, output], |b, inputs, count, state| {
        let state = b.reshape(state, &full)?;
        let (y, state) = each_token(b, inputs, count, state, &mixed, |b, inputs, state| {
            let [x, dt, decay, input, output] = *inputs else {
                unreachable!("a token has as many inputs as its row");
            };
            let decay = b.exponential(decay)?;
            let kept: &[usize] = if by_number { &[0, last] } else { &[0] };
            let decay = b.broadcast_in_dim(decay, &full, kept)?;
            let state = b.multiply(state, decay)?;
            let dt = b.broadcast_in_dim(dt, &mixed, &[0])?;
            let x = b.multiply(x, dt)?;
            let of_x: Vec<usize> = (0..last).collect();
            let x = b.broadcast_in_dim(x, &full, &of_x)?;
            let input = b.broadcast_in_dim(input, &full, &[0, last])?;
            let change = b.multiply(x, input)?;
            let state = b.add(state, change)?;
            let output = b.broadcast_in_dim(output, &full, &[0, last])?;
            let read = b.multiply(state, output)?;
            Ok((b.sum(read, &[last])?, state))
        })?;
        Ok((y, b.reshape(state, &[heads, width, size])?))
    })?;
    Ok((b.reshape(y, &[tokens, heads, width])?, states))
}

/// A composite of some operands, the rows' counts and their states, in this order, with the attributes
/// `layer` and `rows`.
pub(super) fn composite<'f, const N: usize>(
    b: &mut Builder<'f>,
    name: &str,
    operands: [Value<'f>; N],
    rows: &RecurrentRows<'_, 'f>,
    decompose: impl for<'d> FnOnce(
        &mut Builder<'d>,
        [Value<'d>; N],
        &RecurrentRows<'_, 'd>,
    ) -> Result<(Value<'d>, Vec<Value<'d>>)>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    let missing = |what| Error::new(ErrorKind::Structure, name, format!("{what} are missing"));
    let attributes = [("layer".to_owned(), Attribute::Int(rows.layer as i64)), rows_attribute(rows.rows)];
    let flat = [&operands[..], &[rows.counts], rows.states].concat();
    let results = b.composite(name, &flat, &attributes, |b, args| {
        let (&operands, args) = args.split_first_chunk().ok_or_else(|| missing("operands"))?;
        let (&counts, states) = args.split_first().ok_or_else(|| missing("counts"))?;
        let rows = RecurrentRows { rows: rows.rows, counts, layer: rows.layer, states };
        let (y, states) = decompose(b, operands, &rows)?;
        Ok([y].into_iter().chain(states).collect())
    })?;
    let (&y, states) = results.split_first().ok_or_else(|| missing("results"))?;
    Ok((y, states.to_vec()))
}

/// The dimensions of an operand that has three.
fn dimensions(shape: &[usize]) -> Result<[usize; 3]> {
    let wrong = |_| Error::new(ErrorKind::Shape, "recurrence", "an operand must have three dimensions");
    shape.try_into().map_err(wrong)
}

/// Runs `body` on each row: its part of the inputs, how many of its tokens count, and its state at the layer;
/// it gives the row's results and the new state.
pub(super) fn each_row<'f>(
    b: &mut Builder<'f>,
    rows: &RecurrentRows<'_, 'f>,
    inputs: &[Value<'f>],
    mut body: impl FnMut(&mut Builder<'f>, &[Value<'f>], Value<'f>, Value<'f>) -> Result<(Value<'f>, Value<'f>)>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    let (mut results, mut states) = (Vec::new(), Vec::new());
    let mut start = 0;
    for (index, (&tokens, &stored)) in rows.rows.iter().zip(rows.states).enumerate() {
        let part = |b: &mut Builder<'f>, x: Value<'f>| {
            let mut limit = b.shape(x);
            let mut from = vec![0; limit.len()];
            (from[0], limit[0]) = (start, start + tokens);
            b.slice(x, &from, &limit)
        };
        let own = inputs.iter().map(|&x| part(b, x)).collect::<Result<Vec<_>>>()?;
        let count = b.slice(rows.counts, &[index], &[index + 1])?;
        let count = b.reshape(count, &[])?;
        let shape = b.shape(stored);
        let mut limit = shape.clone();
        let mut from = vec![0; shape.len()];
        (from[0], limit[0]) = (rows.layer, rows.layer + 1);
        let state = b.slice(stored, &from, &limit)?;
        let state = b.reshape(state, &shape[1..])?;
        let (result, state) = body(b, &own, count, state)?;
        let mut single = shape;
        single[0] = 1;
        let state = b.reshape(state, &single)?;
        let mut at = vec![b.scalar(rows.layer as i32)?];
        for _ in 1..single.len() {
            at.push(b.scalar(0i32)?);
        }
        states.push(b.dynamic_update_slice(stored, state, &at)?);
        results.push(result);
        start += tokens;
    }
    let results = join_rows(b, &results)?;
    Ok((results, states))
}

/// Runs `body` on the first `count` tokens of a row in turn, carrying the state: `inputs` are `[tokens, ..]`
/// each, and the results, `[tokens, ..result]`, are zero behind those tokens.
pub(super) fn each_token<'f>(
    b: &mut Builder<'f>,
    inputs: &[Value<'f>],
    count: Value<'f>,
    state: Value<'f>,
    result: &[usize],
    body: impl Fn(&mut Builder<'f>, &[Value<'f>], Value<'f>) -> Result<(Value<'f>, Value<'f>)>,
) -> Result<(Value<'f>, Value<'f>)> {
    let tokens = inputs.first().map_or(0, |&x| b.shape(x)[0]);
    let row: Vec<usize> = [&[1], result].concat();
    if tokens == 1 {
        let token = |b: &mut Builder<'f>, x: Value<'f>| {
            let shape = b.shape(x);
            b.reshape(x, &shape[1..])
        };
        let own = inputs.iter().map(|&x| token(b, x)).collect::<Result<Vec<_>>>()?;
        let (y, state) = body(b, &own, state)?;
        return Ok((b.reshape(y, &row)?, state));
    }
    let first = b.scalar(0i32)?;
    let results = b.splat(ElementType::F32, 0.0, &[&[tokens], result].concat())?;
    let carried = b.while_loop(
        &[first, state, results],
        |b, carried| b.compare(carried[0], count, Comparison::Less),
        |b, carried| {
            let [index, state, results] = *carried else {
                unreachable!("the loop carries three values");
            };
            let zero = b.scalar(0i32)?;
            let token = |b: &mut Builder<'f>, x: Value<'f>| {
                let mut shape = b.shape(x);
                shape[0] = 1;
                let mut at = vec![zero; shape.len()];
                at[0] = index;
                let part = b.dynamic_slice(x, &at, &shape)?;
                b.reshape(part, &shape[1..])
            };
            let own = inputs.iter().map(|&x| token(b, x)).collect::<Result<Vec<_>>>()?;
            let (y, state) = body(b, &own, state)?;
            let y = b.reshape(y, &row)?;
            let mut at = vec![zero; row.len()];
            at[0] = index;
            let results = b.dynamic_update_slice(results, y, &at)?;
            let one = b.scalar(1i32)?;
            Ok(vec![b.add(index, one)?, state, results])
        },
    )?;
    Ok((carried[2], carried[1]))
}

impl<'f> RecurrentRows<'_, 'f> {
    /// Refuses operands that are not of f32 with as many tokens as the rows, and states that are not
    /// `[layers, ..shape]`.
    pub(super) fn check(
        &self,
        b: &Builder<'f>,
        op: &'static str,
        operands: &[Value<'f>],
        shape: &[usize],
    ) -> Result<()> {
        let tokens: usize = self.rows.iter().sum();
        let fits =
            |&x: &Value<'f>| b.ty(x).element == ElementType::F32 && b.ty(x).shape.first() == Some(&tokens);
        if self.rows.contains(&0) || !operands.iter().all(fits) {
            let detail =
                format!("operands must be of f32 with {tokens} tokens, as rows of {:?} have", self.rows);
            return Err(Error::new(ErrorKind::Shape, op, detail));
        }
        let counts = b.ty(self.counts);
        if counts.element != ElementType::I32 || counts.shape != [self.rows.len()] {
            return Err(Error::new(ErrorKind::Shape, op, "counts must be [rows] of i32"));
        }
        let stored = |&state: &Value<'f>| {
            let ty = b.ty(state);
            let layers = ty.shape.first().copied().unwrap_or_default();
            ty.element == ElementType::F32 && layers > self.layer && ty.shape.get(1..) == Some(shape)
        };
        if self.states.len() != self.rows.len() || !self.states.iter().all(stored) {
            let detail =
                format!("there must be a state [layers, {shape:?}] of f32 with layer {} a row", self.layer);
            return Err(Error::new(ErrorKind::Shape, op, detail));
        }
        Ok(())
    }
}
