//! No more connections than are wanted, and none that is silent for long.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use futures_util::StreamExt;
use futures_util::task::AtomicWaker;
use mlxcel_server::Client;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

/// How long a connection may be idle before a further one ends it: the time in which the request of a new
/// connection comes, or the next one of a client that has just read an answer.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// A listener that keeps no more than so many connections. A further one ends the one that has been idle the
/// longest, and waits while all have a request.
pub(crate) struct Limited {
    listener: TcpListener,
    table: Arc<Table>,
    most: usize,
    idle: Duration,
}

impl Limited {
    /// At most `most` connections at once, each closed when for `idle` it neither has a request nor takes an
    /// answer.
    pub(crate) fn new(listener: TcpListener, most: usize, idle: Duration) -> Self {
        Self { listener, table: Arc::default(), most, idle }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        while self.table.lock().len() >= self.most {
            self.table.end_idlest();
            // Either it changes, or somebody is idle for long enough.
            let _ = timeout(LEFT_ALONE / 4, self.table.changed.notified()).await;
        }
        // Pieces of text are small and are wanted at once; where that cannot be set they come a little later.
        let _ = stream.set_nodelay(true);
        (Connection::new(stream, self.table.enter(), self.idle), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The open connections.
#[derive(Debug, Default)]
struct Table {
    open: Mutex<BTreeMap<u64, Arc<Entry>>>,
    /// Told when a connection is closed or its requests change.
    changed: Notify,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Entry>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the connection that has been idle the longest to end, if one is idle for long enough.
    fn end_idlest(&self) {
        let open = self.lock();
        let idle = open.values().filter_map(|entry| Some((entry.lock().idle_since()?, entry)));
        let idlest = idle.min_by_key(|(since, _)| *since);
        if let Some((_, idlest)) = idlest.filter(|(since, _)| since.elapsed() >= LEFT_ALONE) {
            idlest.ending.store(true, Ordering::Relaxed);
            idlest.waker.wake();
        }
    }

    fn enter(self: &Arc<Self>) -> Place {
        let activity = Activity { answering: 0, active: Instant::now(), stalled: None };
        let entry = Arc::new(Entry {
            activity: Mutex::new(activity),
            ending: AtomicBool::default(),
            waker: AtomicWaker::new(),
        });
        let mut open = self.lock();
        let number = open.last_key_value().map_or(0, |(last, _)| last + 1);
        open.insert(number, Arc::clone(&entry));
        Place { table: Arc::clone(self), number, entry }
    }
}

/// A connection in the table.
#[derive(Debug)]
struct Entry {
    activity: Mutex<Activity>,
    /// Whether it is to end if it is still idle.
    ending: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct Activity {
    /// How many requests are being answered.
    answering: usize,
    /// When it was opened, last had a request, or last took a part of an answer.
    active: Instant,
    /// Since when it has taken nothing of an answer that is there.
    stalled: Option<Instant>,
}

impl Activity {
    /// Since when it has had nothing to do; `None` while it has a request.
    fn idle_since(&self) -> Option<Instant> {
        (self.answering == 0 && self.stalled.is_none()).then_some(self.active)
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the table, given back when it is dropped.
#[derive(Debug)]
struct Place {
    table: Arc<Table>,
    number: u64,
    entry: Arc<Entry>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().remove(&self.number);
        self.table.changed.notify_one();
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    table: Arc<Table>,
    entry: Arc<Entry>,
    client: Client,
}

impl Connected<IncomingStream<'_, Limited>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        let Place { table, entry, .. } = &stream.io().place;
        let client = Client::of_address(stream.remote_addr().ip());
        Self { table: Arc::clone(table), entry: Arc::clone(entry), client }
    }
}

/// A request that is being answered. It counts down also where the client leaves and the answer is dropped.
struct Counted(Peer);

impl Counted {
    fn new(peer: Peer) -> Self {
        peer.entry.lock().answering += 1;
        peer.entry.ending.store(false, Ordering::Relaxed);
        Self(peer)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut activity = self.0.entry.lock();
        (activity.answering, activity.active) = (activity.answering - 1, Instant::now());
        drop(activity);
        self.0.table.changed.notify_one();
    }
}

/// Counts a request until its answer is made, so that its connection is not taken for a silent one, and tells
/// the server which client it is from.
pub(crate) async fn watch(
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(peer.client);
    let counted = Counted::new(peer);
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    if !kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
        return response;
    }
    // It is made while it is sent.
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |piece| {
            let _counted = &counted;
            piece
        }))
    })
}

/// A connection that gives its place back when it is closed.
///
/// What a client sends does not keep it open: a request has to come whole. So neither silence nor a byte now
/// and then holds a place.
pub(crate) struct Connection {
    stream: TcpStream,
    place: Place,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(stream: TcpStream, place: Place, idle: Duration) -> Self {
        Self { stream, place, idle, timer: Box::pin(sleep_until(Instant::now() + idle)) }
    }

    /// Whether it has been silent for too long, or its place is wanted; else `context` is woken when that may
    /// be.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let entry = &self.place.entry;
        entry.waker.register(context.waker());
        loop {
            let now = Instant::now();
            let mut activity = entry.lock();
            if activity.stalled.is_none() && activity.answering > 0 {
                activity.active = now;
            }
            let end = activity.stalled.unwrap_or(activity.active) + self.idle;
            let is_unwanted = entry.ending.load(Ordering::Relaxed) && activity.idle_since().is_some();
            if is_unwanted || end <= now {
                return true;
            }
            drop(activity);
            if self.timer.deadline() != end {
                self.timer.as_mut().reset(end);
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return false;
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending if self.is_over(context) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            done => done,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        if done.is_ready() {
            let mut activity = self.place.entry.lock();
            (activity.active, activity.stalled) = (Instant::now(), None);
            return done;
        }
        self.place.entry.lock().stalled.get_or_insert_with(Instant::now);
        if self.is_over(context) { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { done }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
