//! MiniCPM 1, 2 and 4: Llama with factors of embeddings, residuals and logits.
//!
//! Config fields and defaults are those of OpenBMB's `MiniCPMConfig`, which transformers does not have.
//! mlx-lm and vLLM compute the same; only mlx-lm leaves logits of tied embeddings unscaled.

use super::prelude::*;

pub(super) const FAMILY: Family = Family::new(&["minicpm"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    if config.size("num_experts", 0..=usize::MAX)?.is_some_and(|experts| experts > 0) {
        return Err(config.unsupported("num_experts", "MiniCPM with experts is not supported".to_owned()));
    }
    if config.object("sparse_config")?.is_some() {
        let message =
            "attention to chosen blocks is not supported; without this setting all tokens are attended to";
        return Err(config.unsupported("sparse_config", message.to_owned()));
    }
    let sizes = Sizes::read(config, &SizeDefaults::LLAMA)?;
    let rope = sizes.rope(config).read()?;
    let depth = number(config, "scale_depth", 1.0)?;
    let variant = Variant {
        attention_biases: AttentionBiases::read(config)?,
        tied: true,
        embedding_scale: number(config, "scale_emb", 1.0)?,
        residual_scale: (f64::from(depth) / (sizes.layers as f64).sqrt()) as f32,
        logit_scale: (f64::from(positive(config, "dim_model_base", 1.0)?) / sizes.hidden as f64) as f32,
        ..Variant::PLAIN
    };
    variant.decoder(roles, &sizes, |_| core(sizes.scale(), None, Some(&rope)))
}
