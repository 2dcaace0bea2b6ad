//! Which names of this server, and which pages, requests are answered for.
//!
//! A page of another site can give its own host name the address of this machine (DNS rebinding). The browser
//! then takes the server for a part of that site, and lets the page read its answers. The `Host` of such
//! requests is the foreign name, so requests for unknown names are refused before anything else is looked at.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::failure::ApiError;

/// How long a browser may remember which requests a page may send, in seconds.
const REMEMBERED: &str = "600";

/// The hosts and origins that requests are answered for.
///
/// A server on an address that browsers of this machine or network reach should have these, since any page
/// could otherwise ask it. An application that mounts the router behind a proxy that checks hosts, or in its
/// own cookies' origin, need not.
#[derive(Clone, Debug)]
pub struct Origins {
    bound: IpAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl Origins {
    /// A server that is bound to an address answers to that, to the names of the loopback, and to `hosts`;
    /// and to pages of its own and of `origins` such as `https://example.org`, of which `*` is any.
    pub fn new(bound: IpAddr, hosts: &[String], origins: &[String]) -> Self {
        let lower = |list: &[String]| list.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
        Self { bound, hosts: lower(hosts), origins: lower(origins) }
    }

    /// Whether requests for this host are answered.
    fn has_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let name = host.strip_suffix('.').unwrap_or(&host);
        if name == "localhost" || self.hosts.iter().any(|allowed| allowed == name) {
            return true;
        }
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        // No other site can have an address as its name, so one of any interface that is listened on is
        // right.
        address.is_ok_and(|address| {
            let address = address.to_canonical();
            address.is_loopback() || address == self.bound || self.bound.is_unspecified()
        })
    }

    /// The origin of another page that may read the answer; none for a request that is not from such a page.
    fn check(&self, request: &Request) -> Result<Option<HeaderValue>, ApiError> {
        let named = authorities(request)?;
        if let Some(foreign) = named.iter().find(|named| !self.has_host(named.host())) {
            let host = foreign.host();
            let reason = format!(
                "this server does not answer to the host {host:?}; its operator can allow one (`mlxcel serve --allow-host`)"
            );
            return Err(ApiError::with_status(StatusCode::FORBIDDEN, reason));
        }
        let Some(origin) = only(request.headers(), &header::ORIGIN)? else { return Ok(None) };
        let text = origin.to_str().unwrap_or_default();
        if self.origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(text)) {
            return Ok(Some(origin.clone()));
        }
        let own = text.split_once("://").is_some_and(|(scheme, rest)| {
            rest.parse().is_ok_and(|page| named.iter().all(|named| is_same(scheme, &page, named)))
        });
        if own {
            return Ok(None);
        }
        let reason = format!(
            "pages of {text:?} may not use this server; its operator can allow one (`mlxcel serve --allow-origin`)"
        );
        Err(ApiError::with_status(StatusCode::FORBIDDEN, reason))
    }
}

/// What a request calls the server: in its target, if that is a whole address, and in its `Host`.
fn authorities(request: &Request) -> Result<Vec<Authority>, ApiError> {
    let mut named: Vec<Authority> = request.uri().authority().cloned().into_iter().collect();
    if let Some(host) = only(request.headers(), &header::HOST)? {
        let host = host.to_str().ok().and_then(|host| host.parse().ok());
        named.push(host.ok_or_else(|| ApiError::invalid("", "the Host header is not a host"))?);
    }
    if named.is_empty() {
        return Err(ApiError::invalid("", "the Host header is missing"));
    }
    Ok(named)
}

/// The value of a header that may be there once.
fn only<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Result<Option<&'h HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(ApiError::invalid("", format!("there is more than one header {name}"))),
        (value, None) => Ok(value),
    }
}

/// Whether a page of `scheme` was loaded from the host and port that a request names.
fn is_same(scheme: &str, page: &Authority, named: &Authority) -> bool {
    let usual = if scheme.eq_ignore_ascii_case("https") { 443 } else { 80 };
    let port = |of: &Authority| of.port_u16().unwrap_or(usual);
    page.host().eq_ignore_ascii_case(named.host()) && port(page) == port(named)
}

/// Refuses requests for other hosts and from pages of other origins; tells browsers about the pages that are
/// allowed.
pub(crate) async fn guard(State(allowed): State<Arc<Origins>>, request: Request, next: Next) -> Response {
    let origin = match allowed.check(&request) {
        Ok(None) => return next.run(request).await,
        Ok(Some(origin)) => origin,
        Err(error) => return error.into_response(),
    };
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response =
        if preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    if preflight {
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBERED));
        // Clients add headers of their own; none of them changes what this server does.
        headers.extend(asked.map(|asked| (header::ACCESS_CONTROL_ALLOW_HEADERS, asked)));
    } else {
        let exposed = HeaderValue::from_static("Retry-After, X-Request-Id");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}
