//! MiniCPM3: latent attention without interleaving, MLPs, and factors of embeddings, residuals and logits.
//!
//! Config fields, defaults and arithmetic follow transformers' `MiniCPM3Config` and `MiniCPM3ForCausalLM`.

use super::latent::{LatentDefaults, LatentSettings, Pairs};
use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["minicpm3"], &[2], describe);

// As in DeepSeek-V3, nothing reads the width of heads.
const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 73_448,
    hidden: 2560,
    intermediate: 6400,
    layers: 62,
    query_heads: 40,
    kv_heads: Some(40),
    head_dim: Some(32),
    context: 32_768,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let hidden = sizes.hidden;
    let latents = LatentDefaults {
        plain_dim: 64,
        rope_dim: 32,
        value_dim: head_dim(config, "num_attention_heads", hidden, sizes.query_heads)?,
        rank: 256,
        query_rank: Some(768),
        pairs: Pairs::Halves,
        ..LatentDefaults::DEEPSEEK
    };
    let attention = LatentSettings::read(config, config, &sizes, &latents)?;
    let root = (sizes.layers as f64).sqrt();
    let depth = optional_positive(config, "scale_depth", Some(1.4))?;
    let residual_scale = depth.map_or(1.0, |depth| (f64::from(depth) / root) as f32);
    let base_width = match config.size("dim_model_base", 1..=LARGEST_WIDTH)? {
        None if config.mentions("dim_model_base") => hidden,
        width => width.unwrap_or(256),
    };
    let variant = Variant {
        epsilon: 1e-5,
        mlp_biases: flag(config, "mlp_bias", false)?,
        tied: true,
        embedding_scale: number(config, "scale_emb", 12.0)?,
        residual_scale,
        logit_scale: (base_width as f64 / hidden as f64) as f32,
        ..Variant::PLAIN
    };
    let mixer = |index: usize, layer: &str| attention.mixer(roles, index, layer);
    let mlp = variant.mlp(roles, &sizes)?;
    variant.decoder_of(roles, &sizes, mixer, |_, layer| mlp(layer))
}
