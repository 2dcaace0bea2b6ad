//! What is refused, by name.

use super::*;

#[test]
fn tensors_that_contradict_each_other_are_refused() {
    let gptq = || gptq(4, 32, false, false, Some(&shuffled())).0;
    let awq = || awq(32, true).0;
    let replaced = |draft: Draft, suffix: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>| {
        let mut draft = draft;
        draft.tensors.insert(format!("{DOWN}.{suffix}"), (dtype, shape.to_vec(), bytes));
        draft
    };
    let zeros = |count: usize| vec![0; count];
    let columns = |group: i32| (0..COLUMNS).flat_map(|_| group.to_le_bytes()).collect::<Vec<_>>();
    for (draft, suffix, words) in [
        (replaced(gptq(), "qweight", Dtype::I32, &[31, 128], zeros(31 * 512)), "qweight", "I32 [31, 128]"),
        (replaced(gptq(), "qweight", Dtype::I32, &[32, 64], zeros(32 * 256)), "qweight", "I32 [32, 64]"),
        (replaced(gptq(), "qweight", Dtype::F32, &[32, 128], zeros(32 * 512)), "qweight", "F32 [32, 128]"),
        (replaced(gptq(), "scales", Dtype::F16, &[0, 128], vec![]), "scales", "0 groups"),
        (replaced(gptq(), "scales", Dtype::F16, &[7, 128], zeros(7 * 256)), "scales", "7 groups"),
        (replaced(gptq(), "scales", Dtype::F16, &[8, 64], zeros(8 * 128)), "scales", "[8, 128]"),
        (replaced(gptq(), "scales", Dtype::F16, &[1024], zeros(2048)), "scales", "two dimensions"),
        (replaced(gptq(), "qzeros", Dtype::I32, &[8, 8], zeros(256)), "qzeros", "[8, 16]"),
        (replaced(gptq(), "g_idx", Dtype::I32, &[128], zeros(512)), "g_idx", "[256]"),
        (replaced(gptq(), "g_idx", Dtype::I32, &[256], columns(8)), "g_idx", "in group 8"),
        (replaced(gptq(), "g_idx", Dtype::I32, &[256], columns(-1)), "g_idx", "in group -1"),
        (replaced(awq(), "qweight", Dtype::I32, &[256, 8], zeros(256 * 32)), "qweight", "[256, 16]"),
        (replaced(awq(), "qzeros", Dtype::I32, &[4, 16], zeros(256)), "qzeros", "[8, 16]"),
        (replaced(awq(), "scales", Dtype::I32, &[8, 128], zeros(4096)), "scales", "[8, 128]"),
    ] {
        let error = draft.write().refusal();
        let text = chain(&error);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
        assert_eq!(error.context("tensor"), Some(&*format!("{DOWN}.{suffix}")), "{text}");
        assert!(text.contains(words), "{text}");
    }
    let uneven = replaced(gptq(), "g_idx", Dtype::I32, &[256], columns(0)).write().refusal();
    assert_eq!(uneven.kind(), ErrorKind::Unsupported, "{}", chain(&uneven));
    for missing in ["scales", "qzeros"] {
        let error = gptq().without(&format!("{DOWN}.{missing}")).write().refusal();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{}", chain(&error));
    }
    let scale = ("weight_scale_inv", Dtype::F32, vec![3, 3], zeros(36));
    let weight = ("weight", Dtype::F8_E4M3, vec![ROWS, COLUMNS], zeros(ROWS * COLUMNS));
    for settings in
        [json!({"quant_method": "fp8"}), json!({"quant_method": "fp8", "weight_block_size": [usize::MAX, 1]})]
    {
        let error = draft(settings, vec![weight.clone(), scale.clone()]).write().refusal();
        assert_eq!(
            (error.kind(), error.context("tensor")),
            (ErrorKind::Corrupt, Some(&*format!("{DOWN}.weight_scale_inv")))
        );
    }
}

#[test]
fn settings_that_mean_other_values_are_refused() {
    let (gptq, awq) = (gptq(4, 32, false, true, None).0, awq(32, true).0);
    let mut awq_by_format = awq.clone();
    awq_by_format.config["quantization_config"]["version"] = Value::Null;
    let compressed = compressed(
        vec![("weight", Dtype::BF16, vec![ROWS, COLUMNS], vec![0; 2 * ROWS * COLUMNS])],
        json!({}),
    );
    for (draft, key, value, kind) in [
        (&gptq, "checkpoint_format", json!("marlin"), ErrorKind::Unsupported),
        (&gptq, "group_size", json!(-2), ErrorKind::Corrupt),
        (&gptq, "group_size", json!(0), ErrorKind::Corrupt),
        (&gptq, "sym", json!(3), ErrorKind::Corrupt),
        (&awq, "version", json!("gemv"), ErrorKind::Unsupported),
        (&awq_by_format, "format", json!("gemv_fast"), ErrorKind::Unsupported),
        (&awq, "bits", json!(3), ErrorKind::Unsupported),
        (&compressed, "format", json!("marlin-24"), ErrorKind::Unsupported),
        (&compressed, "sparsity_config", json!({"format": "sparse-24-bitmask"}), ErrorKind::Unsupported),
        (&compressed, "transform_config", json!({"config_groups": {"u": {}}}), ErrorKind::Unsupported),
    ] {
        let mut draft = draft.clone();
        draft.config["quantization_config"][key] = value;
        let error = draft.write().refusal();
        assert_eq!(error.kind(), kind, "{}", chain(&error));
        assert!(error.context("field").unwrap().starts_with(&format!("quantization_config.{key}")));
    }
    compressed.decoder().unwrap();
}
