//! Chunks and the persistent tree: what content is kept in.
