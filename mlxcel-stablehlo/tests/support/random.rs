//! Random well-typed programs that use every operation.

#![allow(clippy::unwrap_used, reason = "a test's own programs are well typed by construction")]

mod windows;

use mlxcel_stablehlo::{
    Attribute, BinaryOp, Builder, Comparison, DotDimensions, ElementType, Literal, Module, ModuleBuilder,
    Reduction, Result, TensorType, UnaryOp, Value,
};

/// What a program is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything that StableHLO allows.
    Whole,
    /// What IREE's lowering takes: no empty tensors, no integers of 4 bits, scatter of whole rows, no custom
    /// calls.
    Lowered,
    /// What runs everywhere: of [`Lowered`](Self::Lowered), with divisions of integers by neither zero nor
    /// minus one, at which processors trap.
    Run,
}

impl Extent {
    /// Whether it is all that StableHLO allows, and not what IREE's lowering takes.
    fn is_whole(self) -> bool {
        self == Self::Whole
    }
}

/// Decisions in a row; when they are used up, every decision is the first choice.
pub struct Choices<'c> {
    left: std::slice::Iter<'c, u32>,
    extent: Extent,
}

impl Choices<'_> {
    fn spent(&self) -> bool {
        self.left.as_slice().is_empty()
    }

    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { *self.left.next().unwrap_or(&0) as usize % bound }
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == one_in - 1
    }

    fn shape(&mut self, max_rank: usize) -> Vec<usize> {
        let rank = self.below(max_rank + 1);
        let empty = self.extent.is_whole();
        (0..rank).map(|_| if empty && self.chance(16) { 0 } else { 1 + self.below(4) }).collect()
    }

    fn element(&mut self) -> ElementType {
        match self.of(&ElementType::ALL) {
            ElementType::I4 | ElementType::U4 if !self.extent.is_whole() => ElementType::F32,
            element => element,
        }
    }

    /// A number from `least` (zero where tensors may be empty) to `most`.
    fn size(&mut self, most: usize) -> usize {
        let least = usize::from(!self.extent.is_whole()).min(most);
        least + self.below(most - least + 1)
    }

    fn ty(&mut self) -> TensorType {
        let element = self.element();
        TensorType::new(element, self.shape(3))
    }

    fn permutation(&mut self, rank: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..rank).collect();
        (0..rank).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }

    /// Ascending numbers below `bound`.
    fn subset(&mut self, bound: usize) -> Vec<usize> {
        (0..bound).filter(|_| self.chance(2)).collect()
    }
}

/// A module of one function that makes random operations until the decisions are used up, and returns all it
/// made.
pub fn program(decisions: &[u32], extent: Extent) -> Module {
    let mut choices = Choices { left: decisions.iter(), extent };
    let mut module = ModuleBuilder::new("random");
    module
        .private_function("callee", |b| {
            let x = b.argument("x", TensorType::new(ElementType::F32, [2]))?;
            Ok(vec![b.negate(x)?, x])
        })
        .unwrap();
    module
        .function("main", |b| {
            let mut pool = Vec::new();
            for i in 0..6 {
                pool.push(b.argument(format!("x.{i}"), choices.ty())?);
            }
            while !choices.spent() {
                let made = operation(b, &mut choices, &pool)?;
                // What grows too large would slow the compiler down, not find more.
                pool.extend(
                    made.into_iter().filter(|&value| b.ty(value).elements() <= 512 && b.ty(value).rank() < 5),
                );
            }
            Ok(pool)
        })
        .unwrap();
    module.finish()
}

const KINDS: usize = 36;

fn operation<'f>(b: &mut Builder<'f>, c: &mut Choices<'_>, pool: &[Value<'f>]) -> Result<Vec<Value<'f>>> {
    let x = c.of(pool);
    let (ty, shape, rank) = (b.ty(x).clone(), b.shape(x), b.ty(x).rank());
    let one = |value: Value<'f>| Ok(vec![value]);
    match c.below(KINDS) {
        0 => {
            let ty = c.ty();
            let limit = if ty.element == ElementType::I1 { 2 } else { 256 };
            let bytes: Vec<u8> = (0..ty.bytes()).map(|_| c.below(limit) as u8).collect();
            one(b.constant(Literal::from_bytes(ty, bytes).unwrap())?)
        }
        1 => {
            let ty = c.ty();
            one(b.splat(ty.element, 1.0, &ty.shape)?)
        }
        2 => {
            let (element, mut shape) = (c.element(), c.shape(2));
            let element = if element == ElementType::I1 { ElementType::I8 } else { element };
            shape.push(3);
            let dimension = c.below(shape.len());
            one(b.iota(TensorType::new(element, shape), dimension)?)
        }
        3 => {
            let mut to = vec![ty.elements()];
            to.insert(c.below(2), 1);
            one(b.reshape(x, &to)?)
        }
        4 => {
            let extra = c.below(2);
            let dimensions = &c.permutation(rank + extra)[..rank];
            let mut to = vec![2; rank + extra];
            for (i, &dimension) in dimensions.iter().enumerate() {
                to[dimension] = if shape[i] == 1 { 1 + c.below(3) } else { shape[i] };
            }
            one(b.broadcast_in_dim(x, &to, dimensions)?)
        }
        5 => {
            let permutation = c.permutation(rank);
            one(b.transpose(x, &permutation)?)
        }
        6 => one(b.convert(x, c.element())?),
        7 => bitcast(b, c, x),
        8 => {
            let mut bounds = [vec![], vec![], vec![]];
            for size in shape {
                let part = c.size(size);
                let start = c.below(size - part + 1);
                bounds[0].push(start);
                bounds[1].push(start + part);
                bounds[2].push(1 + c.below(3));
            }
            one(b.slice_strided(x, &bounds[0], &bounds[1], &bounds[2])?)
        }
        9 => {
            let (x, shape) = placed(b, c, x)?;
            let rank = shape.len();
            let (starts, sizes) = (starts(b, c, rank)?, part(c, &shape));
            one(b.dynamic_slice(x, &starts, &sizes)?)
        }
        10 => {
            let (x, shape) = placed(b, c, x)?;
            let rank = shape.len();
            let (starts, sizes) = (starts(b, c, rank)?, part(c, &shape));
            let update = of_type(b, c, pool, &TensorType::new(ty.element, sizes))?;
            one(b.dynamic_update_slice(x, update, &starts)?)
        }
        11 => {
            let (x, shape) = ranked(b, x)?;
            let dimension = c.below(shape.len());
            let mut other = b.ty(x).clone();
            other.shape[dimension] = c.size(4);
            let other = of_type(b, c, pool, &other)?;
            one(b.concatenate(&[x, other, x], dimension)?)
        }
        12 => {
            let value = of_type(b, c, pool, &TensorType::scalar(ty.element))?;
            let interior: Vec<usize> = shape.iter().map(|_| c.below(3)).collect();
            let low: Vec<i64> = shape.iter().map(|&size| c.below(4) as i64 - size.min(1) as i64).collect();
            let high: Vec<i64> = shape.iter().map(|_| c.below(3) as i64).collect();
            one(b.pad(x, value, &low, &high, &interior)?)
        }
        13 => windows::gather(b, c, x),
        14 => {
            let (rows, width) = (1 + c.below(4), c.size(4));
            let table = of_type(b, c, pool, &TensorType::new(ty.element, [rows, width]))?;
            let indices =
                TensorType::new(c.of(&[ElementType::I32, ElementType::I64, ElementType::U32]), c.shape(2));
            let indices = of_type(b, c, pool, &indices)?;
            one(b.take(table, indices)?)
        }
        15 => windows::scatter(b, c, pool, x),
        16..=18 => {
            let op = c.of(&UnaryOp::ALL);
            let fits = [ty.element, ElementType::F32, ElementType::BF16, ElementType::I32];
            let fitting = fits.into_iter().find(|&element| takes_unary(op, element)).unwrap();
            let x = b.convert(x, fitting)?;
            one(b.unary(op, x)?)
        }
        19..=22 => {
            let op = c.of(&BinaryOp::ALL);
            let fits = [ty.element, ElementType::F32, ElementType::I32];
            let fitting = fits.into_iter().find(|&element| takes_binary(op, element)).unwrap();
            let x = b.convert(x, fitting)?;
            let divides = matches!(op, BinaryOp::Divide | BinaryOp::Remainder) && !fitting.is_float();
            let y = match c.extent {
                Extent::Run if divides => b.splat(fitting, 3.0, &shape)?,
                _ => of_type(b, c, pool, &ty.with_element(fitting))?,
            };
            one(b.binary(op, x, y)?)
        }
        23 => {
            let y = of_type(b, c, pool, &ty)?;
            one(b.compare(x, y, c.of(&Comparison::ALL))?)
        }
        24 => {
            let condition = if c.chance(2) {
                ty.with_element(ElementType::I1)
            } else {
                TensorType::scalar(ElementType::I1)
            };
            let condition = of_type(b, c, pool, &condition)?;
            let y = of_type(b, c, pool, &ty)?;
            one(b.select(condition, x, y)?)
        }
        25 => {
            let x = numbers(b, x)?;
            let ty = b.ty(x).clone();
            let bound = if c.chance(2) { ty } else { TensorType::scalar(ty.element) };
            let (low, high) = (of_type(b, c, pool, &bound)?, of_type(b, c, pool, &bound)?);
            one(b.clamp(low, x, high)?)
        }
        26 => {
            let reductions =
                if ty.element == ElementType::I1 { &Reduction::ALL[4..] } else { &Reduction::ALL[..4] };
            let dimensions = c.subset(rank);
            one(b.reduce(x, c.of(reductions), &dimensions)?)
        }
        27 => {
            let x = numbers(b, x)?;
            let (x, mut shape) = ranked(b, x)?;
            let dimension = c.below(shape.len());
            if shape[dimension] == 0 {
                shape[dimension] = 2;
            }
            let x = of_type(b, c, pool, &TensorType::new(b.ty(x).element, shape))?;
            let (value, index) = b.argmax(x, dimension)?;
            Ok(vec![value, index])
        }
        28 => dot_general(b, c, pool, x),
        29 => loops(b, x),
        30 if c.extent.is_whole() => b.custom_call("test.call", &[x], vec![ty], &[], c.chance(2)),
        31 => b.composite("test.twice", &[x], &[("times".into(), Attribute::Int(2))], |b, args| {
            let zero = b.splat(b.ty(args[0]).element, 0.0, &b.shape(args[0]))?;
            Ok(vec![zero, args[0]])
        }),
        32 => {
            let x = of_type(b, c, pool, &TensorType::new(ElementType::F32, [2]))?;
            b.call("callee", &[x])
        }
        _ => helper(b, c, pool),
    }
}

/// A value of type `ty`: one that is there, or a new one.
fn of_type<'f>(
    b: &mut Builder<'f>,
    c: &mut Choices<'_>,
    pool: &[Value<'f>],
    ty: &TensorType,
) -> Result<Value<'f>> {
    let fitting: Vec<Value<'f>> = pool.iter().copied().filter(|&value| b.ty(value) == ty).collect();
    if fitting.is_empty() { b.splat(ty.element, 1.0, &ty.shape) } else { Ok(c.of(&fitting)) }
}

/// `x`, as numbers where it is of truth values.
fn numbers<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<Value<'f>> {
    if b.ty(x).element == ElementType::I1 { b.convert(x, ElementType::I8) } else { Ok(x) }
}

/// `x` with at least one dimension.
fn ranked<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<(Value<'f>, Vec<usize>)> {
    let x = if b.ty(x).rank() == 0 { b.reshape(x, &[1])? } else { x };
    Ok((x, b.shape(x)))
}

/// `x` as a dynamic slice takes it: IREE crashes on scalars.
fn placed<'f>(b: &mut Builder<'f>, c: &Choices<'_>, x: Value<'f>) -> Result<(Value<'f>, Vec<usize>)> {
    if !c.extent.is_whole() { ranked(b, x) } else { Ok((x, b.shape(x))) }
}

fn starts<'f>(b: &mut Builder<'f>, c: &mut Choices<'_>, rank: usize) -> Result<Vec<Value<'f>>> {
    let element = c.of(&[ElementType::I32, ElementType::I64, ElementType::U32]);
    (0..rank).map(|_| b.splat(element, c.below(3) as f64, &[])).collect()
}

fn part(c: &mut Choices<'_>, shape: &[usize]) -> Vec<usize> {
    shape.iter().map(|&size| c.size(size)).collect()
}

fn bitcast<'f>(b: &mut Builder<'f>, c: &mut Choices<'_>, x: Value<'f>) -> Result<Vec<Value<'f>>> {
    let x = numbers(b, x)?;
    let to = c.element();
    let to = if to == ElementType::I1 { ElementType::F16 } else { to };
    let (from_bits, to_bits) = (b.ty(x).element.bits(), to.bits());
    let x = if from_bits < to_bits {
        let mut shape = b.shape(x);
        shape.push(to_bits / from_bits);
        let dimensions: Vec<usize> = (0..shape.len() - 1).collect();
        b.broadcast_in_dim(x, &shape, &dimensions)?
    } else {
        x
    };
    Ok(vec![b.bitcast_convert(x, to)?])
}

fn dot_general<'f>(
    b: &mut Builder<'f>,
    c: &mut Choices<'_>,
    pool: &[Value<'f>],
    x: Value<'f>,
) -> Result<Vec<Value<'f>>> {
    let x = numbers(b, x)?;
    let (element, shape) = (b.ty(x).element, b.shape(x));
    let order = c.permutation(shape.len());
    let batch = c.below(shape.len() + 1);
    let contracting = c.below(shape.len() - batch + 1);
    let (lhs_batch, rest) = order.split_at(batch);
    let lhs_contracting = &rest[..contracting];
    let paired = batch + contracting;
    let places = c.permutation(paired + 1);
    let (rhs_batch, rhs_contracting) = (&places[..batch], &places[batch..paired]);
    let mut rhs = vec![3; paired + 1];
    for (&l, &r) in lhs_batch.iter().chain(lhs_contracting).zip(&places) {
        rhs[r] = shape[l];
    }
    let rhs = of_type(b, c, pool, &TensorType::new(element, rhs))?;
    let wider = if element.is_float() { ElementType::F32 } else { element };
    let result = if c.chance(2) { wider } else { element };
    let dimensions = DotDimensions {
        lhs_batch: lhs_batch.to_vec(),
        rhs_batch: rhs_batch.to_vec(),
        lhs_contracting: lhs_contracting.to_vec(),
        rhs_contracting: rhs_contracting.to_vec(),
    };
    Ok(vec![b.dot_general(x, rhs, dimensions, result)?])
}

fn loops<'f>(b: &mut Builder<'f>, x: Value<'f>) -> Result<Vec<Value<'f>>> {
    let zero = b.scalar(0i32)?;
    let four = b.scalar(4i32)?;
    b.while_loop(
        &[zero, x],
        |b, args| b.compare(args[0], four, Comparison::Less),
        |b, args| {
            let one = b.scalar(1i32)?;
            let next = b.add(args[0], one)?;
            let condition = b.compare(args[0], one, Comparison::Equal)?;
            Ok(vec![next, b.select(condition, args[1], x)?])
        },
    )
}

fn helper<'f>(b: &mut Builder<'f>, c: &mut Choices<'_>, pool: &[Value<'f>]) -> Result<Vec<Value<'f>>> {
    const FLOATS: [ElementType; 3] = [ElementType::F32, ElementType::BF16, ElementType::F16];
    let (element, other, out) = (c.of(&FLOATS), c.of(&FLOATS), c.of(&FLOATS));
    let make = |b: &mut Builder<'f>, element, shape: &[usize]| {
        of_type(
            b,
            &mut Choices { left: [].iter(), extent: Extent::Whole },
            pool,
            &TensorType::new(element, shape),
        )
    };
    Ok(vec![match c.below(3) {
        0 => {
            let (x, w) = (make(b, element, &[2, 3, 4])?, make(b, other, &[5, 4])?);
            let bias = if c.chance(2) { Some(make(b, other, &[5])?) } else { None };
            b.linear(x, w, bias, out)?
        }
        1 => {
            let x = make(b, element, &[2, 3, 4])?;
            b.softmax(x, c.below(3))?
        }
        _ => {
            let x = make(b, element, &[2, 4])?;
            b.log_softmax(x, c.below(2))?
        }
    }])
}

fn takes_unary(op: UnaryOp, element: ElementType) -> bool {
    mlxcel_stablehlo::infer::unary(op, &TensorType::scalar(element)).is_ok()
}

fn takes_binary(op: BinaryOp, element: ElementType) -> bool {
    let ty = TensorType::scalar(element);
    mlxcel_stablehlo::infer::binary(op, &ty, &ty).is_ok()
}
