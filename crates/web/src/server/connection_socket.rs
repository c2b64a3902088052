//! The socket of one connection, with or without TLS, used alternately by the runtime and the fast path.
//!
//! Invariants
//! * A socket is either registered with the runtime's reactor or detached ([`ConnectionSocket::detach_from_runtime`],
//!   [`ConnectionSocket::attach_to_runtime`]), so that data for the fast path wakes no task. Data buffered by TLS,
//!   received or unsent, moves with it.
//! * The calls of the fast path never block: an operation that is not possible now fails with
//!   [`ErrorKind::WouldBlock`].
//! * TLS messages after a handshake are delayed until the first response, to share its packet.
//! * TLS accepts bytes only when all earlier ones have been passed to the kernel, so that a client that reads nothing
//!   costs one buffer of [`TLS_BUFFER_BYTES`].

use std::cell::RefCell;
use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Maximum number of consecutive reads that return only TLS protocol records.
const MAX_READ_ROUNDS: usize = 16;
/// Maximum number of bytes that TLS encrypts before they are sent.
const TLS_BUFFER_BYTES: usize = 64 * 1024;
/// The kernel's limit per call (`UIO_MAXIOV`).
const MAX_IO_SLICES: usize = 1024;
/// Maximum part of a file that shares a packet with the head, in bytes.
const MAX_SHARED_PACKET_BYTES: u64 = 16 * 1024;

thread_local! {
    /// Buffer for file data to be encrypted; reused, because a new buffer for each part would have to be zeroed.
    static PART: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A connection's socket, with or without TLS.
#[derive(Debug)]
pub struct ConnectionSocket(ConnectionSocketKind);

#[derive(Debug)]
enum ConnectionSocketKind {
    Plain(LendableSocket),
    Tls(Box<TlsStream<LendableSocket>>),
}

/// Determines whether more data may follow the bytes being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendContinuation {
    MayFollow,
    Final,
}

/// The result of a read on the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedBytes {
    /// Number of bytes; zero at the end of the stream.
    pub bytes: usize,
    /// True if more data may be available already. If false, the kernel signals new data.
    pub has_more: bool,
}

/// A socket that is registered with the runtime or detached.
#[derive(Debug)]
pub(crate) enum LendableSocket {
    Runtime(TcpStream),
    /// Registered with the runtime until the TLS handshake is complete.
    Handshaking(TcpStream),
    Detached(std::net::TcpStream),
    /// During a transfer, and after a failed one.
    Invalid,
}

impl ConnectionSocket {
    /// Creates a cleartext socket.
    pub(crate) fn from_plain(stream: TcpStream) -> Self {
        Self(ConnectionSocketKind::Plain(LendableSocket::Runtime(stream)))
    }

    /// Creates a socket from a TLS connection after its handshake.
    pub(crate) fn from_tls(mut stream: TlsStream<LendableSocket>) -> Self {
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Self(ConnectionSocketKind::Tls(Box::new(stream)))
    }

    /// Creates a cleartext socket that is not registered with a runtime; it must be non-blocking.
    #[must_use]
    pub fn from_detached(stream: std::net::TcpStream) -> Self {
        Self(ConnectionSocketKind::Plain(LendableSocket::Detached(stream)))
    }

    /// Detaches the socket from the runtime.
    ///
    /// # Errors
    /// If the runtime cannot deregister it.
    pub(crate) fn detach_from_runtime(mut self) -> Result<Self> {
        let socket = self.lendable_mut();
        *socket = match std::mem::replace(socket, LendableSocket::Invalid) {
            LendableSocket::Runtime(stream) | LendableSocket::Handshaking(stream) => {
                LendableSocket::Detached(stream.into_std()?)
            }
            other => other,
        };
        Ok(self)
    }

    /// Registers the socket with the runtime.
    ///
    /// # Errors
    /// If the runtime cannot register it.
    pub(crate) fn attach_to_runtime(mut self) -> Result<Self> {
        let socket = self.lendable_mut();
        *socket = match std::mem::replace(socket, LendableSocket::Invalid) {
            LendableSocket::Detached(stream) => {
                LendableSocket::Runtime(TcpStream::from_std(stream)?)
            }
            other => other,
        };
        Ok(self)
    }

    /// Returns the file descriptor, for polling.
    ///
    /// # Errors
    /// If the socket is registered with a runtime.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let socket = match &self.0 {
            ConnectionSocketKind::Plain(socket) => socket,
            ConnectionSocketKind::Tls(stream) => stream.get_ref().0,
        };
        Ok(socket.detached()?.as_fd())
    }

    /// Returns true if buffered data may be available that the kernel does not signal.
    #[must_use]
    pub fn may_have_buffered_input(&self) -> bool {
        matches!(self.0, ConnectionSocketKind::Tls(_))
    }

    /// Returns true if accepted bytes have not been sent yet; [`ConnectionSocket::flush`] sends them.
    #[must_use]
    pub fn has_unsent_bytes(&self) -> bool {
        match &self.0 {
            ConnectionSocketKind::Plain(_) => false,
            ConnectionSocketKind::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Reads the available data.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if there is none; any other error ends the connection.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<ReceivedBytes> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => {
                let bytes = receive_plain(socket.detached()?, buffer)?;
                Ok(ReceivedBytes { bytes, has_more: bytes == buffer.len() })
            }
            ConnectionSocketKind::Tls(stream) => receive_encrypted(stream, buffer),
        }
    }

    /// Sends the beginning of `first` and `second`, returns the number of their bytes that were accepted, and adds the
    /// number of bytes on the wire to `sent`.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if the client reads too slowly; any other error ends the connection.
    pub fn send(&mut self, first: &[u8], second: &[u8], sent: &mut u64) -> Result<usize> {
        self.send_slices(&[IoSlice::new(first), IoSlice::new(second)], sent)
    }

    /// Same as [`ConnectionSocket::send`], for any number of slices.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`].
    pub fn send_slices(&mut self, slices: &[IoSlice<'_>], sent: &mut u64) -> Result<usize> {
        self.send_with_continuation(slices, SendContinuation::MayFollow, sent)
    }

    /// Same as [`ConnectionSocket::send`]; after all of the data it also sends the end of a TLS stream, in the same
    /// packet.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`].
    pub fn send_last(&mut self, first: &[u8], second: &[u8], sent: &mut u64) -> Result<usize> {
        self.send_with_continuation(
            &[IoSlice::new(first), IoSlice::new(second)],
            SendContinuation::Final,
            sent,
        )
    }

    fn send_with_continuation(
        &mut self,
        slices: &[IoSlice<'_>],
        behind: SendContinuation,
        sent: &mut u64,
    ) -> Result<usize> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => {
                let count = send_plain_slices(socket.detached()?, slices)?;
                *sent += count as u64;
                Ok(count)
            }
            ConnectionSocketKind::Tls(stream) => {
                send_encrypted(stream, sent)?;
                let session = stream.get_mut().1;
                let count = session.writer().write_vectored(slices)?;
                let length: usize = slices.iter().map(|slice| slice.len()).sum();
                if behind == SendContinuation::Final && count == length {
                    session.send_close_notify();
                }
                match send_encrypted(stream, sent) {
                    // The bytes are accepted and sent later.
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                    _ => Ok(count),
                }
            }
        }
    }

    /// Sends a part of a file, without a copy if it is not encrypted, and returns the number of bytes; zero if the file
    /// ends before `offset`.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`], and if the file cannot be read.
    pub fn send_file(
        &mut self,
        file: &File,
        (offset, count): (u64, usize),
        sent: &mut u64,
    ) -> Result<usize> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => {
                let mut offset = offset;
                let count =
                    rustix::fs::sendfile(socket.detached()?, file, Some(&mut offset), count)?;
                *sent += count as u64;
                Ok(count)
            }
            ConnectionSocketKind::Tls(stream) => {
                // Do not read data that could not be accepted.
                send_encrypted(stream, sent)?;
                with_file_part(file, offset, count, |part| match part {
                    [] => Ok(0),
                    part => self.send(part, &[], sent),
                })
            }
        }
    }

    /// Sends the buffered data.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if some of it remains; any other error ends the connection.
    pub fn flush(&mut self, sent: &mut u64) -> Result<()> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(_) => Ok(()),
            ConnectionSocketKind::Tls(stream) => send_encrypted(stream, sent),
        }
    }

    /// Sends the beginning of `head` and, after all of it, of a part of a file, and returns the number of bytes of
    /// each. Zero bytes of the file have no meaning: [`ConnectionSocket::send_file`] returns the cause.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`], and if the file cannot be read.
    pub fn send_with_file(
        &mut self,
        head: &[u8],
        file: &File,
        (offset, count): (u64, usize),
        sent: &mut u64,
    ) -> Result<(usize, usize)> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => {
                let flags = head_send_flags(count as u64) | SendFlags::NOSIGNAL;
                let of_head = send(socket.detached()?, head, flags)?;
                *sent += of_head as u64;
                if of_head < head.len() {
                    return Ok((of_head, 0));
                }
                match self.send_file(file, (offset, count), sent) {
                    Ok(of_file) => Ok((of_head, of_file)),
                    Err(error) if is_retryable(&error) => Ok((of_head, 0)),
                    Err(error) => Err(error),
                }
            }
            ConnectionSocketKind::Tls(stream) => {
                send_encrypted(stream, sent)?;
                // Encrypt full records, which include the head.
                let most = TLS_BUFFER_BYTES.saturating_sub(head.len()).min(count);
                let sent_length =
                    with_file_part(file, offset, most, |part| self.send(head, part, sent))?;
                let of_head = sent_length.min(head.len());
                Ok((of_head, sent_length - of_head))
            }
        }
    }

    /// Shuts down the write side; buffered data is lost if the client does not accept it now.
    ///
    /// # Errors
    /// If the client has disconnected.
    pub fn close_write(&mut self) -> Result<()> {
        self.close_notify();
        self.lendable_mut().detached()?.shutdown(Shutdown::Write)
    }

    /// Sends the closing message of TLS before the socket is closed; does nothing without TLS.
    pub fn close_notify(&mut self) {
        if let ConnectionSocketKind::Tls(stream) = &mut self.0 {
            stream.get_mut().1.send_close_notify();
            // Ignore errors: the client may have disconnected.
            send_encrypted(stream, &mut 0).ok();
        }
    }

    /// Reads and drops received data, encrypted or not, and returns the number of bytes; zero at the end of the stream.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if there is none; any other error ends the connection.
    pub fn discard(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.lendable_mut().detached()?.read(buffer)
    }

    fn lendable_mut(&mut self) -> &mut LendableSocket {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => socket,
            ConnectionSocketKind::Tls(stream) => stream.get_mut().0,
        }
    }
}

/// Returns the flags for sending a head that is followed by `length` bytes of a file. A short body shares the packet of
/// the head. For a long body, delaying the head saves one packet of many, and over the loopback interface the whole
/// response takes half as much CPU again. Without a body, a delayed head is sent late.
pub(crate) fn head_send_flags(length: u64) -> SendFlags {
    if (1..=MAX_SHARED_PACKET_BYTES).contains(&length) {
        SendFlags::MORE
    } else {
        SendFlags::empty()
    }
}

/// Reads a part of a file, up to the size of one buffer, and passes it to a function.
fn with_file_part(
    file: &File,
    offset: u64,
    count: usize,
    act: impl FnOnce(&[u8]) -> Result<usize>,
) -> Result<usize> {
    PART.with_borrow_mut(|part| {
        part.resize(TLS_BUFFER_BYTES, 0);
        let part = part.get_mut(..count.min(TLS_BUFFER_BYTES)).unwrap_or_default();
        let length = file.read_at(part, offset)?;
        act(part.get(..length).unwrap_or_default())
    })
}

/// Returns true if the failed operation may be retried later.
fn is_retryable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Reads from a socket, and records whether it was drained.
struct DrainDetectingReader<'a> {
    socket: &'a std::net::TcpStream,
    is_drained: bool,
}

impl Read for DrainDetectingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = receive_plain(self.socket, buffer)?;
        self.is_drained = count < buffer.len();
        Ok(count)
    }
}

fn receive_encrypted(
    stream: &mut TlsStream<LendableSocket>,
    buffer: &mut [u8],
) -> Result<ReceivedBytes> {
    let (socket, session) = stream.get_mut();
    let mut reader = DrainDetectingReader { socket: socket.detached()?, is_drained: false };
    for _ in 0..MAX_READ_ROUNDS {
        match session.reader().read(buffer) {
            Ok(bytes) => {
                // After the end of TLS, the client sends nothing that the kernel would signal.
                let has_more = bytes == buffer.len() || !reader.is_drained || !session.wants_read();
                return Ok(ReceivedBytes { bytes, has_more });
            }
            // The client disconnected without a closing message; all its requests have been read.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Ok(ReceivedBytes { bytes: 0, has_more: false });
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(empty) if reader.is_drained => return Err(empty),
            Err(_nothing_decrypted) => {}
        }
        session.read_tls(&mut reader)?;
        let outcome = session.process_new_packets();
        // A response to a TLS protocol message, or the alert that describes the error.
        while session.wants_write() {
            match session.write_tls(&mut reader.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        outcome.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    }
    // Let other connections run; more data is available.
    Err(ErrorKind::Interrupted.into())
}

/// Sends the encrypted data.
fn send_encrypted(stream: &mut TlsStream<LendableSocket>, sent: &mut u64) -> Result<()> {
    let (socket, session) = stream.get_mut();
    let mut socket = SocketWriter(socket.detached()?);
    while session.wants_write() {
        *sent += session.write_tls(&mut socket)? as u64;
    }
    Ok(())
}

/// Reads from a socket with the socket calls, as does the send function below: they are cheaper than the file calls,
/// and cheaper still without a check for thread cancellation.
fn receive_plain(socket: &std::net::TcpStream, buffer: &mut [u8]) -> Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::empty())?.0)
}

fn send_plain_slices(socket: &std::net::TcpStream, slices: &[IoSlice<'_>]) -> Result<usize> {
    let slices = slices.get(..MAX_IO_SLICES).unwrap_or(slices);
    Ok(sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
}

/// Writes to a socket.
struct SocketWriter<'a>(&'a std::net::TcpStream);

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        send_plain_slices(self.0, slices)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl LendableSocket {
    /// Returns the socket if it is not registered with a runtime.
    fn detached(&self) -> Result<&std::net::TcpStream> {
        match self {
            Self::Detached(stream) => Ok(stream),
            Self::Runtime(_) | Self::Handshaking(_) | Self::Invalid => {
                Err(ErrorKind::NotConnected.into())
            }
        }
    }

    /// Sends all data immediately from now on.
    pub(crate) fn end_handshake(&mut self) {
        *self = match std::mem::replace(self, Self::Invalid) {
            Self::Handshaking(stream) => Self::Runtime(stream),
            other => other,
        };
    }

    fn runtime_stream(&mut self) -> Result<Pin<&mut TcpStream>> {
        match self {
            Self::Runtime(stream) | Self::Handshaking(stream) => Ok(Pin::new(stream)),
            Self::Detached(_) | Self::Invalid => Err(ErrorKind::NotConnected.into()),
        }
    }
}

/// Returns true if data written during a handshake belongs to the messages after it: the tickets of TLS 1.3. They are
/// the first data whose first record is of this type (RFC 8446, section 5.1); within the handshake such records follow
/// a plain one.
fn is_post_handshake_record(bytes: &[u8]) -> bool {
    const APPLICATION_DATA: u8 = 23;
    bytes.first() == Some(&APPLICATION_DATA)
}

/// Passes bytes to the kernel, which sends them with the data that follows, or after 200 ms.
fn send_corked(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<Result<usize>> {
    let sending = || {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        Ok(sendmsg(stream, slices, &mut SendAncillaryBuffer::default(), flags)?)
    };
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(Interest::WRITABLE, sending) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            outcome => return Poll::Ready(outcome),
        }
    }
}

impl AsyncRead for LendableSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.runtime_stream()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for LendableSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        match &*self {
            Self::Handshaking(stream) if is_post_handshake_record(bytes) => {
                send_corked(stream, cx, &[IoSlice::new(bytes)])
            }
            _ => self.runtime_stream()?.poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.runtime_stream()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.runtime_stream()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match &*self {
            Self::Handshaking(stream)
                if slices.first().is_some_and(|first| is_post_handshake_record(first)) =>
            {
                send_corked(stream, cx, slices)
            }
            _ => self.runtime_stream()?.poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl AsyncRead for ConnectionSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            ConnectionSocketKind::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ConnectionSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            ConnectionSocketKind::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => Pin::new(socket).poll_flush(cx),
            ConnectionSocketKind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            ConnectionSocketKind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            ConnectionSocketKind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::{
        ConnectionSocket, MAX_IO_SLICES, SendFlags, head_send_flags, is_post_handshake_record,
    };

    #[test]
    fn a_head_waits_only_for_a_file_that_shares_its_packet() {
        for (length, expected) in [
            (0, SendFlags::empty()),
            (1, SendFlags::MORE),
            (16 * 1024, SendFlags::MORE),
            (100 * 1024, SendFlags::empty()),
        ] {
            assert_eq!(head_send_flags(length), expected, "{length}");
        }
    }

    #[test]
    fn any_number_of_slices_may_be_sent() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut wire = ConnectionSocket::from_detached(listener.accept().unwrap().0);
        let text = vec![b'x'; MAX_IO_SLICES + 100];
        let slices: Vec<IoSlice<'_>> = text.chunks(1).map(IoSlice::new).collect();
        let mut sent = 0;
        let first = wire.send_slices(&slices, &mut sent).unwrap();
        let rest = wire.send_slices(slices.get(first..).unwrap(), &mut sent).unwrap();
        assert_eq!((first + rest, sent), (text.len(), text.len() as u64));
        let mut read = vec![0; text.len()];
        client.read_exact(&mut read).unwrap();
        assert_eq!(read, text);
    }

    #[test]
    fn only_what_comes_behind_a_handshake_waits() {
        // An alert, the beginning of a handshake, and application data.
        for (kind, expected) in [(21, false), (22, false), (23, true)] {
            assert_eq!(is_post_handshake_record(&[kind, 3, 3, 0, 1, 0]), expected, "{kind}");
        }
        assert!(!is_post_handshake_record(&[]));
    }
}
