//! The shapes of published models.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// The shapes of a llama model with tied embeddings, or of one with experts (OLMoE's network) and a separate
/// head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) norm_epsilon: f64,
    pub(crate) rope_theta: f64,
    pub(crate) rope_scaling: Option<RopeScaling>,
    pub(crate) experts: Option<ExpertShapes>,
    /// A remark on the results, for readers.
    pub(crate) remark: Option<&'static str>,
}

/// Experts in place of each layer's MLP, [`Shapes::intermediate`] wide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertShapes {
    pub(crate) count: usize,
    /// The experts per token.
    pub(crate) chosen: usize,
}

/// The RoPE scaling of Llama 3.1 (`rope_type` `llama3`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeScaling {
    factor: f64,
    low_freq_factor: f64,
    high_freq_factor: f64,
    original_context: usize,
}

/// A model by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelName {
    #[value(name = "llama-3.2-1b")]
    Llama1b,
    #[value(name = "qwen3-0.6b")]
    Qwen600m,
    #[value(name = "olmoe-1b-7b")]
    Olmoe,
    /// A model for trying the program
    Small,
    /// A model with experts for trying the program
    SmallExperts,
}

impl ModelName {
    pub(crate) fn shapes(self) -> Shapes {
        match self {
            Self::Llama1b => LLAMA_1B,
            Self::Qwen600m => QWEN_600M,
            Self::Olmoe => OLMOE,
            Self::Small => SMALL,
            Self::SmallExperts => SMALL_EXPERTS,
        }
    }
}

const LLAMA_ROPE: RopeScaling =
    RopeScaling { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };

pub(crate) const LLAMA_1B: Shapes = Shapes {
    name: "llama-3.2-1b",
    hidden: 2048,
    intermediate: 8192,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    vocabulary: 128_256,
    context: 131_072,
    norm_epsilon: 1e-5,
    rope_theta: 500_000.0,
    rope_scaling: Some(LLAMA_ROPE),
    experts: None,
    remark: None,
};

/// Those of Qwen3-0.6B.
pub(crate) const QWEN_600M: Shapes = Shapes {
    name: "qwen3-0.6b",
    hidden: 1024,
    intermediate: 3072,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocabulary: 151_936,
    context: 40_960,
    norm_epsilon: 1e-6,
    rope_theta: 1_000_000.0,
    rope_scaling: None,
    experts: None,
    remark: Some(
        "a llama network of these shapes: every matrix of the model, but not its norms of queries and keys",
    ),
};

/// Those of OLMoE-1B-7B, with a quarter of its layers, which fits memory and disks in every type.
pub(crate) const OLMOE: Shapes = Shapes {
    name: "olmoe-1b-7b",
    hidden: 2048,
    intermediate: 1024,
    layers: 4,
    heads: 16,
    kv_heads: 16,
    head_dim: 128,
    vocabulary: 50_304,
    context: 4096,
    norm_epsilon: 1e-5,
    rope_theta: 10_000.0,
    rope_scaling: None,
    experts: Some(ExpertShapes { count: 64, chosen: 8 }),
    remark: Some(
        "4 of the model's 16 layers; what a token reads is all but the experts that it is not sent to and the table of embeddings",
    ),
};

/// A model for trying the program.
pub(crate) const SMALL: Shapes = Shapes {
    name: "small",
    hidden: 256,
    intermediate: 512,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    vocabulary: 2048,
    context: 131_072,
    norm_epsilon: 1e-5,
    rope_theta: 500_000.0,
    rope_scaling: Some(LLAMA_ROPE),
    experts: None,
    remark: None,
};

/// A model with experts for trying the program.
pub(crate) const SMALL_EXPERTS: Shapes = Shapes {
    name: "small-experts",
    kv_heads: 4,
    rope_scaling: None,
    experts: Some(ExpertShapes { count: 8, chosen: 2 }),
    ..SMALL
};

impl Shapes {
    /// Each tensor's name and shape, in the order of the file.
    pub(crate) fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocabulary, hidden]),
            ("model.norm.weight".to_owned(), vec![hidden]),
        ];
        if self.experts.is_some() {
            tensors.push(("lm_head.weight".to_owned(), vec![self.vocabulary, hidden]));
        }
        let projections = [
            ("gate_proj", vec![wide, hidden]),
            ("up_proj", vec![wide, hidden]),
            ("down_proj", vec![hidden, wide]),
        ];
        for layer in 0..self.layers {
            let mut of_layer = vec![
                ("self_attn.q_proj".to_owned(), vec![q, hidden]),
                ("self_attn.k_proj".to_owned(), vec![kv, hidden]),
                ("self_attn.v_proj".to_owned(), vec![kv, hidden]),
                ("self_attn.o_proj".to_owned(), vec![hidden, q]),
            ];
            match self.experts {
                None => {
                    let named = |(name, shape): &(&str, Vec<usize>)| (format!("mlp.{name}"), shape.clone());
                    of_layer.extend(projections.iter().map(named));
                }
                Some(ExpertShapes { count, .. }) => {
                    of_layer.push(("self_attn.q_norm".to_owned(), vec![q]));
                    of_layer.push(("self_attn.k_norm".to_owned(), vec![kv]));
                    of_layer.push(("mlp.gate".to_owned(), vec![count, hidden]));
                    for (name, shape) in &projections {
                        let of_expert = |expert| (format!("mlp.experts.{expert}.{name}"), shape.clone());
                        of_layer.extend((0..count).map(of_expert));
                    }
                }
            }
            of_layer.push(("input_layernorm".to_owned(), vec![hidden]));
            of_layer.push(("post_attention_layernorm".to_owned(), vec![hidden]));
            let named = |(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape);
            tensors.extend(of_layer.into_iter().map(named));
        }
        tensors
    }

    pub(crate) fn parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// The parameters that decoding a token does not read: unchosen experts, and all rows but one of an
    /// embedding that is not also the head. It reads each of the others once.
    pub(crate) fn unread_parameters(&self) -> usize {
        let Some(ExpertShapes { count, chosen }) = self.experts else { return 0 };
        let expert = 3 * self.hidden * self.intermediate;
        self.layers * (count - chosen) * expert + (self.vocabulary - 1) * self.hidden
    }

    /// The weights that a prompt's tokens are multiplied by: those by which each of them is, and those of the
    /// head, by which the last is.
    pub(crate) fn multiplied(&self) -> [usize; 2] {
        let head = self.vocabulary * self.hidden;
        [self.parameters() - self.unread_parameters() - head, head]
    }

    /// The checkpoint's `config.json`.
    pub(crate) fn config(&self) -> Value {
        let mut config = Map::from_iter(
            [
                ("architectures", json!(["LlamaForCausalLM"])),
                ("model_type", json!("llama")),
                ("hidden_size", json!(self.hidden)),
                ("intermediate_size", json!(self.intermediate)),
                ("num_hidden_layers", json!(self.layers)),
                ("num_attention_heads", json!(self.heads)),
                ("num_key_value_heads", json!(self.kv_heads)),
                ("head_dim", json!(self.head_dim)),
                ("vocab_size", json!(self.vocabulary)),
                ("max_position_embeddings", json!(self.context)),
                ("rms_norm_eps", json!(self.norm_epsilon)),
                ("rope_theta", json!(self.rope_theta)),
                ("tie_word_embeddings", json!(true)),
                ("torch_dtype", json!("bfloat16")),
                ("bos_token_id", json!(1)),
                ("eos_token_id", json!([2])),
                ("hidden_act", json!("silu")),
                ("attention_bias", json!(false)),
                ("mlp_bias", json!(false)),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        if let Some(ExpertShapes { count, chosen }) = self.experts {
            let experts = [
                ("architectures", json!(["OlmoeForCausalLM"])),
                ("model_type", json!("olmoe")),
                ("num_experts", json!(count)),
                ("num_experts_per_tok", json!(chosen)),
                ("norm_topk_prob", json!(false)),
                ("tie_word_embeddings", json!(false)),
            ];
            config.extend(experts.map(|(key, value)| (key.to_owned(), value)));
        }
        if let Some(scaling) = self.rope_scaling {
            let scaling = json!({
                "factor": scaling.factor,
                "high_freq_factor": scaling.high_freq_factor,
                "low_freq_factor": scaling.low_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
                "rope_type": "llama3",
            });
            config.insert("rope_scaling".to_owned(), scaling);
        }
        Value::Object(config)
    }

    /// The divisors of the frequencies of a head's pairs due to scaling, as in Hugging Face's
    /// `_compute_llama3_parameters`.
    pub(crate) fn rope_divisors(&self) -> Option<Vec<f32>> {
        let scaling = self.rope_scaling?;
        let original = scaling.original_context as f64;
        let divisors = (0..self.head_dim).step_by(2).map(|i| {
            let wavelength = std::f64::consts::TAU * self.rope_theta.powf(i as f64 / self.head_dim as f64);
            let divisor = if wavelength < original / scaling.high_freq_factor {
                1.0
            } else if wavelength > original / scaling.low_freq_factor {
                scaling.factor
            } else {
                let smooth = (original / wavelength - scaling.low_freq_factor)
                    / (scaling.high_freq_factor - scaling.low_freq_factor);
                1.0 / ((1.0 - smooth) / scaling.factor + smooth)
            };
            divisor as f32
        });
        Some(divisors.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_their_number_of_parameters() {
        assert_eq!(LLAMA_1B.parameters(), 1_235_814_400);
        // Without the 28 norms of queries and of keys.
        assert_eq!(QWEN_600M.parameters(), 596_049_920 - 28 * 2 * 128);
        // The published number of all parameters, and of those per token: without 56 of 64 experts in each
        // layer.
        let whole = Shapes { layers: 16, ..OLMOE };
        assert_eq!(whole.parameters(), 6_919_161_856);
        let of_token = whole.parameters() - whole.unread_parameters() + (whole.vocabulary - 1) * whole.hidden;
        assert_eq!(of_token, 6_919_161_856 - 16 * 56 * 3 * 2048 * 1024);
        assert_eq!(LLAMA_1B.unread_parameters(), 0);
        assert_eq!(LLAMA_1B.multiplied(), [1_235_814_400 - 128_256 * 2048, 128_256 * 2048]);
    }

    #[test]
    fn only_low_rotary_frequencies_are_scaled() {
        let divisors = LLAMA_1B.rope_divisors().unwrap();
        assert_eq!((divisors.len(), divisors[0], divisors[31]), (32, 1.0, 32.0));
        assert!(divisors.is_sorted());
        assert_eq!(QWEN_600M.rope_divisors(), None);
    }
}
