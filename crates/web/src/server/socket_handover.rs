//! Handover of listening sockets from a process to its successor, over a Unix socket.
//!
//! The new process connects to the path. The old one sends its sockets, stops accepting, and reports that; only then
//! does the new one accept. Connections that arrive in between wait in the kernel's backlog, which belongs to the
//! sockets, so that no connection is refused or reset.
//!
//! Invariants
//! * Only processes of the same user can request the sockets: the file of the Unix socket has mode 0600.
//! * The two processes never accept at the same time.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Maximum number of sockets that are handed over.
pub const MAX_SOCKETS: usize = 64;

/// Maximum time that each side waits for the other.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Message of the old process that it has stopped accepting.
const STOPPED_MESSAGE: &[u8; 8] = b"stopped\n";

/// An offer of sockets at a path; the file is removed on drop, unless another process has replaced it.
#[derive(Debug)]
pub struct SocketOffer {
    listener: UnixListener,
    path: PathBuf,
    file_identity: (u64, u64),
}

/// A process that requested the sockets.
#[derive(Debug)]
pub struct SuccessorProcess(UnixStream);

impl SocketOffer {
    /// Offers sockets at `path`, replacing an existing file.
    ///
    /// # Errors
    /// Of the file system.
    pub fn open(path: &Path) -> Result<Self> {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        std::fs::remove_file(&temporary).ok();
        let listener = UnixListener::bind(&temporary)?;
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
        let metadata = std::fs::symlink_metadata(&temporary)?;
        // Rename the file, so that the path exists at all times.
        std::fs::rename(&temporary, path)?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self { listener, path: path.to_owned(), file_identity: identity })
    }

    /// Waits for a successor process; blocks the thread.
    ///
    /// # Errors
    /// Of the socket.
    pub fn wait_for_successor(&self) -> Result<SuccessorProcess> {
        let (stream, _) = self.listener.accept()?;
        stream.set_read_timeout(Some(HANDOVER_TIMEOUT))?;
        stream.set_write_timeout(Some(HANDOVER_TIMEOUT))?;
        Ok(SuccessorProcess(stream))
    }
}

impl Drop for SocketOffer {
    fn drop(&mut self) {
        use std::os::unix::fs::MetadataExt;
        let is_own =
            |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino()) == self.file_identity;
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

impl SuccessorProcess {
    /// Sends the sockets.
    ///
    /// # Errors
    /// Of the connection; the sockets then stay with this process.
    pub fn send_sockets(&mut self, sockets: &[TcpListener]) -> Result<()> {
        let descriptors: Vec<_> = sockets.iter().take(MAX_SOCKETS).map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let count = [u8::try_from(descriptors.len()).unwrap_or(u8::MAX)];
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&count)], &mut control, SendFlags::empty())?;
        Ok(())
    }

    /// Waits until the process is ready to accept.
    ///
    /// # Errors
    /// If it ends or takes too long; the sockets then stay with this process.
    pub fn wait_ready(&mut self) -> Result<()> {
        let mut byte = [0; 1];
        self.0.read_exact(&mut byte)
    }

    /// Tells the successor that this process has stopped accepting.
    ///
    /// # Errors
    /// Of the connection.
    pub fn send_stopped(&mut self) -> Result<()> {
        self.0.write_all(STOPPED_MESSAGE)
    }
}

/// Sockets received from a process that waits for its successor.
#[derive(Debug)]
pub struct InheritedSockets {
    /// The sockets, non-blocking.
    pub sockets: Vec<TcpListener>,
    stream: UnixStream,
}

impl InheritedSockets {
    /// Requests the sockets of the process that offers them at `path`; `None` if there is no such process.
    ///
    /// # Errors
    /// If the process exists and does not hand over.
    pub fn request_sockets(path: &Path) -> Result<Option<Self>> {
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            // There is no process, or it has ended.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        stream.set_read_timeout(Some(HANDOVER_TIMEOUT))?;
        stream.set_write_timeout(Some(HANDOVER_TIMEOUT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut count = [0; 1];
        let received = rustix::net::recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut count)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        if received.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut sockets = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                sockets.extend(descriptors.map(TcpListener::from));
            }
        }
        if sockets.is_empty() {
            return Err(Error::new(ErrorKind::InvalidData, "no socket was handed over"));
        }
        for socket in &sockets {
            socket.set_nonblocking(true)?;
        }
        Ok(Some(Self { sockets, stream }))
    }

    /// Reports that this process is ready, and waits until the old one has stopped accepting.
    ///
    /// # Errors
    /// If the old process takes too long. A process that has ended counts as stopped.
    pub fn take_over(mut self) -> Result<Vec<TcpListener>> {
        // Ignore errors: the old process may have ended.
        self.stream.write_all(&[1]).ok();
        let mut message = [0; STOPPED_MESSAGE.len()];
        match self.stream.read_exact(&mut message) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(self.sockets)
    }
}
