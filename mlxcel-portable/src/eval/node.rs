//! Expressions that planning has not given memory yet.
//!
//! Elementwise operations and views become nodes of a graph instead of steps. A step that reads a node
//! computes it on the way (see [`kernel`](super::kernel)), so chains of such operations never exist in
//! memory.

use mlxcel_stablehlo::{BinaryOp, Comparison, ElementType, TensorType, UnaryOp};

use super::lanes::Scalar;
use super::view::{View, ViewOp};

/// A node of a [`Graph`].
pub(super) type NodeId = usize;

/// A piece of run-time memory that holds one tensor.
pub(super) type SlotId = usize;

#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    /// Elements of a slot. The view's shape may differ from the node's; the row-major order counts.
    Load {
        slot: SlotId,
        view: View,
    },
    /// The same element everywhere.
    Splat(Scalar),
    /// The element numbers of a view: a count along a dimension, sliced and transposed like a tensor.
    Iota {
        view: View,
    },
    /// The same elements under another shape.
    Relabel(NodeId),
    Unary(UnaryOp, NodeId),
    Binary(BinaryOp, NodeId, NodeId),
    Compare(Comparison, NodeId, NodeId),
    Select(NodeId, NodeId, NodeId),
    /// Minimum, operand, maximum.
    Clamp(NodeId, NodeId, NodeId),
    Convert(NodeId),
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) ty: TensorType,
    /// The operations below and including this one, to keep expressions within reason.
    pub(super) size: usize,
}

impl Node {
    pub(super) fn inputs(&self) -> impl Iterator<Item = NodeId> + use<> {
        let inputs = match self.kind {
            NodeKind::Load { .. } | NodeKind::Splat(_) | NodeKind::Iota { .. } => [None; 3],
            NodeKind::Relabel(a) | NodeKind::Unary(_, a) | NodeKind::Convert(a) => [Some(a), None, None],
            NodeKind::Binary(_, a, b) | NodeKind::Compare(_, a, b) => [Some(a), Some(b), None],
            NodeKind::Select(a, b, c) | NodeKind::Clamp(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        inputs.into_iter().flatten()
    }
}

/// The nodes of a program under planning.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    pub(super) fn ty(&self, id: NodeId) -> &TensorType {
        &self.nodes[id].ty
    }

    pub(super) fn element(&self, id: NodeId) -> ElementType {
        self.nodes[id].ty.element
    }

    /// Adds a node; modules are verified before they are planned, so its types are right.
    pub(super) fn add(&mut self, kind: NodeKind, ty: TensorType) -> NodeId {
        let mut node = Node { kind, ty, size: 1 };
        node.size += node.inputs().map(|input| self.nodes[input].size).sum::<usize>();
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The whole of a slot.
    pub(super) fn load(&mut self, slot: SlotId, ty: TensorType) -> NodeId {
        let kind = NodeKind::Load { slot, view: View::dense(&ty.shape) };
        self.nodes.push(Node { kind, ty, size: 1 });
        self.nodes.len() - 1
    }

    /// Whether computing the node again costs about as much as reading it.
    pub(super) fn is_cheap(&self, id: NodeId) -> bool {
        match self.nodes[id].kind {
            NodeKind::Load { .. } | NodeKind::Splat(_) | NodeKind::Iota { .. } => true,
            NodeKind::Relabel(a) => self.is_cheap(a),
            NodeKind::Convert(a) => matches!(self.nodes[a].kind, NodeKind::Load { .. }),
            _ => false,
        }
    }

    /// Whether computing the node reads `slot`.
    pub(super) fn reads(&self, id: NodeId, slot: SlotId) -> bool {
        self.slots(id).contains(&slot)
    }

    /// The slots that computing the node reads.
    pub(super) fn slots(&self, id: NodeId) -> Vec<SlotId> {
        match self.nodes[id].kind {
            NodeKind::Load { slot, .. } => vec![slot],
            _ => self.nodes[id].inputs().flat_map(|input| self.slots(input)).collect(),
        }
    }

    /// The slot that holds the node as it is, if one does; its length in bytes is for the caller to compare.
    pub(super) fn stored(&self, id: NodeId) -> Option<SlotId> {
        match &self.nodes[id].kind {
            NodeKind::Load { slot, view } if view.is_dense() => Some(*slot),
            NodeKind::Relabel(a) => self.stored(*a),
            _ => None,
        }
    }

    /// The slot and view that the node reads without computing, the view being of the node's own shape.
    pub(super) fn viewed(&self, id: NodeId) -> Option<(SlotId, &View)> {
        let node = &self.nodes[id];
        match &node.kind {
            NodeKind::Load { slot, view } if view.shape == node.ty.shape => Some((*slot, view)),
            _ => None,
        }
    }

    /// The node that `op` makes of `id`, where it can be pushed down to the leaves.
    pub(super) fn apply_view(&mut self, id: NodeId, op: ViewOp<'_>, shape: &[usize]) -> Option<NodeId> {
        let node = self.nodes[id].clone();
        let mut push = |input| self.apply_view(input, op, shape);
        let kind = match node.kind {
            NodeKind::Load { slot, view } if view.shape == node.ty.shape => {
                NodeKind::Load { slot, view: view.apply(op) }
            }
            NodeKind::Iota { view } if view.shape == node.ty.shape => NodeKind::Iota { view: view.apply(op) },
            NodeKind::Load { .. } | NodeKind::Iota { .. } | NodeKind::Relabel(_) => return None,
            NodeKind::Splat(scalar) => NodeKind::Splat(scalar),
            NodeKind::Unary(unary, a) => NodeKind::Unary(unary, push(a)?),
            NodeKind::Binary(binary, a, b) => NodeKind::Binary(binary, push(a)?, push(b)?),
            NodeKind::Compare(comparison, a, b) => NodeKind::Compare(comparison, push(a)?, push(b)?),
            NodeKind::Select(a, b, c) => NodeKind::Select(push(a)?, push(b)?, push(c)?),
            NodeKind::Clamp(a, b, c) => NodeKind::Clamp(push(a)?, push(b)?, push(c)?),
            NodeKind::Convert(a) => NodeKind::Convert(push(a)?),
        };
        let ty = TensorType::new(node.ty.element, shape);
        self.nodes.push(Node { kind, ty, size: node.size });
        Some(self.nodes.len() - 1)
    }

    /// The node with its dimensions in another order, where that can be pushed down to the leaves.
    pub(super) fn transpose(&mut self, id: NodeId, permutation: &[usize]) -> Option<NodeId> {
        if permutation.iter().enumerate().all(|(to, &from)| to == from) {
            return Some(id);
        }
        let shape: Vec<usize> = permutation.iter().map(|&from| self.ty(id).shape[from]).collect();
        self.apply_view(id, ViewOp::Transpose { permutation }, &shape)
    }

    /// The same elements in the same order under `shape`.
    pub(super) fn relabel(&mut self, id: NodeId, shape: &[usize]) -> NodeId {
        let node = &self.nodes[id];
        if node.ty.shape == shape {
            return id;
        }
        let ty = TensorType::new(node.ty.element, shape);
        let size = node.size;
        let kind = match &node.kind {
            NodeKind::Load { slot, view } => {
                NodeKind::Load { slot: *slot, view: view.reshape(shape).unwrap_or_else(|| view.clone()) }
            }
            NodeKind::Iota { view } => {
                NodeKind::Iota { view: view.reshape(shape).unwrap_or_else(|| view.clone()) }
            }
            NodeKind::Splat(scalar) => NodeKind::Splat(*scalar),
            NodeKind::Relabel(inner) => NodeKind::Relabel(*inner),
            _ => NodeKind::Relabel(id),
        };
        self.nodes.push(Node { kind, ty, size });
        self.nodes.len() - 1
    }
}
