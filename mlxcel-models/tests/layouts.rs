//! One model in the layouts in which several tools write it: all compute the same.

use crate::common::Draft;
use safetensors::Dtype;

const TOKENS: [u32; 6] = [7, 30, 101, 7, 250, 64];

fn logits(draft: &Draft) -> Vec<f32> {
    let checkpoint = draft.write().open().unwrap();
    let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{error}"));
    crate::naive::logits(&checkpoint, &decoder, &TOKENS).unwrap().rows().flatten().copied().collect()
}

/// What the experts of a fixture's layers are called and shaped.
struct Names {
    layers: std::ops::Range<usize>,
    module: &'static str,
    /// Gate, up, down.
    projections: [&'static str; 3],
    experts: usize,
    /// Hidden, intermediate.
    sizes: [usize; 2],
}

const MIXTRAL: Names = Names {
    layers: 0..3,
    module: "block_sparse_moe",
    projections: ["w1", "w3", "w2"],
    experts: 4,
    sizes: [64, 128],
};
const DEEPSEEK: Names = Names {
    layers: 1..3,
    module: "mlp",
    projections: ["gate_proj", "up_proj", "down_proj"],
    experts: 8,
    sizes: [64, 48],
};
const QWEN3_NEXT: Names = Names { layers: 0..4, experts: 6, ..DEEPSEEK };

impl Names {
    /// The draft with one tensor for each projection of all experts, as mlx-lm stacks them.
    fn stacked(&self, mut draft: Draft) -> Draft {
        let [hidden, width] = self.sizes;
        for layer in self.layers.clone() {
            let module = format!("model.layers.{layer}.{}", self.module);
            for (index, name) in self.projections.into_iter().enumerate() {
                let of = |expert| format!("{module}.experts.{expert}.{name}.weight");
                let bytes = draft.taken((0..self.experts).map(of));
                let (name, shape) = match index {
                    0 => ("gate_proj", [self.experts, width, hidden]),
                    1 => ("up_proj", [self.experts, width, hidden]),
                    _ => ("down_proj", [self.experts, hidden, width]),
                };
                let tensor = (Dtype::BF16, shape.to_vec(), bytes);
                draft.tensors.insert(format!("{module}.switch_mlp.{name}.weight"), tensor);
            }
        }
        draft
    }

    /// The draft with gates and up projections of all experts in one tensor, as transformers keeps them.
    fn fused(&self, mut draft: Draft) -> Draft {
        let ([hidden, width], [gate, up, down]) = (self.sizes, self.projections);
        for layer in self.layers.clone() {
            let module = format!("model.layers.{layer}.{}.experts", self.module);
            let both = (0..self.experts)
                .flat_map(|expert| [gate, up].map(|name| format!("{module}.{expert}.{name}.weight")));
            let bytes = draft.taken(both);
            let tensor = (Dtype::BF16, vec![self.experts, 2 * width, hidden], bytes);
            draft.tensors.insert(format!("{module}.gate_up_proj"), tensor);
            let bytes =
                draft.taken((0..self.experts).map(|expert| format!("{module}.{expert}.{down}.weight")));
            let tensor = (Dtype::BF16, vec![self.experts, hidden, width], bytes);
            draft.tensors.insert(format!("{module}.down_proj"), tensor);
        }
        draft
    }
}

#[test]
fn experts_are_read_one_by_one_stacked_or_fused() {
    let published = Draft::fixture("mixtral");
    let expected = logits(&published);
    let stacked = MIXTRAL.stacked(published.clone());
    assert!(logits(&stacked) == expected, "stacked");
    // As mlx-lm stacks those of AFMoE and dots.llm1.
    assert!(logits(&stacked.renamed(|name| name.replace("switch_mlp", "experts"))) == expected, "stacked");
    let fused = MIXTRAL.fused(published);
    assert!(logits(&fused) == expected, "fused");
    assert!(logits(&fused.renamed(|name| name.replace("block_sparse_moe", "mlp"))) == expected, "renamed");
}

#[test]
fn granites_experts_are_read_by_either_name() {
    let published = Draft::fixture("granitemoe");
    let renamed = published.clone().renamed(|name| {
        name.replace("input_linear.weight", "experts.gate_up_proj")
            .replace("output_linear.weight", "experts.down_proj")
            .replace("router.layer", "router")
    });
    assert!(logits(&renamed) == logits(&published));
}

/// Rows and columns of matrices exchanged.
fn transposed(bytes: &[u8], [count, rows, columns]: [usize; 3]) -> Vec<u8> {
    let at = |matrix, row, column| &bytes[((matrix * rows + row) * columns + column) * 2..][..2];
    let places = (0..count).flat_map(|matrix| (0..columns).map(move |column| (matrix, column)));
    places
        .flat_map(|(matrix, column)| (0..rows).flat_map(move |row| at(matrix, row, column).to_vec()))
        .collect()
}

/// Every second element of the last dimension, from `first` on.
fn every_second(bytes: &[u8], first: usize) -> Vec<u8> {
    bytes.chunks_exact(4).flat_map(|pair| pair[2 * first..][..2].to_vec()).collect()
}

#[test]
fn gpt_oss_is_read_as_mlx_lm_converts_it() {
    let published = Draft::fixture("gpt_oss");
    let mut converted = published.clone();
    for layer in 0..4 {
        let module = format!("model.layers.{layer}.mlp.experts");
        let mut put = |name: &str, shape: &[usize], bytes: Vec<u8>| {
            converted.tensors.insert(format!("{module}.{name}"), (Dtype::BF16, shape.to_vec(), bytes));
        };
        let [fused, biases, down, down_biases] =
            ["gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"]
                .map(|name| published.tensors[&format!("{module}.{name}")].2.clone());
        for (first, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let weight = transposed(&every_second(&fused, first), [4, 64, 128]);
            put(&format!("{name}.weight"), &[4, 128, 64], weight);
            put(&format!("{name}.bias"), &[4, 128], every_second(&biases, first));
        }
        put("down_proj.weight", &[4, 64, 128], transposed(&down, [4, 128, 64]));
        put("down_proj.bias", &[4, 64], down_biases);
        for name in ["gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"] {
            converted = converted.without(&format!("{module}.{name}"));
        }
    }
    assert!(logits(&converted) == logits(&published));
}

#[test]
fn deepseeks_latents_are_read_as_mlx_lm_converts_them() {
    let published = Draft::fixture("deepseek_v3");
    let mut converted = DEEPSEEK.stacked(published.clone());
    for layer in 0..3 {
        let module = format!("model.layers.{layer}.self_attn");
        let both = converted.taken([format!("{module}.kv_b_proj.weight")]);
        // Of each of four heads sixteen rows for keys, then twenty-four for values, of 32.
        let part = |from: usize, rows: usize| -> Vec<u8> {
            both.chunks_exact(40 * 64).flat_map(|head| head[from * 64..][..rows * 64].to_vec()).collect()
        };
        let keys = transposed(&part(0, 16), [4, 16, 32]);
        converted.tensors.insert(format!("{module}.embed_q.weight"), (Dtype::BF16, vec![4, 32, 16], keys));
        let values = (Dtype::BF16, vec![4, 24, 32], part(16, 24));
        converted.tensors.insert(format!("{module}.unembed_out.weight"), values);
    }
    assert!(logits(&converted) == logits(&published));
}

#[test]
fn convolutions_are_read_as_mlx_lm_converts_them() {
    for family in ["lfm2", "mamba2"] {
        let published = Draft::fixture(family);
        let mut converted = published.clone();
        for (_, shape, _) in converted.tensors.values_mut().filter(|(_, shape, _)| shape.len() == 3) {
            shape.swap(1, 2);
        }
        assert!(logits(&converted) == logits(&published), "{family}");
    }
}

#[test]
fn norms_of_a_converted_qwen3_next_are_not_shifted_again() {
    let mut published = Draft::fixture("qwen3_next");
    // Of factors that are whole numbers of 1/128, one more is a BF16 too.
    let shifted = |name: &str| name.ends_with("norm.weight") && !name.contains("linear_attn");
    let float = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
    let each = |bytes: &mut Vec<u8>, change: &dyn Fn(f32) -> f32| {
        for element in bytes.chunks_exact_mut(2) {
            element.copy_from_slice(&change(float(element)).to_bits().to_le_bytes()[2..]);
        }
    };
    for (_, (_, _, bytes)) in published.tensors.iter_mut().filter(|(name, _)| shifted(name)) {
        each(bytes, &|factor| (factor * 128.0).round() / 128.0);
    }
    let mut converted = QWEN3_NEXT.stacked(published.clone());
    for (name, (_, shape, bytes)) in &mut converted.tensors {
        if shifted(name) {
            each(bytes, &|factor| factor + 1.0);
        }
        if name.ends_with("conv1d.weight") {
            shape.swap(1, 2);
        }
    }
    assert!(logits(&converted) == logits(&published));
}
