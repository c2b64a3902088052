//! A site at work for an hour: visitors read, editors save and activate, assets come and go; what the process takes of the
//! machine stays as it is, and nobody gets an error.
//!
//! `TYMPAN_SOAK_SECONDS` sets how long; `make torture ROOM=program` asks for an hour. Times are printed and never judged
//! here. What is kept is judged in runs of ten minutes or more: before, caches are still filling.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::program::{Demo, ask, basic, get};

/// Spans into which a run is divided, each with a line of its own.
const SPANS: u32 = 12;
/// Runs from this length on are judged by what they keep.
const JUDGED: Duration = Duration::from_secs(600);
/// Assets that are stored in turn, each with other bytes every time.
const ASSETS: usize = 20;
const EDITORS: usize = 2;

fn length() -> Duration {
    let seconds = std::env::var("TYMPAN_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(12))
}

/// Times of answers since they were looked at last.
#[derive(Default)]
struct Times(Mutex<Vec<Duration>>);

impl Times {
    fn add(&self, one: Duration) {
        self.0.lock().unwrap().push(one);
    }

    /// Takes the times and returns how many there were, their median and the 99th percentile, in milliseconds.
    fn take(&self) -> (usize, f64, f64) {
        let mut times = std::mem::take(&mut *self.0.lock().unwrap());
        times.sort_unstable();
        let at = |share: usize| {
            times.get(times.len() * share / 100).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
        };
        (times.len(), at(50), at(99))
    }
}

/// What a process takes of the machine.
#[derive(Clone, Copy, Debug)]
struct Taken {
    memory_kib: u64,
    files: usize,
    threads: u64,
}

impl Taken {
    fn by(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        Self { memory_kib: number("VmRSS:"), files, threads: number("Threads:") }
    }
}

/// Finds the pages that a site's start page leads to.
fn pages(demo: &Demo) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut new = vec!["/content/wayfare/en.html".to_owned()];
    while let Some(page) = new.pop() {
        if found.len() >= 60 || !found.insert(page.clone()) {
            continue;
        }
        let answer = get(demo.publish, &page);
        assert_eq!(answer.status, 200, "{page}");
        let text = answer.text();
        let links = text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        new.extend(
            links
                .filter(|link| link.starts_with("/content/wayfare/en") && link.ends_with(".html"))
                // Pages alone: an editor saves what is named before the dot.
                .filter(|link| link.matches('.').count() == 1)
                .map(str::to_owned),
        );
    }
    assert!(found.len() > 20, "{found:?}");
    found.into_iter().collect()
}

/// Returns a picture that no other number has: what stands behind the end of a JPEG is no part of the picture.
fn picture(number: usize) -> Vec<u8> {
    let known = "site/content/dam/wayfare/culture/loom.jpg/_jcr_content/renditions/original";
    let mut bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(known)).unwrap();
    bytes.extend(number.to_le_bytes());
    bytes
}

/// The end of the work, which everybody is told.
#[derive(Default)]
struct WorkEnd {
    is_over: Mutex<bool>,
    told: Condvar,
}

impl WorkEnd {
    fn is_over(&self) -> bool {
        *self.is_over.lock().unwrap()
    }

    /// Lets time pass between two pieces of work, but no longer than there is work.
    fn pause(&self, time: Duration) {
        let is_over = self.is_over.lock().unwrap();
        drop(self.told.wait_timeout_while(is_over, time, |is_over| !*is_over).unwrap());
    }
}

/// Ends the work when it goes.
struct EndOnDrop<'a>(&'a WorkEnd);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        *self.0.is_over.lock().unwrap() = true;
        self.0.told.notify_all();
    }
}

struct Site<'a> {
    demo: &'a Demo,
    pages: &'a [String],
    end: WorkEnd,
    visits: Times,
    saves: Times,
    seed: AtomicU64,
}

impl Site<'_> {
    fn any_page(&self) -> &str {
        // A step that is prime to every number of pages, mixed: nothing that two threads do in step.
        let number = self.seed.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.pages[(number >> 33) as usize % self.pages.len()]
    }

    fn timed(&self, times: &Times, act: impl FnOnce() -> u16, what: &str) {
        let begun = Instant::now();
        let status = act();
        times.add(begun.elapsed());
        assert!((200..300).contains(&status), "{what}: {status}");
    }

    fn visit(&self, address: SocketAddr) {
        while !self.end.is_over() {
            let page = self.any_page();
            self.timed(&self.visits, || get(address, page).status, page);
            self.end.pause(Duration::from_millis(5));
        }
    }

    fn edit(&self, editor: usize) {
        for number in 0_u32.. {
            if self.end.is_over() {
                break;
            }
            // Who saves the same property at the same moment as somebody else is told of a conflict.
            let own = self.pages.iter().skip(editor).step_by(EDITORS);
            let page = own.cycle().nth(number as usize * 7 % self.pages.len()).unwrap();
            let page = page.trim_end_matches(".html");
            let form = format!("./jcr:description=Editor+{editor},+edit+{number}");
            let content = format!("{page}/jcr:content");
            self.timed(&self.saves, || self.demo.post(&content, &form).status, page);
            if number % 2 == 0 {
                let status = self.demo.post(page, ":operation=activate").status;
                assert!((200..300).contains(&status), "{page}: {status}");
            }
            self.end.pause(Duration::from_millis(200));
        }
    }

    fn upload(&self) {
        let headers = [
            ("Authorization", basic("admin", self.demo.password())),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "multipart/form-data; boundary=b".to_owned()),
        ];
        for number in 0.. {
            if self.end.is_over() {
                break;
            }
            let mut form = format!(
                "--b\r\nContent-Disposition: form-data; name=\":operation\"\r\n\r\ncreateasset\r\n\
                 --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"soak-{}.jpg\"\r\n\
                 Content-Type: image/jpeg\r\n\r\n",
                number % ASSETS
            )
            .into_bytes();
            form.extend(picture(number));
            form.extend(b"\r\n--b--\r\n");
            let folder = "/content/dam/wayfare";
            let stored = ask(self.demo.author, "POST", folder, &headers, &form).unwrap();
            assert!((200..300).contains(&stored.status), "{}", stored.text());
            self.end.pause(Duration::from_millis(1_500));
        }
    }
}

#[test]
fn a_site_at_work_keeps_what_it_takes() {
    let length = length();
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let pid = demo.running.pid();
    let pages = pages(&demo);
    let site = Site {
        demo: &demo,
        pages: &pages,
        end: WorkEnd::default(),
        visits: Times::default(),
        saves: Times::default(),
        seed: AtomicU64::new(1),
    };
    let mut spans = Vec::new();
    std::thread::scope(|scope| {
        // Also when the test fails.
        let _end = EndOnDrop(&site.end);
        let mut working = Vec::new();
        for address in [demo.dispatcher, demo.dispatcher, demo.dispatcher, demo.publish] {
            working.push(scope.spawn({
                let site = &site;
                move || site.visit(address)
            }));
        }
        for editor in 0..EDITORS {
            working.push(scope.spawn({
                let site = &site;
                move || site.edit(editor)
            }));
        }
        working.push(scope.spawn(|| site.upload()));
        for span in 1..=SPANS {
            let end = Instant::now() + length / SPANS;
            while Instant::now() < end && !working.iter().any(|one| one.is_finished()) {
                site.end.pause(Duration::from_millis(50));
            }
            let taken = Taken::by(pid);
            let ((visits, median, last), (saves, save, slow)) =
                (site.visits.take(), site.saves.take());
            eprintln!(
                "{span:2}: {visits} visits {median:.1}/{last:.1} ms, {saves} saves {save:.1}/{slow:.1} ms, {} MiB, {} files, {} threads",
                taken.memory_kib / 1024,
                taken.files,
                taken.threads,
            );
            assert!(visits > 0 && saves > 0, "the site stands still");
            spans.push(taken);
        }
    });
    let (middle, last) = (spans[spans.len() / 2], spans[spans.len() - 1]);
    if length >= JUDGED {
        assert!(last.memory_kib < middle.memory_kib * 5 / 4, "memory grows: {spans:?}");
    }
    // Connections of the moment and packs of history are some; what leaks with each request would be thousands.
    assert!(last.files < spans[0].files + 200, "files stay open: {spans:?}");
    assert!(last.threads < spans[0].threads + 200, "threads stay: {spans:?}");
}
