//! Many flushes at once, windows, and pages that are fetched again by themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, front};

/// An origin that tells how often it was asked.
fn counting() -> OriginServer {
    let count = AtomicU64::new(0);
    OriginServer::start(move |seen| {
        let version = count.fetch_add(1, Ordering::SeqCst) + 1;
        OriginResponse::html(format!("{} version {version}", seen.target))
    })
}

fn ask(front: &Front, target: &str) -> String {
    front.get(target).body
}

#[test]
fn every_flush_of_a_storm_is_carried_out() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 3");
    const FOLDERS: usize = 5;
    const PAGES: usize = 12;
    let name = |folder, page| format!("content/f{folder}/p{page}.html");
    for folder in 0..FOLDERS {
        for page in 0..PAGES {
            front.write(&name(folder, page), "old");
            front.write(&format!("content/f{folder}/p{page}.print.html"), "old");
            front.write(&format!("content/f{folder}/p{page}/_jcr_content/x.png"), "old");
            front.write(&format!("content/f{folder}/p{page}x.html"), "old");
        }
    }
    std::thread::scope(|scope| {
        for folder in 0..FOLDERS {
            let front = &front;
            scope.spawn(move || {
                for page in 0..PAGES {
                    let handle = format!("/content/f{folder}/p{page}");
                    assert_eq!(front.flush("Activate", &handle, &[]).status, 200);
                    // Carried out before it was answered, whoever else flushes meanwhile.
                    assert!(!front.has(&name(folder, page)));
                    assert!(!front.has(&format!("content/f{folder}/p{page}.print.html")));
                    assert!(!front.has(&format!("content/f{folder}/p{page}/_jcr_content")));
                }
            });
        }
    });
    for folder in 0..FOLDERS {
        assert!(front.has(&format!("content/f{folder}/.stat")));
        for page in 0..PAGES {
            assert!(front.has(&format!("content/f{folder}/p{page}x.html")), "only named files go");
        }
    }
    assert_eq!(front.metric("flushes_total"), (FOLDERS * PAGES) as u64);
}

#[test]
fn a_storm_of_mixed_flushes_leaves_what_one_after_the_other_leaves() {
    let run = |is_storm: bool| {
        let origin = counting();
        let front = front(&origin, "/statfileslevel 2");
        for name in ["a", "a.x", "b", "b/c", "b/d.e", "f", "f/g", "f.x.html/s"] {
            front.write(&format!("content/{name}.html"), "old");
        }
        let flushes = [
            ("Activate", "/content/a"),
            ("Delete", "/content/b"),
            ("Deactivate", "/content/f"),
            ("Activate", "/content/none"),
        ];
        std::thread::scope(|scope| {
            for (action, handle) in flushes {
                let front = &front;
                let flush = move || assert_eq!(front.flush(action, handle, &[]).status, 200);
                if is_storm {
                    scope.spawn(flush);
                } else {
                    flush();
                }
            }
        });
        (front.files(), front.stats())
    };
    let expected = run(false);
    for _ in 0..4 {
        assert_eq!(run(true), expected);
    }
}

#[test]
fn flushes_of_a_window_count_together_at_its_end() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 1 /x-flushWindow 10");
    // The clock stands still in tests; windows end at multiples of ten seconds.
    let second = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    front.advance(10 - second.as_secs() % 10);
    ask(&front, "/content/a.html");
    for _ in 0..5 {
        assert_eq!(front.flush("Activate", "/content/x", &[]).status, 200);
        assert!(front.get("/content/a.html").is_hit());
        front.advance(1);
    }
    assert_eq!(origin.request_count(), 1);
    front.advance(6);
    assert!(!front.get("/content/a.html").is_hit());
    assert_eq!(origin.request_count(), 2);
    front.advance(30);
    assert!(front.get("/content/a.html").is_hit());
    // The named files go at once.
    front.flush("Activate", "/content/a", &[]);
    assert!(!front.has("content/a.html"));
}

#[test]
fn hot_pages_are_fetched_again_by_themselves() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 1 /x-refetchHot 2");
    for (page, visits) in [("a", 9), ("b", 6), ("c", 3), ("cold", 1)] {
        for _ in 0..visits {
            ask(&front, &format!("/content/{page}.html"));
        }
    }
    assert_eq!(origin.request_count(), 4);
    front.flush("Activate", "/content/other", &[]);
    front.wait_for("refetches_total", 2);
    let refetched: Vec<String> = origin.requests().drain(4..).map(|seen| seen.target).collect();
    assert_eq!(refetched, ["/content/a.html", "/content/b.html"]);
    assert!(front.get("/content/a.html").is_hit());
    assert!(!front.get("/content/c.html").is_hit());
}

#[test]
fn a_hot_page_that_a_flush_names_is_served_until_it_is_replaced() {
    let is_held = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&is_held);
    let origin = OriginServer::start(move |seen| {
        let deadline = std::time::Instant::now() + tympan_testkit::origin_server::WAIT_TIMEOUT;
        while held.load(Ordering::SeqCst) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        OriginResponse::html(seen.target.clone())
    });
    let front = front(&origin, "/x-refetchHot 1");
    for _ in 0..4 {
        ask(&front, "/content/a.html");
    }
    is_held.store(true, Ordering::SeqCst);
    front.flush("Activate", "/content/a", &[]);
    assert!(front.has("content/a.html"));
    for _ in 0..3 {
        assert_eq!(ask(&front, "/content/a.html"), "/content/a.html");
    }
    is_held.store(false, Ordering::SeqCst);
    front.wait_for("refetches_total", 1);
    assert_eq!(origin.request_count(), 2);
    // A page that is gone is not fetched again.
    front.flush("Delete", "/content/a", &[]);
    assert!(!front.has("content/a.html"));
    assert_eq!(origin.request_count(), 2);
}

#[test]
fn the_budget_bounds_what_is_fetched_by_itself() {
    let origin = counting();
    let front = front(&origin, "/statfileslevel 1 /x-refetchHot 5 /x-refetchBudget 3");
    for page in 0..5 {
        for _ in 0..3 {
            ask(&front, &format!("/content/p{page}.html"));
        }
    }
    front.flush("Activate", "/content/x", &[]);
    front.wait_for("refetches_total", 3);
    front.flush("Activate", "/content/x", &[]);
    front.wait_for("refetch_queue", 0);
    front.wait_for("fetches", 0);
    assert_eq!(origin.request_count(), 5 + 3);
}
