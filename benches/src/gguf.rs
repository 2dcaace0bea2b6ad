//! Our checkpoint as a GGUF file, which llama.cpp reads.
//!
//! The format is that of ggml's `docs/gguf.md`, version 3. The file has no vocabulary.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shapes::{ExpertShapes, Shapes};

/// The alignment of tensors.
const ALIGNMENT: usize = 32;
/// `ggml_type`.
const F32: u32 = 0;
const BF16: u32 = 30;
/// The router's matrix, in our checkpoints.
const ROUTER_WEIGHT: &str = "mlp.gate.weight";

/// The file beside a checkpoint of `shapes` in `folder`, created if missing.
pub(crate) fn provide(shapes: &Shapes, folder: &Path) -> Result<PathBuf> {
    let path = folder.join("bf16.gguf");
    if path.is_file() {
        return Ok(path);
    }
    eprintln!("writing {}", path.display());
    // Renamed once complete.
    let incoming = folder.join("incoming.gguf");
    write(shapes, &folder.join("model.safetensors"), &incoming)
        .with_context(|| format!("writing {}", incoming.display()))?;
    fs::rename(&incoming, &path).context("naming the GGUF file")?;
    Ok(path)
}

/// Writes the tensors of the file `from`, which [`Shapes::provide`](crate::checkpoint) wrote, to `to`.
fn write(shapes: &Shapes, from: &Path, to: &Path) -> Result<()> {
    let mut source = BufReader::new(File::open(from)?);
    let mut length = [0; 8];
    source.read_exact(&mut length)?;
    source.seek(SeekFrom::Current(i64::try_from(u64::from_le_bytes(length))?))?;

    let tensors = stacked(shapes.tensors());
    let divisors = shapes.rope_divisors();
    let mut header = Header::default();
    header.describe(shapes);
    for (name, shape) in &tensors {
        header.tensor(&gguf_name(name), shape, element(name, shape));
    }
    if let Some(divisors) = &divisors {
        header.tensor("rope_freqs.weight", &[divisors.len()], F32);
    }

    let mut file = BufWriter::new(File::create(to)?);
    file.write_all(&header.bytes())?;
    for (name, shape) in &tensors {
        let mut bytes = vec![0; 2 * shape.iter().product::<usize>()];
        source.read_exact(&mut bytes)?;
        let bytes = match heads(shapes, name) {
            Some(heads) => interleaved(&bytes, heads, 2 * shapes.hidden),
            None if element(name, shape) == F32 => widened(&bytes),
            None => bytes,
        };
        write_aligned(&mut file, &bytes)?;
    }
    if let Some(divisors) = divisors {
        write_aligned(&mut file, &divisors.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>())?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(())
}

/// The matrices of a layer's experts, adjacent in our checkpoints, as one tensor.
fn stacked(tensors: Vec<(String, Vec<usize>)>) -> Vec<(String, Vec<usize>)> {
    let mut stacks: Vec<(String, Vec<usize>)> = Vec::new();
    for (name, shape) in tensors {
        let Some((layer, (_, projection))) =
            name.split_once(".experts.").and_then(|(layer, rest)| Some((layer, rest.split_once('.')?)))
        else {
            stacks.push((name, shape));
            continue;
        };
        let name = format!("{layer}.experts.{projection}");
        match stacks.last_mut() {
            Some((last, shape)) if *last == name => shape[0] += 1,
            _ => stacks.push((name, [vec![1], shape].concat())),
        }
    }
    stacks
}

/// Norms and routers are float32 in GGUF files.
fn element(name: &str, shape: &[usize]) -> u32 {
    if shape.len() == 1 || name.contains(ROUTER_WEIGHT) { F32 } else { BF16 }
}

/// llama.cpp's name of a tensor.
fn gguf_name(name: &str) -> String {
    let known = [
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("model.norm", "output_norm"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        (ROUTER_WEIGHT, "ffn_gate_inp.weight"),
        ("mlp.experts.gate_proj", "ffn_gate_exps"),
        ("mlp.experts.up_proj", "ffn_up_exps"),
        ("mlp.experts.down_proj", "ffn_down_exps"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    known.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

/// The number of heads in a tensor's rows, if llama.cpp rotates other pairs of them than Hugging Face: it
/// rotates OLMoE the same way.
fn heads(shapes: &Shapes, name: &str) -> Option<usize> {
    if shapes.experts.is_some() {
        None
    } else if name.contains("q_proj") {
        Some(shapes.heads)
    } else if name.contains("k_proj") {
        Some(shapes.kv_heads)
    } else {
        None
    }
}

/// Rows with the two of each rotated pair adjacent, as in llama.cpp; Hugging Face's pairs are half a head
/// apart.
fn interleaved(bytes: &[u8], heads: usize, row_bytes: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = bytes.chunks_exact(row_bytes).collect();
    let mut all = Vec::with_capacity(bytes.len());
    for head in rows.chunks_exact(rows.len() / heads) {
        let (first, second) = head.split_at(head.len() / 2);
        for (one, other) in first.iter().zip(second) {
            all.extend_from_slice(one);
            all.extend_from_slice(other);
        }
    }
    all
}

/// bfloat16 as float32.
fn widened(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks_exact(2).flat_map(|half| [0, 0, half[0], half[1]]).collect()
}

fn write_aligned(file: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.write_all(&vec![0; bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()])
}

/// The part before the tensors.
#[derive(Default)]
struct Header {
    pairs: Vec<u8>,
    pair_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    /// The offset of the next tensor.
    offset: usize,
}

impl Header {
    fn describe(&mut self, shapes: &Shapes) {
        let architecture = if shapes.experts.is_some() { "olmoe" } else { "llama" };
        self.text("general.architecture", architecture);
        self.text("general.name", shapes.name);
        // `LLAMA_FTYPE_MOSTLY_BF16`
        self.number("general.file_type", 32);
        self.number("general.quantization_version", 2);
        self.text("tokenizer.ggml.model", "no_vocab");
        for (key, number) in [
            ("vocab_size", shapes.vocabulary),
            ("context_length", shapes.context),
            ("embedding_length", shapes.hidden),
            ("block_count", shapes.layers),
            ("feed_forward_length", shapes.intermediate),
            ("attention.head_count", shapes.heads),
            ("attention.head_count_kv", shapes.kv_heads),
            ("attention.key_length", shapes.head_dim),
            ("attention.value_length", shapes.head_dim),
            ("rope.dimension_count", shapes.head_dim),
        ] {
            self.number(&format!("{architecture}.{key}"), number as u32);
        }
        if let Some(ExpertShapes { count, chosen }) = shapes.experts {
            self.number(&format!("{architecture}.expert_count"), count as u32);
            self.number(&format!("{architecture}.expert_used_count"), chosen as u32);
        }
        let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
        self.float(&epsilon, shapes.norm_epsilon as f32);
        self.float(&format!("{architecture}.rope.freq_base"), shapes.rope_theta as f32);
    }

    fn tensor(&mut self, name: &str, shape: &[usize], element: u32) {
        put_text(&mut self.tensors, name);
        self.tensors.extend((shape.len() as u32).to_le_bytes());
        // The fastest-varying dimension comes first.
        self.tensors.extend(shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()));
        self.tensors.extend(element.to_le_bytes());
        self.tensors.extend((self.offset as u64).to_le_bytes());
        self.tensor_count += 1;
        let size = if element == F32 { 4 } else { 2 };
        self.offset += (size * shape.iter().product::<usize>()).next_multiple_of(ALIGNMENT);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.pair(key, 4, &value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.pair(key, 6, &value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        let mut bytes = Vec::new();
        put_text(&mut bytes, value);
        self.pair(key, 8, &bytes);
    }

    /// A value of a `gguf_metadata_value_type`.
    fn pair(&mut self, key: &str, kind: u32, value: &[u8]) {
        put_text(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend_from_slice(value);
        self.pair_count += 1;
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.pair_count.to_le_bytes());
        bytes.extend_from_slice(&self.pairs);
        bytes.extend_from_slice(&self.tensors);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::{SMALL, SMALL_EXPERTS};

    #[test]
    fn pairs_of_a_head_become_adjacent() {
        // Two heads of four rows, of a byte each.
        assert_eq!(interleaved(&[0, 1, 2, 3, 4, 5, 6, 7], 2, 1), [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn names_are_llama_cpps() {
        assert_eq!(gguf_name("model.layers.3.self_attn.q_proj.weight"), "blk.3.attn_q.weight");
        assert_eq!(gguf_name("model.layers.0.post_attention_layernorm.weight"), "blk.0.ffn_norm.weight");
    }

    #[test]
    fn expert_matrices_become_one_tensor() {
        let tensors = stacked(SMALL_EXPERTS.tensors());
        let named = |name| tensors.iter().filter(|(known, _)| gguf_name(known) == name).collect::<Vec<_>>();
        let [(name, down)] = named("blk.1.ffn_down_exps.weight")[..] else { panic!("{tensors:?}") };
        assert_eq!((down.as_slice(), element(name, down)), (&[8, 256, 512][..], BF16));
        let [(name, router)] = named("blk.0.ffn_gate_inp.weight")[..] else { panic!("{tensors:?}") };
        assert_eq!((router.as_slice(), element(name, router)), (&[8, 256][..], F32));
        let parameters: usize = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(parameters, SMALL_EXPERTS.parameters());
    }

    #[test]
    fn the_file_matches_its_header() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SMALL.provide(parent.path()).unwrap();
        let file = fs::read(provide(&SMALL, &folder).unwrap()).unwrap();
        assert_eq!(&file[..8], b"GGUF\x03\0\0\0");
        let tensors = u64::from_le_bytes(file[8..16].try_into().unwrap());
        // With the rotary divisors.
        assert_eq!(tensors as usize, SMALL.tensors().len() + 1);
        // All but the header, which is shorter than the smallest matrix: matrices have two bytes per value,
        // norms four.
        let norms = (1 + 2 * SMALL.layers) * SMALL.hidden;
        let data = 2 * SMALL.parameters() + 2 * norms + 4 * SMALL.head_dim / 2;
        assert!(file.len() > data && file.len() < data + 8192, "{} {data}", file.len());
    }
}
