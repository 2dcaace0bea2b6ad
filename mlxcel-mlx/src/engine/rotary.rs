//! Rotary embeddings at the positions of a pass.

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::Rope;

use super::compute::Compute;
use super::network::Span;
use crate::array::{self, Array, concatenate};

/// How one rotary embedding of a model is computed.
#[derive(Debug)]
pub(super) enum Rotary {
    /// With cosines and sines from the host: exactly those of transformers.
    Tables(Rope),
    /// By MLX's operation, which computes cosines and sines itself.
    Fused {
        /// How many elements of a head are rotated.
        dims: usize,
        /// The divisors of positions: `dims / 2` float32.
        freqs: Array,
    },
}

/// A rotary embedding at the positions of a pass.
#[derive(Debug)]
pub(super) enum RotaryAt<'a> {
    /// `[tokens, 1, pairs]` each, float32.
    Tables { cos: Array, sin: Array },
    /// MLX's operation; if every span is one token, with their positions (`[tokens]`, `I32`).
    Fused { rope: array::Rope<'a>, positions: Option<Array> },
}

impl Rotary {
    /// `rope` with tables, or, if `fused`, by MLX's operation if it supports it.
    pub(super) fn new(rope: &Rope, fused: bool) -> Result<Self> {
        // Adjacent pairs were permuted to halves before.
        let Rope { rotary_dim, inv_freq, attention_factor, interleaved: _, delay, long } = rope;
        if !fused || *attention_factor != 1.0 || *delay > 0 || long.is_some() {
            return Ok(Self::Tables(rope.clone()));
        }
        let divisors: Vec<f32> = inv_freq.iter().map(|frequency| 1.0 / frequency).collect();
        Ok(Self::Fused { dims: *rotary_dim, freqs: Array::from_slice(&divisors, &[divisors.len()])? })
    }

    /// The bytes that [`at`](Self::at) sends to the device for this many tokens.
    pub(super) fn uploaded_bytes(&self, tokens: usize) -> usize {
        match self {
            Self::Tables(rope) => tokens * rope.rotary_dim * size_of::<f32>(),
            Self::Fused { .. } => tokens * size_of::<i32>(),
        }
    }

    /// The embedding at the positions of `spans`.
    pub(super) fn at(&self, spans: &[Span]) -> Result<RotaryAt<'_>> {
        match self {
            Self::Tables(rope) => {
                let pairs = rope.rotary_dim / 2;
                let tokens = spans.iter().map(|span| span.count).sum::<usize>();
                let (mut cos, mut sin) = (vec![0.0; tokens * pairs], vec![0.0; tokens * pairs]);
                let rows = cos.chunks_exact_mut(pairs.max(1)).zip(sin.chunks_exact_mut(pairs.max(1)));
                let positions = spans.iter().flat_map(|span| span.positions().map(|at| (at, span.length)));
                for ((cos, sin), (position, length)) in rows.zip(positions) {
                    rope.cos_sin(position, length, cos, sin);
                }
                let of = |table: &[f32]| Array::from_slice(table, &[tokens, 1, pairs]);
                Ok(RotaryAt::Tables { cos: of(&cos)?, sin: of(&sin)? })
            }
            Self::Fused { dims, freqs } => {
                let rope = array::Rope { dims: *dims, freqs };
                let decoding = spans.iter().all(|span| span.count == 1);
                Ok(RotaryAt::Fused { rope, positions: decoding.then(|| positions(spans)).transpose()? })
            }
        }
    }
}

impl RotaryAt<'_> {
    /// Queries or keys (`[tokens, heads, head_dim]`) of `spans`, rotated.
    pub(super) fn apply(&self, compute: &Compute, x: &Array, spans: &[Span]) -> Result<Array> {
        match self {
            Self::Tables { cos, sin } => compute.rotate(x, cos, sin),
            Self::Fused { rope, positions: Some(positions) } => {
                x.expand_dims(&[2])?.rope_at(rope, positions)?.squeeze(&[2])
            }
            Self::Fused { rope, positions: None } => {
                let rotated = spans.iter().map(|span| {
                    let own = x.slice_axis(0, span.start, span.start + span.count)?;
                    let own = own.transpose(&[1, 0, 2])?.expand_dims(&[0])?.rope(rope, span.position)?;
                    own.squeeze(&[0])?.transpose(&[1, 0, 2])
                });
                concatenate(&rotated.collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }
}

/// The position of each span's first token.
fn positions(spans: &[Span]) -> Result<Array> {
    let position = |span: &Span| {
        i32::try_from(span.position)
            .map_err(|_| Error::new(ErrorKind::Internal, "step", "a position exceeds MLX's integer range"))
    };
    let positions = spans.iter().map(position).collect::<Result<Vec<_>>>()?;
    Array::from_slice(&positions, &[positions.len()])
}

#[cfg(test)]
mod tests {
    use mlxcel_models::Checkpoint;

    use super::*;

    #[test]
    fn mlx_rotates_as_the_tables_do() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
        let decoder = Checkpoint::open(folder).unwrap().decoder().unwrap();
        let rope = decoder.ropes()[0];
        let (tables, fused) = (Rotary::new(rope, false), Rotary::new(rope, true));
        let (tables, fused) = (tables.unwrap(), fused.unwrap());
        let (heads, width) = (3, rope.rotary_dim);
        let chunk = [
            Span { start: 0, count: 5, position: 300, length: 305, adapter: None },
            Span { start: 5, count: 1, position: 7, length: 8, adapter: None },
        ];
        let decoding = [(0, 3), (1, 900), (2, 0)].map(|(start, position)| Span {
            start,
            count: 1,
            position,
            length: position + 1,
            adapter: None,
        });
        for spans in [&chunk[..], &decoding[..]] {
            let tokens = spans.iter().map(|span| span.count).sum::<usize>();
            let values: Vec<f32> =
                (0..tokens * heads * width).map(|i| (i * 31 % 17) as f32 / 8.0 - 1.0).collect();
            let x = Array::from_slice(&values, &[tokens, heads, width]).unwrap();
            let rotated = [&tables, &fused].map(|rotary| {
                let rotated = rotary.at(spans).unwrap().apply(&Compute::new(None), &x, spans).unwrap();
                assert_eq!(rotated.shape(), x.shape());
                rotated.to_vec::<f32>().unwrap()
            });
            let error = rotated[0].iter().zip(&rotated[1]).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(error < 3e-4, "{error}");
            assert!(rotated[0] != values);
        }
    }

    #[test]
    fn rope_kinds_that_mlx_lacks_use_the_tables() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/storyteller");
        let decoder = Checkpoint::open(folder).unwrap().decoder().unwrap();
        let rope = decoder.ropes()[0];
        let mut rope = rope.clone();
        assert!(matches!(Rotary::new(&rope, true).unwrap(), Rotary::Fused { .. }));
        rope.attention_factor = 1.25;
        assert!(matches!(Rotary::new(&rope, true).unwrap(), Rotary::Tables(_)));
    }
}
