//! Serves a model over HTTP, as OpenAI's API and as a page to chat on.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod app;
mod chat;
mod completions;
mod connections;
mod echo;
mod embeddings;
mod failure;
mod fields;
mod header;
mod limits;
mod logprobs;
mod metrics;
mod openapi;
mod origins;
mod page;
mod response_pieces;
mod responses;
mod routes;
mod sse;
mod tools;
mod work;

use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use mlxcel_examples::{Failure, Progress, launch_until, open_model_on};
use mlxcel_session::{Engine, EngineOptions, LoadOptions, Precision, PrefixCache, Prepare};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use app::App;
use connections::{Limited, Peer};
use origins::Allowed;
use work::Workers;

/// How many threads parse bodies, encode prompts and compile grammars.
const WORKERS: usize = 4;
/// How long work may go on after the last answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serve a language model over HTTP: OpenAI's `/v1/chat/completions`, `/v1/responses`, `/v1/completions`, `/v1/embeddings` and
/// `/v1/models`, a page to chat on at `/`, `/openapi.json`, `/health`, and `/metrics` for Prometheus.
///
/// The first line on standard output is the address, such as `http://127.0.0.1:8080`. SIGINT and SIGTERM end it: it takes no
/// more requests and
/// lets those that run finish.
#[derive(Parser)]
#[command(name = "server", version)]
struct Arguments {
    /// The checkpoint folder, GGUF file, or `org/name` in the Hugging Face cache; defaults to the bundled story teller
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// What the API calls the model; defaults to the folder's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Run the compiled programs that lie in the checkpoint's folder, if it is a bundle. They are machine code: only for a folder whose
    /// writer you trust. Bundles that this machine wrote need it not
    #[arg(long, requires = "model")]
    trust_bundle: bool,
    /// The engine: iree (or xla), mlx, portable; defaults to what MLXCEL_BACKEND names, else to the first of these that is compiled in
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The rounding: exact (float32), native (the checkpoint's own type), fast
    #[arg(long, value_name = "NAME", default_value_t)]
    precision: Precision,
    /// The most tokens that prompt and answer may have together; defaults to the model's own limit
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// How many threads compute; defaults to the engine's choice
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Distribute the model over this many devices, with the engine pjrt
    #[arg(long, value_name = "N")]
    mesh: Option<usize>,
    /// The address to listen on. Others than those of this machine itself let anyone on the network in: give --api-key then
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Also answer requests for this host name (and not only for the names of the loopback and the address of --host), such as the
    /// name that a proxy passes on. Can be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Let pages of this origin, such as `https://example.org`, use the server (CORS); * for any. Can be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// What clients must send as `Authorization: Bearer KEY`
    #[arg(long, value_name = "KEY", env = "MLXCEL_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// How many requests are computed at once; defaults to as many as the engine holds
    #[arg(long, value_name = "N")]
    sequences: Option<usize>,
    /// Compile all that requests can need before the first one comes, and not when it is needed
    #[arg(long)]
    prepare: bool,
    /// How many requests may wait; a further one is refused with status 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    /// The maximum number of tokens of an answer; defaults to the context
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// The most seconds that a request may take, waiting included
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    time_limit: u64,
    /// The most bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    max_body: usize,
    /// How many connections may be open; a further one waits
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_connections: usize,
    /// The most seconds that a connection may be silent: the next request must come whole in that time, and answers must be read
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    idle_limit: u64,
    /// The mebibytes of memory for prefixes of earlier prompts, to be reused by prompts that share them; 0 for none
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    prefix_cache: u64,
    /// The most seconds that running requests have to end after a signal
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
}

fn main() -> ExitCode {
    launch_until(|arguments| run(&arguments))
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.max_connections == 0 {
        return Err(Failure::Usage("--max-connections must be at least 1".to_owned()));
    }
    // Connections are served on this thread, which starts no others: what takes time is done by threads of `work`.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Fails early if the address is in use, before the model is loaded.
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        Failure::Usage(format!("listen on {address}: {error}; choose another --port, 0 picks a free one"))
    })?;
    let app = Arc::new(open(arguments)?);
    let address = listener.local_addr()?;
    let allowed = Allowed::new(arguments.host, &arguments.allow_host, &arguments.allow_origin);
    let router = routes::router(Arc::clone(&app), allowed);
    let grace = Duration::from_secs(arguments.grace);
    let ended = runtime.block_on(async {
        let ending = ended_by_signal()?;
        writeln!(stdout(), "http://{address}")?;
        stdout().flush()?;
        let idle = Duration::from_secs(arguments.idle_limit);
        serve(
            Limited::new(listener, arguments.max_connections, idle),
            router,
            Arc::clone(&app),
            ending,
            grace,
        )
        .await
    });
    // Whoever still waited is gone with it, and work for them ends.
    drop(runtime);
    app.embedding.finish(PATIENCE);
    app.workers.finish(PATIENCE);
    ended
}

/// Loads the model and starts the engine.
fn open(arguments: &Arguments) -> Result<App, Failure> {
    let no_thread = |error| {
        Failure::Usage(format!(
            "the system cannot start another thread ({error}); raise its limit, such as `ulimit -u`"
        ))
    };
    let workers = Workers::start("work", WORKERS).map_err(no_thread)?;
    let embedding = Workers::start("embed", 1).map_err(no_thread)?;
    let progress = Progress::new();
    let mut load = LoadOptions::default().with_precision(arguments.precision);
    load.capacity = arguments.context;
    load.threads = arguments.threads;
    load.sequences = arguments.sequences;
    if arguments.prepare {
        load = load.with_prepare(Prepare::Generation);
    }
    let engine = mlxcel_examples::EngineOptions {
        name: arguments.backend.as_deref(),
        mesh: arguments.mesh,
        ..mlxcel_examples::EngineOptions::default()
    };
    let (folder, load) = (arguments.model.as_deref(), progress.watch(load));
    let mut model = open_model_on(folder, arguments.trust_bundle, engine, &load)?;
    progress.close();
    // Without a tokenizer there is no text to serve.
    model.tokenizer()?;
    if arguments.prefix_cache > 0 {
        model = model.with_prefix_cache(PrefixCache::new(arguments.prefix_cache.saturating_mul(1 << 20)));
    }
    let mut options = EngineOptions::default().with_queue(arguments.queue);
    options.sequences = arguments.sequences;
    let context = model.capabilities().context;
    let name = arguments.name.clone().or_else(|| {
        let model = arguments.model.as_ref()?;
        // What is not a path is a name on the hub.
        let Ok(folder) = model.canonicalize() else { return Some(model.display().to_string()) };
        Some(folder.file_name()?.to_string_lossy().into_owned())
    });
    // The checkpoint's sampling settings; OpenAI's defaults if it has none.
    let mut sampling = model.default_sampling().clone();
    if sampling.temperature == 0.0 {
        sampling.temperature = 1.0;
    }
    Ok(App {
        sampling,
        engine: Engine::with_options(model, &options)?,
        name: name.unwrap_or_else(|| "storyteller".to_owned()),
        api_key: arguments.api_key.clone(),
        most_tokens: arguments.max_tokens.unwrap_or(context).min(context),
        time_limit: Duration::from_secs(arguments.time_limit),
        most_bytes: arguments.max_body,
        parsing: Arc::new(Semaphore::new(routes::PARSED_AT_ONCE)),
        started: app::unix_time(),
        served: metrics::Served::default(),
        requests: AtomicU64::default(),
        workers,
        embedding,
    })
}

/// Serves until `ending` comes; then lets requests end for at most `grace`.
async fn serve(
    listener: Limited,
    router: Router,
    app: Arc<App>,
    ending: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> Result<(), Failure> {
    let (told, mut hears) = tokio::sync::watch::channel(false);
    let service = router.into_make_service_with_connect_info::<Peer>();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        ending.await;
        // No effect if the server has ended already.
        let _ = told.send(true);
    });
    let mut server = tokio::spawn(server.into_future());
    let ended = tokio::select! {
        ended = &mut server => Some(ended),
        _ = hears.wait_for(|told| *told) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            // Requests that run finish; what is late is cancelled, which ends its answer too.
            let engine = app.engine.clone();
            // A client of its own, so that it is soon its turn.
            let _ = app.workers.run(u64::MAX, move || engine.shutdown(grace)).await;
            match tokio::time::timeout(Duration::from_secs(1), &mut server).await {
                Ok(ended) => ended,
                // Idle connections are closed with the process.
                Err(_) => return Ok(()),
            }
        }
    };
    Ok(ended.map_err(std::io::Error::other)??)
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
