//! The delivery of documents from author to publisher: messages, and the chunks and blobs that they need.

pub(crate) mod blob_bundle;
pub(crate) mod blob_upload;
pub(crate) mod frame_codec;
pub(crate) mod http_request;
pub(crate) mod message;
pub(crate) mod message_receiver;
pub(crate) mod message_sender;
