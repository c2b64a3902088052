//! The text forms that all crates share: sizes and durations, which people write in options, configurations and plans;
//! escapes of texts in HTML and XML; harmless schemes of addresses; patterns with wildcards; an error with its causes.
//!
//! Not here: formats with an owner, such as the durations of JMeter's thread groups or the sizes of restic's options.

mod address_scheme;
mod byte_size;
mod duration;
mod error_chain;
mod html_escape;
mod quantity;
mod wildcard;
mod xml_escape;

pub use address_scheme::has_harmless_scheme;
pub use byte_size::ByteSize;
pub use duration::{DurationText, parse_duration, parse_duration_or_count};
pub use error_chain::error_chain_text;
pub use html_escape::{escape_html, has_html_special, write_escaped_text};
pub use quantity::ParseQuantityError;
pub use wildcard::{WildcardToken, matches_wildcards, wildcard_tokens};
pub use xml_escape::escape_xml;
