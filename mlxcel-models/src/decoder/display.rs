//! The printed summary of a [`Decoder`].

use std::fmt;

use super::{
    Activation, Arrangement, Attention, AttentionCore, AttentionMask, Block, DecayScope, Decoder,
    DistanceBias, Experts, Gating, Head, HeadSharing, HyperConnection, Indexer, InputStates, LatentAttention,
    Layer, LayerEmbeddings, LayerInput, Linear, Mixer, Mlp, Norm, NormKind, NormScope, Operation,
    OutputStates, Scoring, SharedAttention, SparseAttention,
};
use crate::rope::Rope;

/// Prints a summary of a few lines, without a newline at its end; consecutive layers of one kind share their
/// lines.
impl fmt::Display for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters = scaled(self.parameters(), &["", " K", " M", " B", " T"]);
        let bytes = scaled(self.weight_bytes(), &[" bytes", " KB", " MB", " GB", " TB"]);
        writeln!(
            f,
            "{}: {parameters} parameters in {bytes}, activations {}",
            self.model_type, self.element_type
        )?;
        for note in &self.notes {
            writeln!(f, "  note       {note}")?;
        }
        let table = self.weight(self.embedding.weight);
        writeln!(f, "  context    {} positions", self.context_length)?;
        let projection = self.embedding.projection.as_ref();
        let width = projection.map_or(self.hidden_size, |projection| projection.inputs);
        write!(f, "  embedding  {} × {} {}", self.vocabulary_size, width, table.storage())?;
        if self.embedding.scale != 1.0 {
            write!(f, ", times {}", self.embedding.scale)?;
        }
        f.write_str(if self.embedding.positions.is_some() { ", learned positions" } else { "" })?;
        if let Some(types) = self.embedding.types {
            write!(f, ", {} token types", types.rows)?;
        }
        writeln!(f)?;
        if let Some(norm) = &self.embedding.norm {
            writeln!(f, "  norm       {}", self.describe_norm(norm))?;
        }
        if let Some(projection) = projection {
            let projections = self.describe_projections(&[projection]);
            writeln!(f, "  projection {width} → {}, {projections}", projection.outputs)?;
        }

        match &self.input_states {
            None => {}
            Some(InputStates::Projected { embedding_norm, state_norm: _, projection }) => {
                let projections = self.describe_projections(&[projection]);
                let norm = self.describe_norm(embedding_norm);
                writeln!(f, "  draft head hidden states beside embeddings, each with {norm}, {projections}")?;
            }
            Some(InputStates::Beside { embedding_norm, state_norm }) => {
                let norm = self.describe_norm(embedding_norm);
                let normed = if state_norm.is_some() { "normed " } else { "" };
                writeln!(f, "  draft head reads embeddings beside {normed}hidden states, with {norm}")?;
            }
        }

        if let Some(LayerEmbeddings { width, scale, projection, .. }) = &self.layer_embeddings {
            let projections = self.describe_projections(&[projection]);
            writeln!(f, "  by layer   embeddings of {width}, times {scale}, {projections}")?;
        }

        let described = self.layers.iter().map(|layer| self.describe_layer(layer)).collect::<Vec<_>>();
        let mut first = 0;
        for group in described.chunk_by(|a, b| a == b) {
            let last = first + group.len() - 1;
            if first == last {
                writeln!(f, "  layer {first}")?;
            } else {
                writeln!(f, "  layers {first} to {last}")?;
            }
            for line in group.first().into_iter().flatten() {
                writeln!(f, "    {line}")?;
            }
            first += group.len();
        }

        if let Some(norm) = &self.norm {
            writeln!(f, "  norm       {}", self.describe_norm(norm))?;
        }
        let Some(Head { projection, tied, scale, soft_cap }) = &self.head else {
            return write!(f, "  head       none: hidden states only");
        };
        let head = if *tied { "the embedding" } else { "its own weights" };
        write!(f, "  head       {head}, {}", self.describe_projections(&[projection]))?;
        if *scale != 1.0 {
            write!(f, ", times {scale}")?;
        }
        if let Some(tokens) = &self.head_tokens {
            write!(f, ", of {} tokens", tokens.len())?;
        }
        soft_cap.map_or(Ok(()), |cap| write!(f, ", soft cap {cap}"))?;
        match &self.output_states {
            None | Some(OutputStates::Normed | OutputStates::BeforeNorm) => Ok(()),
            Some(OutputStates::Fused { depths, state_norms, joined_norm, projection }) => {
                let projections = self.describe_projections(&[projection]);
                write!(f, "\n  states     for a draft head, of the stream at depths {depths:?}, ")?;
                if let Some(norm) = state_norms.iter().chain(joined_norm).next() {
                    write!(f, "{}, ", self.describe_norm(norm))?;
                }
                f.write_str(&projections)
            }
        }
    }
}

impl Decoder {
    /// A layer's lines, the same for layers that differ only in the names of their weights.
    fn describe_layer(&self, layer: &Layer) -> Vec<String> {
        let Layer { blocks, arrangement, altup, scale } = layer;
        let mut lines = Vec::new();
        if *arrangement == Arrangement::Parallel {
            lines.push("parallel   all blocks read the layer's input".to_owned());
        }
        for block in blocks {
            let Block {
                norm_before,
                input_scale,
                operation,
                norm_after,
                laurel,
                residual_scale,
                norm_output,
                deferred,
                connection,
            } = block;
            lines.extend(norm_before.iter().map(|norm| format!("norm       {}", self.describe_norm(norm))));
            if *input_scale != 1.0 {
                lines.push(format!("input      times {input_scale}"));
            }
            match operation {
                Operation::Mixer(mixer) => lines.extend(self.describe_mixer(mixer)),
                Operation::Mlp(mlp) => lines.push(format!("mlp        {}", self.describe_mlp(mlp))),
                Operation::Experts(experts) => lines.extend(self.describe_experts(experts)),
                Operation::LayerInput(LayerInput { layer: _, activation, gate, projection }) => {
                    let projections = self.describe_projections(&[gate, projection]);
                    lines.push(format!(
                        "by layer   {activation} gate of the layer's embeddings, {} → {} → {}, {projections}",
                        gate.inputs, gate.outputs, projection.outputs
                    ));
                }
            }
            lines.extend(norm_after.iter().map(|norm| format!("norm after {}", self.describe_norm(norm))));
            lines.extend(laurel.iter().map(|laurel| {
                format!("laurel     rank {}, the sum times {}", laurel.left.outputs, laurel.scale)
            }));
            if *residual_scale != 1.0 {
                lines.push(format!("residual   times {residual_scale}"));
            }
            if *deferred {
                lines.push("shortcut   added behind the layer's last block".to_owned());
            }
            lines.extend(connection.iter().map(|HyperConnection { mixer, iterations }| {
                format!("streams    {} mixed, {iterations} iterations", mixer.streams)
            }));
            lines.extend(norm_output.iter().map(|norm| format!("post-norm  {}", self.describe_norm(norm))));
        }
        lines.extend(altup.iter().map(|altup| {
            format!("streams    {}, of which {} is computed", altup.router.outputs, altup.active)
        }));
        lines.extend(scale.iter().map(|_| "scale      by a factor of the layer's own".to_owned()));
        lines
    }

    fn describe_sparse(&self, sparse: &SparseAttention) -> String {
        match sparse {
            SparseAttention::Indexed(indexer) => {
                let Indexer { heads, head_dim, count, scale, interleaved, .. } = indexer;
                let pairs = if *interleaved { ", interleaved" } else { "" };
                format!(
                    "selection  {count} positions by {heads} index heads of {head_dim}, scale {scale}{pairs}, {}",
                    self.describe_projections(&[&indexer.query, &indexer.key, &indexer.weights])
                )
            }
            SparseAttention::Shared { source } => format!("selection  the positions of mixer {source}"),
        }
    }

    fn describe_mixer(&self, mixer: &Mixer) -> Vec<String> {
        match mixer {
            Mixer::Attention(attention) => self.describe_attention(attention),
            Mixer::Shared(SharedAttention {
                query_heads,
                head_dim,
                query,
                output,
                query_norm,
                source,
                core,
            }) => {
                let mut extras = describe_core(core);
                extras.extend(query_norm.map(|_| "queries normed by head".to_owned()));
                let extras: String = extras.iter().map(|extra| format!(", {extra}")).collect();
                vec![
                    format!(
                        "attention  {query_heads} query heads of {head_dim} over the keys and values of mixer {source}, \
                         scale {}{extras}, {}",
                        core.scale,
                        self.describe_projections(&[query, output])
                    ),
                    describe_rope(core.rope.as_ref(), *head_dim),
                ]
            }
            Mixer::Latent(latent) => {
                let LatentAttention { heads, rank, rope_dim, value_dim, scale, rope, .. } = latent;
                let mut scaled = latent.query_scale.map_or("", |_| ", queries scaled by position").to_owned();
                if latent.latent_scale != 1.0 {
                    scaled += &format!(", latents times {}", latent.latent_scale);
                }
                let gated = latent.gate.map_or("", |_| ", gated");
                let mut lines = vec![
                    format!(
                        "attention  {heads} heads over latents of {rank} and keys of {rope_dim}, values of {value_dim}, scale \
                         {scale}{scaled}{gated}, {}",
                        self.describe_projections(&[&latent.down, &latent.output])
                    ),
                    describe_rope(rope.as_ref(), *rope_dim),
                ];
                lines.extend(latent.sparse.as_ref().map(|sparse| self.describe_sparse(sparse)));
                lines
            }
            Mixer::Compressed(attention) => self.describe_compressed(attention),
            Mixer::ShortConvolution(mixer) => vec![format!(
                "conv       {} channels, {} taps, {}",
                mixer.convolution.channels,
                mixer.convolution.taps,
                self.describe_projections(&[&mixer.input, &mixer.output])
            )],
            Mixer::DeltaRule(mixer) => vec![format!(
                "delta rule {} value heads of {} over {} key heads of {}{}{}, convolution of {} taps, {}",
                mixer.value_heads,
                mixer.value_dim,
                mixer.key_heads,
                mixer.key_dim,
                if mixer.sharing == HeadSharing::Turns { " by turns" } else { "" },
                if mixer.decay_scope == DecayScope::Channel { ", which decay by channel" } else { "" },
                mixer.convolution.taps,
                self.describe_projections(&[&mixer.query, &mixer.key, &mixer.value, &mixer.output])
            )],
            Mixer::SelectiveScan(mixer) => vec![format!(
                "scan       {} channels with states of {}, steps of rank {}, convolution of {} taps, {}",
                mixer.channels,
                mixer.state_size,
                mixer.rank.outputs,
                mixer.convolution.taps,
                self.describe_projections(&[&mixer.input, &mixer.rank, &mixer.step, &mixer.output])
            )],
            Mixer::StateSpace(mixer) => vec![format!(
                "state      {} heads of {} with states of {} in {} groups, convolution of {} taps, {}",
                mixer.heads,
                mixer.head_dim,
                mixer.state_size,
                mixer.groups,
                mixer.convolution.taps,
                self.describe_projections(&[&mixer.input, &mixer.output])
            )],
            Mixer::GeneralizedDeltaRule(mixer) => {
                let mut projections: Vec<_> =
                    mixer.shifted().into_iter().flat_map(|shifted| shifted.projection.linears()).collect();
                projections.push(mixer.output);
                vec![format!(
                    "delta rule generalised, {} heads of {}{}, of mixes with the token before, {}",
                    mixer.heads,
                    mixer.head_dim,
                    if mixer.value_mix.is_some() { ", with values of the first" } else { "" },
                    self.describe_projections(&projections.iter().collect::<Vec<_>>())
                )]
            }
            Mixer::ShiftedMlp(mixer) => {
                vec![format!("mlp        of a mix with the token before, {}", self.describe_mlp(&mixer.mlp))]
            }
        }
    }

    fn describe_attention(&self, attention: &Attention) -> Vec<String> {
        let projections = [&attention.query, &attention.key, &attention.value, &attention.output];
        let mut extras = describe_core(&attention.core);
        extras.extend(attention.query_norm.map(|norm| match norm.scope {
            NormScope::Head => "queries and keys normed by head".to_owned(),
            NormScope::RotatedHead => "rotated queries and keys normed by head".to_owned(),
            NormScope::Full => "queries and keys normed".to_owned(),
        }));
        extras.extend(attention.value_norm.map(|_| "values normed by head".to_owned()));
        extras.extend((attention.key == attention.value).then(|| "keys as values".to_owned()));
        extras.extend(attention.clip.map(|clip| format!("limited to {clip}")));
        extras.extend(attention.gate.map(|_| match attention.gate_activation {
            Activation::Sigmoid => "gated".to_owned(),
            activation => format!("gated by {activation}"),
        }));
        extras.extend(attention.output_norm.map(|_| "normed".to_owned()));
        if attention.value_dim != attention.head_dim {
            extras.push(format!("values of {}", attention.value_dim));
        }
        if attention.value_scale != 1.0 {
            extras.push(format!("values times {}", attention.value_scale));
        }
        let extras: String = extras.iter().map(|extra| format!(", {extra}")).collect();
        vec![
            format!(
                "attention  {} query heads over {} key/value heads of {}, scale {}{extras}, {}",
                attention.query_heads,
                attention.kv_heads,
                attention.head_dim,
                attention.core.scale,
                self.describe_projections(&projections),
            ),
            describe_rope(attention.core.rope.as_ref(), attention.head_dim),
        ]
    }

    fn describe_mlp(&self, mlp: &Mlp) -> String {
        match mlp {
            Mlp::Gated { gating, gate, up, norm, down } => format!(
                "{gating} gate, {}{} → {} → {}, {}",
                if norm.is_some() { "normed, " } else { "" },
                gate.inputs,
                gate.outputs,
                down.outputs,
                self.describe_projections(&[gate, up, down])
            ),
            Mlp::Plain { activation, up, down } => self.describe_plain_mlp(&activation.to_string(), up, down),
            Mlp::Xielu { activation: _, up, down } => self.describe_plain_mlp("xielu", up, down),
        }
    }

    fn describe_plain_mlp(&self, activation: &str, up: &Linear, down: &Linear) -> String {
        format!(
            "{activation}, {} → {} → {}, {}",
            up.inputs,
            up.outputs,
            down.outputs,
            self.describe_projections(&[up, down])
        )
    }

    fn describe_experts(&self, experts: &Experts) -> Vec<String> {
        let Experts {
            count,
            identities,
            chosen,
            router,
            norm_before,
            gating,
            gate,
            up,
            down,
            norm_after,
            shared,
            output_bias,
        } = experts;
        let scoring = match router.scoring {
            Scoring::Softmax => "softmax",
            Scoring::Sigmoid if router.ranks_logits => "logits, weighted by sigmoid",
            Scoring::Sigmoid => "sigmoid",
            Scoring::RootSoftplus => "root of softplus",
            Scoring::SparseMixer { .. } => "sparse mixer",
        };
        let groups = router.groups.map(|groups| format!(" in {} of {} groups", groups.kept, groups.count));
        let identities = match identities {
            0 => String::new(),
            identities => format!(" and {identities} identities"),
        };
        let scoring = match router.by_token {
            Some(_) => format!("token, weighted by {scoring}"),
            None => scoring.to_owned(),
        };
        let weighted = if router.weighs_inputs { " of their inputs" } else { "" };
        let gating = match gating {
            Gating::Ungated(activation) => activation.to_string(),
            gating => format!("{gating} gate"),
        };
        let normed = |before: &Option<Norm>, after: &Option<Norm>| match (before, after) {
            (None, None) => "",
            (Some(_), None) => ", after a norm",
            (None, Some(_)) => ", before a norm",
            (Some(_), Some(_)) => ", between norms",
        };
        let mut lines = vec![format!(
            "experts    {chosen} of {count}{identities}{} by {scoring}{weighted}, {gating}, {} → {} → {}, {}{}{}",
            groups.unwrap_or_default(),
            gate.inputs,
            gate.outputs,
            down.outputs,
            self.describe_projections(&[gate, up, down]),
            output_bias.map_or("", |_| " with a bias of their sum"),
            normed(norm_before, norm_after)
        )];
        lines.extend(shared.iter().map(|shared| {
            let normed = normed(&shared.norm_before, &shared.norm_after);
            format!("shared     {}{normed}", self.describe_mlp(&shared.mlp))
        }));
        lines
    }

    fn describe_norm(&self, norm: &Norm) -> String {
        let kind = match norm.kind {
            NormKind::Rms => "rms",
            NormKind::Layer => "layer",
        };
        let storage = norm.weight.map_or("no factors".to_owned(), |weight| self.weight(weight).storage());
        let offset = if norm.offset == 0.0 { String::new() } else { format!(" plus {}", norm.offset) };
        format!("{kind}, epsilon {:e}, {storage}{offset}", norm.epsilon)
    }

    /// How the weights of projections are stored, and whether they have biases.
    pub(super) fn describe_projections(&self, projections: &[&Linear]) -> String {
        let mut types =
            projections.iter().map(|linear| self.weight(linear.weight).storage()).collect::<Vec<_>>();
        types.dedup();
        let biases = projections.iter().filter(|linear| linear.bias.is_some()).count();
        let biases = match biases {
            0 => String::new(),
            all if all == projections.len() => " with biases".to_owned(),
            some => format!(" with {some} biases"),
        };
        format!("{}{biases}", types.join("/"))
    }
}

/// What is special about attention beside its projections.
pub(super) fn describe_core(core: &AttentionCore) -> Vec<String> {
    let AttentionCore { scale: _, mask, window, rope: _, soft_cap, sinks, query_scale, distance } = core;
    let mut extras = Vec::new();
    extras.extend((*mask == AttentionMask::Bidirectional).then(|| "in both directions".to_owned()));
    let within = if *mask == AttentionMask::Chunked { "chunks of" } else { "window" };
    extras.extend(window.map(|window| format!("{within} {window}")));
    extras.extend(soft_cap.map(|cap| format!("soft cap {cap}")));
    extras.extend(sinks.map(|_| "sinks".to_owned()));
    extras.extend(distance.map(|distance| match distance {
        DistanceBias::Slopes => "scores lowered by distance".to_owned(),
        DistanceBias::Buckets(_) => "scores by buckets of distances".to_owned(),
    }));
    extras.extend(query_scale.map(|_| "queries scaled by position".to_owned()));
    extras
}

pub(super) fn describe_rope(rope: Option<&Rope>, width: usize) -> String {
    let Some(rope) = rope else { return "positions  none".to_owned() };
    let mut text = format!(
        "rope       {} of {width} elements, wavelengths {:.1} to {:.0} positions, factor {}",
        rope.rotary_dim,
        wavelength(rope.inv_freq.first()),
        wavelength(rope.inv_freq.iter().rfind(|inv_freq| **inv_freq != 0.0)),
        rope.attention_factor
    );
    if rope.delay > 0 {
        text.push_str(&format!(", of {} positions before", rope.delay));
    }
    if rope.interleaved {
        text.push_str(", interleaved");
    }
    if let Some(long) = &rope.long {
        text.push_str(&format!(", others beyond {} positions", long.original_context));
    }
    text
}

/// Positions until an angle that grows by `inv_freq` a position has gone round.
fn wavelength(inv_freq: Option<&f32>) -> f32 {
    inv_freq.map_or(0.0, |inv_freq| std::f32::consts::TAU / inv_freq)
}

/// A number with three digits or so and the unit of its thousands.
fn scaled(number: u64, units: &[&str]) -> String {
    let mut value = number as f64;
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for next in units {
        if value < 1000.0 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    let digits = if value >= 100.0 || number < 1000 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}{unit}")
}
