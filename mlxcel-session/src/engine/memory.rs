//! Assigns sequences to requests, and preempts requests when sequences or memory run out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use mlxcel_core::{Error, ErrorKind};

use super::queue::Entry;
use super::request::Share;
use super::scheduler::Scheduler;

impl Scheduler {
    /// Gives sequences to those that wait, as long as there are some. Where all are taken, requests whose
    /// readers are behind give theirs up to those that could go on, and so do requests of clients with
    /// more than their share.
    pub(super) fn admit(&mut self) {
        let texts = self.text_sequences();
        while !self.waiting.is_empty() {
            let held = Held::of(self);
            let full = self.running.len() >= self.most || self.running.len() + texts >= self.limits.sequences;
            let paused = || self.running.iter().position(|request| request.is_paused());
            if full && paused().is_none() && !held.is_uneven(self) {
                return;
            }
            let Some(next) = self.next(&held) else { return };
            if full {
                let excess = || held.excess(self, &self.waiting[next]);
                let Some(yielding) = paused().or_else(excess) else { return };
                let mut request = self.running.remove(yielding);
                self.give_up(request.sequence, &request.entry);
                request.entry.generation.set_computed(0);
                self.stats.preempted += 1;
                self.wait(request.entry);
                continue;
            }
            let entry = self.waiting.remove(next);
            match self.open_for(&entry) {
                Ok((sequence, computed)) => self.begin(entry, sequence, computed),
                Err(error) if !is_shortage(&error) => self.end(entry, Err(error)),
                Err(error) if self.running.is_empty() && texts == 0 => self.end(entry, Err(error)),
                Err(_) => {
                    self.most = self.running.len().max(1);
                    self.wait(entry);
                    if self.running.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    /// The request that begins next: of the highest priority, then of the client with the fewest sequences,
    /// then of its group with the fewest, then the earliest. Who was paused without a sequence needs none
    /// before its reader has read.
    fn next(&self, held: &Held) -> Option<usize> {
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_key(|&index| {
            let entry = &self.waiting[index];
            (Reverse(entry.priority), held.by(entry.share), entry.number)
        });
        let may_begin = |entry: &Entry| !entry.sender.is_full() && !self.is_being_computed(entry);
        order.into_iter().find(|&index| may_begin(&self.waiting[index]))
    }

    /// Makes room after a row found no memory for its cache: the youngest request of the least priority loses
    /// its sequence, and is computed again once another has ended. A request that is alone with texts waits
    /// until they are computed, and one that is alone with all the memory ends with `error`.
    ///
    /// This comes to an end: every time one request less has a sequence, and one more only after another has
    /// ended. Texts end, and no others begin meanwhile.
    pub(super) fn relieve(&mut self, error: Error) {
        let youngest = (0..self.running.len()).max_by_key(|&index| {
            let entry = &self.running[index].entry;
            (Reverse(entry.priority), entry.number)
        });
        let Some(youngest) = youngest else { return };
        if self.running.len() == 1 && self.text_sequences() > 0 {
            self.texts_pause = true;
            return;
        }
        let mut request = self.running.remove(youngest);
        if self.running.is_empty() {
            self.leave(request, Err(error));
            return;
        }
        self.close(request.sequence);
        request.entry.generation.set_computed(0);
        request.entry.span.in_scope(|| tracing::debug!(%error, "is preempted"));
        self.stats.preempted += 1;
        self.most = self.running.len();
        self.wait(request.entry);
    }

    /// Allows one more sequence after a request has ended, unless the end made room for one that had to give
    /// its own up.
    pub(super) fn relax(&mut self) {
        if self.most < self.limits.sequences && !self.waiting.iter().any(|entry| entry.begun) {
            self.most += 1;
        }
    }
}

/// How many sequences each group of each client holds.
struct Held(BTreeMap<Share, usize>);

impl Held {
    fn of(scheduler: &Scheduler) -> Self {
        let mut held = BTreeMap::new();
        scheduler.running.iter().for_each(|request| *held.entry(request.entry.share).or_default() += 1);
        Self(held)
    }

    /// How many the client and the group of `share` hold.
    fn by(&self, share: Share) -> (usize, usize) {
        let of_client = Share { group: 0, ..share }..=Share { group: u64::MAX, ..share };
        let client = self.0.range(of_client).map(|(_, count)| count).sum();
        (client, self.0.get(&share).copied().unwrap_or_default())
    }

    /// Whether one of those that wait has so much less than another that a sequence changes hands.
    fn is_uneven(&self, scheduler: &Scheduler) -> bool {
        // Many wait, of few clients.
        let mut known = BTreeSet::new();
        let mut waiting =
            scheduler.waiting.iter().filter(|entry| known.insert((entry.share, entry.priority)));
        waiting.any(|entry| self.excess(scheduler, entry).is_some())
    }

    /// The running request that yields its sequence to `entry`: the youngest of the group that has the most,
    /// if it has more than the group of `entry` would have. So what one gains by that the other does not
    /// lose again.
    fn excess(&self, scheduler: &Scheduler, entry: &Entry) -> Option<usize> {
        let (client, group) = self.by(entry.share);
        let running = scheduler.running.iter().enumerate();
        let yielding = running.filter(|(_, request)| {
            let share = request.entry.share;
            let (theirs, of_group) = self.by(share);
            let has_more = match share.client == entry.share.client {
                true => share.group != entry.share.group && of_group > group + 1,
                false => theirs > client + 1,
            };
            has_more && request.entry.priority <= entry.priority
        });
        let most = yielding.max_by_key(|(_, request)| {
            let entry = &request.entry;
            (Reverse(entry.priority), self.by(entry.share), entry.number)
        });
        most.map(|(index, _)| index)
    }
}

fn is_shortage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ResourceExhausted | ErrorKind::CapacityExceeded)
}
