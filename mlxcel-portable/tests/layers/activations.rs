//! Activations against their formulas in double precision.

use mlxcel_graph::layers::activate;
use mlxcel_models::Activation;
use mlxcel_portable::eval::{Input, Program, Tensor};
use mlxcel_stablehlo::{ElementType, Module, TensorType};

fn activated(activation: Activation, values: &[f32]) -> Vec<f32> {
    let ty = TensorType::new(ElementType::F32, [values.len()]);
    let module = Module::of_function("test", "main", |b| {
        let x = b.argument("x", ty.clone())?;
        Ok(vec![activate(b, activation, x)?])
    })
    .unwrap();
    let program = Program::plan(&module, "main").unwrap();
    let x = Tensor::from_slice([values.len()], values).unwrap();
    program.run(vec![Input::Owned(x)]).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
}

/// The error function by Simpson's rule over its integral.
fn erf(x: f64) -> f64 {
    let steps = 2000;
    let width = x / f64::from(steps);
    let term = |i: i32| {
        let weight = if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
        weight * (-(f64::from(i) * width).powi(2)).exp()
    };
    (0..=steps).map(term).sum::<f64>() * width / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn activations_match_their_formulas() {
    let values: Vec<f32> = (-60..=60).map(|i| i as f32 / 10.0).collect();
    type Formula = fn(f64) -> f64;
    let formulas: [(Activation, Formula); 4] = [
        (Activation::Silu, |x| x / (1.0 + (-x).exp())),
        (Activation::Relu, |x| x.max(0.0)),
        (Activation::Gelu, |x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))),
        (Activation::GeluTanh, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
    ];
    for (activation, formula) in formulas {
        for (value, result) in values.iter().zip(activated(activation, &values)) {
            let wanted = formula(f64::from(*value));
            assert!(
                (f64::from(result) - wanted).abs() < 2e-6,
                "{activation:?} of {value}: {result}, not {wanted}"
            );
        }
    }
}
