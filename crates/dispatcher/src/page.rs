//! Bodies on their way to visitors: from memory, from a file, from a file that still grows.

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

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of every answer.
pub type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, BoxError>>;

/// Bodies up to this size are held in memory while they are fetched or sent.
pub(crate) const SMALL_BYTES: usize = 1024 * 1024;

/// What is read from a file at once.
const PIECE_BYTES: u64 = 128 * 1024;

/// A fetched page that all its visitors share.
#[derive(Debug)]
pub(crate) struct Page {
    /// All headers, for the visitor who caused the fetch.
    pub(crate) headers: HeaderMap,
    /// Those that are stored, for the others.
    pub(crate) stored: HeaderMap,
    /// The body.
    pub(crate) body: PageBody,
    /// Who drew it.
    pub(crate) render: String,
    /// Whether it is (or will be) in the cache.
    pub(crate) info: String,
}

/// The body of a fetched page.
#[derive(Debug, Clone)]
pub(crate) enum PageBody {
    /// All of it.
    Small(Bytes),
    /// A file that may still grow.
    Growing(Growing),
}

/// A file that is being written.
#[derive(Debug, Clone)]
pub(crate) struct Growing {
    pub(crate) file: Arc<File>,
    pub(crate) progress: watch::Receiver<Progress>,
    /// The final length, if the render announced it.
    pub(crate) length: Option<u64>,
}

/// How far a growing file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// So many bytes, and more to come.
    Written(u64),
    /// So many bytes, and no more.
    Complete(u64),
    /// So many bytes, and no more, though there should be.
    Failed(u64),
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Either::Left(Full::new(bytes.into()))
}

pub(crate) fn empty() -> Body {
    full(Bytes::new())
}

pub(crate) fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Either::Right(body.map_err(Into::into).boxed_unsync())
}

impl PageBody {
    /// Returns the body for one visitor.
    pub(crate) fn open(&self) -> Body {
        match self {
            Self::Small(bytes) => full(bytes.clone()),
            Self::Growing(growing) => growing.open(),
        }
    }

    /// Returns the length, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Small(bytes) => Some(bytes.len() as u64),
            Self::Growing(growing) => growing.length,
        }
    }
}

impl Growing {
    fn open(&self) -> Body {
        let state = (self.clone(), 0_u64);
        boxed(StreamBody::new(stream::unfold(Some(state), |state| async move {
            let (mut growing, offset) = state?;
            match growing.piece(offset).await {
                Ok(None) => None,
                Ok(Some(bytes)) => {
                    let next = offset + bytes.len() as u64;
                    Some((Ok(Frame::data(bytes)), Some((growing, next))))
                }
                Err(error) => Some((Err(error), None)),
            }
        })))
    }

    /// Waits for bytes behind `offset`; nothing when there will be none.
    async fn piece(&mut self, offset: u64) -> Result<Option<Bytes>, BoxError> {
        let has_news = |progress: &Progress| match progress {
            Progress::Written(bytes) => *bytes > offset,
            Progress::Complete(_) | Progress::Failed(_) => true,
        };
        let progress = *self
            .progress
            .wait_for(has_news)
            .await
            .map_err(|_writer_gone| "the fetch was given up")?;
        let available = match progress {
            Progress::Written(bytes) | Progress::Complete(bytes) | Progress::Failed(bytes) => {
                bytes.saturating_sub(offset)
            }
        };
        if available == 0 {
            return match progress {
                Progress::Failed(_) => Err("the render broke off in its answer".into()),
                Progress::Written(_) | Progress::Complete(_) => Ok(None),
            };
        }
        let file = Arc::clone(&self.file);
        read_piece(file, offset, available.min(PIECE_BYTES)).await.map(Some)
    }
}

/// Returns `length` bytes of `file` from `start` on.
pub(crate) fn file_body(file: Arc<File>, start: u64, length: u64) -> std::io::Result<Body> {
    if length <= PIECE_BYTES {
        // The file is most likely in the kernel's cache, and a switch of threads costs more than the copy.
        return read_at(&file, start, length).map(full);
    }
    let state = (file, start, length);
    Ok(boxed(StreamBody::new(stream::unfold(Some(state), |state| async move {
        let (file, offset, left) = state?;
        if left == 0 {
            return None;
        }
        let size = left.min(PIECE_BYTES);
        Some(match read_piece(Arc::clone(&file), offset, size).await {
            Ok(bytes) => (Ok(Frame::data(bytes)), Some((file, offset + size, left - size))),
            Err(error) => (Err(error), None),
        })
    }))))
}

async fn read_piece(file: Arc<File>, offset: u64, length: u64) -> Result<Bytes, BoxError> {
    let bytes = tokio::task::spawn_blocking(move || read_at(&file, offset, length)).await??;
    Ok(bytes)
}

pub(crate) fn read_at(file: &File, offset: u64, length: u64) -> std::io::Result<Bytes> {
    let length = usize::try_from(length).map_err(|_large| std::io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(Bytes::from(bytes))
}
