//! A file of weights, held against the crate that defines the format.

use std::fs;

use mlxcel_core::Result;
use mlxcel_models::Checkpoint;

use super::place::{Place, fixture};
use crate::{Format, Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "safetensors",
    about: "model.safetensors: opened, and every tensor is the one that the crate safetensors finds",
    format: Format::Safetensors,
    run,
    memory: 64,
    seconds: 5,
    stack: 2048,
    longest: 64 << 10,
    seeds,
};

thread_local! {
    static PLACE: Place = const { Place::new() };
}

const CONFIG: &[u8] = br#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 12,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true}"#;

fn run(input: &[u8]) -> Outcome {
    PLACE.with(|place| {
        place.put("config.json", CONFIG);
        place.put("model.safetensors", input);
        open(place, input).unwrap_or_else(|error| Outcome::refused(&error))
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
    checkpoint.fingerprint();
    let outcome = Outcome::new("opened");
    Ok(outcome.then(match checkpoint.decoder() {
        Ok(decoder) => {
            for weight in decoder.weights() {
                assert_eq!(checkpoint.weight(weight)?.bytes.len(), weight.byte_len());
            }
            Outcome::new(decoder)
        }
        Err(error) => Outcome::refused(&error),
    }))
}

/// The weights of that model, and the start of a file of a fixture.
fn seeds() -> Vec<Vec<u8>> {
    let shapes: [(&str, &[usize]); 11] = [
        ("model.embed_tokens.weight", &[8, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.gate_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 12]),
    ];
    let bytes: Vec<u8> = (0..192).collect();
    let views = shapes.into_iter().filter_map(|(name, shape)| {
        let length = 2 * shape.iter().product::<usize>();
        let view = safetensors::tensor::TensorView::new(
            safetensors::Dtype::BF16,
            shape.to_vec(),
            bytes.get(..length)?,
        );
        Some((name, view.ok()?))
    });
    let whole = safetensors::serialize(views, None).into_iter();
    let cut = fs::read(fixture("llama").join("model.safetensors")).map(|mut file| {
        file.truncate(16 << 10);
        file
    });
    whole.chain(cut).collect()
}
