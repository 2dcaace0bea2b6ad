//! Chooses how many tokens to draft, from measured costs and acceptance.

use std::collections::BTreeMap;

/// The numbers of draft tokens that are tried: with the token before them they fill the rows that engines
/// have programs for.
const WIDTHS: [usize; 4] = [1, 3, 7, 15];

/// The fraction of the time that rejected draft tokens may cost.
const MOST_LOST: f64 = 0.02;

/// How many passes without draft tokens drafting may lose beyond that fraction.
const CREDIT: f64 = 1.0;

/// How much a new measurement counts beside the earlier ones.
const WEIGHT: f64 = 0.2;

/// After this many passes a cost that was often measured is in doubt, and measured again. After the first
/// measurements the number is smaller, and doubles with each.
const MEASURED_AGAIN: u64 = 256;

/// After this many passes with draft tokens, one without them is measured.
const PLAIN_AGAIN: usize = 64;

/// A cost in doubt counts as this much at most, or as the known costs of fewer draft tokens let expect. What
/// is the first to run a program, or runs on a machine that is busy with something else, takes a hundred
/// times as long: that must not keep the cost from being measured again.
const MOST_IN_DOUBT: f64 = 4.0;

/// Adds a measurement to a running mean. A pass can take too long by accident, but never too short: outliers
/// above the mean have little weight, and one below half of it replaces it.
fn average(mean: &mut Option<f64>, value: f64) {
    match mean {
        Some(mean) if value >= 0.5 * *mean => *mean += WEIGHT * (value.min(2.0 * *mean) - *mean),
        _ => *mean = Some(value),
    }
}

/// The measured cost of passes with a number of draft tokens.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Relative to a pass without draft tokens.
    mean: f64,
    /// How many times it was measured.
    count: u32,
    /// Whether nothing but the first run of a program was measured.
    cold: bool,
    /// The number of passes before it was measured last.
    at: u64,
}

/// The measured cost of a pass by its number of draft tokens. Shared by all generations.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    measured: BTreeMap<usize, Cost>,
    /// How many passes of generations that draft were measured, with draft tokens or without.
    passes: u64,
}

impl Costs {
    /// The cost of a pass with `width` draft tokens: measured, or interpolated linearly.
    fn of(&self, width: usize) -> f64 {
        let cost = |(&width, cost): (&usize, &Cost)| {
            (width, if self.in_doubt(cost) { cost.mean.min(self.most_in_doubt(width)) } else { cost.mean })
        };
        let at_least = self.measured.range(width..).next().map(cost);
        let at_most = self.measured.range(..=width).next_back().map(cost);
        match (at_most, at_least) {
            (Some((_, cost)), Some((same, _))) if same == width => cost,
            (Some((low, a)), Some((high, b))) => a + (b - a) * (width - low) as f64 / (high - low) as f64,
            (Some((low, a)), None) => a + (a - 1.0).max(0.0) * (width - low) as f64 / low as f64,
            (None, Some((high, b))) => 1.0 + (b - 1.0) * width as f64 / high as f64,
            (None, None) => 1.0 + 0.1 * width as f64,
        }
    }

    /// Whether a measurement is old, or of a program's first run.
    fn in_doubt(&self, cost: &Cost) -> bool {
        cost.cold || self.passes - cost.at >= (MEASURED_AGAIN >> 5_u32.saturating_sub(cost.count))
    }

    /// What a measured cost in doubt counts as at most.
    fn most_in_doubt(&self, width: usize) -> f64 {
        let known = self.measured.range(..width).rfind(|(_, cost)| !self.in_doubt(cost));
        let expected = known.map(|(&fewer, cost)| 1.0 + (cost.mean - 1.0) * width as f64 / fewer as f64);
        expected.unwrap_or_default().max(MOST_IN_DOUBT)
    }

    /// The lowest cost that a pass with `width` draft tokens may turn out to have, unless its cost is known:
    /// that of the next fewer whose cost is known, since engines have one program for several.
    fn at_best(&self, width: usize) -> Option<f64> {
        let known = |range: std::ops::RangeInclusive<usize>| {
            self.measured.range(range).rfind(|(_, cost)| !self.in_doubt(cost)).map(|(_, cost)| cost.mean)
        };
        let program = programs(width);
        known(program.clone()).is_none().then(|| known(0..=*program.start()).unwrap_or(1.0))
    }

    /// Records the cost of a pass; false if it was the first with its program, which says little about the
    /// next.
    fn measure(&mut self, width: usize, value: f64) -> bool {
        let cold = self.measured.range(programs(width)).next().is_none();
        let at = self.passes;
        let cost = self.measured.entry(width).or_insert(Cost { mean: value, count: 0, cold, at });
        let mut mean = (!cost.cold).then_some(cost.mean);
        average(&mut mean, value);
        *cost = Cost { mean: mean.unwrap_or(value), count: cost.count.saturating_add(1), cold, at };
        !cold
    }
}

/// The numbers of draft tokens that a program for `width` of them serves.
fn programs(width: usize) -> std::ops::RangeInclusive<usize> {
    let below = WIDTHS.into_iter().rfind(|&most| most < width).unwrap_or(0);
    let most = WIDTHS.into_iter().find(|&most| most >= width).unwrap_or(usize::MAX);
    below + 1..=most
}

/// Decides for one generation. Times are in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Governor {
    /// A pass without draft tokens.
    plain: Option<f64>,
    /// How many of those were measured.
    plain_passes: usize,
    /// How many passes with draft tokens ran since.
    since_plain: usize,
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

    /// Records that the first `accepted` of `drafted` draft tokens were accepted; those after the first
    /// rejected one carry no information.
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
        let Some(plain) = self.plain else { return 0 };
        // The first one may have been the first run of its program.
        if self.plain_passes < 2 || self.since_plain >= PLAIN_AGAIN {
            return 0;
        }
        // What drafting may lose now: of the time so far, and of what it has gained.
        let room = (MOST_LOST * self.spent - self.lost) / plain + CREDIT;
        let gain = |width: usize| record.tokens(width) / costs.of(width);
        // The first measurement is of the fewest.
        let most = if costs.measured.is_empty() { most.min(WIDTHS[0]) } else { most };
        let widths = || WIDTHS.into_iter().filter(|&width| width < most).chain((most > 0).then_some(most));
        let Some(best) = widths().max_by(|&a, &b| gain(a).total_cmp(&gain(b))) else { return 0 };
        // The worst-case loss, in passes without draft tokens.
        let risk = |width: usize| (costs.of(width) - 1.0).max(0.0);
        let pays = gain(best) > 1.02 && risk(best) <= room;
        // A cost that is not known is measured where it may turn out to pay more, and the expected loss is
        // allowed.
        let least = if pays { gain(best) } else { 1.02 };
        let may_pay =
            |width: usize| costs.at_best(width).is_some_and(|cost| record.tokens(width) / cost > 1.1 * least);
        let loss = |width: usize| costs.of(width) - record.tokens(width);
        if let Some(width) = widths().find(|&width| may_pay(width) && loss(width) <= room) {
            return width;
        }
        if pays {
            return best;
        }
        let least = WIDTHS[0].min(most);
        // While drafting does not pay, a few draft tokens detect when it starts to.
        if risk(least) <= room - 0.5 || gain(least) > 1.02 && risk(least) <= room { least } else { 0 }
    }

    /// Records a pass that took `seconds`, drafting included, with `drafted` draft tokens, `accepted` of
    /// which were right.
    pub(super) fn observe(&mut self, costs: &mut Costs, seconds: f64, drafted: usize, accepted: usize) {
        costs.passes += 1;
        if drafted == 0 {
            self.spent += if self.plain_passes == 0 { 0.0 } else { seconds };
            self.since_plain = 0;
            self.plain_passes = self.plain_passes.saturating_add(1);
            average(&mut self.plain, seconds);
            return;
        }
        let Some(plain) = self.plain.filter(|&mean| mean > 0.0) else { return };
        self.since_plain += 1;
        let expected = plain * costs.of(drafted).max(1.0);
        let warm = costs.measure(drafted, seconds / plain);
        // What the first run of a program, or a stall, takes beyond what was expected is not due to the draft
        // tokens.
        let is_normal = warm && seconds < 4.0 * expected;
        let seconds = if is_normal { seconds } else { seconds.min(expected) };
        self.spent += seconds;
        self.lost += seconds - plain * (accepted + 1) as f64;
        // Time gained earlier must not be lost again.
        self.lost = self.lost.max(-4.0 * plain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated engine and a drafter. Times are relative to a pass without draft tokens.
    struct Simulated<C> {
        /// The time of a pass by its number of draft tokens.
        cost: C,
        /// The probability that a draft token is right.
        right: f64,
        /// How many times as long the first pass with each program takes.
        cold: f64,
        /// This pass with draft tokens takes 1,000 times as long.
        stalled: Option<usize>,
        costs: Costs,
        governor: Governor,
        record: Record,
        state: u64,
        warm: [bool; 16],
        drafted: usize,
    }

    impl<C: Fn(usize) -> f64> Simulated<C> {
        fn new(cost: C, right: f64) -> Self {
            let (costs, governor, record) = (Costs::default(), Governor::default(), Record::default());
            Self {
                cost,
                right,
                cold: 1.0,
                stalled: None,
                costs,
                governor,
                record,
                state: 7,
                warm: [false; 16],
                drafted: 0,
            }
        }

        /// The same engine in another generation.
        fn again(self) -> Self {
            Self { governor: Governor::default(), record: Record::default(), ..self }
        }

        /// Tokens per time of the next `tokens` tokens; without the time by which first passes and a stall
        /// are longer.
        fn speed(&mut self, tokens: usize) -> f64 {
            let (mut done, mut time) = (0, 0.0);
            while done < tokens {
                let width = self.governor.width(&self.costs, &self.record, 15);
                let mut accepted = 0;
                while accepted < width && self.draw() < self.right {
                    accepted += 1;
                }
                let warm = (self.cost)(width);
                let mut seconds = warm;
                let program = *programs(width.max(1)).end();
                let program = if width == 0 { 0 } else { program };
                if !std::mem::replace(&mut self.warm[program], true) {
                    seconds *= self.cold;
                }
                if width > 0 {
                    if self.stalled == Some(self.drafted) {
                        seconds *= 1000.0;
                    }
                    self.drafted += 1;
                }
                self.governor.observe(&mut self.costs, seconds, width, accepted);
                if width > 0 {
                    self.record.add(width, accepted);
                }
                done += accepted + 1;
                time += warm;
            }
            done as f64 / time
        }

        fn draw(&mut self) -> f64 {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    fn linear(slope: f64) -> impl Fn(usize) -> f64 {
        move |width| 1.0 + slope * width as f64
    }

    /// One program for up to 7 draft tokens, and another for up to 15.
    fn steps(width: usize) -> f64 {
        [1.0, 2.3, 3.0][width.min(1) + usize::from(width > 7)]
    }

    #[test]
    fn rejected_drafts_cost_at_most_three_percent() {
        for slope in [0.01, 0.05, 0.3, 1.0, 3.0] {
            for cold in [1.0, 10.0, 1000.0] {
                for tokens in [200, 1000, 5000] {
                    let mut fresh = Simulated { cold, ..Simulated::new(linear(slope), 0.0) };
                    let speed = fresh.speed(tokens);
                    assert!(speed >= 0.97, "{slope}, {cold}, {tokens}: {speed}");
                    let known = fresh.again().speed(tokens);
                    assert!(known >= 0.97, "{slope}, {cold}, {tokens}: {known} in the second text");
                }
            }
        }
    }

    #[test]
    fn drafts_that_seldom_pay_cost_at_most_three_percent() {
        for (right, state) in [(0.1, 7), (0.3, 11), (0.5, 99), (0.7, 5), (0.9, 777)] {
            for slope in [0.05, 0.3, 1.0, 3.0] {
                let speed = Simulated { state, ..Simulated::new(linear(slope), right) }.speed(1000);
                assert!(speed >= 0.97, "{right}, {slope}: {speed}");
            }
            let speed = Simulated { state, ..Simulated::new(steps, right) }.speed(1000);
            assert!(speed >= 0.97, "{right}: {speed}");
        }
    }

    #[test]
    fn accepted_drafts_reach_the_machines_speed() {
        for (slope, right, least) in
            [(0.05, 0.8, 2.4), (0.05, 0.5, 1.4), (0.02, 0.95, 6.0), (0.5, 0.8, 1.05), (1.0, 0.9, 0.97)]
        {
            let found = Simulated::new(linear(slope), right).speed(1000);
            assert!(found >= least, "{slope}, {right}: {found}");
        }
    }

    /// Whatever the first passes or a stalled one took, after 300 tokens a perfect drafter has its speed.
    #[test]
    fn a_perfect_drafter_is_back_within_300_tokens() {
        for cold in [1.0, 10.0, 1000.0] {
            for stalled in [None, Some(0), Some(1), Some(2), Some(5)] {
                let mut gentle = Simulated { cold, stalled, ..Simulated::new(linear(0.05), 1.0) };
                gentle.speed(300);
                let found = gentle.speed(1000);
                assert!(found >= 6.0, "{cold}, {stalled:?}: {found} of 9.1");
                let mut stepped = Simulated { cold, stalled, ..Simulated::new(steps, 1.0) };
                stepped.speed(300);
                let found = stepped.speed(1000);
                assert!(found >= 3.0, "{cold}, {stalled:?}: {found} of 5.3");
            }
        }
    }

    #[test]
    fn a_drafter_that_turns_right_is_used_within_300_tokens() {
        for slope in [0.02, 0.1] {
            let mut drafter = Simulated::new(linear(slope), 0.0);
            drafter.speed(2000);
            drafter.right = 1.0;
            drafter.speed(300);
            let found = drafter.speed(1000);
            assert!(found >= 4.0, "{slope}: {found}");
        }
    }

    #[test]
    fn costs_are_interpolated_linearly() {
        let mut costs = Costs::default();
        assert_eq!(costs.of(5), 1.5);
        for _ in 0..2 {
            costs.measure(3, 1.3);
            costs.measure(7, 1.7);
        }
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} and {b}");
        close(costs.of(5), 1.5);
        close(costs.of(7), 1.7);
        close(costs.of(14), 2.4);
        close(costs.of(1), 1.1);
    }
}
