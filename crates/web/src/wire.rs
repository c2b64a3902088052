//! The wire of one connection: a socket, with or without TLS, that the runtime and a lane use by turns.
//!
//! Invariants
//! * A socket belongs to the runtime's reactor or to nobody ([`Wire::lend`], [`Wire::take_back`]), so that a lane's bytes
//!   wake no task. Bytes that TLS holds already, read or not yet sent, move with it.
//! * The calls of a lane never wait: what cannot be done now fails with [`ErrorKind::WouldBlock`].
//! * What TLS says behind a handshake waits for the first answer, whose packet it shares.
//! * TLS takes bytes only when everything that it took before is on its way, so that a client that reads nothing costs
//!   one buffer of [`HELD_BYTES`].

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
const MOST_ROUNDS: usize = 16;
/// What TLS encrypts before it is sent, at most.
const HELD_BYTES: usize = 64 * 1024;
/// The kernel takes no more at once (`UIO_MAXIOV`).
const MOST_SLICES: usize = 1024;
/// A head and so much of a file may share a packet.
const ONE_PACKET: u64 = 16 * 1024;

thread_local! {
    /// What is read of a file to be encrypted: a buffer of its own for each part would be cleared each time.
    static PART: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A connection's socket, with or without TLS.
#[derive(Debug)]
pub struct Wire(Kind);

#[derive(Debug)]
enum Kind {
    Clear(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// What comes behind bytes that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Anything,
    Nothing,
}

/// What a lane read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// How many bytes; none when the client sends no more.
    pub bytes: usize,
    /// Whether more may be there already. If not, the kernel tells when there is.
    pub has_more: bool,
}

/// A socket of the runtime, or of nobody.
#[derive(Debug)]
pub(crate) enum Socket {
    Runtime(TcpStream),
    /// The runtime's, until TLS is agreed on.
    Shaking(TcpStream),
    Free(std::net::TcpStream),
    /// While it changes hands, and after that failed.
    Lost,
}

impl Wire {
    /// A socket that carries cleartext.
    pub(crate) fn clear(stream: TcpStream) -> Self {
        Self(Kind::Clear(Socket::Runtime(stream)))
    }

    /// A connection after its handshake.
    pub(crate) fn tls(mut stream: TlsStream<Socket>) -> Self {
        stream.get_mut().1.set_buffer_limit(Some(HELD_BYTES));
        Self(Kind::Tls(Box::new(stream)))
    }

    /// A socket that carries cleartext and that no runtime has; it must not block.
    #[must_use]
    pub fn free(stream: std::net::TcpStream) -> Self {
        Self(Kind::Clear(Socket::Free(stream)))
    }

    /// Takes the socket out of the runtime.
    ///
    /// # Errors
    /// When the runtime cannot let go of it.
    pub(crate) fn lend(mut self) -> Result<Self> {
        let socket = self.socket_mut();
        *socket = match std::mem::replace(socket, Socket::Lost) {
            Socket::Runtime(stream) | Socket::Shaking(stream) => Socket::Free(stream.into_std()?),
            other => other,
        };
        Ok(self)
    }

    /// Gives the socket to the runtime.
    ///
    /// # Errors
    /// When the runtime cannot take it.
    pub(crate) fn take_back(mut self) -> Result<Self> {
        let socket = self.socket_mut();
        *socket = match std::mem::replace(socket, Socket::Lost) {
            Socket::Free(stream) => Socket::Runtime(TcpStream::from_std(stream)?),
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
            Kind::Clear(socket) => socket,
            Kind::Tls(stream) => stream.get_ref().0,
        };
        Ok(socket.free()?.as_fd())
    }

    /// Tells whether bytes may be there to read of which the kernel does not tell.
    #[must_use]
    pub fn may_hold_bytes(&self) -> bool {
        matches!(self.0, Kind::Tls(_))
    }

    /// Tells whether bytes were taken that are not on their way yet; [`Wire::flush`] sends them.
    #[must_use]
    pub fn is_holding_back(&self) -> bool {
        match &self.0 {
            Kind::Clear(_) => false,
            Kind::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when nothing is there; any other one ends the connection.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Received> {
        match &mut self.0 {
            Kind::Clear(socket) => {
                let bytes = receive(socket.free()?, buffer)?;
                Ok(Received { bytes, has_more: bytes == buffer.len() })
            }
            Kind::Tls(stream) => receive_encrypted(stream, buffer),
        }
    }

    /// Sends the beginning of `first` and `second`, and returns how many bytes of them, and adds what went out to `sent`.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when the client reads too slowly; any other one ends the connection.
    pub fn send(&mut self, first: &[u8], second: &[u8], sent: &mut u64) -> Result<usize> {
        self.send_all(&[IoSlice::new(first), IoSlice::new(second)], sent)
    }

    /// Sends as [`Wire::send`] does, whatever the number of slices.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send_all(&mut self, slices: &[IoSlice<'_>], sent: &mut u64) -> Result<usize> {
        self.send_and(slices, Behind::Anything, sent)
    }

    /// Sends as [`Wire::send`] does, and tells a client over TLS behind all of it, in the same packet, that nothing more comes.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send_last(&mut self, first: &[u8], second: &[u8], sent: &mut u64) -> Result<usize> {
        self.send_and(&[IoSlice::new(first), IoSlice::new(second)], Behind::Nothing, sent)
    }

    fn send_and(
        &mut self,
        slices: &[IoSlice<'_>],
        behind: Behind,
        sent: &mut u64,
    ) -> Result<usize> {
        match &mut self.0 {
            Kind::Clear(socket) => {
                let count = send_slices(socket.free()?, slices)?;
                *sent += count as u64;
                Ok(count)
            }
            Kind::Tls(stream) => {
                drain(stream, sent)?;
                let session = stream.get_mut().1;
                let count = session.writer().write_vectored(slices)?;
                let length: usize = slices.iter().map(|slice| slice.len()).sum();
                if behind == Behind::Nothing && count == length {
                    session.send_close_notify();
                }
                match drain(stream, sent) {
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
    /// As [`Wire::send`], and when the file cannot be read.
    pub fn send_file(
        &mut self,
        file: &File,
        (offset, count): (u64, usize),
        sent: &mut u64,
    ) -> Result<usize> {
        match &mut self.0 {
            Kind::Clear(socket) => {
                let mut offset = offset;
                let count = rustix::fs::sendfile(socket.free()?, file, Some(&mut offset), count)?;
                *sent += count as u64;
                Ok(count)
            }
            Kind::Tls(stream) => {
                // Nothing is read that could not be taken.
                drain(stream, sent)?;
                with_part(file, (offset, count), |part| match part {
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
            Kind::Clear(_) => Ok(()),
            Kind::Tls(stream) => drain(stream, sent),
        }
    }

    /// Sends the beginning of `head` and, behind all of it, of a part of a file, and returns how many bytes of each. None of
    /// the file says nothing: [`Wire::send_file`] tells why.
    ///
    /// # Errors
    /// As [`Wire::send`], and when the file cannot be read.
    pub fn send_with_file(
        &mut self,
        head: &[u8],
        file: &File,
        (offset, count): (u64, usize),
        sent: &mut u64,
    ) -> Result<(usize, usize)> {
        match &mut self.0 {
            Kind::Clear(socket) => {
                let flags = before_file(count as u64) | SendFlags::NOSIGNAL;
                let of_head = send(socket.free()?, head, flags)?;
                *sent += of_head as u64;
                if of_head < head.len() {
                    return Ok((of_head, 0));
                }
                match self.send_file(file, (offset, count), sent) {
                    Ok(of_file) => Ok((of_head, of_file)),
                    Err(error) if is_for_later(&error) => Ok((of_head, 0)),
                    Err(error) => Err(error),
                }
            }
            Kind::Tls(stream) => {
                drain(stream, sent)?;
                // Whole records, of which the head is a part.
                let most = HELD_BYTES.saturating_sub(head.len()).min(count);
                let taken = with_part(file, (offset, most), |part| self.send(head, part, sent))?;
                let of_head = taken.min(head.len());
                Ok((of_head, taken - of_head))
            }
        }
    }

    /// Says that nothing more comes; what was held back is lost if the client does not take it now.
    ///
    /// # Errors
    /// When the client has gone.
    pub fn finish(&mut self) -> Result<()> {
        self.leave();
        self.socket_mut().free()?.shutdown(Shutdown::Write)
    }

    /// Says as much as has to be said before the socket is closed, which says the rest: nothing without TLS.
    pub fn leave(&mut self) {
        if let Kind::Tls(stream) = &mut self.0 {
            stream.get_mut().1.send_close_notify();
            // One that has gone is told in vain.
            drain(stream, &mut 0).ok();
        }
    }

    /// Reads what arrived, encrypted or not, to be dropped, and returns how many bytes; none when the client sends no more.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when nothing is there; any other one ends the connection.
    pub fn discard(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.socket_mut().free()?.read(buffer)
    }

    fn socket_mut(&mut self) -> &mut Socket {
        match &mut self.0 {
            Kind::Clear(socket) => socket,
            Kind::Tls(stream) => stream.get_mut().0,
        }
    }
}

/// Returns how a head is sent that so much of a file follows. A short part goes in the head's packet. Where a long one
/// follows, a head that waits for it saves one packet of many, and over the loopback interface the whole answer takes half
/// as much CPU again. Where nothing follows, a head that waits is sent late.
pub(crate) fn before_file(length: u64) -> SendFlags {
    if (1..=ONE_PACKET).contains(&length) { SendFlags::MORE } else { SendFlags::empty() }
}

/// Reads a part of a file, as far as one buffer goes, and does something with it.
fn with_part(
    file: &File,
    (offset, count): (u64, usize),
    act: impl FnOnce(&[u8]) -> Result<usize>,
) -> Result<usize> {
    PART.with_borrow_mut(|part| {
        part.resize(HELD_BYTES, 0);
        let part = part.get_mut(..count.min(HELD_BYTES)).unwrap_or_default();
        let length = file.read_at(part, offset)?;
        act(part.get(..length).unwrap_or_default())
    })
}

/// Tells whether what failed may be done later.
fn is_for_later(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Reads from a socket, and notes whether it was emptied.
struct Emptying<'a> {
    socket: &'a std::net::TcpStream,
    is_empty: bool,
}

impl Read for Emptying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = receive(self.socket, buffer)?;
        self.is_empty = count < buffer.len();
        Ok(count)
    }
}

fn receive_encrypted(stream: &mut TlsStream<Socket>, buffer: &mut [u8]) -> Result<Received> {
    let (socket, session) = stream.get_mut();
    let mut reader = Emptying { socket: socket.free()?, is_empty: false };
    for _ in 0..MOST_ROUNDS {
        match session.reader().read(buffer) {
            Ok(bytes) => {
                // Whoever ended TLS sends nothing of which the kernel would tell.
                let has_more = bytes == buffer.len() || !reader.is_empty || !session.wants_read();
                return Ok(Received { bytes, has_more });
            }
            // The client went without a word; whatever it asked has been read.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Ok(Received { bytes: 0, has_more: false });
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(empty) if reader.is_empty => return Err(empty),
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
fn drain(stream: &mut TlsStream<Socket>, sent: &mut u64) -> Result<()> {
    let (socket, session) = stream.get_mut();
    let mut socket = Sending(socket.free()?);
    while session.wants_write() {
        *sent += session.write_tls(&mut socket)? as u64;
    }
    Ok(())
}

/// Reads from a socket, and sends below, by the calls for sockets: they cost less than those for files, and less again where
/// they do not look whether the thread was told to end.
fn receive(socket: &std::net::TcpStream, buffer: &mut [u8]) -> Result<usize> {
    Ok(recv(socket, buffer, RecvFlags::empty())?.0)
}

fn send_slices(socket: &std::net::TcpStream, slices: &[IoSlice<'_>]) -> Result<usize> {
    let slices = slices.get(..MOST_SLICES).unwrap_or(slices);
    Ok(sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
}

/// Writes to a socket.
struct Sending<'a>(&'a std::net::TcpStream);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        send_slices(self.0, slices)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Socket {
    /// Returns the socket if no runtime has it.
    fn free(&self) -> Result<&std::net::TcpStream> {
        match self {
            Self::Free(stream) => Ok(stream),
            Self::Runtime(_) | Self::Shaking(_) | Self::Lost => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Sends everything at once from now on.
    pub(crate) fn end_handshake(&mut self) {
        *self = match std::mem::replace(self, Self::Lost) {
            Self::Shaking(stream) => Self::Runtime(stream),
            other => other,
        };
    }

    fn runtime(&mut self) -> Result<Pin<&mut TcpStream>> {
        match self {
            Self::Runtime(stream) | Self::Shaking(stream) => Ok(Pin::new(stream)),
            Self::Free(_) | Self::Lost => Err(ErrorKind::NotConnected.into()),
        }
    }
}

/// Tells whether what is written during a handshake is what comes behind it: the tickets of TLS 1.3. They are the first that
/// is written with a record of this kind (RFC 8446, section 5.1); in the handshake itself such records follow a plain one.
fn is_behind_handshake(bytes: &[u8]) -> bool {
    const APPLICATION_DATA: u8 = 23;
    bytes.first() == Some(&APPLICATION_DATA)
}

/// Leaves bytes to the kernel, to be sent with what comes next, or by themselves within 200 ms.
fn send_later(
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

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.runtime()?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        match &*self {
            Self::Shaking(stream) if is_behind_handshake(bytes) => {
                send_later(stream, cx, &[IoSlice::new(bytes)])
            }
            _ => self.runtime()?.poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.runtime()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.runtime()?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match &*self {
            Self::Shaking(stream)
                if slices.first().is_some_and(|first| is_behind_handshake(first)) =>
            {
                send_later(stream, cx, slices)
            }
            _ => self.runtime()?.poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match &mut self.0 {
            Kind::Clear(socket) => Pin::new(socket).poll_read(cx, buffer),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        match &mut self.0 {
            Kind::Clear(socket) => Pin::new(socket).poll_write(cx, bytes),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            Kind::Clear(socket) => Pin::new(socket).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.0 {
            Kind::Clear(socket) => Pin::new(socket).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match &mut self.0 {
            Kind::Clear(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
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

    use super::{MOST_SLICES, SendFlags, Wire, before_file, is_behind_handshake};

    #[test]
    fn a_head_waits_only_for_a_file_that_shares_its_packet() {
        for (length, expected) in [
            (0, SendFlags::empty()),
            (1, SendFlags::MORE),
            (16 * 1024, SendFlags::MORE),
            (100 * 1024, SendFlags::empty()),
        ] {
            assert_eq!(before_file(length), expected, "{length}");
        }
    }

    #[test]
    fn any_number_of_slices_may_be_sent() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut wire = Wire::free(listener.accept().unwrap().0);
        let text = vec![b'x'; MOST_SLICES + 100];
        let slices: Vec<IoSlice<'_>> = text.chunks(1).map(IoSlice::new).collect();
        let mut sent = 0;
        let first = wire.send_all(&slices, &mut sent).unwrap();
        let rest = wire.send_all(slices.get(first..).unwrap(), &mut sent).unwrap();
        assert_eq!((first + rest, sent), (text.len(), text.len() as u64));
        let mut read = vec![0; text.len()];
        client.read_exact(&mut read).unwrap();
        assert_eq!(read, text);
    }

    #[test]
    fn only_what_comes_behind_a_handshake_waits() {
        // An alert, a handshake that begins, and application data.
        for (kind, expected) in [(21, false), (22, false), (23, true)] {
            assert_eq!(is_behind_handshake(&[kind, 3, 3, 0, 1, 0]), expected, "{kind}");
        }
        assert!(!is_behind_handshake(&[]));
    }
}
