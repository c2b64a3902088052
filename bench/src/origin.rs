//! A small web server in this process: the origin that caches are filled from.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Outcome;
use crate::random::Random;

/// The path of the page.
pub(crate) const PAGE: &str = "/page.html";
/// The path of the picture.
pub(crate) const PICTURE: &str = "/picture.jpg";
const PAGE_BYTES: usize = 6_137;
const PICTURE_BYTES: usize = 102_400;

/// Two answers: a page of about 6 KB and a picture of 100 KB.
#[derive(Debug)]
pub(crate) struct Files {
    /// The page.
    pub(crate) page: Vec<u8>,
    /// The picture.
    pub(crate) picture: Vec<u8>,
    /// How often something was asked for.
    pub(crate) requests: AtomicU64,
}

impl Files {
    /// Makes the two, always the same.
    pub(crate) fn new() -> Self {
        let mut random = Random::new(7);
        let mut page = String::from("<!doctype html><html><head><title>Page</title></head><body>");
        while page.len() < PAGE_BYTES - 100 {
            page.push_str(&format!("<p>{}</p>", random.words(60)));
        }
        page.push_str("</body></html>");
        page.extend(std::iter::repeat_n('\n', PAGE_BYTES.saturating_sub(page.len())));
        Self {
            page: page.into_bytes(),
            picture: random.bytes(PICTURE_BYTES),
            requests: AtomicU64::new(0),
        }
    }
}

/// Serves the files until the process ends.
pub(crate) fn serve(files: Arc<Files>) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let files = Arc::clone(&files);
            // A connection that breaks ends its thread; whoever waits at the other end notices.
            std::thread::spawn(move || answer(stream, &files).is_ok());
        }
    });
    Ok(address)
}

fn answer(mut stream: TcpStream, files: &Files) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    loop {
        let mut path = String::new();
        let mut line = String::new();
        while input.read_line(&mut line)? > 0 && !line.trim_end().is_empty() {
            if path.is_empty() {
                line.split(' ').nth(1).unwrap_or_default().clone_into(&mut path);
            }
            line.clear();
        }
        files.requests.fetch_add(1, Ordering::Relaxed);
        let (status, kind, body): (_, _, &[u8]) = match path.split('?').next().unwrap_or_default() {
            "" => return Ok(()),
            PAGE => ("200 OK", "text/html", &files.page),
            PICTURE => ("200 OK", "image/jpeg", &files.picture),
            _ => ("404 Not Found", "text/plain", b""),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nLast-Modified: Wed, 15 Jul 2020 08:00:00 GMT\r\n\
             Cache-Control: public, max-age=36000\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
    }
}
