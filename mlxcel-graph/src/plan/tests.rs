//! Steps as the passes that they become.

use super::*;

fn pending(rows: &[(usize, Wants)]) -> Vec<Pending> {
    rows.iter().map(|&(remaining, wants)| Pending { remaining, wants }).collect()
}

/// Runs the plan to its end; each pass, after its check, as (pending row, tokens, room).
fn run(
    chunks: &Chunks,
    rows: &[(usize, Wants)],
    width: usize,
    check: impl Fn(&Pass),
) -> Vec<Vec<(usize, usize, usize)>> {
    let mut pending = pending(rows);
    let mut passes = Vec::new();
    while let Some(pass) = next_pass(&pending, chunks, width) {
        for row in &pass.rows {
            let Pending { remaining, wants } = &mut pending[row.row];
            *remaining -= row.tokens;
            if let Wants::Ends(ends) = wants {
                *ends = (*ends).min(*remaining);
            }
        }
        check(&pass);
        passes.push(pass.rows.iter().map(|row| (row.row, row.tokens, row.room)).collect());
    }
    passes
}

fn passes(remaining: &[usize], width: usize) -> Vec<Vec<(usize, usize, usize)>> {
    let rows: Vec<_> = remaining.iter().map(|&remaining| (remaining, Wants::Last)).collect();
    run(&Chunks::new(&[64]), &rows, width, |_| ())
}

#[test]
fn decoding_rows_share_one_pass() {
    assert_eq!(passes(&[1, 1, 1, 1], 4), [[(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]]);
    assert_eq!(passes(&[1; 6], 4).len(), 2);
    assert_eq!(passes(&[1; 3], 1).len(), 3);
}

#[test]
fn decoding_rows_share_the_pass_of_the_first_chunk() {
    assert_eq!(
        passes(&[1, 130, 1], 4),
        [vec![(1, 64, 64), (0, 1, 1), (2, 1, 1)], vec![(1, 64, 64)], vec![(1, 2, 64)]]
    );
}

#[test]
fn only_a_chunk_can_ask_for_outputs_at_every_position() {
    let outputs = |pending: &[(usize, Wants)]| plan(pending).1;
    assert_eq!(outputs(&[(1, Wants::Every)]), Outputs::Last);
    assert_eq!(outputs(&[(5, Wants::Last), (1, Wants::Every)]), Outputs::Last);
    assert_eq!(outputs(&[(5, Wants::Every), (1, Wants::Last)]), Outputs::Every);
}

#[test]
fn rows_with_drafts_share_passes_of_equal_length() {
    let chunks = Chunks::new(&[16, 128]);
    let run = |pending: &[(usize, Wants)], width: usize| {
        run(&chunks, pending, width, |pass| {
            let verified = pass.rows.iter().any(|row| row.room > 1) && pass.rows[0].room < 128;
            assert_eq!(pass.outputs == Outputs::Every, verified);
        })
    };
    use Wants::{Ends, Last};
    assert_eq!(run(&[(3, Ends(3))], 4), [[(0, 3, 4)]]);
    assert_eq!(run(&[(1, Ends(1)), (1, Last)], 4), [[(0, 1, 1), (1, 1, 1)]]);
    assert_eq!(run(&[(2, Ends(2)), (1, Last), (2, Ends(2))], 4), [[(0, 2, 2), (2, 2, 2), (1, 1, 2)]]);
    assert_eq!(
        run(&[(1, Last), (4, Ends(4)), (7, Ends(7)), (3, Ends(3))], 4),
        [vec![(1, 4, 4), (3, 3, 4), (0, 1, 4)], vec![(2, 7, 8)]]
    );
    // Behind chunks, with which decoding rows ride.
    assert_eq!(
        run(&[(4, Ends(4)), (128, Last), (1, Last)], 4),
        [vec![(1, 128, 128), (2, 1, 1)], vec![(0, 4, 4)]]
    );
    // What precedes draft tokens is a prompt; of many draft tokens there are several passes.
    assert_eq!(run(&[(131, Ends(3))], 4), [[(0, 128, 128)], [(0, 3, 4)]]);
    assert_eq!(run(&[(4, Ends(3))], 4), [[(0, 1, 1)], [(0, 3, 4)]]);
    assert_eq!(run(&[(20, Ends(20))], 4), [[(0, 16, 16)], [(0, 4, 4)]]);
    let least = Chunks::new(&[3]);
    assert_eq!(least.verified_together(8).collect::<Vec<_>>(), [(2, 8)]);
    assert_eq!(chunks.verified_together(4).collect::<Vec<_>>(), [(2, 4), (4, 4), (8, 2), (16, 1)]);
}

/// Which of the pending rows the next pass feeds, and what it gives.
fn plan(rows: &[(usize, Wants)]) -> (Vec<usize>, Outputs) {
    let pass = next_pass(&pending(rows), &Chunks::new(&[64]), 4).unwrap();
    (pass.rows.iter().map(|row| row.row).collect(), pass.outputs)
}

#[test]
fn rows_with_hidden_states_run_alone_and_only_their_last_chunk_needs_the_program() {
    use Wants::{EveryHidden, Last, LastHidden};
    assert_eq!(plan(&[(1, Last), (5, LastHidden), (9, Last), (1, EveryHidden)]), (vec![2, 0], Outputs::Last));
    assert_eq!(plan(&[(1, LastHidden); 3]), (vec![0, 1], Outputs::Hidden));
    assert_eq!(plan(&[(0, Last), (5, LastHidden), (1, Last)]), (vec![1], Outputs::Hidden));
    assert_eq!(plan(&[(65, LastHidden)]), (vec![0], Outputs::Last));
    assert_eq!(plan(&[(65, LastHidden), (1, LastHidden)]), (vec![0], Outputs::Last));
    assert_eq!(plan(&[(65, EveryHidden)]), (vec![0], Outputs::Hidden));
    assert_eq!(plan(&[(1, LastHidden)]), (vec![0], Outputs::Hidden));
}

#[test]
fn the_last_single_token_of_a_prompt_is_a_decoding_row() {
    assert_eq!(passes(&[65], 4), [[(0, 64, 64)], [(0, 1, 1)]]);
}

#[test]
fn the_remainder_of_a_prompt_uses_the_cheapest_chunk_sizes() {
    let rooms = |prompt: usize| -> Vec<usize> {
        let passes = run(&Chunks::new(&[16, 128]), &[(prompt, Wants::Last)], 1, |_| ());
        passes.iter().map(|pass| pass[0].2).collect()
    };
    assert_eq!(rooms(1), [1]);
    assert_eq!(rooms(2), [16]);
    assert_eq!(rooms(33), [16, 16, 1]);
    assert_eq!(rooms(64), [16; 4]);
    assert_eq!(rooms(65), [128]);
    assert_eq!(rooms(128), [128]);
    assert_eq!(rooms(300), [128, 128, 16, 16, 16]);
}

#[test]
fn short_chunks_use_the_programs_of_rows_with_drafts() {
    let chunks = Chunks::new(&[16, 128]);
    let shortened = |rows: &[(usize, usize)], outputs| {
        let rows = rows.iter().enumerate();
        let rows = rows.map(|(row, &(tokens, room))| PassRow { row, tokens, room }).collect();
        let pass = chunks.shortened(&Pass { rows, outputs }, 4)?;
        assert_eq!(pass.outputs, Outputs::Every);
        Some(pass.rows.iter().map(|row| (row.tokens, row.room)).collect::<Vec<_>>())
    };
    use Outputs::{Every, Hidden, Last};
    assert_eq!(shortened(&[(2, 16)], Last), Some(vec![(2, 2)]));
    assert_eq!(shortened(&[(5, 16)], Every), Some(vec![(5, 8)]));
    assert_eq!(shortened(&[(3, 16), (1, 1), (1, 1)], Last), Some(vec![(3, 4), (1, 4), (1, 4)]));
    // No program has this many rows of that size or returns hidden states, or nothing is gained.
    assert_eq!(shortened(&[(5, 16), (1, 1), (1, 1)], Last), None);
    assert_eq!(shortened(&[(5, 16)], Hidden), None);
    assert_eq!(shortened(&[(9, 16)], Last), None);
    assert_eq!(shortened(&[(70, 128)], Last), None);
    assert_eq!(shortened(&[(1, 1), (1, 1)], Last), None);
    assert_eq!(shortened(&[(3, 4)], Every), None);
}

#[test]
fn short_texts_share_a_pass() {
    use Wants::{Every, EveryHidden, Last, LastHidden};
    let chunks = Chunks::new(&[16, 128]);
    let joined = |rows: &[(usize, Wants)], width: usize| {
        let pending = pending(rows);
        let pass = next_pass(&pending, &chunks, width).unwrap();
        let joined = chunks.joined(&pass, &pending, width)?;
        assert!(joined.rows.iter().all(|row| row.room == 16));
        Some((joined.rows.iter().map(|row| (row.row, row.tokens)).collect::<Vec<_>>(), joined.outputs))
    };
    assert_eq!(
        joined(&[(9, EveryHidden), (1, LastHidden), (16, LastHidden), (20, EveryHidden), (5, Every)], 4),
        Some((vec![(0, 9), (2, 16)], Outputs::Hidden))
    );
    assert_eq!(joined(&[(5, Every); 7], 8), Some(((0..4).map(|row| (row, 5)).collect(), Outputs::Every)));
    assert_eq!(joined(&[(5, Every); 40], 16).map(|(rows, _)| rows.len()), Some(8));
    for alone in [&[(5, Every), (5, EveryHidden)][..], &[(5, Last); 4], &[(100, Every); 4], &[(1, Every); 4]]
    {
        assert_eq!(joined(alone, 4), None, "{alone:?}");
    }
}

#[test]
fn whole_texts_share_passes_without_padding_between_them() {
    let chunks = Chunks::whole(500, 128);
    assert_eq!(chunks.sizes(), [16, 32, 64, 128, 256, 500]);
    let run = |texts: &[usize], width: usize| {
        let rows: Vec<_> = texts.iter().map(|&remaining| (remaining, Wants::EveryHidden)).collect();
        run(&chunks, &rows, width, |pass| {
            assert_eq!(pass.outputs, Outputs::Hidden);
            assert!(chunks.sizes().contains(&pass.rows.iter().map(|row| row.room).sum()));
        })
    };
    assert_eq!(
        run(&[1, 70, 9, 16, 100], 4),
        [vec![(0, 1, 1), (1, 70, 70), (2, 9, 9), (3, 16, 48)], vec![(4, 100, 128)]]
    );
    // Never in parts; what does not fit goes next, and a long one's padding has room for others.
    assert_eq!(
        run(&[300, 100, 90, 200, 60], 16),
        [vec![(0, 300, 300), (1, 100, 100), (2, 90, 100)], vec![(3, 200, 256)], vec![(4, 60, 64)]]
    );
    assert_eq!(run(&[300; 2], 16), [[(0, 300, 500)], [(1, 300, 500)]]);
    assert_eq!(run(&[200, 60, 56], 16), [vec![(0, 200, 200), (2, 56, 56)], vec![(1, 60, 64)]]);
    assert_eq!(run(&[5, 5], 1), [[(0, 5, 16)], [(1, 5, 16)]]);
    assert_eq!(run(&[500], 1), [[(0, 500, 500)]]);
    let short = Chunks::whole(20, 128);
    let all = [Pending { remaining: 20, wants: Wants::EveryHidden }; 2];
    assert_eq!(next_pass(&all, &short, 2).unwrap().rows, [PassRow { row: 0, tokens: 20, room: 20 }]);
}

#[test]
fn a_chunk_size_is_chosen_from_a_minimum_prompt_on_or_never() {
    assert_eq!(Chunks::new(&[128, 16]).chosen(1000), [(16, 2), (128, 65)]);
    assert_eq!(Chunks::new(&[16, 128]).chosen(64), [(16, 2)]);
    assert_eq!(Chunks::new(&[64]).chosen(1), []);
    // Two passes of 60 cost more than one of 64, and one no less than is worth a program.
    assert_eq!(Chunks::new(&[60, 64]).chosen(1000), [(60, 2), (64, 61)]);
    assert_eq!(Chunks::new(&[3, 16]).chosen(1000), [(3, 2), (16, 4)]);
}
