//! What only the store on PostgreSQL has: several processes, connections that fail, and a pool that is used up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tympan_store::{
    ByteSize, ChunkBatch, ChunkDiskCacheOptions, ChunkId, ChunkStore, Error,
    GarbageCollectionOptions, PostgresOptions, PostgresStore, ReadChunks, RefUpdate,
    RevisionRetention, body,
};
use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::postgres_server::PostgresServer;

use crate::conformance::postgres_options;
use crate::map_model::moves;

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(options: &PostgresOptions) -> PostgresStore {
    PostgresStore::open(options.clone()).unwrap()
}
fn body_of(batch: &mut ChunkBatch, text: &str) -> ChunkId {
    body::write_body(batch, text.as_bytes(), &[]).unwrap()
}

fn store_body(store: &dyn ChunkStore, text: &str) -> ChunkId {
    let mut batch = ChunkBatch::new();
    let id = body_of(&mut batch, text);
    store.commit(batch).unwrap();
    id
}

/// Moves a ref to a body of this text, and gives its id.
fn try_move(
    store: &dyn ChunkStore,
    name: &str,
    from: Option<ChunkId>,
    text: &str,
) -> Result<ChunkId, Error> {
    let mut batch = ChunkBatch::new();
    let id = body_of(&mut batch, text);
    batch.add_ref_update(moves(name, from, Some(id)));
    store.commit(batch).map(|()| id)
}

fn remove_ref(store: &dyn ChunkStore, name: &str) {
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moves(name, store.read_ref(name).unwrap(), None));
    store.commit(batch).unwrap();
}

fn has(store: &dyn ChunkStore, id: ChunkId) -> bool {
    store.contains_chunks(&[id]).unwrap()[0]
}

fn thorough() -> GarbageCollectionOptions {
    GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        ..GarbageCollectionOptions::at_time(SystemTime::now())
    }
}

fn collect(store: &dyn ChunkStore) {
    store.collect_garbage(&thorough(), &mut |_| ControlFlow::Continue(())).unwrap();
}

fn go_on(_: &tympan_store::GarbageCollectionProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A second connection that a test drives statement by statement, as another process would.
struct Other {
    child: Child,
    output: std::io::BufReader<std::process::ChildStdout>,
}

impl Other {
    fn connect(schema: &str) -> Self {
        let mut child = Command::new("psql")
            .args([
                "--no-psqlrc",
                "--quiet",
                "--tuples-only",
                "--no-align",
                "--set",
                "ON_ERROR_STOP=1",
            ])
            .arg(PostgresServer::shared_server().url())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut other = Self { child, output };
        other.run(&format!("set search_path = {schema}"));
        other
    }

    /// Sends a statement without waiting for its end.
    fn send(&mut self, statement: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{statement};\n\\echo done").unwrap();
        input.flush().unwrap();
    }

    /// Waits for the end of what was sent, and returns what it printed.
    fn end(&mut self) -> String {
        use std::io::BufRead;
        let mut text = String::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "psql ended after {text}");
            if line == "done\n" {
                return text.trim().to_owned();
            }
            text.push_str(&line);
        }
    }

    fn run(&mut self, statement: &str) -> String {
        self.send(statement);
        self.end()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits until a connection of the store waits for a lock.
fn until_blocked(schema: &str, count: u64) {
    let query = format!(
        "select count(*) from pg_stat_activity where application_name like 'tympan {schema} %' \
         and wait_event_type = 'Lock'"
    );
    wait_until("a lock is waited for", || {
        PostgresServer::shared_server().run_sql(&query).parse::<u64>().unwrap() >= count
    });
}

fn sql(options: &PostgresOptions, text: &str) -> String {
    PostgresServer::shared_server().run_sql(&text.replace("{}", &options.schema))
}

/// Passes bytes on between a store and the server, until it is told to cut the connection at a commit.
struct Proxy {
    port: u16,
    cut: Arc<Mutex<Cut>>,
    /// The port of the server for new connections.
    target: Arc<AtomicU16>,
    /// Whether nothing more passes from the store to the server, on connections that stand.
    hangs: Arc<Mutex<bool>>,
}

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Nowhere,
    /// The server never sees the commit.
    BeforeCommit,
    /// The server commits, and the store never sees the answer.
    AfterCommit,
    /// The same, and from then on no new connection comes through.
    Everything,
    /// No new connection comes through.
    Closed,
    /// The server never sees the commit, and nobody is told: the connection stands, and nothing more passes.
    Hang,
}

impl Proxy {
    fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(Mutex::new(Cut::Nowhere));
        let target = Arc::new(AtomicU16::new(server_port));
        let (shared, server_port) = (Arc::clone(&cut), Arc::clone(&target));
        let hangs = Arc::new(Mutex::new(false));
        let hanging = Arc::clone(&hangs);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if *shared.lock().unwrap() == Cut::Closed {
                    continue;
                }
                let server = ("127.0.0.1", server_port.load(Ordering::SeqCst));
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let is_silent = Arc::new(AtomicBool::new(false));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (cut, silent) = (Arc::clone(&shared), Arc::clone(&is_silent));
                let hangs = Arc::clone(&hanging);
                std::thread::spawn(move || forward(from, to, (&cut, &hangs), &silent));
                std::thread::spawn(move || backward(server, client, &is_silent));
            }
        });
        Self { port, cut, target, hangs }
    }

    /// Leads new connections to another server.
    fn lead_to(&self, server_port: u16) {
        self.target.store(server_port, Ordering::SeqCst);
    }

    fn cut(&self, at: Cut) {
        *self.cut.lock().unwrap() = at;
    }

    fn is_cut(&self) -> bool {
        *self.cut.lock().unwrap() == Cut::Nowhere
    }

    /// Lets nothing more pass, or lets new connections pass again.
    fn hang(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    (cut, hangs): (&Mutex<Cut>, &Mutex<bool>),
    silent: &AtomicBool,
) {
    let mut is_hanging = false;
    let mut bytes = [0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let is_commit = bytes[..read].windows(6).any(|word| word == b"COMMIT");
        let at = if is_commit {
            let mut cut = cut.lock().unwrap();
            let then = if *cut == Cut::Closed { Cut::Closed } else { Cut::Nowhere };
            std::mem::replace(&mut *cut, then)
        } else {
            Cut::Nowhere
        };
        match at {
            Cut::BeforeCommit => break,
            Cut::AfterCommit => {
                silent.store(true, Ordering::SeqCst);
                to.write_all(&bytes[..read]).ok();
                // The answer comes before the end of the connection, and goes nowhere.
                continue;
            }
            Cut::Everything => {
                *cut.lock().unwrap() = Cut::Closed;
                silent.store(true, Ordering::SeqCst);
                to.write_all(&bytes[..read]).ok();
                continue;
            }
            Cut::Hang => {
                is_hanging = true;
                continue;
            }
            Cut::Nowhere | Cut::Closed => {}
        }
        if is_hanging || *hangs.lock().unwrap() {
            is_hanging = true;
            continue;
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}

fn backward(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut bytes = [0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if silent.load(Ordering::SeqCst) || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
    from.shutdown(Shutdown::Both).ok();
}

#[test]
fn a_commit_whose_connection_is_lost_is_done_once() {
    let server = PostgresServer::shared_server();
    let proxy = Proxy::start(server.port());
    let options = PostgresOptions { url: server.url_at(proxy.port), ..postgres_options() };
    let store = open(&options);
    let mut current = None;
    for (round, at) in [Cut::BeforeCommit, Cut::AfterCommit, Cut::AfterCommit, Cut::BeforeCommit]
        .into_iter()
        .enumerate()
    {
        proxy.cut(at);
        current = Some(try_move(&store, "main", current, &format!("round {round}")).unwrap());
        assert!(proxy.is_cut(), "{at:?}: the connection has been cut");
        assert_eq!(store.read_ref("main").unwrap(), current);
        assert_eq!(store.ref_history("main", None, 100).unwrap().len(), round + 1);
    }
    assert!(store.counters().outcome_lookups >= 4, "{:?}", store.counters());
    // Without a move, the same is done once more.
    proxy.cut(Cut::AfterCommit);
    let id = store_body(&store, "unreferenced");
    assert!(proxy.is_cut() && has(&store, id));
    // Who lost against another one learns that, too.
    proxy.cut(Cut::AfterCommit);
    let other = PostgresStore::open(PostgresOptions { url: server.url(), ..options }).unwrap();
    try_move(&other, "main", current, "another").unwrap();
    assert!(matches!(try_move(&store, "main", current, "late"), Err(Error::RefMoved { .. })));
}

#[test]
fn an_outcome_that_cannot_be_asked_for_is_reported_as_unknown_and_found_later() {
    let server = PostgresServer::shared_server();
    let proxy = Proxy::start(server.port());
    let wait = Duration::from_secs(1);
    let options = PostgresOptions {
        url: server.url_at(proxy.port),
        wait_timeout: wait,
        ..postgres_options()
    };
    let store = open(&options);
    let first = try_move(&store, "main", None, "first").unwrap();
    proxy.cut(Cut::Everything);
    let error = try_move(&store, "main", Some(first), "second").unwrap_err();
    assert!(matches!(&error, Error::OutcomeUnknown { name } if name == "main"), "{error}");
    assert!(!error.is_transient(), "trying again is no answer");
    proxy.cut(Cut::Nowhere);
    // The commit went through, and the store finds that out by itself.
    let mut batch = ChunkBatch::new();
    let second = body_of(&mut batch, "second");
    wait_until("the store has the ref", || store.read_ref("main").ok() == Some(Some(second)));
    assert_eq!(store.ref_history("main", None, 10).unwrap().len(), 2);
    try_move(&store, "main", Some(second), "third").unwrap();
}

/// Options with which a server that says nothing is given up soon.
fn impatient(proxy: &Proxy) -> PostgresOptions {
    let second = Duration::from_secs(1);
    let url = PostgresServer::shared_server().url_at(proxy.port);
    PostgresOptions { url, wait_timeout: second, statement_timeout: second, ..postgres_options() }
}

#[test]
fn a_commit_that_is_never_answered_is_done_once() {
    let proxy = Proxy::start(PostgresServer::shared_server().port());
    let store = open(&impatient(&proxy));
    let first = try_move(&store, "main", None, "first").unwrap();
    proxy.cut(Cut::Hang);
    let second = try_move(&store, "main", Some(first), "second").unwrap();
    assert!(proxy.is_cut(), "the commit met a connection that hangs");
    assert_eq!(store.read_ref("main").unwrap(), Some(second));
    assert_eq!(store.ref_history("main", None, 10).unwrap().len(), 2);
}

#[test]
fn a_server_that_says_nothing_is_an_error_that_passes() {
    let proxy = Proxy::start(PostgresServer::shared_server().port());
    let store = open(&impatient(&proxy));
    let first = try_move(&store, "main", None, "first").unwrap();
    store.ping().unwrap();
    proxy.hang(true);
    for error in [
        store.ping().unwrap_err(),
        store.ref_history("main", None, 10).unwrap_err(),
        store.repository_identity().unwrap_err(),
        try_move(&store, "main", Some(first), "second").unwrap_err(),
    ] {
        let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
        assert!(error.is_transient() || is_unknown, "{error:?}");
    }
    proxy.hang(false);
    wait_until("the store reads again", || store.ref_history("main", None, 10).is_ok());
    store.ping().unwrap();
}

/// Lets four writers, whose refs are below a name, commit while `strike` does something to the server; it gets a function that waits until they have gone
/// on. What was acknowledged is there afterwards, each once, in order.
fn while_writing(store: &Arc<PostgresStore>, below: &str, strike: impl FnOnce(&dyn Fn())) {
    let acknowledged = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, acknowledged, is_over) =
                (Arc::clone(store), Arc::clone(&acknowledged), Arc::clone(&is_over));
            let name = format!("{below}/{writer}");
            std::thread::spawn(move || {
                let mut done = Vec::new();
                let mut current = None;
                while !is_over.load(Ordering::SeqCst) {
                    let text = format!("{name} {}", done.len());
                    match try_move(&*store, &name, current, &text) {
                        Ok(id) => {
                            current = Some(id);
                            done.push(id);
                            acknowledged.fetch_add(1, Ordering::SeqCst);
                        }
                        // Only what is not done may be told as an error here: the server is back within the wait.
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                }
                (name, done)
            })
        })
        .collect();
    let go_on = || {
        let before = acknowledged.load(Ordering::SeqCst);
        wait_until("commits go on", || acknowledged.load(Ordering::SeqCst) > before + 20);
    };
    strike(&go_on);
    go_on();
    is_over.store(true, Ordering::SeqCst);
    for writer in writers {
        let (name, done) = writer.join().unwrap();
        let history = store.ref_history(&name, None, 100_000).unwrap();
        let found: Vec<_> = history.iter().rev().filter_map(|one| one.update.new_root).collect();
        assert_eq!(found, done, "each once, in order");
    }
    wait_until("refs are followed again", || store.is_ref_cache_live());
}

#[test]
fn a_server_that_falls_and_rises_loses_nothing() {
    let mut server = PostgresServer::start(&["max_connections=40"]);
    let options = PostgresOptions {
        url: server.url(),
        wait_timeout: Duration::from_secs(30),
        ..postgres_options()
    };
    let store = Arc::new(open(&options));
    while_writing(&store, "writer", |go_on| {
        for _ in 0..2 {
            go_on();
            server.kill();
            server.restart();
        }
    });
}

#[test]
fn a_standby_that_takes_over_has_all_that_was_acknowledged() {
    let mut primary = PostgresServer::start(&["max_connections=40"]);
    let proxy = Proxy::start(primary.port());
    let options = PostgresOptions {
        url: primary.url_at(proxy.port),
        wait_timeout: PATIENCE,
        ..postgres_options()
    };
    let store = Arc::new(open(&options));
    for reign in ["first", "second"] {
        let standby = primary.start_standby();
        primary.run_sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        primary.run_sql("SELECT pg_reload_conf()");
        let waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        wait_until("the standby is waited for", || primary.run_sql(waits) == "1");
        while_writing(&store, reign, |go_on| {
            go_on();
            primary.kill();
            standby.promote();
            proxy.lead_to(standby.port());
        });
        primary = standby;
    }
    let third = open(&PostgresOptions { url: primary.url(), ..options });
    assert_eq!(third.list_refs().unwrap(), store.list_refs().unwrap());
    collect(&third);
}

#[test]
fn a_pool_that_is_used_up_says_so_and_recovers() {
    let options = PostgresOptions {
        max_connections: 5,
        wait_timeout: Duration::from_millis(200),
        ..postgres_options()
    };
    let store = open(&options);
    let first = try_move(&store, "main", None, "first").unwrap();
    let mut other = Other::connect(&options.schema);
    other.run("begin; select 1 from ref where name = 'main' for update");
    let (busy, late) = (AtomicU64::new(0), AtomicU64::new(0));
    let error = Mutex::new(None);
    std::thread::scope(|scope| {
        for writer in 0..500 {
            let (store, busy, late, error) = (&store, &busy, &late, &error);
            scope.spawn(move || {
                let fault = try_move(store, "main", Some(first), &writer.to_string()).unwrap_err();
                assert!(fault.is_transient(), "{fault}");
                if matches!(fault, Error::ConnectionsBusy { .. }) {
                    busy.fetch_add(1, Ordering::SeqCst);
                    *error.lock().unwrap() = Some(fault.to_string());
                } else {
                    // It had a connection, and the ref did not come free.
                    late.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    other.run("rollback");
    let (busy, late) = (busy.into_inner(), late.into_inner());
    assert!(busy > 0 && late >= 5 && busy + late == 500, "{busy} {late}");
    assert_eq!(store.counters().busy_rejections, busy);
    assert_eq!(store.read_ref("main").unwrap(), Some(first), "nothing was done");
    let error = error.lock().unwrap().take().unwrap();
    assert!(
        error.contains("all 5 database connections") && error.contains("`max_connections`"),
        "{error}"
    );
    // With the ref free, all of them go through.
    std::thread::scope(|scope| {
        for writer in 0..50 {
            let store = &store;
            scope.spawn(move || append(store, &writer.to_string()).unwrap());
        }
    });
    assert_eq!(store.ref_history("main", None, 100).unwrap().len(), 51);
}

#[test]
fn more_connections_than_the_server_has_are_refused_at_the_start() {
    let server = PostgresServer::start(&["max_connections=23", "superuser_reserved_connections=3"]);
    let options = PostgresOptions { url: server.url(), max_connections: 7, ..postgres_options() };
    let first = open(&options);
    let second = open(&options);
    let error = PostgresStore::open(options.clone()).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::TooManyConnections { requested: 10, in_use: 20, server_limit: 20 }),
        "{error}"
    );
    drop(second);
    drop(open(&options));
    drop(first);
}

#[test]
fn the_server_is_known_by_its_certificate() {
    let server = PostgresServer::start(&["ssl=on"]);
    let other = PostgresServer::start(&["ssl=on"]);
    let url = |host: &str| format!("postgres://tympan@{host}:{}/postgres", server.port());
    let check = |host: &str, certificate: &std::path::Path| {
        let tls_ca = Some(certificate.to_owned());
        let options = PostgresOptions { url: url(host), tls_ca, ..postgres_options() };
        let store = PostgresStore::open(options.clone())?;
        try_move(&store, "main", None, "content")?;
        let encrypted = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) \
                         where not ssl and application_name like 'tympan {} %'";
        let plain = server.run_sql(&encrypted.replace("{}", &options.schema));
        assert_eq!(plain, "0", "every connection is encrypted");
        Ok::<(), Error>(())
    };
    // The certificate's file belongs to the server's user, and tests of another user may not read it.
    let readable = tempfile::tempdir().unwrap();
    let copy = |server: &PostgresServer, name: &str| {
        let file = readable.path().join(name);
        std::fs::copy(server.authority_file(), &file).unwrap();
        file
    };
    let (own, foreign) = (copy(&server, "own.crt"), copy(&other, "foreign.crt"));
    check("localhost", &own).unwrap();
    assert!(check("127.0.0.1", &own).is_err(), "the name is another");
    assert!(check("localhost", &foreign).is_err(), "the certificate is another");
}

#[test]
fn a_newer_format_is_refused_with_advice() {
    let options = postgres_options();
    let store = open(&options);
    let id = try_move(&store, "main", None, "kept").unwrap();
    drop(store);
    // Once more finds what is there.
    assert_eq!(open(&options).read_ref("main").unwrap(), Some(id));
    sql(&options, "update {}.format set version = 3");
    let error = PostgresStore::open(options).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::StateDatabaseNewer { applied_steps: 3, known_steps: 2, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("newer program"), "{error}");
}

#[test]
fn a_flipped_bit_is_named_and_never_served() {
    let options = postgres_options();
    let store = open(&options);
    let id = try_move(&store, "main", None, "content").unwrap();
    sql(&options, "update {}.chunk set data = set_byte(data, 9, get_byte(data, 9) # 1)");
    assert!(
        matches!(store.read_chunk(&id), Err(Error::ChunkDamaged { id: found, .. }) if found == id)
    );
    assert!(store.write_failure().is_some());
    assert!(matches!(try_move(&store, "main", Some(id), "more"), Err(Error::WriteDisabled { .. })));
    assert_eq!(store.read_ref("main").unwrap(), Some(id), "reading goes on");
}

#[test]
fn calls_from_an_async_thread_block_and_do_not_panic() {
    let options = postgres_options();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&options);
        let id = try_move(&store, "main", None, "content").unwrap();
        assert_eq!(store.read_ref("main").unwrap(), Some(id));
        drop(store);
    });
}

#[test]
fn moves_of_one_process_are_known_in_the_other() {
    let options = postgres_options();
    let (one, two) = (open(&options), open(&options));
    wait_until("both listen", || one.is_ref_cache_live() && two.is_ref_cache_live());
    let mut current = None;
    for n in 0..20 {
        let (from, to) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        current = Some(try_move(from, "main", current, &n.to_string()).unwrap());
        assert_eq!(from.read_ref("main").unwrap(), current, "its own move at once");
        wait_until("the other knows", || to.read_ref("main").unwrap() == current);
    }
    // Connections are lost, and what moved meanwhile is read again.
    let listens = "select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen%' \
                   and application_name like 'tympan {} %'";
    sql(&options, listens);
    current = Some(try_move(&one, "main", current, "meanwhile").unwrap());
    assert_eq!(one.read_ref("main").unwrap(), current);
    wait_until("the other knows", || two.read_ref("main").unwrap() == current);
    wait_until("both listen again", || one.is_ref_cache_live() && two.is_ref_cache_live());
    remove_ref(&one, "main");
    wait_until("the other knows", || two.list_refs().unwrap().is_empty());
}

#[test]
fn a_commit_that_meets_a_sweep_saves_its_chunks() {
    let options = postgres_options();
    let store = open(&options);
    let dropped: Vec<ChunkId> =
        (0..20).map(|n| store_body(&store, &format!("dropped {n}"))).collect();
    let mut collection = store.begin_collection(&thorough()).unwrap();
    assert!(collection.mark_live(&mut go_on).unwrap().is_continue());
    assert!(collection.list_condemned(&mut go_on).unwrap().is_continue());
    // A proposal only: they still count, and one that a ref takes up now is saved when the list takes effect.
    assert!(store.contains_chunks(&dropped).unwrap().iter().all(|is_there| *is_there));
    let first = try_move(&store, "first", None, "dropped 0").unwrap();
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moves("known", None, Some(dropped[1])));
    store.commit(batch).unwrap();
    let hold = store.begin_hold().unwrap();
    assert!(has(&store, dropped[2]));
    collection.activate_condemned().unwrap();
    let left = store.contains_chunks(&dropped).unwrap();
    assert_eq!(left.iter().filter(|is_there| **is_there).count(), 3, "{left:?}");
    assert!(left[..3].iter().all(|is_there| *is_there));
    // From here on they are as good as gone: a ref to one is refused, a commit that brings it saves it.
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moves("late", None, Some(dropped[3])));
    assert!(matches!(store.commit(batch), Err(Error::ChunkMissing { .. })));
    let saved = try_move(&store, "saved", None, "dropped 4").unwrap();
    assert!(has(&store, saved));
    let mut swept = 0;
    while let more @ 1.. = collection.sweep_rows(5).unwrap() {
        swept += more;
        // Some have gone, and come back as new ones.
        try_move(&store, &format!("back {swept}"), None, &format!("dropped {}", 4 + swept))
            .unwrap();
    }
    let found = collection.finish_collection().unwrap();
    assert!(found.freed_bytes > 0, "{found:?}");
    for id in [first, dropped[1], dropped[2], saved] {
        store.read_chunk(&id).unwrap();
    }
    for (name, root) in store.list_refs().unwrap() {
        assert!(store.read_chunk(&root).is_ok(), "{name}");
    }
    drop(hold);
    collect(&store);
    assert!(!has(&store, dropped[2]));
}

#[test]
fn a_commit_in_the_middle_is_waited_for_and_seen() {
    let options = postgres_options();
    let store = open(&options);
    let base = try_move(&store, "main", None, "base").unwrap();
    let dropped = store_body(&store, "dropped");
    let mut collection = store.begin_collection(&thorough()).unwrap();
    assert!(collection.mark_live(&mut go_on).unwrap().is_continue());
    assert!(collection.list_condemned(&mut go_on).unwrap().is_continue());
    // A writer has begun and waits for its ref; the list cannot take effect before it is done.
    let mut other = Other::connect(&options.schema);
    other.run("begin; select 1 from ref where name = 'main' for update");
    let effect = std::thread::scope(|scope| {
        let writer = scope.spawn(|| try_move(&store, "main", Some(base), "dropped").unwrap());
        until_blocked(&options.schema, 1);
        let effect = scope.spawn(|| {
            collection.activate_condemned().unwrap();
            collection
        });
        until_blocked(&options.schema, 2);
        other.run("rollback");
        assert_eq!(writer.join().unwrap(), dropped);
        effect.join().unwrap()
    });
    let mut collection = effect;
    while collection.sweep_rows(10).unwrap() > 0 {}
    collection.finish_collection().unwrap();
    assert_eq!(store.read_ref("main").unwrap(), Some(dropped));
    store.read_chunk(&dropped).unwrap();
}

#[test]
fn a_sweep_passes_by_what_a_commit_is_saving() {
    let options = postgres_options();
    let store = open(&options);
    let base = try_move(&store, "main", None, "base").unwrap();
    let (saved, gone) = (store_body(&store, "saved"), store_body(&store, "gone"));
    let mut collection = store.begin_collection(&thorough()).unwrap();
    assert!(collection.mark_live(&mut go_on).unwrap().is_continue());
    assert!(collection.list_condemned(&mut go_on).unwrap().is_continue());
    collection.activate_condemned().unwrap();
    let mut other = Other::connect(&options.schema);
    other.run("begin; select 1 from ref where name = 'main' for update");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| try_move(&store, "main", Some(base), "saved").unwrap());
        until_blocked(&options.schema, 1);
        assert_eq!(collection.sweep_rows(10).unwrap(), 1, "only what no commit is saving");
        other.run("rollback");
        assert_eq!(writer.join().unwrap(), saved);
    });
    assert_eq!(collection.sweep_rows(10).unwrap(), 0);
    collection.finish_collection().unwrap();
    store.read_chunk(&saved).unwrap();
    assert!(store.read_chunk(&gone).is_err());
}

#[test]
fn a_commit_waits_for_a_sweep_and_stores_anew() {
    let options = postgres_options();
    let store = open(&options);
    let id = store_body(&store, "content");
    let mut collection = store.begin_collection(&thorough()).unwrap();
    assert!(collection.mark_live(&mut go_on).unwrap().is_continue());
    assert!(collection.list_condemned(&mut go_on).unwrap().is_continue());
    collection.activate_condemned().unwrap();
    // The sweep of another process has taken the row, and is not done.
    let mut other = Other::connect(&options.schema);
    other.run("begin; delete from chunk where hash in (select hash from condemned); delete from condemned");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| try_move(&store, "main", None, "content").unwrap());
        until_blocked(&options.schema, 1);
        other.run("commit");
        assert_eq!(writer.join().unwrap(), id);
    });
    collection.finish_collection().unwrap();
    assert_eq!(store.read_chunks(&[id]).unwrap().len(), 1);
}

#[test]
fn a_collection_that_dies_is_taken_over() {
    for steps in 0..=4 {
        let options = postgres_options();
        let (one, two) = (open(&options), open(&options));
        let kept = try_move(&one, "main", None, "kept").unwrap();
        let dropped: Vec<ChunkId> =
            (0..10).map(|n| store_body(&one, &format!("dropped {n}"))).collect();
        let mut collection = one.begin_collection(&thorough()).unwrap();
        if steps > 0 {
            assert!(collection.mark_live(&mut go_on).unwrap().is_continue());
        }
        if steps > 1 {
            assert!(collection.list_condemned(&mut go_on).unwrap().is_continue());
        }
        if steps > 2 {
            collection.activate_condemned().unwrap();
        }
        if steps > 3 {
            assert_eq!(collection.sweep_rows(4).unwrap(), 4);
        }
        assert!(matches!(two.begin_collection(&thorough()), Err(Error::CollectionRunning)));
        drop(collection);
        // A proposal is forgotten: what was taken up since stays. What took effect is finished.
        let taken_up = (steps <= 2).then(|| try_move(&two, "taken up", None, "dropped 9").unwrap());
        wait_until("the server has seen the end", || {
            !matches!(
                two.collect_garbage(&thorough(), &mut |_| ControlFlow::Continue(())),
                Err(Error::CollectionRunning)
            )
        });
        let left = two.contains_chunks(&dropped).unwrap();
        assert_eq!(left.iter().any(|is_there| *is_there), taken_up.is_some(), "{steps}: {left:?}");
        for root in taken_up.into_iter().chain([kept]) {
            one.read_chunks(&[root]).unwrap();
        }
        assert_eq!(sql(&options, "select count(*) from {}.condemned"), "0");
    }
}

#[test]
fn what_another_process_keeps_stays() {
    let options = PostgresOptions {
        heartbeat_interval: Duration::from_millis(50),
        process_timeout: Duration::from_secs(600),
        ..postgres_options()
    };
    let (one, two) = (open(&options), open(&options));
    let pinned = try_move(&one, "main", None, "pinned").unwrap();
    let found = store_body(&one, "found");
    let pin = one.pin_root(pinned);
    let hold = one.begin_hold().unwrap();
    assert!(has(&one, found));
    let stored = store_body(&one, "stored");
    remove_ref(&one, "main");
    wait_until("the pin is published", || sql(&options, "select count(*) from {}.pin") == "1");
    collect(&two);
    collect(&two);
    assert_eq!(two.contains_chunks(&[pinned, found, stored]).unwrap(), [true, true, true]);
    drop((pin, hold));
    wait_until("the ends are published", || {
        sql(&options, "select (select count(*) from {}.pin) + (select count(*) from {}.hold)")
            == "0"
    });
    collect(&two);
    assert_eq!(two.contains_chunks(&[pinned, found, stored]).unwrap(), [false, false, false]);
}

#[test]
fn a_state_that_was_replaced_just_now_stays_for_readers_that_are_not_known_yet() {
    let options = postgres_options();
    let lenient = PostgresOptions { grace_period: Duration::from_secs(600), ..options.clone() };
    let (one, two) = (open(&options), open(&lenient));
    let old = try_move(&one, "main", None, "old").unwrap();
    let pin = one.pin_root(old);
    try_move(&one, "main", Some(old), "new").unwrap();
    collect(&two);
    one.read_chunks(&[pin.root()]).unwrap();
    drop(pin);
    collect(&one);
    assert!(!has(&one, old));
}

#[test]
fn a_process_that_was_taken_for_dead_writes_no_more_if_it_kept_something() {
    for keeps in [true, false] {
        let options = postgres_options();
        let (one, two) = (open(&options), open(&options));
        let root = try_move(&one, "main", None, "content").unwrap();
        let pin = keeps.then(|| one.pin_root(root));
        sql(
            &options,
            "update {}.process set seen = now() - interval '1 day' where id = (select min(id) from {}.process)",
        );
        collect(&two);
        let moved = try_move(&one, "main", Some(root), "more");
        if keeps {
            assert!(matches!(moved, Err(Error::WriteDisabled { .. })), "{moved:?}");
            one.read_chunk(&root).unwrap();
        } else {
            moved.unwrap();
            assert_eq!(one.write_failure(), None);
        }
        drop(pin);
    }
}

#[test]
fn a_folder_beside_the_process_saves_round_trips_and_hides_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let near =
        ChunkDiskCacheOptions { dir: dir.path().join("near"), max_size: ByteSize::from_kib(400) };
    let options = PostgresOptions { disk_cache: Some(near), ..postgres_options() };
    let ids: Vec<ChunkId> = {
        let store = open(&options);
        let ids = (0..20)
            .map(|n| store_body(&store, &format!("{n} {}", "x".repeat(900))))
            .collect::<Vec<_>>();
        store.read_chunks(&ids).unwrap();
        assert_eq!(store.counters().chunks_read, 20);
        ids
    };
    let store = open(&options);
    store.read_chunks(&ids).unwrap();
    store.read_chunk(&ids[3]).unwrap();
    assert_eq!(store.counters().read_round_trips, 0, "all of them were at hand");
    drop(store);
    // Damage beside the process is a chunk that is not there.
    for half in std::fs::read_dir(dir.path().join("near")).unwrap().flatten() {
        for file in std::fs::read_dir(half.path()).unwrap().flatten() {
            let mut bytes = std::fs::read(file.path()).unwrap();
            bytes.iter_mut().skip(200).step_by(50).for_each(|byte| *byte ^= 0x55);
            std::fs::write(file.path(), bytes).unwrap();
        }
    }
    let store = open(&options);
    assert_eq!(store.read_chunks(&ids).unwrap().len(), 20);
    assert!(store.counters().chunks_read > 0);
    assert_eq!(store.write_failure(), None);
    // It holds no more than it may.
    for n in 0..60 {
        let mut batch = ChunkBatch::new();
        let mut numbers = crate::map_model::Numbers(n);
        let bytes: Vec<u8> =
            (0..2_000).flat_map(|_| numbers.below(u64::MAX).to_le_bytes()).collect();
        let id = body::write_body(&mut batch, &bytes, &[]).unwrap();
        store.commit(batch).unwrap();
        let mut waiting = vec![id];
        while !waiting.is_empty() {
            let chunks = store.read_chunks(&waiting).unwrap();
            waiting =
                chunks.iter().flat_map(|chunk| chunk.chunk_refs().collect::<Vec<_>>()).collect();
        }
    }
    let mut total = 0;
    for half in std::fs::read_dir(dir.path().join("near")).unwrap().flatten() {
        total += std::fs::read_dir(half.path())
            .unwrap()
            .flatten()
            .map(|file| file.metadata().unwrap().len())
            .sum::<u64>();
    }
    assert!(total < 500 << 10, "{total}");
}

/// For how long writers are tortured; a longer form is run with this set to seconds.
const LENGTH: &str = "TYMPAN_POSTGRES_SECONDS";
/// Tells the second process of a test where to write.
const SECOND: &str = "TYMPAN_POSTGRES_SECOND";

/// Appends a line to the log that `main` names: a chain of bodies, each of which names the one before. Returns when that
/// is acknowledged.
fn append(store: &dyn ChunkStore, line: &str) -> Result<(), Error> {
    loop {
        let current = store.read_ref("main")?;
        let mut batch = ChunkBatch::new();
        let text = current.map_or_else(String::new, |current| current.to_string());
        let id = body_of(&mut batch, &format!("{text} {line}"));
        let message = line.to_owned();
        batch.add_ref_update(RefUpdate { message, ..moves("main", current, Some(id)) });
        match store.commit(batch) {
            Err(Error::RefMoved { .. }) => {}
            Err(error) if error.is_transient() => {}
            result => return result,
        }
    }
}

/// Writes with 32 threads until it is killed; says after each commit what is acknowledged.
#[test]
fn the_second_of_two_processes() {
    let Ok(place) = std::env::var(SECOND) else {
        return;
    };
    let (url, schema) = place.split_once(' ').unwrap();
    let options = PostgresOptions {
        url: url.to_owned(),
        schema: schema.to_owned(),
        wait_timeout: PATIENCE,
        ..postgres_options_without_server()
    };
    let store = open(&options);
    std::thread::scope(|scope| {
        for writer in 0..32 {
            let store = &store;
            scope.spawn(move || {
                for n in 0.. {
                    append(store, &format!("second-{writer}-{n}")).unwrap();
                    let line = format!("acknowledged second-{writer}-{n}\n");
                    // One write for one line, past what the test harness captures.
                    std::io::stderr().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

fn postgres_options_without_server() -> PostgresOptions {
    PostgresOptions { max_connections: 8, ..PostgresOptions::new("") }
}

#[test]
fn two_processes_of_which_one_is_killed_lose_nothing() {
    let seconds = std::env::var(LENGTH).ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let length = Duration::from_secs(seconds);
    let options =
        PostgresOptions { wait_timeout: PATIENCE, max_connections: 8, ..postgres_options() };
    let store = open(&options);
    let mut second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "postgres::the_second_of_two_processes", "--nocapture"])
        .env(SECOND, format!("{} {}", options.url, options.schema))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(second.stderr.take().unwrap());
    let acknowledged = Mutex::new(Vec::new());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            use std::io::BufRead;
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("acknowledged ") {
                    acknowledged.lock().unwrap().push(line.to_owned());
                }
            }
        });
        for writer in 0..32 {
            let (store, acknowledged, is_over) = (&store, &acknowledged, &is_over);
            scope.spawn(move || {
                for n in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    let line = format!("first-{writer}-{n}");
                    append(store, &line).unwrap();
                    acknowledged.lock().unwrap().push(line);
                }
            });
        }
        let count = |word: &str| {
            acknowledged.lock().unwrap().iter().filter(|line| line.starts_with(word)).count()
        };
        let start = Instant::now();
        wait_until("both write", || count("first") > 20 && count("second") > 20);
        wait_until("half of the time has passed", || start.elapsed() > length / 2);
        second.kill().unwrap();
        second.wait().unwrap();
        listener.join().unwrap();
        let before = count("first");
        wait_until("the other goes on", || {
            count("first") > before + 20 && start.elapsed() > length
        });
        is_over.store(true, Ordering::SeqCst);
    });
    let history = store.ref_history("main", None, usize::MAX).unwrap();
    for pair in history.windows(2) {
        assert_eq!(
            pair[0].update.expected_root, pair[1].update.new_root,
            "each from the one before"
        );
    }
    let mut written: Vec<&str> = history.iter().map(|one| one.update.message.as_str()).collect();
    let total = written.len();
    written.sort_unstable();
    written.dedup();
    assert_eq!(written.len(), total, "none twice");
    let acknowledged = acknowledged.into_inner().unwrap();
    for line in &acknowledged {
        assert!(written.binary_search(&line.as_str()).is_ok(), "{line} is lost");
    }
    // At most what was under way when the process was killed was done without a word.
    assert!(total - acknowledged.len() <= 32, "{total} {}", acknowledged.len());
    let third = open(&options);
    assert_eq!(third.list_refs().unwrap(), store.list_refs().unwrap());
    assert_eq!(store.read_ref("main").unwrap(), history[0].update.new_root);
    collect(&third);
    third.read_chunk(&history[0].update.new_root.unwrap()).unwrap();
    println!("{total} commits of two processes in {seconds} s, none lost, none twice");
}
