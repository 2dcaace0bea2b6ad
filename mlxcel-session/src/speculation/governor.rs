//! Chooses how many tokens to draft, from measured costs and acceptance.

use std::collections::BTreeMap;

/// The numbers of draft tokens that are tried: with the token before them they fill the rows that engines have programs for.
const WIDTHS: [usize; 4] = [1, 3, 7, 15];

/// The fraction of the time that rejected draft tokens may cost.
const MOST_LOST: f64 = 0.02;

/// How much a new measurement counts beside the earlier ones.
const WEIGHT: f64 = 0.2;

/// A mean in which later measurements count more.
#[derive(Clone, Copy, Debug)]
struct Mean(f64);

impl Mean {
    /// Running mean of measurements; outliers have little weight.
    fn add(mean: &mut Option<Self>, value: f64) {
        match mean {
            None => *mean = Some(Self(value)),
            Some(Self(mean)) => *mean += WEIGHT * (value.min(4.0 * *mean) - *mean),
        }
    }
}

/// The measured cost of a pass by its number of draft tokens, relative to a pass without. Shared by all generations.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs(BTreeMap<usize, f64>);

impl Costs {
    /// The cost of a pass with `width` draft tokens: measured, or interpolated linearly.
    fn of(&self, width: usize) -> f64 {
        let at_least = self.0.range(width..).next();
        let at_most = self.0.range(..=width).next_back();
        match (at_most, at_least) {
            (Some((_, &cost)), Some((&same, _))) if same == width => cost,
            (Some((&low, &a)), Some((&high, &b))) => a + (b - a) * (width - low) as f64 / (high - low) as f64,
            (Some((&low, &a)), None) => a + (a - 1.0).max(0.0) * (width - low) as f64 / low as f64,
            (None, Some((&high, &b))) => 1.0 + (b - 1.0) * width as f64 / high as f64,
            (None, None) => 1.0 + 0.1 * width as f64,
        }
    }

    /// Whether nothing was measured yet.
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn measure(&mut self, width: usize, cost: f64) {
        let mut mean = self.0.get(&width).copied().map(Mean);
        Mean::add(&mut mean, cost);
        if let Some(Mean(cost)) = mean {
            self.0.insert(width, cost);
        }
    }
}

/// Decides for one generation. Times are in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Governor {
    /// A pass without draft tokens.
    plain: Option<Mean>,
    /// All passes so far.
    spent: f64,
    /// Time that drafting cost minus the time that it saved.
    lost: f64,
}

/// The acceptance rate of one drafter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    right: f64,
    verified: f64,
}

impl Default for Record {
    /// Of nothing known, half are right.
    fn default() -> Self {
        Self { right: 1.0, verified: 2.0 }
    }
}

impl Record {
    /// The probability that a draft token is accepted if those before it were.
    fn rate(&self) -> f64 {
        (self.right / self.verified).min(0.99)
    }

    /// Records that the first `accepted` of `drafted` draft tokens were accepted; those after the first rejected one carry no information.
    pub(super) fn add(&mut self, drafted: usize, accepted: usize) {
        const MEMORY: f64 = 32.0;
        let verified = (accepted + 1).min(drafted) as f64;
        let keep = (1.0 - verified / MEMORY).max(0.0);
        self.right = self.right * keep + accepted as f64;
        self.verified = self.verified * keep + verified;
    }

    /// The expected number of tokens from a pass with this many draft tokens.
    fn tokens(&self, width: usize) -> f64 {
        let rate = self.rate();
        (1.0 - rate.powi(width as i32 + 1)) / (1.0 - rate)
    }
}

impl Governor {
    /// How many tokens to draft with a source with this record, at most `most`.
    pub(super) fn width(&self, costs: &Costs, record: &Record, most: usize) -> usize {
        let Some(Mean(plain)) = self.plain else { return 0 };
        let gain = |width: usize| record.tokens(width) / costs.of(width);
        // The first measurement is of the fewest.
        let most = if costs.is_empty() { most.min(WIDTHS[0]) } else { most };
        let widths = WIDTHS.into_iter().filter(|&width| width <= most).chain((most > 0).then_some(most));
        let Some(best) = widths.max_by(|&a, &b| gain(a).total_cmp(&gain(b))) else { return 0 };
        // The worst-case loss, against what drafting has gained and the loss that is allowed.
        let risk = |width: usize| (costs.of(width) - 1.0).max(0.0) * plain;
        let room = MOST_LOST * self.spent + 0.5 * plain - self.lost;
        if gain(best) > 1.02 && risk(best) <= room {
            return best;
        }
        let least = WIDTHS[0].min(most);
        // While drafting does not pay, a few draft tokens detect when it starts to.
        if risk(least) <= room - 0.5 * plain || gain(least) > 1.02 && risk(least) <= room { least } else { 0 }
    }

    /// Records a pass that took `seconds`, drafting included, with `drafted` draft tokens, `accepted` of which were right.
    pub(super) fn observe(&mut self, costs: &mut Costs, seconds: f64, drafted: usize, accepted: usize) {
        self.spent += seconds;
        if drafted == 0 {
            Mean::add(&mut self.plain, seconds);
            return;
        }
        let Some(Mean(plain)) = self.plain.filter(|mean| mean.0 > 0.0) else { return };
        self.lost += seconds - plain * (accepted + 1) as f64;
        // Time gained earlier must not be lost again.
        self.lost = self.lost.max(-4.0 * plain);
        costs.measure(drafted, seconds / plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs passes of a machine on which `width` draft tokens cost `1 + slope * width`, each right with probability `right`;
    /// gives the tokens
    /// per time, 1 being plain decoding.
    fn speed(slope: f64, right: f64, passes: usize, costs: &mut Costs) -> f64 {
        let (mut governor, mut record) = (Governor::default(), Record::default());
        let (mut tokens, mut time, mut state) = (0.0, 0.0, 7u64);
        for _ in 0..passes {
            let width = governor.width(costs, &record, 15);
            let mut accepted = 0;
            for _ in 0..width {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (state >> 11) as f64 / (1u64 << 53) as f64 >= right {
                    break;
                }
                accepted += 1;
            }
            let seconds = 1.0 + slope * width as f64;
            governor.observe(costs, seconds, width, accepted);
            if width > 0 {
                record.add(width, accepted);
            }
            tokens += (accepted + 1) as f64;
            time += seconds;
        }
        tokens / time
    }

    #[test]
    fn rejected_drafts_cost_at_most_five_percent() {
        for slope in [0.01, 0.05, 0.3, 1.0, 3.0] {
            for passes in [100, 200, 1000] {
                let fresh = speed(slope, 0.0, passes, &mut Costs::default());
                assert!(fresh >= 0.95, "{slope}, {passes}: {fresh}");
            }
            let mut costs = Costs::default();
            speed(slope, 0.0, 100, &mut costs);
            let known = speed(slope, 0.0, 200, &mut costs);
            assert!(known >= 0.97, "{slope}: {known}");
        }
    }

    #[test]
    fn accepted_drafts_reach_the_machines_speed() {
        for (slope, right, least) in
            [(0.05, 0.8, 2.4), (0.05, 0.5, 1.4), (0.02, 0.95, 6.0), (0.5, 0.8, 1.05), (1.0, 0.9, 0.97)]
        {
            let found = speed(slope, right, 400, &mut Costs::default());
            assert!(found >= least, "{slope}, {right}: {found}");
        }
    }

    #[test]
    fn costs_are_interpolated_linearly() {
        let mut costs = Costs::default();
        assert_eq!(costs.of(5), 1.5);
        costs.measure(3, 1.3);
        costs.measure(7, 1.7);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} and {b}");
        close(costs.of(5), 1.5);
        close(costs.of(7), 1.7);
        close(costs.of(14), 2.4);
        close(costs.of(1), 1.1);
    }
}
