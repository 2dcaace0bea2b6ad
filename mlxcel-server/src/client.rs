//! Whom requests count for.

use std::net::IpAddr;

/// Whom a request counts for. Clients take turns: at the threads that parse and encode, at sequences, and in
/// the queue.
///
/// An application that knows its clients, by their keys for example, puts this into the extensions of a
/// request before it reaches the router. Without it, the address counts if the application serves with
/// `into_make_service_with_connect_info::<SocketAddr>()`; otherwise all requests count for one client.
///
/// ```
/// use axum::Router;
/// use axum::extract::Request;
/// use axum::middleware::{Next, from_fn};
/// use mlxcel_server::Client;
///
/// # fn tenant_of(request: &Request) -> u64 { request.headers().len() as u64 }
/// # fn layered(router: Router) -> Router {
/// router.layer(from_fn(async |mut request: Request, next: Next| {
///     let tenant = tenant_of(&request);
///     request.extensions_mut().insert(Client(tenant));
///     next.run(request).await
/// }))
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(pub u64);

impl Client {
    /// The client at an address. IPv6 addresses, of which hosts have many, count by their network of 64 bits.
    pub fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u64::from(address.to_bits())),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) as u64),
        }
    }
}
