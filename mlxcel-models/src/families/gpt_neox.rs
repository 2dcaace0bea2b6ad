//! GPT-NeoX and Pythia: layer norms, MLPs without gates, rotary embedding of a quarter of each head, parallel
//! attention and MLP.
//!
//! Config fields, defaults and arithmetic follow transformers' `GPTNeoXConfig` and `GPTNeoXForCausalLM`.

use mlxcel_core::Result;

use super::Family;
use super::blocks::{core, parallel, plain_attention, pre_norm, sequential};
use super::outline::Outline;
use super::roles::Roles;
use super::settings::{SizeDefaults, Sizes, activation, flag, positive};
use crate::decoder::{Activation, Decoder};
use crate::rope::{Partial, RopeSettings};

pub(super) const FAMILY: Family = Family::new(&["gpt_neox"], &[2], describe);

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let defaults = SizeDefaults {
        vocabulary: 50_432,
        hidden: 6144,
        intermediate: 24_576,
        layers: 44,
        query_heads: 64,
        kv_heads: None,
        head_dim: None,
        context: 2048,
    };
    let sizes = Sizes::read(config, &defaults)?.with_equal_heads(config)?;
    let epsilon = positive(config, "layer_norm_eps", 1e-5)?;
    let biases = flag(config, "attention_bias", true)?;
    let by_head = flag(config, "fused_by_head", true)?;
    let side_by_side = flag(config, "use_parallel_residual", true)?;
    let activation = activation(config, "hidden_act", Activation::Gelu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let rope = RopeSettings {
        theta_key: "rotary_emb_base",
        partial: Partial::Part { key: "rotary_pct", default: 0.25 },
        ..sizes.rope(config)
    }
    .read()?;

    let base = roles.base("gpt_neox.", "embed_in");
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let attention = |name: &str| {
        let hidden = sizes.hidden;
        let fused = roles.fused(&format!("{name}.query_key_value"), 3 * hidden, hidden, biases)?;
        // In GGUF files all queries, keys and values follow each other.
        let inputs = if by_head { fused.by_group(&sizes) } else { fused.in_order(&sizes) };
        let output = roles.linear(&format!("{name}.dense"), hidden, hidden, biases)?;
        Ok(plain_attention(&sizes, inputs, output, core(sizes.scale(), None, Some(&rope))))
    };
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let attention = pre_norm(norm(&name("input_layernorm"))?, attention(&name("attention"))?);
        let (module, shape) = (name("mlp"), [sizes.hidden, sizes.intermediate]);
        let mlp = roles.plain_mlp_of(&module, ["dense_h_to_4h", "dense_4h_to_h"], shape, activation, true)?;
        let mlp = pre_norm(norm(&name("post_attention_layernorm"))?, mlp);
        Ok(if side_by_side { parallel([attention, mlp]) } else { sequential([attention, mlp]) })
    };
    // Newer checkpoints call the head as all families do.
    let head = if roles.has_matrix("embed_out") { "embed_out" } else { "lm_head" };
    let outline = Outline {
        embedding: format!("{base}embed_in"),
        norm: format!("{base}final_layer_norm"),
        head: head.to_owned(),
        ..Outline::new(&sizes, &base, tied)
    };
    roles.decoder(outline, norm, layer)
}
