//! How fast kernels are, beside one another in the same minutes: measurements, which are run by name, on
//! Linux. Rates are those of one thread.

mod recurrent;

use mlxcel_core::Precision;
use mlxcel_graph::cached::{CachedAttention, CachedAttentionOperands, cached_attention};
use mlxcel_graph::layers;
use mlxcel_graph::packed::{PackedWeight, packed_linear};
use mlxcel_iree_runtime::{Argument, Buffer, Constants, Device, DeviceOptions, Function, Program};
use mlxcel_models::Packing;
use mlxcel_stablehlo::{ElementType, Module, TensorType};

use super::packed::{Random, part_types};
use super::{arguments, lowered};
use crate::testing::{compiler, host};
use mlxcel_iree_compile::compiler::CompileOptions;

/// Plain weights, those of MLX and of llama.cpp's files, and what GPTQ, AWQ and float8 checkpoints become.
const PACKINGS: [&str; 14] = [
    "bf16",
    "f32",
    "u4/64 bf16 + bf16",
    "u8/64 bf16 + bf16",
    "u4/32 u8*f16/8 - u8*f16/8",
    "u6-32/16 i8*f16/16",
    "u8-128/32 f16",
    "iq4nl/32 f16",
    "u4-8/128 f16",
    "u4/128 f16 - u8*scale",
    "e2m1/32 e8m0",
    "u5/32 u8*f16/8 - u8*f16/8",
    "u3-4/16 i8*f16/16",
    "e4m3/128 f32",
];

/// The type of weights that are not packed.
fn plain(packing: &str) -> Option<ElementType> {
    [ElementType::BF16, ElementType::F32].into_iter().find(|plain| plain.mlir() == packing)
}

/// Rounds, each of all packings.
const ROUNDS: usize = 9;

/// Bytes of weights that one call reads: more than caches hold.
const BYTES: usize = 160 << 20;

/// More rows than this read weights once for so much arithmetic that where they lie makes no difference.
const MANY: usize = 32;

/// A program over several weights of one shape, and its arguments.
struct Running {
    function: Function,
    arguments: Vec<(TensorType, Buffer)>,
    bytes: usize,
    products: usize,
    seconds: Vec<f64>,
}

impl Running {
    fn new(
        device: &Device,
        packing: &str,
        [rows, outputs, inputs]: [usize; 3],
        precision: Precision,
    ) -> Self {
        let plain = plain(packing);
        let packing: Option<Packing> = plain.is_none().then(|| packing.parse().unwrap());
        let parts: Vec<TensorType> = match &packing {
            None => vec![TensorType::new(plain.unwrap(), [outputs, inputs])],
            Some(packing) => part_types(packing, outputs, inputs),
        };
        let weight: usize = parts.iter().map(TensorType::bytes).sum();
        let count = if rows > MANY { 4 } else { BYTES / weight };
        let x = plain.unwrap_or(ElementType::F32);
        let mut types = vec![TensorType::new(x, [rows, inputs])];
        types.extend((0..count).flat_map(|_| parts.clone()));
        let module = Module::of_function("speed", "main", |b| {
            let values = arguments(b, "x", &types)?;
            let (x, weights) = (values[0], values[1..].chunks(parts.len()));
            weights
                .map(|parts| match packing {
                    None => layers::linear(b, x, parts[0], None, ElementType::F32),
                    Some(packing) => {
                        let weight = PackedWeight { packing, parts: parts.to_vec() };
                        packed_linear(b, x, &weight, None, ElementType::F32)
                    }
                })
                .collect()
        })
        .unwrap();
        let function = compiled(&module, device, precision);
        let mut random = Random(5);
        // Floats of usual sizes, of whatever type.
        let float = |place: usize| if place % 2 == 1 { 0x2c } else { 0 };
        let arguments = uploaded(device, types, |ty| match ty.element {
            ElementType::U32 => (0..ty.bytes()).map(|_| random.word() as u8 & 0xef).collect(),
            ElementType::U8 | ElementType::I8 => vec![0x70; ty.bytes()],
            _ => (0..ty.bytes()).map(float).collect(),
        });
        let bytes = arguments[1..].iter().map(|(ty, _)| ty.bytes()).sum();
        Self { function, arguments, bytes, products: count * rows * outputs * inputs, seconds: Vec::new() }
    }

    /// Runs it once and notes what its threads spent, which others that load the machine disturb less than
    /// the time that passes.
    fn run(&mut self) {
        let arguments: Vec<_> =
            self.arguments.iter().map(|(ty, buffer)| Argument::new(buffer, &ty.shape, ty.element)).collect();
        let start = spent();
        self.function.invoke(&Constants::default(), &arguments).unwrap();
        self.seconds.push(spent() - start);
    }

    /// The rates at which weights or caches were read and numbers multiplied, in the best run and in the
    /// median one.
    fn rates(&mut self) -> [String; 2] {
        self.seconds.sort_by(f64::total_cmp);
        [self.seconds[0], self.seconds[self.seconds.len() / 2]].map(|seconds| {
            let [read, products] = [self.bytes, self.products].map(|count| count as f64 / seconds / 1e9);
            format!("{read:6.1} GB/s {products:7.1} GMAC/s")
        })
    }
}

/// Arguments of these types on the device.
fn uploaded(
    device: &Device,
    types: impl IntoIterator<Item = TensorType>,
    mut bytes: impl FnMut(&TensorType) -> Vec<u8>,
) -> Vec<(TensorType, Buffer)> {
    let upload = |ty: TensorType| {
        let buffer = device.upload(&bytes(&ty)).unwrap();
        (ty, buffer)
    };
    types.into_iter().map(upload).collect()
}

/// The seconds that the threads of this process have run for.
fn spent() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let ran = |thread: std::io::Result<std::fs::DirEntry>| {
        let told = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        told.split(' ').next()?.parse::<f64>().ok()
    };
    threads.filter_map(ran).sum::<f64>() / 1e9
}

fn compiled(module: &Module, device: &Device, precision: Precision) -> Function {
    let text = lowered(module, &host(), precision).text;
    let mut options = CompileOptions::new(host());
    // A folder for the code of each kernel.
    if let Ok(path) = std::env::var("KEEP") {
        options.flags.push(format!("--iree-hal-dump-executable-intermediates-to={path}"));
    }
    let artifact = compiler().compile(&text, &options, None).unwrap();
    Program::load(device, &artifact).unwrap().function("main").unwrap()
}

#[test]
#[ignore = "a measurement: cargo test -p mlxcel-iree --lib kernels_of_packed_weights_beside_one_another -- --ignored --nocapture"]
fn kernels_of_packed_weights_beside_one_another() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    let precision = match std::env::var("PRECISION").as_deref() {
        Ok("exact") => Precision::Exact,
        Ok("fast") => Precision::Fast,
        _ => Precision::Native,
    };
    // Some of them, and numbers of rows, with commas between.
    let only = std::env::var("PACKINGS").ok();
    let rows = std::env::var("ROWS").unwrap_or_else(|_| "1,128".to_owned());
    let rows = rows.split(',').map(|rows| rows.parse::<usize>().unwrap());
    for shape in rows.flat_map(|rows| [[rows, 8192, 2048], [rows, 2048, 8192]]) {
        let chosen =
            |packing: &&str| only.as_deref().is_none_or(|only| only.split(',').any(|one| one == *packing));
        let packings: Vec<&str> = PACKINGS.into_iter().filter(chosen).collect();
        let running = packings.iter().map(|packing| Running::new(&device, packing, shape, precision));
        let mut running: Vec<_> = running.collect();
        for _ in 0..ROUNDS {
            running.iter_mut().for_each(Running::run);
        }
        println!("{shape:?}, {precision:?}");
        for (packing, running) in packings.iter().zip(&mut running) {
            let [best, median] = running.rates();
            println!("{packing:28} best {best}, median {median}");
        }
    }
}

/// The calls of attention over caches of its own.
const CALLS: usize = 8;

/// `tokens` tokens of each of `rows`, with the heads of Llama-3.2-1B, over `position` positions.
fn attention(device: &Device, rows: usize, tokens: usize, position: usize) -> Running {
    let (heads, groups, width, pairs) = (32, 8, 64, 32);
    let length = (position + tokens).next_multiple_of(128);
    let all = vec![tokens; rows];
    let count: usize = rows * tokens;
    let floats = |shape: &[usize]| TensorType::new(ElementType::F32, shape.to_vec());
    let mut types = vec![
        floats(&[count, heads, width]),
        floats(&[count, groups, width]),
        floats(&[count, groups, width]),
        floats(&[count, pairs]),
        floats(&[count, pairs]),
        TensorType::new(ElementType::I32, [rows]),
    ];
    types.extend(vec![TensorType::new(ElementType::BF16, [1, 2, groups, length, width]); rows]);
    let module = Module::of_function("speed", "main", |b| {
        let mut results = Vec::new();
        for call in 0..CALLS {
            let values = arguments(b, &format!("x{call}"), &types)?;
            let [query, key, value, cos, sin, positions, ref caches @ ..] = values[..] else {
                unreachable!()
            };
            for (row, &cache) in caches.iter().enumerate() {
                b.alias(cache, results.len() + 1 + row)?;
            }
            let rotary = Some((cos, sin));
            let operands =
                CachedAttentionOperands { query, key, value, rotary, positions, sinks: None, caches };
            let (window, soft_cap) = (None, None);
            let what = CachedAttention {
                rows: &all,
                layer: 0,
                scale: 0.125,
                soft_cap,
                window,
                chunked: false,
                out: ElementType::F32,
            };
            let (mixed, caches) = cached_attention(b, &operands, &what)?;
            results.push(mixed);
            results.extend(caches);
        }
        Ok(results)
    })
    .unwrap();
    let function = compiled(&module, device, Precision::Native);
    let arguments = uploaded(device, vec![types; CALLS].concat(), |ty| match ty.element {
        ElementType::I32 => (position as i32).to_le_bytes().repeat(ty.elements()),
        _ => vec![0x3d; ty.bytes()],
    });
    let seen = rows * (position + 1) * groups * width;
    Running {
        function,
        arguments,
        bytes: CALLS * seen * 2 * 2,
        products: CALLS * tokens * seen * 2 * heads / groups,
        seconds: Vec::new(),
    }
}

#[test]
#[ignore = "a measurement: cargo test -p mlxcel-iree --lib attention_beside_the_bytes_of_its_caches -- --ignored --nocapture"]
fn attention_beside_the_bytes_of_its_caches() {
    let device = Device::open(&DeviceOptions::default()).unwrap();
    for (rows, tokens, position) in [(1, 1, 128), (1, 1, 4096), (8, 1, 128), (1, 16, 4096), (1, 128, 4096)] {
        let mut running = attention(&device, rows, tokens, position);
        for _ in 0..ROUNDS {
            running.run();
        }
        let [_, median] = running.rates();
        println!("{rows} rows of {tokens} tokens at {position}: {median} of a thread");
    }
}
