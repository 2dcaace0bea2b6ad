//! Checkpoints in the packed forms of GPTQ, AWQ, compressed-tensors, FP8 and gpt-oss: what is read out of
//! them, and which are refused.

mod floats;
mod refusals;

use crate::common::values::values;
use crate::common::{Draft, chain};
use mlxcel_core::ErrorKind;
use mlxcel_models::{Checkpoint, Decoder, WeightRef};
use safetensors::Dtype;
use serde_json::{Value, json};

const DOWN: &str = "model.layers.0.mlp.down_proj";
const ROWS: usize = 128;
const COLUMNS: usize = 256;

/// Numbers below `limit` that look random.
fn numbers(count: usize, limit: u32, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % limit
    };
    (0..count).map(|_| next() as u8).collect()
}

/// Half-precision scales, and their bytes.
fn scales(count: usize) -> (Vec<f32>, Vec<u8>) {
    let scales: Vec<_> = numbers(count, 256, 7).into_iter().map(|n| f32::from(n) / 4096.0 + 0.01).collect();
    let halves: Vec<_> = scales.iter().map(|&scale| half::f16::from_f32(scale)).collect();
    (
        halves.iter().map(|half| half.to_f32()).collect(),
        halves.iter().flat_map(|half| half.to_le_bytes()).collect(),
    )
}

/// A stream of codes for each line of `width`, the first in the lowest bits.
fn streams(codes: &[u8], width: usize, bits: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for line in codes.chunks_exact(width) {
        let mut stream = vec![0u8; (width * bits).div_ceil(32) * 4];
        for (index, code) in line.iter().enumerate() {
            for bit in (0..bits).filter(|bit| code >> bit & 1 == 1) {
                stream[(index * bits + bit) / 8] |= 1 << ((index * bits + bit) % 8);
            }
        }
        out.extend(stream);
    }
    out
}

/// Elements of `width` bytes of a matrix of `columns`, with rows and columns swapped.
fn transposed(bytes: &[u8], columns: usize, width: usize) -> Vec<u8> {
    let elements: Vec<_> = bytes.chunks_exact(width).collect();
    let rows = elements.len() / columns;
    (0..columns)
        .flat_map(|column| (0..rows).map(move |row| (row, column)))
        .flat_map(|(row, column)| elements[row * columns + column].to_vec())
        .collect()
}

fn ints(values: impl IntoIterator<Item = usize>) -> Vec<u8> {
    values.into_iter().flat_map(|value| (value as i32).to_le_bytes()).collect()
}

/// A draft whose module `DOWN` has these tensors instead of its weight.
fn draft(settings: Value, tensors: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)>) -> Draft {
    let mut draft = Draft::wide().set("quantization_config", settings).without(&format!("{DOWN}.weight"));
    for (suffix, dtype, shape, bytes) in tensors {
        assert_eq!(bytes.len(), shape.iter().product::<usize>() * dtype.bitsize() / 8, "{suffix}");
        draft.tensors.insert(format!("{DOWN}.{suffix}"), (dtype, shape, bytes));
    }
    draft
}

fn down(decoder: &Decoder) -> &WeightRef {
    decoder.weights().find(|weight| weight.tensor.starts_with(DOWN)).unwrap()
}

/// Holds the values of `DOWN`, whole, by rows and in a selection, against `expected`, and gives the packing's
/// text.
fn check(draft: &Draft, expected: impl Fn(usize, usize) -> f32) -> String {
    let written = draft.write();
    let checkpoint = written.open().unwrap();
    let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{}", chain(&error)));
    let weight = down(&decoder);
    let found = values(&checkpoint, weight).unwrap();
    for (index, &value) in found.iter().enumerate() {
        let expected = expected(index / COLUMNS, index % COLUMNS);
        let close = (value - expected).abs() <= 1e-6 * expected.abs();
        assert!(close, "{weight}: value {:?} is {value}, not {expected}", (index / COLUMNS, index % COLUMNS));
    }
    check_rows(&checkpoint, weight);
    let slice = weight.clone().rows(5, 70);
    assert_eq!(values(&checkpoint, &slice).unwrap(), found[5 * COLUMNS..75 * COLUMNS]);
    weight.storage()
}

/// Holds rows of each part against all of it.
fn check_rows(checkpoint: &Checkpoint, weight: &WeightRef) {
    for part in weight.tensors() {
        let whole = checkpoint.weight(part).unwrap().bytes;
        if part.shape.len() < 2 {
            continue;
        }
        let row = whole.len() / ROWS;
        for rows in [0..1, 3..20, 120..128, 17..17] {
            let mut some = vec![0; rows.len() * row];
            checkpoint.weight_rows(part, rows.clone(), &mut some).unwrap();
            assert_eq!(some, whole[rows.start * row..rows.end * row], "{part}: {rows:?}");
        }
    }
}

/// A module as GPTQ stores it: codes `[ROWS, COLUMNS]`, zeros `[ROWS, groups]`, the group of each column.
fn gptq(
    bits: usize,
    group: usize,
    v2: bool,
    symmetric: bool,
    order: Option<&[usize]>,
) -> (Draft, impl Fn(usize, usize) -> f32 + use<>) {
    let (limit, groups) = (1u32 << bits, COLUMNS.div_ceil(group));
    let codes = numbers(ROWS * COLUMNS, limit, 1);
    let zeros =
        if symmetric { vec![(limit / 2) as u8; ROWS * groups] } else { numbers(ROWS * groups, limit, 2) };
    let (floats, halves) = scales(groups * ROWS);
    let stored: Vec<_> = zeros
        .iter()
        .map(|zero| (u32::from(*zero) + limit - u32::from(!v2)) % limit)
        .map(|zero| zero as u8)
        .collect();
    let of_column: Vec<_> =
        (0..COLUMNS).map(|column| order.map_or(column, |order| order[column]) / group).collect();
    let mut tensors = vec![
        (
            "qweight",
            Dtype::I32,
            vec![COLUMNS * bits / 32, ROWS],
            transposed(&streams(&codes, COLUMNS, bits), COLUMNS * bits / 32, 4),
        ),
        (
            "qzeros",
            Dtype::I32,
            vec![groups, ROWS * bits / 32],
            streams(&transposed(&stored, groups, 1), ROWS, bits),
        ),
        ("scales", Dtype::F16, vec![groups, ROWS], halves),
    ];
    if order.is_some() {
        tensors.push(("g_idx", Dtype::I32, vec![COLUMNS], ints(of_column.iter().copied())));
    }
    let format = if v2 { "gptq_v2" } else { "gptq" };
    let size = if group == COLUMNS { -1 } else { group as i64 };
    let settings = json!({"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "checkpoint_format": format});
    let expected = move |row: usize, column: usize| {
        let group = of_column[column];
        let code = f32::from(codes[row * COLUMNS + column]) - f32::from(zeros[row * groups + group]);
        floats[group * ROWS + row] * code
    };
    (draft(settings, tensors), expected)
}

/// A permutation of columns.
fn shuffled() -> Vec<usize> {
    (0..COLUMNS).map(|column| column * 37 % COLUMNS).collect()
}

#[test]
fn gptq_is_read_in_every_width_and_grouping() {
    for (bits, group, v2, symmetric, text) in [
        (4, 32, false, true, "u4-8/32 f16"),
        (4, 128, true, false, "u4/128 f16 - u8*scale"),
        (4, 256, false, true, "u4-8/128 f16"),
        (8, 64, false, false, "u8/64 f16 - u8*scale"),
        (8, 128, true, true, "u8-128/128 f16"),
        (3, 32, false, false, "u3/32 f16 - u8*scale"),
        (5, 32, true, false, "u5/32 f16 - u8*scale"),
        (6, 64, false, true, "u6-32/64 f16"),
        (2, 64, true, false, "u2/64 f16 - u8*scale"),
        // Of the last group there are 64 columns.
        (4, 96, false, false, "u4/32 f16 - u8*scale"),
    ] {
        let (draft, expected) = gptq(bits, group, v2, symmetric, None);
        assert_eq!(check(&draft, expected), text);
    }
}

#[test]
fn gptq_names_the_format_of_zeros_by_two_keys() {
    for (old, new, v2) in [
        (None, Some("gptq_v2"), true),
        (None, Some("GPTQ_V2"), true),
        (None, None, false),
        (Some("gptq"), Some("gptq_v2"), false),
        (Some("gptq_v2"), Some("gptq"), true),
    ] {
        let (mut draft, expected) = gptq(4, 64, v2, false, None);
        let settings = &mut draft.config["quantization_config"];
        settings["checkpoint_format"] = old.into();
        settings["format"] = new.into();
        assert_eq!(check(&draft, expected), "u4/64 f16 - u8*scale");
    }
}

#[test]
fn auto_round_stores_modules_as_its_packing_format_says() {
    let of = |mut draft: Draft, key: &str, format: Value| {
        draft.config["quantization_config"] =
            json!({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": false, key: format});
        draft
    };
    for (key, format, v2) in [
        ("packing_format", json!("auto_round:auto_gptq"), false),
        ("packing_format", json!("auto_round:auto_gptq:exllamav2"), false),
        ("packing_format", json!("auto_round:gptqmodel"), true),
        ("packing_format", json!("auto_round"), true),
        ("backend", json!("auto_round:gptq:exllamav2"), false),
        ("packing_format", Value::Null, false),
    ] {
        let (draft, expected) = gptq(4, 32, v2, false, None);
        assert_eq!(check(&of(draft, key, format), expected), "u4/32 f16 - u8*scale");
    }
    let (draft, expected) = awq(32, true);
    let draft = of(draft, "packing_format", json!("auto_round:auto_awq"));
    assert_eq!(check(&draft, expected), "u4/32 f16 - u8*scale");
    let error = of(draft, "packing_format", json!("auto_round:llm_compressor")).write().refusal();
    let field = Some("quantization_config.packing_format");
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, field));
}

#[test]
fn gptq_columns_are_sorted_by_their_groups() {
    let identity: Vec<_> = (0..COLUMNS).collect();
    let (draft, expected) = gptq(4, 32, false, true, Some(&identity));
    assert_eq!(check(&draft, expected), "u4-8/32 f16");
    for (bits, group) in [(4, 32), (4, 96), (8, 128), (3, 64)] {
        let (draft, expected) = gptq(bits, group, false, false, Some(&shuffled()));
        assert!(check(&draft, expected).ends_with("f16 - u8*scale ordered"));
    }
}

#[test]
fn gptq_leaves_other_modules_dense() {
    let (draft, _) = gptq(4, 32, false, true, None);
    let decoder = draft.decoder().unwrap();
    assert_eq!(decoder.weights().filter(|weight| weight.packed.is_some()).count(), 1);
    assert_eq!(decoder.element_type.to_string(), "BF16", "as torch_dtype says");
}

fn awq(group: usize, with_zeros: bool) -> (Draft, impl Fn(usize, usize) -> f32) {
    const PLACES: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let groups = COLUMNS / group;
    // By column, then by row.
    let codes = numbers(COLUMNS * ROWS, 16, 3);
    let zeros = numbers(groups * ROWS, 16, 4);
    let (floats, halves) = scales(groups * ROWS);
    let interleaved = |codes: &[u8]| {
        let words = codes.chunks_exact(8).flat_map(|codes| PLACES.map(|place| codes[place]));
        streams(&words.collect::<Vec<_>>(), ROWS, 4)
    };
    let mut tensors = vec![
        ("qweight", Dtype::I32, vec![COLUMNS, ROWS / 8], interleaved(&codes)),
        ("scales", Dtype::F16, vec![groups, ROWS], halves),
    ];
    if with_zeros {
        tensors.push(("qzeros", Dtype::I32, vec![groups, ROWS / 8], interleaved(&zeros)));
    }
    let settings = json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": "GEMM", "zero_point": with_zeros});
    let expected = move |row: usize, column: usize| {
        let zero = if with_zeros { zeros[column / group * ROWS + row] } else { 8 };
        floats[column / group * ROWS + row] * (f32::from(codes[column * ROWS + row]) - f32::from(zero))
    };
    (draft(settings, tensors), expected)
}

#[test]
fn awq_is_read_with_and_without_zeros() {
    for (group, with_zeros, text) in
        [(32, true, "u4/32 f16 - u8*scale"), (128, true, "u4/128 f16 - u8*scale"), (64, false, "u4-8/64 f16")]
    {
        let (draft, expected) = awq(group, with_zeros);
        assert_eq!(check(&draft, expected), text);
    }
}

fn compressed(tensors: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)>, weights: Value) -> Draft {
    let groups = json!({"group_0": {"targets": ["Linear", "re:.*down.*"], "weights": weights}});
    draft(
        json!({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups, "ignore": ["lm_head"]}),
        tensors,
    )
}

#[test]
fn packed_integers_of_compressed_tensors_are_read() {
    for (bits, group, zeros_packed, ordered, text) in [
        (4, 32, None, false, "u4-8/32 f16"),
        (8, COLUMNS, None, false, "u8-128/128 f16"),
        (4, 64, Some(true), false, "u4/64 f16 - u8*scale"),
        (8, 128, Some(false), false, "u8/128 f16 - u8*scale"),
        (4, 32, Some(true), true, "u4/32 f16 - u8*scale ordered"),
        (4, 128, None, true, "u4-8/128 f16 ordered"),
        (3, 32, Some(true), false, "u3/32 f16 - u8*scale"),
        (5, 64, Some(true), true, "u5/64 f16 - u8*scale ordered"),
        (6, 128, None, false, "u6-32/128 f16"),
    ] {
        let (limit, groups) = (1u32 << bits, COLUMNS / group);
        let codes = numbers(ROWS * COLUMNS, limit, 5);
        let zeros = numbers(ROWS * groups, limit, 6);
        let (floats, halves) = scales(ROWS * groups);
        let of_column: Vec<_> = (0..COLUMNS)
            .map(|column| if ordered { shuffled()[column] / group } else { column / group })
            .collect();
        let mut tensors = vec![
            ("weight_packed", Dtype::I32, vec![ROWS, COLUMNS * bits / 32], streams(&codes, COLUMNS, bits)),
            ("weight_scale", Dtype::F16, vec![ROWS, groups], halves),
            (
                "weight_shape",
                Dtype::I64,
                vec![2],
                [ROWS as i64, COLUMNS as i64].map(i64::to_le_bytes).concat(),
            ),
        ];
        match zeros_packed {
            Some(true) => {
                let down = streams(&transposed(&zeros, groups, 1), ROWS, bits);
                tensors.push((
                    "weight_zero_point",
                    Dtype::I32,
                    vec![ROWS * bits / 32, groups],
                    transposed(&down, ROWS * bits / 32, 4),
                ));
            }
            Some(false) => {
                let signed = zeros.iter().map(|zero| zero.wrapping_sub((limit / 2) as u8)).collect();
                tensors.push(("weight_zero_point", Dtype::I8, vec![ROWS, groups], signed));
            }
            None => {}
        }
        let places = if ordered { ints(of_column.iter().copied()) } else { vec![0xff; COLUMNS * 4] };
        tensors.push(("weight_g_idx", Dtype::I32, vec![COLUMNS], places));
        let expected = |row: usize, column: usize| {
            let at = row * groups + of_column[column];
            let zero = if zeros_packed.is_some() { f32::from(zeros[at]) } else { (limit / 2) as f32 };
            floats[at] * (f32::from(codes[row * COLUMNS + column]) - zero)
        };
        assert_eq!(
            check(&compressed(tensors, json!({"num_bits": bits, "group_size": group})), expected),
            text
        );
    }
}

#[test]
fn integers_in_bytes_have_scales_for_rows_or_all() {
    let codes = numbers(ROWS * COLUMNS, 256, 8);
    let (floats, halves) = scales(ROWS);
    let code = |row: usize, column: usize| f32::from(codes[row * COLUMNS + column].cast_signed());
    let weight = ("weight", Dtype::I8, vec![ROWS, COLUMNS], codes.clone());
    let of_rows = ("weight_scale", Dtype::F16, vec![ROWS, 1], halves.clone());
    let draft = compressed(vec![weight.clone(), of_rows.clone()], json!({"strategy": "channel"}));
    assert_eq!(check(&draft, |row, column| floats[row] * code(row, column)), "u8-128/128 f16");
    let of_all = ("weight_scale", Dtype::F16, vec![1], halves[..2].to_vec());
    let draft = compressed(vec![weight.clone(), of_all], json!({"strategy": "tensor"}));
    assert_eq!(check(&draft, |row, column| floats[0] * code(row, column)), "u8-128/128 f16");
    let zeros = numbers(ROWS, 256, 9);
    let draft = compressed(
        vec![weight, of_rows, ("weight_zero_point", Dtype::I8, vec![ROWS, 1], zeros.clone())],
        json!({"strategy": "channel", "symmetric": false}),
    );
    let expected =
        |row: usize, column: usize| floats[row] * (code(row, column) - f32::from(zeros[row].cast_signed()));
    assert_eq!(check(&draft, expected), "u8/128 f16 - u8*scale");
}

/// A float of 4 exponent and 3 fraction bits.
#[test]
fn a_refused_packing_names_the_module() {
    let mut draft = Draft::llama().set("quantization_config", json!({"quant_method": "fp8"}));
    draft = draft.set("intermediate_size", json!(13));
    for (name, dtype, shape) in [
        ("gate_proj.weight", Dtype::BF16, [13, 8]),
        ("up_proj.weight", Dtype::BF16, [13, 8]),
        ("down_proj.weight", Dtype::F8_E4M3, [8, 13]),
        ("down_proj.weight_scale", Dtype::F32, [8, 1]),
    ] {
        draft.put(&format!("model.layers.0.mlp.{name}"), dtype, &shape);
    }
    let error = draft.decoder().unwrap_err();
    let tensor = Some("model.layers.0.mlp.down_proj");
    assert_eq!((error.kind(), error.context("tensor")), (ErrorKind::Unsupported, tensor));
}

#[test]
fn experts_are_stacked_and_ordered_ones_refused() {
    let packed = |ordered: bool| {
        let mut draft = Draft::fixture("mixtral")
            .set("quantization_config", json!({"quant_method": "gptq", "sym": false}));
        let names: Vec<_> =
            draft.tensors.keys().filter(|name| name.ends_with(".w1.weight")).cloned().collect();
        for (seed, name) in names.into_iter().enumerate() {
            let module = name.strip_suffix(".weight").unwrap();
            let [rows, columns] = draft.tensors.remove(&name).unwrap().1[..] else { panic!("{name}") };
            let bytes = |count: usize| numbers(count, 256, seed as u32);
            let group = |column: usize| if ordered { column % 2 } else { column / (columns / 2) };
            for (suffix, dtype, shape, bytes) in [
                ("qweight", Dtype::I32, vec![columns / 8, rows], bytes(columns * rows / 2)),
                ("qzeros", Dtype::I32, vec![2, rows / 8], bytes(rows)),
                ("scales", Dtype::F16, vec![2, rows], scales(2 * rows).1),
                ("g_idx", Dtype::I32, vec![columns], ints((0..columns).map(group))),
            ] {
                draft.tensors.insert(format!("{module}.{suffix}"), (dtype, shape, bytes));
            }
        }
        draft
    };
    let written = packed(false).write();
    let checkpoint = written.open().unwrap();
    let decoder = checkpoint.decoder().unwrap_or_else(|error| panic!("{}", chain(&error)));
    let stack = decoder.weights().find(|weight| weight.packed.is_some()).unwrap();
    let all = values(&checkpoint, stack).unwrap();
    let (experts, each) = (stack.shape[0], all.len() / stack.shape[0]);
    assert!(experts > 1 && stack.stack.len() + 1 == experts, "{stack}");
    // Each is what it is by itself.
    for (index, expert) in all.chunks_exact(each).enumerate() {
        let module = stack.tensor.replace("experts.0", &format!("experts.{index}"));
        let codes = checkpoint.tensor(&module).unwrap().bytes;
        let zeros = checkpoint.tensor(&module.replace("qweight", "qzeros")).unwrap().bytes;
        let scale = checkpoint.tensor(&module.replace("qweight", "scales")).unwrap().bytes;
        let scale = half::f16::from_le_bytes([scale[0], scale[1]]).to_f32();
        let (code, zero) = (f32::from(codes[0] & 15), f32::from(((zeros[0] & 15) + 1) & 15));
        assert!((expert[0] - scale * (code - zero)).abs() < 1e-6, "{module}");
    }
    let error = packed(true).write().refusal();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(chain(&error).contains("static groups"), "{}", chain(&error));
}
