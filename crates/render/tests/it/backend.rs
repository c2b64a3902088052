//! Pages over another system: slow, dead, broken, and asked by a crowd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tympan_content::NodePath;
use tympan_render::{
    BackendClient, BackendConfig, BackendRegistry, FragmentCache, FragmentCacheOptions,
    ReadRecording, RenderOptions, RenderRequest, Renderer, RequestFacts,
};

use crate::site::{Site, body_text, component};

/// A back end of the test: counts requests, and fails or waits as told.
#[derive(Debug, Default)]
struct Legacy {
    requests: AtomicUsize,
    /// What was sent: address and body.
    sent: Mutex<Vec<(String, String)>>,
    is_dead: AtomicBool,
    answer: Mutex<String>,
    /// What addresses that never answer end in.
    hanging: Mutex<Option<&'static str>>,
    /// The time that each request was given.
    timeouts: Mutex<Vec<Duration>>,
    /// While held, requests wait.
    held: Mutex<bool>,
    released: Condvar,
}

#[derive(Debug)]
struct Wire(Arc<Legacy>);

impl BackendClient for Wire {
    fn fetch(&self, url: &str, timeout: Duration, _: usize) -> Result<Vec<u8>, String> {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        self.0.timeouts.lock().push(timeout);
        let hanging = *self.0.hanging.lock();
        let mut held = self.0.held.lock();
        if hanging.is_some_and(|end| url.ends_with(end)) {
            while !self.0.released.wait_for(&mut held, timeout).timed_out() {}
            return Err("no answer in time".to_owned());
        }
        while *held {
            self.0.released.wait(&mut held);
        }
        if self.0.is_dead.load(Ordering::SeqCst) {
            return Err("connection refused".to_owned());
        }
        let answer = self.0.answer.lock().clone();
        Ok(answer.replace("URL", url).into_bytes())
    }

    fn post_json(&self, url: &str, body: &[u8], _: Duration, _: usize) -> Result<Vec<u8>, String> {
        if self.0.is_dead.load(Ordering::SeqCst) {
            return Err("connection refused".to_owned());
        }
        let body = String::from_utf8(body.to_vec()).unwrap();
        self.0.sent.lock().push((url.to_owned(), body));
        Ok(b"{\"ok\": true}".to_vec())
    }
}

const TEMPLATE: &str = "<h1>Status</h1>{% set order = data(\"legacy\", \"/orders/\" ~ properties.order|urlencode) %}\
    {% if order %}<p>{{ order.state }}, {{ order.steps|length }} steps</p>{% else %}<p>Not known now.</p>{% endif %}<footer>x</footer>";

struct Shop {
    site: Site,
    renderer: Renderer,
    legacy: Arc<Legacy>,
    back_ends: Arc<BackendRegistry>,
}

fn shop(change: impl FnOnce(&mut BackendConfig)) -> Shop {
    let site = Site::empty();
    site.script("/apps/t/status/status.html.j2", TEMPLATE);
    site.put("/content/a", component("a", "t/status").with_property("order", "7"));
    let legacy = Arc::new(Legacy::default());
    *legacy.answer.lock() =
        "{\"state\": \"<sent>\", \"steps\": [1, 2], \"url\": \"URL\"}".to_owned();
    let mut back_end = BackendConfig::new("http://127.0.0.1:1/api/");
    change(&mut back_end);
    let places = BTreeMap::from([("legacy".to_owned(), back_end)]);
    let back_ends = Arc::new(BackendRegistry::new(places, Box::new(Wire(Arc::clone(&legacy)))));
    let renderer = Renderer::new(&site.repository, RenderOptions::default())
        .with_backends(Arc::clone(&back_ends));
    Shop { site, renderer, legacy, back_ends }
}

impl Shop {
    fn get(&self, path: &str) -> String {
        let snapshot = self.site.repository.snapshot().unwrap();
        body_text(&self.renderer.render(&snapshot, &RenderRequest::get(path)))
    }

    fn requests(&self) -> usize {
        self.legacy.requests.load(Ordering::SeqCst)
    }
}

const SENT: &str = "<h1>Status</h1><p>&lt;sent&gt;, 2 steps</p><footer>x</footer>";
const UNKNOWN: &str = "<h1>Status</h1><p>Not known now.</p><footer>x</footer>";

#[test]
fn a_page_shows_what_the_back_end_says_and_asks_once() {
    let shop = shop(|_| {});
    assert_eq!(shop.get("/content/a.html"), SENT);
    assert_eq!(shop.get("/content/a.html"), SENT);
    assert_eq!(shop.requests(), 1);
}

#[test]
fn a_dead_back_end_leaves_the_page_with_its_placeholder() {
    let shop = shop(|back_end| back_end.retry_after = Duration::from_secs(3600));
    shop.legacy.is_dead.store(true, Ordering::SeqCst);
    for _ in 0..20 {
        assert_eq!(shop.get("/content/a.html"), UNKNOWN);
    }
    assert_eq!(shop.requests(), 5, "after five failures it is left alone");
    shop.legacy.is_dead.store(false, Ordering::SeqCst);
    assert_eq!(shop.get("/content/a.html"), UNKNOWN);
    let counts = shop.back_ends.counts();
    assert_eq!((counts[0].1.failures, counts[0].1.unanswered), (5, 21));
}

#[test]
fn an_older_copy_stands_in_and_a_back_end_that_recovers_is_used_again() {
    let shop = shop(|back_end| {
        back_end.max_age = Duration::ZERO;
        back_end.retry_after = Duration::ZERO;
    });
    assert_eq!(shop.get("/content/a.html"), SENT);
    shop.legacy.is_dead.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        assert_eq!(shop.get("/content/a.html"), SENT);
    }
    shop.legacy.is_dead.store(false, Ordering::SeqCst);
    *shop.legacy.answer.lock() = "{\"state\": \"new\", \"steps\": []}".to_owned();
    assert_eq!(shop.get("/content/a.html"), "<h1>Status</h1><p>new, 0 steps</p><footer>x</footer>");
}

#[test]
fn answers_that_are_no_json_count_as_failures() {
    let shop = shop(|_| {});
    *shop.legacy.answer.lock() = "<html>".to_owned();
    assert_eq!(shop.get("/content/a.html"), UNKNOWN);
}

#[test]
fn what_authors_type_cannot_leave_the_base() {
    let shop = shop(|_| {});
    shop.site.script(
        "/apps/t/echo/echo.html.j2",
        "{{ data(\"legacy\", \"/\" ~ properties.order|urlencode).url }}",
    );
    shop.site.script(
        "/apps/t/raw/raw.html.j2",
        "[{{ data(\"legacy\", \"/\" ~ properties.order).url }}]",
    );
    shop.site.script("/apps/t/other/other.html.j2", "[{{ data(\"other\", \"/\") }}]");
    for (name, kind) in [("echo", "t/echo"), ("raw", "t/raw"), ("other", "t/other")] {
        let typed = if name == "raw" { "../admin" } else { "a/b?x=//evil#" };
        let node = component(name, kind).with_property("order", typed);
        shop.site.put(&format!("/content/{name}"), node);
    }
    assert_eq!(shop.get("/content/echo.html"), "http://127.0.0.1:1/api/a%2Fb%3Fx%3D%2F%2Fevil%23");
    assert!(shop.get("/content/raw.html").contains("cannot be shown"));
    assert!(shop.get("/content/other.html").contains("cannot be shown"));
    assert_eq!(shop.requests(), 1);
}

#[test]
fn a_crowd_asks_once() {
    let shop = shop(|back_end| back_end.timeout = Duration::from_secs(600));
    *shop.legacy.held.lock() = true;
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..16).map(|_| scope.spawn(|| shop.get("/content/a.html"))).collect();
        // All but the one that asks wait, or have not come yet; those that come later find the answer.
        while shop.back_ends.counts()[0].1.waiting_renders < 3 {
            std::thread::yield_now();
        }
        *shop.legacy.held.lock() = false;
        shop.legacy.released.notify_all();
        for one in crowd {
            assert_eq!(one.join().unwrap(), SENT);
        }
    });
    assert_eq!(shop.requests(), 1);
}

#[test]
fn what_shows_a_back_end_is_rendered_again_and_has_an_end() {
    let shop = shop(|back_end| back_end.max_age = Duration::from_secs(7));
    shop.site.script("/apps/t/frame/frame.html.j2", "<b>{{ include(\"/content/a\") }}</b>");
    shop.site.put("/content/plain", component("plain", "t/plain"));
    shop.site.script("/apps/t/plain/plain.html.j2", "plain");
    shop.site.put("/content/frame", component("frame", "t/frame"));
    shop.site.edit(|session| {
        let apps = NodePath::new("/apps").unwrap();
        session.set_property(&apps, "cache", "always".into()).unwrap();
    });
    let fragments = FragmentCache::new(FragmentCacheOptions::default());
    let renderer = shop.renderer.with_fragments(Arc::clone(&fragments));
    let get = |path| {
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(path) };
        renderer.render(&shop.site.repository.snapshot().unwrap(), &request)
    };
    for round in 0..3 {
        let drawn = get("/content/frame.html");
        assert_eq!(body_text(&drawn), format!("<b>{SENT}</b>"));
        assert_eq!(drawn.headers, [("cache-control", "max-age=7".to_owned())]);
        let hits = u32::from(round > 0);
        assert_eq!(drawn.fragment_counts.hits, hits, "what holds it is kept, and it is not");
        assert!(drawn.reads.facts.intersects(RequestFacts::TIME));
    }
    assert_eq!(fragments.report(0).fragment_count, 1);
    // Also what shows nothing for now.
    shop.legacy.is_dead.store(true, Ordering::SeqCst);
    shop.site.put("/content/a", component("a", "t/status").with_property("order", "8"));
    let drawn = get("/content/frame.html");
    assert_eq!(body_text(&drawn), format!("<b>{UNKNOWN}</b>"));
    assert_eq!(drawn.headers, [("cache-control", "max-age=7".to_owned())]);
    get("/content/plain.html");
    let plain = get("/content/plain.html");
    assert_eq!((plain.headers.len(), plain.fragment_counts.hits), (0, 1));
}

#[test]
fn a_response_without_lifetime_is_cached_by_nobody() {
    for (max_age, is_kept) in [(0, false), (999, false), (1_000, true)] {
        let shop = shop(|back_end| back_end.max_age = Duration::from_millis(max_age));
        let request = RenderRequest {
            recording: ReadRecording::Paths,
            ..RenderRequest::get("/content/a.html")
        };
        let drawn = shop.renderer.render(&shop.site.repository.snapshot().unwrap(), &request);
        assert_eq!(body_text(&drawn), SENT);
        assert_eq!(drawn.reads.is_uncacheable(), !is_kept);
        let expected: &[(&str, &str)] = match is_kept {
            true => &[("cache-control", "max-age=1")],
            false => &[("cache-control", "no-store"), ("dispatcher", "no-cache")],
        };
        let headers: Vec<(&str, &str)> =
            drawn.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(headers, expected, "{max_age} ms");
    }
}

/// Posts a form to the page, which sends it on.
fn post(shop: &Shop, form: &str) -> String {
    let snapshot = shop.site.repository.snapshot().unwrap();
    let request = RenderRequest { method: "POST", form, ..RenderRequest::get("/content/a.html") };
    body_text(&shop.renderer.render(&snapshot, &request))
}

const POST: &str = "{% set answer = send(\"legacy\", \"/orders/7/steps\", request.form) %}\
    {% if answer %}kept: {{ answer.ok }}{% else %}not kept{% endif %}";

#[test]
fn what_is_sent_is_sent_once_and_outdates_what_was_known() {
    let shop = shop(|_| {});
    shop.site.script("/apps/t/status/status.POST.j2", POST);
    assert_eq!(shop.get("/content/a.html"), SENT);
    *shop.legacy.answer.lock() = "{\"state\": \"new\", \"steps\": []}".to_owned();
    assert_eq!(shop.get("/content/a.html"), SENT, "known");
    assert_eq!(post(&shop, "step=1&name=%3Cb%3E&x=1&x=2"), "kept: true");
    let sent = shop.legacy.sent.lock().clone();
    let address = "http://127.0.0.1:1/api/orders/7/steps".to_owned();
    let body = "{\"step\":\"1\",\"name\":\"<b>\",\"x\":[\"1\",\"2\"]}";
    let body_read: serde_json::Value = serde_json::from_str(&sent[0].1).unwrap();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, address);
    assert_eq!(body_read, serde_json::from_str::<serde_json::Value>(body).unwrap());
    assert!(shop.get("/content/a.html").contains("new"), "asked again after something was sent");
    shop.legacy.is_dead.store(true, Ordering::SeqCst);
    assert_eq!(post(&shop, "step=2"), "not kept");
    assert_eq!(shop.legacy.sent.lock().len(), 1);
}

#[test]
fn pages_that_only_display_send_nothing() {
    let shop = shop(|_| {});
    shop.site.script("/apps/t/status/status.html.j2", POST);
    assert_eq!(
        shop.renderer
            .render(
                &shop.site.repository.snapshot().unwrap(),
                &RenderRequest { form: "step=1", ..RenderRequest::get("/content/a.html") },
            )
            .outcome,
        tympan_render::RenderOutcome::Error
    );
    assert!(shop.legacy.sent.lock().is_empty());
}

#[test]
fn waiting_requests_share_a_response_that_is_not_cached() {
    let shop = Arc::new(shop(|back_end| {
        back_end.max_age = Duration::ZERO;
        back_end.timeout = Duration::from_secs(60);
    }));
    *shop.legacy.held.lock() = true;
    let visitors: Vec<_> = (0..8)
        .map(|_| {
            let shop = Arc::clone(&shop);
            std::thread::spawn(move || shop.get("/content/a.html"))
        })
        .collect();
    while shop.back_ends.counts()[0].1.waiting_renders < 7 {
        std::thread::yield_now();
    }
    *shop.legacy.held.lock() = false;
    shop.legacy.released.notify_all();
    for visitor in visitors {
        assert_eq!(visitor.join().unwrap(), SENT);
    }
    assert_eq!(shop.requests(), 1);
    assert_eq!(shop.get("/content/a.html"), SENT);
    assert_eq!(shop.requests(), 2, "nothing is kept");
}

#[test]
fn an_address_that_hangs_is_left_alone_though_others_answer() {
    let shop = shop(|back_end| {
        back_end.max_age = Duration::ZERO;
        back_end.timeout = Duration::from_millis(20);
        back_end.retry_after = Duration::from_secs(3600);
    });
    *shop.legacy.hanging.lock() = Some("/7");
    shop.site.put("/content/b", component("b", "t/status").with_property("order", "8"));
    for _ in 0..10 {
        assert_eq!(shop.get("/content/a.html"), UNKNOWN);
        assert_eq!(shop.get("/content/b.html"), SENT);
    }
    assert_eq!(shop.requests(), 1 + 10, "the one that hangs was asked once");
    let counts = shop.back_ends.counts();
    assert_eq!((counts[0].1.failures, counts[0].1.unanswered), (1, 10));
}

#[test]
fn an_address_that_hung_is_tried_again() {
    let shop = shop(|back_end| {
        back_end.timeout = Duration::from_millis(20);
        back_end.retry_after = Duration::ZERO;
    });
    *shop.legacy.hanging.lock() = Some("/7");
    assert_eq!(shop.get("/content/a.html"), UNKNOWN);
    *shop.legacy.hanging.lock() = None;
    assert_eq!(shop.get("/content/a.html"), SENT);
    assert_eq!(shop.requests(), 2);
}

#[test]
fn no_more_than_some_renders_wait_for_a_back_end() {
    let shop = shop(|back_end| {
        back_end.timeout = Duration::from_secs(600);
        back_end.max_connections = 1;
    });
    *shop.legacy.held.lock() = true;
    std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..40).map(|_| scope.spawn(|| shop.get("/content/a.html"))).collect();
        let counts = || shop.back_ends.counts()[0].1;
        while counts().waiting_renders + counts().unanswered < 39 {
            std::thread::yield_now();
        }
        let (waiting, refused) = (counts().waiting_renders, counts().unanswered);
        *shop.legacy.held.lock() = false;
        shop.legacy.released.notify_all();
        assert_eq!((waiting, refused), (32, 7));
        let shown: Vec<String> = crowd.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(shown.iter().filter(|page| *page == UNKNOWN).count(), 7);
    });
    assert_eq!(shop.requests(), 1);
}

#[test]
fn the_wait_for_a_turn_is_part_of_the_time() {
    let whole = Duration::from_secs(600);
    let shop = shop(|back_end| {
        back_end.timeout = whole;
        back_end.max_connections = 1;
    });
    shop.site.put("/content/b", component("b", "t/status").with_property("order", "8"));
    *shop.legacy.held.lock() = true;
    std::thread::scope(|scope| {
        let first = scope.spawn(|| shop.get("/content/a.html"));
        while shop.requests() < 1 {
            std::thread::yield_now();
        }
        let second = scope.spawn(|| shop.get("/content/b.html"));
        while shop.back_ends.counts()[0].1.waiting_renders < 1 {
            std::thread::yield_now();
        }
        *shop.legacy.held.lock() = false;
        shop.legacy.released.notify_all();
        assert_eq!([first.join().unwrap(), second.join().unwrap()], [SENT, SENT]);
    });
    let timeouts = shop.legacy.timeouts.lock().clone();
    assert_eq!(timeouts.len(), 2);
    assert!(timeouts[1] < whole, "{timeouts:?}");
}
