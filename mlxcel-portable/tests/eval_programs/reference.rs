//! A second evaluator: one operation at a time, one element at a time, as the specification writes it down.

use half::{bf16, f16};
use mlxcel_portable::eval::Tensor;
use mlxcel_stablehlo::{
    BinaryOp, Block, Comparison, ElementType, Function, Literal, Module, Op, OpKind, Reduction,
    ScatterUpdate, TensorType,
};

use super::arithmetic::{V, binary, compare, convert, fit, unary};

#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) ty: TensorType,
    pub(crate) data: Vec<V>,
}

impl Array {
    pub(crate) fn from_bytes(ty: &TensorType, bytes: &[u8]) -> Self {
        let read = |i: usize| {
            let size = ty.element.bits() / 8;
            let at = &bytes[i * size..];
            match ty.element {
                ElementType::F32 => V::F(f32::from_le_bytes(at[..4].try_into().unwrap())),
                ElementType::F16 => V::F(f16::from_le_bytes(at[..2].try_into().unwrap()).to_f32()),
                ElementType::BF16 => V::F(bf16::from_le_bytes(at[..2].try_into().unwrap()).to_f32()),
                ElementType::I64 => V::I(i64::from_le_bytes(at[..8].try_into().unwrap())),
                ElementType::I32 => V::I(i32::from_le_bytes(at[..4].try_into().unwrap()).into()),
                ElementType::U32 => V::I(u32::from_le_bytes(at[..4].try_into().unwrap()).into()),
                ElementType::I8 => V::I((at[0] as i8).into()),
                ElementType::U8 => V::I(at[0].into()),
                ElementType::I1 => V::I((bytes[i] != 0).into()),
                _ => fit(V::I((bytes[i / 2] >> (i % 2 * 4)).into()), ty.element),
            }
        };
        Self { ty: ty.clone(), data: (0..ty.elements()).map(read).collect() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.ty.bytes()];
        for (i, &value) in self.data.iter().enumerate() {
            let raw = match (self.ty.element, value) {
                (ElementType::F32, V::F(x)) => x.to_le_bytes().to_vec(),
                (ElementType::F16, V::F(x)) => f16::from_f32(x).to_le_bytes().to_vec(),
                (ElementType::BF16, V::F(x)) => bf16::from_f32(x).to_le_bytes().to_vec(),
                (ElementType::I1, V::I(x)) => vec![x as u8],
                (ElementType::I4 | ElementType::U4, V::I(x)) => {
                    bytes[i / 2] |= (x as u8 & 0xf) << (i % 2 * 4);
                    continue;
                }
                (element, V::I(x)) => x.to_le_bytes()[..element.bits() / 8].to_vec(),
                (element, V::F(x)) => panic!("{x} as {element}"),
            };
            bytes[i * raw.len()..(i + 1) * raw.len()].copy_from_slice(&raw);
        }
        bytes
    }

    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self::from_bytes(tensor.ty(), tensor.bytes())
    }

    /// An array whose element at each index is what the function says.
    fn make(ty: &TensorType, mut element: impl FnMut(&[usize]) -> V) -> Self {
        let data = indices(&ty.shape).iter().map(|index| fit(element(index), ty.element)).collect();
        Self { ty: ty.clone(), data }
    }

    fn at(&self, index: &[usize]) -> V {
        self.data[number(&self.ty.shape, index)]
    }

    fn scalar(&self) -> V {
        self.data[0]
    }
}

fn number(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |number, (&size, &i)| number * size + i)
}

/// Every index of a shape, in row-major order.
pub(crate) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &size in shape {
        all = all.iter().flat_map(|index| (0..size).map(|i| [index.as_slice(), &[i]].concat())).collect();
    }
    all
}

/// The values of a function, so far as they are known.
pub(crate) struct Reference<'m> {
    pub(crate) module: &'m Module,
    pub(crate) function: &'m Function,
    pub(crate) values: Vec<Option<Array>>,
}

impl<'m> Reference<'m> {
    pub(crate) fn new(module: &'m Module, function: &'m Function) -> Self {
        Self { module, function, values: vec![None; function.values.len()] }
    }

    /// Calls a function of the module.
    fn call(&self, name: &str, arguments: Vec<Array>) -> Vec<Array> {
        let function = self.module.function(name).unwrap();
        let mut callee = Reference::new(self.module, function);
        for (argument, array) in function.arguments.iter().zip(arguments) {
            callee.values[argument.value.index()] = Some(array);
        }
        callee.block(&function.body)
    }

    fn block(&mut self, block: &Block) -> Vec<Array> {
        for op in &block.ops {
            let results = self.op(op);
            for (value, array) in op.results.iter().zip(results) {
                self.values[value.index()] = Some(array);
            }
        }
        block.results.iter().map(|value| self.values[value.index()].clone().unwrap()).collect()
    }

    fn enter(&mut self, block: &Block, arguments: &[Array]) -> Vec<Array> {
        for (value, array) in block.arguments.iter().zip(arguments) {
            self.values[value.index()] = Some(array.clone());
        }
        self.block(block)
    }

    /// The results of an operation whose operands are known.
    pub(crate) fn op(&mut self, op: &Op) -> Vec<Array> {
        let x: Vec<Array> = op.operands.iter().map(|v| self.values[v.index()].clone().unwrap()).collect();
        let types: Vec<&TensorType> =
            op.results.iter().map(|&value| self.function.value_type(value)).collect();
        let ty = types[0];
        let one = |array: Array| vec![array];
        match &op.kind {
            OpKind::Constant(literal) => one(constant(literal)),
            OpKind::Iota { dimension } => one(Array::make(ty, |index| {
                let count = V::I(index[*dimension] as i64);
                if ty.element.is_float() { V::F(count.f()) } else { count }
            })),
            OpKind::Reshape => one(Array { ty: ty.clone(), data: x[0].data.clone() }),
            OpKind::BroadcastInDim { dimensions } => one(Array::make(ty, |index| {
                let pick = |(i, &d): (usize, &usize)| if x[0].ty.shape[i] == 1 { 0 } else { index[d] };
                x[0].at(&dimensions.iter().enumerate().map(pick).collect::<Vec<_>>())
            })),
            OpKind::Transpose { permutation } => one(Array::make(ty, |index| {
                let mut from = vec![0; index.len()];
                permutation.iter().zip(index).for_each(|(&p, &i)| from[p] = i);
                x[0].at(&from)
            })),
            OpKind::Convert => one(Array::make(ty, |index| convert(x[0].at(index), ty.element))),
            OpKind::BitcastConvert => one(Array::from_bytes(ty, &x[0].to_bytes())),
            OpKind::Slice { start, stride, .. } => one(Array::make(ty, |index| {
                let from = |i: usize| start[i] + index[i] * stride[i];
                x[0].at(&(0..index.len()).map(from).collect::<Vec<_>>())
            })),
            OpKind::DynamicSlice { sizes } => {
                let starts = starts(&x[1..], &x[0].ty.shape, sizes);
                one(Array::make(ty, |index| x[0].at(&add(&starts, index))))
            }
            OpKind::DynamicUpdateSlice => {
                let starts = starts(&x[2..], &ty.shape, &x[1].ty.shape);
                let mut result = x[0].clone();
                for index in indices(&x[1].ty.shape) {
                    result.data[number(&ty.shape, &add(&starts, &index))] = x[1].at(&index);
                }
                one(result)
            }
            OpKind::Concatenate { dimension } => one(Array::make(ty, |index| {
                let mut index = index.to_vec();
                let mut operands = x.iter();
                loop {
                    let operand = operands.next().unwrap();
                    let size = operand.ty.shape[*dimension];
                    if index[*dimension] < size {
                        return operand.at(&index);
                    }
                    index[*dimension] -= size;
                }
            })),
            OpKind::Pad { low, interior, .. } => {
                let mut result = Array::make(ty, |_| x[1].scalar());
                for index in indices(&x[0].ty.shape) {
                    let place = |i: usize| low[i] + (index[i] * (interior[i] + 1)) as i64;
                    let place: Vec<i64> = (0..index.len()).map(place).collect();
                    if place.iter().zip(&ty.shape).all(|(&at, &size)| at >= 0 && at < size as i64) {
                        let place: Vec<usize> = place.iter().map(|&at| at as usize).collect();
                        result.data[number(&ty.shape, &place)] = x[0].at(&index);
                    }
                }
                one(result)
            }
            OpKind::Gather { dimensions: d } => one(Array::make(ty, |index| {
                let batch = without(index, &d.offset_dims);
                let vector = index_vector(&x[1], &batch, d.index_vector_dim, d.start_index_map.len());
                let mut from = vec![0; x[0].ty.rank()];
                for (&dimension, &at) in d.start_index_map.iter().zip(&vector) {
                    let limit = (x[0].ty.shape[dimension] - d.slice_sizes[dimension]) as i64;
                    from[dimension] = at.clamp(0, limit) as usize;
                }
                let window = (0..from.len()).filter(|i| !d.collapsed_slice_dims.contains(i));
                for (dimension, &offset) in window.collect::<Vec<_>>().into_iter().zip(&d.offset_dims) {
                    from[dimension] += index[offset];
                }
                x[0].at(&from)
            })),
            OpKind::Scatter { dimensions: d, update, .. } => {
                let mut result = x[0].clone();
                let window: Vec<usize> =
                    (0..ty.rank()).filter(|i| !d.inserted_window_dims.contains(i)).collect();
                for index in indices(&x[2].ty.shape) {
                    let batch = without(&index, &d.update_window_dims);
                    let vector =
                        index_vector(&x[1], &batch, d.index_vector_dim, d.scatter_dims_to_operand_dims.len());
                    let mut start = vec![0; ty.rank()];
                    let mut sizes = vec![1; ty.rank()];
                    let mut place = vec![0; ty.rank()];
                    for (&dimension, &from) in window.iter().zip(&d.update_window_dims) {
                        sizes[dimension] = x[2].ty.shape[from] as i64;
                        place[dimension] = index[from] as i64;
                    }
                    for (&dimension, &at) in d.scatter_dims_to_operand_dims.iter().zip(&vector) {
                        start[dimension] = at;
                    }
                    let fits = |i: usize| start[i] >= 0 && start[i] + sizes[i] <= ty.shape[i] as i64;
                    if (0..ty.rank()).all(fits) {
                        let place: Vec<usize> =
                            (0..ty.rank()).map(|i| (start[i] + place[i]) as usize).collect();
                        let place = number(&ty.shape, &place);
                        result.data[place] = match update {
                            ScatterUpdate::Replace => x[2].at(&index),
                            ScatterUpdate::Add => {
                                binary(BinaryOp::Add, result.data[place], x[2].at(&index), ty.element)
                            }
                        };
                    }
                }
                one(result)
            }
            OpKind::Unary(op) => one(Array::make(ty, |index| unary(*op, x[0].at(index), ty.element))),
            OpKind::Binary(op) => {
                one(Array::make(ty, |index| binary(*op, x[0].at(index), x[1].at(index), ty.element)))
            }
            OpKind::Compare(comparison) => one(Array::make(ty, |index| {
                V::I(compare(*comparison, x[0].at(index), x[1].at(index)).into())
            })),
            OpKind::Select => one(Array::make(ty, |index| {
                let condition = if x[0].ty.rank() == 0 { x[0].scalar() } else { x[0].at(index) };
                x[if condition == V::I(1) { 1 } else { 2 }].at(index)
            })),
            OpKind::Clamp => one(Array::make(ty, |index| {
                let bound = |i: usize| if x[i].ty.rank() == 0 { x[i].scalar() } else { x[i].at(index) };
                let low = binary(BinaryOp::Maximum, x[1].at(index), bound(0), ty.element);
                binary(BinaryOp::Minimum, low, bound(2), ty.element)
            })),
            OpKind::Reduce { reduction, dimensions } => one(reduce(&x[0], *reduction, dimensions, ty)),
            OpKind::ReduceArgMax { dimension } => argmax(&x[0], &x[1], *dimension, types[0], types[1]),
            OpKind::DotGeneral { dimensions } => {
                let (batch, contracted) = (&dimensions.lhs_batch, &dimensions.lhs_contracting);
                let sizes: Vec<usize> = contracted.iter().map(|&i| x[0].ty.shape[i]).collect();
                one(Array::make(ty, |index| {
                    let mut sum = if ty.element.is_float() { 0.0 } else { -0.0 };
                    let mut exact = 0i64;
                    for k in indices(&sizes) {
                        let mut free = index[batch.len()..].iter();
                        let mut from = |operand: &Array, batch: &[usize], contracting: &[usize]| {
                            let place = |i: usize| {
                                let named = |list: &[usize]| list.iter().position(|&d| d == i);
                                match (named(batch), named(contracting)) {
                                    (Some(at), _) => index[at],
                                    (_, Some(at)) => k[at],
                                    _ => *free.next().unwrap(),
                                }
                            };
                            operand.at(&(0..operand.ty.rank()).map(place).collect::<Vec<_>>())
                        };
                        let a = from(&x[0], batch, contracted);
                        let b = from(&x[1], &dimensions.rhs_batch, &dimensions.rhs_contracting);
                        match (a, b) {
                            (V::F(a), V::F(b)) => sum += f64::from(a) * f64::from(b),
                            (a, b) => exact = exact.wrapping_add(a.i().wrapping_mul(b.i())),
                        }
                    }
                    if ty.element.is_float() { V::F(sum as f32) } else { V::I(exact) }
                }))
            }
            OpKind::While => {
                let mut carried = x;
                while self.enter(&op.regions[0], &carried)[0].scalar() == V::I(1) {
                    carried = self.enter(&op.regions[1], &carried);
                }
                carried
            }
            OpKind::Composite { decomposition: callee, .. } | OpKind::Call { function: callee } => {
                self.call(callee, x)
            }
            kind => panic!("{kind:?}"),
        }
    }
}

fn constant(literal: &Literal) -> Array {
    Array::from_bytes(literal.ty(), literal.bytes())
}

fn add(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn starts(starts: &[Array], shape: &[usize], sizes: &[usize]) -> Vec<usize> {
    let clamp = |i: usize| starts[i].scalar().i().clamp(0, (shape[i] - sizes[i]) as i64) as usize;
    (0..shape.len()).map(clamp).collect()
}

fn index_vector(indices: &Array, batch: &[usize], dimension: usize, components: usize) -> Vec<i64> {
    let component = |i: usize| {
        let mut index = batch.to_vec();
        if dimension < indices.ty.rank() {
            index.insert(dimension, i);
        }
        indices.at(&index).i()
    };
    (0..components).map(component).collect()
}

fn without(index: &[usize], dimensions: &[usize]) -> Vec<usize> {
    (0..index.len()).filter(|i| !dimensions.contains(i)).map(|i| index[i]).collect()
}

fn reduce(x: &Array, reduction: Reduction, dimensions: &[usize], ty: &TensorType) -> Array {
    Array::make(ty, |index| {
        let members = indices(&x.ty.shape).into_iter().filter(|from| without(from, dimensions) == index);
        let members: Vec<V> = members.map(|from| x.at(&from)).collect();
        if !ty.element.is_float() {
            let (least, most) = match ty.element {
                ElementType::I64 => (i64::MIN, i64::MAX),
                element if element.is_signed() => {
                    (-(1 << (element.bits() - 1)), (1 << (element.bits() - 1)) - 1)
                }
                element => (0, (1 << element.bits()) - 1),
            };
            let fold = |start: i64, f: fn(i64, i64) -> i64| members.iter().fold(start, |a, b| f(a, b.i()));
            return V::I(match reduction {
                Reduction::Sum => fold(0, i64::wrapping_add),
                Reduction::Product => fold(1, i64::wrapping_mul),
                Reduction::Max => fold(least, i64::max),
                Reduction::Min => fold(most, i64::min),
                Reduction::And => fold(1, |a, b| a & b),
                Reduction::Or => fold(0, |a, b| a | b),
            });
        }
        let nan = members.iter().any(|x| x.f().is_nan());
        let extreme = |start: f32, f: fn(f32, f32) -> f32| {
            if nan { f32::NAN } else { members.iter().fold(start, |a, b| f(a, b.f())) }
        };
        V::F(match reduction {
            Reduction::Sum => members.iter().map(|x| f64::from(x.f())).sum::<f64>() as f32,
            Reduction::Product => members.iter().map(|x| x.f()).product(),
            Reduction::Max => extreme(f32::NEG_INFINITY, f32::max),
            _ => extreme(f32::INFINITY, f32::min),
        })
    })
}

fn argmax(x: &Array, at: &Array, dimension: usize, value: &TensorType, index: &TensorType) -> Vec<Array> {
    let mut chosen = Vec::new();
    let values = Array::make(value, |place| {
        let line = (0..x.ty.shape[dimension]).map(|i| {
            let mut from = place.to_vec();
            from.insert(dimension, i);
            (x.at(&from), at.at(&from))
        });
        let best = line.reduce(|a, b| {
            let (a_none, b_none) = (a.0.f().is_nan(), b.0.f().is_nan());
            let above = compare(Comparison::Greater, b.0, a.0) || (a_none && !b_none);
            let equal = compare(Comparison::Equal, a.0, b.0) || (a_none && b_none);
            if above || (equal && b.1.i() < a.1.i()) { b } else { a }
        });
        chosen.push(best.unwrap().1);
        best.unwrap().0
    });
    vec![values, Array { ty: index.clone(), data: chosen }]
}
