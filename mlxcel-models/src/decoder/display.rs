//! The printed summary of a [`Decoder`].

use std::fmt;

use super::{Activation, Decoder, Layer, Linear, Mixer, Norm};

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu (tanh)",
            Self::Relu => "relu",
        })
    }
}

/// Prints a summary of a few lines, without a newline at its end; consecutive layers of one kind share their lines.
impl fmt::Display for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parameters = scaled(self.parameters(), &["", " K", " M", " B", " T"]);
        let bytes = scaled(self.weight_bytes(), &[" bytes", " KB", " MB", " GB", " TB"]);
        writeln!(
            f,
            "{}: {parameters} parameters in {bytes}, activations {}",
            self.model_type, self.element_type
        )?;
        let table = &self.embedding.weight;
        writeln!(f, "  context    {} positions", self.context_length)?;
        writeln!(f, "  embedding  {} × {} {}", self.vocabulary_size, self.hidden_size, table.storage())?;

        let described = self.layers.iter().map(describe_layer).collect::<Vec<_>>();
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

        writeln!(f, "  norm       {}", describe_norm(&self.norm))?;
        let head = if self.head.tied { "the embedding" } else { "its own weights" };
        write!(f, "  head       {head}, {}", self.head.weight.storage())
    }
}

/// A layer's lines, the same for layers that differ only in the names of their weights.
fn describe_layer(layer: &Layer) -> Vec<String> {
    let mixer = match &layer.mixer {
        Mixer::Attention(attention) => {
            let rope = &attention.rope;
            let projections = [&attention.query, &attention.key, &attention.value, &attention.output];
            vec![
                format!(
                    "attention  {} query heads over {} key/value heads of {}, scale {}{}, {}",
                    attention.query_heads,
                    attention.kv_heads,
                    attention.head_dim,
                    attention.scale,
                    attention.window.map(|window| format!(", window {window}")).unwrap_or_default(),
                    describe_projections(&projections),
                ),
                format!(
                    "rope       {} of {} elements, wavelengths {:.1} to {:.0} positions, factor {}",
                    rope.rotary_dim,
                    attention.head_dim,
                    wavelength(rope.inv_freq.first()),
                    wavelength(rope.inv_freq.last()),
                    rope.attention_factor
                ),
            ]
        }
    };
    let mlp = &layer.mlp;
    let sizes = format!("{} → {} → {}", mlp.gate.inputs(), mlp.gate.outputs(), mlp.down.outputs());
    let projections = describe_projections(&[&mlp.gate, &mlp.up, &mlp.down]);
    let mut lines = vec![format!("norm       {}", describe_norm(&layer.mixer_norm))];
    lines.extend(mixer);
    lines.push(format!("norm       {}", describe_norm(&layer.mlp_norm)));
    lines.push(format!("mlp        {} gate, {sizes}, {projections}", mlp.activation));
    lines
}

fn describe_norm(norm: &Norm) -> String {
    format!("rms, epsilon {:e}, {}", norm.epsilon, norm.weight.element)
}

/// How the weights of projections are stored, and whether they have biases.
fn describe_projections(projections: &[&Linear]) -> String {
    let mut types = projections.iter().map(|linear| linear.weight.storage()).collect::<Vec<_>>();
    types.dedup();
    let biases = projections.iter().filter(|linear| linear.bias.is_some()).count();
    let biases = match biases {
        0 => String::new(),
        all if all == projections.len() => " with biases".to_owned(),
        some => format!(" with {some} biases"),
    };
    format!("{}{biases}", types.join("/"))
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
