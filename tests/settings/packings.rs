//! Packings: those that `quantize` writes, and published ones made of random codes.

use std::path::Path;

use mlxcel_core::{Error, ErrorKind};
use mlxcel_models::Checkpoint;
use mlxcel_quantize::{Mode, QuantizeOptions, Recipe, Scheme, WriteOptions, quantize};
use serde_json::{Map, Value, json};

use super::draw::Random;
use super::gguf;
use super::weights::{Tensor, Tensors, floats, write};

/// A packing of matrices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Packing {
    /// The dense checkpoint, packed by `quantize`.
    Quantized(&'static str, QuantizeChoice),
    /// Random codes in a published form.
    Codes(Form),
    /// Random blocks in a GGUF file.
    Gguf,
}

/// What `quantize` is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum QuantizeChoice {
    Scheme(Scheme),
    Recipe(Recipe, usize),
}

/// A form of published checkpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Gptq {
        bits: usize,
        group: Option<usize>,
        symmetric: bool,
        order: bool,
    },
    Awq {
        group: Option<usize>,
    },
    /// Of compressed-tensors, integers in words or bytes.
    Compressed {
        bits: usize,
        group: Option<usize>,
        symmetric: bool,
        in_bytes: bool,
    },
    /// Of compressed-tensors, 4-bit floats.
    Nvfp4,
    Fp8 {
        block: Option<[usize; 2]>,
    },
    /// gpt-oss's experts.
    Mxfp4,
}

impl Packing {
    /// A random one for a family.
    pub(crate) fn draw(random: &mut Random, family: &str) -> Self {
        let group = random.pick(&[32, 64, 128]);
        let small = random.pick(&[Some(32), Some(64), None]);
        if gguf::has(family) && random.one_in(4) {
            return Self::Gguf;
        }
        match random.below(11) {
            0..3 => {
                let bits = random.pick(Mode::Affine.bits());
                Self::Quantized(
                    "affine",
                    QuantizeChoice::Scheme(Scheme { mode: Mode::Affine, bits, group_size: group }),
                )
            }
            3 => Self::Quantized(
                "mixed",
                QuantizeChoice::Recipe(random.pick(&Recipe::ALL), random.pick(&[32, 64])),
            ),
            4 => {
                let mode = random.pick(&[Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4]);
                Self::Quantized(mode.name(), QuantizeChoice::Scheme(Scheme::of_mode(mode)))
            }
            5 if family == "gpt_oss" => Self::Codes(Form::Mxfp4),
            5 | 6 => Self::Codes(Form::Gptq {
                bits: random.pick(&[2, 3, 4, 4, 5, 6, 8]),
                group: small,
                symmetric: random.one_in(2),
                order: random.one_in(3),
            }),
            7 => Self::Codes(Form::Awq { group: small }),
            8 => Self::Codes(Form::Compressed {
                bits: random.pick(&[2, 3, 4, 4, 5, 6, 8]),
                group: small,
                symmetric: random.one_in(2),
                in_bytes: false,
            }),
            9 if random.one_in(2) => Self::Codes(Form::Nvfp4),
            9 => Self::Codes(Form::Compressed {
                bits: 8,
                group: small,
                symmetric: random.one_in(2),
                in_bytes: true,
            }),
            _ => Self::Codes(Form::Fp8 { block: random.pick(&[None, Some([16, 32]), Some([128, 128])]) }),
        }
    }

    /// Its name in counts.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Quantized(name, _) => name,
            Self::Gguf => "gguf",
            Self::Codes(Form::Gptq { order: true, .. }) => "gptq act-order",
            Self::Codes(Form::Gptq { .. }) => "gptq",
            Self::Codes(Form::Awq { .. }) => "awq",
            Self::Codes(Form::Compressed { in_bytes: true, .. }) => "compressed int8",
            Self::Codes(Form::Compressed { .. }) => "compressed",
            Self::Codes(Form::Nvfp4) => "compressed nvfp4",
            Self::Codes(Form::Fp8 { .. }) => "fp8",
            Self::Codes(Form::Mxfp4) => "mxfp4 experts",
        }
    }

    /// Writes the checkpoint in `from` packed into `to`, a folder beside it. False if it has no matrix that
    /// can be packed so.
    ///
    /// # Errors
    ///
    /// The refusal of the packed checkpoint.
    pub(crate) fn write(
        &self,
        random: &mut Random,
        (config, tensors, from): (&Map<String, Value>, &Tensors, &Path),
        to: &Path,
    ) -> Result<bool, Error> {
        match self {
            Self::Quantized(_, choice) => {
                let options = match *choice {
                    QuantizeChoice::Scheme(scheme) => QuantizeOptions::of(scheme),
                    QuantizeChoice::Recipe(recipe, group) => QuantizeOptions::of_recipe(recipe, group),
                };
                let options = options.with_write(WriteOptions::default().with_threads(1));
                match quantize(&Checkpoint::open(from)?, to, &options) {
                    Ok(_) => Ok(true),
                    // Without a matrix whose rows are whole groups there is nothing to pack.
                    Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(false),
                    Err(error) => Err(error),
                }
            }
            Self::Codes(form) => form.write(random, config, tensors, to),
            Self::Gguf => Ok(gguf::write(random, config, tensors, to)),
        }
    }
}

impl Form {
    fn settings(self) -> Value {
        let group = |group: Option<usize>| group.map_or(json!(-1), Value::from);
        match self {
            Self::Gptq { bits, group: size, symmetric, order } => json!({
                "quant_method": "gptq", "bits": bits, "group_size": group(size), "sym": symmetric, "desc_act": order,
            }),
            Self::Awq { group: size } => json!({
                "quant_method": "awq", "bits": 4, "group_size": group(size), "version": "gemm", "zero_point": true,
            }),
            Self::Compressed { bits, group, symmetric, in_bytes } => compressed(
                if in_bytes { "int-quantized" } else { "pack-quantized" },
                json!({
                    "num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group,
                    "strategy": if group.is_some() { "group" } else { "channel" },
                }),
            ),
            Self::Nvfp4 => compressed(
                "nvfp4-pack-quantized",
                json!({"num_bits": 4, "type": "float", "symmetric": true, "group_size": 16, "strategy": "tensor_group"}),
            ),
            Self::Fp8 { block } => json!({
                "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block,
            }),
            Self::Mxfp4 => json!({"quant_method": "mxfp4"}),
        }
    }

    /// Packs every matrix that can be and that the family reads so. Which these are it says itself: a dense
    /// tensor that it lacks is put back.
    fn write(
        self,
        random: &mut Random,
        config: &Map<String, Value>,
        tensors: &Tensors,
        to: &Path,
    ) -> Result<bool, Error> {
        let mut config = config.clone();
        config.insert("quantization_config".to_owned(), self.settings());
        let mut packed = Tensors::new();
        let mut replaced = Vec::new();
        for (name, tensor) in tensors {
            match self.pack(random, name, &tensor.shape) {
                Some(parts) => {
                    replaced.push((name.clone(), parts.keys().cloned().collect::<Vec<_>>()));
                    packed.extend(parts);
                }
                None => drop(packed.insert(name.clone(), tensor.clone())),
            }
        }
        loop {
            if replaced.is_empty() {
                return Ok(false);
            }
            write(to, &config, &packed, 1);
            let Err(error) = Checkpoint::open(to)?.decoder() else { return Ok(true) };
            let dense = replaced.iter().position(|(name, _)| error.context("tensor") == Some(name));
            let Some(dense) = dense else { return Err(error) };
            let (name, parts) = replaced.remove(dense);
            parts.iter().for_each(|part| drop(packed.remove(part)));
            packed.insert(name.clone(), tensors[&name].clone());
        }
    }

    /// The tensors of a matrix in this form; `None` for what has none.
    fn pack(self, random: &mut Random, name: &str, shape: &[usize]) -> Option<Tensors> {
        if self == Self::Mxfp4 {
            return mxfp4(random, name, shape);
        }
        let module =
            name.strip_suffix(".weight").filter(|name| !name.contains("embed") && !name.contains("wte"))?;
        let &[rows, columns] = shape else { return None };
        let parts = match self {
            Self::Gptq { bits, group, symmetric, order } => {
                gptq(random, [rows, columns], (bits, group.unwrap_or(columns)), symmetric, order)?
            }
            Self::Awq { group } => {
                let groups = groups(columns, group.unwrap_or(columns))?;
                rows.is_multiple_of(8).then_some(())?;
                vec![
                    ("qweight", words(random, &[columns, rows / 8])),
                    ("qzeros", words(random, &[groups, rows / 8])),
                    ("scales", scales(random, "F16", &[groups, rows], 4.6, columns)),
                ]
            }
            Self::Compressed { bits, group, symmetric, in_bytes } => {
                let groups = groups(columns, group.unwrap_or(columns))?;
                let deviation = (1 << bits) as f32 / 3.5;
                let mut parts =
                    vec![("weight_scale", scales(random, "BF16", &[rows, groups], deviation, columns))];
                if in_bytes {
                    parts.push(("weight", bytes(random, "I8", &[rows, columns])));
                } else {
                    (columns * bits).is_multiple_of(32).then_some(())?;
                    parts.push(("weight_packed", words(random, &[rows, columns * bits / 32])));
                    let sizes =
                        [rows as i64, columns as i64].iter().flat_map(|size| size.to_le_bytes()).collect();
                    parts.push(("weight_shape", Tensor { dtype: "I64", shape: vec![2], bytes: sizes }));
                }
                if !symmetric && in_bytes {
                    parts.push(("weight_zero_point", bytes(random, "I8", &[rows, groups])));
                } else if !symmetric {
                    parts.push(("weight_zero_point", words(random, &[(rows * bits).div_ceil(32), groups])));
                }
                parts
            }
            Self::Nvfp4 => {
                let groups = groups(columns, 16)?;
                let global = floats("F32", &[1], &[0.4 * (columns as f32).sqrt()]);
                // From an eighth to two and a half.
                let factors = (0..rows * groups).map(|_| 0x20 + random.below(0x24) as u8).collect();
                vec![
                    ("weight_packed", bytes(random, "U8", &[rows, columns / 2])),
                    ("weight_scale", Tensor { dtype: "F8_E4M3", shape: vec![rows, groups], bytes: factors }),
                    ("weight_global_scale", global),
                ]
            }
            Self::Fp8 { block } => {
                let [height, width] = block.unwrap_or([1, columns]);
                let mut codes = bytes(random, "F8_E4M3", &[rows, columns]);
                // Those would be no numbers.
                codes.bytes.iter_mut().filter(|code| **code & 127 == 127).for_each(|code| *code = 0);
                let shape = [rows.div_ceil(height), columns.div_ceil(width)];
                let name = if block.is_some() { "weight_scale_inv" } else { "weight_scale" };
                vec![("weight", codes), (name, scales(random, "F32", &shape, 130.0, columns))]
            }
            Self::Mxfp4 => return None,
        };
        Some(parts.into_iter().map(|(part, tensor)| (format!("{module}.{part}"), tensor)).collect())
    }
}

/// The settings of compressed-tensors with one group of modules.
fn compressed(format: &str, weights: Value) -> Value {
    let group = json!({"targets": ["Linear"], "weights": weights, "format": format});
    json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}, "ignore": []})
}

/// How many whole groups of `size` a row has.
fn groups(columns: usize, size: usize) -> Option<usize> {
    columns.is_multiple_of(size).then_some(columns / size)
}

fn gptq(
    random: &mut Random,
    [rows, columns]: [usize; 2],
    (bits, group): (usize, usize),
    symmetric: bool,
    order: bool,
) -> Option<Vec<(&'static str, Tensor)>> {
    let groups = groups(columns, group)?;
    ((columns * bits).is_multiple_of(32) && (rows * bits).is_multiple_of(32)).then_some(())?;
    let mut zeros = words(random, &[groups, rows * bits / 32]);
    if symmetric {
        // A stream of one code, half the range less one.
        let code = (1u64 << (bits - 1)) - 1;
        let bit = |at: usize| code >> (at % bits) & 1;
        for (index, byte) in zeros.bytes.iter_mut().enumerate() {
            // Each row of zeros begins anew with a whole code.
            let at = index % (rows * bits / 8) * 8;
            *byte = (0..8).map(|low| (bit(at + low) as u8) << low).sum();
        }
    }
    let mut of_columns: Vec<_> = (0..columns).map(|column| (column / group) as i32).collect();
    if order {
        (1..columns).for_each(|last| of_columns.swap(last, random.below(last + 1)));
    }
    let of_columns = of_columns.iter().flat_map(|group| group.to_le_bytes()).collect();
    Some(vec![
        ("qweight", words(random, &[columns * bits / 32, rows])),
        ("qzeros", zeros),
        ("scales", scales(random, "F16", &[groups, rows], (1 << bits) as f32 / 3.5, columns)),
        ("g_idx", Tensor { dtype: "I32", shape: vec![columns], bytes: of_columns }),
    ])
}

/// The experts of gpt-oss, stored as inputs by outputs where they are dense.
fn mxfp4(random: &mut Random, name: &str, shape: &[usize]) -> Option<Tensors> {
    let &[experts, columns, rows] = shape else { return None };
    if !name.ends_with("_proj") {
        return None;
    }
    let groups = groups(columns, 32)?;
    let exponent = 127 - (4.0 * (columns as f32).sqrt()).log2().round() as i32;
    let exponents =
        (0..experts * rows * groups).map(|_| (exponent + random.below(3) as i32 - 1) as u8).collect();
    let scales = Tensor { dtype: "U8", shape: vec![experts, rows, groups], bytes: exponents };
    let blocks = bytes(random, "U8", &[experts, rows, groups, 16]);
    Some([(format!("{name}_blocks"), blocks), (format!("{name}_scales"), scales)].into())
}

/// Scales with which codes of a standard deviation make values whose products are about as large as their
/// input.
fn scales(
    random: &mut Random,
    dtype: &'static str,
    shape: &[usize],
    deviation: f32,
    columns: usize,
) -> Tensor {
    let usual = 1.0 / deviation / (columns as f32).sqrt();
    let count = shape.iter().product::<usize>();
    let values: Vec<_> = (0..count).map(|_| usual * (1.0 + random.float(0.5))).collect();
    floats(dtype, shape, &values)
}

fn words(random: &mut Random, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    Tensor { dtype: "I32", shape: shape.to_vec(), bytes: random.bytes(4 * count) }
}

fn bytes(random: &mut Random, dtype: &'static str, shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    Tensor { dtype, shape: shape.to_vec(), bytes: random.bytes(count) }
}
