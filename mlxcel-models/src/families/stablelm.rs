//! StableLM 2: layer norms, partial rotary embedding, and in the 12B model parallel attention and MLP.
//!
//! Config fields, defaults and arithmetic follow transformers' `StableLmConfig` and `StableLmForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{AttentionBiases, by_head, core, parallel, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, head_dim, positive};
use crate::decoder::{Activation, Attention, Decoder, Norm, NormKind};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["stablelm"], &[0], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 50_304,
        hidden: 2560,
        intermediate: 6912,
        layers: 32,
        query_heads: 32,
        kv_heads: Some(32),
        head_dim: None,
        context: 4096,
    };
    let sizes = Sizes::read(config, &defaults)?;
    let sizes = Sizes {
        head_dim: head_dim(config, "num_attention_heads", sizes.hidden, sizes.query_heads)?,
        ..sizes
    };
    let epsilon = positive(config, "layer_norm_eps", 1e-5)?;
    let biases = AttentionBiases::inputs(flag(config, "use_qkv_bias", false)?);
    let head_norms = flag(config, "qk_layernorm", false)?;
    let side_by_side = flag(config, "use_parallel_residual", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let rope = RopeSettings {
        // transformers cuts heads behind an odd number of elements and turns one more.
        partial: Partial::Even { key: "partial_rotary_factor", default: 0.25 },
        ..sizes.rope(config)
    }
    .read()?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    // Each head has a norm of its own.
    let head_norm = |name: &str, heads: usize| {
        let factors = |head: usize| roles.dense(&format!("{name}.norms.{head}.weight"), &[sizes.head_dim]);
        let rest = (1..heads).map(factors).collect::<Result<Vec<_>>>()?;
        let weight = Some(roles.add(factors(0)?.stacked(rest)));
        Ok(Norm { kind: NormKind::Layer, weight, bias: None, epsilon, offset: 0.0, width: sizes.head_dim })
    };
    let attention = |name: &str| {
        let core = core(sizes.scale(), None, Some(&rope));
        let attention = roles.attention(name, &sizes, biases, core)?;
        if !head_norms {
            return Ok(attention);
        }
        Ok(Attention {
            query_norm: by_head(head_norm(&format!("{name}.q_layernorm"), sizes.query_heads)?),
            key_norm: by_head(head_norm(&format!("{name}.k_layernorm"), sizes.kv_heads)?),
            ..attention
        })
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let before = norm(&name("input_layernorm"))?;
        let attention = pre_norm(before, attention(&name("self_attn"))?);
        let mlp = |norm| {
            let mlp = roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false)?;
            Ok(pre_norm(norm, mlp))
        };
        Ok(match side_by_side {
            true => parallel([attention, mlp(before)?]),
            false => sequential([attention, mlp(norm(&name("post_attention_layernorm"))?)?]),
        })
    };
    roles.decoder(Outline::new(&sizes, &base, tied), norm, layer)
}
