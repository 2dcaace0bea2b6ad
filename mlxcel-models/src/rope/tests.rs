use mlxcel_core::ErrorKind;
use serde_json::{Value, json};

use super::*;
use crate::config::Config;

fn rope(config: Value, head_dim: usize) -> Result<Rope> {
    let config = Config::parse("config.json".to_owned(), config.to_string().as_bytes()).unwrap();
    Rope::from_config(config.fields(), head_dim, 1024)
}

fn assert_close(actual: &[f32], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(actual) - expected).abs() / expected;
        assert!(error < 1e-6, "pair {index}: {actual:e} instead of {expected:e}");
    }
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

#[test]
fn llama3_rope_agrees_with_its_formula_in_double_precision() {
    // Factor 4 over 256 positions, theta 10000, heads of 32: evaluated by hand from the definition of the method.
    let expected = [
        1.000000000e+00,
        5.623413252e-01,
        3.162277660e-01,
        1.778279410e-01,
        1.000000000e-01,
        3.221069575e-02,
        1.018591636e-02,
        4.445698525e-03,
        2.500000000e-03,
        1.405853313e-03,
        7.905694150e-04,
        4.445698525e-04,
        2.500000000e-04,
        1.405853313e-04,
        7.905694150e-05,
        4.445698525e-05,
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
    rope.cos_sin(0, &mut cos, &mut sin);
    assert_eq!((cos, sin), ([1.0, 1.0], [0.0, 0.0]));
    rope.cos_sin(100_003, &mut cos, &mut sin);
    let angle = f64::from(100_003.0f32 * 0.01f32);
    assert_eq!(cos, [100_003.0f64.cos() as f32, angle.cos() as f32]);
    assert_eq!(sin, [100_003.0f64.sin() as f32, angle.sin() as f32]);
    rope.attention_factor = 0.5;
    rope.cos_sin(0, &mut cos, &mut sin);
    assert_eq!(cos, [0.5, 0.5]);
}

#[test]
fn settings_that_make_no_sense_are_named() {
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
                "high_freq_factor": 4}}),
            "rope_parameters.high_freq_factor",
        ),
        (
            json!({"rope_parameters": {"rope_type": "llama3", "factor": 2, "high_freq_factor": 4}}),
            "rope_parameters.low_freq_factor",
        ),
    ];
    for (config, field) in cases {
        let error = rope(config, 16).unwrap_err();
        assert_eq!((error.kind(), error.context("field")), (ErrorKind::Corrupt, Some(field)), "{error}");
        assert_eq!(error.context("path"), Some("config.json"));
    }
}

#[test]
fn types_that_are_not_implemented_are_refused_by_name() {
    for name in ["dynamic", "yarn", "longrope", "su", "invented"] {
        let error = rope(json!({"rope_scaling": {"rope_type": name, "factor": 2.0}}), 16).unwrap_err();
        assert_eq!(
            (error.kind(), error.context("field")),
            (ErrorKind::Unsupported, Some("rope_scaling.rope_type"))
        );
        assert!(error.message().contains(name), "{error}");
    }
    let error = rope(json!({"partial_rotary_factor": 0.5}), 16).unwrap_err();
    assert_eq!(
        (error.kind(), error.context("field")),
        (ErrorKind::Unsupported, Some("partial_rotary_factor"))
    );
    let inner = json!({"rope_parameters": {"partial_rotary_factor": 0.5}});
    let error = rope(inner, 16).unwrap_err();
    assert_eq!(error.context("field"), Some("rope_parameters.partial_rotary_factor"));
    assert!(rope(json!({"partial_rotary_factor": 1.0}), 16).is_ok());
}
