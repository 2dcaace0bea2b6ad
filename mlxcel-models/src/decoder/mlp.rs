//! MLPs and experts, which are applied to each position separately.

use super::{Activation, Gating, Linear, Norm, WeightId, Xielu};

/// A multilayer perceptron.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mlp {
    /// `down(norm(gating(gate(x), up(x))))`.
    Gated {
        /// How gate and up projection are combined.
        gating: Gating,
        /// `hidden_size` to the intermediate size.
        gate: Linear,
        /// `hidden_size` to the intermediate size.
        up: Linear,
        /// The norm of their combination, if any (BitNet).
        norm: Option<Norm>,
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
    /// `down(xielu(up(x)))`, an activation with learned parameters.
    Xielu {
        /// The nonlinearity between.
        activation: Xielu,
        /// `hidden_size` to the intermediate size.
        up: Linear,
        /// The intermediate size to `hidden_size`.
        down: Linear,
    },
}

/// A mixture of experts (Shazeer et al., 2017): a router chooses a few gated MLPs for each position, and
/// their results are summed with the router's weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// The number of experts with projections.
    pub count: usize,
    /// The number of experts behind them, in the router's order, whose result is what they read
    /// (LongCat-Flash).
    pub identities: usize,
    /// The number of experts per token (top-k).
    pub chosen: usize,
    /// The router.
    pub router: Router,
    /// The norm of what the chosen experts read; the router and the shared expert read what comes before it.
    pub norm_before: Option<Norm>,
    /// How gate and up projection are combined.
    pub gating: Gating,
    /// The gate projections, `[experts, outputs, inputs]`: `hidden_size` to each expert's intermediate size.
    pub gate: Linear,
    /// The up projections, of the same shape. Experts [without a gate](Gating::Ungated) have the same
    /// projections here and as `gate`, which are computed once.
    pub up: Linear,
    /// The down projections: each expert's intermediate size to `hidden_size`.
    pub down: Linear,
    /// The norm of the sum of the chosen experts' results.
    pub norm_after: Option<Norm>,
    /// An MLP that processes every position in addition.
    pub shared: Option<SharedExpert>,
    /// `[hidden_size]`: added to the result, whatever the weights of the chosen experts (Nomic Embed v2).
    pub output_bias: Option<WeightId>,
}

/// The choice and weighting of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// The norm of what the router reads.
    pub norm: Option<Norm>,
    /// A factor of that.
    pub input_scale: f32,
    /// `hidden_size` to one logit per expert, identities included.
    pub projection: Linear,
    /// How logits become scores.
    pub scoring: Scoring,
    /// `[experts]`: added to the scores for the choice, but not for the weights.
    pub selection_bias: Option<WeightId>,
    /// Whether the choice is one of logits, to which the bias is added, instead of scores (Kolibri).
    pub ranks_logits: bool,
    /// `[vocabulary_size, chosen]`: the experts that each token chooses whatever their scores, as whole
    /// numbers (Roller et al., 2021, "Hash Layers For Large Sparse Models"). Neither a selection bias nor
    /// groups then apply.
    pub by_token: Option<WeightId>,
    /// Restricts the choice to the experts of the best groups.
    pub groups: Option<ExpertGroups>,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub normalised: bool,
    /// Added to that sum.
    pub normaliser: f32,
    /// A factor of the final weights.
    pub scale: f32,
    /// Whether the weights multiply what the experts read instead of their results (Llama 4).
    pub weighs_inputs: bool,
    /// `[experts]`: factors of the weights of each expert, which do not take part in their sum.
    pub expert_scales: Option<WeightId>,
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// A softmax over all experts. If the weights are [normalised](Router::normalised), this equals a softmax
    /// over the chosen ones.
    Softmax,
    /// A sigmoid for each expert.
    Sigmoid,
    /// The square root of a softplus for each expert (DeepSeek-V4).
    RootSoftplus,
    /// The two best experts, each weighted by a softmax over the logits that are close to its own, without
    /// those before it (Liu et al., 2024, "GRIN: GRadient-INformed MoE", at inference). Neither a selection
    /// bias nor groups apply.
    SparseMixer {
        /// A logit `l` is close to the best one, `m`, if `(m − l) / max(|l|, m)` is at most this.
        tolerance: f32,
    },
}

/// Groups of consecutive experts of equal size. A group's score is the sum of its two best experts'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// The number of groups.
    pub count: usize,
    /// The number of groups to choose experts from.
    pub kept: usize,
}

/// An MLP in addition to the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// The norm of what it reads.
    pub norm_before: Option<Norm>,
    /// The MLP.
    pub mlp: Mlp,
    /// The norm of its result.
    pub norm_after: Option<Norm>,
    /// A gate: `hidden_size` to one number, whose sigmoid multiplies the MLP's result.
    pub gate: Option<Linear>,
}
