//! Embeddings for each layer, and layers that read the keys and values of others, as the small Gemmas have
//! them.

use mlxcel_core::Result;

use super::roles::{Roles, refuse_order};
use super::settings::{LARGEST_LAYER_COUNT, LARGEST_VOCABULARY, LARGEST_WIDTH, Sizes};
use crate::config::Fields;
use crate::decoder::{Activation, LayerEmbeddings, LayerInput, Norm};

/// The sizes of embeddings for each layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerInputs {
    rows: usize,
    width: usize,
}

impl LayerInputs {
    /// Reads the sizes; `None` where the width is zero.
    pub(super) fn read(config: Fields<'_>, default_width: usize) -> Result<Option<Self>> {
        const WIDTH: &str = "hidden_size_per_layer_input";
        // What is null is none.
        let default = if config.mentions(WIDTH) { 0 } else { default_width };
        let width = config.size(WIDTH, 0..=LARGEST_WIDTH)?.unwrap_or(default);
        let rows = config.size("vocab_size_per_layer_input", 1..=LARGEST_VOCABULARY)?.unwrap_or(262_144);
        Ok((width > 0).then_some(Self { rows, width }))
    }

    /// The embeddings of the modules in `base`.
    pub(super) fn embeddings(
        &self,
        roles: &Roles<'_>,
        base: &str,
        sizes: &Sizes,
        epsilon: f32,
    ) -> Result<LayerEmbeddings> {
        let &Self { rows, width } = self;
        let all = sizes.layers.saturating_mul(width);
        let table = roles.matrix(&format!("{base}embed_tokens_per_layer"), rows, all)?;
        refuse_order(&table, "embeddings")?;
        Ok(LayerEmbeddings {
            weight: roles.add(table),
            rows,
            layers: sizes.layers,
            width,
            scale: (width as f64).sqrt() as f32,
            projection: roles.linear(
                &format!("{base}per_layer_model_projection"),
                all,
                sizes.hidden,
                false,
            )?,
            projection_scale: (sizes.hidden as f64).powf(-0.5) as f32,
            norm: roles.rms_norm(&format!("{base}per_layer_projection_norm"), width, epsilon)?,
            sum_scale: std::f32::consts::FRAC_1_SQRT_2,
        })
    }

    /// What reads the input of the layer `index`, whose modules are in `name`, and the norm of what it gives.
    pub(super) fn reader(
        &self,
        roles: &Roles<'_>,
        name: &str,
        index: usize,
        hidden: usize,
        (activation, epsilon): (Activation, f32),
    ) -> Result<(LayerInput, Norm)> {
        let linear = |part, outputs, inputs| roles.linear(&format!("{name}.{part}"), outputs, inputs, false);
        let input = LayerInput {
            layer: index,
            activation,
            gate: linear("per_layer_input_gate", self.width, hidden)?,
            projection: linear("per_layer_projection", hidden, self.width)?,
        };
        let norm = roles.rms_norm(&format!("{name}.post_per_layer_input_norm"), hidden, epsilon)?;
        Ok((input, norm))
    }
}

/// Of each layer the one whose keys and values it reads, if they are not its own: of the last
/// `num_kv_shared_layers` the last layer of the same type before them.
pub(super) fn shared_sources(
    config: Fields<'_>,
    types: &[&str],
    default: usize,
) -> Result<Vec<Option<usize>>> {
    const KEY: &str = "num_kv_shared_layers";
    let shared = config.size(KEY, 0..=LARGEST_LAYER_COUNT)?.unwrap_or(default);
    let Some(first) = types.len().checked_sub(shared) else {
        return Err(config.wrong(KEY, format!("{shared} is more than the {} layers", types.len())));
    };
    let source = |(index, name): (usize, &&str)| {
        if index < first {
            return Ok(None);
        }
        let found = types.iter().take(first).rposition(|known| known == name);
        let message =
            || format!("no layer of type {name} comes before the last {shared}, which read its keys");
        found.map(Some).ok_or_else(|| config.wrong(KEY, message()))
    };
    types.iter().enumerate().map(source).collect()
}
