//! Random choices, and the settings that are drawn by them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// A reproducible source of choices.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    /// The source for checkpoint `number` of a seed.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed.rotate_left(32) ^ number))
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    /// One of `values`.
    pub(crate) fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// True once in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A number within ±`most`.
    pub(crate) fn float(&mut self, most: f32) -> f32 {
        let unit = (self.0.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        unit * most
    }

    /// Random bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// What a checkpoint is made of.
pub(crate) struct Draft {
    pub(crate) random: Random,
    /// The content of `config.json`.
    pub(crate) config: Map<String, Value>,
    /// Sizes are multiples of the group sizes of packings.
    pub(crate) packable: bool,
    /// Tensors whose presence selects one of several layouts; `#` stands for the number of a layer. Those
    /// that the family does not read are left out.
    pub(crate) markers: Vec<String>,
}

/// How the width of a head follows from the config.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadDim {
    /// `head_dim`, or hidden size by heads.
    Free,
    /// Hidden size by heads.
    Derived,
}

/// Types of rotary scaling that a family supports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ropes {
    All,
    /// Phi-3's.
    LongRope,
}

/// Numbers of heads and key/value heads.
const HEADS: [(usize, usize); 14] = [
    (1, 1),
    (2, 1),
    (2, 2),
    (3, 1),
    (3, 3),
    (4, 1),
    (4, 2),
    (4, 4),
    (5, 5),
    (6, 2),
    (6, 3),
    (7, 1),
    (8, 2),
    (9, 3),
];
const HEAD_DIMS: [usize; 14] = [2, 4, 4, 6, 8, 8, 10, 12, 16, 16, 20, 32, 40, 72];
const ODD_WIDTHS: [usize; 16] = [1, 3, 8, 12, 20, 24, 31, 40, 48, 64, 72, 80, 96, 129, 160, 257];
const PACKABLE_WIDTHS: [usize; 6] = [64, 64, 96, 128, 160, 256];
const CONTEXTS: [usize; 5] = [64, 96, 128, 200, 512];
pub(crate) const ACTIVATIONS: [&str; 8] =
    ["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2", "sigmoid", "tanh"];

impl Draft {
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.config.insert(key.to_owned(), value.into());
    }

    pub(crate) fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    /// One of `values`, or in one of four cases no such key.
    pub(crate) fn any<T: Clone + Into<Value>>(&mut self, key: &str, values: &[T]) {
        if !self.random.one_in(4) {
            let value = self.random.pick(values);
            self.set(key, value);
        }
    }

    /// One of `values`.
    pub(crate) fn one<T: Clone + Into<Value>>(&mut self, key: &str, values: &[T]) {
        let value = self.random.pick(values);
        self.set(key, value);
    }

    pub(crate) fn flag(&mut self, key: &str) {
        self.any(key, &[true, false]);
    }

    pub(crate) fn flags(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.flag(key));
    }

    /// A width that nothing else follows from.
    pub(crate) fn width(&mut self) -> usize {
        let widths: &[usize] = if self.packable { &PACKABLE_WIDTHS } else { &ODD_WIDTHS };
        self.random.pick(widths)
    }

    /// The sizes that most families have, and what most have besides.
    pub(crate) fn sizes(&mut self, head_dim: HeadDim) {
        let (heads, kv_heads) = self.random.pick(&HEADS);
        self.sizes_of(heads, kv_heads, head_dim);
    }

    pub(crate) fn sizes_of(&mut self, heads: usize, kv_heads: usize, head_dim: HeadDim) {
        let packed_dims = [32, 64];
        let dims: &[usize] = if self.packable { &packed_dims } else { &HEAD_DIMS };
        let mut dim = self.random.pick(dims);
        let explicit = head_dim == HeadDim::Free && !self.random.one_in(3);
        if explicit {
            self.set("head_dim", dim);
            let hidden = self.width();
            // Some reference implementations want heads to divide it nevertheless.
            let hidden = if self.random.one_in(2) { hidden.next_multiple_of(heads) } else { hidden };
            self.set("hidden_size", hidden);
        } else {
            if self.packable && heads * dim > 288 {
                dim = 32;
            }
            self.set("hidden_size", heads * dim);
            // Without the key some families have a width of 128.
            if head_dim == HeadDim::Free {
                let same = if self.random.one_in(3) { Value::Null } else { dim.into() };
                self.set("head_dim", same);
            }
        }
        let width = self.width();
        self.set("intermediate_size", width);
        self.set("num_attention_heads", heads);
        self.set("num_key_value_heads", kv_heads);
        self.layers_and_vocabulary();
        self.one("max_position_embeddings", &CONTEXTS);
    }

    pub(crate) fn layers_and_vocabulary(&mut self) {
        self.one("num_hidden_layers", &[1, 1, 2, 2, 3, 4, 5]);
        self.one("vocab_size", &[33, 64, 72, 100, 257]);
    }

    pub(crate) fn layers(&self) -> usize {
        self.size("num_hidden_layers")
    }

    /// The width of a head.
    pub(crate) fn head_dim(&self) -> usize {
        let explicit = self.config.get("head_dim").and_then(Value::as_u64);
        explicit
            .map_or_else(|| self.size("hidden_size") / self.size("num_attention_heads"), |dim| dim as usize)
    }

    /// An activation, an epsilon and a tie, under their usual names.
    pub(crate) fn usual(&mut self) {
        self.any("hidden_act", &ACTIVATIONS);
        self.any("rms_norm_eps", &[1e-6, 1e-5, 1e-3]);
        self.flag("tie_word_embeddings");
    }

    /// A number of visible positions, or none.
    pub(crate) fn window(&mut self, key: &str) {
        self.any(key, &[json!(1), json!(2), json!(3), json!(7), json!(16), json!(30), Value::Null]);
    }

    /// One type for each layer, in half of all cases.
    pub(crate) fn layer_types(&mut self, known: &[&str]) {
        if self.random.one_in(2) {
            let types: Vec<_> = (0..self.layers()).map(|_| self.random.pick(known)).collect();
            self.set("layer_types", types);
        }
    }

    /// Mixtures of experts: their number under one of `keys`.
    pub(crate) fn experts(&mut self, keys: &[&str]) {
        let count = self.random.pick(&[2, 3, 4, 6, 8]);
        self.one_key(keys, count);
        let chosen = 1 + self.random.below(count.min(4));
        self.set("num_experts_per_tok", chosen);
    }

    fn one_key(&mut self, keys: &[&str], value: usize) {
        let key = self.random.pick(keys);
        self.set(key, value);
    }

    /// Layouts of the tensors of experts in `module`, a path with `#`: one by one, fused, or stacked as
    /// mlx-lm does.
    pub(crate) fn expert_layout(&mut self, module: &str) {
        match self.random.below(4) {
            0 => self.markers.push(format!("{module}.experts.gate_up_proj")),
            1 => self.markers.push(format!("{module}.switch_mlp.gate_proj.weight")),
            2 => self.markers.push(format!("{module}.experts.gate_proj.weight")),
            _ => {}
        }
    }

    /// Rotary settings for `dim` elements of a head, in either layout.
    pub(crate) fn rope(&mut self, kinds: Ropes, partial: Option<&str>) {
        let factor = partial.and_then(|key| self.partial(key));
        let inner = self.random.one_in(2);
        let dim = (self.head_dim() as f64 * factor.unwrap_or(1.0)) as usize;
        let mut settings = self.scaling(kinds, dim.div_ceil(2));
        let theta = self.random.pick(&[json!(100.0), json!(10_000.0), json!(500_000), json!(1e6)]);
        let theta = if self.random.one_in(6) { Value::Null } else { theta };
        if inner {
            if !theta.is_null() {
                settings.insert("rope_theta".to_owned(), theta);
            }
            settings.entry("rope_type").or_insert_with(|| json!("default"));
            self.set("rope_parameters", settings);
        } else {
            if !theta.is_null() {
                self.set("rope_theta", theta);
            }
            if !settings.is_empty() {
                self.set("rope_scaling", settings);
            }
        }
    }

    /// The part of each head that is rotated, where a config gives one, as far as heads have so many
    /// elements.
    fn partial(&mut self, key: &str) -> Option<f64> {
        let dim = self.head_dim();
        let fits = |factor: &f64| {
            let rotated = (dim as f64 * factor) as usize;
            rotated > 0 && rotated + rotated % 2 <= dim
        };
        let factors: Vec<_> = [0.25, 0.3, 0.5, 0.75, 1.0].into_iter().filter(fits).collect();
        let factor = self.random.pick(&factors);
        self.set(key, factor);
        Some(factor)
    }

    /// A type of scaling for so many pairs of elements; empty for none.
    pub(crate) fn scaling(&mut self, kinds: Ropes, pairs: usize) -> Map<String, Value> {
        let random = &mut self.random;
        let kind = match kinds {
            Ropes::All => {
                random.pick(&["", "", "default", "linear", "dynamic", "llama3", "yarn", "longrope"])
            }
            Ropes::LongRope => random.pick(&["", "default", "longrope"]),
        };
        let mut settings = Map::new();
        if kind.is_empty() {
            return settings;
        }
        settings.insert("rope_type".to_owned(), kind.into());
        let mut put = |key: &str, value: Value| settings.insert(key.to_owned(), value);
        let factor = random.pick(&[1.0, 2.0, 4.0, 8.5]);
        let original = random.pick(&[16, 24, 32, 64]);
        match kind {
            "linear" | "dynamic" => drop(put("factor", factor.into())),
            "llama3" => {
                put("factor", factor.into());
                put("low_freq_factor", random.pick(&[0.5, 1.0]).into());
                put("high_freq_factor", random.pick(&[2.0, 4.0]).into());
                put("original_max_position_embeddings", original.into());
            }
            "yarn" => {
                put("factor", factor.into());
                put("original_max_position_embeddings", original.into());
                for (key, values) in [
                    ("beta_fast", [16.0, 32.0]),
                    ("beta_slow", [1.0, 2.0]),
                    ("mscale", [0.7, 1.0]),
                    ("mscale_all_dim", [0.5, 1.0]),
                    ("attention_factor", [0.8, 1.2]),
                ] {
                    if random.one_in(4) {
                        put(key, random.pick(&values).into());
                    }
                }
                if random.one_in(3) {
                    put("truncate", random.pick(&[true, false]).into());
                }
            }
            "longrope" => {
                let mut factors =
                    || (0..pairs).map(|_| 2.0 + f64::from(random.float(1.0))).collect::<Vec<_>>();
                let (short, long) = (factors(), factors());
                put("short_factor", short.into());
                put("long_factor", long.into());
                if random.one_in(2) {
                    put("factor", factor.into());
                }
                match kinds {
                    Ropes::All => drop(put("original_max_position_embeddings", original.into())),
                    // Phi-3's settings have it outside.
                    Ropes::LongRope => self.set("original_max_position_embeddings", original),
                }
            }
            _ => {}
        }
        settings
    }
}
