//! Module names of written checkpoints, which are those of mlx-lm and are read by our families.

use mlxcel_models::Conversion;

/// Suffixes of the tensor that holds a module's weight, in the forms that checkpoints have.
const SUFFIXES: [&str; 3] = [".weight", ".qweight", ".weight_packed"];

/// The module whose weight a tensor holds.
pub(super) fn module_of(tensor: &str) -> Option<&str> {
    SUFFIXES.iter().find_map(|suffix| tensor.strip_suffix(suffix))
}

/// The module of a projection of experts (gate, up or down by its index), whose weight is or begins with the
/// tensor called so. All experts are one stack there, whatever they were.
pub(super) fn experts_module(conversion: &Conversion, tensor: &str, projection: usize) -> Option<String> {
    const PLACES: [&str; 4] = [".experts.", ".switch_mlp.", ".input_linear.", ".output_linear."];
    let tensor = conversion.name(tensor);
    let (mixture, _) = PLACES.iter().find_map(|place| tensor.split_once(place))?;
    let Conversion { experts, projections, .. } = conversion;
    Some(format!("{mixture}.{experts}.{}", projections.get(projection)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expert_tensors_are_named_as_in_mlx_lm() {
        for (model_type, tensor, expected) in [
            (
                "mixtral",
                "model.layers.0.block_sparse_moe.experts.0.w1.weight",
                "block_sparse_moe.switch_mlp.up_proj",
            ),
            ("qwen3_moe", "model.layers.0.mlp.experts.gate_up_proj", "mlp.switch_mlp.up_proj"),
            ("qwen3_moe", "model.layers.0.mlp.switch_mlp.up_proj.weight", "mlp.switch_mlp.up_proj"),
            (
                "granitemoe",
                "model.layers.0.block_sparse_moe.input_linear.weight",
                "block_sparse_moe.switch_mlp.up_proj",
            ),
            ("nemotron_h", "model.layers.0.mixer.experts.up_proj", "mixer.switch_mlp.fc1"),
            ("step3p5", "model.layers.0.moe.up_proj.weight", "mlp.switch_mlp.up_proj"),
            ("step3p5", "model.layers.0.mlp.switch_mlp.up_proj.weight", "mlp.switch_mlp.up_proj"),
            ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj_blocks", "mlp.experts.up_proj"),
            ("afmoe", "model.layers.0.mlp.experts.0.up_proj.weight", "mlp.experts.up_proj"),
            ("dots1", "model.layers.0.mlp.switch_mlp.up_proj.weight", "mlp.experts.up_proj"),
        ] {
            let name = experts_module(&Conversion::of(model_type), tensor, 1).unwrap();
            assert_eq!(name, format!("model.layers.0.{expected}"));
        }
        assert_eq!(experts_module(&Conversion::USUAL, "model.layers.0.mlp.up_proj.weight", 1), None);
        assert_eq!(module_of("lm_head.qweight"), Some("lm_head"));
    }
}
