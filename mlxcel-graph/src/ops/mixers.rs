//! Mixers over the states of the pass's rows.

use mlxcel_models::walk::Entries;
use mlxcel_models::{
    AttentionCore, AttentionMask, Compressor, Convolution, DistanceBias, LARGEST_DISTANCE, LatentAttention,
    StateSlot, WeightId, distance_bucket,
};
use mlxcel_stablehlo::{Builder, ElementType, Error, ErrorKind, Literal, Result, Value};

use crate::cached;
use crate::layers::{self, AttentionScores, RecurrentRows, TextAttentionOperands};

use super::GraphOps;

impl<'f> GraphOps<'_, '_, 'f> {
    /// The states at `slot`, one a row, as they are now.
    fn states_at(&self, slot: StateSlot) -> Vec<Value<'f>> {
        self.states.get(slot.group).cloned().unwrap_or_default()
    }

    fn put_states(&mut self, slot: StateSlot, states: Vec<Value<'f>>) {
        if let Some(group) = self.states.get_mut(slot.group) {
            *group = states;
        }
    }

    pub(super) fn attend(
        &mut self,
        [query, key, value]: [Value<'f>; 3],
        core: &AttentionCore,
        out: ElementType,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        // The walk has scaled queries already.
        let AttentionCore { scale, mask, window, rope, soft_cap, sinks, query_scale: _, distance: _ } = core;
        let rotary = rope.as_ref().map(|rope| self.rotary(rope)).transpose()?;
        let sinks = sinks.map(|sinks| self.weights.dense(sinks)).transpose()?;
        let caches = self.states_at(slot);
        let operands = cached::CachedAttentionOperands {
            query,
            key,
            value,
            rotary,
            positions: self.pass.positions,
            sinks,
            caches: &caches,
        };
        let what = cached::CachedAttention {
            rows: self.pass.rows,
            layer: slot.layer,
            scale: *scale,
            soft_cap: *soft_cap,
            window: *window,
            chunked: *mask == AttentionMask::Chunked,
            out,
        };
        let (mixed, caches) = cached::cached_attention(self.b, &operands, &what)?;
        self.put_states(slot, caches);
        Ok(mixed)
    }

    /// Attention within each text, in both directions. Padding is not seen but by itself, which keeps its own
    /// values finite.
    pub(super) fn attend_both_ways(
        &mut self,
        [mut query, mut key, value]: [Value<'f>; 3],
        core: &AttentionCore,
        out: ElementType,
    ) -> Result<Value<'f>> {
        // The walk has scaled queries already.
        let AttentionCore { scale, mask: _, window, rope, soft_cap, sinks, query_scale: _, distance } = core;
        if let Some(rope) = rope {
            let (cos, sin) = self.rotary(rope)?;
            query = layers::rope(self.b, query, cos, sin)?;
            key = layers::rope(self.b, key, cos, sin)?;
        }
        let sinks = sinks.map(|sinks| self.weights.dense(sinks)).transpose()?;
        let alibi = *distance == Some(DistanceBias::Slopes);
        let biases = match *distance {
            Some(DistanceBias::Buckets(table)) => Some(self.distance_biases(table)?),
            Some(DistanceBias::Slopes) | None => None,
        };
        let scores = AttentionScores { scale: *scale, soft_cap: *soft_cap, alibi };
        let texts = self.pass.texts.ok_or_else(|| {
            let message = "the pass does not say where its texts begin";
            Error::new(ErrorKind::Structure, "bidirectional_attention", message)
        })?;
        let operands = TextAttentionOperands { query, key, value, texts, biases, sinks };
        layers::text_attention(self.b, &operands, scores, *window, out)
    }

    /// The rows of a table of [buckets](DistanceBias::Buckets) for each offset of a key, as
    /// [`TextAttentionOperands::biases`] has them.
    fn distance_biases(&mut self, table: WeightId) -> Result<Value<'f>> {
        let largest = LARGEST_DISTANCE as i64;
        let rows: Vec<i32> = (-largest..=largest).map(|offset| distance_bucket(offset) as i32).collect();
        let rows = Literal::new([rows.len()], &rows).ok_or_else(|| {
            Error::new(ErrorKind::Structure, "text_attention", "there must be a row for each offset")
        })?;
        let rows = self.b.constant(rows)?;
        let table = self.weights.vector(self.b, table)?;
        self.b.take(table, rows)
    }

    pub(super) fn attend_latent(
        &mut self,
        query: Value<'f>,
        entry: Value<'f>,
        latent: &LatentAttention,
        slot: StateSlot,
        selected: Option<StateSlot>,
    ) -> Result<Value<'f>> {
        let (cos, sin) = match &latent.rope {
            Some(rope) => self.rotary(rope)?,
            // Angles of zero leave everything where it is.
            None => {
                let shape = [self.tokens(), latent.rope_dim / 2];
                (self.b.splat(ElementType::F32, 1.0, &shape)?, self.b.splat(ElementType::F32, 0.0, &shape)?)
            }
        };
        let selected = selected.map_or(Ok(Vec::new()), |slot| self.selected_at(slot))?;
        let caches = self.states_at(slot);
        let operands = cached::LatentAttentionOperands {
            query,
            entry,
            cos,
            sin,
            positions: self.pass.positions,
            caches: &caches,
            selected: &selected,
        };
        let what = cached::LatentAttention {
            rows: self.pass.rows,
            layer: slot.layer,
            scale: latent.scale,
            out: ElementType::F32,
        };
        let (mixed, caches) = cached::latent_attention(self.b, &operands, &what)?;
        self.put_states(slot, caches);
        let tokens = self.b.shape(mixed)[0];
        self.b.reshape(mixed, &[tokens, latent.heads, latent.rank])
    }

    pub(super) fn attend_compressed(
        &mut self,
        [query, key]: [Value<'f>; 2],
        entries: &Entries<Value<'f>>,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        // The walk has rotated queries, and there are no others of these.
        let AttentionCore {
            scale,
            mask: _,
            window,
            rope: _,
            soft_cap: _,
            sinks,
            query_scale: _,
            distance: _,
        } = core;
        let &Entries { entry, rate, slot: entry_slot, selected } = entries;
        let sinks = sinks.map(|sinks| self.weights.dense(sinks)).transpose()?;
        let selected = selected.map_or(Ok(Vec::new()), |slot| self.selected_at(slot))?;
        let (caches, entry_caches) = (self.states_at(slot), self.states_at(entry_slot));
        let operands = cached::CompressedAttentionOperands {
            query,
            key,
            entry,
            positions: self.pass.positions,
            sinks,
            caches: &caches,
            entry_caches: &entry_caches,
            selected: &selected,
        };
        let what = cached::CompressedAttention {
            rows: self.pass.rows,
            layer: slot.layer,
            entry_layer: entry_slot.layer,
            scale: *scale,
            window: *window,
            rate,
        };
        let (mixed, caches, entry_caches) = cached::compressed_attention(self.b, &operands, &what)?;
        self.put_states(slot, caches);
        self.put_states(entry_slot, entry_caches);
        Ok(mixed)
    }

    pub(super) fn compress_windows(
        &mut self,
        x: Value<'f>,
        compressor: &Compressor,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let Compressor { rate, overlapping, width: _, value: _, gate: _, gate_bias, norm: _, rope: _ } =
            *compressor;
        let bias = self.weights.vector(self.b, gate_bias)?;
        let positions = self.pass.positions;
        let what = layers::Compression { rate, overlapping };
        self.recur(slot, |b, rows| layers::compress(b, x, bias, positions, what, rows))
    }

    /// The positions that were selected by the keys at `slot`.
    fn selected_at(&self, slot: StateSlot) -> Result<Vec<Value<'f>>> {
        self.selected.get(&slot).cloned().ok_or_else(|| {
            let message = "no layer before this one has selected positions by the keys at its slot";
            Error::new(ErrorKind::Structure, "latent_attention", message)
        })
    }

    pub(super) fn select_by_index(
        &mut self,
        [query, key, weights]: [Value<'f>; 3],
        (count, rate): (usize, usize),
        slot: StateSlot,
    ) -> Result<()> {
        let shape = self.b.shape(key);
        let key = self.b.reshape(key, &[shape[0], shape[1] * shape[2]])?;
        let caches = self.states_at(slot);
        let operands = cached::PositionSelectionOperands {
            query,
            key,
            weights,
            positions: self.pass.positions,
            caches: &caches,
        };
        let what = cached::PositionSelection { rows: self.pass.rows, layer: slot.layer, count, rate };
        let cached::Selected { masks, caches } = cached::select_positions(self.b, &operands, &what)?;
        self.put_states(slot, caches);
        self.selected.insert(slot, masks);
        Ok(())
    }

    /// A recurrence of each row from its state at `slot`, which becomes what it gives.
    pub(super) fn recur(
        &mut self,
        slot: StateSlot,
        run: impl FnOnce(&mut Builder<'f>, &RecurrentRows<'_, 'f>) -> Result<(Value<'f>, Vec<Value<'f>>)>,
    ) -> Result<Value<'f>> {
        let states = self.states_at(slot);
        let rows = RecurrentRows {
            rows: self.pass.rows,
            counts: self.counts()?,
            layer: slot.layer,
            states: &states,
        };
        let (y, states) = run(self.b, &rows)?;
        self.put_states(slot, states);
        Ok(y)
    }

    pub(super) fn causal_convolution(
        &mut self,
        x: Value<'f>,
        convolution: &Convolution,
        slot: StateSlot,
    ) -> Result<Value<'f>> {
        let Convolution { weight, bias, channels: _, taps: _, activation } = *convolution;
        let weight = self.weights.vector(self.b, weight)?;
        let bias = bias.map(|bias| self.weights.vector(self.b, bias)).transpose()?;
        let y = self.recur(slot, |b, rows| layers::causal_convolution(b, x, weight, bias, rows))?;
        match activation {
            Some(activation) => layers::activate(self.b, activation, y),
            None => Ok(y),
        }
    }
}
