//! Serves a model over HTTP, as OpenAI's API and as a page to chat on: the router of `mlxcel-server` behind a
//! listener.

use std::io::{self, Write, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use clap::Args;
use mlxcel_server::{Limits, Origins, Running, Server, Startup};
use mlxcel_session::{
    CancelToken, Engine, EngineOptions, Error, ErrorKind, LoadOptions, PrefixCache, Prepare,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::adapters::AdapterArguments;
use crate::connections::{Limited, Peer, watch};
use crate::model::ModelArguments;
use crate::numbers::{self, positive};
use crate::progress::Progress;
use crate::report::Failure;
use crate::speculate::SpeculateArgument;

/// How long loading may take to end after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serve a language model over HTTP, as OpenAI's API and as a page to chat on
///
/// Paths: `/v1/chat/completions`, `/v1/responses`, `/v1/completions`, `/v1/embeddings`, `/v1/models`, the
/// page at `/`, `/openapi.json`, `/health/live`, `/health/ready`, and `/metrics` for Prometheus.
///
/// The server listens from the beginning: while the model is loading and --prepare is at work, `/health/live`
/// answers 200, and `/health/ready` and requests 503. The first line on standard output is the address, such
/// as `http://127.0.0.1:8080`; it is printed when the server is ready. SIGINT and SIGTERM end the server: it
/// accepts no more requests and lets running ones finish.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// The model's name in the API; defaults to the folder's name
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,
    /// The address to listen on, or `localhost`. With any other than a loopback address, anyone on the
    /// network can send requests: set --api-key
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST),
        value_parser = numbers::address)]
    host: IpAddr,
    /// The port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Also answer requests for this host name (and not only for the names of the loopback and the address
    /// of --host), such as the name that a proxy passes on. Can be repeated
    #[arg(long, value_name = "NAME", value_parser = numbers::host)]
    allow_host: Vec<String>,
    /// Let pages of this origin, such as `https://example.org`, use the server (CORS); * for any. Can be
    /// repeated
    #[arg(long, value_name = "ORIGIN", value_parser = numbers::origin)]
    allow_origin: Vec<String>,
    /// The key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`
    #[arg(long, value_name = "KEY", env = "MLXCEL_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// How many requests are computed at once; defaults to the engine's number of sequences
    #[arg(long, value_name = "N", value_parser = positive::<usize>)]
    sequences: Option<usize>,
    /// Compile all programs before the first request
    #[arg(long)]
    prepare: bool,
    /// The maximum number of waiting requests; the answer to a further one is 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// The maximum number of tokens of an answer; defaults to the context
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", value_parser = positive::<usize>)]
    max_tokens: Option<usize>,
    /// The maximum time of a request, waiting included
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = numbers::seconds)]
    time_limit: Duration,
    /// The maximum size of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    max_body: usize,
    /// The maximum number of connections; a further one closes the one that has been idle the longest, and
    /// waits while all have a request
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive::<usize>)]
    max_connections: usize,
    /// The maximum silence of a connection: the whole next request must arrive in that time, and answers must
    /// be read
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_limit: u64,
    /// The mebibytes of memory for prefixes of earlier prompts, which later prompts reuse; 0 disables it
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    prefix_cache: u64,
    #[command(flatten)]
    adapters: AdapterArguments,
    #[command(flatten)]
    speculate: SpeculateArgument,
    /// The maximum time for running requests after a signal
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
}

pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    // A variable that a script left empty must not open the server to anyone.
    if arguments.api_key.as_ref().is_some_and(String::is_empty) {
        let message = "the key of --api-key or MLXCEL_API_KEY is empty; give one, or unset it to need none";
        return Err(Failure::Usage(message.to_owned()));
    }
    let runtime = runtime().map_err(not_started)?;
    // Fails early if the address is in use, before the model is loaded.
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        let advice = advice(error.kind());
        Failure::Usage(format!("listen on {address}: {error}; {advice}"))
    })?;
    let ended = runtime.block_on(serve(arguments, listener));
    // Requests that still waited are gone with it, and work for them ends.
    drop(runtime);
    if let Some(server) = ended? {
        server.finish();
    }
    Ok(())
}

/// Connections are served on this thread, which starts no others: what takes time is done by threads of the
/// server.
fn runtime() -> io::Result<Runtime> {
    // The runtime panics if there are too few files for its own pair of sockets, and files for their events.
    #[cfg(unix)]
    drop([UnixStream::pair()?, UnixStream::pair()?, UnixStream::pair()?]);
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn not_started(error: io::Error) -> Failure {
    Failure::Finding(format!("start server: {error}; raise the limit of the system, such as `ulimit -n`"))
}

/// What can be done if an address cannot be listened on.
fn advice(error: io::ErrorKind) -> &'static str {
    match error {
        io::ErrorKind::PermissionDenied => "ports below 1024 need privileges; choose a higher --port",
        io::ErrorKind::AddrNotAvailable => {
            "pass an address of this machine as --host, or 0.0.0.0 for all of them"
        }
        _ => "choose another --port, 0 picks a free one",
    }
}

/// Loads the model and starts the engine.
fn open(arguments: &Arguments, cancel: CancelToken) -> Result<Running, Failure> {
    let progress = Progress::new();
    let load = LoadOptions::default().with_cancel(cancel);
    let mut load = progress.watch(arguments.speculate.load_options(load)?);
    load.sequences = arguments.sequences;
    load.adapters = arguments.adapters.room()?;
    if arguments.prepare {
        load = load.with_prepare(Prepare::Generation);
    }
    let mut model = arguments.model.open(load)?;
    progress.close();
    if arguments.prefix_cache > 0 {
        model = model.with_prefix_cache(PrefixCache::new(arguments.prefix_cache.saturating_mul(1 << 20)));
    }
    let mut options = EngineOptions::default().with_queue(arguments.queue);
    options.sequences = arguments.sequences;
    let mut limits = Limits::default();
    limits.answer_tokens = arguments.max_tokens;
    limits.time = arguments.time_limit;
    limits.body_bytes = arguments.max_body;
    let origins = Origins::new(arguments.host, &arguments.allow_host, &arguments.allow_origin);
    let engine = Engine::with_options(model, &options)?;
    let (name, model) = (name(arguments), engine.model().clone());
    let mut server = Server::new(&name, engine).with_limits(limits).with_origins(origins).with_page();
    server = arguments.adapters.serve(server, &name, &model)?;
    if let Some(speculation) = arguments.speculate.speculation(&model)? {
        server = server.with_speculation(&name, speculation);
    }
    if let Some(key) = &arguments.api_key {
        server = server.with_api_key(key);
    }
    Ok(server.start()?)
}

/// What the API calls the model.
fn name(arguments: &Arguments) -> String {
    let name = arguments.name.clone().or_else(|| {
        let model = arguments.model.source.model.as_ref()?;
        // What is not a path is a name on the hub.
        let Ok(folder) = model.canonicalize() else { return Some(model.display().to_string()) };
        Some(folder.file_name()?.to_string_lossy().into_owned())
    });
    name.unwrap_or_else(|| "storyteller".to_owned())
}

/// Serves until a signal comes: health checks while the model is loading, then requests. Returns the server
/// if it had started; what ran then had time to end.
async fn serve(arguments: Arguments, listener: TcpListener) -> Result<Option<Running>, Failure> {
    let address = listener.local_addr().map_err(not_started)?;
    let grace = Duration::from_secs(arguments.grace);
    let idle = Duration::from_secs(arguments.idle_limit);
    let listener = Limited::new(listener, arguments.max_connections, idle);
    let mut ending = pin!(ended_by_signal().map_err(not_started)?);
    let startup = Startup::new();
    let router: Router = startup.router().layer(from_fn(watch));
    let service = router.into_make_service_with_connect_info::<Peer>();
    let (close, closed) = oneshot::channel::<()>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(async {
        // It is dropped with this function, if not sent before.
        let _ = closed.await;
    });
    let mut serving = tokio::spawn(serving.into_future());

    let cancel = CancelToken::new();
    let mut loading = load(arguments, cancel.clone())?;
    let server = tokio::select! {
        loaded = &mut loading => {
            loaded.map_err(|_| Failure::Finding("loading the model panicked".to_owned()))??
        }
        () = &mut ending => {
            cancel.cancel();
            // A process that ends under a thread in native code can crash. What takes longer is left.
            let _ = timeout(PATIENCE, loading).await;
            return Ok(None);
        }
        ended = &mut serving => return ended.map_err(io::Error::other)?.map(|()| None).map_err(Failure::from),
    };
    startup.ready(&server);
    writeln!(stdout(), "http://{address}")?;
    stdout().flush()?;

    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = &mut ending => {
            // No effect if the server has ended already.
            let _ = close.send(());
            server.shutdown(grace).await;
            match timeout(Duration::from_secs(1), &mut serving).await {
                Ok(ended) => ended,
                // Idle connections are closed with the process.
                Err(_) => return Ok(Some(server)),
            }
        }
    };
    ended.map_err(io::Error::other)??;
    Ok(Some(server))
}

/// Opens the model on a thread of its own, as health checks are answered meanwhile.
fn load(
    arguments: Arguments,
    cancel: CancelToken,
) -> Result<oneshot::Receiver<Result<Running, Failure>>, Error> {
    let (done, loading) = oneshot::channel();
    let load = move || {
        // Nobody waits for it any more if the program is ending.
        let _ = done.send(open(&arguments, cancel));
    };
    match thread::Builder::new().name("load".to_owned()).spawn(load) {
        Ok(_) => Ok(loading),
        Err(error) => {
            let message = "the system cannot start another thread; raise its limit, such as `ulimit -u`";
            Err(Error::new(ErrorKind::ResourceExhausted, "start server", message).with_source(error))
        }
    }
}

/// Waits for a termination signal.
#[cfg(unix)]
fn ended_by_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};

    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Waits for a termination signal.
#[cfg(not(unix))]
fn ended_by_signal() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        // Where signals cannot be heard, the program is ended from outside.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}
