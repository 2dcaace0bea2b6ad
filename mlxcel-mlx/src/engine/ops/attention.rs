//! Attention of each row over its own cache.

use mlxcel_core::Result;
use mlxcel_models::{AttentionCore, AttentionMask, LatentAttention, StateSlot};

use super::PassOps;
use super::selection::Selected;
use crate::array::{Array, concatenate};
use crate::engine::cache::{Order, Visible};
use crate::engine::compute::Scoring;
use crate::engine::network::{Span, inconsistent};
use crate::engine::state::{LayerState, StateLayout};

impl PassOps<'_> {
    /// [`Ops::attention`](mlxcel_models::walk::Ops::attention).
    pub(super) fn attend(
        &mut self,
        query: &Array,
        key: &Array,
        value: &Array,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Array> {
        // The cache has the window, and the slot determines which rotary embedding.
        let chunk = core.window.filter(|_| core.mask == AttentionMask::Chunked);
        let scoring = self.scoring(core)?;
        let kv = self.network.numerics.kv;
        let rope = core.rope.as_ref().and_then(|_| self.network.rope_of(slot));
        let query = self.narrow(&self.rotated_by(query, rope)?)?;
        let key = self.rotated_by(key, rope)?.astype(kv)?;
        let width = value.dim(2);
        self.attend_rows(&query, &key, Some(&value.astype(kv)?), (width, chunk), &scoring, (slot, &[]))
    }

    /// [`Ops::shared_attention`](mlxcel_models::walk::Ops::shared_attention).
    pub(super) fn attend_shared(
        &mut self,
        query: &Array,
        core: &AttentionCore,
        slot: StateSlot,
    ) -> Result<Array> {
        // What is visible has the window and the chunks.
        let scoring = self.scoring(core)?;
        let rope = core.rope.as_ref().map(|rope| self.network.index_of(rope)).transpose()?;
        let query = self.narrow(&self.rotated_by(query, rope)?)?;
        let Some(visible) = self.visible.get(&slot) else {
            return Err(inconsistent("a layer reads keys that no layer before it has written"));
        };
        let mut mixed = Vec::with_capacity(self.spans.len());
        for (span, parts) in self.spans.iter().zip(visible) {
            let compute = self.network.compute;
            attend_parts(&query, span, parts, |query, visible| {
                mixed.push(compute.attention(query, visible, query.dim(2), &scoring, &mut self.masks)?);
                Ok(())
            })?;
        }
        concatenate(&mixed, 0)
    }

    /// [`Ops::bidirectional_attention`](mlxcel_models::walk::Ops::bidirectional_attention).
    pub(super) fn attend_both_ways(
        &mut self,
        query: &Array,
        key: &Array,
        value: &Array,
        core: &AttentionCore,
    ) -> Result<Array> {
        let scoring = self.scoring(core)?;
        let rope = core.rope.as_ref().map(|rope| self.network.index_of(rope)).transpose()?;
        let query = self.narrow(&self.rotated_by(query, rope)?)?;
        let key = self.rotated_by(key, rope)?;
        let order = core.window.map_or(Order::All, Order::Near);
        let mut mixed = Vec::with_capacity(self.spans.len());
        for span in self.spans {
            let visible =
                Visible { keys: heads_first(&key, span)?, values: Some(heads_first(value, span)?), order };
            let own = query.slice_axis(0, span.start, span.start + span.count)?;
            let (compute, width) = (self.network.compute, value.dim(2));
            mixed.push(match core.distance {
                None => compute.attention(&own, &visible, width, &scoring, &mut self.masks)?,
                Some(distance) => {
                    let table = |table| self.network.weights.dense(table).cloned();
                    let bias = self.masks.bias(distance, (own.dim(1), span.count), table)?;
                    let bias = bias.astype(own.dtype()?)?;
                    compute.masked_attention(&own, &visible, width, &scoring, &bias)?
                }
            });
        }
        concatenate(&mixed, 0)
    }

    /// [`Ops::latent_attention`](mlxcel_models::walk::Ops::latent_attention).
    pub(super) fn attend_latent(
        &mut self,
        query: &Array,
        entry: &Array,
        latent: &LatentAttention,
        slot: StateSlot,
        selected: Option<StateSlot>,
    ) -> Result<Array> {
        let &LatentAttention { heads, rope_dim, rank, scale, .. } = latent;
        let width = rank + rope_dim;
        let rotate_last = |x: &Array| {
            let rope = latent.rope.as_ref().and_then(|_| self.network.rope_of(slot));
            let rotary = self.rotated_by(&x.slice_axis(-1, rank, width)?, rope)?;
            concatenate([&x.slice_axis(-1, 0, rank)?, &rotary], -1)
        };
        let query = self.narrow(&rotate_last(query)?)?;
        let entry = rotate_last(&entry.expand_dims(&[1])?)?.astype(self.network.numerics.kv)?;
        let scoring = Scoring { scale, soft_cap: None, sinks: None };
        let selected = self.selected_at(selected)?;
        let attended = self.attend_rows(&query, &entry, None, (rank, None), &scoring, (slot, &selected))?;
        attended.reshape(&[query.dim(0), heads, rank])
    }

    /// How scores become weights; the walk has scaled queries already.
    pub(super) fn scoring(&self, core: &AttentionCore) -> Result<Scoring> {
        let sinks = core.sinks.map(|sinks| self.network.weights.dense(sinks).cloned()).transpose()?;
        Ok(Scoring { scale: core.scale, soft_cap: core.soft_cap, sinks })
    }

    /// Queries or keys (`[tokens, heads, width]`) rotated by the embedding with this index.
    pub(super) fn rotated_by(&self, x: &Array, rope: Option<usize>) -> Result<Array> {
        match rope {
            None => Ok(x.clone()),
            Some(index) => match self.rotations.get(index) {
                Some(rotary) => rotary.apply(&self.network.compute, x, self.spans),
                None => Err(inconsistent("a layer has a rotary embedding that is not among the decoder's")),
            },
        }
    }

    /// Attention of each span over its own cache, after adding its keys and values: `[tokens, heads ·
    /// value_width]`. Tokens see nothing before their `chunk`, if there are such, and of latents nothing but
    /// what is `selected` for a span, if anything is.
    fn attend_rows(
        &mut self,
        query: &Array,
        key: &Array,
        value: Option<&Array>,
        (value_width, chunk): (usize, Option<usize>),
        scoring: &Scoring,
        (slot, selected): (StateSlot, &[Selected]),
    ) -> Result<Array> {
        let network = self.network;
        let is_shared = network.is_shared(slot);
        let mut mixed = Vec::with_capacity(self.spans.len());
        let mut seen = Vec::new();
        for (number, span) in self.spans.iter().enumerate() {
            let visible = self.extended(number, span, (key, value), slot)?;
            let parts = match chunk {
                Some(chunk) => visible.in_chunks(span.position, span.count, chunk)?,
                None => vec![(span.count, visible)],
            };
            attend_parts(query, span, &parts, |query, visible| {
                let compute = network.compute;
                mixed.push(match selected.get(number) {
                    Some(Selected::Positions(positions)) => {
                        let visible = visible.only(positions)?;
                        compute.attention(query, &visible, value_width, scoring, &mut self.masks)?
                    }
                    Some(Selected::Mask(mask)) => {
                        compute.masked_attention(query, visible, value_width, scoring, mask)?
                    }
                    Some(Selected::All) | None => {
                        compute.attention(query, visible, value_width, scoring, &mut self.masks)?
                    }
                });
                Ok(())
            })?;
            if is_shared {
                seen.push(parts);
            }
        }
        if is_shared {
            self.visible.insert(slot, seen);
        }
        concatenate(&mixed, 0)
    }

    /// What the tokens of a span see of the cache at `slot`, after theirs of `key` and `value` were added.
    pub(super) fn extended(
        &mut self,
        number: usize,
        span: &Span,
        (key, value): (&Array, Option<&Array>),
        slot: StateSlot,
    ) -> Result<Visible> {
        let layout = &self.network.layout;
        let StateLayout::Cache(own) = layout.at(slot)? else {
            return Err(inconsistent("attention got a state that is not a cache"));
        };
        let before = match self.states[number].and_then(|states| states.get(slot)) {
            Some(LayerState::Cache(cache)) => Some(cache),
            Some(LayerState::Fixed(_)) | None => None,
        };
        let key = heads_first(key, span)?;
        let value = value.map(|value| heads_first(value, span)).transpose()?;
        let (cache, visible) = own.extend(before, span.position, &key, value.as_ref(), layout.element)?;
        self.filled[number].push(slot, LayerState::Cache(cache))?;
        Ok(visible)
    }
}

/// Calls `attend` with the queries of each part of a span, and what they see; a part is so many queries long.
fn attend_parts(
    query: &Array,
    span: &Span,
    parts: &[(usize, Visible)],
    mut attend: impl FnMut(&Array, &Visible) -> Result<()>,
) -> Result<()> {
    let mut start = span.start;
    for (count, visible) in parts {
        let end = start + count;
        match (start, end) == (0, query.dim(0)) {
            true => attend(query, visible)?,
            false => attend(&query.slice_axis(0, start, end)?, visible)?,
        }
        start = end;
    }
    Ok(())
}

/// A span's part of `x` (`[tokens of all spans, heads, width]`) as `[1, heads, tokens, width]`.
pub(super) fn heads_first(x: &Array, span: &Span) -> Result<Array> {
    let part = x.slice_axis(0, span.start, span.start + span.count)?;
    if span.count == 1 {
        return part.reshape(&[1, x.dim(1), 1, x.dim(2)]);
    }
    part.transpose(&[1, 0, 2])?.expand_dims(&[0])
}
