//! OLMo Hybrid: the gated delta rule behind norms in most layers, and OLMo 3's attention before norms in the
//! others.
//!
//! Config fields, defaults and arithmetic follow transformers' `OlmoHybridConfig` and
//! `OlmoHybridForCausalLM`.

use super::blocks::over_heads;
use super::convolution::taps;
use super::prelude::*;
use crate::decoder::{Decay, DecayScope, DeltaRule, HeadSharing};

pub(super) const FAMILY: Family = Family::new(&["olmo_hybrid"], &[100_257], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 100_352,
    hidden: 3840,
    query_heads: 30,
    context: 65_536,
    ..SizeDefaults::LLAMA
};

/// The epsilon of the norm after the delta rule, which no setting changes.
const OUTPUT_EPSILON: f32 = 1e-5;

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let sizes = Sizes::read(config, &DEFAULTS)?;
    let rope = rope(config, &sizes)?;
    let epsilon = positive(config, "rms_norm_eps", 1e-6)?;
    let biases = AttentionBiases::read(config)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    let tied = flag(config, "tie_word_embeddings", false)?;
    let delta = DeltaSizes::read(config, &sizes)?;
    let last = sizes.layers.min(4).saturating_sub(1);
    let types =
        layer_types(
            config,
            sizes.layers,
            &[FULL, LINEAR],
            |index| {
                if index % 4 == last { FULL } else { LINEAR }
            },
        )?;

    let base = roles.base("model.", "embed_tokens");
    let norm = |name: &str, width| roles.rms_norm(name, width, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        // Published files have the first of the names, and transformers reads both.
        let block_norm = |names: [&str; 2]| {
            let names = names.map(|part| format!("{}.weight", name(part)));
            let found = names.iter().find(|name| roles.has(name)).unwrap_or(&names[1]);
            norm(found.trim_end_matches(".weight"), sizes.hidden)
        };
        let middle = ["feedforward_layer_norm", "post_attention_layernorm"];
        let mlp = || roles.gated_mlp(&name("mlp"), [sizes.hidden, sizes.intermediate], activation, false);
        if types[index] == FULL {
            let core = core(sizes.scale(), None, rope.as_ref());
            let attention = Attention {
                query_norm: over_heads(norm(&name("self_attn.q_norm"), sizes.query_width())?),
                key_norm: over_heads(norm(&name("self_attn.k_norm"), sizes.kv_width())?),
                ..roles.attention(&name("self_attn"), &sizes, biases, core)?
            };
            let last = norm(&name("post_feedforward_layernorm"), sizes.hidden)?;
            return Ok(sequential([post_norm(attention, block_norm(middle)?), post_norm(mlp()?, last)]));
        }
        let mixer = delta.describe(roles, &name("linear_attn"), activation)?;
        let input = block_norm(["attention_layer_norm", "input_layernorm"])?;
        let mixer = pre_norm(input, Operation::Mixer(Mixer::DeltaRule(mixer)));
        Ok(sequential([mixer, pre_norm(block_norm(middle)?, mlp()?)]))
    };
    roles.decoder(Outline::new(&sizes, &base, tied), |name| norm(name, sizes.hidden), layer)
}

/// The rotary embedding; none if the base is `null`.
fn rope(config: Fields<'_>, sizes: &Sizes) -> Result<Option<Rope>> {
    const THETA: &str = "rope_theta";
    let settings = match config.object("rope_scaling")? {
        Some(settings) => Some(settings),
        None => config.object("rope_parameters")?,
    };
    let place = settings.filter(|settings| settings.mentions(THETA)).unwrap_or(config);
    if place.mentions(THETA) && place.get(THETA).is_none() {
        return Ok(None);
    }
    sizes.rope(config).read().map(Some)
}

/// The sizes of the gated delta rule.
struct DeltaSizes {
    hidden: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    taps: usize,
    beta_scale: f32,
}

impl DeltaSizes {
    fn read(config: Fields<'_>, sizes: &Sizes) -> Result<Self> {
        const VALUE_HEADS: &str = "linear_num_value_heads";
        const KEY_DIM: &str = "linear_key_head_dim";
        let heads = |key| Ok(config.size(key, 1..=LARGEST_HEAD_COUNT)?.unwrap_or(sizes.query_heads));
        let (key_heads, value_heads) = (heads("linear_num_key_heads")?, heads(VALUE_HEADS)?);
        if value_heads % key_heads != 0 {
            let message =
                format!("{key_heads} key heads cannot be shared evenly by {value_heads} value heads");
            return Err(config.wrong(VALUE_HEADS, message));
        }
        let dim = |key| config.size(key, 1..=LARGEST_HEAD_DIM);
        let key_dim = dim(KEY_DIM)?.unwrap_or((0.75 * sizes.hidden as f64 / key_heads as f64) as usize);
        if !(1..=LARGEST_HEAD_DIM).contains(&key_dim) {
            let message =
                format!("{key_heads} key heads of hidden_size, {}, have no plausible width", sizes.hidden);
            return Err(config.wrong(KEY_DIM, message));
        }
        Ok(Self {
            hidden: sizes.hidden,
            key_heads,
            value_heads,
            key_dim,
            value_dim: dim("linear_value_head_dim")?.unwrap_or(2 * key_dim),
            taps: taps(config, "linear_conv_kernel_dim", 4)?,
            beta_scale: if flag(config, "linear_allow_neg_eigval", true)? { 2.0 } else { 1.0 },
        })
    }

    /// The mixer of `module`.
    fn describe(&self, roles: &Roles<'_>, module: &str, activation: Activation) -> Result<DeltaRule> {
        let &Self { hidden, key_heads, value_heads, key_dim, value_dim, taps, beta_scale } = self;
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        let name = |part: &str| format!("{module}.{part}");
        let input = |part: &str, outputs| roles.linear(&name(part), outputs, hidden, false);
        let whole = name("conv1d");
        let convolution = if roles.has(&format!("{whole}.weight")) {
            roles.convolution(&whole, [2 * keys + values, taps], false, Some(activation))?
        } else {
            let parts = ["q_conv1d", "k_conv1d", "v_conv1d"].map(name);
            roles.joined_convolution(parts, [keys, keys, values], taps, Some(activation))?
        };
        Ok(DeltaRule {
            key_heads,
            value_heads,
            sharing: HeadSharing::Neighbours,
            key_dim,
            value_dim,
            query: input("q_proj", keys)?,
            key: input("k_proj", keys)?,
            value: input("v_proj", values)?,
            gate: input("g_proj", values)?.into(),
            gate_activation: Activation::Silu,
            beta: input("b_proj", value_heads)?,
            beta_scale,
            alpha: input("a_proj", value_heads)?.into(),
            convolution,
            alpha_bias: roles.tensor(&name("dt_bias"), &[value_heads])?,
            decay_form: Decay::Softplus,
            decay_scope: DecayScope::Head,
            decay: roles.tensor(&name("A_log"), &[value_heads])?,
            norm: roles.rms_norm(&name("o_norm"), value_dim, OUTPUT_EPSILON)?,
            output: roles.linear(&name("o_proj"), hidden, values, false)?,
        })
    }
}
