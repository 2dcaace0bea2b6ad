//! What a check lacks. On a developer's machine the check is then left out, and the summary says so; in
//! continuous integration it fails, unless nothing that runs there could have brought it.

use std::ffi::OsString;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Done, in_ci};
use crate::process;
use crate::workspace::program_of_toolchain;

/// Where rustup fetches from, unless its variable names another server.
const RUST_SERVER: &str = "static.rust-lang.org";
const RUST_SERVER_VARIABLE: &str = "RUSTUP_DIST_SERVER";
const PROXIES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
const PATIENCE: Duration = Duration::from_secs(5);

/// A check that is not made for want of something that continuous integration could have: an error there.
pub(super) fn left_out(reason: String) -> Result<Done> {
    if in_ci() {
        bail!("{reason}; continuous integration may not skip it");
    }
    Ok(Done::Unchecked(reason))
}

/// Runs `rustup` with `arguments` in continuous integration, for what a check lacks, and answers whether it
/// did. An error where rustup's server can be reached and it failed all the same; elsewhere nothing is
/// downloaded implicitly.
pub(crate) fn fetched_by_rustup(arguments: &[&str]) -> Result<bool> {
    if !in_ci() {
        return Ok(false);
    }
    match process::output(Command::new("rustup").args(arguments)) {
        Ok(_) => Ok(true),
        Err(error) if reaches_rust_server(|name| std::env::var_os(name)) => Err(error),
        Err(error) => {
            eprintln!("{error:#}; its server is unreachable");
            Ok(false)
        }
    }
}

/// Whether the toolchain that runs this program has the standard library of a target.
pub(super) fn has_target(target: &str) -> bool {
    let rustc = program_of_toolchain("rustc");
    process::output(Command::new(rustc).args(["--print", "target-libdir", "--target", target]))
        .is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

/// Whether rustup could fetch: by a proxy, from a server of one's own, or from that of the Rust project.
fn reaches_rust_server(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    if PROXIES.iter().chain([&RUST_SERVER_VARIABLE]).any(|name| variable(name).is_some()) {
        return true;
    }
    let addresses = (RUST_SERVER, 443).to_socket_addrs();
    addresses
        .is_ok_and(|mut found| found.any(|address| TcpStream::connect_timeout(&address, PATIENCE).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_and_a_named_server_count_as_reachable() {
        for name in ["HTTPS_PROXY", RUST_SERVER_VARIABLE] {
            assert!(reaches_rust_server(|asked| (asked == name).then(|| "http://localhost:1".into())));
        }
    }
}
