//! Sums over windows of positions, weighted by a softmax of gates.

use mlxcel_stablehlo::{Builder, Comparison, ElementType, Error, ErrorKind, Result, TensorType, Value};

use super::recurrent::{RecurrentRows, each_row};

/// Attributes of [`compress`].
#[derive(Clone, Copy, Debug)]
pub struct Compression {
    /// The number of positions of a window.
    pub rate: usize,
    /// Whether the window before takes part too, by values and gates of its own.
    pub overlapping: bool,
}

impl Compression {
    /// How many values of each element a position has.
    fn series(&self) -> usize {
        if self.overlapping { 2 } else { 1 }
    }
}

/// Of each token that is the last of a window of `rate` positions, counted from position 0, the sum of the
/// window's values weighted by a softmax of its gates, element by element: `[N, w]`. The results of other
/// tokens are meaningless.
///
/// `x` is `[N, 2 · s · w]` f32, the values of `s` series and then the gates; `bias` `[rate, s · w]` is added
/// to the gates by the place in the window. Of two series the first is for the window before, of which there
/// is none before position 0. `positions` is `[rows]` i32, the position of each row's first token. States,
/// `[layers, 2 · s · w, s · rate − 1]`, hold the last inputs, oldest first. Returns `[N, w]` and the new
/// states.
///
/// # Errors
/// Operands with invalid ranks, element types or sizes; rows that do not add up to `N`; a layer that the
/// states do not have.
pub fn compress<'f>(
    b: &mut Builder<'f>,
    x: Value<'f>,
    bias: Value<'f>,
    positions: Value<'f>,
    what: Compression,
    rows: &RecurrentRows<'_, 'f>,
) -> Result<(Value<'f>, Vec<Value<'f>>)> {
    const OP: &str = "compress";
    let Compression { rate, overlapping: _ } = what;
    let taps = rate * what.series();
    let (&[_, channels], &[places, width]) = (&b.shape(x)[..], &b.shape(bias)[..]) else {
        return Err(Error::new(ErrorKind::Shape, OP, "x must be [N, C] and bias [rate, C / 2]"));
    };
    let fits = places == rate && rate > 0 && 2 * width == channels && width.is_multiple_of(what.series());
    if !fits || b.shape(positions) != [rows.rows.len()] {
        let detail = "x must be [N, 2 · s · w], bias [rate, s · w], and positions one for each row";
        return Err(Error::new(ErrorKind::Shape, OP, detail));
    }
    rows.check(b, OP, &[x], &[channels, taps - 1])?;
    let mut row = 0;
    each_row(b, rows, &[x], |b, inputs, count, state| {
        let position = b.slice(positions, &[row], &[row + 1])?;
        let position = b.reshape(position, &[])?;
        row += 1;
        let before = b.transpose(state, &[1, 0])?;
        let inputs = b.concatenate(&[before, inputs[0]], 0)?;
        let zero = b.scalar(0i32)?;
        let kept = b.dynamic_slice(inputs, &[count, zero], &[taps - 1, channels])?;
        let entries = windows(b, inputs, bias, position, what)?;
        Ok((entries, b.transpose(kept, &[1, 0])?))
    })
}

/// The results of a row whose `inputs` follow those of its state.
fn windows<'f>(
    b: &mut Builder<'f>,
    inputs: Value<'f>,
    bias: Value<'f>,
    position: Value<'f>,
    what: Compression,
) -> Result<Value<'f>> {
    let Compression { rate, overlapping } = what;
    let series = what.series();
    let (length, channels) = (b.shape(inputs)[0], b.shape(inputs)[1]);
    let tokens = length + 1 - rate * series;
    let width = channels / (2 * series);
    // As many windows as may end within the row, the last of which may end behind it.
    let count = tokens.div_ceil(rate);
    let period = b.scalar(rate as i32)?;
    let within = b.remainder(position, period)?;
    // The index of the first token that is the last of a window, and of the first input of its windows.
    let last = b.scalar(rate as i32 - 1)?;
    let first = b.subtract(last, within)?;
    let (mut values, mut gates) = (Vec::with_capacity(series), Vec::with_capacity(series));
    for own in 0..series {
        // By indices, not as one slice: it would be moved to within the inputs where its last window ends
        // behind the row.
        let index = b.iota(TensorType::new(ElementType::I32, [count * rate]), 0)?;
        let skipped = b.splat(ElementType::I32, (own * rate) as f64, &[count * rate])?;
        let index = b.add(index, skipped)?;
        let from = b.broadcast_scalar(first, &[count * rate])?;
        let index = b.add(index, from)?;
        let part = b.take(inputs, index)?;
        let mut of = |from: usize| {
            let part = b.slice(part, &[0, from], &[count * rate, from + width])?;
            b.reshape(part, &[count, rate, width])
        };
        let (value, gate) = (of(own * width)?, of((series + own) * width)?);
        let bias = b.slice(bias, &[0, own * width], &[rate, (own + 1) * width])?;
        let bias = b.expand(bias, &[count, rate, width], &[0])?;
        let mut gate = b.add(gate, bias)?;
        if overlapping && own == 0 {
            gate = hidden_before_start(b, gate, position, first, rate)?;
        }
        values.push(value);
        gates.push(gate);
    }
    let (values, gates) = (b.concatenate(&values, 1)?, b.concatenate(&gates, 1)?);
    let weights = b.softmax(gates, 1)?;
    let weighted = b.multiply(values, weights)?;
    let entries = b.sum(weighted, &[1])?;
    // Each token gets the entry of its own window.
    let token = b.iota(TensorType::new(ElementType::I32, [tokens]), 0)?;
    let within = b.broadcast_scalar(within, &[tokens])?;
    let place = b.add(token, within)?;
    let period = b.splat(ElementType::I32, rate as f64, &[tokens])?;
    let window = b.divide(place, period)?;
    let most = b.splat(ElementType::I32, (count - 1) as f64, &[tokens])?;
    let window = b.minimum(window, most)?;
    b.take(entries, window)
}

/// The gates (`[windows, rate, w]`) of windows before others with none for a window that would begin before
/// position 0: `first` is the token, from `position` on, that is the last of the first window.
fn hidden_before_start<'f>(
    b: &mut Builder<'f>,
    gates: Value<'f>,
    position: Value<'f>,
    first: Value<'f>,
    rate: usize,
) -> Result<Value<'f>> {
    let shape = b.shape(gates);
    // Only the first window can be the first of the sequence.
    let last = b.add(position, first)?;
    let last = b.broadcast_scalar(last, &shape)?;
    let index = b.iota(TensorType::new(ElementType::I32, shape.clone()), 0)?;
    let period = b.splat(ElementType::I32, rate as f64, &shape)?;
    let later = b.multiply(index, period)?;
    let last = b.add(last, later)?;
    let is_second = b.compare(last, period, Comparison::GreaterOrEqual)?;
    let hidden = b.splat(ElementType::F32, f64::from(f32::MIN), &shape)?;
    b.select(is_second, gates, hidden)
}
