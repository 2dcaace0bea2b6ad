//! Floats of 4 and 8 bits.

use super::*;

fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let magnitude =
        if exponent == 0 { fraction * 2f32.powi(-6) } else { (1.0 + fraction) * 2f32.powi(exponent - 7) };
    if code & 128 == 0 { magnitude } else { -magnitude }
}

fn floats32(count: usize) -> (Vec<f32>, Vec<u8>) {
    let floats: Vec<_> = numbers(count, 255, 10).into_iter().map(|n| f32::from(n) / 3000.0 + 0.001).collect();
    let bytes = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
    (floats, bytes)
}

#[test]
fn floats_of_8_bits_have_scales_for_blocks_rows_or_all() {
    let codes: Vec<_> = numbers(ROWS * COLUMNS, 256, 11)
        .into_iter()
        .map(|code| if code & 127 == 127 { 0 } else { code })
        .collect();
    let value = |row: usize, column: usize| e4m3(codes[row * COLUMNS + column]);
    let weight = || ("weight", Dtype::F8_E4M3, vec![ROWS, COLUMNS], codes.clone());
    // Blocks of 96 do not divide rows and columns.
    for (size, text) in
        [(64, "e4m3/64 f32"), (128, "e4m3/128 f32"), (96, "e4m3/32 f32"), (512, "e4m3/128 f32")]
    {
        let (height, width) = (ROWS.div_ceil(size), COLUMNS.div_ceil(size));
        let (floats, bytes) = floats32(height * width);
        let settings =
            json!({"quant_method": "fp8", "weight_block_size": [size, size], "activation_scheme": "dynamic"});
        let draft =
            draft(settings, vec![weight(), ("weight_scale_inv", Dtype::F32, vec![height, width], bytes)]);
        let expected =
            |row: usize, column: usize| floats[row / size * width + column / size] * value(row, column);
        assert_eq!(check(&draft, expected), text);
    }
    let (floats, bytes) = floats32(ROWS);
    for (shape, per_row) in [(vec![ROWS, 1], true), (vec![ROWS], true), (vec![1], false), (vec![], false)] {
        let count = if per_row { ROWS } else { 1 };
        let scale = ("weight_scale", Dtype::F32, shape, bytes[..4 * count].to_vec());
        let expected = |row: usize, column: usize| floats[if per_row { row } else { 0 }] * value(row, column);
        for method in ["fp8", "fbgemm_fp8", "modelopt"] {
            let of_fp8 = draft(json!({"quant_method": method}), vec![weight(), scale.clone()]);
            assert_eq!(check(&of_fp8, expected), "e4m3/128 f32");
        }
        assert_eq!(
            check(&compressed(vec![weight(), scale], json!({"type": "float"})), expected),
            "e4m3/128 f32"
        );
    }
    let (floats, bytes) = floats32(2);
    let scale = ("weight_scale_inv", Dtype::F32, vec![1, 2], bytes.clone());
    let without_size = draft(json!({"quant_method": "fp8"}), vec![weight(), scale]);
    assert_eq!(
        check(&without_size, |row, column| floats[column / 128] * value(row, column)),
        "e4m3/128 f32",
        "blocks of 128 are the default"
    );
    let scale = ("weight_scale", Dtype::F32, vec![1, 2], bytes);
    let draft =
        compressed(vec![weight(), scale], json!({"strategy": "block", "block_structure": [128, 128]}));
    assert_eq!(check(&draft, |row, column| floats[column / 128] * value(row, column)), "e4m3/128 f32");
}

#[test]
fn powers_of_two_scale_floats_of_8_bits() {
    let codes = numbers(ROWS * COLUMNS, 120, 15);
    let exponents: Vec<_> =
        numbers(ROWS * COLUMNS / 32, 20, 16).into_iter().map(|exponent| exponent + 115).collect();
    let expected = |row: usize, column: usize| {
        let exponent = exponents[row * COLUMNS / 32 + column / 32];
        2f32.powi(i32::from(exponent) - 127) * e4m3(codes[row * COLUMNS + column])
    };
    for dtype in [Dtype::U8, Dtype::F8_E8M0] {
        let tensors = vec![
            ("weight", Dtype::F8_E4M3, vec![ROWS, COLUMNS], codes.clone()),
            ("weight_scale", dtype, vec![ROWS, COLUMNS / 32], exponents.clone()),
        ];
        let of_mxfp8 = draft(json!({"quant_method": "mxfp8"}), tensors.clone());
        for draft in [compressed(tensors, json!({"group_size": 32})), of_mxfp8] {
            assert_eq!(check(&draft, expected), "e4m3/32 e8m0");
        }
    }
}

#[test]
fn floats_of_4_bits_are_read() {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let codes = numbers(ROWS * COLUMNS, 16, 12);
    let value = |row: usize, column: usize| {
        let code = codes[row * COLUMNS + column];
        if code & 8 == 0 { E2M1[usize::from(code)] } else { -E2M1[usize::from(code & 7)] }
    };
    let packed = ("weight_packed", Dtype::U8, vec![ROWS, COLUMNS / 2], streams(&codes, COLUMNS, 4));
    let of_groups = numbers(ROWS * COLUMNS / 16, 126, 13);
    let tensors = vec![
        packed.clone(),
        ("weight_scale", Dtype::F8_E4M3, vec![ROWS, COLUMNS / 16], of_groups.clone()),
        ("weight_global_scale", Dtype::F32, vec![1], 12.5f32.to_le_bytes().to_vec()),
    ];
    let expected = |row: usize, column: usize| {
        e4m3(of_groups[row * COLUMNS / 16 + column / 16]) / 12.5 * value(row, column)
    };
    assert_eq!(check(&compressed(tensors.clone(), json!({})), expected), "e2m1/16 f32");
    let [mut codes, scales, mut factor] = <[_; 3]>::try_from(tensors).unwrap();
    (codes.0, factor.0) = ("weight", "weight_scale_2");
    factor.2 = vec![];
    factor.3 = 0.08f32.to_le_bytes().to_vec();
    let expected = |row: usize, column: usize| {
        e4m3(of_groups[row * COLUMNS / 16 + column / 16]) * 0.08 * value(row, column)
    };
    let settings = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    let mut tensors = vec![codes, scales, factor];
    assert_eq!(check(&draft(settings.clone(), tensors.clone()), expected), "e2m1/16 f32");
    tensors.push(("pre_quant_scale", Dtype::BF16, vec![COLUMNS], vec![0; 2 * COLUMNS]));
    let error = draft(settings, tensors).write().refusal();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", chain(&error));
    let exponents: Vec<_> =
        numbers(ROWS * COLUMNS / 32, 20, 14).into_iter().map(|exponent| exponent + 115).collect();
    let tensors = vec![packed, ("weight_scale", Dtype::U8, vec![ROWS, COLUMNS / 32], exponents.clone())];
    let expected = |row: usize, column: usize| {
        2f32.powi(i32::from(exponents[row * COLUMNS / 32 + column / 32]) - 127) * value(row, column)
    };
    assert_eq!(check(&compressed(tensors, json!({})), expected), "e2m1/32 e8m0");
}
