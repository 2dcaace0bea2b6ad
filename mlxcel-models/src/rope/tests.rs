use mlxcel_core::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::*;
use crate::config::Config;

fn read<T>(config: &Value, read: impl FnOnce(RopeSettings<'_>) -> T, head_dim: usize) -> T {
    let config = Config::parse("config.json".to_owned(), config.to_string().as_bytes()).unwrap();
    read(RopeSettings::new(config.fields(), head_dim, 1024))
}

fn rope(config: Value, head_dim: usize) -> Result<Rope> {
    read(&config, |settings| settings.read(), head_dim)
}

fn assert_close(actual: &[f32], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(actual) - expected).abs() / expected;
        assert!(error < 1e-6, "pair {index}: {actual:e} instead of {expected:e}");
    }
}

#[track_caller]
fn assert_field(error: &Error, kind: ErrorKind, field: &str) {
    assert_eq!((error.kind(), error.context("field")), (kind, Some(field)), "{error}");
}

/// The closed formulas, in double precision.
fn default_frequencies(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect()
}

#[test]
fn default_rope_is_a_geometric_series() {
    let rope = rope(json!({"rope_theta": 500000.0}), 64).unwrap();
    assert_eq!((rope.rotary_dim, rope.attention_factor), (64, 1.0));
    assert_close(&rope.inv_freq, &default_frequencies(500_000.0, 64));
}

#[test]
fn theta_defaults_to_ten_thousand() {
    assert_close(&rope(json!({}), 16).unwrap().inv_freq, &default_frequencies(10_000.0, 16));
    let null = json!({"rope_theta": null, "rope_scaling": null, "rope_parameters": null});
    assert_close(&rope(null, 16).unwrap().inv_freq, &default_frequencies(10_000.0, 16));
}

#[test]
fn linear_rope_divides_every_frequency() {
    let expected = default_frequencies(10_000.0, 16).iter().map(|x| x / 4.0).collect::<Vec<_>>();
    for scaling in [json!({"rope_type": "linear", "factor": 4.0}), json!({"type": "linear", "factor": 4})] {
        assert_close(&rope(json!({"rope_scaling": scaling}), 16).unwrap().inv_freq, &expected);
    }
}

/// transformers stretches the base only for sequences longer than `max_position_embeddings`, which engines
/// refuse.
#[test]
fn dynamic_rope_is_the_default_one_within_the_context() {
    let scaling = json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}});
    assert_eq!(rope(scaling, 16).unwrap(), rope(json!({}), 16).unwrap());
    let error = rope(json!({"rope_scaling": {"rope_type": "dynamic"}}), 16).unwrap_err();
    assert_eq!(error.context("field"), Some("rope_scaling.factor"));
}

#[test]
fn llama3_rope_agrees_with_its_formula_in_double_precision() {
    // Factor 4 over 256 positions, theta 10000, heads of 32: evaluated by hand from the definition of the
    // method.
    let expected = [
        1.000000000e+00, 5.623413252e-01, 3.162277660e-01, 1.778279410e-01, 1.000000000e-01, 3.221069575e-02,
        1.018591636e-02, 4.445698525e-03, 2.500000000e-03, 1.405853313e-03, 7.905694150e-04, 4.445698525e-04,
        2.500000000e-04, 1.405853313e-04, 7.905694150e-05, 4.445698525e-05,
    ];
    let parameters = json!({
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
    });
    assert_close(&rope(json!({"rope_parameters": parameters}), 32).unwrap().inv_freq, &expected);
}

#[test]
fn both_layouts_of_the_settings_mean_the_same() {
    let older = json!({
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192},
    });
    let newer = json!({
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    });
    let rope_of = |config| rope(config, 64).unwrap();
    assert_eq!(rope_of(older), rope_of(newer.clone()));
    // Llama 3.2 1B: one pair each of the high, the blended and the low frequencies.
    let frequencies = rope_of(newer).inv_freq;
    assert_close(
        &[frequencies[1], frequencies[15], frequencies[31]],
        &[6.636012377e-01, 1.290547928e-03, 9.418306725e-08],
    );
}

#[test]
fn settings_have_the_precedence_of_transformers() {
    let inner_theta = json!({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 10000.0}});
    assert_close(&rope(inner_theta, 16).unwrap().inv_freq, &default_frequencies(10_000.0, 16));
    let scaling_first = json!({"rope_scaling": {"type": "linear", "factor": 1.0},
        "rope_parameters": {"rope_type": "linear", "factor": 9.0}});
    assert_close(&rope(scaling_first, 16).unwrap().inv_freq, &default_frequencies(10_000.0, 16));
    // The original context of llama3 defaults to the context length, here 1024.
    let scaling = |original: Value| {
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
            "original_max_position_embeddings": original}})
    };
    assert_eq!(rope(scaling(Value::Null), 16).unwrap(), rope(scaling(json!(1024)), 16).unwrap());
    let mut outer = scaling(json!(64));
    outer["original_max_position_embeddings"] = json!(1024);
    assert_eq!(rope(outer, 16).unwrap(), rope(scaling(json!(1024)), 16).unwrap());
}

#[test]
fn cosines_and_sines_are_those_of_the_single_precision_angle() {
    let mut rope = rope(json!({}), 4).unwrap();
    let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
    rope.cos_sin(0, 1, &mut cos, &mut sin);
    assert_eq!((cos, sin), ([1.0, 1.0], [0.0, 0.0]));
    rope.cos_sin(100_003, 100_004, &mut cos, &mut sin);
    let angle = f64::from(100_003.0f32 * 0.01f32);
    assert_eq!(cos, [100_003.0f64.cos() as f32, angle.cos() as f32]);
    assert_eq!(sin, [100_003.0f64.sin() as f32, angle.sin() as f32]);
    rope.attention_factor = 0.5;
    rope.cos_sin(0, 1, &mut cos, &mut sin);
    assert_eq!(cos, [0.5, 0.5]);
}

#[test]
fn invalid_settings_are_rejected_by_name() {
    let cases = [
        (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0}}), "rope_scaling.factor"),
        (json!({"rope_scaling": {"type": "linear", "factor": "4"}}), "rope_scaling.factor"),
        (json!({"rope_scaling": {"type": 3}}), "rope_scaling.type"),
        (json!({"rope_scaling": []}), "rope_scaling"),
        (json!({"rope_theta": -1}), "rope_theta"),
        (json!({"rope_theta": 1e300}), "rope_theta"),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4,
                "high_freq_factor": 3}}),
            "rope_parameters.high_freq_factor",
        ),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 2, "high_freq_factor": 4}}),
            "rope_parameters.low_freq_factor",
        ),
    ];
    for (config, field) in cases {
        let error = rope(config, 16).unwrap_err();
        assert_field(&error, ErrorKind::Corrupt, field);
        assert_eq!(error.context("path"), Some("config.json"));
    }
}

#[test]
fn yarn_agrees_with_its_formula_in_double_precision() {
    // Factor 4 over 64 positions, theta 10⁶, heads of 32: evaluated from the paper, with whole pairs as
    // bounds and without.
    let rounded = [
        1.000000000e+00, 3.162723776e-01, 8.891397050e-02, 1.874735523e-02, 7.905694150e-03, 3.333803580e-03,
        1.405853313e-03, 5.928434264e-04, 2.500000000e-04, 1.054241259e-04, 4.445698525e-05, 1.874735523e-05,
        7.905694150e-06, 3.333803580e-06, 1.405853313e-06, 5.928434264e-07,
    ];
    let exact = [
        1.000000000e+00, 3.040356610e-01, 7.859360932e-02, 1.874735523e-02, 7.905694150e-03, 3.333803580e-03,
        1.405853313e-03, 5.928434264e-04, 2.500000000e-04, 1.054241259e-04, 4.445698525e-05, 1.874735523e-05,
        7.905694150e-06, 3.333803580e-06, 1.405853313e-06, 5.928434264e-07,
    ];
    let settings = |truncate: Value| {
        json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
            "original_max_position_embeddings": 64, "truncate": truncate}})
    };
    for truncate in [Value::Null, json!(true)] {
        let rope = rope(settings(truncate), 32).unwrap();
        assert_close(&rope.inv_freq, &rounded);
        assert_close(&[rope.attention_factor], &[1.138_629_436]);
    }
    assert_close(&rope(settings(json!(false)), 32).unwrap().inv_freq, &exact);
    // Settings of a layer type do not say it; transformers reads what stands beside the types.
    let by_type = |within: bool, beside: bool| {
        let config = json!({"rope_parameters": {"truncate": beside,
            "full_attention": settings(json!(within))["rope_parameters"]}});
        read(&config, |settings| settings.read_type("full_attention"), 32).unwrap().unwrap().inv_freq
    };
    assert_close(&by_type(false, true), &rounded);
    assert_close(&by_type(true, false), &exact);
}

#[test]
fn the_magnitude_of_yarn_follows_its_settings() {
    let factor = |extra: Value| {
        let mut scaling = json!({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 64});
        scaling.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        f64::from(rope(json!({"rope_scaling": scaling}), 16).unwrap().attention_factor)
    };
    let logarithm = 0.1 * 40f64.ln();
    for (extra, expected) in [
        (json!({}), logarithm + 1.0),
        (json!({"mscale": 0.707}), logarithm + 1.0),
        (json!({"mscale": 0.707, "mscale_all_dim": 0.0}), logarithm + 1.0),
        (json!({"mscale": 0.707, "mscale_all_dim": 1.0}), (0.707 * logarithm + 1.0) / (logarithm + 1.0)),
        (json!({"mscale": 1.0, "mscale_all_dim": 1.0}), 1.0),
        (json!({"mscale": 0.707, "mscale_all_dim": 1.0, "attention_factor": 1.5}), 1.5),
        (json!({"factor": null}), 0.1 * 16f64.ln() + 1.0),
        (json!({"factor": 0.5}), 1.0),
    ] {
        assert!((factor(extra.clone()) - expected).abs() < 1e-6, "{extra}");
    }
}

#[test]
fn longrope_has_short_and_long_frequencies() {
    let settings = json!({"original_max_position_embeddings": 64, "rope_scaling": {"type": "longrope",
        "short_factor": [1, 1.5], "long_factor": [2.0, 4.0]}});
    let rope = rope(settings.clone(), 4).unwrap();
    let divided = |factors: [f64; 2]| [1.0 / factors[0], 0.01 / factors[1]];
    assert_close(rope.frequencies(64), &divided([1.0, 1.5]));
    assert_close(rope.frequencies(65), &divided([2.0, 4.0]));
    // 1024 positions are 16 times 64.
    assert_close(&[rope.attention_factor], &[(1.0 + 16f64.ln() / 64f64.ln()).sqrt()]);
    let with = |key: &str, value: Value| {
        let mut settings = settings.clone();
        settings["rope_scaling"][key] = value;
        super::tests::rope(settings, 4)
    };
    assert_close(&[with("attention_factor", json!(1.25)).unwrap().attention_factor], &[1.25]);
    assert_close(&[with("factor", json!(1)).unwrap().attention_factor], &[1.0]);
    for factors in [json!([1.0]), json!([1.0, 2.0, 3.0]), json!([1.0, 0.0]), json!("1, 2"), Value::Null] {
        let error = with("long_factor", factors).unwrap_err();
        assert_field(&error, ErrorKind::Corrupt, "rope_scaling.long_factor");
    }
}

#[test]
fn phi3_uses_its_own_names_and_defaults() {
    let phi3 = |config: Value| {
        let kinds = Kinds::LongRope { original_context: 4096 };
        read(&config, |settings| RopeSettings { kinds, ..settings }.read(), 4)
    };
    for name in ["longrope", "su", "yarn"] {
        let scaling = json!({"type": name, "short_factor": [1, 1], "long_factor": [2, 2],
            "original_max_position_embeddings": 64});
        let long = phi3(json!({"rope_scaling": scaling})).unwrap().long.unwrap();
        assert_eq!(long.original_context, 4096, "the default of the class goes before what is inside");
        let outer = json!({"rope_scaling": scaling, "original_max_position_embeddings": 128});
        assert_eq!(phi3(outer).unwrap().long.unwrap().original_context, 128);
    }
    let error = phi3(json!({"rope_scaling": {"type": "linear", "factor": 2}})).unwrap_err();
    assert_field(&error, ErrorKind::Unsupported, "rope_scaling.type");
}

#[test]
fn partial_rotation_follows_the_family() {
    let partial = |config: Value, head_dim| {
        let partial = Partial::Part { key: "rotary_pct", default: 0.25 };
        read(&config, |settings| RopeSettings { partial, ..settings }.read(), head_dim)
    };
    assert_close(&partial(json!({}), 16).unwrap().inv_freq, &default_frequencies(10_000.0, 4));
    assert_eq!(partial(json!({"rotary_pct": 1.0}), 16).unwrap().rotary_dim, 16);
    let both = json!({"rotary_pct": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}});
    assert_eq!(partial(both, 16).unwrap().rotary_dim, 8);
    // An odd number of elements is rounded up, and its last frequency is the next of the same series.
    let odd = partial(json!({"rotary_pct": 0.2}), 16).unwrap();
    assert_eq!((odd.rotary_dim, odd.inv_freq.len()), (4, 2));
    assert_close(&odd.inv_freq, &[1.0, 10_000f64.powf(-2.0 / 3.0)]);
    let even = |config: Value| {
        let partial = Partial::Even { key: "rotary_pct", default: 0.25 };
        read(&config, |settings| RopeSettings { partial, ..settings }.read(), 16)
    };
    assert_eq!(even(json!({})).unwrap(), partial(json!({}), 16).unwrap());
    let error = even(json!({"rotary_pct": 0.2})).unwrap_err();
    assert_field(&error, ErrorKind::Unsupported, "rotary_pct");
    let scaling = json!({"rope_type": "yarn", "factor": 2.0});
    let error = partial(json!({"rotary_pct": 0.2, "rope_scaling": scaling}), 16).unwrap_err();
    let field = Some("rope_scaling.rope_type");
    assert_eq!((error.kind(), error.context("field")), (ErrorKind::Unsupported, field));
    for (factor, head_dim) in [(0.01, 16), (1.5, 16), (1e30, 16), (-1.0, 16), (1.0, 15)] {
        let error = partial(json!({"rotary_pct": factor}), head_dim).unwrap_err();
        assert_field(&error, ErrorKind::Corrupt, "head_dim");
    }
}

/// Beside other settings, a null keeps transformers from assuming the family's factor; within them it is an error there.
#[test]
fn a_factor_that_is_null_rotates_complete_heads_or_is_refused() {
    let width = |partial, config: Value| {
        read(&config, |settings| RopeSettings { partial, ..settings }.read(), 16).map(|rope| rope.rotary_dim)
    };
    let part = Partial::Part { key: "partial_rotary_factor", default: 0.5 };
    assert_eq!(width(part, json!({})).unwrap(), 8);
    assert_eq!(width(part, json!({"partial_rotary_factor": null})).unwrap(), 16);
    let within = |kind: &str| json!({"rope_parameters": {"rope_type": kind, "factor": 2.0, "partial_rotary_factor": null}});
    assert_eq!(width(Partial::Whole, within("default")).unwrap(), 16);
    let renamed = Partial::Part { key: "rotary_pct", default: 0.5 };
    let inner = Some("rope_parameters.partial_rotary_factor");
    for (partial, config, field) in [
        (part, within("default"), inner),
        (Partial::Whole, within("linear"), inner),
        (renamed, json!({"rotary_pct": null}), Some("rotary_pct")),
    ] {
        let error = width(partial, config).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, field));
    }
}

#[test]
fn layer_types_have_their_own_rotary_embeddings() {
    let ropes = |config: Value| {
        let read_ropes = |settings: RopeSettings<'_>| {
            RopeSettings { theta: 1e6, ..settings }.read_by_layer_type((Some("rope_local_base_freq"), 1e4))
        };
        let LayerRopes { full, sliding } = read(&config, read_ropes, 4).unwrap();
        [full.inv_freq[1], sliding.inv_freq[1]]
    };
    assert_eq!(ropes(json!({})), [0.001, 0.01]);
    let older = json!({"rope_theta": 1e4, "rope_local_base_freq": 1e2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    assert_eq!(ropes(older), [0.01 / 8.0, 0.1]);
    let newer = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e2}}});
    assert_eq!(ropes(newer.clone()), [0.01 / 8.0, 0.1]);
    let error = rope(newer, 4).unwrap_err();
    // Of a family that has one for all layers.
    assert_field(&error, ErrorKind::Unsupported, "rope_parameters.full_attention");
}

#[test]
fn frequencies_that_overflow_are_refused() {
    for config in [
        json!({"rope_scaling": {"type": "linear", "factor": 1e-38}, "rope_theta": 1e-37}),
        json!({"rope_scaling": {"type": "yarn", "factor": 2, "rope_theta": 1.0}}),
    ] {
        assert_eq!(rope(config, 16).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn proportional_frequencies_leave_the_last_pairs_as_they_are() {
    let settings =
        |part: f64| json!({"rope_type": "proportional", "partial_rotary_factor": part, "factor": 2.0});
    let all = rope(json!({"rope_theta": 100.0}), 16).unwrap().inv_freq;
    let half = rope(json!({"rope_theta": 100.0, "rope_scaling": settings(0.5)}), 16).unwrap();
    assert_eq!(half.rotary_dim, 16);
    let expected: Vec<f32> = all[..4].iter().map(|frequency| frequency / 2.0).chain([0.0; 4]).collect();
    assert_eq!(half.inv_freq, expected);
    let error = rope(json!({"rope_scaling": settings(1.5)}), 16).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn unsupported_types_are_rejected_by_name() {
    for name in ["su", "mrope", "invented"] {
        let error = rope(json!({"rope_scaling": {"rope_type": name, "factor": 2.0}}), 16).unwrap_err();
        assert_field(&error, ErrorKind::Unsupported, "rope_scaling.rope_type");
        assert!(error.message().contains(name), "{error}");
    }
    let error = rope(json!({"partial_rotary_factor": 0.5}), 16).unwrap_err();
    assert_field(&error, ErrorKind::Unsupported, "partial_rotary_factor");
    let inner = json!({"rope_parameters": {"partial_rotary_factor": 0.5}});
    let error = rope(inner, 16).unwrap_err();
    assert_eq!(error.context("field"), Some("rope_parameters.partial_rotary_factor"));
    assert!(rope(json!({"partial_rotary_factor": 1.0}), 16).is_ok());
}
