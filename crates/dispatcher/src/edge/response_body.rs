//! Response bodies: from memory, from a file, from a growing file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use tokio::sync::watch;

use crate::cache::vary::VarySelection;

type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body type of every response.
pub type ResponseBody = Either<Full<Bytes>, UnsyncBoxBody<Bytes, BodyError>>;

/// The maximum size in bytes of bodies that are buffered in memory while they are fetched or sent.
pub(crate) const MAX_BUFFERED_BODY_BYTES: usize = 1024 * 1024;

/// The number of bytes read from a file at once.
const READ_CHUNK_BYTES: u64 = 128 * 1024;

/// A fetched page that all its visitors share.
#[derive(Debug)]
pub(crate) struct FetchedPage {
    /// All headers, for the visitor who caused the fetch.
    pub(crate) headers: HeaderMap,
    /// The stored headers, for the other visitors.
    pub(crate) stored_headers: HeaderMap,
    /// The body.
    pub(crate) body: FetchedBody,
    /// The render that produced it.
    pub(crate) render: String,
    /// The text that states if it is (or will be) in the cache.
    pub(crate) cache_info: String,
    /// The request headers that select it; `None` if it is for everyone.
    pub(crate) selection: Option<VarySelection>,
    /// True if it is for requests with and without `Authorization`.
    pub(crate) shares_authorized: bool,
}

/// The body of a fetched page.
#[derive(Debug, Clone)]
pub(crate) enum FetchedBody {
    /// A complete body in memory.
    Buffered(Bytes),
    /// A file that may still grow.
    Growing(GrowingFile),
}

/// A file that is being written.
#[derive(Debug, Clone)]
pub(crate) struct GrowingFile {
    pub(crate) file: Arc<File>,
    pub(crate) progress: watch::Receiver<FileWriteProgress>,
    /// The final length, if the render announced it.
    pub(crate) length: Option<u64>,
}

/// The progress of a growing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileWriteProgress {
    /// This many bytes, with more to come.
    Written(u64),
    /// This many bytes, and complete.
    Complete(u64),
    /// This many bytes, and aborted before the end.
    Failed(u64),
}

/// Returns a part of `bytes`, clamped to its length.
pub(crate) fn slice_bytes(bytes: &Bytes, start: u64, length: u64) -> Bytes {
    let end = usize::try_from(start.saturating_add(length)).unwrap_or(usize::MAX).min(bytes.len());
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(end);
    bytes.slice(start..end)
}

pub(crate) fn full_body(bytes: impl Into<Bytes>) -> ResponseBody {
    Either::Left(Full::new(bytes.into()))
}

pub(crate) fn empty_body() -> ResponseBody {
    full_body(Bytes::new())
}

pub(crate) fn boxed_body<B>(body: B) -> ResponseBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    Either::Right(body.map_err(Into::into).boxed_unsync())
}

impl FetchedBody {
    /// Returns the body for one visitor.
    pub(crate) fn to_response_body(&self) -> ResponseBody {
        match self {
            Self::Buffered(bytes) => full_body(bytes.clone()),
            Self::Growing(growing) => growing.to_response_body(0, None),
        }
    }

    /// Returns a part of the body, which must lie within its known length.
    pub(crate) fn to_part_body(&self, start: u64, length: u64) -> ResponseBody {
        match self {
            Self::Buffered(bytes) => full_body(slice_bytes(bytes, start, length)),
            Self::Growing(_) if length == 0 => empty_body(),
            Self::Growing(growing) => growing.to_response_body(start, Some(start + length)),
        }
    }

    /// Returns the length; `None` if it is unknown.
    pub(crate) fn known_length(&self) -> Option<u64> {
        match self {
            Self::Buffered(bytes) => Some(bytes.len() as u64),
            Self::Growing(growing) => growing.length,
        }
    }
}

impl GrowingFile {
    /// Returns the bytes from `start` to before `end`, or to the end of the file.
    fn to_response_body(&self, start: u64, end: Option<u64>) -> ResponseBody {
        let state = (self.clone(), start);
        boxed_body(StreamBody::new(stream::unfold(Some(state), move |state| async move {
            let (mut growing, offset) = state?;
            let most = end.map_or(READ_CHUNK_BYTES, |end| end.saturating_sub(offset));
            if most == 0 {
                return None;
            }
            match growing.next_chunk(offset, most.min(READ_CHUNK_BYTES)).await {
                Ok(None) => None,
                Ok(Some(bytes)) => {
                    let next = offset + bytes.len() as u64;
                    Some((Ok(Frame::data(bytes)), Some((growing, next))))
                }
                Err(error) => Some((Err(error), None)),
            }
        })))
    }

    /// Waits for bytes after `offset`, of which it returns at most `max_bytes`; returns `None` at the end.
    async fn next_chunk(
        &mut self,
        offset: u64,
        max_bytes: u64,
    ) -> Result<Option<Bytes>, BodyError> {
        let has_news = |progress: &FileWriteProgress| match progress {
            FileWriteProgress::Written(bytes) => *bytes > offset,
            FileWriteProgress::Complete(_) | FileWriteProgress::Failed(_) => true,
        };
        let progress = *self
            .progress
            .wait_for(has_news)
            .await
            .map_err(|_writer_gone| "the fetch was abandoned")?;
        let available = match progress {
            FileWriteProgress::Written(bytes)
            | FileWriteProgress::Complete(bytes)
            | FileWriteProgress::Failed(bytes) => bytes.saturating_sub(offset),
        };
        if available == 0 {
            return match progress {
                FileWriteProgress::Failed(_) => {
                    Err("the response of the render is incomplete".into())
                }
                FileWriteProgress::Written(_) | FileWriteProgress::Complete(_) => Ok(None),
            };
        }
        let file = Arc::clone(&self.file);
        read_chunk(file, offset, available.min(max_bytes)).await.map(Some)
    }
}

/// Returns `length` bytes of `file` from `start` on.
pub(crate) fn file_body(file: Arc<File>, start: u64, length: u64) -> std::io::Result<ResponseBody> {
    if length <= READ_CHUNK_BYTES {
        // The file is most likely in the kernel's cache, and a thread switch costs more than the copy.
        return read_file_at(&file, start, length).map(full_body);
    }
    let state = (file, start, length);
    Ok(boxed_body(StreamBody::new(stream::unfold(Some(state), |state| async move {
        let (file, offset, left) = state?;
        if left == 0 {
            return None;
        }
        let size = left.min(READ_CHUNK_BYTES);
        Some(match read_chunk(Arc::clone(&file), offset, size).await {
            Ok(bytes) => (Ok(Frame::data(bytes)), Some((file, offset + size, left - size))),
            Err(error) => (Err(error), None),
        })
    }))))
}

async fn read_chunk(file: Arc<File>, offset: u64, length: u64) -> Result<Bytes, BodyError> {
    let bytes = tokio::task::spawn_blocking(move || read_file_at(&file, offset, length)).await??;
    Ok(bytes)
}

pub(crate) fn read_file_at(file: &File, offset: u64, length: u64) -> std::io::Result<Bytes> {
    let length = usize::try_from(length).map_err(|_large| std::io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(Bytes::from(bytes))
}
