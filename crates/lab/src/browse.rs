//! One visitor who fetches what a script says, over connections that stay, and sees every exchange in full.
//!
//! In: a script from the last exchanges to the next addresses. Out: what the script keeps.
//!
//! Not here: load; that is `load` and `plan`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::{Crew, Crowd, Load, Step, Turn, User, run};
use crate::net::{Head, Keep, Reply, Request, Targets, Url};
use crate::plan::answer::decode;

/// Bytes of a body that are kept.
const MOST_BODY: usize = 32 << 20;

/// What to fetch.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) url: Url,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) timeout: Duration,
}

impl Ask {
    /// Returns a GET with headers.
    pub(crate) fn get(url: Url, headers: &[(String, String)]) -> Self {
        Self {
            method: "GET",
            url,
            headers: headers.to_vec(),
            body: Arc::from([]),
            timeout: Duration::from_secs(30),
        }
    }

    fn request(&self, targets: &Targets) -> Result<Request> {
        let target = targets.find(self.url.is_tls, &self.url.host, self.url.port)?;
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.url.target);
        let mut add = |name: &str, value: &str| {
            if !self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Host", &target.authority());
        add("User-Agent", concat!("tympan-lab/", env!("CARGO_PKG_VERSION")));
        add("Accept", "*/*");
        if !self.body.is_empty() || self.method == "POST" {
            add("Content-Length", &self.body.len().to_string());
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        Ok(Request {
            target,
            bytes: bytes.into(),
            is_head: self.method == "HEAD",
            keep: Keep::Body(MOST_BODY),
            keep_alive: true,
            connect_timeout: Some(self.timeout),
            response_timeout: Some(self.timeout),
        })
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) url: Url,
    pub(crate) started: Instant,
    pub(crate) connect: Duration,
    pub(crate) first_byte: Instant,
    pub(crate) ended: Instant,
    /// 0 if there was no response.
    pub(crate) status: u16,
    /// Why there was none.
    pub(crate) failure: Option<String>,
    pub(crate) head: Head,
    /// Decoded.
    pub(crate) body: Vec<u8>,
    /// Bytes that came over the wire.
    pub(crate) received: u64,
}

impl Got {
    fn of(url: Url, reply: Reply) -> Self {
        let Reply { started, connect, first_byte, ended, received, result, .. } = reply;
        let mut got = Self {
            url,
            started,
            connect,
            first_byte,
            ended,
            status: 0,
            failure: None,
            head: Head::default(),
            body: Vec::new(),
            received,
        };
        match result {
            Ok(response) => {
                got.status = response.status;
                got.head = response.head.unwrap_or_default();
                got.body = decode(response.body, got.head.header("Content-Encoding"));
            }
            Err(failure) => got.failure = Some(failure.words().to_owned()),
        }
        got
    }

    fn lost(url: Url, now: Instant, why: String) -> Self {
        Self {
            url,
            started: now,
            connect: Duration::ZERO,
            first_byte: now,
            ended: now,
            status: 0,
            failure: Some(why),
            head: Head::default(),
            body: Vec::new(),
            received: 0,
        }
    }

    /// Returns how long it took.
    pub(crate) fn elapsed(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }

    /// Reports whether it was answered, and not by an error.
    pub(crate) fn is_ok(&self) -> bool {
        (200..400).contains(&self.status)
    }
}

type Script = Box<dyn FnMut(Vec<Got>) -> Vec<Ask> + Send>;

struct Visitor {
    script: Script,
    targets: Targets,
    parallel: usize,
    /// What is under way; `None` where it failed before it was sent.
    asked: Vec<(Url, Option<Got>)>,
}

impl std::fmt::Debug for Visitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Visitor").field("asked", &self.asked.len()).finish_non_exhaustive()
    }
}

impl User for Visitor {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        let mut replies = std::mem::take(&mut turn.replies).into_iter();
        let mut got: Vec<Got> = Vec::new();
        for (url, lost) in std::mem::take(&mut self.asked) {
            match lost {
                Some(lost) => got.push(lost),
                None => got.extend(replies.next().map(|reply| Got::of(url, *reply))),
            }
        }
        loop {
            let asks = (self.script)(std::mem::take(&mut got));
            if asks.is_empty() || turn.is_stopping {
                return Step::End;
            }
            let mut requests = Vec::new();
            for ask in asks {
                let lost = match ask.request(&self.targets) {
                    Ok(request) => {
                        requests.push(request);
                        None
                    }
                    Err(error) => {
                        Some(Got::lost(ask.url.clone(), Instant::now(), error.to_string()))
                    }
                };
                self.asked.push((ask.url, lost));
            }
            if !requests.is_empty() {
                return Step::FetchHosts { requests, parallel: self.parallel };
            }
            got.extend(self.asked.drain(..).filter_map(|(_, lost)| lost));
        }
    }
}

/// Runs a script until it asks for nothing more. It is called first with nothing.
///
/// # Errors
/// [`crate::Error::Engine`].
pub(crate) fn browse(
    parallel: usize,
    script: impl FnMut(Vec<Got>) -> Vec<Ask> + Send + 'static,
) -> Result<()> {
    let visitor = Visitor {
        script: Box::new(script),
        targets: Targets::default(),
        parallel,
        asked: Vec::new(),
    };
    let crew = Crew { users: vec![(Duration::ZERO, Box::new(visitor))], arrivals: None };
    let load = Load {
        crews: vec![crew],
        stop_after: None,
        drain: Duration::ZERO,
        crowd: Arc::new(Crowd::default()),
        rows: None,
    };
    run(load, &mut ()).map(|_| ())
}

/// Fetches one address.
///
/// # Errors
/// As [`browse`].
pub(crate) fn fetch(ask: Ask) -> Result<Got> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut ask = Some(ask);
    let url = ask.as_ref().map(|ask| ask.url.clone());
    browse(1, move |got| {
        got.into_iter().for_each(|got| drop(sender.send(got)));
        ask.take().into_iter().collect()
    })?;
    let got = receiver.try_recv().ok();
    got.or_else(|| url.map(|url| Got::lost(url, Instant::now(), "not sent".to_owned())))
        .ok_or_else(|| crate::Error::Input("nothing was asked for".to_owned()))
}

/// Returns the value of a header for a login.
pub(crate) fn basic(login: &str) -> (String, String) {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(login);
    ("Authorization".to_owned(), format!("Basic {encoded}"))
}
