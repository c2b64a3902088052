//! The reason an operation on an SFTP host failed.

use std::io::{self, ErrorKind};

use russh_sftp::client::error::Error as SftpError;
use russh_sftp::protocol::StatusCode;

/// The reason an operation failed.
#[derive(Debug)]
pub(super) enum SftpFailure {
    /// The connection is lost; a retry over another one may succeed.
    ConnectionLost(io::Error),
    /// The host, or this side, refused the operation.
    Rejected(io::Error),
}

impl SftpFailure {
    pub(super) fn connection_lost(kind: ErrorKind, text: String) -> Self {
        Self::ConnectionLost(io::Error::new(kind, text))
    }

    /// Returns a copy for another caller that was waiting for the same result.
    pub(super) fn duplicate(&self) -> Self {
        let same = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        match self {
            Self::ConnectionLost(error) => Self::ConnectionLost(same(error)),
            Self::Rejected(error) => Self::Rejected(same(error)),
        }
    }

    pub(super) fn kind(&self) -> ErrorKind {
        let (Self::ConnectionLost(error) | Self::Rejected(error)) = self;
        error.kind()
    }
}

impl From<SftpError> for SftpFailure {
    fn from(error: SftpError) -> Self {
        let SftpError::Status(status) = &error else {
            let kind = match error {
                SftpError::Timeout => ErrorKind::TimedOut,
                _ => ErrorKind::ConnectionReset,
            };
            return Self::connection_lost(kind, format!("the connection was lost: {error}"));
        };
        let kind = match status.status_code {
            StatusCode::NoSuchFile => ErrorKind::NotFound,
            StatusCode::PermissionDenied => ErrorKind::PermissionDenied,
            StatusCode::Eof => ErrorKind::UnexpectedEof,
            StatusCode::OpUnsupported => ErrorKind::Unsupported,
            StatusCode::NoConnection | StatusCode::ConnectionLost => {
                return Self::connection_lost(ErrorKind::ConnectionReset, error.to_string());
            }
            StatusCode::Ok | StatusCode::Failure | StatusCode::BadMessage => ErrorKind::Other,
        };
        Self::Rejected(io::Error::new(kind, format!("the host reported: {}", status.error_message)))
    }
}
