//! Qwen3: Llama with norms of queries and keys.
//!
//! Config fields, defaults and arithmetic follow transformers' `Qwen3Config` and `Qwen3ForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, by_head, core, pre_norm, sequential};
use super::outline::Outline;
use super::qwen2::windows;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Attention, Decoder};
use crate::rope::RopeSettings;

pub(super) const FAMILY: Family = Family { model_types: &["qwen3"], stop_tokens: &[], describe };

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 151_936,
        hidden: 4096,
        intermediate: 22_016,
        layers: 32,
        query_heads: 32,
        kv_heads: Some(32),
        head_dim: Some(128),
        context: 32_768,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::all(flag(config, "attention_bias", false)?);
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let windows = windows(config, sizes.layers)?;
    let rope = RopeSettings::new(config, sizes.head_dim, sizes.context).read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let head_norm = |name: &str| roles.rms_norm(name, sizes.head_dim, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let core = core(sizes.scale(), windows[index], Some(&rope));
        Ok(sequential([
            pre_norm(
                norm(&name("input_layernorm"))?,
                Attention {
                    query_norm: by_head(head_norm(&name("self_attn.q_norm"))?),
                    key_norm: by_head(head_norm(&name("self_attn.k_norm"))?),
                    ..roles.attention(&name("self_attn"), &sizes, biases, core)?
                },
            ),
            pre_norm(
                norm(&name("post_attention_layernorm"))?,
                roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?,
            ),
        ]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
