//! nanochat: norms without weights, also of embeddings and of rotated queries and keys, rotation in the other
//! direction, MLPs without gates, and a soft cap of logits.
//!
//! Config fields, defaults and arithmetic follow transformers' `NanoChatConfig` and `NanoChatForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, core, plain_norm, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, optional_positive, positive};
use crate::decoder::{Activation, Attention, Decoder, HeadNorm, NormScope};

pub(super) const FAMILY: Family = Family::new(&["nanochat"], &[1], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 50_304,
    hidden: 768,
    intermediate: 8192,
    layers: 12,
    query_heads: 6,
    kv_heads: None,
    head_dim: None,
    context: 2048,
};

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let (hidden, intermediate) = (sizes.hidden, sizes.intermediate);
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let activation = activation(config, "hidden_act", Activation::ReluSquared)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let logit_soft_cap = optional_positive(config, "final_logit_softcapping", Some(15.0))?;
    let rope = sizes.rope(config).read()?.reversed();

    let base = roles.base("model.", "embed_tokens");
    let norm = plain_norm(hidden, epsilon);
    let head_norm =
        Some(HeadNorm { norm: plain_norm(sizes.head_dim, epsilon), scope: NormScope::RotatedHead });
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), None, Some(&rope));
        let attention = roles.attention(&name("self_attn"), &sizes, biases, core)?;
        let shape = [hidden, intermediate];
        let mlp = roles.plain_mlp_of(&name("mlp"), ["fc1", "fc2"], shape, activation, false)?;
        let attention = Attention { query_norm: head_norm, key_norm: head_norm, ..attention };
        Ok(sequential([pre_norm(norm, attention), pre_norm(norm, mlp)]))
    };
    let outline = Outline {
        embedding_norm: Some(format!("{base}norm")),
        logit_soft_cap,
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, |_| Ok(norm), layer)
}
