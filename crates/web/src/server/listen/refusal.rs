//! Refusal of clients for which there is no capacity.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::listener_option::ListenerOptions;

/// Maximum number of connections that are being refused at a time; further ones are closed without a response.
pub(super) const MAX_CONCURRENT_REFUSALS: usize = 256;
/// Maximum time to send a refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// The whole response as a constant: refusing costs nothing when there is no capacity.
const REFUSAL_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 59\r\nRetry-After: 1\r\nConnection: close\r\n\r\n\
    all connections are in use; please try again in a moment.\r\n";

/// Tells a client to retry later, and closes the connection.
pub(super) fn refuse_connection(
    mut stream: TcpStream,
    options: &ListenerOptions,
    refusals: &Arc<Semaphore>,
) {
    let Ok(turn) = Arc::clone(refusals).try_acquire_owned() else { return };
    if options.tls.is_some() {
        return;
    }
    tokio::spawn(async move {
        let telling = async {
            stream.write_all(REFUSAL_RESPONSE).await?;
            stream.shutdown().await?;
            // If the connection were closed before the request is read, it would be reset and the response lost.
            let mut rest = [0; 4096];
            while stream.read(&mut rest).await? > 0 {}
            Ok::<_, std::io::Error>(())
        };
        // Do not wait for a client that has disconnected or sends without end.
        tokio::time::timeout(REFUSAL_TIMEOUT, telling).await.ok();
        drop(turn);
    });
}
