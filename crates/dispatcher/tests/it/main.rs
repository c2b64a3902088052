//! Public behavior of `tympan-dispatcher`.
//!
//! Test names begin with the number of the rule in the conformance list (`cf08`, `fl113`, ...), where there is one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says aloud what it skips"
)]

mod admin;
mod auth;
mod balance;
mod cacheable;
mod compare;
mod config;
mod conformance;
mod convert;
mod corpus;
mod crash;
mod decide;
mod encoding;
mod export;
mod flush;
mod freshness;
mod front;
mod gossip;
mod hit;
mod http_cache;
mod http_cache_suite;
mod include;
mod kept;
mod keys;
mod lane;
mod lane_faults;
mod lenient;
mod negative;
mod observe;
mod order;
mod outsider;
mod pace;
mod pattern;
mod proxied;
mod raw;
mod reload;
mod renders;
mod revalidate;
mod room;
mod route;
mod sessions;
mod shadow;
mod share;
mod sibling;
mod storm;
mod streams;
mod tls;
mod variant_limit;
mod variants;
mod vary;
mod warm_up;
mod websocket;

tympan_testkit::every_test_file_is_listed!();
