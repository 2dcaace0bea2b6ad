//! No more connections than are wanted, and none that is silent for long.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
use mlxcel_server::Client;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

/// A listener that accepts a connection when there is room for it.
pub(crate) struct Limited {
    listener: TcpListener,
    room: Arc<Semaphore>,
    idle: Duration,
}

impl Limited {
    /// At most `most` connections at once, each closed when for `idle` it neither has a request nor takes an
    /// answer.
    pub(crate) fn new(listener: TcpListener, most: usize, idle: Duration) -> Self {
        Self { listener, room: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), idle }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Pieces of text are small and are wanted at once; where that cannot be set they come a little later.
        let _ = stream.set_nodelay(true);
        (Connection::new(stream, permit, self.idle), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// How many requests of a connection are being answered.
#[derive(Clone, Debug, Default)]
struct Answering(Arc<AtomicUsize>);

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    answering: Answering,
    client: Client,
}

impl Connected<IncomingStream<'_, Limited>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        Self {
            answering: stream.io().answering.clone(),
            client: Client::of_address(stream.remote_addr().ip()),
        }
    }
}

/// A request that is being answered. It counts down also where the client leaves and the answer is dropped.
struct Counted(Answering);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a request until its answer is made, so that its connection is not taken for a silent one, and tells
/// the server which client it is from.
pub(crate) async fn watch(
    ConnectInfo(Peer { answering, client }): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(client);
    answering.0.fetch_add(1, Ordering::Relaxed);
    let counted = Counted(answering);
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
    _permit: Option<OwnedSemaphorePermit>,
    answering: Answering,
    idle: Duration,
    /// When it was opened, last had a request, or last took a part of an answer.
    active: Instant,
    /// Since when it has taken nothing of an answer that is there.
    stalled: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Connection {
    fn new(stream: TcpStream, permit: Option<OwnedSemaphorePermit>, idle: Duration) -> Self {
        let active = Instant::now();
        let timer = Box::pin(sleep_until(active + idle));
        Self { stream, _permit: permit, answering: Answering::default(), idle, active, stalled: None, timer }
    }

    /// Whether it has been silent for too long; else `context` is woken when that may be.
    fn is_silent(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            let now = Instant::now();
            if self.stalled.is_none() && self.answering.0.load(Ordering::Relaxed) > 0 {
                self.active = now;
            }
            let end = self.stalled.unwrap_or(self.active) + self.idle;
            if end <= now {
                return true;
            }
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
            Poll::Pending if self.is_silent(context) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
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
            (self.active, self.stalled) = (Instant::now(), None);
            return done;
        }
        self.stalled.get_or_insert_with(Instant::now);
        if self.is_silent(context) { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { done }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
