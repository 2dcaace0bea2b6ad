//! The last use of each slot.

use std::collections::HashSet;

use super::node::SlotId;
use super::step::{BlockPlan, Planned};

/// Completes a block's plan: which slots each step releases, and which of the slots that steps update, and of
/// the results, may be taken over instead of copied. `owns` says of a slot whether it is the block's own.
pub(super) fn finish(
    mut steps: Vec<Planned>,
    results: &[SlotId],
    owns: impl Fn(SlotId) -> bool,
) -> BlockPlan {
    let mut needed: HashSet<SlotId> = results.iter().copied().collect();
    for planned in steps.iter_mut().rev() {
        let mut touched = Vec::new();
        planned.step.reads(&mut |slot| touched.push(slot));
        let reads = touched.clone();
        planned.step.writes(&mut |slot| touched.push(slot));
        for slot in touched {
            if owns(slot) && needed.insert(slot) {
                planned.release.push(slot);
            }
        }
        for (slot, take) in planned.step.consumes() {
            // The update is the only thing that this last step reads of it.
            *take = planned.release.contains(slot) && reads.iter().filter(|&read| read == slot).count() == 1;
        }
    }
    let last = |i: usize| !results[i + 1..].contains(&results[i]);
    let results = results.iter().enumerate().map(|(i, &slot)| (slot, owns(slot) && last(i))).collect();
    BlockPlan { steps, results }
}
