//! What is applied to each position by itself: MLPs and experts.

use super::{Activation, Gating, Linear, WeightId};

/// A multilayer perceptron.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mlp {
    /// `down(gating(gate(x), up(x)))`.
    Gated {
        /// How gate and up become one.
        gating: Gating,
        /// `hidden_size` to the intermediate size.
        gate: Linear,
        /// `hidden_size` to the intermediate size.
        up: Linear,
        /// The intermediate size to `hidden_size`.
        down: Linear,
    },
    /// `down(activation(up(x)))`.
    Plain {
        /// The nonlinearity between.
        activation: Activation,
        /// `hidden_size` to the intermediate size.
        up: Linear,
        /// The intermediate size to `hidden_size`.
        down: Linear,
    },
}

/// A mixture of experts (Shazeer et al., 2017): each position goes through the few gated MLPs that a router chooses for it, and
/// the results are added with the router's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many experts there are.
    pub count: usize,
    /// How many are chosen for each position.
    pub chosen: usize,
    /// What chooses.
    pub router: Router,
    /// How gate and up become one.
    pub gating: Gating,
    /// Of every expert `hidden_size` to its intermediate size: `[experts, outputs, inputs]`.
    pub gate: Linear,
    /// Likewise.
    pub up: Linear,
    /// Of every expert its intermediate size to `hidden_size`.
    pub down: Linear,
    /// An MLP that every position goes through besides.
    pub shared: Option<SharedExpert>,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// `hidden_size` to a logit for each expert.
    pub projection: Linear,
    /// How logits become scores.
    pub scoring: Scoring,
    /// `[experts]`: added to the scores for the choice, and not for the weights.
    pub selection_bias: Option<WeightId>,
    /// Only experts of the best groups can be chosen.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of the chosen are divided by their sum.
    pub normalised: bool,
    /// What is added to that sum.
    pub normaliser: f32,
    /// What the weights are multiplied with in the end.
    pub scale: f32,
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// By a softmax over all experts. Where the weights are [normalised](Router::normalised), this is the softmax over the chosen.
    Softmax,
    /// By the sigmoid of each.
    Sigmoid,
}

/// Consecutive experts form groups of one size; a group's score is the sum of its two best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// How many groups there are.
    pub count: usize,
    /// How many of them can be chosen from.
    pub kept: usize,
}

/// An MLP beside the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// The MLP.
    pub mlp: Mlp,
    /// `hidden_size` to one number, whose sigmoid multiplies the MLP's result.
    pub gate: Option<Linear>,
}
