//! Apertus.

use super::super::Vectors;
use super::shared::*;

pub(super) const APERTUS: Architecture = Architecture {
    name: "apertus",
    model_type: "apertus",
    tensors: &[&[
        ("attn_norm", "attention_layernorm", Keep),
        ("ffn_norm", "feedforward_layernorm", Keep),
        ("ffn_up", "mlp.up_proj", Keep),
    ]],
    vectors: activations,
    ..PLAIN
};

/// The parameters of the activation, which files have as settings.
fn activations(draft: &Draft<'_>) -> Result<Vectors> {
    const PARAMETERS: [&str; 4] = ["alpha_p", "alpha_n", "beta", "eps"];
    let layers = draft.layers()?;
    let mut vectors = Vec::with_capacity(PARAMETERS.len() * layers);
    for name in PARAMETERS {
        let key = format!("xielu.{name}");
        let numbers = draft.metadata.numbers(&key)?.ok_or_else(|| draft.metadata.absent(&key))?;
        let numbers = numbers.iter().collect::<Vec<_>>();
        if numbers.len() != layers {
            return Err(draft.metadata.wrong(&key, "a number for each layer"));
        }
        let vector =
            |(layer, number)| (format!("model.layers.{layer}.mlp.act_fn.{name}"), vec![number as f32]);
        vectors.extend(numbers.into_iter().enumerate().map(vector));
    }
    Ok(vectors)
}
