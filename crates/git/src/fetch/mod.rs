//! Client side of fetches: the requests to other git servers and the parsers of their responses, without any network
//! code. Protocol v2, and v0 for servers that do not support it.
//!
//! - [`request`]: the bytes of requests.
//! - [`ref_advertisement`]: parses the response to `info/refs`.
//! - [`ls_refs`](mod@ls_refs): parses the response to `ls-refs` and selects the refs to fetch.
//! - [`ref_comparison`]: compares a server's refs with the expected ones.
//! - [`fetch_response`]: parses the response to a fetch: a pack and what surrounds it.
//!
//! Called by the fetch client of graspd. All input is untrusted: it arrives in chunks of any size, and everything that
//! is kept has a bound.

pub mod fetch_response;
pub mod ls_refs;
mod packet_reader;
pub mod ref_advertisement;
pub mod ref_comparison;
pub mod request;
#[cfg(test)]
mod tests;

pub use fetch_response::{FetchResponseError, FetchResponseParser};
pub use ls_refs::{LsRefsParser, RefVisitor, WantSelector};
pub use ref_advertisement::{RefAdvertisement, RefAdvertisementParser, RefListError, ServerFeatures};
pub use ref_comparison::RefDiff;
pub use request::{FetchWants, fetch_v0, fetch_v2, ls_refs};

/// Characters of a server's text that are kept. The text is logged.
const MAX_EXCERPT: usize = 200;

/// Returns the beginning of a server's text without control characters.
fn excerpt(text: &[u8]) -> String {
    // A character has at most four bytes.
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * MAX_EXCERPT)]);
    text.trim().chars().take(MAX_EXCERPT).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
