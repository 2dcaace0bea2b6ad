//! Checkpoints in other tools' formats, with the shapes of published models and random codes. Their
//! embeddings, which are also the heads, stay in bfloat16, as with those tools.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::safetensors;
use crate::shapes::Shapes;

/// Inputs per scale.
const GROUP: usize = 128;

/// A format of packed matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// 4 bits, symmetric, in input order.
    Gptq,
    /// 4 bits with zero points.
    Awq,
    /// MLX's 4 bits, for comparison.
    Affine,
    /// 8-bit floats with a scale for each block of 128 rows and columns.
    Fp8,
}

/// The content of a tensor.
#[derive(Clone, Copy)]
enum Fill {
    Random,
    /// Random 8-bit floats, without NaN.
    RandomFloats,
    Repeated(&'static [u8]),
}

/// 0.003, which gives codes of 4 bits about the deviation of weights.
const HALF: Fill = Fill::Repeated(&[0x25, 0x1a]);
const BFLOAT16: Fill = Fill::Repeated(&[0x45, 0x3b]);
/// -8 times as much.
const BFLOAT16_BIAS: Fill = Fill::Repeated(&[0xc5, 0xbc]);
/// 0.0002.
const FLOAT: Fill = Fill::Repeated(&[0x17, 0xb7, 0x51, 0x39]);
const ONE: Fill = Fill::Repeated(&[0x80, 0x3f]);

/// A tensor's name or suffix, its type, its shape and its content.
type Tensor = (String, &'static str, Vec<usize>, Fill);

impl Form {
    /// The name of the folder.
    fn name(self) -> &'static str {
        match self {
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::Affine => "affine-linears",
            Self::Fp8 => "fp8",
        }
    }

    /// The settings in `config.json`, and their key.
    fn settings(self) -> (&'static str, Value) {
        match self {
            Self::Gptq => (
                "quantization_config",
                json!({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": true, "desc_act": false, "checkpoint_format": "gptq"}),
            ),
            Self::Awq => (
                "quantization_config",
                json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": true}),
            ),
            Self::Affine => ("quantization", json!({"bits": 4, "group_size": GROUP})),
            Self::Fp8 => (
                "quantization_config",
                json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [GROUP, GROUP]}),
            ),
        }
    }

    /// The tensors of a matrix, by their suffixes.
    fn tensors(self, rows: usize, columns: usize) -> Vec<(&'static str, &'static str, Vec<usize>, Fill)> {
        let groups = columns / GROUP;
        match self {
            Self::Gptq => vec![
                ("qweight", "I32", vec![columns / 8, rows], Fill::Random),
                // Zero points of 8, stored minus one.
                ("qzeros", "I32", vec![groups, rows / 8], Fill::Repeated(&[0x77])),
                ("scales", "F16", vec![groups, rows], HALF),
            ],
            Self::Awq => vec![
                ("qweight", "I32", vec![columns, rows / 8], Fill::Random),
                ("qzeros", "I32", vec![groups, rows / 8], Fill::Repeated(&[0x88])),
                ("scales", "F16", vec![groups, rows], HALF),
            ],
            Self::Affine => vec![
                ("weight", "U32", vec![rows, columns / 8], Fill::Random),
                ("scales", "BF16", vec![rows, groups], BFLOAT16),
                ("biases", "BF16", vec![rows, groups], BFLOAT16_BIAS),
            ],
            Self::Fp8 => vec![
                ("weight", "F8_E4M3", vec![rows, columns], Fill::RandomFloats),
                ("weight_scale_inv", "F32", vec![rows / GROUP, groups], FLOAT),
            ],
        }
    }
}

impl Shapes {
    /// The folder below `checkpoint`, which has these shapes, with its matrices in a format; created if
    /// missing.
    pub(crate) fn provide_packed(&self, checkpoint: &Path, form: Form) -> Result<PathBuf> {
        let folder = checkpoint.join(form.name());
        if folder.join("model.safetensors").is_file() {
            return Ok(folder);
        }
        eprintln!("writing {}", folder.display());
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let (key, settings) = form.settings();
        let mut config = self.config();
        config[key] = settings;
        fs::write(folder.join("config.json"), config.to_string()).context("writing config.json")?;
        // Renamed once complete.
        let incoming = folder.join("incoming");
        write(&incoming, &self.packed_tensors(form))
            .with_context(|| format!("writing {}", incoming.display()))?;
        fs::rename(&incoming, folder.join("model.safetensors")).context("naming the weights")?;
        Ok(folder)
    }

    fn packed_tensors(&self, form: Form) -> Vec<Tensor> {
        let tensors = self.tensors().into_iter().flat_map(|(name, shape)| match shape[..] {
            [rows, columns] if name.ends_with("_proj.weight") => {
                let module = name.trim_end_matches("weight").to_owned();
                let parts = form.tensors(rows, columns).into_iter();
                parts
                    .map(|(suffix, kind, shape, fill)| (format!("{module}{suffix}"), kind, shape, fill))
                    .collect()
            }
            [_] => vec![(name, "BF16", shape, ONE)],
            _ => vec![(name, "BF16", shape, BFLOAT16)],
        });
        tensors.collect()
    }
}

fn write(path: &Path, tensors: &[Tensor]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let described = tensors.iter().map(|(name, kind, shape, _)| (name.clone(), *kind, shape.as_slice()));
    file.write_all(&safetensors::header(described))?;
    let mut random = ChaCha8Rng::seed_from_u64(0);
    for (_, kind, shape, fill) in tensors {
        fill.write(safetensors::bytes(kind, shape), &mut random, &mut file)?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(())
}

impl Fill {
    fn write(self, bytes: usize, random: &mut ChaCha8Rng, file: &mut impl Write) -> io::Result<()> {
        let mut block = vec![0; 1 << 20];
        if let Self::Repeated(number) = self {
            block.iter_mut().zip(number.iter().cycle()).for_each(|(byte, number)| *byte = *number);
        }
        let mut left = bytes;
        while left > 0 {
            let block = &mut block[..left.min(1 << 20)];
            match self {
                Self::Random => random.fill_bytes(block),
                Self::RandomFloats => {
                    random.fill_bytes(block);
                    block.iter_mut().filter(|byte| **byte & 127 == 127).for_each(|byte| *byte = 0);
                }
                Self::Repeated(_) => {}
            }
            file.write_all(block)?;
            left -= block.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_models::Checkpoint;

    use super::*;
    use crate::shapes::SMALL;

    #[test]
    fn checkpoints_are_packed_and_of_the_same_model() {
        let parent = tempfile::tempdir().unwrap();
        for (form, packing) in [
            (Form::Gptq, "u4-8/128 f16"),
            (Form::Awq, "u4/128 f16 - u8*scale"),
            (Form::Affine, "u4/128 bf16 + bf16"),
            (Form::Fp8, "e4m3/128 f32"),
        ] {
            let folder = SMALL.provide_packed(parent.path(), form).unwrap();
            let checkpoint = Checkpoint::open(&folder).unwrap();
            let decoder = checkpoint.decoder().unwrap();
            assert_eq!(decoder.parameters(), SMALL.parameters() as u64);
            let packed = decoder.weights().filter_map(|weight| weight.packed.as_ref());
            let packings: Vec<_> = packed.map(|packed| packed.packing.to_string()).collect();
            assert!(packings.len() > 6 && packings.iter().all(|found| found == packing), "{packings:?}");
        }
    }
}
