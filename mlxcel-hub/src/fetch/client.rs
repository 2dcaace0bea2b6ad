//! The HTTP client of the hub: tokens, redirects, and the meaning of responses.

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mlxcel_core::{Error, ErrorKind, Result};
use mlxcel_models::files::read_bounded;
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, BodyReader};

use crate::name::HubName;

use super::{FetchOptions, failed, go_on};

/// How many redirects are followed.
const MOST_REDIRECTS: usize = 8;

/// The longest pause before a request is made again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What a hub has to send in a second at least, so that the time of waiting for it is not that of a hub that
/// is silent.
const LEAST_BYTES: u64 = 16 << 10;

/// A hub to ask.
pub(super) struct Client<'a> {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    options: &'a FetchOptions,
    /// How long requests took until now.
    spent: Cell<Duration>,
    /// How many bytes they brought.
    received: Cell<u64>,
}

/// The body of an answer, which is read within the time that all requests have together.
pub(super) struct Content<'c> {
    body: BodyReader<'static>,
    client: &'c Client<'c>,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.client.check_time().map_err(|error| io::Error::new(io::ErrorKind::TimedOut, error))?;
        let taken = self.client.timed(|| self.body.read(buffer))?;
        self.client.received.set(self.client.received.get() + taken as u64);
        Ok(taken)
    }
}

/// Whom a request goes to.
#[derive(PartialEq, Eq)]
struct Origin {
    secure: bool,
    host: String,
    port: u16,
}

/// A body to read, and what its head said.
pub(super) struct Answer<'c> {
    pub(super) status: StatusCode,
    /// `Content-Range` if there is one.
    pub(super) range: Option<String>,
    /// The sum that the hub itself gave as the file's tag, before any redirect to a storage.
    pub(super) tag: Option<String>,
    pub(super) content: Content<'c>,
}

/// Why there is no answer.
pub(super) enum Failure {
    /// A transient error: a retry may succeed.
    Passing(Error),
    Final(Error),
}

impl<'a> Client<'a> {
    pub(super) fn new(options: &'a FetchOptions) -> Result<Self> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let origin = endpoint.parse::<Uri>().ok().filter(|uri| uri.query().is_none());
        let origin = origin.as_ref().and_then(Origin::of).ok_or_else(|| {
            let message = "the endpoint is not a URL such as https://huggingface.co; check HF_ENDPOINT";
            failed(ErrorKind::InvalidInput, message).with_context("endpoint", &endpoint)
        })?;
        if options.token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            let message = "the access token has invalid characters; check HF_TOKEN";
            return Err(failed(ErrorKind::InvalidInput, message));
        }
        let mut config = Agent::config_builder()
            // A redirect may lead to another host, which is not told the token.
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("mlxcel/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(options.timeout))
            .timeout_connect(Some(options.timeout))
            .timeout_recv_response(Some(options.timeout.saturating_mul(2)))
            .timeout_per_read(Some(options.timeout));
        if origin.is_loopback() {
            config = config.proxy(None);
        }
        // Certificates are for hosts that are not this machine; where a redirect goes is not known yet.
        let agent = config.tls_config(tls()).build().into();
        Ok(Self { agent, endpoint, origin, options, spent: Cell::default(), received: Cell::default() })
    }

    /// Reads an answer of at most `most` bytes whole; answers where it came from, too.
    pub(super) fn read(&self, path: &str, name: &HubName, most: u64) -> Result<(Vec<u8>, String)> {
        let url = format!("{}/{path}", self.endpoint);
        let content = self.retrying(|| {
            let answer = self.get(path, name, None)?;
            read_bounded(answer.content, most).map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => {
                    let message = format!("the hub's response exceeds {most} bytes");
                    Failure::Final(failed(ErrorKind::Corrupt, message).with_context("url", &url))
                }
                _ => Failure::Passing(dropped(error, &url)),
            })
        })?;
        Ok((content, url))
    }

    /// Whether to go on: not once it is cancelled, or has taken too long.
    pub(super) fn go_on(&self) -> Result<()> {
        go_on(self.options.cancel.as_ref())?;
        self.check_time()
    }

    /// Whether requests have taken no longer than they may have for what they brought.
    fn check_time(&self) -> Result<()> {
        let allowed = Duration::from_secs(self.received.get() / LEAST_BYTES);
        if self.spent.get() <= self.options.patience.saturating_add(allowed) {
            return Ok(());
        }
        let message = "the hub is silent or too slow; try again later, which resumes the download";
        let limit = self.options.patience.as_secs_f64();
        Err(failed(ErrorKind::Io, message)
            .with_context("seconds", limit)
            .with_context("bytes", self.received.get()))
    }

    /// Runs a part of a request, and adds its time up. What is done between requests does not count.
    fn timed<T>(&self, run: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let done = run();
        self.spent.set(self.spent.get() + started.elapsed());
        done
    }

    /// Makes a request again as often as the options allow.
    pub(super) fn retrying<T>(&self, mut request: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let mut failures = 0;
        loop {
            self.go_on()?;
            match request() {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) => {
                    failures += 1;
                    if failures > self.options.retries {
                        return Err(error);
                    }
                    tracing::debug!(%error, failures, "retrying the request");
                    self.pause(failures)?;
                }
            }
        }
    }

    /// Waits a while that grows with the number of failures.
    pub(super) fn pause(&self, failures: u32) -> Result<()> {
        let pause = Duration::from_millis(100).saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE);
        let started = Instant::now();
        while started.elapsed() < pause {
            self.go_on()?;
            self.timed(|| thread::sleep(Duration::from_millis(20)));
        }
        Ok(())
    }

    /// Asks for `path` of the endpoint, from the byte `from` on.
    pub(super) fn get(&self, path: &str, name: &HubName, from: Option<u64>) -> Result<Answer<'_>, Failure> {
        let mut url = format!("{}/{path}", self.endpoint);
        let mut tag = None;
        for _ in 0..=MOST_REDIRECTS {
            let uri: Uri = url.parse().map_err(|_| Failure::Final(misled(&url)))?;
            let origin = Origin::of(&uri).ok_or_else(|| Failure::Final(misled(&url)))?;
            let is_hub = origin == self.origin;
            let response = self.send(&url, is_hub, from)?;
            if is_hub && tag.is_none() {
                tag = tag_of(&response);
            }
            if !response.status().is_redirection() {
                return self.judge(response, tag, &url, is_hub, name);
            }
            let target = text(&response, header::LOCATION).and_then(|target| follow(&uri, &target));
            url = target.ok_or_else(|| Failure::Final(misled(&url)))?;
            let secure = url.starts_with("https:");
            if origin.secure && !secure {
                return Err(Failure::Final(misled(&url)));
            }
        }
        Err(Failure::Final(misled(&url)))
    }

    fn send(&self, url: &str, with_token: bool, from: Option<u64>) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = self.options.token.as_ref().filter(|_| with_token) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        self.timed(|| request.call()).map_err(|error| {
            let passing = !matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::Tls(_) | ureq::Error::HostNotFound);
            let message =
                "the hub cannot be reached; HF_HUB_OFFLINE=1 uses the cache only, HF_ENDPOINT selects another hub";
            let error = failed(ErrorKind::Io, message).with_context("url", plain(url)).with_source(error);
            if passing { Failure::Passing(error) } else { Failure::Final(error) }
        })
    }

    /// What a status means.
    fn judge(
        &self,
        response: Response<Body>,
        tag: Option<String>,
        url: &str,
        is_hub: bool,
        name: &HubName,
    ) -> Result<Answer<'_>, Failure> {
        let status = response.status();
        if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
            let range = text(&response, header::CONTENT_RANGE);
            let content = Content { body: response.into_body().into_reader(), client: self };
            return Ok(Answer { status, range, tag, content });
        }
        let code = text(&response, "x-error-code").unwrap_or_default();
        let has_token = self.options.token.is_some();
        let kind = match status.as_u16() {
            401 | 404 => ErrorKind::NotFound,
            403 if is_hub => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        let message = match status.as_u16() {
            401 if !has_token => {
                "the hub does not show this model without a token: it does not exist, or is private or gated; set HF_TOKEN, or log in \
                 with `hf auth login`"
            }
            401 => "the hub rejected the access token; check HF_TOKEN and the model's name",
            403 if is_hub => "this model is gated: accept its terms on its page with the account of HF_TOKEN",
            404 if code == "RevisionNotFound" => "the model has no such revision",
            404 if code == "EntryNotFound" => "the model has no such file at this revision",
            404 => "the hub has no such model",
            429 => "the hub's rate limit is reached; try again later, or set HF_TOKEN",
            _ => "the hub did not respond to this request",
        };
        let mut error = failed(kind, message)
            .with_context("model", name)
            .with_context("status", status.as_u16())
            .with_context("url", plain(url));
        if let Some(words) = text(&response, "x-error-message") {
            error = error.with_context("hub", words.chars().take(200).collect::<String>());
        }
        // Storage URLs expire, and the next request gets a new one.
        let passing =
            status.is_server_error() || status.as_u16() == 429 || (!is_hub && status.as_u16() == 403);
        Err(if passing { Failure::Passing(error) } else { Failure::Final(error) })
    }
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Some(Self { secure, host: authority.host().to_ascii_lowercase(), port })
    }

    fn is_loopback(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// TLS by rustls with the certificates that the system trusts.
fn tls() -> TlsConfig {
    let certificates = rustls_native_certs::load_native_certs().certs;
    let certificates: Vec<_> = certificates.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&certificates))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}

/// The sum by which the hub tags a file; none where the tag is none.
fn tag_of(response: &Response<Body>) -> Option<String> {
    let tag = text(response, "x-linked-etag").or_else(|| text(response, header::ETAG))?;
    let tag = tag.trim_start_matches("W/").trim_matches('"').to_owned();
    super::listing::Sum::parse(&tag).map(|_| tag)
}

fn text(response: &Response<Body>, name: impl header::AsHeaderName) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// Where a redirect from `from` leads.
fn follow(from: &Uri, target: &str) -> Option<String> {
    if target.starts_with("https://") || target.starts_with("http://") {
        return Some(target.to_owned());
    }
    let scheme = from.scheme_str()?;
    if let Some(rest) = target.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    let path = target.strip_prefix('/')?;
    Some(format!("{scheme}://{}/{path}", from.authority()?))
}

fn misled(url: &str) -> Error {
    let message = "the hub's redirects lead nowhere";
    failed(ErrorKind::Io, message).with_context("url", plain(url))
}

pub(super) fn dropped(error: std::io::Error, place: &str) -> Error {
    failed(ErrorKind::Io, "the connection to the hub was dropped; the next download resumes it")
        .with_context("url", plain(place))
        .with_source(error)
}

/// A URL without what signs it.
fn plain(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// Text as a part of a URL's path, with slashes or without.
pub(super) fn escape(text: &str, slashes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (slashes && byte == b'/') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
