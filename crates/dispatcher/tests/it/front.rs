//! A running dispatcher for tests: one farm, a document root of its own, a clock that stands still.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::sync::oneshot;
use tympan_dispatcher::any_syntax::ConfigSources;
use tympan_dispatcher::config::{DispatcherConfig, LoadedConfig};
use tympan_dispatcher::log::DispatcherLog;
use tympan_dispatcher::{
    Dispatcher, DispatcherClock, DispatcherRuntime, DispatcherSettings, FlushKeys,
};
use tympan_testkit::condition_wait::{wait_for, wait_until};
use tympan_testkit::origin_server::{OriginGate, OriginServer, exchange_bytes};
use tympan_web::listen::{ListenerLimits, ListenerOptions, PortReuse, bind_listener};
use tympan_web::tls::TlsTrust;

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// Whether the body ended as its head promised.
    pub(crate) is_complete: bool,
}

impl Reply {
    pub(crate) fn parse(bytes: &[u8], is_head: bool) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(':').unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut reply = Self {
            status: status.parse().unwrap(),
            headers,
            body: String::new(),
            is_complete: true,
        };
        let raw = &bytes[end + 4..];
        let length = reply.header("content-length").and_then(|text| text.parse().ok());
        if reply.header("transfer-encoding") == Some("chunked") {
            (reply.body, reply.is_complete) = read_chunks(raw);
        } else {
            reply.body = String::from_utf8_lossy(raw).into_owned();
            reply.is_complete = is_head || length.is_none_or(|length: usize| length == raw.len());
        }
        reply
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// What the dispatcher says about the cache.
    pub(crate) fn info(&self) -> &str {
        self.header("x-cache-info").unwrap_or("(none)")
    }

    pub(crate) fn is_hit(&self) -> bool {
        self.info() == "target file cached"
    }
}

fn read_chunks(mut raw: &[u8]) -> (String, bool) {
    let mut body = Vec::new();
    loop {
        let Some(line) = raw.windows(2).position(|window| window == b"\r\n") else {
            return (String::from_utf8_lossy(&body).into_owned(), false);
        };
        let size = std::str::from_utf8(&raw[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (String::from_utf8_lossy(&body).into_owned(), true);
        }
        let data = &raw[line + 2..];
        body.extend_from_slice(&data[..size.min(data.len())]);
        raw = data.get(size + 2..).unwrap_or_default();
    }
}

/// The dispatcher; dropping it stops it.
pub(crate) struct Front {
    pub(crate) addr: SocketAddr,
    pub(crate) dispatcher: Dispatcher,
    root: TempDir,
    now: Arc<Mutex<SystemTime>>,
    hold: Arc<Hold>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Where threads of the lane wait while a test holds them.
#[derive(Debug, Default)]
struct Hold {
    gate: OriginGate,
    waiting: AtomicUsize,
}

impl Hold {
    /// Waits, if this is a thread of the lane and the gate is closed.
    fn pass(&self) {
        if std::thread::current().name() == Some("lane") {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.gate.wait_open();
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// What a test changes of the usual farm.
#[derive(Default, Clone)]
pub(crate) struct Setup {
    /// Further keys of the farm.
    pub(crate) farm: &'static str,
    /// Further keys of its cache.
    pub(crate) cache: &'static str,
    /// Where the renders are; each gets a label `r0`, `r1`, ...
    pub(crate) renders: Vec<SocketAddr>,
    /// Further keys of each render.
    pub(crate) render: &'static str,
    /// The section `[dispatcher]` of `tympan.toml`.
    pub(crate) settings: String,
    /// The bounds of the listener, if not the usual ones.
    pub(crate) limits: Option<ListenerLimits>,
    /// Where the dispatcher's own log goes.
    pub(crate) log: DispatcherLog,
}

impl Setup {
    pub(crate) fn text(&self, docroot: &Path) -> String {
        let renders: String = self
            .renders
            .iter()
            .enumerate()
            .map(|(index, addr)| {
                let (port, more) = (addr.port(), self.render);
                format!("/r{index} {{ /hostname \"127.0.0.1\" /port \"{port}\" {more} }}\n")
            })
            .collect();
        let (farm, cache, docroot) = (self.farm, self.cache, docroot.display());
        // Keys of a test come last, and the last one of a kind counts.
        format!(
            "/farms {{ /site {{
                /info 1  /clientheaders {{ \"*\" }}  /virtualhosts {{ \"*\" }}
                /retryDelay 0  /numberOfRetries 1
                /renders {{ {renders} }}
                {farm}
                /cache {{
                    /docroot \"{docroot}\"
                    /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }}
                    /invalidate {{ /0 {{ /type \"deny\" /glob \"*\" }} /1 {{ /type \"allow\" /glob \"*.html\" }} }}
                    /allowedClients {{ /0 {{ /type \"deny\" /glob \"*\" }} /1 {{ /type \"allow\" /glob \"127.0.0.1\" }} }}
                    {cache}
                }}
            }} }}"
        )
    }
}

pub(crate) fn load(text: &str) -> LoadedConfig {
    DispatcherConfig::parse(text.as_bytes(), Path::new("test.any"), &ConfigSources::default())
}

/// Tests end their fronts while clients hold connections open.
pub(crate) fn limits() -> ListenerLimits {
    ListenerLimits { drain_timeout: Duration::from_secs(2), ..ListenerLimits::default() }
}

/// A front before one render, with further keys of the cache.
pub(crate) fn front(origin: &OriginServer, cache: &'static str) -> Front {
    Front::start(&Setup { cache, renders: vec![origin.addr()], ..Setup::default() })
}

impl Front {
    pub(crate) fn start(setup: &Setup) -> Self {
        Self::start_in(setup, tempfile::tempdir().unwrap())
    }

    pub(crate) fn start_in(setup: &Setup, root: TempDir) -> Self {
        let text = setup.text(root.path());
        let runtime = DispatcherRuntime { log: setup.log.clone(), ..DispatcherRuntime::default() };
        let limits = setup.limits.clone().unwrap_or_else(limits);
        Self::start_with((&text, &setup.settings), root, runtime, limits)
    }

    /// Starts with a clock that runs, for clients that wait for a response to expire.
    pub(crate) fn start_in_time(setup: &Setup) -> Self {
        let root = tempfile::tempdir().unwrap();
        let text = setup.text(root.path());
        let runtime = DispatcherRuntime::default();
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let listener = bind_listener(any, PortReuse::Exclusive).unwrap();
        let clock = DispatcherClock::new(SystemTime::now);
        Self::start_by((&text, &setup.settings), root, (runtime, limits()), (listener, Some(clock)))
    }

    /// Starts with keys of pairs that may flush.
    pub(crate) fn start_with_keys(setup: &Setup, flush_keys: FlushKeys) -> Self {
        let root = tempfile::tempdir().unwrap();
        let text = setup.text(root.path());
        let runtime = DispatcherRuntime { flush_keys, ..DispatcherRuntime::default() };
        Self::start_with((&text, &setup.settings), root, runtime, limits())
    }

    /// Starts where somebody knows it to be already.
    pub(crate) fn start_on(setup: &Setup, root: TempDir, listener: TcpListener) -> Self {
        let text = setup.text(root.path());
        let runtime = DispatcherRuntime { log: setup.log.clone(), ..DispatcherRuntime::default() };
        let (runtime, listening) = ((runtime, limits()), (listener, None));
        Self::start_by((&text, &setup.settings), root, runtime, listening)
    }

    /// Starts with a configuration that names no document root, or one of its own.
    pub(crate) fn start_text(text: &str) -> Self {
        Self::start_trusting(text, None)
    }

    /// As [`ListenerOptions::start_text`], with those by whom renders must be signed.
    pub(crate) fn start_trusting(text: &str, trust: Option<TlsTrust>) -> Self {
        let runtime = DispatcherRuntime { trust, ..DispatcherRuntime::default() };
        Self::start_with((text, ""), tempfile::tempdir().unwrap(), runtime, limits())
    }

    fn start_with(
        texts: (&str, &str),
        root: TempDir,
        runtime: DispatcherRuntime,
        limits: ListenerLimits,
    ) -> Self {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let listener = bind_listener(any, PortReuse::Exclusive).unwrap();
        Self::start_by(texts, root, (runtime, limits), (listener, None))
    }

    fn start_by(
        (text, settings): (&str, &str),
        root: TempDir,
        (runtime, limits): (DispatcherRuntime, ListenerLimits),
        (listener, own_clock): (TcpListener, Option<DispatcherClock>),
    ) -> Self {
        let loaded = load(text);
        assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
        let now = Arc::new(Mutex::new(SystemTime::now()));
        let hold = Arc::new(Hold::default());
        hold.gate.open();
        let (clock, held) = (Arc::clone(&now), Arc::clone(&hold));
        let clock = DispatcherClock::new(move || {
            held.pass();
            *clock.lock().unwrap()
        });
        let runtime = DispatcherRuntime { clock: own_clock.unwrap_or(clock), ..runtime };
        let settings: DispatcherSettings = toml::from_str(settings).unwrap();
        let listening = settings.front.apply_to(ListenerOptions::from(limits)).unwrap();
        let dispatcher = Dispatcher::with_settings(loaded.config, &settings, runtime).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = dispatcher.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let until = async { drop(stopped.await) };
            let serving = served.serve(listener, listening, until);
            runtime.block_on(serving).unwrap();
            runtime.shutdown_background();
        });
        Self { addr, dispatcher, root, now, hold, stop: Some(stop), thread: Some(thread) }
    }

    /// Serves by another configuration from now on, with the same document root.
    pub(crate) fn reload(&self, setup: &Setup) {
        self.reload_trusting(setup, None);
    }

    /// As [`ListenerOptions::reload`], with those by whom renders must be signed.
    pub(crate) fn reload_trusting(&self, setup: &Setup, trust: Option<TlsTrust>) {
        let loaded = load(&setup.text(self.root.path()));
        let settings: DispatcherSettings = toml::from_str(&setup.settings).unwrap();
        self.dispatcher.reload(loaded.config, &settings, trust).unwrap();
    }

    pub(crate) fn get(&self, target: &str) -> Reply {
        self.send("GET", target, &[], "")
    }

    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let mut request = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request.push_str("Host: www.example.com\r\n");
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("X-Dispatcher-Info: 1\r\n");
        if !body.is_empty() {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("\r\n");
        request.push_str(body);
        Reply::parse(&exchange_bytes(self.addr, request.as_bytes()), method == "HEAD")
    }

    pub(crate) fn flush(&self, action: &str, handle: &str, refetch: &[&str]) -> Reply {
        let headers =
            [("CQ-Action", action), ("CQ-Handle", handle), ("Content-Type", "text/plain")];
        let body: String = refetch.iter().map(|uri| format!("{uri}\n")).collect();
        self.send("POST", "/dispatcher/invalidate.cache", &headers, &body)
    }

    /// The path of a file below the document root.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let file = self.file(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file(name).symlink_metadata().is_ok()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// All files below the document root that are no part of the cache's own bookkeeping, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        list(self.root.path(), self.root.path(), &mut found);
        found.retain(|name| !name.ends_with(".stat"));
        found.sort();
        found
    }

    /// The `.stat` files, sorted.
    pub(crate) fn stats(&self) -> Vec<String> {
        let mut found = Vec::new();
        list(self.root.path(), self.root.path(), &mut found);
        found.retain(|name| name.ends_with(".stat"));
        found.sort();
        found
    }

    pub(crate) fn advance(&self, seconds: u64) {
        *self.now.lock().unwrap() += Duration::from_secs(seconds);
    }

    /// Makes the threads of the lane wait, and returns when `count` of them do.
    pub(crate) fn hold_lane(&self, count: usize) {
        self.hold.gate.close();
        wait_until("threads of the lane wait", || {
            self.hold.waiting.load(Ordering::SeqCst) >= count
        });
    }

    pub(crate) fn release_lane(&self) {
        self.hold.gate.open();
    }

    /// The value of a counter or gauge.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.dispatcher.prometheus_metrics();
        let line =
            text.lines().find_map(|line| line.strip_prefix(&format!("tympan_dispatcher_{name} ")));
        line.unwrap_or_else(|| panic!("no `{name}` in {text}")).parse().unwrap()
    }

    /// Waits until a counter or gauge has a value.
    pub(crate) fn wait_for(&self, name: &str, wanted: u64) {
        wait_for(|| match self.metric(name) {
            value if value == wanted => Ok(()),
            value => Err(format!("{name} is {value}, not {wanted}")),
        });
    }

    /// Stops the dispatcher and returns its document root.
    pub(crate) fn stop(mut self) -> TempDir {
        self.end();
        std::mem::replace(&mut self.root, tempfile::tempdir().unwrap())
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.end();
    }
}

fn list(root: &Path, folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Folders on their way out are emptied after the flush was answered.
        let is_trash = folder.ends_with(".tympan-tmp") && path.extension().is_none();
        // Gone since it was listed.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let is_dir = metadata.is_dir();
        if is_dir && !is_trash {
            list(root, &path, found);
        } else if !is_dir {
            let name = path.strip_prefix(root).unwrap();
            found.push(name.to_str().unwrap().to_owned());
        }
    }
}
