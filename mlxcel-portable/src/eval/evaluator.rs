//! Running kernels: registers of lanes, and the ranges that are computed with them.

use half::{bf16, f16};
use mlxcel_stablehlo::ElementType;

use super::elementwise::{
    binary_bool, binary_f32, binary_i64, compare, maximum, minimum, not_bool, select, unary_f32, unary_i64,
};
use super::kernel::{Bound, Code, Instruction};
use super::lanes::{
    BLOCK, Class, Scalar, copy_elements, load_bool, load_f32, load_i64, round_f32, store_f32, store_i64, wrap,
};

/// Register files by class.
#[derive(Debug, Default)]
struct Registers {
    f32: Vec<Vec<f32>>,
    i64: Vec<Vec<i64>>,
    bool: Vec<Vec<u8>>,
}

/// Computes ranges of a kernel's elements.
#[derive(Debug)]
pub(super) struct Evaluator<'a> {
    bound: &'a Bound<'a>,
    /// Made at the first block, for ranges that only copy need none.
    registers: Option<Registers>,
}

impl<'a> Evaluator<'a> {
    pub(super) fn new(bound: &'a Bound<'a>) -> Self {
        Self { bound, registers: None }
    }

    /// Computes `count <= BLOCK` elements from `start` on into the result register.
    fn block(&mut self, start: usize, count: usize) -> &Registers {
        let kernel = self.bound.kernel;
        let sources = &self.bound.sources;
        let registers = self.registers.get_or_insert_with(|| {
            // A kernel of few elements needs no whole blocks.
            let length = BLOCK.min(kernel.elements);
            let mut registers = Registers {
                f32: vec![vec![0.0; length]; kernel.registers[0]],
                i64: vec![vec![0; length]; kernel.registers[1]],
                bool: vec![vec![0; length]; kernel.registers[2]],
            };
            for instruction in &kernel.instructions[..kernel.uniform] {
                registers.run(instruction, sources, 0, length);
            }
            registers
        });
        for instruction in &kernel.instructions[kernel.uniform..] {
            registers.run(instruction, sources, start, count);
        }
        registers
    }

    /// The `f32` lanes of `count <= BLOCK` elements from `start` on.
    pub(super) fn f32s(&mut self, start: usize, count: usize) -> &[f32] {
        let index = self.bound.kernel.result.index;
        &self.block(start, count).f32[index][..count]
    }

    /// The integer lanes of `count <= BLOCK` elements from `start` on.
    pub(super) fn i64s(&mut self, start: usize, count: usize) -> &[i64] {
        let index = self.bound.kernel.result.index;
        &self.block(start, count).i64[index][..count]
    }

    /// The booleans of `count <= BLOCK` elements from `start` on.
    pub(super) fn bools(&mut self, start: usize, count: usize) -> &[u8] {
        let index = self.bound.kernel.result.index;
        &self.block(start, count).bool[index][..count]
    }

    /// Writes elements from `start` on as `f32`; the kernel's elements are floats.
    pub(super) fn write_f32(&mut self, start: usize, target: &mut [f32]) {
        if let Some((source, element, linear)) = self.bound.kernel.plain_load() {
            let bytes = self.bound.sources[source];
            linear.runs(start, target.len(), |position, first, stride, length| {
                load_f32(bytes, element, first, stride, &mut target[position..position + length]);
            });
            return;
        }
        for (i, target) in target.chunks_mut(BLOCK).enumerate() {
            target.copy_from_slice(self.f32s(start + i * BLOCK, target.len()));
        }
    }

    /// Writes elements from `start` on as `i64`; the kernel's elements are integers.
    pub(super) fn write_i64(&mut self, start: usize, target: &mut [i64]) {
        for (i, target) in target.chunks_mut(BLOCK).enumerate() {
            target.copy_from_slice(self.i64s(start + i * BLOCK, target.len()));
        }
    }

    /// Writes `count` elements from `start` on as dense bytes of the kernel's element type. Where elements
    /// share bytes, the target starts at a whole byte.
    pub(super) fn write(&mut self, start: usize, count: usize, target: &mut [u8]) {
        let kernel = self.bound.kernel;
        let element = kernel.element;
        if let Some((source, loaded, linear)) = kernel.plain_load()
            && loaded == element
            && element.bits() != 4
        {
            let size = element.bytes_for(1);
            copy_elements(self.bound.sources[source], size, linear, start, &mut target[..count * size]);
            return;
        }
        for (i, target) in target.chunks_mut(element.bytes_for(BLOCK)).enumerate() {
            let start = start + i * BLOCK;
            let count = (count - i * BLOCK).min(BLOCK);
            match Class::of(element) {
                Class::F32 => store_f32(self.f32s(start, count), element, target),
                Class::I64 => store_i64(self.i64s(start, count), element, target),
                Class::Bool => target.copy_from_slice(self.bools(start, count)),
            }
        }
    }
}

impl Registers {
    fn run(&mut self, instruction: &Instruction, sources: &[&[u8]], start: usize, count: usize) {
        let target = instruction.target.index;
        match instruction.target.class {
            Class::F32 => {
                let mut lanes = std::mem::take(&mut self.f32[target]);
                self.run_f32(instruction, sources, start, &mut lanes[..count]);
                self.f32[target] = lanes;
            }
            Class::I64 => {
                let mut lanes = std::mem::take(&mut self.i64[target]);
                self.run_i64(instruction, sources, start, &mut lanes[..count]);
                self.i64[target] = lanes;
            }
            Class::Bool => {
                let mut lanes = std::mem::take(&mut self.bool[target]);
                self.run_bool(instruction, sources, start, &mut lanes[..count]);
                self.bool[target] = lanes;
            }
        }
    }

    fn run_f32(&self, instruction: &Instruction, sources: &[&[u8]], start: usize, lanes: &mut [f32]) {
        let count = lanes.len();
        let argument = |i: usize| &self.f32[instruction.arguments[i].index][..count];
        let mut rounds = true;
        match &instruction.code {
            Code::Load { source, element, linear } => {
                rounds = false;
                linear.runs(start, count, |position, first, stride, length| {
                    let lanes = &mut lanes[position..position + length];
                    load_f32(sources[*source], *element, first, stride, lanes);
                });
            }
            Code::Splat(scalar) => {
                if let Scalar::F32(value) = scalar {
                    lanes.fill(*value);
                }
            }
            Code::Iota(linear) => {
                rounds = false;
                linear.runs(start, lanes.len(), |position, first, stride, length| {
                    for (i, lane) in lanes[position..position + length].iter_mut().enumerate() {
                        *lane = float_of((first + i * stride) as i64, instruction.element);
                    }
                });
            }
            Code::Unary(op) => unary_f32(*op, argument(0), lanes),
            Code::Binary(op) => binary_f32(*op, argument(0), argument(1), lanes),
            Code::Select => {
                select(&self.bool[instruction.arguments[0].index], argument(1), argument(2), lanes)
            }
            Code::Clamp => {
                clamp([0, 1, 2].map(argument), lanes, |low, value, high| minimum(maximum(value, low), high))
            }
            Code::Convert => {
                let from = instruction.arguments[0];
                match from.class {
                    Class::F32 => lanes.copy_from_slice(argument(0)),
                    Class::I64 => {
                        rounds = false;
                        convert(&self.i64[from.index], lanes, |value| float_of(value, instruction.element));
                    }
                    Class::Bool => convert(&self.bool[from.index], lanes, f32::from),
                }
            }
            Code::Compare(_) => debug_assert!(false, "comparisons make truth values"),
        }
        if rounds {
            round_f32(lanes, instruction.element);
        }
    }

    fn run_i64(&self, instruction: &Instruction, sources: &[&[u8]], start: usize, lanes: &mut [i64]) {
        let count = lanes.len();
        let argument = |i: usize| &self.i64[instruction.arguments[i].index][..count];
        let own = instruction.element;
        match &instruction.code {
            Code::Load { source, element, linear } => {
                linear.runs(start, count, |position, first, stride, length| {
                    let lanes = &mut lanes[position..position + length];
                    load_i64(sources[*source], *element, first, stride, lanes);
                });
            }
            Code::Splat(scalar) => {
                if let Scalar::I64(value) = scalar {
                    lanes.fill(*value);
                }
            }
            Code::Iota(linear) => linear.runs(start, lanes.len(), |position, first, stride, length| {
                for (i, lane) in lanes[position..position + length].iter_mut().enumerate() {
                    *lane = wrap((first + i * stride) as i64, own);
                }
            }),
            Code::Unary(op) => unary_i64(*op, own, argument(0), lanes),
            Code::Binary(op) => binary_i64(*op, own, argument(0), argument(1), lanes),
            Code::Select => {
                select(&self.bool[instruction.arguments[0].index], argument(1), argument(2), lanes)
            }
            Code::Clamp => clamp([0, 1, 2].map(argument), lanes, |low, value, high| value.max(low).min(high)),
            Code::Convert => {
                let from = instruction.arguments[0];
                match from.class {
                    Class::F32 => convert(&self.f32[from.index], lanes, |value| integer_of(value, own)),
                    Class::I64 => convert(&self.i64[from.index], lanes, |value| wrap(value, own)),
                    Class::Bool => convert(&self.bool[from.index], lanes, i64::from),
                }
            }
            Code::Compare(_) => debug_assert!(false, "comparisons make truth values"),
        }
    }

    fn run_bool(&self, instruction: &Instruction, sources: &[&[u8]], start: usize, lanes: &mut [u8]) {
        let count = lanes.len();
        let argument = |i: usize| &self.bool[instruction.arguments[i].index][..count];
        match &instruction.code {
            Code::Load { source, linear, .. } => {
                linear.runs(start, lanes.len(), |position, first, stride, length| {
                    load_bool(sources[*source], first, stride, &mut lanes[position..position + length]);
                });
            }
            Code::Splat(scalar) => {
                if let Scalar::Bool(value) = scalar {
                    lanes.fill(u8::from(*value));
                }
            }
            Code::Iota(_) | Code::Clamp => debug_assert!(false, "truth values are not ordered"),
            Code::Unary(_) => not_bool(argument(0), lanes),
            Code::Binary(op) => binary_bool(*op, argument(0), argument(1), lanes),
            Code::Compare(comparison) => {
                let (a, b) = (instruction.arguments[0], instruction.arguments[1]);
                match a.class {
                    Class::F32 => compare(*comparison, &self.f32[a.index], &self.f32[b.index], lanes),
                    Class::I64 => compare(*comparison, &self.i64[a.index], &self.i64[b.index], lanes),
                    Class::Bool => compare(*comparison, &self.bool[a.index], &self.bool[b.index], lanes),
                }
            }
            Code::Select => select(argument(0), argument(1), argument(2), lanes),
            Code::Convert => {
                let from = instruction.arguments[0];
                match from.class {
                    Class::F32 => convert(&self.f32[from.index], lanes, |value| u8::from(value != 0.0)),
                    Class::I64 => convert(&self.i64[from.index], lanes, |value| u8::from(value != 0)),
                    Class::Bool => lanes.copy_from_slice(argument(0)),
                }
            }
        }
    }
}

fn clamp<T: Copy>([low, values, high]: [&[T]; 3], lanes: &mut [T], of: impl Fn(T, T, T) -> T) {
    let bounds = low.iter().zip(high);
    for ((lane, &value), (&low, &high)) in lanes.iter_mut().zip(values).zip(bounds) {
        *lane = of(low, value, high);
    }
}

fn convert<F: Copy, T>(from: &[F], lanes: &mut [T], of: impl Fn(F) -> T) {
    for (lane, &value) in lanes.iter_mut().zip(from) {
        *lane = of(value);
    }
}

/// An integer as a float of `element`, rounded once.
fn float_of(value: i64, element: ElementType) -> f32 {
    match element {
        ElementType::BF16 => bf16::from_f32(rounded_to_odd(value)).to_f32(),
        ElementType::F16 => f16::from_f32(rounded_to_odd(value)).to_f32(),
        _ => value as f32,
    }
}

/// An integer as `f32`, with the last bit set where bits were lost: rounding that to a half type gives what
/// rounding the integer would have given (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded
/// sums").
fn rounded_to_odd(value: i64) -> f32 {
    let magnitude = value.unsigned_abs();
    let excess = (u64::BITS - magnitude.leading_zeros()).saturating_sub(f32::MANTISSA_DIGITS);
    let kept = magnitude >> excess;
    let lost = u64::from(kept << excess != magnitude);
    let rounded = (kept | lost) as f32 * (1u64 << excess) as f32;
    if value < 0 { -rounded } else { rounded }
}

/// A float as an integer of `element`: truncated, saturated at the ends of the range, and zero for NaN.
fn integer_of(value: f32, element: ElementType) -> i64 {
    match element {
        ElementType::I32 => i64::from(value as i32),
        ElementType::U32 => i64::from(value as u32),
        ElementType::I8 => i64::from(value as i8),
        ElementType::U8 => i64::from(value as u8),
        ElementType::I4 => i64::from((value as i8).clamp(-8, 7)),
        ElementType::U4 => i64::from((value as u8).min(15)),
        _ => value as i64,
    }
}
