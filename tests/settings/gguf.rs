//! GGUF files with random blocks of every type.

/// The writer of the reader's own tests.
#[path = "../../mlxcel-models/src/gguf/draft.rs"]
#[allow(dead_code, reason = "its tests write invalid files too")]
mod draft;

use std::fs;
use std::path::Path;

use half::f16;
use serde_json::{Map, Value};

use super::draw::Random;
use super::weights::Tensors;
use draft::{Draft, Kind};

/// Families whose tensors have one name each in GGUF, and the architecture's name.
const ARCHITECTURES: [(&str, &str); 10] = [
    ("ernie4_5", "ernie4_5"),
    ("gemma", "gemma"),
    ("granite", "granite"),
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("seed_oss", "seed_oss"),
    ("smollm3", "smollm3"),
    ("starcoder2", "starcoder2"),
];

/// Parts of names, and what they are in GGUF.
const NAMES: [(&str, &str); 19] = [
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("model.layers.", "blk."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("mlp.switch_mlp.gate_proj.", "ffn_gate_exps."),
    ("mlp.switch_mlp.up_proj.", "ffn_up_exps."),
    ("mlp.switch_mlp.down_proj.", "ffn_down_exps."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
    ("mlp.c_fc.", "ffn_up."),
    ("mlp.c_proj.", "ffn_down."),
    ("mlp.gate.", "ffn_gate_inp."),
];

/// A type of blocks: its number, values and bytes of a block, where in it the scale is, and the minimum with
/// its ratio to the scale, and the deviation of values for a scale of one.
struct Blocks {
    number: u32,
    values: usize,
    bytes: usize,
    scale: usize,
    minimum: Option<(usize, f32)>,
    deviation: f32,
}

const fn blocks(
    number: u32,
    [values, bytes, scale]: [usize; 3],
    minimum: Option<(usize, f32)>,
    deviation: f32,
) -> Blocks {
    Blocks { number, values, bytes, scale, minimum, deviation }
}

const MXFP4: u32 = 39;
const TYPES: [Blocks; 13] = [
    blocks(2, [32, 18, 0], None, 4.6),
    blocks(3, [32, 20, 0], Some((2, -7.5)), 4.6),
    blocks(6, [32, 22, 0], None, 9.2),
    blocks(7, [32, 24, 0], Some((2, -15.5)), 9.2),
    blocks(8, [32, 34, 0], None, 74.0),
    blocks(20, [32, 18, 0], None, 70.0),
    blocks(MXFP4, [32, 17, 0], None, 4.0),
    blocks(10, [256, 84, 80], Some((82, 1.5)), 11.0),
    blocks(11, [256, 110, 108], None, 41.0),
    blocks(12, [256, 144, 0], Some((2, 7.5)), 250.0),
    blocks(13, [256, 176, 0], Some((2, 15.5)), 500.0),
    blocks(14, [256, 210, 208], None, 1340.0),
    blocks(23, [256, 136, 0], None, 1270.0),
];

/// Whether checkpoints of a family can be written.
pub(crate) fn has(family: &str) -> bool {
    ARCHITECTURES.iter().any(|(known, _)| *known == family)
}

/// Writes a model of the sizes of `config` with `tensors`, matrices in random blocks. False for tensors that
/// have no name in GGUF.
pub(crate) fn write(random: &mut Random, config: &Map<String, Value>, tensors: &Tensors, to: &Path) -> bool {
    let family = config["model_type"].as_str().unwrap();
    let Some((_, architecture)) = ARCHITECTURES.iter().find(|(known, _)| *known == family) else {
        return false;
    };
    let size = |key: &str| config.get(key).and_then(Value::as_u64).map(|size| size as f64);
    let mut file = Draft::new();
    file.text("general.architecture", architecture);
    let heads = size("num_attention_heads").unwrap();
    let dim = size("head_dim").unwrap_or_else(|| size("hidden_size").unwrap() / heads);
    let experts = size("num_experts").unwrap_or_default();
    let mut put = |key: &str, kind: Kind, value: f64| {
        file.number(&format!("{architecture}.{key}"), kind, value);
    };
    for (key, value) in [
        ("block_count", size("num_hidden_layers")),
        ("context_length", size("max_position_embeddings")),
        ("embedding_length", size("hidden_size")),
        ("feed_forward_length", size("intermediate_size")),
        ("attention.head_count", Some(heads)),
        ("attention.head_count_kv", size("num_key_value_heads")),
        ("attention.key_length", Some(dim)),
        ("attention.value_length", Some(dim)),
        ("rope.dimension_count", Some(dim)),
        ("expert_count", Some(experts).filter(|count| *count > 0.0)),
        ("expert_used_count", size("num_experts_per_tok")),
        ("expert_feed_forward_length", size("moe_intermediate_size")),
    ] {
        value.into_iter().for_each(|value| put(key, Kind::U32, value));
    }
    put("rope.freq_base", Kind::F32, random.pick(&[100.0, 10_000.0]));
    put("attention.layer_norm_rms_epsilon", Kind::F32, 1e-5);
    put("attention.layer_norm_epsilon", Kind::F32, 1e-5);
    file.text("tokenizer.ggml.model", "no_vocab");
    for (name, tensor) in tensors {
        let gguf = NAMES.iter().fold(name.clone(), |name, (ours, theirs)| name.replace(ours, theirs));
        let gguf = gguf.replace("input_layernorm", "attn_norm");
        let after = if family == "seed_oss" { "post_attention_norm" } else { "ffn_norm" };
        let gguf = gguf.replace("post_attention_layernorm", after);
        let known = ["blk.", "output", "token_embd"].iter().any(|start| gguf.starts_with(start));
        // This architecture has experts in every layer, as stacks.
        let sparse = family != "qwen3_moe"
            || ["gate.", "up.", "down."].iter().all(|part| !gguf.contains(&format!("ffn_{part}")));
        if !known || !sparse || gguf.contains("mlp.") {
            return false;
        }
        let (number, bytes) = match tensor.shape[..] {
            [.., rows, columns] if !gguf.contains("gate_inp") => {
                let count = tensor.shape.iter().product::<usize>() / columns;
                let Some(matrix) = matrix(random, count.max(rows), columns) else { return false };
                matrix
            }
            _ => (
                0,
                (0..tensor.shape.iter().product())
                    .flat_map(|_| vector(random, &gguf).to_le_bytes())
                    .collect(),
            ),
        };
        file.tensor(&gguf, number, &tensor.shape, &bytes);
    }
    fs::create_dir_all(to).unwrap();
    fs::write(to.join("model.gguf"), file.write()).unwrap();
    true
}

/// A factor of a norm, or an element of a bias.
fn vector(random: &mut Random, name: &str) -> f32 {
    random.float(0.4) + if name.contains("norm") { 1.0 } else { 0.0 }
}

/// Rows of random blocks with the number of their type; `None` if rows are no whole blocks.
fn matrix(random: &mut Random, rows: usize, columns: usize) -> Option<(u32, Vec<u8>)> {
    let fitting: Vec<_> = TYPES.iter().filter(|ty| columns.is_multiple_of(ty.values)).collect();
    if fitting.is_empty() {
        return None;
    }
    let ty = fitting[random.below(fitting.len())];
    let count = rows * columns / ty.values;
    let mut bytes = random.bytes(count * ty.bytes);
    let usual = 1.0 / ty.deviation / (columns as f32).sqrt();
    for block in bytes.chunks_exact_mut(ty.bytes) {
        if ty.number == MXFP4 {
            block[0] = (127.0 + usual.log2().round()) as u8 + random.below(2) as u8;
            continue;
        }
        let scale = usual * (1.0 + random.float(0.5));
        block[ty.scale..ty.scale + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        if let Some((at, ratio)) = ty.minimum {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale * ratio).to_le_bytes());
        }
    }
    Some((ty.number, bytes))
}
