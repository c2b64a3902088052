//! TLS on a blocking socket whose two directions are used by two threads.
//!
//! The reader waits on the socket without holding the lock of the connection state, so a writer never waits for the
//! other side to send. Certificates do not authenticate anyone here: each run creates its own, and [`super::token`]
//! authenticates both sides.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use super::token::{FleetRole, FleetToken};
use crate::{Error, Result};

/// Time limit of the handshake for either side.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The TLS exporter label for the keys of the proof.
const KEY_EXPORT_LABEL: &[u8] = b"EXPORTER-tympan-lab-agent";
const PROOF_LEN: usize = 32;

/// One direction of a connection.
pub(super) struct TlsStreamHalf {
    socket: TcpStream,
    tls_connection: Arc<Mutex<Connection>>,
    /// Received bytes that are not yet processed.
    unread_bytes: Vec<u8>,
}

impl std::fmt::Debug for TlsStreamHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStreamHalf").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TlsStreamHalf {
    fn lock_connection(&self) -> MutexGuard<'_, Connection> {
        self.tls_connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TlsStreamHalf {
    fn drop(&mut self) {
        // The other half waits on the same socket and would otherwise never learn that this one was dropped.
        self.socket.shutdown(std::net::Shutdown::Both).ok();
    }
}

fn tls_io_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Read for TlsStreamHalf {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.lock_connection().reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.unread_bytes.is_empty() {
                let mut buffer = [0; 16 * 1024];
                let count = self.socket.read(&mut buffer)?;
                if count == 0 {
                    return Ok(0);
                }
                self.unread_bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
            }
            let mut bytes = self.unread_bytes.as_slice();
            let mut state = self.tls_connection.lock().unwrap_or_else(PoisonError::into_inner);
            while !bytes.is_empty() {
                state.read_tls(&mut bytes)?;
                let processed = state.process_new_packets();
                while state.wants_write() {
                    state.write_tls(&mut self.socket)?;
                }
                // The TLS library accepts no more input until the plaintext is read.
                if processed.map_err(tls_io_error)?.plaintext_bytes_to_read() > 0 {
                    break;
                }
            }
            drop(state);
            let used = self.unread_bytes.len() - bytes.len();
            self.unread_bytes.drain(..used);
        }
    }
}

impl Write for TlsStreamHalf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.tls_connection.lock().unwrap_or_else(PoisonError::into_inner);
        let count = state.writer().write(bytes)?;
        while state.wants_write() {
            state.write_tls(&mut self.socket)?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The TLS endpoint of a controller that agents dial in to.
#[derive(Debug, Clone)]
pub(super) struct ControllerTlsEndpoint {
    tls_config: Arc<ServerConfig>,
}

impl ControllerTlsEndpoint {
    /// Creates an endpoint with a new certificate.
    ///
    /// # Errors
    /// [`Error::Tls`].
    pub(super) fn with_new_certificate() -> Result<Self> {
        let failed = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
        let made = rcgen::generate_simple_self_signed(vec!["tympan-lab".to_owned()])
            .map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key)
            })
            .map_err(|error| failed(&error))?;
        Ok(Self { tls_config: Arc::new(config) })
    }

    /// Performs the handshake with an agent that dialed in.
    ///
    /// # Errors
    /// The I/O error; `PermissionDenied` if the agent does not know the token.
    pub(super) fn accept_agent(
        &self,
        socket: TcpStream,
        token: &FleetToken,
    ) -> io::Result<(TlsStreamHalf, TlsStreamHalf)> {
        let state = ServerConnection::new(Arc::clone(&self.tls_config)).map_err(tls_io_error)?;
        handshake(socket, state.into(), token, FleetRole::Controller)
    }
}

/// Connects to a controller and performs the handshake.
///
/// # Errors
/// The I/O error; `PermissionDenied` if the controller does not know the token.
pub(super) fn dial_tls(
    socket: TcpStream,
    token: &FleetToken,
) -> io::Result<(TlsStreamHalf, TlsStreamHalf)> {
    let (config, _) = tympan_lab_engine::net::tls_client("tympan-lab").map_err(io::Error::other)?;
    let name = ServerName::try_from("tympan-lab").map_err(io::Error::other)?;
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols.clear();
    let state = ClientConnection::new(Arc::new(config), name).map_err(tls_io_error)?;
    handshake(socket, state.into(), token, FleetRole::Agent)
}

fn handshake(
    socket: TcpStream,
    mut state: Connection,
    token: &FleetToken,
    side: FleetRole,
) -> io::Result<(TlsStreamHalf, TlsStreamHalf)> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let mut io = socket.try_clone()?;
    while state.is_handshaking() {
        state.complete_io(&mut io)?;
    }
    let keys =
        state.export_keying_material([0; 32], KEY_EXPORT_LABEL, None).map_err(tls_io_error)?;
    let state = Arc::new(Mutex::new(state));
    let mut reader = TlsStreamHalf {
        socket: socket.try_clone()?,
        tls_connection: Arc::clone(&state),
        unread_bytes: Vec::new(),
    };
    let mut writer = TlsStreamHalf { socket, tls_connection: state, unread_bytes: Vec::new() };
    let peer_side = match side {
        FleetRole::Controller => FleetRole::Agent,
        FleetRole::Agent => FleetRole::Controller,
    };
    // The agent sends its proof first, so that a stranger who dials in obtains nothing to test guesses against.
    let mut proof = [0; PROOF_LEN];
    if matches!(side, FleetRole::Agent) {
        writer.write_all(&token.proof_for(side, &keys))?;
    }
    // A controller that does not recognize the agent's token closes the connection without a proof of its own.
    if reader.read_exact(&mut proof).is_err() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if !token.accepts_proof(peer_side, &keys, &proof) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if matches!(side, FleetRole::Controller) {
        writer.write_all(&token.proof_for(side, &keys))?;
    }
    reader.socket.set_read_timeout(None)?;
    reader.socket.set_write_timeout(None)?;
    Ok((reader, writer))
}
