//! Asking other git servers for objects: what is said and what is understood, without a socket. Protocol v2, and v0 where a
//! server speaks nothing newer.
//!
//! - [`ask`]: the bytes of requests.
//! - [`greeting`]: what a server says of itself when it is first called.
//! - [`listing`]: which of its refs matter; [`inventory`]: whether they are those that it should have.
//! - [`answer`]: a pack, and everything around it.
//!
//! Everything that is heard is a stranger's: it comes in pieces of any size, and nothing of it is kept that has no bound.

pub mod answer;
pub mod ask;
pub mod greeting;
pub mod inventory;
pub mod listing;
mod packets;
#[cfg(test)]
mod tests;

pub use answer::{AnswerParser, BadAnswer};
pub use ask::{Wish, fetch, fetch_first, ls_refs};
pub use greeting::{Greeting, GreetingParser, Offer};
pub use inventory::Inventory;
pub use listing::{Hearer, ListParser, Listing};

/// Characters of a stranger's text that are kept: it stands in logs.
const MAX_WORDS: usize = 200;

/// The beginning of a stranger's text, fit to be shown.
fn words(text: &[u8]) -> String {
    // A character has four bytes at most.
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * MAX_WORDS)]);
    text.trim().chars().take(MAX_WORDS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
