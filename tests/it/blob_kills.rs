//! What stores blobs is killed at any moment while files are uploaded: the author, the server of the bucket that its blobs
//! go to, and those who send. Every upload that was acknowledged is there afterwards, nothing refers to what is not, and
//! nothing of an upload that broke off is seen.
//!
//! `TYMPAN_KILLS` sets how often; `make torture ROOM=blobs` asks for the full count.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tympan_testkit::bucket_server::{BucketServer, ProxyFault, start_faulty_proxy};
use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, ask, basic, free_address, post, run_ok, tympan};

const FOLDER: &str = "/content/kills";
/// Acknowledged uploads that are read again after a kill: the last ones, and as many of those before. All are at the end.
const READ_AGAIN: usize = 20;

/// How often something is killed; `TYMPAN_KILLS` says another number.
fn kills() -> usize {
    std::env::var("TYMPAN_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

/// Returns the bytes of an upload, by its number. Every second one is in several sizes, none is small.
fn upload(number: usize) -> Vec<u8> {
    let length = 17_000 + number * 7_919 % 150_000;
    (0..length).map(|at| (at * 31 + number * 7) as u8 ^ (at >> 8) as u8).collect()
}

fn path_of(number: usize) -> String {
    format!("{FOLDER}/{number}.bin")
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

struct Author {
    home: PathBuf,
    address: SocketAddr,
    password: String,
    running: Option<Running>,
}

impl Author {
    /// Starts an author with the folder that takes the uploads.
    fn start(home: &Path) -> Self {
        let mut author = Self {
            home: home.to_owned(),
            address: free_address(),
            password: String::new(),
            running: None,
        };
        author.start_again();
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
        author.password = password.trim().to_owned();
        let made = post(author.address, &author.password, FOLDER, "jcr:primaryType=sling:Folder");
        assert!((200..300).contains(&made.status), "{}", made.text());
        author
    }

    fn start_again(&mut self) {
        let (home, address) = (text(&self.home), self.address.to_string());
        self.running = Some(Running::start(&["author", "--home", home, "--listen", &address]));
    }

    fn kill(&mut self) {
        self.running.take().unwrap().kill();
    }

    fn stop(&mut self) {
        assert!(self.running.take().unwrap().stop());
    }

    fn pid(&self) -> u32 {
        self.running.as_ref().unwrap().pid()
    }

    /// Puts a file; whether that was acknowledged.
    fn put(&self, number: usize) -> bool {
        let headers = [("Authorization", basic("admin", &self.password))];
        ask(self.address, "PUT", &path_of(number), &headers, &upload(number))
            .is_ok_and(|answer| (200..300).contains(&answer.status))
    }

    /// Begins to put a file and goes away in the middle of its bytes, as a sender does that is killed.
    fn put_half(&self, name: &str) {
        let bytes = upload(1);
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "PUT {FOLDER}/{name} HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            basic("admin", &self.password),
            bytes.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&bytes[..bytes.len() / 2]).unwrap();
    }

    fn get(&self, path: &str) -> crate::program::Answer {
        let headers = [("Authorization", basic("admin", &self.password))];
        ask(self.address, "GET", path, &headers, b"").unwrap()
    }

    fn check(&self, number: usize) {
        let path = path_of(number);
        let answer = self.get(&path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(answer.body == upload(number), "{path} has other bytes");
    }

    /// Checks the repository and its blobs, every byte of them; nothing runs on it.
    fn check_whole(&self) {
        let home = text(&self.home);
        let said = run_ok(&["repo", "check", "--home", home]);
        assert!(said.contains("clean"), "{said}");
        run_ok(&["blobs", "check", "--rehash", "--home", home]);
    }
}

/// Uploads by three senders until so many are acknowledged; then `strike` kills something, and they go on until `more`
/// others are acknowledged, or until each has been refused. Returns the numbers of those that were.
fn send(
    author: &Author,
    next: &AtomicUsize,
    (wanted, more): (usize, usize),
    strike: impl FnOnce(),
) -> Vec<usize> {
    let done = AtomicUsize::new(0);
    let is_enough = AtomicBool::new(false);
    let wait = |count: usize, is_over: &dyn Fn() -> bool| {
        wait_until("uploads go on", || done.load(Ordering::SeqCst) >= count || is_over());
    };
    std::thread::scope(|scope| {
        let sending: Vec<_> = (0..3)
            .map(|_| {
                let (done, is_enough) = (&done, &is_enough);
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    while !is_enough.load(Ordering::SeqCst) {
                        let number = next.fetch_add(1, Ordering::SeqCst);
                        if author.put(number) {
                            taken.push(number);
                            done.fetch_add(1, Ordering::SeqCst);
                        } else if TcpStream::connect(author.address).is_err() {
                            break;
                        }
                    }
                    taken
                })
            })
            .collect();
        wait(wanted, &|| sending.iter().all(|one| one.is_finished()));
        assert!(done.load(Ordering::SeqCst) >= wanted, "the author is gone before it was killed");
        strike();
        wait(wanted + more, &|| sending.iter().all(|one| one.is_finished()));
        is_enough.store(true, Ordering::SeqCst);
        sending.into_iter().flat_map(|one| one.join().unwrap()).collect()
    })
}

/// Kills an author again and again while it takes uploads; returns it, running, and what it acknowledged.
fn author_is_killed(home: &Path) -> (Author, Vec<usize>) {
    let mut author = Author::start(home);
    let next = AtomicUsize::new(0);
    let mut acknowledged = Vec::new();
    for round in 0..kills() {
        author.put_half(&format!("half-{round}.bin"));
        let pid = author.pid();
        let taken = send(&author, &next, (4 + round * 3 % 7, usize::MAX / 2), || kill(pid));
        author.kill();
        acknowledged.extend(taken);
        author.start_again();
        read_again(&author, &acknowledged, round);
    }
    (author, acknowledged)
}

/// Reads the last acknowledged uploads, and others, which are others each time.
fn read_again(author: &Author, acknowledged: &[usize], round: usize) {
    let (before, last) = acknowledged.split_at(acknowledged.len().saturating_sub(READ_AGAIN));
    let step = (before.len() / READ_AGAIN).max(1);
    for number in last.iter().chain(before.iter().skip(round % step).step_by(step)) {
        author.check(*number);
    }
    let half = author.get(&format!("{FOLDER}/half-{round}.bin"));
    assert_eq!(half.status, 404, "an upload that broke off is seen");
}

fn read_all(author: &Author, acknowledged: &[usize]) {
    eprintln!("{} acknowledged uploads, all there", acknowledged.len());
    acknowledged.iter().for_each(|number| author.check(*number));
}

/// Writes where blobs go: a bucket behind an address.
fn configure(home: &Path, bucket: SocketAddr, staging: u8) {
    std::fs::create_dir_all(home).unwrap();
    let text = format!(
        "[blobs]\nroles = \"own\"\n[[blobs.delegates]]\nrole = \"own\"\ns3Bucket = \"blobs\"\n\
         s3EndPoint = \"http://{bucket}\"\naccessKey = \"ann\"\nsecretKey = \"secret\"\n\
         stagingSplitPercentage = {staging}\nstagingRetryInterval = \"100ms\"\n",
    );
    std::fs::write(home.join("tympan.toml"), text).unwrap();
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// Waits until a home's staged blobs are in the bucket, and takes away what this machine's disk has of it: that does not
/// count.
fn only_the_bucket(author: &mut Author) {
    let upload = author.home.join("blob-cache/own/upload");
    wait_until("staged blobs are uploaded", || {
        std::fs::read_dir(&upload).unwrap().next().is_none()
    });
    author.stop();
    std::fs::remove_dir_all(author.home.join("blob-cache")).unwrap();
}

/// The author is killed, and its bucket answers with faults.
fn survives_faults(staging: u8) {
    let is_honest = Arc::new(AtomicBool::new(false));
    let Some(server) = BucketServer::start_moto(&tools()) else { return };
    let honest = is_honest.clone();
    let proxy = start_faulty_proxy(server.addr(), move |number, _| {
        if honest.load(Ordering::SeqCst) {
            return ProxyFault::Forward;
        }
        match number % 12 {
            3 => ProxyFault::Status(500),
            7 => ProxyFault::DropResponse,
            11 => ProxyFault::RefuseConnection,
            _ => ProxyFault::Forward,
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    configure(&home, proxy.addr(), staging);
    let (mut author, acknowledged) = author_is_killed(&home);
    is_honest.store(true, Ordering::SeqCst);
    only_the_bucket(&mut author);
    author.check_whole();
    author.start_again();
    read_all(&author, &acknowledged);
}

#[test]
fn uploads_to_a_folder_survive_kills() {
    let dir = tempfile::tempdir().unwrap();
    let (mut author, acknowledged) = author_is_killed(&dir.path().join("author"));
    read_all(&author, &acknowledged);
    author.stop();
    author.check_whole();
}

#[test]
fn uploads_that_wait_for_the_bucket_survive_kills() {
    survives_faults(0);
}

#[test]
fn staged_uploads_survive_kills() {
    survives_faults(50);
}

/// The bucket's server is killed, and every third time the author with it.
fn survives_kills_of_the_server(staging: u8) {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut server) = BucketServer::start_gateway(&tools(), &dir.path().join("bucket")) else {
        return;
    };
    let home = dir.path().join("author");
    configure(&home, server.addr(), staging);
    let mut author = Author::start(&home);
    let next = AtomicUsize::new(0);
    let mut acknowledged = Vec::new();
    for round in 0..kills() {
        let is_both = round % 3 == 2;
        author.put_half(&format!("half-{round}.bin"));
        let pid = author.pid();
        let taken = send(&author, &next, (4 + round * 3 % 7, 3), || {
            server.kill();
            if is_both {
                kill(pid);
            }
            server.restart();
        });
        acknowledged.extend(taken);
        if is_both {
            author.kill();
            author.start_again();
        }
        read_again(&author, &acknowledged, round);
    }
    only_the_bucket(&mut author);
    author.check_whole();
    author.start_again();
    read_all(&author, &acknowledged);
}

#[test]
fn uploads_survive_kills_of_the_buckets_server() {
    survives_kills_of_the_server(0);
}

#[test]
fn staged_uploads_survive_kills_of_the_buckets_server() {
    survives_kills_of_the_server(50);
}

/// Starts to promote what a stopped home has to another one.
fn promote(from: &Path, to: &Path) -> Child {
    let arguments = ["blobs", "promote", FOLDER, "--to", text(to), "--home", text(from)];
    tympan().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns the names and lengths of the blobs that lie in a home's folder, as those see it who read blobs.
fn blobs(home: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![home.join("blobs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() && name.len() == 2 {
                folders.push(path);
            } else if name.len() == 64 {
                found.push((name, entry.metadata().unwrap().len()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn blobs_whose_sender_is_killed_are_there_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let [sender, receiver] = ["sender", "receiver"].map(|name| dir.path().join(name));
    let mut author = Author::start(&sender);
    let count = 30;
    (0..count).for_each(|number| assert!(author.put(number)));
    author.stop();
    Author::start(&receiver).stop();
    let whole = blobs(&sender);
    assert_eq!(whole.len(), count);
    assert!(promote(&sender, &receiver).wait().unwrap().success());
    assert_eq!(blobs(&receiver), whole);
    for round in 0..kills() {
        std::fs::remove_dir_all(receiver.join("blobs")).unwrap();
        let mut sending = promote(&sender, &receiver);
        // Anywhere between its start and its end: at a number of blobs that have arrived.
        let arrived = round * 37 % count;
        wait_until("blobs arrive", || {
            blobs(&receiver).len() >= arrived || sending.try_wait().unwrap().is_some()
        });
        sending.kill().unwrap();
        sending.wait().unwrap();
        for one in blobs(&receiver) {
            assert!(whole.contains(&one), "{one:?} is none of the sender's");
        }
        assert!(promote(&sender, &receiver).wait().unwrap().success());
        assert_eq!(blobs(&receiver), whole);
    }
    run_ok(&["blobs", "check", "--rehash", "--home", text(&receiver)]);
}
