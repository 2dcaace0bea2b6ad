//! DeepSeek-V4: attention to a window and to compressed positions, hyper-connections, and experts of which some
//! layers choose by token.
//!
//! Config fields, defaults and arithmetic follow transformers' `DeepseekV4Config` and
//! `DeepseekV4ForCausalLM`. The tensors have the names of the published files, which transformers writes as
//! well, with `model.` before them. The multi-token prediction layers are ignored.

use serde_json::Value;

use super::experts::{ExpertSizes, softmax_router};
use super::prelude::*;
use super::roles::refuse_order;
use crate::decoder::{
    CompressedAttention, Compressor, EntryIndexer, HeadLinear, HyperConnection, StreamMixer, Streams,
};

pub(super) const FAMILY: Family = Family::new(&["deepseek_v4"], &[1], describe);

const DEFAULTS: SizeDefaults = SizeDefaults {
    vocabulary: 129_280,
    hidden: 4096,
    intermediate: 2048,
    layers: 43,
    query_heads: 64,
    kv_heads: Some(1),
    head_dim: Some(512),
    context: 1_048_576,
};
/// Layers that attend to a few entries, which an indexer selects.
const SPARSE: &str = "compressed_sparse_attention";
/// Layers that attend to all entries, of more positions each.
const HEAVY: &str = "heavily_compressed_attention";
/// Layers whose experts are chosen by token.
const HASHED: &str = "hash_moe";
const ROUTED: &str = "moe";
/// Rotary settings of layers without entries, and of the others.
const MAIN: &str = "main";
const COMPRESS: &str = "compress";
/// Far above any published model.
const MOST_STREAMS: usize = 16;
const MOST_ITERATIONS: usize = 1000;
const NAMES: [&str; 3] = ["w1", "w3", "w2"];

/// The settings of layers.
struct Settings {
    sizes: Sizes,
    epsilon: f32,
    query_rank: usize,
    window: usize,
    kinds: Vec<&'static str>,
    /// Of entries in layers that select them, and in others.
    rates: [usize; 2],
    groups: usize,
    group_width: usize,
    index_heads: usize,
    index_dim: usize,
    index_count: usize,
    main: Rope,
    compress: Rope,
    streams: usize,
    iterations: usize,
    stream_epsilon: f32,
    hashed: Vec<bool>,
    experts: ExpertSizes,
    scoring: Scoring,
    scale: f32,
    gating: Gating,
}

impl Settings {
    fn read(config: Fields<'_>) -> Result<Self> {
        let sizes = Sizes::read(config, &DEFAULTS)?;
        let size = |key, default, largest| Ok(config.size(key, 1..=largest)?.unwrap_or(default));
        refuse_others(config)?;
        let (main, compress) = ropes(config, &sizes)?;
        const INDEX_DIM: &str = "index_head_dim";
        let index_dim = size(INDEX_DIM, 128, LARGEST_HEAD_DIM)?;
        if index_dim < compress.rotary_dim {
            let message =
                format!("{index_dim} elements are fewer than the {} that are rotated", compress.rotary_dim);
            return Err(config.wrong(INDEX_DIM, message));
        }
        let groups = size("o_groups", 8, LARGEST_HEAD_COUNT)?;
        if !sizes.query_width().is_multiple_of(groups) {
            let message = format!("{} elements of all heads cannot form as many groups", sizes.query_width());
            return Err(config.wrong("o_groups", message));
        }
        Ok(Self {
            epsilon: positive(config, "rms_norm_eps", 1e-6)?,
            query_rank: size("q_lora_rank", 1024, LARGEST_WIDTH)?,
            window: size("sliding_window", 128, LARGEST_CONTEXT)?,
            kinds: kinds(config, sizes.layers)?,
            rates: rates(config)?,
            groups,
            group_width: size("o_lora_rank", 1024, LARGEST_WIDTH)?,
            index_heads: size("index_n_heads", 64, LARGEST_HEAD_COUNT)?,
            index_dim,
            index_count: size("index_topk", 512, LARGEST_CONTEXT)?,
            main,
            compress,
            streams: size("hc_mult", 4, MOST_STREAMS)?,
            iterations: size("hc_sinkhorn_iters", 20, MOST_ITERATIONS)?,
            stream_epsilon: positive(config, "hc_eps", 1e-6)?,
            hashed: hashed(config, sizes.layers)?,
            experts: ExpertSizes::read(
                config,
                &sizes,
                &["n_routed_experts", "num_local_experts"],
                1,
                [256, 6],
            )?
            .of_own_width(config, sizes.intermediate)?,
            scoring: scoring(config)?,
            scale: config.number("routed_scaling_factor")?.unwrap_or(1.5) as f32,
            gating: Gating::ClampedSwiglu {
                alpha: 1.0,
                limit: positive(config, "swiglu_limit", 10.0)?,
                offset: 0.0,
            },
            sizes,
        })
    }

    /// The mixer whose tensors' names are `names`: functions, summands and factors.
    fn mixer(
        &self,
        roles: &Roles<'_>,
        names: [String; 3],
        mixes: usize,
        kinds: usize,
    ) -> Result<StreamMixer> {
        let width = self.streams * self.sizes.hidden;
        let [function, base, scale] = names;
        Ok(StreamMixer {
            streams: self.streams,
            norm: plain_norm(width, self.epsilon),
            projection: roles.projection(roles.dense(&function, &[mixes, width])?, None),
            scale: roles.tensor(&scale, &[kinds])?,
            base: roles.tensor(&base, &[mixes])?,
            epsilon: self.stream_epsilon,
        })
    }

    fn connection(&self, roles: &Roles<'_>, name: &str) -> Result<Option<HyperConnection>> {
        let names = ["fn", "base", "scale"].map(|part| format!("{name}_{part}"));
        let mixer = self.mixer(roles, names, (2 + self.streams) * self.streams, 3)?;
        Ok(Some(HyperConnection { mixer, iterations: self.iterations }))
    }

    fn compressor(&self, roles: &Roles<'_>, name: &str, width: usize, kind: &str) -> Result<Compressor> {
        let overlapping = kind == SPARSE;
        let rate = self.rates[usize::from(!overlapping)];
        let outputs = if overlapping { 2 * width } else { width };
        let linear = |part: &str| roles.linear(&format!("{name}.{part}"), outputs, self.sizes.hidden, false);
        Ok(Compressor {
            rate,
            overlapping,
            width,
            value: linear("wkv")?,
            gate: linear("wgate")?,
            gate_bias: roles.tensor(&format!("{name}.ape"), &[rate, outputs])?,
            norm: roles.rms_norm(&format!("{name}.norm"), width, self.epsilon)?,
            rope: Rope { delay: rate - 1, ..self.compress.clone() },
        })
    }

    fn attention(&self, roles: &Roles<'_>, module: &str, kind: &str) -> Result<Mixer> {
        let &Self { sizes, epsilon, query_rank, groups, group_width, index_dim, index_heads, .. } = self;
        let name = |part: &str| format!("{module}.{part}");
        let linear = |part: &str, outputs, inputs| roles.linear(&name(part), outputs, inputs, false);
        let is_compressed = kind != SLIDING;
        let group_inputs = sizes.query_width() / groups;
        let output_down = roles.matrix(&name("wo_a"), groups * group_width, group_inputs)?;
        refuse_order(&output_down, "projections of groups of heads")?;
        let rope = if is_compressed { &self.compress } else { &self.main };
        let indexer = || -> Result<EntryIndexer> {
            Ok(EntryIndexer {
                heads: index_heads,
                count: self.index_count,
                compressor: self.compressor(roles, &name("indexer.compressor"), index_dim, kind)?,
                query: linear("indexer.wq_b", index_heads * index_dim, query_rank)?,
                weights: linear("indexer.weights_proj", index_heads, sizes.hidden)?,
                scale: ((index_heads * index_dim) as f64).powf(-0.5) as f32,
            })
        };
        Ok(Mixer::Compressed(Box::new(CompressedAttention {
            query_heads: sizes.query_heads,
            head_dim: sizes.head_dim,
            query_down: linear("wq_a", query_rank, sizes.hidden)?,
            latent_norm: roles.rms_norm(&name("q_norm"), query_rank, epsilon)?,
            query: linear("wq_b", sizes.query_width(), query_rank)?,
            query_norm: plain_norm(sizes.head_dim, epsilon),
            key: linear("wkv", sizes.head_dim, sizes.hidden)?,
            key_norm: roles.rms_norm(&name(self.key_norm(roles, module)), sizes.head_dim, epsilon)?,
            output_down: HeadLinear {
                weight: roles.add(output_down.reshaped([groups, group_width, group_inputs])),
                transposed: false,
                heads: groups,
                inputs: group_inputs,
                outputs: group_width,
            },
            output: linear("wo_b", sizes.hidden, groups * group_width)?,
            core: AttentionCore {
                sinks: Some(roles.tensor(&name("attn_sink"), &[sizes.query_heads])?),
                ..core(sizes.scale(), Some(self.window), Some(rope))
            },
            compressor: is_compressed
                .then(|| self.compressor(roles, &name("compressor"), sizes.head_dim, kind))
                .transpose()?,
            indexer: (kind == SPARSE).then(indexer).transpose()?,
        })))
    }

    /// The norm of keys: transformers shortens the name of the published files.
    fn key_norm(&self, roles: &Roles<'_>, module: &str) -> &'static str {
        if roles.has(&format!("{module}.norm.weight")) { "norm" } else { "kv_norm" }
    }

    fn experts(&self, roles: &Roles<'_>, module: &str, hashed: bool) -> Result<Operation> {
        let ExpertSizes { count, chosen, hidden, width } = self.experts;
        let gate = format!("{module}.gate");
        let projection = roles.linear(&gate, count, hidden, false)?;
        let selection_bias =
            (!hashed).then(|| roles.tensor(&format!("{gate}.bias"), &[count])).transpose()?;
        let table = || roles.integers(&format!("{gate}.tid2eid"), &[self.sizes.vocabulary, chosen], count);
        let router = Router {
            scoring: self.scoring,
            selection_bias,
            by_token: hashed.then(table).transpose()?,
            normaliser: 1e-20,
            scale: self.scale,
            ..softmax_router(projection, true)
        };
        let linears = roles.experts(module, NAMES, self.experts)?;
        let shared = format!("{module}.shared_experts");
        let shared = roles.gated_mlp_of(&shared, NAMES, [hidden, width], self.gating, false)?;
        Ok(linears.routed(self.experts, router, self.gating, Some(shared.into())).into())
    }
}

fn describe(roles: &Roles<'_>) -> Result<Decoder> {
    let config = roles.config;
    let settings = Settings::read(config)?;
    let Settings { sizes, epsilon, .. } = settings;
    let is_published = roles.has_matrix("embed");
    let base = if is_published { String::new() } else { roles.base("model.", "embed_tokens") };
    let norm = |name: &str| roles.rms_norm(name, sizes.hidden, epsilon);
    let layer = |index: usize| {
        let name = |part: &str| format!("{base}layers.{index}.{part}");
        let mut attention = pre_norm(
            norm(&name("attn_norm"))?,
            settings.attention(roles, &name("attn"), settings.kinds[index])?,
        );
        attention.connection = settings.connection(roles, &name("hc_attn"))?;
        let experts = settings.experts(roles, &name("ffn"), settings.hashed[index])?;
        let mut experts = pre_norm(norm(&name("ffn_norm"))?, experts);
        experts.connection = settings.connection(roles, &name("hc_ffn"))?;
        Ok(sequential([attention, experts]))
    };
    let head = ["fn", "base", "scale"].map(|part| {
        if is_published { format!("hc_head_{part}") } else { format!("{base}hc_head.hc_{part}") }
    });
    let streams = settings.mixer(roles, head, settings.streams, 1)?;
    let outline = Outline {
        embedding: format!("{base}{}", if is_published { "embed" } else { "embed_tokens" }),
        head: Some(if roles.has_matrix("head") { "head" } else { "lm_head" }),
        streams: Some(Streams::Connected(streams)),
        ..Outline::new(&sizes, &base, flag(config, "tie_word_embeddings", false)?)
    };
    roles.decoder(outline, norm, layer)
}

/// Refuses what the reference implementation does not do, or does another way.
fn refuse_others(config: Fields<'_>) -> Result<()> {
    expect_flag(config, "attention_bias", false)?;
    expect_flag(config, "mlp_bias", false)?;
    expect_number(config, "num_key_value_heads", 1.0)?;
    expect_number(config, "n_shared_experts", 1.0)?;
    match activation(config, "hidden_act", Activation::Silu)? {
        Activation::Silu => Ok(()),
        other => {
            let message = format!("'{other}' is not supported for this model_type; silu is");
            Err(config.unsupported("hidden_act", message))
        }
    }
}

/// How logits become scores.
fn scoring(config: Fields<'_>) -> Result<Scoring> {
    const KEY: &str = "scoring_func";
    match config.text(KEY)? {
        None | Some("sqrtsoftplus") => Ok(Scoring::RootSoftplus),
        Some("sigmoid") => Ok(Scoring::Sigmoid),
        Some(other) => {
            let message = format!(
                "scores by '{}' are not supported for this model_type; sqrtsoftplus and sigmoid are",
                other.escape_debug()
            );
            Err(config.unsupported(KEY, message))
        }
    }
}

/// What each layer attends to: by `layer_types`, or by the rates of `compress_ratios`.
fn kinds(config: Fields<'_>, layers: usize) -> Result<Vec<&'static str>> {
    const TYPES: &str = "layer_types";
    const RATIOS: &str = "compress_ratios";
    let ratios = if config.get(TYPES).is_some() { None } else { config.sizes(RATIOS)? };
    let Some(ratios) = ratios else {
        let default = |index: usize| if index >= 2 && index % 2 == 1 { SPARSE } else { HEAVY };
        return layer_kinds(config, TYPES, layers, &[SLIDING, SPARSE, HEAVY], default);
    };
    // Prediction layers have rates too, behind those of the others.
    if ratios.len() < layers {
        return Err(config.wrong(RATIOS, format!("{} rates are given for {layers} layers", ratios.len())));
    }
    let kind = |ratio: usize| match ratio {
        0 => Ok(SLIDING),
        4 => Ok(SPARSE),
        128 => Ok(HEAVY),
        other => Err(config.unsupported(RATIOS, format!("{other} is not supported; 0, 4 and 128 are"))),
    };
    ratios.into_iter().take(layers).map(kind).collect()
}

/// Which layers choose experts by token: by `mlp_layer_types`, or the first ones.
fn hashed(config: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    let first = config.size("num_hash_layers", 0..=LARGEST_LAYER_COUNT)?.unwrap_or(3);
    let default = |index: usize| if index < first { HASHED } else { ROUTED };
    let kinds = layer_kinds(config, "mlp_layer_types", layers, &[HASHED, ROUTED], default)?;
    Ok(kinds.into_iter().map(|kind| kind == HASHED).collect())
}

/// How many positions make an entry, in layers that select entries and in others.
fn rates(config: Fields<'_>) -> Result<[usize; 2]> {
    let rates = config.object("compress_rates")?;
    let rate = |kind: &str, older: &str, default: usize| {
        // One is no compression, of which nothing would be left to keep.
        if let Some(rate) = config.size(older, 2..=LARGEST_CONTEXT)? {
            return Ok(rate);
        }
        match rates {
            None => Ok(default),
            Some(rates) => Ok(rates.size(kind, 2..=LARGEST_CONTEXT)?.unwrap_or(default)),
        }
    };
    Ok([rate(SPARSE, "compress_rate_csa", 4)?, rate(HEAVY, "compress_rate_hca", 128)?])
}

/// The rotary embeddings of layers without entries, and of the others: `rope_parameters` for both, or one
/// scaling that is for the latter alone, without a factor of cosines and sines unless it has one.
fn ropes(config: Fields<'_>, sizes: &Sizes) -> Result<(Rope, Rope)> {
    const FACTOR: &str = "partial_rotary_factor";
    const THETA: &str = "rope_theta";
    const ATTENTION_FACTOR: &str = "attention_factor";
    let settings =
        RopeSettings { partial: Partial::Inner { default: 1.0 }, interleaved: true, ..sizes.rope(config) };
    let theta = config.positive(THETA)?.unwrap_or(10_000.0);
    let factor = config.number(FACTOR)?;
    let parameters = match config.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => config.object("rope_parameters")?,
    };
    let nested = |name: &str| match parameters {
        Some(parameters) => parameters.object(name),
        None => Ok(None),
    };
    let read = |place: Fields<'_>, changes: &[(&str, Value)], defaults: &[(&str, Value)]| {
        let mut fields = place.all().clone();
        for (key, value) in changes {
            fields.insert((*key).to_owned(), value.clone());
        }
        for (key, value) in defaults {
            fields.entry(*key).or_insert_with(|| value.clone());
        }
        settings.read_with(Some(place.replaced(&fields)), theta)
    };
    match (nested(MAIN)?, nested(COMPRESS)?, parameters) {
        (Some(main), Some(compress), _) => {
            let defaults: Vec<_> = factor.iter().map(|factor| (FACTOR, Value::from(*factor))).collect();
            Ok((read(main, &[], &defaults)?, read(compress, &[], &defaults)?))
        }
        (Some(_), None, Some(parameters)) => Err(parameters.absent(COMPRESS)),
        (None, Some(_), Some(parameters)) => Err(parameters.absent(MAIN)),
        (_, _, parameters) => {
            let of_head = |dim: usize| dim as f64 / sizes.head_dim as f64;
            let rotated = config.size("qk_rope_head_dim", 1..=LARGEST_HEAD_DIM)?.map(of_head);
            let factor = (FACTOR, Value::from(factor.or(rotated).unwrap_or(64.0 / 512.0)));
            let empty = serde_json::Map::new();
            let own = config.replaced(&empty);
            let compress = config.positive("compress_rope_theta")?.unwrap_or(160_000.0);
            let changes = [factor.clone(), (THETA, Value::from(compress))];
            let scaling = parameters.unwrap_or(own);
            let kind = |key| scaling.text(key).ok().flatten();
            let is_yarn = kind("rope_type").or(kind("type")) == Some("yarn");
            let defaults = [(ATTENTION_FACTOR, Value::from(1.0))];
            let defaults = if is_yarn { &defaults[..] } else { &[] };
            Ok((read(own, &[factor, (THETA, Value::from(theta))], &[])?, read(scaling, &changes, defaults)?))
        }
    }
}
