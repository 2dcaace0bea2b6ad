//! A server on this machine that behaves like the hub: a listing, small files by itself, large ones by a
//! redirect to a storage on another host, ranges, tags, tokens; and that misbehaves on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(super) const REPO: &str = "org/name";

/// Files from this size on are in the storage.
const LARGE: usize = 1000;

#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Whether the storage was asked, and not the hub.
    pub(super) storage: bool,
    pub(super) path: String,
    pub(super) range: Option<String>,
    pub(super) authorization: Option<String>,
}

/// What the server does otherwise than it should, or than by default.
#[derive(Clone, Default)]
pub(super) struct Behaviour {
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// The listing to return instead of that of the files.
    pub(super) listing: Option<Value>,
    /// Who is answered.
    pub(super) token: Option<&'static str>,
    /// Whether the token lacks permission.
    pub(super) gated: bool,
    /// After how many bytes of a body each connection is dropped.
    pub(super) drop_after: Option<usize>,
    /// After which bytes of a body it is silent.
    pub(super) silent_after: Option<usize>,
    /// Whether every answer comes as a byte now and then.
    pub(super) drips: bool,
    pub(super) no_ranges: bool,
    /// The content to serve instead of large files.
    pub(super) damaged: Option<Vec<u8>>,
    pub(super) tag: Option<String>,
    /// How many requests are answered with this status first.
    pub(super) busy: (usize, u16),
    /// Where large files are redirected to.
    pub(super) redirect: Option<String>,
}

pub(super) struct Hub {
    pub(super) endpoint: String,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Hub {
    /// A hub with these files in its one repository.
    pub(super) fn with(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|&(name, content)| (name.to_owned(), content.to_owned())).collect();
        let behaviour = Arc::new(Mutex::new(Behaviour { files, ..Behaviour::default() }));
        let requests = Arc::default();
        let [hub, storage] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let [endpoint, store] = [&hub, &storage].map(|at| format!("http://{}", at.local_addr().unwrap()));
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let (behaviour, requests) = (Arc::clone(&behaviour), Arc::clone(&requests));
            let store = store.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (behaviour, requests) = (Arc::clone(&behaviour), Arc::clone(&requests));
                    let store = store.clone();
                    // A client that goes away is none of the server's business.
                    thread::spawn(move || drop(serve(stream, is_storage, &store, &behaviour, &requests)));
                }
            });
        }
        Self { endpoint, behaviour, requests }
    }

    pub(super) fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    /// The requests since the last call.
    pub(super) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

pub(super) fn sha256(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

pub(super) fn git(content: &[u8]) -> String {
    let head = format!("blob {}\0", content.len());
    format!("{:x}", Sha1::new().chain_update(head).chain_update(content).finalize())
}

fn serve(
    mut stream: TcpStream,
    storage: bool,
    store: &str,
    behaviour: &Mutex<Behaviour>,
    requests: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut request = Request { storage, path, range: None, authorization: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    requests.lock().unwrap().push(request.clone());
    let now = {
        let mut behaviour = behaviour.lock().unwrap();
        if behaviour.busy.0 > 0 {
            behaviour.busy.0 -= 1;
            let status = behaviour.busy.1;
            drop(behaviour);
            return answer(&mut stream, status, "", b"");
        }
        behaviour.clone()
    };
    if now.drips {
        return drip(&mut stream);
    }
    respond(&mut stream, &request, store, &now)
}

fn respond(stream: &mut TcpStream, request: &Request, store: &str, now: &Behaviour) -> std::io::Result<()> {
    let by_sum = |sum: &str| now.files.values().find(|content| sha256(content) == sum);
    if request.storage {
        let sum = request.path.trim_start_matches('/').split('?').next().unwrap_or_default();
        return match by_sum(sum) {
            Some(content) => body(stream, now.damaged.as_ref().unwrap_or(content), "", request, now),
            None => answer(stream, 403, "", b"expired"),
        };
    }
    if let Some(token) = now.token {
        match &request.authorization {
            Some(given) if *given == format!("Bearer {token}") => {}
            _ => return answer(stream, 401, "X-Error-Message: Invalid username or password.\r\n", b""),
        }
    }
    if now.gated {
        return answer(stream, 403, "X-Error-Code: GatedRepo\r\n", b"");
    }
    let api = format!("/api/models/{REPO}/revision/");
    if let Some(revision) = request.path.strip_prefix(&api) {
        return match revision.split('?').next() {
            Some("main" | "refs%2Fpr%2F7" | COMMIT) => {
                answer(stream, 200, "", listing(now).to_string().as_bytes())
            }
            _ => answer(stream, 404, "X-Error-Code: RevisionNotFound\r\n", b""),
        };
    }
    let resolve = format!("/{REPO}/resolve/{COMMIT}/");
    let file = request.path.strip_prefix(&resolve).and_then(|file| now.files.get(&file.replace("%20", " ")));
    match file {
        Some(content) if content.len() >= LARGE => {
            let sum = sha256(content);
            let tag = now.tag.clone().unwrap_or_else(|| sum.clone());
            let to = now.redirect.clone().unwrap_or_else(|| format!("{store}/{sum}?signature=secret"));
            answer(stream, 302, &format!("Location: {to}\r\nX-Linked-ETag: \"{tag}\"\r\n"), b"")
        }
        Some(content) => body(stream, content, &format!("ETag: \"{}\"\r\n", git(content)), request, now),
        None => answer(stream, 404, "X-Error-Code: RepoNotFound\r\n", b""),
    }
}

fn listing(now: &Behaviour) -> Value {
    if let Some(listing) = &now.listing {
        return listing.clone();
    }
    let siblings = now.files.iter().map(|(name, content)| {
        let size = content.len();
        let mut sibling = json!({"rfilename": name, "size": size, "blobId": git(content)});
        if size >= LARGE {
            sibling["lfs"] = json!({"sha256": sha256(content), "size": size, "pointerSize": 135});
        }
        sibling
    });
    json!({"id": REPO, "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>(), "gated": false})
}

/// A file's content, or the requested range.
fn body(
    stream: &mut TcpStream,
    content: &[u8],
    head: &str,
    request: &Request,
    now: &Behaviour,
) -> std::io::Result<()> {
    let from = request.range.as_ref().filter(|_| !now.no_ranges);
    let from = from.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let rest = match from {
        Some(from) if from >= content.len() => return answer(stream, 416, head, b""),
        from => &content[from.unwrap_or(0)..],
    };
    let (length, total) = (rest.len(), content.len());
    match from {
        Some(from) => write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{total}\r\n",
            total - 1
        )?,
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(stream, "{head}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
    let sent = now.drop_after.or(now.silent_after).unwrap_or(length).min(length);
    stream.write_all(&rest[..sent])?;
    stream.flush()?;
    if now.silent_after.is_some() && sent < length {
        thread::sleep(Duration::from_secs(120));
    }
    Ok(())
}

/// Sends an answer that never ends, a byte at a time.
fn drip(stream: &mut TcpStream) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 So\r\nContent-Length: 100000\r\n\r\n")?;
    loop {
        stream.write_all(b" ")?;
        thread::sleep(Duration::from_millis(20));
    }
}

fn answer(stream: &mut TcpStream, status: u16, head: &str, content: &[u8]) -> std::io::Result<()> {
    let length = content.len();
    write!(stream, "HTTP/1.1 {status} So\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(content)
}
