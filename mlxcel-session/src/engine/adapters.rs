//! Counters of an engine by adapter.

use std::collections::BTreeMap;

use mlxcel_core::SequenceOptions;

use crate::sync::{Mutex, unpoisoned};

/// The maximum number of adapters with counters of their own: over months, a server may load any number.
const MOST: usize = 256;

/// Counters of the requests of an [`Engine`](super::Engine) with one adapter, since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterStats {
    /// [`Adapter::identity`](crate::Adapter::identity). `None` for the sum of those that were used least
    /// recently: the last 256 have counters of their own.
    pub adapter: Option<String>,
    /// Requests that got a sequence.
    pub requests: u64,
    /// Prompt tokens of these requests.
    pub prompt_tokens: u64,
    /// Prompt tokens reused from earlier requests.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
}

impl AdapterStats {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.reused_tokens += other.reused_tokens;
        self.generated_tokens += other.generated_tokens;
    }
}

/// The counters of an engine, which its thread changes and its handles read.
#[derive(Debug, Default)]
pub(super) struct AdapterCounts(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By identity, with the time of the last use.
    adapters: BTreeMap<String, (u64, AdapterStats)>,
    /// The sum of those that had to leave.
    others: AdapterStats,
    /// How often something was counted.
    clock: u64,
}

impl AdapterCounts {
    /// Counts a request that began, with so many of its prompt tokens reused.
    pub(super) fn begin(&self, options: &SequenceOptions, prompt_tokens: usize, reused_tokens: usize) {
        self.count(options, |stats| {
            stats.requests += 1;
            stats.prompt_tokens += prompt_tokens as u64;
            stats.reused_tokens += reused_tokens as u64;
        });
    }

    /// Counts a generated token.
    pub(super) fn token(&self, options: &SequenceOptions) {
        self.count(options, |stats| stats.generated_tokens += 1);
    }

    fn count(&self, options: &SequenceOptions, change: impl FnOnce(&mut AdapterStats)) {
        let Some(adapter) = &options.adapter else { return };
        let identity = adapter.identity();
        let mut counts = unpoisoned(self.0.lock());
        let Counts { adapters, others, clock } = &mut *counts;
        *clock += 1;
        if let Some((used, stats)) = adapters.get_mut(identity) {
            *used = *clock;
            return change(stats);
        }
        if adapters.len() >= MOST {
            let oldest = adapters.iter().min_by_key(|(_, (used, _))| *used).map(|(name, _)| name.clone());
            if let Some((_, stats)) = oldest.and_then(|oldest| adapters.remove(&oldest)) {
                others.add(&stats);
            }
        }
        let mut stats = AdapterStats { adapter: Some(identity.to_owned()), ..AdapterStats::default() };
        change(&mut stats);
        adapters.insert(identity.to_owned(), (*clock, stats));
    }

    /// The counters, by identity; those of others last, if there are any.
    pub(super) fn read(&self) -> Vec<AdapterStats> {
        let counts = unpoisoned(self.0.lock());
        let others = Some(&counts.others).filter(|others| others.requests + others.generated_tokens > 0);
        counts.adapters.values().map(|(_, stats)| stats).chain(others).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use mlxcel_core::{AdapterLimits, AdapterSlots};

    use super::*;
    use crate::sync::explore_once;

    #[test]
    fn the_least_recently_used_adapters_are_counted_together() {
        explore_once(|| {
            let counts = AdapterCounts::default();
            let slots = AdapterSlots::new(AdapterLimits::new(1, 1));
            let begin = |identity: String| {
                let adapter = slots.load(identity, |_| Ok(())).unwrap();
                counts.begin(&SequenceOptions::default().with_adapter(&adapter), 3, 1);
            };
            counts.begin(&SequenceOptions::default(), 3, 1);
            assert_eq!(counts.read(), []);
            (0..MOST).for_each(|number| begin(format!("{number:03}")));
            begin("000".to_owned());
            (0..2).for_each(|number| begin(format!("new {number}")));
            let read = counts.read();
            assert_eq!(read.len(), MOST + 1);
            assert_eq!((read[0].adapter.as_deref(), read[0].requests), (Some("000"), 2));
            assert!(read.iter().all(|stats| !matches!(stats.adapter.as_deref(), Some("001" | "002"))));
            let expected =
                AdapterStats { requests: 2, prompt_tokens: 6, reused_tokens: 2, ..AdapterStats::default() };
            assert_eq!(read.last(), Some(&expected));
        });
    }
}
