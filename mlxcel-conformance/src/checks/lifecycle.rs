//! Loading, opening, closing and dropping.

use mlxcel_core::{
    AdapterLimits, CancelToken, ErrorKind, LoadOptions, Model, Precision, Row, SessionOptions,
};

use crate::failure::{Failure, Outcome, ensure, refused};
use crate::outlook::{extend, greedy, stands_at, step};
use crate::subject::Subject;
use crate::walk::Walk;

/// Metadata of the model, its capabilities and its sessions are consistent.
///
/// Kills: `misstates_capacity`.
pub fn describes_itself(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    let (info, claimed) = (model.info(), model.capabilities());
    let name = subject.backend().name();
    ensure!(!name.is_empty() && name == name.to_lowercase(), "`{name}` is not a short lower-case name");
    ensure!(info.backend == name, "the model names its engine `{}`, not `{name}`", info.backend);
    ensure!(info.vocabulary_size > 0, "the vocabulary is empty");
    ensure!(
        info.capacity == claimed.context && info.capacity > 0,
        "the capacity is {} and the context {}",
        info.capacity,
        claimed.context
    );
    ensure!(claimed.sequences >= 1 && claimed.batch_rows >= 1, "no sequence, or no row: {claimed}");
    ensure!(claimed.prompt_chunk >= 1, "a pass computes no token of a prompt");
    ensure!(
        info.stop_tokens.iter().all(|&token| (token as usize) < info.vocabulary_size),
        "a stop token is outside the vocabulary"
    );
    ensure!(
        usize::from(claimed.top_logprobs) <= info.vocabulary_size,
        "more top log probabilities are claimed than there are tokens"
    );
    ensure!(info.load_time >= info.compile_time, "compiling took longer than loading as a whole");
    let session = subject.session()?;
    ensure!(
        session.capabilities() == claimed,
        "the model claims {claimed}, and its session {}",
        session.capabilities()
    );
    ensure!(!info.fingerprint.is_empty(), "the model has no fingerprint");
    Ok(())
}

/// Every load option is honoured or rejected with an error: capacity, sequences, precision, threads, device,
/// room for adapters, cancel.
///
/// Kills: `ignores_load_capacity`, `ignores_load_adapters`, `has_a_fixed_room_for_adapters`,
/// `ignores_cancelled_load`.
pub fn load_options_are_honoured(subject: &Subject<'_>) -> Outcome {
    let load = |options: &LoadOptions| subject.backend().load(subject.source(), options);
    let given = subject.load_options();
    let capacity = subject.model()?.info().capacity;

    let smaller = load(&given.clone().with_capacity(capacity - 1))?;
    ensure!(smaller.info().capacity == capacity - 1, "a smaller capacity was requested and ignored");
    refused(load(&given.clone().with_capacity(0)).map(drop), ErrorKind::InvalidInput, "a capacity of 0")?;
    refused(
        load(&given.clone().with_sequences(0)).map(drop),
        ErrorKind::InvalidInput,
        "a session for no sequence",
    )?;
    match load(&given.clone().with_sequences(2)) {
        Ok(model) => ensure!(
            model.capabilities().sequences >= 2,
            "two sequences were requested, {} given",
            model.capabilities().sequences
        ),
        Err(error) => {
            ensure!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported), "{error}");
        }
    }
    for precision in Precision::ALL {
        match load(&given.clone().with_precision(precision)) {
            Ok(model) => ensure!(
                model.info().precision == precision,
                "precision {precision} was requested, {} given",
                model.info().precision
            ),
            Err(error) => {
                refused(Err::<(), _>(error), ErrorKind::Unsupported, format_args!("precision {precision}"))?;
            }
        }
    }
    let claimed = subject.model()?.capabilities().adapters;
    ensure!(
        claimed == given.adapters,
        "{:?} was requested for adapters, {claimed:?} claimed",
        given.adapters
    );
    // Another room than subjects have, so that a fixed one is not taken for it.
    let room = AdapterLimits::new(2, 3);
    match load(&given.clone().with_adapters(room)) {
        Ok(model) => {
            let claimed = model.capabilities().adapters;
            ensure!(claimed == Some(room), "{room:?} was requested for adapters, {claimed:?} claimed");
        }
        Err(error) => {
            refused(Err::<(), _>(error), ErrorKind::Unsupported, "room for adapters")?;
            ensure!(subject.adapters.is_none(), "an engine with adapters refuses room for others");
        }
    }
    let device = load(&given.clone().with_device("no-such-device"));
    ensure!(device.is_err(), "a device that does not exist was accepted");
    let cancel = CancelToken::new();
    cancel.cancel();
    refused(
        load(&given.clone().with_cancel(cancel)).map(drop),
        ErrorKind::Cancelled,
        "loading that was cancelled before it started",
    )
}

/// A session honours its own capacity, up to the model's.
///
/// Kills: `ignores_session_capacity`.
pub fn session_options_are_honoured(subject: &Subject<'_>) -> Outcome {
    let model = subject.model()?;
    let capacity = model.info().capacity;
    let open = |tokens| model.open_session(&SessionOptions::default().with_capacity(tokens));
    let mut session = open(8)?;
    let sequence = session.open()?;
    let state = session.state(sequence)?;
    ensure!(
        state.capacity == 8 && session.capabilities().context == 8,
        "a session with a capacity of 8 has {} and claims {}",
        state.capacity,
        session.capabilities().context
    );
    refused(open(0).map(drop), ErrorKind::InvalidInput, "a session for no token")?;
    refused(open(capacity + 1).map(drop), ErrorKind::InvalidInput, "a session beyond the model's capacity")
}

/// A new sequence is empty; a closed one is gone and makes room.
///
/// Kills: `keeps_closed_sequences`.
pub fn opens_and_closes(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let claimed = session.capabilities().clone();
    let prompt = subject.tokens(0, 3)?;
    for _ in 0..claimed.sequences + 1 {
        let sequence = session.open()?;
        stands_at(&*session, sequence, 0)?;
        extend(&mut *session, sequence, &prompt)?;
        stands_at(&*session, sequence, prompt.len())?;
        session.close(sequence)?;
        let gone = ErrorKind::NotFound;
        refused(session.close(sequence), gone, "closing twice")?;
        refused(session.state(sequence), gone, "the state of a closed sequence")?;
        let row = step(&mut *session, &[Row::extend(sequence, &prompt)])?.remove(0);
        refused(row, gone, "a row of a closed sequence")?;
        if claimed.rewind {
            refused(session.rewind(sequence, 0), gone, "rewinding a closed sequence")?;
        }
        if claimed.fork {
            refused(session.fork(sequence), gone, "forking a closed sequence")?;
        }
        if claimed.snapshot {
            refused(session.snapshot(sequence), gone, "a snapshot of a closed sequence")?;
        }
    }
    let stats = session.stats();
    ensure!(stats.kv_bytes == 0, "with no sequence open, caches take {} bytes", stats.kv_bytes);
    Ok(())
}

/// The id of a closed sequence is not reused.
///
/// Kills: `reuses_ids`.
pub fn ids_are_not_reused(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut seen = Vec::new();
    for _ in 0..5 {
        let sequence = session.open()?;
        ensure!(!seen.contains(&sequence), "sequence {sequence} was returned twice");
        seen.push(sequence);
        session.close(sequence)?;
    }
    Ok(())
}

/// Exactly the claimed number of sequences can be open; closing one makes room.
///
/// Kills: `opens_one_too_many`.
pub fn sequences_are_limited(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let limit = session.capabilities().sequences;
    let mut open = Vec::new();
    for _ in 0..limit {
        open.push(session.open()?);
    }
    refused(session.open(), ErrorKind::CapacityExceeded, format_args!("sequence {} of {limit}", limit + 1))?;
    for &sequence in &open {
        stands_at(&*session, sequence, 0)?;
    }
    if let Some(first) = open.pop() {
        session.close(first)?;
    }
    session.open()?;
    Ok(())
}

/// Backend, model and session can be dropped in any order, and the others keep working.
///
/// Kills: `session_dies_with_model`.
pub fn drop_order_is_free(subject: &Subject<'_>) -> Outcome {
    let prompt = subject.tokens(1, 4)?;
    let load = || subject.backend().load(subject.source(), subject.load_options());
    // The model first: its session continues, and closes after it.
    let model = load()?;
    let mut session = model.open_session(&SessionOptions::default())?;
    drop(model);
    let mut walk = Walk::open(&mut *session, prompt.clone())?;
    walk.run(subject, &mut *session, 2, "a session whose model handle is gone")?;
    drop(session);
    // A session with open sequences is dropped before its model, which then opens another.
    let model = load()?;
    let mut first = model.open_session(&SessionOptions::default())?;
    let sequence = first.open()?;
    greedy(&mut *first, sequence, &prompt)?;
    let mut second = model.open_session(&SessionOptions::default())?;
    drop(first);
    let mut walk = Walk::open(&mut *second, prompt.clone())?;
    walk.run(subject, &mut *second, 1, "a session after another was dropped")?;
    drop(second);
    let mut third = model.open_session(&SessionOptions::default())?;
    let again = load()?;
    drop(model);
    drop(again);
    let mut walk = Walk::open(&mut *third, prompt)?;
    walk.run(subject, &mut *third, 1, "the last session of two dropped models")
}

/// A session works on a thread other than the one that opened it, and then on a third.
///
/// Kills: `bound_to_thread`.
pub fn sessions_move_between_threads(subject: &Subject<'_>) -> Outcome {
    let mut session = subject.session()?;
    let mut walk = Walk::open(&mut *session, subject.tokens(2, 6)?)?;
    walk.run(subject, &mut *session, 1, "on the first thread")?;
    for number in 2..4 {
        let outcome = std::thread::scope(|scope| {
            let thread = scope.spawn(|| walk.run(subject, &mut *session, 2, "on another thread"));
            thread.join().map_err(|_| Failure::new(format!("it panicked on thread {number}")))?
        });
        outcome?;
    }
    session.close(walk.sequence)?;
    Ok(())
}
