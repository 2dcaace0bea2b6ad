//! The order of the rows of an adapter's matrices, where a converter to GGUF reorders those of projections.

use std::collections::HashMap;

use mlxcel_core::{Error, ErrorKind, Result};

use super::files::Format;
use super::{OPERATION, module_name};
use crate::decoder::{Decoder, Mixer, WeightId};
use crate::gguf::{Rows, rows_of};

/// How the rows of an adapter's matrices become those of a network's weights.
pub(super) struct RowOrder {
    change: Change,
    /// The width of heads of the weights of queries and keys.
    heads: HashMap<WeightId, usize>,
}

enum Change {
    /// Both have the same order.
    None,
    /// The network's queries and keys are reordered for rotation in pairs, and those of the adapter are not.
    Pair,
    /// The opposite.
    Unpair,
    /// The order of fused projections differs.
    Unknown,
}

impl RowOrder {
    /// The order for an adapter in this format.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for an adapter and a network in GGUF files of different
    /// architectures; [`Unsupported`](ErrorKind::Unsupported) if one of them is in a GGUF file of an
    /// architecture whose weights are changed beyond their rows.
    pub(super) fn of(decoder: &Decoder, format: Format) -> Result<Self> {
        let own = decoder.gguf_architecture;
        let adapters = match format {
            Format::Gguf { architecture, .. } => Some(architecture),
            Format::Peft | Format::Mlx => None,
        };
        let change = match (own, adapters) {
            (Some(own), Some(adapters)) if own != adapters => {
                let message = "the adapter is of a model of another architecture";
                return Err(Error::new(ErrorKind::InvalidInput, OPERATION, message)
                    .with_context("adapter", adapters)
                    .with_context("model", own));
            }
            (Some(_), Some(_)) | (None, None) => Change::None,
            (Some(one), None) | (None, Some(one)) => match rows_of(one) {
                Rows::Halves | Rows::Pairs => Change::None,
                Rows::Paired if own.is_some() => Change::Pair,
                Rows::Paired => Change::Unpair,
                Rows::Ungrouped => Change::Unknown,
                Rows::Changed => {
                    let message = "the converter to GGUF reorders or multiplies weights of this architecture; use a base model and an \
                                   adapter that are both in GGUF files, or both in safetensors";
                    return Err(Error::unsupported(OPERATION, message).with_context("architecture", one));
                }
            },
        };
        let heads = decoder.mixers().flat_map(|mixer| {
            let (rotated, width) = match mixer {
                Mixer::Attention(attention) => (vec![attention.query, attention.key], attention.head_dim),
                Mixer::Shared(shared) => (vec![shared.query], shared.head_dim),
                Mixer::Latent(_)
                | Mixer::Compressed(_)
                | Mixer::ShortConvolution(_)
                | Mixer::DeltaRule(_)
                | Mixer::StateSpace(_)
                | Mixer::SelectiveScan(_)
                | Mixer::GeneralizedDeltaRule(_)
                | Mixer::ShiftedMlp(_) => (Vec::new(), 0),
            };
            rotated.into_iter().map(move |linear| (linear.weight, width))
        });
        Ok(Self { change, heads: heads.collect() })
    }

    /// The row of the adapter's matrices for each row of the part of a weight whose rows as the network has
    /// them are `rows`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a part of a fused weight whose order differs.
    pub(super) fn rows(&self, weight: WeightId, is_fused: bool, rows: &[usize]) -> Result<Vec<usize>> {
        let message = "the rows of the projection are stored in another order than those of the adapter, and it is fused; use a base \
                       model and an adapter that are both in GGUF files, or both in safetensors";
        let unsupported = || Error::unsupported(OPERATION, message);
        let width = match (&self.change, self.heads.get(&weight)) {
            (Change::None, _) => return Ok(rows.to_vec()),
            (Change::Unknown, _) if is_fused => return Err(unsupported()),
            (Change::Unknown, _) | (_, None) => return Ok(rows.to_vec()),
            (Change::Pair | Change::Unpair, Some(&width)) => width,
        };
        if is_fused || width == 0 || !width.is_multiple_of(2) {
            return Err(unsupported());
        }
        let half = width / 2;
        let reordered = |&row: &usize| {
            let (head, place) = (row / width * width, row % width);
            match self.change {
                Change::Unpair => head + place % half * 2 + place / half,
                _ => head + place % 2 * half + place / 2,
            }
        };
        Ok(rows.iter().map(reordered).collect())
    }

    /// The row of the adapter's matrices for each row of the matrix of a module in safetensors.
    ///
    /// # Errors
    ///
    /// The errors of [`rows`](Self::rows).
    pub(super) fn rows_of_module(
        &self,
        decoder: &Decoder,
        module: &str,
        outputs: usize,
    ) -> Result<Vec<usize>> {
        let rows: Vec<usize> = (0..outputs).collect();
        let linears = decoder.adaptable().into_iter();
        let own = linears.filter(|linear| module_name(decoder.weight(linear.weight)) == Some(module));
        let own: Vec<WeightId> = own.map(|linear| linear.weight).collect();
        match own[..] {
            [] => Ok(rows),
            [weight] => self.rows(weight, false, &rows),
            [weight, ..] => self.rows(weight, true, &rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::decoder::{WeightRef, WeightTable};
    use crate::element::ElementType;

    #[test]
    fn adapters_in_another_order_than_columns_are_refused() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/gguf-architectures/qwen3_5_text");
        let decoder = Checkpoint::open(file).unwrap().decoder().unwrap();
        let error = RowOrder::of(&decoder, Format::Peft).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.context("architecture"), Some("qwen35"));
        RowOrder::of(&decoder, Format::Gguf { architecture: "qwen35", alpha: None }).unwrap();
    }

    #[test]
    fn rows_of_heads_are_paired_and_unpaired() {
        let weight = WeightTable::default().add(WeightRef::new("q", ElementType::F32, [8, 4]));
        let order = |change| RowOrder { change, heads: HashMap::from([(weight, 4)]) };
        let rows: Vec<usize> = (0..8).collect();
        let paired = order(Change::Pair).rows(weight, false, &rows).unwrap();
        assert_eq!(paired, [0, 2, 1, 3, 4, 6, 5, 7]);
        let wide = RowOrder { change: Change::Pair, heads: HashMap::from([(weight, 8)]) };
        assert_eq!(wide.rows(weight, false, &rows).unwrap(), [0, 4, 1, 5, 2, 6, 3, 7]);
        let back = RowOrder { change: Change::Unpair, ..wide };
        assert_eq!(back.rows(weight, false, &rows).unwrap(), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(
            order(Change::Unpair).rows(weight, true, &rows).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(order(Change::None).rows(weight, true, &rows).unwrap(), rows);
    }
}
