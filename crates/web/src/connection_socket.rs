//! The wire of one connection: a socket, with or without TLS, that the runtime and a lane use by turns.
//!
//! Invariants
//! * A socket belongs to the runtime's reactor or to nobody ([`ConnectionSocket::detach_from_runtime`], [`ConnectionSocket::attach_to_runtime`]), so that a lane's bytes
//!   wake no task. Bytes that TLS holds already, read or not yet sent, move with it.
//! * The calls of a lane never wait: what cannot be done now fails with [`ErrorKind::WouldBlock`].
//! * What TLS says behind a handshake waits for the first answer, whose packet it shares.
//! * TLS takes bytes only when everything that it took before is on its way, so that a client that reads nothing costs
//!   one buffer of [`TLS_BUFFER_BYTES`].

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

/// How often is read in a turn for the sake of nothing but TLS's own records.
const MAX_READ_ROUNDS: usize = 16;
/// What TLS encrypts before it is sent, at most.
const TLS_BUFFER_BYTES: usize = 64 * 1024;
/// The kernel takes no more at once (`UIO_MAXIOV`).
const MAX_IO_SLICES: usize = 1024;
/// A head and so much of a file may share a packet.
const MAX_SHARED_PACKET_BYTES: u64 = 16 * 1024;

thread_local! {
    /// What is read of a file to be encrypted: a buffer of its own for each part would be cleared each time.
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

/// What comes behind bytes that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendContinuation {
    MayFollow,
    Final,
}

/// What a lane read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedBytes {
    /// How many bytes; none when the client sends no more.
    pub bytes: usize,
    /// Whether more may be there already. If not, the kernel tells when there is.
    pub has_more: bool,
}

/// A socket of the runtime, or of nobody.
#[derive(Debug)]
pub(crate) enum LendableSocket {
    Runtime(TcpStream),
    /// The runtime's, until TLS is agreed on.
    Handshaking(TcpStream),
    Detached(std::net::TcpStream),
    /// While it changes hands, and after that failed.
    Invalid,
}

impl ConnectionSocket {
    /// A socket that carries cleartext.
    pub(crate) fn from_plain(stream: TcpStream) -> Self {
        Self(ConnectionSocketKind::Plain(LendableSocket::Runtime(stream)))
    }

    /// A connection after its handshake.
    pub(crate) fn from_tls(mut stream: TlsStream<LendableSocket>) -> Self {
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Self(ConnectionSocketKind::Tls(Box::new(stream)))
    }

    /// A socket that carries cleartext and that no runtime has; it must not block.
    #[must_use]
    pub fn from_detached(stream: std::net::TcpStream) -> Self {
        Self(ConnectionSocketKind::Plain(LendableSocket::Detached(stream)))
    }

    /// Takes the socket out of the runtime.
    ///
    /// # Errors
    /// When the runtime cannot let go of it.
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

    /// Gives the socket to the runtime.
    ///
    /// # Errors
    /// When the runtime cannot take it.
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

    /// Returns the socket, to wait for.
    ///
    /// # Errors
    /// When a runtime has it.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let socket = match &self.0 {
            ConnectionSocketKind::Plain(socket) => socket,
            ConnectionSocketKind::Tls(stream) => stream.get_ref().0,
        };
        Ok(socket.detached()?.as_fd())
    }

    /// Tells whether bytes may be there to read of which the kernel does not tell.
    #[must_use]
    pub fn may_have_buffered_input(&self) -> bool {
        matches!(self.0, ConnectionSocketKind::Tls(_))
    }

    /// Tells whether bytes were taken that are not on their way yet; [`ConnectionSocket::flush`] sends them.
    #[must_use]
    pub fn has_unsent_bytes(&self) -> bool {
        match &self.0 {
            ConnectionSocketKind::Plain(_) => false,
            ConnectionSocketKind::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when nothing is there; any other one ends the connection.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<ReceivedBytes> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(socket) => {
                let bytes = receive_plain(socket.detached()?, buffer)?;
                Ok(ReceivedBytes { bytes, has_more: bytes == buffer.len() })
            }
            ConnectionSocketKind::Tls(stream) => receive_encrypted(stream, buffer),
        }
    }

    /// Sends the beginning of `first` and `second`, and returns how many bytes of them, and adds what went out to `sent`.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when the client reads too slowly; any other one ends the connection.
    pub fn send(&mut self, first: &[u8], second: &[u8], sent: &mut u64) -> Result<usize> {
        self.send_slices(&[IoSlice::new(first), IoSlice::new(second)], sent)
    }

    /// Sends as [`ConnectionSocket::send`] does, whatever the number of slices.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`].
    pub fn send_slices(&mut self, slices: &[IoSlice<'_>], sent: &mut u64) -> Result<usize> {
        self.send_with_continuation(slices, SendContinuation::MayFollow, sent)
    }

    /// Sends as [`ConnectionSocket::send`] does, and tells a client over TLS behind all of it, in the same packet, that nothing more comes.
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
                    // They are taken, and go out later.
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                    _ => Ok(count),
                }
            }
        }
    }

    /// Sends a part of a file, without a copy where nothing is encrypted, and returns how many bytes; none when the file
    /// ends before `offset`.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`], and when the file cannot be read.
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
                // Nothing is read that could not be taken.
                send_encrypted(stream, sent)?;
                with_file_part(file, (offset, count), |part| match part {
                    [] => Ok(0),
                    part => self.send(part, &[], sent),
                })
            }
        }
    }

    /// Sends what was held back.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when some of it is left; any other one ends the connection.
    pub fn flush(&mut self, sent: &mut u64) -> Result<()> {
        match &mut self.0 {
            ConnectionSocketKind::Plain(_) => Ok(()),
            ConnectionSocketKind::Tls(stream) => send_encrypted(stream, sent),
        }
    }

    /// Sends the beginning of `head` and, behind all of it, of a part of a file, and returns how many bytes of each. None of
    /// the file says nothing: [`ConnectionSocket::send_file`] tells why.
    ///
    /// # Errors
    /// As [`ConnectionSocket::send`], and when the file cannot be read.
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
                // Whole records, of which the head is a part.
                let most = TLS_BUFFER_BYTES.saturating_sub(head.len()).min(count);
                let taken =
                    with_file_part(file, (offset, most), |part| self.send(head, part, sent))?;
                let of_head = taken.min(head.len());
                Ok((of_head, taken - of_head))
            }
        }
    }

    /// Says that nothing more comes; what was held back is lost if the client does not take it now.
    ///
    /// # Errors
    /// When the client has gone.
    pub fn close_write(&mut self) -> Result<()> {
        self.close_notify();
        self.lendable_mut().detached()?.shutdown(Shutdown::Write)
    }

    /// Says as much as has to be said before the socket is closed, which says the rest: nothing without TLS.
    pub fn close_notify(&mut self) {
        if let ConnectionSocketKind::Tls(stream) = &mut self.0 {
            stream.get_mut().1.send_close_notify();
            // One that has gone is told in vain.
            send_encrypted(stream, &mut 0).ok();
        }
    }

    /// Reads what arrived, encrypted or not, to be dropped, and returns how many bytes; none when the client sends no more.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when nothing is there; any other one ends the connection.
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

/// Returns how a head is sent that so much of a file follows. A short part goes in the head's packet. Where a long one
/// follows, a head that waits for it saves one packet of many, and over the loopback interface the whole answer takes half
/// as much CPU again. Where nothing follows, a head that waits is sent late.
pub(crate) fn head_send_flags(length: u64) -> SendFlags {
    if (1..=MAX_SHARED_PACKET_BYTES).contains(&length) {
        SendFlags::MORE
    } else {
        SendFlags::empty()
    }
}

/// Reads a part of a file, as far as one buffer goes, and does something with it.
fn with_file_part(
    file: &File,
    (offset, count): (u64, usize),
    act: impl FnOnce(&[u8]) -> Result<usize>,
) -> Result<usize> {
    PART.with_borrow_mut(|part| {
        part.resize(TLS_BUFFER_BYTES, 0);
        let part = part.get_mut(..count.min(TLS_BUFFER_BYTES)).unwrap_or_default();
        let length = file.read_at(part, offset)?;
        act(part.get(..length).unwrap_or_default())
    })
}

/// Tells whether what failed may be done later.
fn is_retryable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Reads from a socket, and notes whether it was emptied.
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
                // Whoever ended TLS sends nothing of which the kernel would tell.
                let has_more = bytes == buffer.len() || !reader.is_drained || !session.wants_read();
                return Ok(ReceivedBytes { bytes, has_more });
            }
            // The client went without a word; whatever it asked has been read.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Ok(ReceivedBytes { bytes: 0, has_more: false });
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(empty) if reader.is_drained => return Err(empty),
            Err(_nothing_decrypted) => {}
        }
        session.read_tls(&mut reader)?;
        let outcome = session.process_new_packets();
        // An answer to a message of TLS itself, or the alert that names what was wrong.
        while session.wants_write() {
            match session.write_tls(&mut reader.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        outcome.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
    }
    // Others have their turn; more is there.
    Err(ErrorKind::Interrupted.into())
}

/// Sends what is encrypted.
fn send_encrypted(stream: &mut TlsStream<LendableSocket>, sent: &mut u64) -> Result<()> {
    let (socket, session) = stream.get_mut();
    let mut socket = SocketWriter(socket.detached()?);
    while session.wants_write() {
        *sent += session.write_tls(&mut socket)? as u64;
    }
    Ok(())
}

/// Reads from a socket, and sends below, by the calls for sockets: they cost less than those for files, and less again where
/// they do not look whether the thread was told to end.
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
    /// Returns the socket if no runtime has it.
    fn detached(&self) -> Result<&std::net::TcpStream> {
        match self {
            Self::Detached(stream) => Ok(stream),
            Self::Runtime(_) | Self::Handshaking(_) | Self::Invalid => {
                Err(ErrorKind::NotConnected.into())
            }
        }
    }

    /// Sends everything at once from now on.
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

/// Tells whether what is written during a handshake is what comes behind it: the tickets of TLS 1.3. They are the first that
/// is written with a record of this kind (RFC 8446, section 5.1); in the handshake itself such records follow a plain one.
fn is_post_handshake_record(bytes: &[u8]) -> bool {
    const APPLICATION_DATA: u8 = 23;
    bytes.first() == Some(&APPLICATION_DATA)
}

/// Leaves bytes to the kernel, to be sent with what comes next, or by themselves within 200 ms.
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
        // An alert, a handshake that begins, and application data.
        for (kind, expected) in [(21, false), (22, false), (23, true)] {
            assert_eq!(is_post_handshake_record(&[kind, 3, 3, 0, 1, 0]), expected, "{kind}");
        }
        assert!(!is_post_handshake_record(&[]));
    }
}
