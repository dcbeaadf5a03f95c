//! Asking other git servers for objects: what is said and what is understood, without a socket. Protocol v2, and v0 where a
//! server speaks nothing newer.
//!
//! - [`ask`]: the bytes of requests.
//! - [`greeting`]: what a server says of itself when it is first called.
//! - [`listing`]: which of its refs matter; [`inventory`]: whether they are those that it should have.
//! - [`answer`]: a pack, and everything around it.
//!
//! Everything that is heard is a stranger's: it comes in pieces of any size, and nothing of it is kept that has no bound.

pub mod fetch_response;
pub mod ls_refs;
mod packet_reader;
pub mod ref_advertisement;
pub mod ref_comparison;
pub mod request;
#[cfg(test)]
mod tests;

pub use fetch_response::{AnswerParser, BadAnswer};
pub use ls_refs::{Hearer, ListParser, Listing};
pub use ref_advertisement::{Greeting, GreetingParser, Offer};
pub use ref_comparison::Inventory;
pub use request::{Wish, fetch, fetch_first, ls_refs};

/// Characters of a stranger's text that are kept: it stands in logs.
const MAX_WORDS: usize = 200;

/// The beginning of a stranger's text, fit to be shown.
fn words(text: &[u8]) -> String {
    // A character has four bytes at most.
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * MAX_WORDS)]);
    text.trim().chars().take(MAX_WORDS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
