//! Plans a step: which requests take part, and with how many tokens. A pure function.

use std::cmp::Reverse;

/// What a running request wants from the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// How many of its tokens its sequence does not hold: one where it decodes, more where a prompt is
    /// computed. None of a request that takes no part.
    pub(super) pending: usize,
    /// Larger goes first.
    pub(super) priority: i32,
    /// The step that served it last.
    pub(super) served: u64,
}

/// What a step computes of one of the wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// Its index among the wanted.
    pub(super) index: usize,
    /// How many of its pending tokens.
    pub(super) tokens: usize,
}

/// Plans a step of at most `budget` tokens for an engine that computes prompts in chunks of `chunk` tokens.
///
/// There are no phases: requests differ in how many tokens they lack. Those that lack one decode and go
/// first, so that a prompt delays no request's next token. The remaining budget goes to prompts in whole
/// chunks: a request is given as many chunks as fit, or all that it lacks, but not a part of a chunk that
/// would share the budget with a neighbour. So where a prompt is cut does not depend on its neighbours, and
/// no pass is padded for a remainder. Within a priority the least recently served request goes first: of `n`
/// prompts each is served at least every `n` steps.
pub(super) fn plan(wanted: &[Wanted], budget: usize, chunk: usize) -> Vec<Planned> {
    let mut order: Vec<usize> = (0..wanted.len()).filter(|&index| wanted[index].pending > 0).collect();
    order.sort_by_key(|&index| {
        let request = &wanted[index];
        (request.pending > 1, Reverse(request.priority), request.served, index)
    });
    let chunk = chunk.max(1);
    let mut left = budget;
    let mut planned = Vec::with_capacity(wanted.len());
    let mut chunked = false;
    for index in order {
        let pending = wanted[index].pending;
        let tokens = if pending <= left {
            pending
        } else if left >= chunk {
            left - left % chunk
        } else if chunked {
            // A later one may still fit as a whole.
            continue;
        } else {
            left
        };
        if tokens == 0 {
            break;
        }
        chunked |= pending > 1;
        left -= tokens;
        planned.push(Planned { index, tokens });
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pending: usize) -> Wanted {
        Wanted { pending, priority: 0, served: 0 }
    }

    fn tokens(requests: &[Wanted], budget: usize, chunk: usize) -> Vec<(usize, usize)> {
        plan(requests, budget, chunk).into_iter().map(|row| (row.index, row.tokens)).collect()
    }

    #[test]
    fn decoding_precedes_prompts_of_any_priority() {
        let urgent = Wanted { priority: 9, ..wanted(100) };
        assert_eq!(tokens(&[urgent, wanted(1), wanted(1)], 18, 16), [(1, 1), (2, 1), (0, 16)]);
    }

    #[test]
    fn chunk_boundaries_do_not_depend_on_batch_composition() {
        for neighbours in 0..8 {
            let mut requests = vec![wanted(1); neighbours];
            requests.push(wanted(1000));
            let planned = tokens(&requests, 16 + 8, 16);
            assert_eq!(planned.last(), Some(&(neighbours, 16)));
        }
        assert_eq!(tokens(&[wanted(1000)], 50, 16), [(0, 48)]);
        assert_eq!(tokens(&[wanted(40)], 50, 16), [(0, 40)], "the last chunk is what remains");
    }

    #[test]
    fn the_remaining_budget_goes_to_prompts_that_fit_whole() {
        assert_eq!(tokens(&[wanted(10), wanted(12), wanted(6)], 16, 16), [(0, 10), (2, 6)]);
        assert_eq!(tokens(&[wanted(10), wanted(100), wanted(100)], 32, 16), [(0, 10), (1, 16)]);
    }

    #[test]
    fn a_budget_below_the_chunk_still_advances_the_first_prompt_alone() {
        assert_eq!(tokens(&[wanted(100), wanted(100)], 5, 16), [(0, 5)]);
        assert_eq!(tokens(&[wanted(1), wanted(1), wanted(1)], 2, 16), [(0, 1), (1, 1)]);
        assert_eq!(tokens(&[wanted(0)], 5, 16), []);
    }

    #[test]
    fn prompts_are_ordered_by_priority_then_waiting_time() {
        let mut requests = [wanted(100); 3];
        requests[0].served = 7;
        requests[1].served = 5;
        (requests[2].served, requests[2].priority) = (9, 1);
        assert_eq!(tokens(&requests, 16, 16), [(2, 16)]);
        requests[2].priority = -1;
        assert_eq!(tokens(&requests, 16, 16), [(1, 16)]);
    }

    #[test]
    fn many_prompts_and_decoding_requests_are_all_served() {
        let mut requests: Vec<Wanted> = (0..12).map(|i| wanted(if i < 6 { 1 } else { 500 })).collect();
        for step in 1..=60 {
            // Fewer tokens than decoding requests and a chunk want.
            for row in plan(&requests, 6 + 16, 16) {
                let request = &mut requests[row.index];
                assert!(row.index < 6 || request.served + 6 >= step || request.served == 0);
                request.served = step;
            }
        }
        assert!(requests[..6].iter().all(|request| request.served == 60));
        assert!(requests[6..].iter().all(|request| request.served > 54));
    }
}
