//! Compressed positions, and attention to them.

use mlxcel_core::Result;
use mlxcel_models::walk::Entries;
use mlxcel_models::{AttentionCore, Compressor, StateSlot};

use super::PassOps;
use super::selection::{Selected, closed, closing};
use crate::array::{Array, DType, concatenate};
use crate::engine::cache::{Order, Visible};

impl PassOps<'_> {
    /// [`Ops::compress`](mlxcel_models::walk::Ops::compress).
    pub(super) fn compress_rows(
        &mut self,
        x: &Array,
        compressor: &Compressor,
        slot: StateSlot,
    ) -> Result<Array> {
        let &Compressor { rate, overlapping, width, gate_bias, .. } = compressor;
        let (series, taps) = (compressor.series(), compressor.taps());
        let bias = self.network.weights.dense(gate_bias)?.astype(DType::F32)?;
        let mut index = 0;
        self.each_row([x], slot, |ops, [x], state| {
            let span = ops.spans[index];
            index += 1;
            let (count, channels) = (x.dim(0), x.dim(1));
            let inputs = concatenate([&state.transpose(&[1, 0])?, &x], 0)?;
            let kept = inputs.slice(&[count, 0], &[count + taps - 1, channels])?;
            let kept = kept.transpose(&[1, 0])?.contiguous()?;
            // The first token that is the last of a window, and how many windows end within the row.
            let first = rate - 1 - span.position % rate;
            let windows = (count + rate - 1).saturating_sub(first) / rate;
            if windows == 0 {
                return Ok((Array::zeros(&[count, width], DType::F32)?, kept));
            }
            let (mut values, mut gates) = (Vec::new(), Vec::new());
            for own in 0..series {
                let start = first + own * rate;
                let of = |from: usize| {
                    let part = inputs.slice(&[start, from], &[start + windows * rate, from + width])?;
                    part.reshape(&[windows, rate, width])
                };
                let mut gate = of((series + own) * width)?;
                gate = gate.add(&bias.slice_axis(-1, own * width, (own + 1) * width)?.expand_dims(&[0])?)?;
                if overlapping && own == 0 && span.position + first < rate {
                    // There is no window before the first.
                    let none = Array::full(&[1, rate, width], f32::NEG_INFINITY, DType::F32)?;
                    gate = concatenate([&none, &gate.slice_axis(0, 1, windows)?], 0)?;
                }
                values.push(of(own * width)?);
                gates.push(gate);
            }
            let weights = concatenate(&gates, 1)?.transpose(&[0, 2, 1])?.softmax(-1)?;
            let weighted = concatenate(&values, 1)?.transpose(&[0, 2, 1])?.multiply(&weights)?;
            let entries = weighted.sum(&[-1], false)?;
            // Each token gets the entry of its own window, and those behind the last window that of the last.
            let own = |token: usize| ((token + span.position % rate) / rate).min(windows - 1) as u32;
            let own: Vec<u32> = (0..count).map(own).collect();
            Ok((entries.take(&Array::from_slice(&own, &[count])?, 0)?, kept))
        })
    }

    /// [`Ops::compressed_attention`](mlxcel_models::walk::Ops::compressed_attention).
    pub(super) fn attend_compressed(
        &mut self,
        [query, key]: [&Array; 2],
        entries: &Entries<Array>,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Array> {
        let Entries { entry, rate, slot: entry_slot, selected } = entries;
        let scoring = self.scoring(core)?;
        let kv = self.network.numerics.kv;
        let query = self.narrow(query)?;
        let (key, entry) = (key.astype(kv)?, entry.astype(kv)?);
        let selected = self.selected_at(*selected)?;
        let mut mixed = Vec::with_capacity(self.spans.len());
        for (number, span) in self.spans.iter().enumerate() {
            let near = self.extended(number, span, (&key, Some(&key)), slot)?;
            let far = self.extended(number, span, (&entry, None), *entry_slot)?;
            let far = closing(&far.keys.squeeze(&[0, 1])?, *rate)?;
            let own = query.slice_axis(0, span.start, span.start + span.count)?;
            let compute = self.network.compute;
            let join = |far: &Array| concatenate([&near.keys, &far.expand_dims(&[0, 1])?], 2);
            mixed.push(if span.count == 1 {
                let far = match selected.get(number) {
                    Some(Selected::Positions(positions)) => far.take(positions, 0)?,
                    _ => far,
                };
                let keys = join(&far)?;
                let visible = Visible { values: Some(keys.clone()), keys, order: Order::All };
                compute.attention(&own, &visible, key.dim(2), &scoring, &mut self.masks)?
            } else {
                let far_mask = match selected.get(number) {
                    Some(Selected::Mask(mask)) => mask.clone(),
                    _ => closed(span, *rate)?,
                };
                let near_mask = self.masks.seen(near.order, span.count, near.keys.dim(2))?;
                let mask = concatenate([&near_mask, &far_mask], 1)?;
                let keys = join(&far)?;
                let visible = Visible { values: Some(keys.clone()), keys, order: Order::All };
                compute.masked_attention(&own, &visible, key.dim(2), &scoring, &mask)?
            });
        }
        concatenate(&mixed, 0)
    }
}
