//! Recurrences by their kernels and by the loops that these replace.

use std::time::Instant;

use mlxcel_core::Precision;
use mlxcel_graph::composites::{GATED_DELTA_RULE, SELECTIVE_STATE_SPACE};
use mlxcel_graph::layers::{self, RecurrentRows};
use mlxcel_iree_runtime::{Device, DeviceOptions};
use mlxcel_stablehlo::{Builder, ElementType, Module, TensorType, Value};

use super::{ROUNDS, Running, compiled, uploaded};

/// A layer with a recurrence, of the sizes of a published model, without its norms, its gate and its MLP.
#[derive(Clone, Copy, Debug)]
enum Layer {
    /// Qwen3-Next's gated delta rule.
    DeltaRule,
    /// Granite 4's state space.
    StateSpace,
    /// Jamba's selective scan.
    Scan,
}

impl Layer {
    /// The shapes of the state, of the inputs of the convolution, and of its gates.
    fn sizes(self) -> ([usize; 3], usize, usize) {
        match self {
            Self::DeltaRule => ([32, 128, 128], 2 * 16 * 128 + 32 * 128, 64),
            Self::StateSpace => ([64, 64, 128], 64 * 64 + 2 * 128, 64),
            Self::Scan => ([8192, 1, 16], 8192, 8192 + 2 * 16),
        }
    }

    /// Its program for a row of `tokens` tokens; only the recurrence unless it is `whole`.
    fn module(self, tokens: usize, whole: bool) -> Module {
        const HIDDEN: usize = 2048;
        let (state, inputs, gates) = self.sizes();
        let values = if let Self::DeltaRule = self { state[0] * state[2] } else { state[0] * state[1] };
        let float = |shape: &[usize]| TensorType::new(ElementType::F32, shape);
        let weight = |shape: &[usize]| TensorType::new(ElementType::BF16, shape);
        let rates = if let Self::Scan = self { vec![1, state[0], state[2]] } else { vec![1, state[0]] };
        Module::of_function("speed", "main", |b| {
            let rate = b.argument("rate", float(&rates))?;
            let counts = b.argument("counts", TensorType::new(ElementType::I32, [1]))?;
            let stored = b.argument("state", float(&[&[1], &state[..]].concat()))?;
            b.alias(stored, 0)?;
            let rows = RecurrentRows { rows: &[tokens], counts, layer: 0, states: &[stored] };
            if !whole {
                let parts = b.argument("parts", float(&[tokens, inputs]))?;
                let gates = b.argument("gates", float(&[tokens, gates]))?;
                let (mixed, states) = self.recur(b, [parts, gates, rate], &rows)?;
                return Ok(vec![states[0], mixed]);
            }
            let before = b.argument("before", float(&[1, inputs, 3]))?;
            b.alias(before, 1)?;
            let x = b.argument("x", float(&[tokens, HIDDEN]))?;
            let input = b.argument("input", weight(&[inputs, HIDDEN]))?;
            let gate = b.argument("gate", weight(&[gates, HIDDEN]))?;
            let output = b.argument("output", weight(&[HIDDEN, values]))?;
            let taps = b.argument("taps", float(&[inputs, 4]))?;
            let parts = layers::linear(b, x, input, None, ElementType::F32)?;
            let gates = layers::linear(b, x, gate, None, ElementType::F32)?;
            let own = RecurrentRows { states: &[before], ..rows };
            let (parts, before) = layers::causal_convolution(b, parts, taps, None, &own)?;
            let parts = b.logistic(parts)?;
            let (mixed, states) = self.recur(b, [parts, gates, rate], &rows)?;
            let mixed = b.reshape(mixed, &[tokens, values])?;
            let y = layers::linear(b, mixed, output, None, ElementType::F32)?;
            Ok(vec![states[0], before[0], y])
        })
        .unwrap()
    }

    fn recur<'f>(
        self,
        b: &mut Builder<'f>,
        [parts, gates, rate]: [Value<'f>; 3],
        rows: &RecurrentRows<'_, 'f>,
    ) -> mlxcel_stablehlo::Result<(Value<'f>, Vec<Value<'f>>)> {
        let (state, ..) = self.sizes();
        let tokens = rows.rows[0];
        let mut part = |x: Value<'f>, start: usize, shape: &[usize]| {
            let width: usize = shape.iter().product();
            let part = b.slice(x, &[0, start], &[tokens, start + width])?;
            b.reshape(part, &[&[tokens], shape].concat())
        };
        match self {
            Self::DeltaRule => {
                let (keys, [heads, key, value]) = (16 * 128, state);
                let query = part(parts, 0, &[16, key])?;
                let values = part(parts, 2 * keys, &[heads, value])?;
                let beta = part(gates, 0, &[heads])?;
                let decay = part(gates, heads, &[heads])?;
                let key = part(parts, keys, &[16, key])?;
                let rate = b.broadcast_in_dim(rate, &[tokens, heads], &[0, 1])?;
                let decay = b.multiply(decay, rate)?;
                layers::gated_delta_rule(b, [query, key, values, decay, beta], rows)
            }
            Self::StateSpace | Self::Scan => {
                let [heads, width, size] = state;
                let x = part(parts, 0, &[heads, width])?;
                let dt = part(gates, 0, &[heads])?;
                let (shared, start) =
                    if let Self::Scan = self { (gates, heads) } else { (parts, heads * width) };
                let input = part(shared, start, &[1, size])?;
                let output = part(shared, start + size, &[1, size])?;
                layers::selective_state_space(b, [x, dt, rate, input, output], rows)
            }
        }
    }

    /// The layer by its kernel, or by the loop in its place. All values are zero.
    fn running(self, device: &Device, (tokens, whole): (usize, bool), by_kernel: bool) -> Running {
        let mut module = self.module(tokens, whole);
        if !by_kernel {
            let names = [GATED_DELTA_RULE, SELECTIVE_STATE_SPACE];
            module = module.decompose_composites(|name| names.contains(&name)).unwrap();
        }
        let main = module.function("main").unwrap();
        let types = main.arguments.iter().map(|argument| main.value_type(argument.value).clone());
        let arguments = uploaded(device, types, |ty| match ty.element {
            ElementType::I32 => (tokens as i32).to_le_bytes().to_vec(),
            _ => vec![0; ty.bytes()],
        });
        let function = compiled(&module, device, Precision::Exact);
        Running { function, arguments, bytes: 0, products: 0, seconds: Vec::new() }
    }
}

#[test]
#[ignore = "a measurement: cargo test -p mlxcel-iree --lib layers_with_recurrences_beside_their_loops -- --ignored --nocapture"]
fn layers_with_recurrences_beside_their_loops() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    // Some of them, with commas between, and whether with what surrounds a recurrence.
    let only = std::env::var("LAYERS").ok();
    let parts = std::env::var("WHOLE").map_or(vec![false, true], |whole| vec![whole == "true"]);
    for layer in [Layer::DeltaRule, Layer::StateSpace, Layer::Scan] {
        if only.as_deref().is_some_and(|only| !only.contains(&format!("{layer:?}"))) {
            continue;
        }
        // A prompt of 512 in the chunks of a session, and 16 tokens of text.
        for (chunks, tokens, whole) in [(4, 128, false), (4, 128, true), (16, 1, false), (16, 1, true)] {
            // A scan of one token has no kernel.
            if !parts.contains(&whole) || tokens == 1 && matches!(layer, Layer::Scan) {
                continue;
            }
            let mut running =
                [true, false].map(|by_kernel| layer.running(&device, (tokens, whole), by_kernel));
            let mut elapsed = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                for (running, elapsed) in running.iter_mut().zip(&mut elapsed) {
                    let start = Instant::now();
                    (0..chunks).for_each(|_| running.run());
                    elapsed.push(start.elapsed().as_secs_f64() * 1e3);
                }
            }
            for (name, (running, elapsed)) in
                ["kernel", "loop"].into_iter().zip(running.iter_mut().zip(&mut elapsed))
            {
                elapsed.sort_by(f64::total_cmp);
                running.seconds.sort_by(f64::total_cmp);
                let spent = running.seconds[running.seconds.len() / 2] * chunks as f64 * 1e3;
                let part = if whole { "layer" } else { "recurrence" };
                println!(
                    "{layer:?}, {part:10} {:3} tokens, {name:6}: median {:.1} ms ({:.1} to {:.1}), {spent:.1} ms of threads",
                    chunks * tokens,
                    elapsed[ROUNDS / 2],
                    elapsed[0],
                    elapsed[ROUNDS - 1],
                );
            }
        }
    }
}
