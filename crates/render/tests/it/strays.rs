//! The ledger, drawings and edits that go on at the same time: no copy of a state that a step passes over stays old.
//!
//! `TYMPAN_INTERLEAVINGS` runs (40 unless set) of random steps are made, each compared with a map of what a cache holds.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tympan_content::{ChunkId, NodePath, Property, Repository, Session, Snapshot, Subtree, Value};
use tympan_render::ledger::{
    AffectedUrls, DependencyLedger, LedgerOptions, MIGRATIONS, RecordOutcome, RenderTicket,
    ResponseFingerprint,
};
use tympan_render::{
    ReadRecording, RenderMode, RenderOptions, RenderRequest, RenderResponse, Renderer,
};
use tympan_testkit::StateDatabase;

use crate::edits::Random;
use crate::site::{Site, body_text, component, page};

const NAV: &str = "/content/site/nav.html";
const LIST: &str = "/content/site/list.html";
const APPLE: &str = "/content/site/apple";
const URLS: [&str; 7] = [
    "/content/site/apple.html",
    "/content/site/pear.html",
    "/content/site/plum.html",
    "/content/site/later.html",
    "/content/site/apple.1.json",
    NAV,
    LIST,
];
const FRUITS: [&str; 3] = ["apple", "pear", "plum"];
const NOTHING: [&str; 0] = [];

/// What a drawing has to tell the ledger, and what a cache keeps of it.
struct Drawn {
    when: (RenderTicket, Option<ChunkId>),
    url: &'static str,
    answer: RenderResponse,
    look: Option<ResponseFingerprint>,
}

/// A publisher that draws while content changes, and a cache that is told by its flushes alone.
struct World {
    site: Site,
    renderer: Renderer,
    runtime: Runtime,
    folder: TempDir,
    ledger: DependencyLedger,
    /// Where the follower stands: its flushes up to here are stored.
    place: Snapshot,
    cached: BTreeMap<&'static str, String>,
    named: usize,
    in_vain: usize,
}

impl World {
    fn new() -> Self {
        let site = Site::with_limits(RenderMode::Publish, tympan_render::RenderLimits::default());
        site.script("/apps/test/page/page.html.j2", "{{ page.title }} {{ properties.text }}");
        site.script(
            "/apps/test/nav/nav.html.j2",
            "{% for one in nav(\"/content/site\") %}{{ one.title }} {% endfor %}",
        );
        // What it selects is shown by name: the order decides alone.
        site.script(
            "/apps/test/list/list.html.j2",
            "{% for one in pages(\"/content/site\", order=\"date\", limit=2) %}{{ one.name }} {% endfor %}",
        );
        site.put("/content/site", page("site", "Site", "test/page"));
        for (number, name) in FRUITS.into_iter().enumerate() {
            site.put(&format!("/content/site/{name}"), page(name, name, "test/page"));
            site.edit(|session| set_date(session, name, number));
        }
        for name in ["nav", "list"] {
            let content =
                component("jcr:content", &format!("test/{name}")).with_property("jcr:title", name);
            let page = Subtree::new(name, "cq:Page").with_child(content);
            site.put(&format!("/content/site/{name}"), page);
        }
        let renderer = Renderer::new(&site.repository, RenderOptions::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ledger = runtime.block_on(open(&folder));
        ledger.acknowledge(&ledger.pending_flushes());
        let place = site.repository.snapshot().unwrap();
        ledger.acknowledge_step(place.root_id());
        runtime.block_on(ledger.store_pending()).unwrap();
        let cached = BTreeMap::new();
        Self { site, renderer, runtime, folder, ledger, place, cached, named: 0, in_vain: 0 }
    }

    fn repository(&self) -> &Repository {
        &self.site.repository
    }

    fn now(&self) -> Snapshot {
        self.repository().snapshot().unwrap()
    }

    /// Ends without a word, as by a kill, and starts again.
    fn restart(&mut self) {
        self.ledger = self.runtime.block_on(open(&self.folder));
    }

    fn store(&self) {
        self.runtime.block_on(self.ledger.store_pending()).unwrap();
    }

    fn begin(&self, url: &'static str) -> Drawn {
        let ticket = self.ledger.begin_rendering();
        let snapshot = self.now();
        let request = request(url);
        let answer = self.renderer.render(&snapshot, &request);
        let look = ResponseFingerprint::from_response(&answer, &request);
        assert!(look.is_some(), "{url} can be drawn again");
        Drawn { when: (ticket, snapshot.visible_root_id()), url, answer, look }
    }

    /// Records a drawing; what is kept goes to the cache.
    fn end(&mut self, drawn: &Drawn, is_comparable: bool) -> RecordOutcome {
        let look = drawn.look.clone().filter(|_| is_comparable);
        let recorded = self.ledger.record_answer(drawn.when, drawn.url, &drawn.answer, look);
        if recorded == RecordOutcome::Recorded {
            self.cached.insert(drawn.url, body_text(&drawn.answer));
        }
        recorded
    }

    #[track_caller]
    fn visit(&mut self, url: &'static str) {
        let drawn = self.begin(url);
        assert_eq!(self.end(&drawn, true), RecordOutcome::Recorded, "{url}");
    }

    /// Asks what has to be flushed since the follower's place.
    fn ask(&self, is_compared: bool) -> (AffectedUrls, Snapshot) {
        let now = self.now();
        let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
            is_compared.then(|| self.renderer.render(state, request))
        };
        (self.ledger.affected_by_step(&self.place, &now, &draw).unwrap(), now)
    }

    /// Stores flushes, which reach the cache, and goes on.
    fn flush(&mut self, affected: &AffectedUrls, now: Snapshot) -> Vec<String> {
        for url in &affected.urls {
            let fresh = URLS.into_iter().find(|one| one == url).map(|url| self.text(url));
            let old = self.cached.remove(url.as_str());
            self.named += 1;
            self.in_vain += usize::from(old.is_none() || old == fresh);
        }
        if affected.scopes.iter().any(|scope| scope == "/") {
            self.cached.clear();
        }
        self.ledger.acknowledge_step(now.root_id());
        self.place = now;
        affected.urls.clone()
    }

    /// Follows content as a publisher does after each activation.
    fn follow(&mut self) -> Vec<String> {
        let (affected, now) = self.ask(true);
        self.flush(&affected, now)
    }

    fn text(&self, url: &str) -> String {
        body_text(&self.renderer.render(&self.now(), &request(url)))
    }

    fn set(&self, page: &str, name: &str, value: &str) {
        self.site.edit(|session| {
            let path = NodePath::new(&format!("{page}/jcr:content")).unwrap();
            session.set_property(&path, name, value.into()).unwrap();
        });
    }

    /// Publishes a text of a page and takes it back, so that nothing differs in the end; works in between.
    fn while_published(&mut self, page: &str, work: impl FnOnce(&mut Self)) {
        let before = self.now().root_id();
        self.set(page, "text", "too early");
        work(self);
        self.site.edit(|session| {
            let path = NodePath::new(&format!("{page}/jcr:content")).unwrap();
            session.remove_property(&path, "text").unwrap();
        });
        assert_eq!(self.now().root_id(), before, "nothing differs");
    }

    /// Refuses a copy that is not what the newest state gives.
    #[track_caller]
    fn check(&self, what: &str) {
        for (url, text) in &self.cached {
            assert_eq!(*text, self.text(url), "{what}: the copy of {url} stays old");
        }
    }
}

async fn open(folder: &TempDir) -> DependencyLedger {
    let state = StateDatabase::open(&folder.path().join("state.db")).await.unwrap();
    state.migrate_tables("render", MIGRATIONS).await.unwrap();
    let options = LedgerOptions {
        pool: state.pool().clone(),
        folder: folder.path().to_owned(),
        publisher: "one".to_owned(),
        boot: "same".to_owned(),
        renderer_fingerprint: "the same".to_owned(),
        max_urls: 1000,
    };
    DependencyLedger::open(options, SystemTime::UNIX_EPOCH).await.unwrap()
}

fn request(url: &str) -> RenderRequest<'_> {
    RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) }
}

fn set_date(session: &mut Session, name: &str, day: usize) {
    let path = NodePath::new(&format!("/content/site/{name}/jcr:content")).unwrap();
    let date = format!("2024-05-{:02}T00:00:00.000Z", day + 1);
    session.set_property(&path, "date", date.as_str().into()).unwrap();
}

#[test]
fn a_text_that_was_published_and_taken_back_before_anybody_asked_is_flushed() {
    let mut world = World::new();
    world.visit(URLS[0]);
    world.visit(URLS[1]);
    world.while_published(APPLE, |world| {
        world.visit(URLS[0]);
        world.visit(URLS[1]);
    });
    // The other page reads nothing that differed meanwhile.
    assert_eq!(world.follow(), [URLS[0]]);
    world.check("taken back");
    assert_eq!(world.ledger.stray_url_count(), 0);
    world.visit(URLS[0]);
    assert_eq!(world.follow(), NOTHING);
}

#[test]
fn a_rendering_of_a_state_that_a_step_passed_over_is_rendered_again() {
    let mut world = World::new();
    for is_asked_between in [false, true] {
        world.set(APPLE, "text", "too early");
        let drawn = world.begin(URLS[0]);
        if is_asked_between {
            // The state is one that the follower stands at, and what comes then is told by the difference.
            world.follow();
        }
        world.set(APPLE, "text", "");
        world.follow();
        assert_eq!(world.end(&drawn, true), RecordOutcome::Outdated, "asked: {is_asked_between}");
        // Of another page that shows nothing of it, it is known only where the follower stood.
        world.set(APPLE, "text", "again");
        let drawn = world.begin(URLS[1]);
        if is_asked_between {
            world.follow();
        }
        world.set(APPLE, "text", "");
        world.follow();
        let expected =
            if is_asked_between { RecordOutcome::Recorded } else { RecordOutcome::Outdated };
        assert_eq!(world.end(&drawn, true), expected, "asked: {is_asked_between}");
    }
    world.check("after all");
}

#[test]
fn a_list_that_answers_the_same_at_both_ends_is_flushed_if_it_did_not_in_between() {
    let mut world = World::new();
    world.visit(LIST);
    assert_eq!(world.cached[LIST], "plum pear ");
    world.site.edit(|session| set_date(session, "apple", 9));
    world.visit(LIST);
    assert_eq!(world.cached[LIST], "apple plum ");
    // Another date than before, and the same answer as before.
    world.site.edit(|session| set_date(session, "apple", 0));
    world.set(APPLE, "date", "2023-01-01T00:00:00.000Z");
    assert_eq!(world.follow(), [LIST]);
    world.check("in between");
    assert!(world.ledger.counters().lists_unchanged.load(std::sync::atomic::Ordering::Relaxed) > 0);
}

#[test]
fn a_step_that_is_asked_for_again_covers_what_was_rendered_since_it_was_answered() {
    let mut world = World::new();
    world.visit(URLS[0]);
    world.set(APPLE, "text", "short-lived");
    // Answered, and never stored: a database that is away, for example.
    let (first, _) = world.ask(true);
    assert_eq!(first.urls, [URLS[0]]);
    world.visit(URLS[0]);
    world.visit(NAV);
    world.set(APPLE, "text", "");
    let named = world.follow();
    assert!(named.contains(&URLS[0].to_owned()), "{named:?}");
    world.check("asked again");
}

#[test]
fn a_copy_of_where_an_answer_began_that_was_never_stored_is_held_against_where_it_ended() {
    let mut world = World::new();
    world.while_published(APPLE, |world| {
        assert_eq!(world.ask(true).0.urls, NOTHING);
    });
    // Of the state at which the follower stands, while the ledger goes on from the one that it told of.
    world.visit(URLS[0]);
    world.set(APPLE, "text", "too early");
    assert_eq!(world.follow(), [URLS[0]]);
    world.check("published again");
}

#[test]
fn strays_are_known_after_a_kill() {
    for is_stored in [false, true] {
        let mut world = World::new();
        // A row that says nothing of strays, and then a copy that is one and reads the same.
        world.visit(URLS[0]);
        world.store();
        world.while_published(APPLE, |world| {
            world.visit(URLS[0]);
            if is_stored {
                world.store();
            }
            world.restart();
        });
        assert_eq!(world.follow(), [URLS[0]], "stored: {is_stored}");
        world.check("after a kill");
        // And no longer than that.
        world.visit(URLS[0]);
        world.store();
        world.restart();
        assert_eq!(world.follow(), NOTHING, "stored: {is_stored}");
    }
}

#[test]
fn what_a_killed_process_answered_and_did_not_store_is_answered_again() {
    let mut world = World::new();
    world.while_published(APPLE, |world| {
        let (first, _) = world.ask(true);
        assert_eq!(first.urls, NOTHING);
        // Drawn from the state in which that answer ended.
        world.visit(URLS[0]);
        world.store();
        world.restart();
    });
    assert_eq!(world.follow(), [URLS[0]]);
}

#[test]
fn a_follower_that_tells_nobody_leaves_no_strays() {
    let mut world = World::new();
    world.visit(NAV);
    for round in 0..3 {
        world.set(APPLE, "jcr:title", &format!("Title {round}"));
        world.visit(NAV);
        assert_eq!(world.ledger.stray_url_count(), 1);
        // Without an agent, nobody is asked.
        world.place = world.now();
        world.ledger.acknowledge_step(world.place.root_id());
        assert_eq!(world.ledger.stray_url_count(), 0);
    }
    world.set(APPLE, "jcr:title", "Last");
    assert_eq!(world.follow(), [NAV]);
}

#[test]
fn copies_of_the_state_where_the_follower_arrives_are_no_strays() {
    let mut world = World::new();
    world.visit(NAV);
    world.follow();
    world.set("/content/site/pear", "text", "unseen by it");
    world.visit(NAV);
    assert_eq!(world.ledger.stray_url_count(), 1);
    assert_eq!(world.follow(), NOTHING);
    assert_eq!(world.ledger.stray_url_count(), 0);
    let counters = world.ledger.counters();
    assert_eq!(counters.skipped_state_urls.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// Edits something that was like this before, and will be again.
fn change(world: &World, random: &mut Random) {
    let name = FRUITS[random.below(3)];
    let path = format!("/content/site/{name}");
    match random.below(10) {
        0..=3 => world.set(&path, "text", ["", "one"][random.below(2)]),
        4 | 5 => world.set(&path, "jcr:title", [name, "Other"][random.below(2)]),
        6 | 7 => world.site.edit(|session| set_date(session, name, random.below(4))),
        8 => world.site.edit(|session| {
            let path = NodePath::new(&format!("{path}/jcr:content")).unwrap();
            let hides = Property::Single(Value::Boolean(random.below(2) == 0));
            session.set_property(&path, "hideInNav", hides).unwrap();
        }),
        _ => {
            let path = NodePath::new("/content/site/later").unwrap();
            match world.now().node(&path).unwrap() {
                Some(_) => world.site.edit(|session| session.remove_node(&path).unwrap()),
                None => world.site.put(path.as_str(), page("later", "Later", "test/page")),
            }
        }
    }
}

/// Makes a run of steps; returns how many URLs were named, and how many of them in vain.
fn interleave(seed: u64) -> (usize, usize) {
    let mut random = Random(seed);
    let mut world = World::new();
    let (mut begun, mut log): (Vec<Drawn>, Vec<String>) = (Vec::new(), Vec::new());
    // Whether something was edited since the flushes were stored for all that is there.
    let mut is_behind = false;
    for _ in 0..80 {
        match random.below(24) {
            0..=4 => {
                change(&world, &mut random);
                is_behind = true;
                log.push("edit".to_owned());
            }
            5..=10 => {
                let url = URLS[random.below(URLS.len())];
                begun.push(world.begin(url));
                log.push(format!("begin {url}"));
            }
            11..=16 if !begun.is_empty() => {
                let drawn = begun.swap_remove(random.below(begun.len()));
                let recorded = world.end(&drawn, random.below(4) > 0);
                log.push(format!("end {}: {recorded:?}", drawn.url));
            }
            17..=19 => {
                let named = world.follow();
                is_behind = false;
                log.push(format!("follow: {named:?}"));
            }
            20 => {
                let (affected, now) = world.ask(random.below(2) == 0);
                log.push(format!("ask: {:?}", affected.urls));
                if random.below(2) == 0 {
                    change(&world, &mut random);
                    world.flush(&affected, now);
                    is_behind = true;
                    log.push("edit, then store the flushes".to_owned());
                }
            }
            21 => {
                world.store();
                log.push("store".to_owned());
            }
            22 if random.below(3) == 0 => {
                // Who waited for these got nothing.
                begun.clear();
                world.restart();
                log.push("kill".to_owned());
            }
            _ => {}
        }
        if !is_behind {
            world.check(&format!("seed {seed}: {log:#?}"));
        }
    }
    world.follow();
    world.check(&format!("seed {seed}, at the end: {log:#?}"));
    (world.named, world.in_vain)
}

#[test]
fn no_copy_stays_old_however_drawings_edits_and_answers_interleave() {
    let runs = std::env::var("TYMPAN_INTERLEAVINGS").ok().and_then(|text| text.parse().ok());
    let (mut named, mut in_vain) = (0, 0);
    for seed in 1..=runs.unwrap_or(40) {
        let (of_run, for_nothing) = interleave(0x57a7 * seed + 1);
        named += of_run;
        in_vain += for_nothing;
    }
    println!(
        "{named} URLs named, {in_vain} of them not in the cache, or there as they are drawn now"
    );
    assert!(named > 0);
}
