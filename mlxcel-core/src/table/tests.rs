use super::*;
use crate::cancel::CancelToken;
use crate::info::ModelInfo;
use crate::plan::SamplingPlan;
use crate::step::{Control, PositionResult, SampledToken, TokenLogprob};
use crate::token::TokenId;
use crate::want::{Pooling, Want};

type Table = SequenceTable<Vec<TokenId>>;

fn table() -> Table {
    let capabilities = Capabilities::new(3, 8).with_logits(true).with_every_position(true);
    let capabilities = capabilities.with_hidden_states(Some(2));
    SequenceTable::new(capabilities.with_rewind(true).with_fork(true).with_snapshot(true), 10, Vec::len)
}

fn open(table: &mut Table, tokens: &[TokenId]) -> SequenceId {
    table.open("open sequence", tokens.to_vec()).unwrap()
}

fn begin<'r>(table: &Table, rows: &[Row<'r>]) -> StepRows<'r> {
    table.begin(rows, &mut StepOutput::new()).unwrap()
}

fn answers(rows: StepRows<'_>) -> Vec<Result<RowResult, ErrorKind>> {
    let mut out = StepOutput::new();
    rows.finish(&mut out);
    out.take().into_iter().map(|row| row.map_err(|error| error.kind())).collect()
}

fn position(token: TokenId) -> PositionResult {
    PositionResult::new(TokenLogprob { token, logprob: -1.0 }, None)
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn ids_are_never_reused_and_slots_are() {
    let mut table = table();
    let ids: Vec<_> = (0..3).map(|_| open(&mut table, &[])).collect();
    assert_eq!(kind(table.open("open sequence", Vec::new())), Some(ErrorKind::CapacityExceeded));
    assert_eq!(table.close(ids[1]).unwrap(), Some(Vec::new()));
    assert_eq!(kind(table.close(ids[1])), Some(ErrorKind::NotFound));
    assert!(!ids.contains(&open(&mut table, &[])));
    assert_eq!(kind(table.state(ids[1])), Some(ErrorKind::NotFound));
}

#[test]
fn a_poisoned_sequence_keeps_only_its_slot() {
    let mut table = table();
    let (bad, good) = (open(&mut table, &[1, 2]), open(&mut table, &[3]));
    assert_eq!(table.poison(bad), Some(vec![1, 2]));
    assert_eq!(table.poison(bad), None);
    let state = table.state(bad).unwrap();
    assert_eq!((state.position, state.capacity, state.poisoned), (2, 8, true));
    assert!(!table.state(good).unwrap().poisoned);
    assert_eq!(table.iter().collect::<Vec<_>>(), [&[3]]);
    for error in [
        kind(table.get("step", bad)),
        kind(table.for_rewind(bad, 0)),
        kind(table.for_fork(bad)),
        kind(table.for_snapshot(bad)),
        kind(table.get_all_mut("step", [good, bad])),
    ] {
        assert_eq!(error, Some(ErrorKind::Poisoned));
    }
    assert_eq!(table.close(bad).unwrap(), None);
    assert_eq!(kind(table.get("step", bad)), Some(ErrorKind::NotFound));
}

#[test]
fn several_sequences_are_borrowed_in_order_without_duplicates() {
    let mut table = table();
    let ids = [open(&mut table, &[1]), open(&mut table, &[2])];
    assert_eq!(table.get_all_mut("step", [ids[1], ids[0]]).unwrap(), [&[2], &[1]]);
    assert!(table.get_all_mut("step", [ids[0], ids[0]]).is_err());
}

#[test]
fn unclaimed_or_oversized_operations_are_rejected() {
    let mut table = table();
    let id = open(&mut table, &[1, 2]);
    assert_eq!(kind(table.for_rewind(id, 3)), Some(ErrorKind::InvalidInput));
    assert_eq!(table.for_rewind(id, 2).unwrap(), &[1, 2]);
    let identity = StateIdentity::of(&ModelInfo::new("engine", "llama", 10));
    let other = identity.clone().with_adapter("other");
    let snapshot = |position| Snapshot::new(identity.clone(), position, []);
    assert_eq!(kind(table.check_restore(&snapshot(9), &identity)), Some(ErrorKind::InvalidInput));
    assert_eq!(kind(table.check_restore(&snapshot(8), &other)), Some(ErrorKind::InvalidInput));
    assert_eq!(kind(table.check_restore(&snapshot(8), &identity)), None);
    open(&mut table, &[]);
    open(&mut table, &[]);
    assert_eq!(kind(table.for_fork(id)), Some(ErrorKind::CapacityExceeded));
    assert_eq!(kind(table.check_restore(&snapshot(8), &identity)), Some(ErrorKind::CapacityExceeded));
    let mut least = SequenceTable::new(Capabilities::new(1, 8), 10, Vec::<TokenId>::len);
    let id = least.open("open sequence", Vec::new()).unwrap();
    for error in [
        kind(least.for_rewind(id, 0)),
        kind(least.for_fork(id)),
        kind(least.for_snapshot(id)),
        kind(least.check_restore(&snapshot(1), &identity)),
    ] {
        assert_eq!(error, Some(ErrorKind::Unsupported));
    }
}

#[test]
fn a_row_is_tracked_across_chunks() {
    let mut table = table();
    let (logits, every) = (open(&mut table, &[]), open(&mut table, &[]));
    let want = Want::likelihoods(0);
    let mut rows = begin(&table, &[Row::logits(logits, &[1, 2, 3, 4]), Row::new(every, &[5, 6, 7], want)]);
    assert_eq!(
        (rows[0].next(3), rows[0].following(3), rows[0].ends_with(3)),
        (&[1, 2, 3][..], Some(4), false)
    );
    table.absorb(&mut rows[0], 3, Ok(RowResult::Extended));
    table.absorb(&mut rows[1], 2, Ok(RowResult::Likelihoods(vec![position(1), position(2)])));
    assert!(rows.wait(&Control::default()));
    assert_eq!((rows[0].remaining(), rows[0].next(9), rows[0].following(1)), (1, &[4][..], None));
    table.absorb(&mut rows[0], 1, Ok(RowResult::Logits(vec![vec![0.5]])));
    table.absorb(&mut rows[1], 1, Ok(RowResult::Likelihoods(vec![position(3)])));
    assert!(!rows.wait(&Control::default()));
    let positions = RowResult::Likelihoods([1, 2, 3].map(position).to_vec());
    assert_eq!(answers(rows), [Ok(RowResult::Logits(vec![vec![0.5]])), Ok(positions)]);
}

#[test]
fn a_row_says_what_is_left_and_what_is_before_each_answer() {
    let capabilities = Capabilities::new(2, 8).with_verification(true).with_token_types(3);
    let mut table = SequenceTable::new(capabilities, 10, Vec::<TokenId>::len);
    let (drafts, typed, plan) = (open(&mut table, &[]), open(&mut table, &[]), SamplingPlan::greedy());
    let drafts = Row::verify(drafts, &[5, 6, 7, 8, 9], &plan, 2);
    let typed = Row::extend(typed, &[1, 2, 3]).with_token_types(&[0, 1, 2]);
    let mut rows = begin(&table, &[drafts, typed]);
    assert_eq!((rows[1].next_types(2), rows[1].next_types(9)), (&[0, 1][..], &[0, 1, 2][..]));
    table.absorb(&mut rows[1], 2, Ok(RowResult::Extended));
    assert_eq!((rows[1].next_types(9), rows[0].next_types(9)), (&[2][..], &[][..]));

    assert_eq!((rows[0].answered(), rows[0].remaining()), (0, 5));
    assert_eq!((rows[0].drafts_left(), rows[1].drafts_left()), (2, 0));
    // The first two tokens need no answer.
    assert_eq!(rows[0].wanted(4), 2);
    assert_eq!([0, 1].map(|index| rows[0].next_before(4, index)), [&[5, 6, 7][..], &[5, 6, 7, 8]]);
    table.absorb(
        &mut rows[0],
        4,
        Ok(RowResult::Tokens(vec![SampledToken::new(8, 0.0), SampledToken::new(9, 0.0)])),
    );
    assert_eq!((rows[0].answered(), rows[0].remaining()), (2, 1));
    assert_eq!(rows[0].drafts_left(), 0, "no token before the last one is left");
    assert_eq!(rows[0].next_before(1, 0), &[9]);
}

#[test]
fn hidden_states_are_pooled_across_chunks() {
    let mut table = table();
    let id = open(&mut table, &[]);
    let mut step = |added: &[&[f32]]| {
        let mut rows = begin(&table, &[Row::hidden(id, &[1, 2], Pooling::Mean)]);
        for sum in added {
            rows[0].add_hidden(sum, 1);
            table.absorb(&mut rows[0], 1, Ok(RowResult::Extended));
        }
        (answers(rows).remove(0), table.state(id).unwrap().poisoned)
    };
    assert_eq!(step(&[&[1.0, 2.0], &[3.0, 6.0]]), (Ok(RowResult::Hidden(vec![2.0, 4.0])), false));
    assert_eq!(step(&[&[1.0, 2.0], &[3.0, f32::NAN]]), (Err(ErrorKind::Device), true));
}

#[test]
fn answers_of_every_kind_are_counted_across_chunks() {
    let capabilities = Capabilities::new(1, 8).with_logits(true).with_every_position(true);
    let mut table = SequenceTable::new(capabilities.with_verification(true), 10, Vec::<TokenId>::len);
    let id = open(&mut table, &[]);
    for (want, answered, result) in [
        (Want::logits().with_drafts(2), 1, RowResult::Logits(vec![vec![0.0; 10]])),
        (Want::likelihoods(0), 2, RowResult::Likelihoods(vec![position(2), position(3)])),
    ] {
        let mut rows = begin(&table, &[Row::new(id, &[1, 2, 3, 4], want)]);
        table.absorb(&mut rows[0], 2, Ok(result));
        assert_eq!(rows[0].answered(), answered, "{want:?}");
    }
}

#[test]
fn without_rewind_only_the_drafts_of_the_last_row_can_be_dropped() {
    let mut table = Table::new(Capabilities::new(1, 20).with_verification(true), 10, Vec::len);
    let id = open(&mut table, &[1, 2]);
    let greedy = SamplingPlan::greedy();
    let feed = |table: &mut Table, tokens: &[TokenId], drafts: Option<usize>, passes: &[usize]| {
        let want = drafts.map_or(Want::nothing(), |drafts| Want::token(&greedy).with_drafts(drafts));
        let mut rows = begin(table, &[Row::new(id, tokens, want)]);
        for &count in passes {
            let answers = vec![SampledToken::new(1, -1.0); rows[0].wanted(count)];
            table.get_mut("step", id).unwrap().extend_from_slice(rows[0].next(count));
            let result = if answers.is_empty() { RowResult::Extended } else { RowResult::Tokens(answers) };
            table.absorb(&mut rows[0], count, Ok(result));
        }
    };
    let unsupported = |table: &mut Table, position| kind(table.for_rewind(id, position));
    assert_eq!(unsupported(&mut table, 2), Some(ErrorKind::Unsupported));
    // Three tokens before four draft tokens, which begin at position 5.
    feed(&mut table, &[1, 2, 3, 4, 5, 6, 7], Some(4), &[2, 3]);
    assert_eq!(table.state(id).unwrap().position, 7);
    assert_eq!(unsupported(&mut table, 4), Some(ErrorKind::Unsupported));
    feed(&mut table, &[1, 2, 3, 4, 5, 6, 7], Some(4), &[4, 3]);
    assert_eq!(unsupported(&mut table, 9), Some(ErrorKind::Unsupported));
    assert_eq!(unsupported(&mut table, 15), Some(ErrorKind::InvalidInput));
    for position in [14, 12, 10] {
        table.for_rewind(id, position).unwrap().truncate(position);
    }
    feed(&mut table, &[1], None, &[1]);
    assert_eq!(unsupported(&mut table, 11), Some(ErrorKind::Unsupported));
    feed(&mut table, &[1, 2], Some(1), &[1]);
    assert_eq!(unsupported(&mut table, 12), None, "cut short in front of its draft token");
    assert_eq!(unsupported(&mut table, 11), Some(ErrorKind::Unsupported));
}

#[test]
fn a_result_of_another_want_is_an_error() {
    let mut table = table();
    let id = open(&mut table, &[]);
    let every = Want::likelihoods(0);
    for (want, fed, result) in [
        (Want::nothing(), 2, RowResult::Logits(vec![])),
        (Want::logits(), 2, RowResult::Extended),
        (Want::logits(), 1, RowResult::Logits(vec![])),
        (every, 2, RowResult::Likelihoods(vec![position(1)])),
        (every, 1, RowResult::Extended),
    ] {
        let mut rows = begin(&table, &[Row::new(id, &[1, 2], want)]);
        assert_eq!(table.absorb(&mut rows[0], fed, Ok(result)), None);
        assert_eq!(answers(rows), [Err(ErrorKind::Internal)], "{want:?}");
    }
    assert_eq!(answers(begin(&table, &[Row::extend(id, &[1])])), [Err(ErrorKind::Internal)]);
}

#[test]
fn device_faults_poison_and_earlier_failures_do_not() {
    let mut table = table();
    let ids = [0, 1, 2].map(|token| open(&mut table, &[token]));
    let mut rows = begin(&table, &ids.map(|id| Row::logits(id, &[1])));
    assert_eq!(table.absorb(&mut rows[0], 1, Err(Error::not_a_number("step"))), Some(vec![0]));
    assert_eq!(table.fault(&mut rows[1], Error::new(ErrorKind::Compile, "step", "late")), Some(vec![1]));
    rows[2].fail(Error::new(ErrorKind::ResourceExhausted, "step", "early"));
    let kinds = [ErrorKind::Device, ErrorKind::Compile, ErrorKind::ResourceExhausted];
    assert_eq!(answers(rows), kinds.map(Err));
    assert_eq!(ids.map(|id| table.state(id).unwrap().poisoned), [true, true, false]);
}

#[test]
fn rows_and_steps_can_be_cancelled() {
    let mut table = table();
    let ids = [0, 1, 2].map(|token| open(&mut table, &[token]));
    let cancel = CancelToken::new();
    let mut asked = ids.map(|id| Row::extend(id, &[1, 2]));
    asked[1] = asked[1].with_cancel(&cancel);
    let mut rows = begin(&table, &asked);
    assert!(rows.wait(&Control::default()) && rows.iter().all(StepRow::is_waiting));
    rows[0].absorb(2, Ok(RowResult::Extended));
    cancel.cancel();
    assert!(rows.wait(&Control::default()), "one is left");
    assert_eq!(rows.iter().map(StepRow::is_waiting).collect::<Vec<_>>(), [false, false, true]);
    assert!(!rows.wait(&Control::cancelled_by(&cancel)));
    let stopped = Err(ErrorKind::Cancelled);
    assert_eq!(answers(rows), [Ok(RowResult::Extended), stopped.clone(), stopped]);
}
