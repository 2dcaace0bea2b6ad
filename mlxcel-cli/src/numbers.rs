//! Values of options that are checked where they are read, so that errors name the option.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use mlxcel_session::SamplingParams;
use mlxcel_session::mlxcel_core::SamplingNumber;

/// A number of at least 1.
pub(crate) fn positive<T: FromStr + Default + PartialOrd>(text: &str) -> Result<T, String> {
    let value = text.parse().ok().filter(|value| *value > T::default());
    value.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

/// A number of at least 0.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it must be a whole number of at least 0".to_owned())
}

/// A number of seconds above 0, which can have a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|limit| !limit.is_zero()).ok_or_else(|| "it must be a number above 0".to_owned())
}

/// A number of the sampling parameters, in its range.
pub(crate) fn sampling(number: &'static SamplingNumber, text: &str) -> Result<f64, String> {
    let value = if number.is_whole() {
        whole::<u32>(text).map(f64::from)?
    } else {
        text.parse::<f32>().map(f64::from).map_err(|_| "it must be a number".to_owned())?
    };
    if number.allows(value) { Ok(value) } else { Err(range(number, value)) }
}

/// The range of `number` in words, as the check of parameters says it of a `value` out of range.
fn range(number: &'static SamplingNumber, value: f64) -> String {
    let mut params = SamplingParams::greedy();
    let enabled = number.requires().map_or(Ok(()), |required| required.set(&mut params, Some(1.0)));
    match enabled.and_then(|()| number.set(&mut params, Some(value))).and_then(|()| params.validate()) {
        Ok(()) => "it is out of range".to_owned(),
        Err(error) => error.message().to_owned(),
    }
}

/// The address of a host: `localhost`, or an address as it stands.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    text.parse().map_err(|_| "it must be localhost or an IP address, such as 127.0.0.1 or 0.0.0.0".to_owned())
}

/// The name of a host, as requests have it.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_address = text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let is_name = !text.is_empty() && !text.contains(['/', ':', '*']) && !text.contains(char::is_whitespace);
    let refused = || "it must be a host name without scheme and port, such as example.org".to_owned();
    (is_address || is_name).then(|| text.to_owned()).ok_or_else(refused)
}

/// An origin, as browsers send it.
pub(crate) fn origin(text: &str) -> Result<String, String> {
    let host = text.split_once("://").map(|(scheme, host)| (scheme, host.trim_end_matches('/')));
    let is_origin = host.is_some_and(|(scheme, host)| {
        !scheme.is_empty() && !host.is_empty() && !host.contains('/') && !text.contains(char::is_whitespace)
    });
    let refused = || "it must be * or a scheme and a host, such as https://example.org".to_owned();
    // Browsers send no path.
    let own = || text.trim_end_matches('/').to_owned();
    (text == "*" || is_origin).then(own).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        for number in SamplingNumber::ALL {
            let refused = sampling(number, "nan").unwrap_err();
            assert!(refused.contains("must be"), "{}: {refused}", number.name());
            let limit = sampling(number, "-1").err().unwrap_or_default();
            assert!(number.allows(-1.0) || limit.contains("must be"), "{}: {limit}", number.name());
        }
        assert!(positive::<usize>("0").is_err() && positive::<usize>("-1").is_err());
        assert_eq!(positive("7"), Ok(7_usize));
    }

    #[test]
    fn hosts_and_origins_are_what_requests_have() {
        for right in ["example.org", "localhost", "10.0.0.1", "[::1]", "::1"] {
            assert!(host(right).is_ok(), "{right}");
        }
        for wrong in ["", "https://example.org", "example.org:80", "a b", "*"] {
            assert!(host(wrong).is_err(), "{wrong}");
        }
        assert_eq!(origin("https://example.org/").as_deref(), Ok("https://example.org"));
        for wrong in ["", "example.org", "https://", "https://a/b", "://a"] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }
}
