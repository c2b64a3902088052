//! An author is killed at any moment while files are uploaded to it and on to a bucket that fails now and then: every
//! upload that it acknowledged is there afterwards, and nothing refers to what is not.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tympan_testkit::bucket_server::{BucketServer, Fault, faulty_proxy};
use tympan_testkit::origin::Origin;

use crate::program::{Running, ask, basic, free_address, post, run_ok};

const PATIENCE: Duration = Duration::from_secs(120);
const FOLDER: &str = "/content/kills";

/// How often the author is killed; `TYMPAN_KILLS` says another number.
fn kills() -> usize {
    std::env::var("TYMPAN_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3)
}

/// Returns the bytes of an upload, by its number. Every second one is in several sizes, none is small.
fn upload(number: usize) -> Vec<u8> {
    let length = 17_000 + number * 7_919 % 150_000;
    (0..length).map(|at| (at * 31 + number * 7) as u8 ^ (at >> 8) as u8).collect()
}

struct Author {
    home: PathBuf,
    address: SocketAddr,
    running: Option<Running>,
}

impl Author {
    fn start(home: &Path) -> Self {
        let mut author = Self { home: home.to_owned(), address: free_address(), running: None };
        author.start_again();
        author
    }

    fn start_again(&mut self) {
        let (home, address) = (self.home.to_str().unwrap(), self.address.to_string());
        self.running = Some(Running::start(&["author", "--home", home, "--listen", &address]));
    }

    fn password(&self) -> String {
        let password = std::fs::read_to_string(self.home.join("initial-password")).unwrap();
        password.trim().to_owned()
    }

    /// Puts a file; whether that was acknowledged.
    fn put(&self, password: &str, number: usize) -> bool {
        let path = format!("{FOLDER}/{number}.bin");
        let headers = [("Authorization", basic("admin", password))];
        ask(self.address, "PUT", &path, &headers, &upload(number))
            .is_ok_and(|answer| (200..300).contains(&answer.status))
    }

    fn check(&self, password: &str, number: usize) {
        let headers = [("Authorization", basic("admin", password))];
        let path = format!("{FOLDER}/{number}.bin");
        let answer = ask(self.address, "GET", &path, &headers, b"").unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(answer.body == upload(number), "{path} has other bytes");
    }
}

/// Starts a server of buckets behind a proxy that fails every fourth request, until it is told to be honest.
fn bucket(is_honest: &Arc<AtomicBool>) -> Option<(BucketServer, Origin)> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let server = BucketServer::moto(target.parent().unwrap())?;
    let is_honest = is_honest.clone();
    let proxy = faulty_proxy(server.addr(), move |number, _| {
        if is_honest.load(Ordering::SeqCst) {
            return Fault::Pass;
        }
        match number % 12 {
            3 => Fault::Status(500),
            7 => Fault::Unheard,
            11 => Fault::Refused,
            _ => Fault::Pass,
        }
    });
    Some((server, proxy))
}

fn configure(home: &Path, proxy: &Origin, staging: u8) {
    std::fs::create_dir_all(home).unwrap();
    let text = format!(
        "[blobs]\nroles = \"own\"\n[[blobs.delegates]]\nrole = \"own\"\ns3Bucket = \"blobs\"\n\
         s3EndPoint = \"http://{}\"\naccessKey = \"ann\"\nsecretKey = \"secret\"\n\
         stagingSplitPercentage = {staging}\nstagingRetryInterval = \"100ms\"\n",
        proxy.addr()
    );
    std::fs::write(home.join("tympan.toml"), text).unwrap();
}

fn survives(staging: u8) {
    let is_honest = Arc::new(AtomicBool::new(false));
    let Some((_server, proxy)) = bucket(&is_honest) else { return };
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    configure(&home, &proxy, staging);
    let mut author = Author::start(&home);
    let password = author.password();
    let made = post(author.address, &password, FOLDER, "jcr:primaryType=sling:Folder");
    assert!((200..300).contains(&made.status), "{}", made.text());
    let next = AtomicUsize::new(0);
    let mut acknowledged = Vec::new();
    for round in 0..kills() {
        let wanted = 4 + round * 3 % 7;
        let done = AtomicUsize::new(0);
        let taken = std::thread::scope(|scope| {
            let uploading: Vec<_> = (0..3)
                .map(|_| {
                    let (author, password, next, done) = (&author, &password, &next, &done);
                    scope.spawn(move || {
                        let mut taken = Vec::new();
                        // The first that is refused tells that the author is gone.
                        loop {
                            let number = next.fetch_add(1, Ordering::SeqCst);
                            if !author.put(password, number) {
                                return taken;
                            }
                            taken.push(number);
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            let begun = Instant::now();
            while done.load(Ordering::SeqCst) < wanted {
                assert!(begun.elapsed() < PATIENCE, "uploads do not go on");
                assert!(!uploading.iter().all(|one| one.is_finished()), "uploads are refused");
                std::thread::yield_now();
            }
            let pid = i32::try_from(author.running.as_ref().unwrap().pid()).unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            uploading.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        author.running.take().unwrap().kill();
        assert!(taken.len() >= wanted);
        acknowledged.extend(taken);
        author.start_again();
        for number in &acknowledged {
            author.check(&password, *number);
        }
    }
    is_honest.store(true, Ordering::SeqCst);
    let upload = home.join("blob-cache/own/upload");
    let begun = Instant::now();
    while std::fs::read_dir(&upload).unwrap().next().is_some() {
        assert!(begun.elapsed() < PATIENCE, "staged blobs are never uploaded");
        std::thread::yield_now();
    }
    assert!(author.running.take().unwrap().stop());
    // What the disk of this machine has does not count.
    std::fs::remove_dir_all(home.join("blob-cache")).unwrap();
    let said = run_ok(&["repo", "check", "--home", home.to_str().unwrap()]);
    assert!(said.contains("clean"), "{said}");
}

#[test]
fn uploads_that_wait_for_the_bucket_survive_kills() {
    survives(0);
}

#[test]
fn staged_uploads_survive_kills() {
    survives(50);
}
