//! Post-norm encoders with rotary positions: Nomic BERT (Nussbaum et al., 2024, "Nomic Embed"), with experts
//! in every other layer in its second version (Nussbaum and Duderstadt, 2025), Jina Embeddings v3 (Sturua et
//! al., 2024) and GTE (Zhang et al., 2024, "mGTE").
//!
//! Config fields, defaults and arithmetic follow transformers' `NomicBertModel`, `JinaEmbeddingsV3Model` and
//! `GteModel`, and with experts the authors' `NomicBertModel`. Checkpoints have the authors' names of
//! modules, or those of transformers.

use super::bert;
use super::blocks::normed_output;
use super::encoder::{both_ways, token_types};
use super::experts::{ExpertLinears, ExpertSizes, chosen_of, expert_count, softmax_router};
use super::prelude::*;
use crate::decoder::Experts;

pub(super) const FAMILY: Family = Family::new(&["nomic_bert"], &[], |roles| describe(roles, &NOMIC));

pub(super) const JINA: Family = Family::new(&["jina_embeddings_v3"], &[2], |roles| describe(roles, &JINA_V3));

pub(super) const GTE: Family = Family::new(&["gte"], &[], |roles| describe(roles, &M_GTE));

/// What the families do otherwise.
struct Variant {
    sizes: SizeDefaults,
    /// The number of token types, and whether there may be none.
    types: (usize, bool),
    theta: f64,
    epsilon: f64,
    activation: Activation,
    biases: Biases,
    /// What may stand before the names of modules.
    bases: &'static [&'static str],
    /// By the authors, and by transformers.
    names: [Names; 2],
}

/// Which projections have biases.
struct Biases {
    attention: bool,
    up: bool,
    down: bool,
}

/// Names of modules.
#[derive(Clone, Copy)]
struct Names {
    embedding_norm: &'static str,
    layers: &'static str,
    inputs: Inputs,
    output: &'static str,
    norms: [&'static str; 2],
    up: Up,
    down: &'static str,
}

/// The projections of queries, keys and values.
#[derive(Clone, Copy)]
enum Inputs {
    Fused(&'static str),
    Apart([&'static str; 3]),
}

/// The projections before the activation of an MLP.
#[derive(Clone, Copy)]
enum Up {
    Plain(&'static str),
    Gated {
        gate: &'static str,
        up: &'static str,
    },
    /// The rows of the gate are behind the others.
    Fused(&'static str),
}

const TRANSFORMERS: Names = Names {
    embedding_norm: "embeddings.LayerNorm",
    layers: "layers",
    inputs: Inputs::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    output: "self_attn.o_proj",
    norms: ["post_attention_layernorm", "post_mlp_layernorm"],
    up: Up::Gated { gate: "mlp.gate_proj", up: "mlp.up_proj" },
    down: "mlp.down_proj",
};

const NOMIC: Variant = Variant {
    sizes: SizeDefaults { vocabulary: 30_528, context: 2048, ..bert::DEFAULTS },
    types: (2, false),
    theta: 1000.0,
    epsilon: 1e-12,
    activation: Activation::Silu,
    biases: Biases { attention: false, up: false, down: false },
    bases: &["nomic_bert."],
    names: [
        Names {
            embedding_norm: "emb_ln",
            layers: "encoder.layers",
            inputs: Inputs::Fused("attn.Wqkv"),
            output: "attn.out_proj",
            norms: ["norm1", "norm2"],
            up: Up::Gated { gate: "mlp.fc12", up: "mlp.fc11" },
            down: "mlp.fc2",
        },
        TRANSFORMERS,
    ],
};

const JINA_V3: Variant = Variant {
    sizes: SizeDefaults {
        vocabulary: 250_002,
        hidden: 1024,
        intermediate: 4096,
        layers: 24,
        query_heads: 16,
        context: 8194,
        ..NOMIC.sizes
    },
    types: (1, false),
    theta: 20_000.0,
    epsilon: 1e-5,
    activation: Activation::Gelu,
    biases: Biases { attention: true, up: true, down: true },
    bases: &["roberta."],
    names: [
        Names {
            inputs: Inputs::Fused("mixer.Wqkv"),
            output: "mixer.out_proj",
            up: Up::Plain("mlp.fc1"),
            ..NOMIC.names[0]
        },
        Names { up: Up::Plain("mlp.fc1"), down: "mlp.fc2", ..TRANSFORMERS },
    ],
};

const NOMIC_V2: Variant = Variant {
    sizes: SizeDefaults { vocabulary: 250_048, ..NOMIC.sizes },
    types: (1, true),
    theta: 10_000.0,
    epsilon: 1e-5,
    activation: Activation::Gelu,
    biases: Biases { attention: true, up: true, down: true },
    bases: NOMIC.bases,
    names: [Names { up: Up::Plain("mlp.fc1"), ..NOMIC.names[0] }, TRANSFORMERS],
};

const M_GTE: Variant = Variant {
    sizes: SizeDefaults { vocabulary: 250_048, context: 8192, ..NOMIC.sizes },
    types: (1, true),
    theta: 160_000.0,
    epsilon: 1e-12,
    activation: Activation::Gelu,
    biases: Biases { attention: true, up: false, down: true },
    bases: &["gte.", "new."],
    names: [
        Names {
            layers: "encoder.layer",
            inputs: Inputs::Fused("attention.qkv_proj"),
            output: "attention.o_proj",
            norms: ["attn_ln", "mlp_ln"],
            up: Up::Fused("mlp.up_gate_proj"),
            ..TRANSFORMERS
        },
        TRANSFORMERS,
    ],
};

/// What the authors' settings call the sizes.
const AUTHORS: [&str; 5] = ["n_embd", "n_inner", "n_layer", "n_head", "n_positions"];

fn describe(roles: &Roles<'_>, variant: &Variant) -> Result<Decoder> {
    let config = roles.config;
    let mixture = Mixture::read(config)?;
    let variant = if mixture.is_some() { &NOMIC_V2 } else { variant };
    for key in AUTHORS {
        if mixture.is_none() && config.get(key).is_some() && config.get("hidden_size").is_none() {
            let message = "the authors' own settings are not supported; those of transformers are".to_owned();
            return Err(config.unsupported(key, message));
        }
    }
    let mut sizes = Sizes::read(config, &variant.sizes)?;
    let (mut epsilon_key, mut theta_key) = ("layer_norm_eps", "rope_theta");
    if mixture.is_some() {
        sizes = sizes.or_named(config, AUTHORS)?;
        (epsilon_key, theta_key) = ("layer_norm_epsilon", "rotary_emb_base");
    }
    // What other families read, and the classes do not.
    sizes.kv_heads = sizes.query_heads;
    let epsilon = positive(config, epsilon_key, variant.epsilon)?;
    let activation = activation(config, "hidden_act", variant.activation)?;
    let (types, optional) = variant.types;
    let types = token_types(config, types, optional)?;
    let rope = sizes.rope(config);
    let rope = RopeSettings { theta: variant.theta, theta_key, ..rope }.read()?;

    const EMBEDDING: &str = "embeddings.word_embeddings";
    let bases = variant.bases.iter().map(|base| roles.base(base, EMBEDDING));
    let base = bases.reduce(
        |base, other| {
            if roles.has_matrix(&format!("{base}{EMBEDDING}")) { base } else { other }
        },
    );
    let base = base.unwrap_or_default();
    let is_by = |names: &&Names| roles.has(&format!("{base}{}.0.{}.weight", names.layers, names.norms[0]));
    let [_, transformers] = &variant.names;
    let names = variant.names.iter().find(is_by).unwrap_or(transformers);
    let biases = &variant.biases;
    let norm = |name: &str| roles.layer_norm(name, sizes.hidden, epsilon, true);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}{}.{index}.{part}", names.layers);
        let (hidden, intermediate, width) = (sizes.hidden, sizes.intermediate, sizes.query_width());
        let inputs = match names.inputs {
            Inputs::Fused(fused) => {
                roles.fused(&name(fused), 3 * width, hidden, biases.attention)?.thirds(width)
            }
            Inputs::Apart(parts) => {
                let part = |part: &str| roles.linear(&name(part), width, hidden, biases.attention);
                let [query, key, value] = parts;
                [part(query)?, part(key)?, part(value)?]
            }
        };
        let output = roles.linear(&name(names.output), hidden, width, biases.attention)?;
        let attention = plain_attention(&sizes, inputs, output, both_ways(sizes.scale(), None, Some(&rope)));
        let after_attention = norm(&name(names.norms[0]))?;
        let after_mlp = norm(&name(names.norms[1]))?;
        if let Some(mixture) = mixture.filter(|mixture| index % mixture.every == 1) {
            let experts = mixture.experts(roles, &name("mlp"), &sizes, activation)?;
            return Ok(sequential([
                normed_output(attention, after_attention),
                normed_output(experts, after_mlp),
            ]));
        }
        let up = |part: &str| roles.linear(&name(part), intermediate, hidden, biases.up);
        let down = roles.linear(&name(names.down), hidden, intermediate, biases.down)?;
        let gated = |gate, up| {
            let gating = Gating::Activated(activation);
            Mlp::Gated { gating, gate, up, norm: None, down }
        };
        let mlp = match names.up {
            Up::Plain(part) => Mlp::Plain { activation, up: up(part)?, down },
            Up::Gated { gate, up: part } => gated(up(gate)?, up(part)?),
            Up::Fused(part) => {
                let fused = roles.fused(&name(part), 2 * intermediate, hidden, false)?;
                gated(fused.rows(intermediate, intermediate), fused.rows(0, intermediate))
            }
        };
        Ok(sequential([normed_output(attention, after_attention), normed_output(mlp, after_mlp)]))
    };
    let outline = Outline {
        embedding: format!("{base}{EMBEDDING}"),
        types: (types > 0).then(|| (format!("{base}embeddings.token_type_embeddings"), types)),
        embedding_norm: Some(format!("{base}{}", names.embedding_norm)),
        norm: None,
        head: None,
        ..Outline::new(&sizes, &base, false)
    };
    roles.decoder(outline, norm, layer)
}

/// The experts of Nomic Embed v2.
#[derive(Clone, Copy)]
struct Mixture {
    /// Of so many layers the second has experts.
    every: usize,
    count: usize,
    chosen: usize,
}

impl Mixture {
    /// Those that the settings describe, if any.
    fn read(config: Fields<'_>) -> Result<Option<Self>> {
        let every = config.size("moe_every_n_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(0);
        if every == 0 {
            return Ok(None);
        }
        expect_text(config, "activation_function", "gelu")?;
        for key in ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"] {
            expect_flag(config, key, true)?;
        }
        for key in [
            "prenorm",
            "parallel_block",
            "use_rms_norm",
            "rotary_emb_interleaved",
            "moe_normalize_expert_weights",
            "expert_choice_router",
        ] {
            expect_flag(config, key, false)?;
        }
        for (key, number) in [("rotary_emb_fraction", 1.0), ("num_shared_experts", 0.0), ("ffn_div", 1.0)] {
            expect_number(config, key, number)?;
        }
        for key in ["rotary_emb_scale_base", "rotary_scaling_factor"] {
            if let Some(number) = config.number(key)? {
                return Err(config.unsupported(key, format!("{number} is not supported for this model_type")));
            }
        }
        let count = expert_count(config, &["num_experts"], 1, 8)?;
        let chosen = chosen_of(config, &["moe_top_k"], count, 2)?;
        Ok(Some(Self { every, count, chosen }))
    }

    /// The experts of `module`, whose second projections are stored the other way round but in GGUF files,
    /// which lack the bias.
    fn experts(
        self,
        roles: &Roles<'_>,
        module: &str,
        sizes: &Sizes,
        activation: Activation,
    ) -> Result<Experts> {
        let (Self { every: _, count, chosen }, hidden, width) = (self, sizes.hidden, sizes.intermediate);
        let name = |part: &str| format!("{module}.{part}");
        let [up, down] = if roles.has_matrix(&name("switch_mlp.up_proj")) {
            let up = roles.matrices(&name("switch_mlp.up_proj"), count, width, hidden)?;
            [up, roles.matrices(&name("switch_mlp.down_proj"), count, hidden, width)?]
        } else {
            let stack = |part: &str| {
                let rows = roles.dense(&name(part), &[count * width, hidden])?;
                Ok(rows.reshaped([count, width, hidden]))
            };
            let down: Result<WeightRef> = stack("experts.mlp.w2");
            [stack("experts.mlp.w1")?, down?.transposed()]
        };
        let router = softmax_router(roles.linear(&name("router.layer"), count, hidden, false)?, false);
        let bias = roles.tensor_if_there(&name("experts.bias"), &[hidden])?;
        let up = roles.projection(up, None);
        let linears = ExpertLinears { gate: up, up, down: roles.projection(down, None) };
        let sizes = ExpertSizes { count, chosen, hidden, width };
        Ok(Experts { output_bias: bias, ..linears.routed(sizes, router, Gating::Ungated(activation), None) })
    }
}
