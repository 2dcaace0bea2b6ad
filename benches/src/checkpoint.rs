//! Checkpoints with the shapes of published models and random weights: speed depends on shapes and types, not
//! on values.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mlxcel_models::Checkpoint;
use mlxcel_quantize::{QuantizeOptions, quantize};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::safetensors;
use crate::shapes::Shapes;

impl Shapes {
    /// The checkpoint's folder below `parent`, created if missing: bfloat16, values between -0.035 and 0.035
    /// (a standard deviation of 0.02), norms of ones.
    pub(crate) fn provide(&self, parent: &Path) -> Result<PathBuf> {
        let folder = parent.join(self.name);
        if folder.join("model.safetensors").is_file() {
            return Ok(folder);
        }
        eprintln!("writing {} ({:.2} GB)", folder.display(), 2e-9 * self.parameters() as f64);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        fs::write(folder.join("config.json"), self.config().to_string()).context("writing config.json")?;
        // Renamed once complete.
        let incoming = folder.join("incoming");
        self.write(&incoming).with_context(|| format!("writing {}", incoming.display()))?;
        fs::rename(&incoming, folder.join("model.safetensors")).context("naming the weights")?;
        Ok(folder)
    }

    /// The folder below `checkpoint`, which has these shapes, with its weights in `bits` bits, in groups of
    /// 64 as MLX packs them; created if missing.
    pub(crate) fn provide_quantized(&self, checkpoint: &Path, bits: usize) -> Result<PathBuf> {
        let folder = checkpoint.join(format!("{bits}bit"));
        if !folder.exists() {
            eprintln!("writing {}", folder.display());
            quantize(&Checkpoint::open(checkpoint)?, &folder, &QuantizeOptions::new(bits, 64))?;
        }
        Ok(folder)
    }

    fn write(&self, path: &Path) -> Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let described = self.tensors().into_iter().map(|(name, shape)| (name, "BF16", shape));
        file.write_all(&safetensors::header(described))?;
        let evenly_spread = |i: usize| bfloat16((i as f32 - 127.5) / 127.5 * 0.02 * 3f32.sqrt());
        let values: [_; 256] = std::array::from_fn(evenly_spread);
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let (mut indices, mut block) = (vec![0; 1 << 16], Vec::with_capacity(1 << 17));
        for (_, shape) in self.tensors() {
            let mut left: usize = shape.iter().product();
            while left > 0 {
                let count = left.min(indices.len());
                block.clear();
                if shape.len() == 1 {
                    block.extend(std::iter::repeat_n(bfloat16(1.0), count).flatten());
                } else {
                    random.fill_bytes(&mut indices[..count]);
                    block.extend(indices[..count].iter().flat_map(|&index| values[usize::from(index)]));
                }
                file.write_all(&block)?;
                left -= count;
            }
        }
        file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        Ok(())
    }
}

/// The upper half of a float's bits.
fn bfloat16(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::SMALL;

    #[test]
    fn a_checkpoint_opens_and_is_written_once() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SMALL.provide(parent.path()).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        assert_eq!(checkpoint.decoder().unwrap().parameters(), SMALL.parameters() as u64);
        let written = || fs::metadata(folder.join("model.safetensors")).unwrap().modified().unwrap();
        let before = written();
        SMALL.provide(parent.path()).unwrap();
        assert_eq!(written(), before);
    }

    #[test]
    fn a_quantized_checkpoint_is_of_the_same_model() {
        let parent = tempfile::tempdir().unwrap();
        let folder = SMALL.provide(parent.path()).unwrap();
        for bits in [4, 8] {
            let quantized = Checkpoint::open(SMALL.provide_quantized(&folder, bits).unwrap()).unwrap();
            assert_eq!(quantized.decoder().unwrap().parameters(), SMALL.parameters() as u64);
        }
        assert!(SMALL.provide_quantized(&folder, 7).is_err());
    }
}
