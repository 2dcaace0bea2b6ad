//! A.X K1: DeepSeek-V3 with a norm after experts.
//!
//! Config fields, defaults and arithmetic follow transformers' `AXK1Config` and `AXK1ForCausalLM`.

use super::deepseek_v3;
use super::experts::{GroupedDefaults, GroupedExperts};
use super::latent::{LatentDefaults, LatentSettings, Pairs};
use super::prelude::*;
use super::sparse_layers::sparse_layer_types_by;

pub(super) const FAMILY: Family = Family::new(&["axk1"], &[163_691], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 163_840,
    query_heads: 64,
    kv_heads: Some(64),
    context: 32_768,
    ..deepseek_v3::DEFAULTS
};
const LATENTS: LatentDefaults = LatentDefaults { pairs: Pairs::AdjacentIfSet, ..LatentDefaults::DEEPSEEK };
const EXPERTS: GroupedDefaults = GroupedDefaults { count: 192, ..deepseek_v3::EXPERTS };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    expect_text(config, "scoring_func", "sigmoid")?;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let attention = LatentSettings::read(config, config, &sizes, &LATENTS)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let mixture = GroupedExperts::read(config, &sizes, activation, &EXPERTS)?;
    let dense_layers = config.size("first_k_dense_replace", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let frequency = config.size("moe_layer_freq", 1..=LARGEST_LAYER_COUNT)?.unwrap_or(1);
    let is_sparse = |index: usize| index >= dense_layers && index.is_multiple_of(frequency);
    let sparse = sparse_layer_types_by(config, sizes.layers, is_sparse)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let tied = flag(config, "tie_word_embeddings", false)?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let layer = format!("{base}layers.{index}");
        let name = |part: &str| format!("{layer}.{part}");
        let first = pre_norm(norm(&name("input_layernorm"))?, attention.mixer(roles, index, &layer)?);
        let before = norm(&name("post_attention_layernorm"))?;
        let second = pre_norm(before, mixture.or_mlp(roles, &name("mlp"), sparse[index])?);
        // The first is the published name, which layers without experts have as well.
        let names = ["post_mlp_layernorm.weight", "mlp.post_mlp_layernorm.weight"].map(name);
        let after = roles.first_tensor(&names);
        let norm_after = sparse[index].then(|| norm(after.trim_end_matches(".weight"))).transpose()?;
        Ok(sequential([first, Block { norm_after, ..second }]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
