//! DistilBERT: BERT without token types (Sanh et al., 2019).
//!
//! Config fields, defaults and arithmetic follow transformers' `DistilBertModel`.

use super::bert::{self, Names, Settings};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["distilbert"], &[], describe);

const DEFAULTS: SizeDefaults = SizeDefaults { layers: 6, ..bert::DEFAULTS };

const NAMES: Names = Names {
    layers: "transformer.layer",
    inputs: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    mlp_norm: "output_layer_norm",
    buckets: None,
};

/// What its settings call the sizes. Sinusoidal positions are a table in the files too.
const SIZES: [&str; 5] = ["dim", "hidden_dim", "n_layers", "n_heads", "max_position_embeddings"];

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?.or_named(config, SIZES)?;
    let settings = Settings {
        base: "distilbert.",
        names: NAMES,
        sizes,
        offset: 0,
        types: None,
        embedding: None,
        epsilon: 1e-12,
        activation: activation(config, "activation", Activation::Gelu)?,
        alibi: false,
    };
    bert::encoder(roles, settings)
}
