//! Agents author to publish and publish to dispatcher: queue, send, receive, flush.
