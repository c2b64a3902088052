//! A crowd: thousands of users, each on a connection and a clock of its own.
//!
//! In: groups of users, how often each asks, for how long. Out: for each group the answer times and the errors.
//!
//! Invariants
//! * A request is due at a fixed time, whatever became of the one before, and its answer time counts from there: a server
//!   that falls behind is not spared what it kept waiting.
//! * Users begin spread evenly over their interval.
//!
//! Not here: how fast a server can be ([`crate::load`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::Outcome;

/// How long one answer may take before it counts as an error.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of an answer.
const MAX_HEAD: usize = 64 * 1024;

/// Users who do the same.
#[derive(Clone)]
pub(crate) struct Group {
    /// How many.
    pub(crate) users: usize,
    /// Between two requests of a user; nothing for as fast as answers come.
    pub(crate) every: Duration,
    /// What a user asks for, by its number and how often it has asked.
    pub(crate) path: Arc<dyn Fn(usize, usize) -> String + Send + Sync>,
}

/// What a group has met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Met {
    /// The answer times in milliseconds, sorted.
    pub(crate) times: Vec<f64>,
    /// Answers that were none, or not 200.
    pub(crate) errors: usize,
    /// The first of them, in words.
    pub(crate) first_error: Option<String>,
}

impl Met {
    /// Returns the time that a share of the answers did not exceed.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of answers"
        )]
        let at = ((self.times.len() as f64) * percent / 100.0).ceil() as usize;
        self.times.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Has all groups ask at the same time; what is due before `warm_up` is over does not count.
///
/// # Errors
/// If the system gives no threads.
pub(crate) fn meet(
    address: SocketAddr,
    groups: &[Group],
    (warm_up, lasting): (Duration, Duration),
) -> Outcome<Vec<Met>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Connections are made before the clock starts, or the first seconds would be about them.
        let begin = Instant::now() + connecting_time(groups);
        let end = begin + warm_up + lasting;
        let mut tasks = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            for user in 0..group.users {
                let share = u32::try_from(user).unwrap_or(u32::MAX);
                let users = u32::try_from(group.users).unwrap_or(u32::MAX).max(1);
                let offset = group.every.mul_f64(f64::from(share) / f64::from(users));
                let connect = Duration::from_micros(u64::from(share) * 100);
                let user = User {
                    address,
                    group: group.clone(),
                    user,
                    due: begin + offset,
                    counts_from: begin + warm_up,
                    end,
                };
                tasks.push((
                    number,
                    tokio::spawn(async move {
                        tokio::time::sleep(connect).await;
                        user.live().await
                    }),
                ));
            }
        }
        let mut met = vec![Met::default(); groups.len()];
        for (number, task) in tasks {
            let own = task.await.map_err(|error| error.to_string())?;
            if let Some(met) = met.get_mut(number) {
                met.add(own);
            }
        }
        met.iter_mut().for_each(|met| met.times.sort_by(f64::total_cmp));
        Ok(met)
    })
}

fn connecting_time(groups: &[Group]) -> Duration {
    let users: usize = groups.iter().map(|group| group.users).sum();
    Duration::from_millis(200)
        + Duration::from_micros(u64::try_from(users).unwrap_or(u64::MAX) * 200)
}

struct User {
    address: SocketAddr,
    group: Group,
    user: usize,
    due: Instant,
    counts_from: Instant,
    end: Instant,
}

impl User {
    async fn live(self) -> Met {
        let mut met = Met::default();
        let mut stream = TcpStream::connect(self.address).await.ok();
        let mut due = self.due;
        let mut buffer = Vec::with_capacity(8 * 1024);
        for visit in 0.. {
            if due >= self.end {
                break;
            }
            tokio::time::sleep_until(due).await;
            let path = (self.group.path)(self.user, visit);
            let asked = tokio::time::timeout(PATIENCE, self.ask(&mut stream, &path, &mut buffer));
            let answer = asked.await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            let took = due.elapsed();
            if !matches!(answer, Ok(After::GoesOn)) {
                stream = None;
            }
            if due >= self.counts_from {
                match answer {
                    Ok(_) => met.times.push(took.as_secs_f64() * 1e3),
                    Err(reason) => {
                        met.errors += 1;
                        met.first_error.get_or_insert(format!("{path}: {reason}"));
                    }
                }
            }
            due = match self.group.every.is_zero() {
                true => Instant::now(),
                false => due + self.group.every,
            };
        }
        met
    }

    async fn ask(
        &self,
        stream: &mut Option<TcpStream>,
        path: &str,
        buffer: &mut Vec<u8>,
    ) -> Result<After, String> {
        let connection = match stream {
            Some(connection) => connection,
            None => {
                let made =
                    TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
                stream.insert(made)
            }
        };
        connection.set_nodelay(true).map_err(|error| error.to_string())?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        connection.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        buffer.clear();
        let (head, length, after) = loop {
            if let Some(end) = find(buffer, b"\r\n\r\n") {
                let (length, after) = read_head(buffer.get(..end).unwrap_or_default())?;
                break (end + 4, length, after);
            }
            if buffer.len() > MAX_HEAD {
                return Err("the head does not end".to_owned());
            }
            if connection.read_buf(buffer).await.map_err(|error| error.to_string())? == 0 {
                return Err("the connection ended".to_owned());
            }
        };
        while buffer.len() < head + length {
            if connection.read_buf(buffer).await.map_err(|error| error.to_string())? == 0 {
                return Err("the answer was cut".to_owned());
            }
        }
        Ok(after)
    }
}

/// What becomes of a connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    GoesOn,
    /// The server ends it, as it does after so many requests.
    Ends,
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Reads the head of a success: the length of its body, and whether the connection goes on.
fn read_head(head: &[u8]) -> Result<(usize, After), String> {
    let text = String::from_utf8_lossy(head);
    let status = text.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(format!("status {status}"));
    }
    let value = |wanted: &str| {
        let mut headers = text.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    let length = value("content-length").and_then(|length| length.parse().ok());
    let length = length.ok_or_else(|| "the answer does not tell its length".to_owned())?;
    let is_last = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok((length, if is_last { After::Ends } else { After::GoesOn }))
}

/// A system that answers each request with JSON after a while; it ends with the process.
///
/// # Errors
/// If nothing can listen.
pub(crate) fn slow_back_end(delay: Duration) -> Outcome<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    std::thread::Builder::new().name("back-end".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_slowly(stream, delay));
            }
        });
    })?;
    Ok(address)
}

async fn answer_slowly(mut stream: TcpStream, delay: Duration) {
    const BODY: &str = "{\"state\":\"in transit\",\"orders\":[{\"number\":17,\"sum\":\"12.50\"},{\"number\":18,\"sum\":\"7.00\"}]}";
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let mut buffer = Vec::with_capacity(4096);
    if stream.set_nodelay(true).is_err() {
        return;
    }
    loop {
        while find(&buffer, b"\r\n\r\n").is_none() {
            match stream.read_buf(&mut buffer).await {
                Ok(count) if count > 0 && buffer.len() < MAX_HEAD => {}
                _ => return,
            }
        }
        buffer.clear();
        tokio::time::sleep(delay).await;
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_meets_what_the_server_answers() {
        let address = slow_back_end(Duration::from_millis(5)).unwrap();
        let group = Group {
            users: 20,
            every: Duration::from_millis(50),
            path: Arc::new(|user, visit| format!("/{user}/{visit}")),
        };
        let times = (Duration::from_millis(50), Duration::from_millis(200));
        let met = meet(address, &[group], times).unwrap();
        let met = met.first().unwrap();
        assert_eq!((met.errors, met.times.len()), (0, 80), "{:?}", met.first_error);
        assert!(met.percentile(1.0) >= 5.0 && met.percentile(50.0) <= met.percentile(99.0));
    }

    #[test]
    fn heads_tell_lengths_and_faults() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 12\r\nX: y";
        assert_eq!(read_head(head.as_bytes()), Ok((12, After::GoesOn)));
        let last = format!("{head}\r\nConnection: close");
        assert_eq!(read_head(last.as_bytes()), Ok((12, After::Ends)));
        assert!(read_head(b"HTTP/1.1 503 Busy\r\nContent-Length: 1").is_err());
        assert!(read_head(b"HTTP/1.1 200 OK").is_err());
    }
}
