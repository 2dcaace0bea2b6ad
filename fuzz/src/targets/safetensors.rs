//! A file of weights, held against the crate that defines the format.

use std::fs;

use mlxcel_core::Result;
use mlxcel_models::Checkpoint;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::place::{Place, describe, fixture};
use crate::outcome::Outcome;
use crate::target::{Format, Target};

pub(super) const TARGET: Target = Target {
    name: "safetensors",
    about: "model.safetensors: opened, and every tensor is the one that the crate safetensors finds",
    format: Format::Safetensors,
    run,
    memory: 64,
    seconds: 5,
    seeds,
    ..Target::USUAL
};

thread_local! {
    static PLACE: Place = const { Place::new() };
}

const CONFIG: &str = r#""model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 12,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true"#;

/// What a name of a tensor says about how weights are packed, and the settings that go with it.
const PACKED: [(&str, &str); 4] = [
    ("g_idx", r#""quant_method": "gptq", "bits": 4, "group_size": 4, "sym": false"#),
    ("qweight", r#""quant_method": "awq", "bits": 4, "group_size": 4"#),
    ("weight_packed", r#""quant_method": "compressed-tensors""#),
    ("weight_scale_inv", r#""quant_method": "fp8", "weight_block_size": [3, 4]"#),
];

fn config(input: &[u8]) -> String {
    let mentions = |name: &str| input.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    let packed = PACKED.iter().find(|(name, _)| mentions(name));
    let settings = packed.map(|(_, settings)| format!(", \"quantization_config\": {{{settings}}}"));
    format!("{{{CONFIG}{}}}", settings.unwrap_or_default())
}

fn run(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put("config.json", config(input).as_bytes());
        place.put("model.safetensors", input);
        Outcome::of(open(place, input))
    })
}

#[allow(clippy::panic, reason = "a finding")]
fn open(place: &Place, input: &[u8]) -> Result<Outcome> {
    let checkpoint = Checkpoint::open(place.path())?;
    let theirs = match safetensors::SafeTensors::deserialize(input) {
        Ok(theirs) => theirs,
        Err(error) => panic!("taken here, and refused by the crate: {error}"),
    };
    let mut count = 0;
    for (name, view) in checkpoint.tensors() {
        let tensor = theirs.tensor(name).unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!((tensor.shape(), tensor.data()), (&view.shape[..], view.bytes), "{name:?}");
        count += 1;
    }
    assert_eq!(count, theirs.len());
    Ok(Outcome::new("opened").then(Outcome::of(describe(&checkpoint))))
}

/// A tensor of a seed.
type Shape = (&'static str, Dtype, &'static [usize]);

const DENSE: [Shape; 10] = [
    ("model.embed_tokens.weight", Dtype::BF16, &[8, 8]),
    ("model.norm.weight", Dtype::BF16, &[8]),
    ("model.layers.0.input_layernorm.weight", Dtype::BF16, &[8]),
    ("model.layers.0.post_attention_layernorm.weight", Dtype::BF16, &[8]),
    ("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[4, 8]),
    ("model.layers.0.self_attn.v_proj.weight", Dtype::BF16, &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", Dtype::BF16, &[8, 8]),
    ("model.layers.0.mlp.gate_proj.weight", Dtype::BF16, &[12, 8]),
    ("model.layers.0.mlp.up_proj.weight", Dtype::BF16, &[12, 8]),
    ("model.layers.0.mlp.down_proj.weight", Dtype::BF16, &[8, 12]),
];

/// The projection of queries, dense and in each packed form.
const QUERIES: [&[Shape]; 5] = [
    &[("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[8, 8])],
    &[
        ("model.layers.0.self_attn.q_proj.qweight", Dtype::I32, &[1, 8]),
        ("model.layers.0.self_attn.q_proj.qzeros", Dtype::I32, &[2, 1]),
        ("model.layers.0.self_attn.q_proj.scales", Dtype::F16, &[2, 8]),
        ("model.layers.0.self_attn.q_proj.g_idx", Dtype::I32, &[8]),
    ],
    &[
        ("model.layers.0.self_attn.q_proj.qweight", Dtype::I32, &[8, 1]),
        ("model.layers.0.self_attn.q_proj.qzeros", Dtype::I32, &[2, 1]),
        ("model.layers.0.self_attn.q_proj.scales", Dtype::F16, &[2, 8]),
    ],
    &[
        ("model.layers.0.self_attn.q_proj.weight_packed", Dtype::I32, &[8, 1]),
        ("model.layers.0.self_attn.q_proj.weight_scale", Dtype::F16, &[8, 2]),
        ("model.layers.0.self_attn.q_proj.weight_zero_point", Dtype::I32, &[1, 2]),
        ("model.layers.0.self_attn.q_proj.weight_g_idx", Dtype::I32, &[8]),
    ],
    &[
        ("model.layers.0.self_attn.q_proj.weight", Dtype::F8_E4M3, &[8, 8]),
        ("model.layers.0.self_attn.q_proj.weight_scale_inv", Dtype::F32, &[3, 2]),
    ],
];

/// The weights of that model in each form, and the start of a file of a fixture.
fn seeds() -> Vec<Vec<u8>> {
    // The groups of columns, by turns.
    let groups: Vec<u8> = (0..8u8).flat_map(|column| [column & 1, 0, 0, 0]).collect();
    let bytes: Vec<u8> = (0..192).collect();
    let whole = QUERIES.into_iter().filter_map(|queries| {
        let views = DENSE.iter().chain(queries).filter_map(|&(name, dtype, shape)| {
            let length = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            let content = if name.ends_with("g_idx") { &groups } else { &bytes };
            Some((name, TensorView::new(dtype, shape.to_vec(), content.get(..length)?).ok()?))
        });
        safetensors::serialize(views.collect::<Vec<_>>(), None).ok()
    });
    let cut = fs::read(fixture("llama").join("model.safetensors")).map(|mut file| {
        file.truncate(16 << 10);
        file
    });
    whole.chain(cut).collect()
}
