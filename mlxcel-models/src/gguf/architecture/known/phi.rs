//! Phi.

use serde_json::Value;

use super::shared::*;

/// Older files have queries, keys and values in one matrix.
pub(super) const PHI2: Architecture = Architecture {
    name: "phi2",
    model_type: "phi",
    settings: &[&[(LAYER_EPSILON, "layer_norm_eps")]],
    present: &[],
    tensors: &[&[
        ("output_norm", "final_layernorm", Keep),
        ("attn_qkv", "self_attn.qkv_proj", Keep),
        ("attn_output", "self_attn.dense", Keep),
        ("ffn_up", "mlp.fc1", Keep),
        ("ffn_down", "mlp.fc2", Keep),
    ]],
    adapt: partial_rotary,
    ..PLAIN
};

pub(super) const PHI3: Architecture = Architecture {
    name: "phi3",
    model_type: "phi3",
    tensors: &[&[("attn_qkv", "self_attn.qkv_proj", Keep), ("ffn_up", "mlp.gate_up_proj", Keep)]],
    adapt: phi3,
    ..PLAIN
};

pub(super) const PHIMOE: Architecture = Architecture {
    name: "phimoe",
    model_type: "phimoe",
    settings: &[&[RMS_EPSILON, ("expert_count", "num_local_experts"), CHOSEN]],
    adapt: phimoe,
    ..PLAIN
};

fn phi3(draft: &mut Draft<'_>) -> Result<()> {
    partial_rotary(draft)?;
    draft.copy("rope.scaling.original_context_length", "original_max_position_embeddings")?;
    window(draft)
}

/// Cosines and sines have one factor at all lengths. That of Phi-3.5-MoE is not the one that follows from its
/// contexts, which the converter writes.
fn phimoe(draft: &mut Draft<'_>) -> Result<()> {
    let contexts = [draft.size("context_length")?, draft.size("rope.scaling.original_context_length")?];
    let head_bias = draft.has("output.bias");
    draft.set("lm_head_bias", head_bias);
    if let Some(Value::Object(scaling)) = draft.fields.get_mut("rope_scaling") {
        let factor = match contexts {
            [Some(131_072), Some(4096)] => Value::from(1.243_163_121_016_122),
            _ => scaling.get("attention_factor").cloned().unwrap_or_default(),
        };
        for setting in ["short_mscale", "long_mscale"] {
            scaling.insert(setting.to_owned(), factor.clone());
        }
    }
    window(draft)
}

fn window(draft: &mut Draft<'_>) -> Result<()> {
    let window = draft.size("attention.sliding_window")?.filter(|window| *window > 0);
    draft.set("sliding_window", window);
    Ok(())
}
