//! Assigns sequences to requests, and preempts requests when sequences or memory run out.

use std::cmp::Reverse;

use mlxcel_core::{Error, ErrorKind};

use super::queue::Entry;
use super::scheduler::Scheduler;

impl Scheduler {
    /// Gives sequences to those that wait, as long as there are some. Where all are taken, requests whose readers are behind give theirs up
    /// to those that could go on.
    pub(super) fn admit(&mut self) {
        let texts = self.text_sequences();
        loop {
            let paused = self.running.iter().position(|request| request.is_paused());
            let full = self.running.len() >= self.most || self.running.len() + texts >= self.limits.sequences;
            if full && paused.is_none() {
                return;
            }
            // Who was paused without a sequence needs none before its reader has read.
            let may_begin = |entry: &Entry| !entry.sender.is_full() && !self.is_being_computed(entry);
            let Some(next) = self.waiting.iter().position(may_begin) else { return };
            if let Some(paused) = paused.filter(|_| full) {
                let mut request = self.running.remove(paused);
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

    /// Makes room after a row found no memory for its cache: the youngest request of the least priority loses its sequence, and is computed
    /// again once another has ended. A request that is alone with all the memory ends with `error`.
    ///
    /// This comes to an end: every time one request less has a sequence, and one more only after another has ended.
    pub(super) fn relieve(&mut self, error: Error) {
        let youngest = (0..self.running.len()).max_by_key(|&index| {
            let entry = &self.running[index].entry;
            (Reverse(entry.priority), entry.number)
        });
        let Some(youngest) = youngest else { return };
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

    /// Allows one more sequence after a request has ended, unless the end made room for one that had to give its own up.
    pub(super) fn relax(&mut self) {
        if self.most < self.limits.sequences && !self.waiting.iter().any(|entry| entry.begun) {
            self.most += 1;
        }
    }
}

fn is_shortage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ResourceExhausted | ErrorKind::CapacityExceeded)
}
