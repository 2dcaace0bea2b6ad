//! The channel of a request between the engine's thread and a reader.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use mlxcel_core::{ErrorKind, FinishReason, Result, SampledToken};
use shuttle::future::block_on;

use super::super::bell::Bell;
use super::super::channel::{End, Event, Item, Receiver, Sender, channel};
use crate::sync::{FOREVER, explore, explore_once, thread};
use crate::usage::Usage;

fn item(token: u32) -> Item {
    Item { token: SampledToken::new(token, 0.0), text: token.to_string(), usage: Usage::default() }
}

fn end(reason: Result<FinishReason>) -> End {
    End { text: String::new(), reason, stop_string: None, usage: None }
}

/// Reads to the end: the tokens, and how it ended.
fn read(mut next: impl FnMut() -> Option<Event>) -> (Vec<u32>, Result<FinishReason>) {
    let mut tokens = Vec::new();
    loop {
        match next() {
            Some(Event::Item(item)) => tokens.push(item.token.token),
            Some(Event::End(end)) => return (tokens, end.reason),
            None => panic!("no end"),
        }
    }
}

/// The reader of a task.
fn poll(receiver: &Receiver) -> Option<Event> {
    block_on(poll_fn(|context| receiver.poll(context)))
}

/// Sends `count` tokens as the engine does: it waits for the bell while the channel is full.
fn send(sender: &Sender, bell: &Bell, count: u32) {
    for number in 0..count {
        while sender.is_full() && !sender.is_abandoned() {
            bell.wait(FOREVER);
        }
        if sender.is_abandoned() {
            return;
        }
        sender.send(item(number));
    }
    sender.end(end(Ok(FinishReason::Stop)));
}

/// Sends `count` tokens through a channel for `capacity` and reads each by `next`.
fn pass(capacity: usize, count: u32, next: fn(&Receiver) -> Option<Event>) {
    explore(8000, move || {
        let bell = Arc::new(Bell::default());
        let (sender, receiver) = channel(capacity, Arc::clone(&bell));
        let reader = thread::spawn(move || {
            let (tokens, reason) = read(|| next(&receiver));
            assert_eq!((tokens, reason.unwrap()), ((0..count).collect(), FinishReason::Stop));
            assert!(next(&receiver).is_none(), "no second end, and no waiting");
        });
        send(&sender, &bell, count);
        drop(sender);
        reader.join().unwrap();
    });
}

#[test]
fn items_arrive_in_order_and_the_end_once() {
    pass(8, 3, Receiver::receive);
}

#[test]
fn a_task_is_woken_for_each_token_and_for_the_end() {
    pass(2, 5, poll);
}

#[test]
fn a_slow_reader_holds_up_the_engine_and_never_stops_it() {
    pass(2, 7, Receiver::receive);
}

#[test]
fn a_dropped_sender_ends_the_reader_with_an_error() {
    explore(8000, || {
        let (sender, receiver) = channel(8, Arc::default());
        let engine = thread::spawn(move || sender.send(item(0)));
        let (tokens, reason) = read(|| receiver.receive());
        assert_eq!((tokens, reason.unwrap_err().kind()), (vec![0], ErrorKind::Internal));
        assert!(receiver.receive().is_none());
        engine.join().unwrap();
    });
}

#[test]
fn one_bell_wakes_the_engine_for_every_full_channel() {
    explore(8000, || {
        let bell = Arc::new(Bell::default());
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| channel(1, Arc::clone(&bell))).unzip();
        let readers =
            receivers.into_iter().map(|receiver| thread::spawn(move || read(|| receiver.receive())));
        let readers: Vec<_> = readers.collect();
        let mut left: Vec<_> = senders.into_iter().map(|sender| (sender, 3)).collect();
        while !left.is_empty() {
            let mut has_sent = false;
            left.retain_mut(|(sender, count)| {
                if sender.is_full() {
                    return true;
                }
                has_sent = true;
                match *count {
                    0 => sender.end(end(Ok(FinishReason::Length))),
                    _ => sender.send(item(*count)),
                }
                *count = count.wrapping_sub(1);
                *count != u32::MAX
            });
            if !has_sent {
                bell.wait(FOREVER);
            }
        }
        for reader in readers {
            let (tokens, reason) = reader.join().unwrap();
            assert_eq!((tokens, reason.unwrap()), (vec![3, 2, 1], FinishReason::Length));
        }
    });
}

#[test]
fn a_reader_that_leaves_wakes_the_engine() {
    explore(8000, || {
        let bell = Arc::new(Bell::default());
        let (sender, receiver) = channel(1, Arc::clone(&bell));
        let reader = thread::spawn(move || assert!(matches!(receiver.receive(), Some(Event::Item(_)))));
        // It would wait for the bell for ever.
        send(&sender, &bell, 1000);
        assert!(sender.is_abandoned());
        reader.join().unwrap();
    });
}

#[test]
fn a_full_channel_accepts_items_once_half_is_read() {
    explore_once(|| {
        let bell = Arc::new(Bell::default());
        let (sender, receiver) = channel(4, Arc::clone(&bell));
        (0..4).for_each(|number| sender.send(item(number)));
        assert!(sender.is_full());
        receiver.receive();
        assert!(sender.is_full());
        receiver.receive();
        assert!(!sender.is_full());
        bell.wait(FOREVER);
        drop(receiver);
        assert!(sender.is_abandoned());
        bell.wait(FOREVER);
        bell.wait(Duration::from_millis(1));
    });
}

#[test]
fn a_task_is_woken_once_for_what_it_waits_for() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    explore_once(|| {
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let (sender, receiver) = channel(4, Arc::default());
        assert!(receiver.poll(&mut context).is_pending());
        sender.send(item(5));
        sender.send(item(6));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(receiver.poll(&mut context).is_ready());
        assert!(receiver.poll(&mut context).is_ready());
        assert!(receiver.poll(&mut context).is_pending());
        sender.end(end(Ok(FinishReason::Length)));
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    });
}
