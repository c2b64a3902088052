//! The full-text index: follows content by the difference of two roots and stores the root it has indexed.
//!
//! Search is derived data: it can be deleted and rebuilt from content at any time, and it never blocks a commit.
