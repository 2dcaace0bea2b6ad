//! Mixtures of experts: tensor names, and config fields that many families share.

use std::ops::RangeInclusive;

use mlxcel_core::{Error, ErrorKind, Result};

use super::blocks::PROJECTIONS;
use super::roles::{OPERATION, Roles, refuse_order};
use super::settings::{LARGEST_WIDTH, Sizes, flag};
use crate::config::Fields;
use crate::decoder::{
    Activation, ExpertGroups, Experts, Gating, Linear, Mlp, Operation, Router, Scoring, Selection,
    SharedExpert, WeightId, WeightRef,
};

/// Far above any published model.
pub(super) const MOST_EXPERTS: usize = 1 << 14;

impl From<Experts> for Operation {
    fn from(experts: Experts) -> Self {
        Self::Experts(experts)
    }
}

impl From<Mlp> for SharedExpert {
    fn from(mlp: Mlp) -> Self {
        Self { norm_before: None, mlp, norm_after: None, gate: None }
    }
}

/// How many experts there are, and the sizes of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertSizes {
    pub(super) count: usize,
    /// How many are chosen for each position.
    pub(super) chosen: usize,
    pub(super) hidden: usize,
    /// The intermediate size of each.
    pub(super) width: usize,
}

impl ExpertSizes {
    /// Reads how many experts there are, at least so many and under the first of `keys` that is there, and
    /// how many are chosen, with these defaults for both. Each is as wide as an MLP.
    pub(super) fn read(
        config: Fields<'_>,
        sizes: &Sizes,
        keys: &[&str],
        least: usize,
        [count, chosen]: [usize; 2],
    ) -> Result<Self> {
        let count = expert_count(config, keys, least, count)?;
        let chosen = chosen_of(config, &["num_experts_per_tok"], count, chosen)?;
        Ok(Self { count, chosen, hidden: sizes.hidden, width: sizes.intermediate })
    }

    /// The same experts with the width in `moe_intermediate_size`.
    pub(super) fn of_own_width(self, config: Fields<'_>, default: usize) -> Result<Self> {
        let width = config.size("moe_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(default);
        Ok(Self { width, ..self })
    }
}

/// The projections of all experts, each `[experts, outputs, inputs]`.
pub(super) struct ExpertLinears {
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

impl ExpertLinears {
    /// The projections with these weights, gate, up and down, and no biases.
    pub(super) fn new(roles: &Roles<'_>, weights: [WeightRef; 3]) -> Self {
        let [gate, up, down] = weights.map(|weight| roles.projection(weight, None));
        Self { gate, up, down }
    }

    /// The mixture of these experts.
    pub(super) fn routed(
        self,
        ExpertSizes { count, chosen, .. }: ExpertSizes,
        router: Router,
        gating: Gating,
        shared: Option<SharedExpert>,
    ) -> Experts {
        let Self { gate, up, down } = self;
        Experts {
            count,
            identities: 0,
            chosen,
            router,
            norm_before: None,
            gating,
            gate,
            up,
            down,
            norm_after: None,
            shared,
            output_bias: None,
        }
    }
}

/// A router that weights experts by a softmax over all of them, or, if `normalised`, over the chosen ones.
pub(super) fn softmax_router(projection: Linear, normalised: bool) -> Router {
    Router {
        projection,
        scoring: Scoring::Softmax,
        selection_bias: None,
        ranks_logits: false,
        by_token: None,
        groups: None,
        normalised,
        norm: None,
        input_scale: 1.0,
        expert_scales: None,
        normaliser: 0.0,
        scale: 1.0,
        weighs_inputs: false,
    }
}

/// A router that weights experts by the sigmoid of their logits, chosen with a bias added if there is one.
/// `normalised` weights are divided by their sum.
pub(super) fn sigmoid_router(
    projection: Linear,
    selection_bias: Option<WeightId>,
    normalised: bool,
) -> Router {
    let scoring = Scoring::Sigmoid;
    Router { scoring, selection_bias, normaliser: 1e-20, ..softmax_router(projection, normalised) }
}

/// The keys and defaults of [`GroupedExperts`], from a class of settings in transformers.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupedDefaults {
    /// Names for the number of experts, of which the first that is there counts.
    pub(super) count_keys: &'static [&'static str],
    /// Names for the number of shared experts; none if there cannot be such.
    pub(super) shared_keys: &'static [&'static str],
    /// Names for the number of experts chosen for each position.
    pub(super) chosen_keys: &'static [&'static str],
    /// Names for the number of groups.
    pub(super) groups_keys: &'static [&'static str],
    /// Names for whether weights are divided by their sum.
    pub(super) normalised_keys: &'static [&'static str],
    pub(super) count: usize,
    pub(super) chosen: usize,
    pub(super) width: usize,
    pub(super) groups: ExpertGroups,
    pub(super) normalised: bool,
    pub(super) scale: f64,
    /// How logits become scores, which no setting changes.
    pub(super) scoring: Scoring,
}

impl GroupedDefaults {
    /// Those that most families have.
    pub(super) const PLAIN: Self = Self {
        count_keys: &["n_routed_experts", "num_local_experts"],
        shared_keys: &["n_shared_experts"],
        chosen_keys: &["num_experts_per_tok"],
        groups_keys: &["n_group"],
        normalised_keys: &["norm_topk_prob"],
        count: 64,
        chosen: 8,
        width: 1024,
        groups: ExpertGroups { count: 1, kept: 1 },
        normalised: true,
        scale: 1.0,
        scoring: Scoring::Sigmoid,
    };
}

/// The mixture of DeepSeek-V3 and its successors: a router with a bias that only the choice sees and with
/// groups, weights that add up to `routed_scaling_factor`, and shared experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupedExperts {
    experts: ExpertSizes,
    groups: Option<ExpertGroups>,
    normalised: bool,
    scale: f32,
    scoring: Scoring,
    /// The width of the shared experts, which are one MLP; zero if there is none.
    shared_width: usize,
    /// The width of the MLP of layers without experts.
    dense_width: usize,
    activation: Activation,
}

impl GroupedExperts {
    pub(super) fn read(
        config: Fields<'_>,
        sizes: &Sizes,
        activation: Activation,
        defaults: &GroupedDefaults,
    ) -> Result<Self> {
        let count = expert_count(config, defaults.count_keys, 1, defaults.count)?;
        let width = config.size("moe_intermediate_size", 1..=LARGEST_WIDTH)?.unwrap_or(defaults.width);
        let chosen = chosen_of(config, defaults.chosen_keys, count, defaults.chosen)?;
        let experts = ExpertSizes { count, chosen, hidden: sizes.hidden, width };
        Ok(Self {
            experts,
            groups: expert_groups(config, experts, defaults)?,
            normalised: flag(config, present(config, defaults.normalised_keys), defaults.normalised)?,
            scale: config.number("routed_scaling_factor")?.unwrap_or(defaults.scale) as f32,
            scoring: defaults.scoring,
            shared_width: match defaults.shared_keys {
                [] => 0,
                keys => shared_width(config, present(config, keys), width)?,
            },
            dense_width: sizes.intermediate,
            activation,
        })
    }

    /// The experts of `module` if it is `sparse`, and else its MLP.
    pub(super) fn or_mlp(&self, roles: &Roles<'_>, module: &str, sparse: bool) -> Result<Operation> {
        let &Self { experts, shared_width, dense_width, activation, .. } = self;
        if !sparse {
            return Ok(roles.gated_mlp(module, [experts.hidden, dense_width], activation, false)?.into());
        }
        let router = self.router(roles, module)?;
        // Mixtral's names, which Kimi has kept.
        let is_numbered = roles.has_matrix(&format!("{module}.experts.0.w1"));
        let names = if is_numbered { ["w1", "w3", "w2"] } else { PROJECTIONS };
        let shared = format!("{module}.shared_experts");
        let shared = shared_experts(roles, &shared, [experts.hidden, shared_width], activation, false)?;
        roles.mixture(module, names, experts, router, activation, shared)
    }

    /// The sizes of the experts.
    pub(super) fn sizes(&self) -> ExpertSizes {
        self.experts
    }

    /// The router of `module`.
    pub(super) fn router(&self, roles: &Roles<'_>, module: &str) -> Result<Router> {
        let &Self { experts, groups, normalised, scale, scoring, .. } = self;
        let gate = format!("{module}.gate");
        // The second is where EXAONE has it, the third where Ling does. If there is none, transformers starts
        // with zeros.
        let biases = [&gate, module].map(|module| format!("{module}.e_score_correction_bias"));
        let biases = biases.into_iter().chain([format!("{gate}.expert_bias")]);
        let bias = biases.into_iter().find(|bias| roles.has(bias));
        let projection = roles.linear(&gate, experts.count, experts.hidden, false)?;
        let bias = bias.map(|bias| roles.tensor(&bias, &[experts.count])).transpose()?;
        Ok(Router { scoring, groups, scale, ..sigmoid_router(projection, bias, normalised) })
    }
}

/// Reads the number of experts under the first of `keys` that is there, which are names for one setting.
pub(super) fn expert_count(config: Fields<'_>, keys: &[&str], least: usize, default: usize) -> Result<usize> {
    aliased_size(config, keys, least..=MOST_EXPERTS).map(|count| count.unwrap_or(default))
}

/// Reads how many of `count` experts are chosen, under the first of `keys` that is there. Without experts it
/// does not matter.
pub(super) fn chosen_of(
    config: Fields<'_>,
    keys: &[&'static str],
    count: usize,
    default: usize,
) -> Result<usize> {
    let key = present(config, keys);
    let chosen = config.size(key, 1..=MOST_EXPERTS)?.unwrap_or(default);
    if count > 0 && chosen > count {
        return Err(config.wrong(key, format!("{chosen} of {count} experts cannot be chosen")));
    }
    Ok(chosen)
}

/// The first of `keys` that is there, or the first.
pub(super) fn present(config: Fields<'_>, keys: &[&'static str]) -> &'static str {
    keys.iter().find(|key| config.get(key).is_some()).or(keys.first()).copied().unwrap_or_default()
}

/// Reads a number of experts for each layer under the first of `keys` that is there: one for all layers, or a
/// list. It defaults to 1.
pub(super) fn counts_by_layer(config: Fields<'_>, keys: &[&str], layers: usize) -> Result<Vec<usize>> {
    let Some(key) = keys.iter().find(|key| config.get(key).is_some()) else { return Ok(vec![1; layers]) };
    let counts = match config.get(key) {
        Some(value) if value.is_array() => config.sizes(key)?.unwrap_or_default(),
        _ => vec![config.size(key, 1..=MOST_EXPERTS)?.unwrap_or(1); layers],
    };
    if counts.len() != layers {
        return Err(config.wrong(key, format!("{} numbers are given for {layers} layers", counts.len())));
    }
    match counts.iter().find(|count| !(1..=MOST_EXPERTS).contains(count)) {
        None => Ok(counts),
        Some(count) => Err(config.wrong(key, format!("{count} should be from 1 to {MOST_EXPERTS}"))),
    }
}

/// Reads `n_group` and `topk_group`, of which the first has `count` experts to divide.
fn expert_groups(
    config: Fields<'_>,
    ExpertSizes { count, chosen, .. }: ExpertSizes,
    defaults: &GroupedDefaults,
) -> Result<Option<ExpertGroups>> {
    let key = present(config, defaults.groups_keys);
    let groups = config.size(key, 1..=MOST_EXPERTS)?.unwrap_or(defaults.groups.count);
    let kept = config.size("topk_group", 1..=MOST_EXPERTS)?.unwrap_or(defaults.groups.kept);
    if count % groups != 0 || count / groups < 2 {
        let message = format!("{count} experts cannot form {groups} groups of at least two");
        return Err(config.wrong(key, message));
    }
    if kept > groups || kept * (count / groups) < chosen {
        let message = format!("{chosen} experts cannot be chosen from {kept} of {groups} groups");
        return Err(config.wrong("topk_group", message));
    }
    Ok((kept < groups).then_some(ExpertGroups { count: groups, kept }))
}

/// A size under the first of several names that is there.
pub(super) fn aliased_size(
    config: Fields<'_>,
    keys: &[&str],
    range: RangeInclusive<usize>,
) -> Result<Option<usize>> {
    for key in keys {
        if let Some(size) = config.size(key, range.clone())? {
            return Ok(Some(size));
        }
    }
    Ok(None)
}

impl Roles<'_> {
    /// The experts of `module`, such as `model.layers.0.mlp`, in whichever of the layouts the checkpoint has
    /// them:
    /// - `{module}.experts.{index}.{name}.weight`: a tensor a projection and expert, as most are published;
    /// - `{module}.experts.gate_up_proj`, `[experts, 2 · width, hidden]` with gates in front, and
    ///   `{module}.experts.down_proj`, as transformers keeps them;
    /// - `{module}.switch_mlp.gate_proj.weight` and its like, `[experts, outputs, inputs]`, as mlx-lm
    ///   converts them, those of Gemma 4 under `experts.switch_glu`, of AFMoE and dots.llm1 under `experts`; in
    ///   GGUF files gates and ups may be one, `gate_up_proj`.
    ///
    /// Those of the first and the last may be packed.
    pub(super) fn experts(
        &self,
        module: &str,
        names: [&str; 3],
        sizes: ExpertSizes,
    ) -> Result<ExpertLinears> {
        let ExpertSizes { count, hidden, width, .. } = sizes;
        let fused = format!("{module}.experts.gate_up_proj");
        let converted =
            ["switch_mlp", "experts.switch_glu", "experts"].map(|stack| format!("{module}.{stack}"));
        let has = |part: &str| converted.iter().find(|stack| self.has(&format!("{stack}.{part}.weight")));
        let [gate, up, down] = if let Some(stack) = has("gate_up_proj") {
            let both = self.matrices(&format!("{stack}.gate_up_proj"), count, 2 * width, hidden)?;
            let [gate, up] = halves(&both, width);
            [gate, up, self.matrices(&format!("{stack}.down_proj"), count, hidden, width)?]
        } else if let Some(stack) = has("gate_proj") {
            self.stacks(stack, sizes)?
        } else if self.has(&fused) {
            let fused = self.dense(&fused, &[count, 2 * width, hidden])?;
            let down = self.dense(&format!("{module}.experts.down_proj"), &[count, hidden, width])?;
            let [gate, up] = halves(&fused, width);
            [gate, up, down]
        } else {
            let [gate, up, down] = names;
            [
                self.one_by_one(module, gate, count, [width, hidden])?,
                self.one_by_one(module, up, count, [width, hidden])?,
                self.one_by_one(module, down, count, [hidden, width])?,
            ]
        };
        Ok(ExpertLinears::new(self, [gate, up, down]))
    }

    /// The mixture of the experts of `module`, whose projections have these names, beside a shared MLP.
    pub(super) fn mixture(
        &self,
        module: &str,
        names: [&str; 3],
        sizes: ExpertSizes,
        router: Router,
        activation: Activation,
        shared: Option<SharedExpert>,
    ) -> Result<Operation> {
        let linears = self.experts(module, names, sizes)?;
        Ok(linears.routed(sizes, router, Gating::Activated(activation), shared).into())
    }

    /// The experts of `module` that the router `gate` there chooses, weighted by a softmax over all of them
    /// or, if `normalised`, over the chosen ones.
    pub(super) fn softmax_experts(
        &self,
        module: &str,
        gate: &str,
        sizes: ExpertSizes,
        normalised: bool,
        activation: Activation,
        shared: Option<SharedExpert>,
    ) -> Result<Operation> {
        let projection = self.linear(&format!("{module}.{gate}"), sizes.count, sizes.hidden, false)?;
        self.mixture(module, PROJECTIONS, sizes, softmax_router(projection, normalised), activation, shared)
    }

    /// The projections of experts that `module` has in three stacks.
    pub(super) fn stacks(&self, module: &str, sizes: ExpertSizes) -> Result<[WeightRef; 3]> {
        let ExpertSizes { count, hidden, width, .. } = sizes;
        let stack = |name, rows, columns| self.matrices(&format!("{module}.{name}"), count, rows, columns);
        let [gate, up, down] = PROJECTIONS;
        Ok([stack(gate, width, hidden)?, stack(up, width, hidden)?, stack(down, hidden, width)?])
    }

    /// The projections `{module}.experts.{index}.{name}`, stacked.
    pub(super) fn one_by_one(
        &self,
        module: &str,
        name: &str,
        count: usize,
        [rows, columns]: [usize; 2],
    ) -> Result<WeightRef> {
        let each = |index| self.matrix(&format!("{module}.experts.{index}.{name}"), rows, columns);
        self.stack((0..count).map(each))
    }

    /// Weights stacked along a new first dimension; all must have the same storage format.
    fn stack(&self, weights: impl Iterator<Item = Result<WeightRef>>) -> Result<WeightRef> {
        let mut weights = weights.collect::<Result<Vec<_>>>()?.into_iter();
        let Some(first) = weights.next() else {
            return Err(Error::new(ErrorKind::Corrupt, OPERATION, "there are no experts"));
        };
        refuse_order(&first, "experts")?;
        let rest = weights.collect::<Vec<_>>();
        match rest.iter().find(|other| !alike(&first, other)) {
            None => Ok(first.stacked(rest)),
            Some(other) => {
                let message = format!(
                    "experts that are stored differently are not supported: this one is {}, and {} is {}",
                    other.storage(),
                    first.tensor,
                    first.storage()
                );
                Err(Error::unsupported(OPERATION, message).with_context("tensor", &other.tensor))
            }
        }
    }
}

/// Gates and up projections of experts that have consecutively: `[experts, 2 · width, …]`.
pub(super) fn halves(fused: &WeightRef, width: usize) -> [WeightRef; 2] {
    [0, width]
        .map(|start| fused.clone().select(Selection { axis: 1, start, run: width, stride: width, runs: 1 }))
}

/// Whether two weights have one type, shape and packing, companions included.
fn alike(a: &WeightRef, b: &WeightRef) -> bool {
    let parts = |weight: &WeightRef| {
        weight.tensors().map(|part| (part.element, part.shape.clone())).collect::<Vec<_>>()
    };
    parts(a) == parts(b) && a.storage() == b.storage()
}

/// Reads the width of the shared experts, of which the field `key` gives the number and each is `width` wide;
/// zero if there is none.
pub(super) fn shared_width(config: Fields<'_>, key: &str, width: usize) -> Result<usize> {
    let absent = usize::from(!config.mentions(key));
    Ok(config.size(key, 0..=64)?.unwrap_or(absent) * width)
}

/// The shared experts of a module, which are one MLP of this width.
pub(super) fn shared_experts(
    roles: &Roles<'_>,
    module: &str,
    [hidden, width]: [usize; 2],
    activation: Activation,
    biases: bool,
) -> Result<Option<SharedExpert>> {
    if width == 0 {
        return Ok(None);
    }
    let mlp = roles.gated_mlp(module, [hidden, width], activation, biases)?;
    Ok(Some(mlp.into()))
}

/// The shared expert of a mixture in `module`, behind a gate of its own.
pub(super) fn gated_shared_expert(
    roles: &Roles<'_>,
    module: &str,
    [hidden, width]: [usize; 2],
    activation: Activation,
) -> Result<Option<SharedExpert>> {
    let mlp = roles.gated_mlp(&format!("{module}.shared_expert"), [hidden, width], activation, false)?;
    let gate = Some(roles.linear(&format!("{module}.shared_expert_gate"), 1, hidden, false)?);
    Ok(Some(SharedExpert { gate, ..mlp.into() }))
}
