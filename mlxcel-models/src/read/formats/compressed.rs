//! compressed-tensors, as written by llm-compressor.
//!
//! The tensors of a module determine how it is stored, so the config's targets and exceptions are not needed:
//! - `weight_packed` I32 `[rows, columns · bits / 32]`: signed integers plus 2^(bits-1) as a stream of bits,
//!   with `weight_scale` and perhaps `weight_zero_point` and `weight_g_idx` (`pack-quantized`);
//! - `weight_packed` U8 `[rows, columns / 2]`: 4-bit floats, with `weight_scale` in F8_E4M3 to be divided by
//!   `weight_global_scale` (`nvfp4-pack-quantized`), or biased exponents (`mxfp4-pack-quantized`);
//! - `weight` I8, with `weight_scale` and perhaps `weight_zero_point` (`int-quantized`), or F8_E4M3
//!   (`float-quantized`);
//! - `weight` of floats: dense.
//!
//! Scales are per matrix, row, group or block. Activations stay floats, even if the config asks to quantize
//! them.

use std::ops::Range;

use mlxcel_core::Result;

use super::gptq::{sort, write_order, write_zeros};
use super::grid::{self, float};
use super::module::{Module, Stored};
use super::{dense, fp8, stream};
use crate::checkpoint::Checkpoint;
use crate::config::Fields;
use crate::decoder::{Packed, WeightRef};
use crate::element::ElementType;
use crate::packing::{Arrangement, Compressed, Offset, Packing, Part, Scale, e4m3};
use crate::read::gather::misfit;

const PACKED: &str = "weight_packed";
const SCALE: &str = "weight_scale";
const ZERO: &str = "weight_zero_point";
const COLUMNS: &str = "weight_g_idx";
const GLOBAL: &str = "weight_global_scale";
/// ModelOpt's name of its inverse.
pub(super) const SECOND: &str = "weight_scale_2";
/// The supported widths. Before codes were packed densely, those of 3, 5 and 6 bits left bits of each word
/// unused; the sizes of their tensors are others.
const WIDTHS: [usize; 6] = [2, 3, 4, 5, 6, 8];

/// The matrix of a module.
pub(super) fn matrix(
    checkpoint: &Checkpoint,
    settings: Fields<'_>,
    name: &str,
    shape: &[usize],
) -> Result<WeightRef> {
    refuse_unknown(checkpoint, settings)?;
    let packed = format!("{name}.{PACKED}");
    if !checkpoint.has(&packed) {
        let weight = format!("{name}.weight");
        let (view, _) = checkpoint.located(&weight)?;
        return match view.element_type {
            ElementType::I8 => integers(&Module::new(checkpoint, name, shape)?, settings, "weight"),
            ElementType::F8E4M3 | ElementType::F8E5M2 => {
                let module = Module::new(checkpoint, name, shape)?;
                fp8::floats(&module, &module.tensor(SCALE)?, &blocks(&module, settings)?)
            }
            _ => dense(checkpoint, &weight, shape),
        };
    }
    let module = Module::new(checkpoint, name, shape)?;
    let codes = module.tensor(PACKED)?;
    match codes.view.element_type {
        ElementType::U8 if module.has(GLOBAL) => nvfp4(&module, &codes, GLOBAL),
        ElementType::U8 => mxfp4(&module, &codes),
        _ => integers(&module, settings, PACKED),
    }
}

/// Refuses what would give other values than those that tensors tell.
fn refuse_unknown(checkpoint: &Checkpoint, settings: Fields<'_>) -> Result<()> {
    const FORMATS: [&str; 10] = [
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "naive-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "mxfp8-quantized",
        "mixed-precision",
        "dense",
        "frozen",
    ];
    if let Some(format) = settings.text("format")?.filter(|format| !FORMATS.contains(format)) {
        let message = format!(
            "the format '{}' is not supported; supported: {}",
            format.escape_debug(),
            FORMATS.join(", ")
        );
        return Err(settings.unsupported("format", message));
    }
    if let Some(sparsity) = settings.object("sparsity_config")?
        && let Some(format) = sparsity.text("format")?.filter(|format| *format != "dense")
    {
        let message = format!("sparse weights ('{}') are not supported", format.escape_debug());
        return Err(sparsity.unsupported("format", message));
    }
    let config = checkpoint.config();
    for settings in [settings, config] {
        if settings
            .object("transform_config")?
            .is_some_and(|transforms| transforms.get("config_groups").is_some())
        {
            let message = "weights that were rotated are not supported".to_owned();
            return Err(settings.unsupported("transform_config", message));
        }
    }
    Ok(())
}

/// Groups and blocks that the settings mention, as rows and columns that share a scale.
fn blocks(module: &Module<'_>, settings: Fields<'_>) -> Result<Vec<[usize; 2]>> {
    let mut blocks = Vec::new();
    let Some(groups) = settings.object("config_groups")? else { return Ok(blocks) };
    for name in groups.keys() {
        let Some(weights) = groups.object(name)?.map(|group| group.object("weights")).transpose()?.flatten()
        else {
            continue;
        };
        // The settings class writes `block_structure` of older versions as a text such as "128x128".
        let sizes = match weights.get("block_structure").and_then(serde_json::Value::as_str) {
            Some(text) => text.split('x').map(|size| size.parse().unwrap_or_default()).collect(),
            None => weights.sizes("block_structure")?.unwrap_or_default(),
        };
        if let Some(&block) = <&[usize; 2]>::try_from(&sizes[..]).ok().filter(|block| !block.contains(&0)) {
            blocks.push(block);
        }
        if weights.get("group_size").and_then(serde_json::Value::as_i64).is_some_and(|size| size > 0) {
            blocks.extend(weights.size("group_size", 1..=usize::MAX)?.map(|columns| [1, columns]));
        }
    }
    blocks.retain(|[rows, columns]| {
        *rows <= module.rows.max(1 << 16) && *columns <= module.columns.max(1 << 16)
    });
    Ok(blocks)
}

/// The integers of a module, in words or bytes.
fn integers(module: &Module<'_>, settings: Fields<'_>, tensor: &str) -> Result<WeightRef> {
    let codes = module.tensor(tensor)?;
    let shape = [module.rows, module.columns];
    let in_bytes = tensor != PACKED;
    let bits = if in_bytes {
        codes.expect(&[ElementType::I8], &shape, "an integer for each value")?;
        8
    } else {
        let [rows, words] = codes.matrix()?;
        let bits = WIDTHS
            .into_iter()
            .find(|bits| module.columns.checked_mul(*bits) == Some(words.saturating_mul(32)));
        let Some(bits) = bits.filter(|_| rows == module.rows && codes.view.element_type == ElementType::I32)
        else {
            return Err(codes.refuse(format!(
                "the tensor is {} {:?}, which are not the codes of {shape:?} in {WIDTHS:?} bits, I32 [rows, columns * bits / 32]",
                codes.view.element_type, codes.view.shape
            )));
        };
        bits
    };
    let scales = module.tensor(SCALE)?;
    if !scales.view.element_type.is_dense_float() {
        return Err(scales.unsupported(format!("scales of {} are not supported", scales.view.element_type)));
    }
    let block = match scales.view.shape[..] {
        [height, groups] if height == module.rows && groups > 1 => {
            let mut declared = blocks(module, settings)?;
            declared.retain(|[rows, columns]| *rows == 1 && module.columns.div_ceil(*columns) == groups);
            let declared = declared.first().map(|[_, columns]| *columns);
            [1, module.stored_group(&scales, groups, declared)?]
        }
        _ => fp8::block(module, &scales, &blocks(module, settings)?)?,
    };
    let in_order = |of_columns: &Stored<'_>| stream::groups(of_columns.view.bytes).any(|group| group < 0);
    // Where no order was chosen, its places were never filled.
    let of_columns = module.filled(COLUMNS)?.filter(|of_columns| !in_order(of_columns));
    let ordered = match &of_columns {
        None => false,
        Some(of_columns) => sort(module, of_columns, module.columns.div_ceil(block[1]), block[1])?,
    };
    let zeros = module.filled(ZERO)?;
    if let Some(zeros) = &zeros {
        expect_zeros(module, zeros, bits, block)?;
    }

    let group_size = module.group_size(block[1]);
    let element = scales.view.element_type;
    let packing = match zeros {
        Some(_) => Packing { offset: Offset::Zeros, ..Packing::symmetric(bits, 0, group_size, element) },
        None => Packing::symmetric(bits, 1 << (bits - 1), group_size, element),
    };
    let packing = Packing { ordered, ..packing };
    module.check(&packing)?;
    let stored = Compressed { bits, rows: block[0], groups: block[1].div_ceil(group_size), ordered };
    let mut parts = vec![grid::scales(module, &scales, &packing, block)?];
    let mut part = |part: Part, tensor: &Stored<'_>| {
        parts.push(module.part(&packing, part, &tensor.name, Arrangement::Compressed(stored)));
    };
    if let Some(zeros) = &zeros {
        part(Part::Offsets, zeros);
    }
    if let Some(of_columns) = of_columns.filter(|_| ordered) {
        part(Part::Order, &of_columns);
    }
    let arrangement = if ordered || in_bytes { Arrangement::Compressed(stored) } else { Arrangement::Bytes };
    Ok(module.part(&packing, Part::Codes, &codes.name, arrangement).with_packing(Packed::new(packing, parts)))
}

/// Refuses zeros that are neither a signed byte for each scale nor packed down the columns.
fn expect_zeros(
    module: &Module<'_>,
    zeros: &Stored<'_>,
    bits: usize,
    [rows, columns]: [usize; 2],
) -> Result<()> {
    let [height, width] = [module.rows.div_ceil(rows), module.columns.div_ceil(columns)];
    let why = "a zero for each scale";
    match zeros.view.element_type {
        ElementType::I32 => {
            zeros.expect(&[ElementType::I32], &[height.saturating_mul(bits).div_ceil(32), width], why)
        }
        _ if width == 1 && zeros.view.shape.len() < 2 => {
            let shape = if zeros.view.shape.is_empty() { vec![] } else { vec![height] };
            zeros.expect(&[ElementType::I8], &shape, why)
        }
        _ => zeros.expect(&[ElementType::I8], &[height, width], why),
    }
}

/// 4-bit floats in groups of 16, whose scales are 8-bit floats over a number for the whole matrix, or times
/// that of ModelOpt; it has the name `global`.
pub(super) fn nvfp4(module: &Module<'_>, codes: &Stored<'_>, global: &str) -> Result<WeightRef> {
    const GROUP: usize = 16;
    let packing = Packing { scale: Scale::Float(ElementType::F32), ..Packing::NVFP4 };
    module.check(&packing)?;
    codes.expect(&[ElementType::U8], &[module.rows, module.columns / 2], "two codes a byte")?;
    let scales = module.tensor(SCALE)?;
    let shape = [module.rows, module.columns / GROUP];
    scales.expect(&[ElementType::F8E4M3], &shape, "a scale for each 16 values")?;
    let global = module.tensor(global)?;
    if global.view.element_type != ElementType::F32 || global.view.bytes.len() != 4 {
        global.expect(&[ElementType::F32], &[1], "one number for the matrix")?;
    }
    let stored = Compressed { bits: 4, rows: 1, groups: 1, ordered: false };
    let scales = module.part(&packing, Part::Scales, &scales.name, Arrangement::Compressed(stored));
    let codes = module.part(&packing, Part::Codes, &codes.name, Arrangement::Bytes);
    Ok(codes.with_packing(Packed::new(packing, [scales])))
}

/// 4-bit floats in groups of 32, with a power of two each.
fn mxfp4(module: &Module<'_>, codes: &Stored<'_>) -> Result<WeightRef> {
    let packing = Packing::MXFP4;
    module.check(&packing)?;
    codes.expect(&[ElementType::U8], &[module.rows, module.columns / 2], "two codes a byte")?;
    let scales = module.tensor(SCALE)?;
    let shape = [module.rows, module.columns / packing.group_size];
    scales.expect(&[ElementType::U8, ElementType::F8E8M0], &shape, "a biased exponent for each 32 values")?;
    let scales = grid::scales(module, &scales, &packing, [1, packing.group_size])?;
    let codes = module.part(&packing, Part::Codes, &codes.name, Arrangement::Bytes);
    Ok(codes.with_packing(Packed::new(packing, [scales])))
}

impl Compressed {
    /// Writes rows of a part out of the tensor that [`matrix`] names for it.
    pub(in crate::read) fn read(
        &self,
        checkpoint: &Checkpoint,
        part: Part,
        tensor: &str,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let (view, location) = checkpoint.located(tensor)?;
        let beside = |suffix: &str| {
            let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
            checkpoint.located(&format!("{module}.{suffix}")).map(|(view, _)| view)
        };
        let width = view.shape.get(1).copied().unwrap_or(1);
        let done = match part {
            Part::Codes => {
                let row = out.len().checked_div(rows.len()).unwrap_or_default();
                let stored = view.bytes.get(rows.start * row..rows.end * row);
                let stored = stored
                    .filter(|stored| stored.len() == out.len())
                    .ok_or_else(|| misfit(tensor, location))?;
                out.copy_from_slice(stored);
                if view.element_type == ElementType::I8 {
                    // The same as adding 128.
                    out.iter_mut().for_each(|code| *code ^= 0x80);
                }
                if self.ordered {
                    let order = stream::order(beside(COLUMNS)?.bytes);
                    let mut scratch = vec![0; order.len()];
                    for row in out.chunks_exact_mut(row.max(1)) {
                        stream::reorder(row, self.bits, &order, &mut scratch);
                    }
                }
                Some(())
            }
            Part::Scales => {
                let divides = beside(GLOBAL).is_ok();
                let global = beside(if divides { GLOBAL } else { SECOND })?;
                let global = float(&global, 0).ok_or_else(|| misfit(tensor, location))?;
                let numbers = out.as_chunks_mut::<4>().0;
                let stored = view.bytes.get(rows.start * width..rows.end * width).unwrap_or_default();
                let fits = stored.len() == numbers.len();
                for (number, scale) in numbers.iter_mut().zip(stored) {
                    let scale = e4m3(*scale);
                    *number = if divides { scale / global } else { scale * global }.to_le_bytes();
                }
                fits.then_some(())
            }
            Part::Offsets => {
                let words = view.bytes.as_chunks::<4>().0;
                let signed = 1u8 << (self.bits - 1);
                let zero_of = |group: usize, row: usize| {
                    let row = row / self.rows.max(1);
                    if view.element_type == ElementType::I8 {
                        return view.bytes.get(row * width + group).map(|zero| zero.wrapping_add(signed));
                    }
                    let (index, shift) = (row * self.bits / 32, row * self.bits % 32);
                    let word =
                        |index: usize| words.get(index * width + group).map(|word| u32::from_le_bytes(*word));
                    let code = u64::from(word(index)?) | u64::from(word(index + 1).unwrap_or_default()) << 32;
                    // The mask leaves 8 bits at most.
                    Some((code >> shift & ((1 << self.bits) - 1)) as u8)
                };
                write_zeros(self.groups, rows, out, zero_of)
            }
            Part::Order => write_order(view.bytes, out),
            _ => None,
        };
        done.ok_or_else(|| misfit(tensor, location))
    }
}
