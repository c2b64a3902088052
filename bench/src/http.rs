//! A plain HTTP/1.1 client on one connection: enough to check what a server answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::Outcome;

/// Longer answers than this are not what a row expects.
const MAX_BODY: u64 = 16 << 20;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: u16,
    /// The headers, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// The body.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns a header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A connection that stays open, and is made anew where the other side says that it ends it.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    limit: Duration,
}

impl Connection {
    /// Connects; every later wait ends after `limit`.
    pub(crate) fn open(address: SocketAddr, limit: Duration) -> Outcome<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), address, limit })
    }

    /// Sends a GET and reads the whole answer.
    pub(crate) fn get(&mut self, path: &str) -> Outcome<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let head = self.line()?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| format!("no HTTP: `{head}`"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer { status, headers, body: Vec::new() };
        answer.body = match (answer.header("content-length"), answer.header("transfer-encoding")) {
            (Some(length), _) => self.bytes(length.parse()?)?,
            (None, Some("chunked")) => self.chunks()?,
            _ => Vec::new(),
        };
        // Servers end a connection after so many requests.
        if answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            *self = Self::open(self.address, self.limit)?;
        }
        Ok(answer)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err("the connection ended".into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn bytes(&mut self, count: u64) -> Outcome<Vec<u8>> {
        if count > MAX_BODY {
            return Err(format!("an answer of {count} bytes").into());
        }
        let mut bytes = vec![0; usize::try_from(count)?];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn chunks(&mut self) -> Outcome<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = u64::from_str_radix(&self.line()?, 16)?;
            body.extend(self.bytes(size)?);
            self.line()?;
            if size == 0 {
                return Ok(body);
            }
        }
    }
}

/// Posts a form with an `Authorization` header on a new connection, and refuses anything but success.
pub(crate) fn post(
    address: SocketAddr,
    path: &str,
    (credentials, form): (&str, &str),
) -> Outcome<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)?;
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: {credentials}\r\nAccept: application/json\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let status = answer.split(' ').nth(1).unwrap_or_default();
    match status {
        "200" | "201" => Ok(()),
        other => Err(format!("POST http://{address}{path} answers {other}").into()),
    }
}

/// Fetches a path on a new connection.
pub(crate) fn get(address: SocketAddr, path: &str) -> Outcome<Answer> {
    Connection::open(address, Duration::from_secs(20))?.get(path)
}

/// Fetches a path and refuses anything but 200.
pub(crate) fn get_ok(address: SocketAddr, path: &str) -> Outcome<Answer> {
    let answer = get(address, path)?;
    if answer.status == 200 {
        Ok(answer)
    } else {
        Err(format!("http://{address}{path} answers {}", answer.status).into())
    }
}
