//! Kernels: expressions compiled to straight code over blocks of lanes (run by the
//! [`evaluator`](super::evaluator)).
//!
//! A kernel computes any row-major range of its elements, a block at a time, so that one compiled expression
//! serves steps that write it out, reduce it, pack it for a matrix product or copy parts of it.

use std::collections::HashMap;

use mlxcel_stablehlo::{BinaryOp, Comparison, ElementType, UnaryOp};

use super::evaluator::Evaluator;
use super::lanes::{Class, Scalar};
use super::node::{Graph, NodeId, NodeKind, SlotId};
use super::view::Linear;

/// A register: a block of lanes in the file of its class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Register {
    pub(super) class: Class,
    pub(super) index: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Code {
    Load {
        source: usize,
        element: ElementType,
        linear: Linear,
    },
    Splat(Scalar),
    Iota(Linear),
    Unary(UnaryOp),
    Binary(BinaryOp),
    Compare(Comparison),
    Select,
    Clamp,
    /// From the lanes of its argument to those of its result.
    Convert,
}

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) code: Code,
    /// The element type of the result, to which it is rounded or wrapped.
    pub(super) element: ElementType,
    pub(super) target: Register,
    pub(super) arguments: Vec<Register>,
}

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The slots that it reads.
    pub(super) slots: Vec<SlotId>,
    pub(super) instructions: Vec<Instruction>,
    /// How many leading instructions compute the same value for every element: they run once.
    pub(super) uniform: usize,
    /// Registers by class: `f32`, `i64`, booleans.
    pub(super) registers: [usize; 3],
    pub(super) result: Register,
    /// The element type of the result.
    pub(super) element: ElementType,
    /// The number of elements of the whole expression.
    pub(super) elements: usize,
}

/// Hands out registers and takes those back that no later instruction reads.
#[derive(Default)]
struct Allocator {
    count: [usize; 3],
    free: [Vec<usize>; 3],
}

impl Allocator {
    fn take(&mut self, class: Class) -> Register {
        let file = class as usize;
        let index = self.free[file].pop().unwrap_or_else(|| {
            self.count[file] += 1;
            self.count[file] - 1
        });
        Register { class, index }
    }

    fn give(&mut self, register: Register) {
        self.free[register.class as usize].push(register.index);
    }
}

impl Kernel {
    /// Compiles the expression `root`.
    pub(super) fn compile(graph: &Graph, root: NodeId) -> Self {
        let order = order(graph, root);
        let uniform = uniform_nodes(graph, &order);
        let mut last_use: HashMap<NodeId, usize> = HashMap::new();
        // Instructions that are the same for all elements stand first.
        let (first, rest): (Vec<_>, Vec<_>) = order.iter().copied().partition(|id| uniform[id]);
        let scheduled: Vec<NodeId> = first.iter().chain(&rest).copied().collect();
        for (position, id) in scheduled.iter().enumerate() {
            for input in graph.node(*id).inputs() {
                last_use.insert(resolve(graph, input), position);
            }
        }
        let mut kernel = Self {
            slots: Vec::new(),
            instructions: Vec::with_capacity(scheduled.len()),
            uniform: first.len(),
            registers: [0; 3],
            result: Register { class: Class::Bool, index: 0 },
            element: graph.element(root),
            elements: graph.ty(root).elements(),
        };
        let mut allocator = Allocator::default();
        let mut places: HashMap<NodeId, Register> = HashMap::new();
        for (position, id) in scheduled.iter().enumerate() {
            let node = graph.node(*id);
            let inputs: Vec<NodeId> = node.inputs().map(|input| resolve(graph, input)).collect();
            let code = kernel.code(&node.kind, node.ty.element);
            let target = allocator.take(Class::of(node.ty.element));
            places.insert(*id, target);
            let arguments = inputs.iter().map(|input| places[input]).collect();
            kernel.instructions.push(Instruction { code, element: node.ty.element, target, arguments });
            let mut done = inputs;
            done.sort_unstable();
            done.dedup();
            for input in done {
                if last_use[&input] == position && !uniform[&input] {
                    allocator.give(places[&input]);
                }
            }
        }
        kernel.result = places[&resolve(graph, root)];
        kernel.registers = allocator.count;
        kernel
    }

    fn code(&mut self, kind: &NodeKind, element: ElementType) -> Code {
        match kind {
            NodeKind::Load { slot, view } => {
                let source = self.slots.iter().position(|own| own == slot).unwrap_or_else(|| {
                    self.slots.push(*slot);
                    self.slots.len() - 1
                });
                Code::Load { source, element, linear: view.linear() }
            }
            NodeKind::Splat(scalar) => Code::Splat(*scalar),
            NodeKind::Iota { view } => Code::Iota(view.linear()),
            NodeKind::Unary(op, _) => Code::Unary(*op),
            NodeKind::Binary(op, ..) => Code::Binary(*op),
            NodeKind::Compare(comparison, ..) => Code::Compare(*comparison),
            NodeKind::Select(..) => Code::Select,
            NodeKind::Clamp(..) => Code::Clamp,
            // Relabels are resolved before: only conversions are left.
            NodeKind::Convert(_) | NodeKind::Relabel(_) => Code::Convert,
        }
    }

    /// What the kernel reads where it only reads: the slot's number among [`Kernel::slots`], the type of its
    /// elements and their order. The type of the result may be wider.
    pub(super) fn plain_load(&self) -> Option<(usize, ElementType, &Linear)> {
        match self.instructions.as_slice() {
            [Instruction { code: Code::Load { source, element, linear }, .. }] => {
                Some((*source, *element, linear))
            }
            _ => None,
        }
    }

    /// The kernel with the bytes that it reads, one for each of its [`slots`](Kernel::slots).
    pub(super) fn bind<'a>(&'a self, bytes: impl Fn(SlotId) -> &'a [u8]) -> Bound<'a> {
        Bound { kernel: self, sources: self.slots.iter().map(|&slot| bytes(slot)).collect() }
    }
}

/// Follows nodes whose lanes are those of their input: relabels, and conversions from a half type to `f32`.
fn resolve(graph: &Graph, mut id: NodeId) -> NodeId {
    loop {
        let node = graph.node(id);
        match node.kind {
            NodeKind::Relabel(a) => id = a,
            NodeKind::Convert(a) if lanes_suffice(graph.element(a), node.ty.element) => id = a,
            _ => return id,
        }
    }
}

fn lanes_suffice(from: ElementType, to: ElementType) -> bool {
    from == to || (from.is_float() && to == ElementType::F32)
}

/// The nodes that `root` computes, inputs before users.
fn order(graph: &Graph, root: NodeId) -> Vec<NodeId> {
    let mut order = Vec::new();
    let mut visited: HashMap<NodeId, ()> = HashMap::new();
    let mut stack = vec![(resolve(graph, root), false)];
    while let Some((id, expanded)) = stack.pop() {
        if expanded {
            order.push(id);
        } else if visited.insert(id, ()).is_none() {
            stack.push((id, true));
            stack.extend(graph.node(id).inputs().map(|input| (resolve(graph, input), false)));
        }
    }
    order
}

/// Which nodes have the same value for every element.
fn uniform_nodes(graph: &Graph, order: &[NodeId]) -> HashMap<NodeId, bool> {
    let mut uniform = HashMap::new();
    for &id in order {
        let node = graph.node(id);
        let is = match &node.kind {
            NodeKind::Load { view, .. } | NodeKind::Iota { view } => view.linear().is_uniform(),
            NodeKind::Splat(_) => true,
            _ => node.inputs().all(|input| uniform[&resolve(graph, input)]),
        };
        uniform.insert(id, is);
    }
    uniform
}

/// A kernel and the bytes that it reads; threads share it and compute with an [`Evaluator`] each.
#[derive(Debug)]
pub(super) struct Bound<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) sources: Vec<&'a [u8]>,
}

impl<'a> Bound<'a> {
    pub(super) fn evaluator(&self) -> Evaluator<'_> {
        Evaluator::new(self)
    }

    /// The only element, of a kernel of integers.
    pub(super) fn scalar_i64(&self) -> i64 {
        let mut value = [0];
        self.evaluator().write_i64(0, &mut value);
        value[0]
    }
}
