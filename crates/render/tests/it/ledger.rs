//! The ledger: what it names, and what it knows after a kill.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tympan_content::{ChunkId, NodePath, Property, Snapshot, Subtree, Value, ValueType, Viewer};
use tympan_render::ledger::{
    AffectedUrls, DependencyLedger, LedgerOptions, MIGRATIONS, RecordOutcome, RenderTicket,
    ResponseFingerprint,
};
use tympan_render::{
    ChangedAspects, DependencySet, ReadRecording, RenderMode, RenderRequest, RenderResponse,
};
use tympan_testkit::StateDatabase;

use crate::site::{Site, body_text, file, texts};

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

async fn state(folder: &Path) -> StateDatabase {
    let state = StateDatabase::open(&folder.join("state.db")).await.unwrap();
    state.migrate_tables("render", MIGRATIONS).await.unwrap();
    state
}

fn options(state: &StateDatabase, folder: &Path, publisher: &str) -> LedgerOptions {
    LedgerOptions {
        pool: state.pool().clone(),
        folder: folder.to_owned(),
        publisher: publisher.to_owned(),
        boot: "first".to_owned(),
        renderer_fingerprint: "the same".to_owned(),
        max_urls: 1000,
    }
}

/// Opens a ledger and settles what it owes at its first start.
async fn open(folder: &Path) -> DependencyLedger {
    let ledger =
        DependencyLedger::open(options(&state(folder).await, folder, "one"), NOW).await.unwrap();
    ledger.acknowledge(&ledger.pending_flushes());
    ledger
}

struct Publisher {
    site: Site,
    ledger: DependencyLedger,
    folder: TempDir,
}

impl Publisher {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(folder.path()).await;
        let site = Site::sample(RenderMode::Publish);
        site.script(
            "/apps/test/nav/nav.html.j2",
            "{% for one in nav(\"/content/site/en\") %}{{ one.title }}{% endfor %}",
        );
        // Where its follower begins.
        ledger.acknowledge_step(site.repository.snapshot().unwrap().root_id());
        Self { site, ledger, folder }
    }

    fn read(&self, url: &str) -> DependencySet {
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
        self.site.render(&request).reads.dependencies()
    }

    /// Begins a drawing of the newest state.
    fn begin(&self) -> (RenderTicket, Option<ChunkId>) {
        self.begin_at(&self.ledger)
    }

    fn begin_at(&self, ledger: &DependencyLedger) -> (RenderTicket, Option<ChunkId>) {
        (ledger.begin_rendering(), self.snapshot().visible_root_id())
    }

    fn draw(&self, url: &str) {
        let when = self.begin();
        assert_eq!(self.ledger.record(when, url, &self.read(url)), RecordOutcome::Recorded);
    }

    fn snapshot(&self) -> Snapshot {
        self.site.repository.snapshot().unwrap()
    }

    /// Sets a property and returns what is to be flushed.
    fn edit(&self, path: &str, name: &str, value: &str) -> AffectedUrls {
        let before = self.snapshot();
        self.site.edit(|session| {
            session.set_property(&NodePath::new(path).unwrap(), name, value.into()).unwrap();
        });
        self.ledger.affected_urls(&before, &self.snapshot()).unwrap()
    }
}

#[tokio::test]
async fn names_the_pages_that_show_a_change_and_no_others() {
    let publisher = Publisher::new().await;
    let content = "/content/site/en/apple/jcr:content";
    publisher.site.edit(|session| {
        let path = NodePath::new("/content/site/en/zebra/jcr:content").unwrap();
        session.set_property(&path, "sling:resourceType", "test/nav".into()).unwrap();
    });
    publisher.ledger.acknowledge_step(publisher.snapshot().root_id());
    for url in
        ["/content/site/en.html", "/content/site/en/apple.html", "/content/site/en/zebra.html"]
    {
        publisher.draw(url);
    }
    // Its own page shows the title, and so does the navigation of another.
    let affected = publisher.edit(content, "jcr:title", "Apples");
    assert_eq!(affected.urls, ["/content/site/en/apple.html", "/content/site/en/zebra.html"]);
    assert_eq!((affected.changed_documents, affected.scopes.len()), (1, 0));
    publisher.ledger.acknowledge(&affected);
    // Nobody shows this.
    assert!(publisher.edit(content, "cq:lastReplicated", "now").is_empty());
    assert!(publisher.edit(content, "jcr:description", "unseen").is_empty());
    let same =
        publisher.ledger.affected_urls(&publisher.snapshot(), &publisher.snapshot()).unwrap();
    assert!(same.is_empty());
}

#[tokio::test]
async fn pages_that_no_cache_stores_take_no_space() {
    let publisher = Publisher::new().await;
    let url = "/content/site/en.html";
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
    let mut drawn = publisher.site.render(&request);
    drawn.reads.max_age = Some(Duration::from_millis(999));
    let record = |drawn: &RenderResponse| {
        let when = publisher.begin();
        assert_eq!(publisher.ledger.record_answer(when, url, drawn, None), RecordOutcome::Recorded);
        publisher.ledger.url_and_dependency_counts().0
    };
    assert_eq!(record(&drawn), 0);
    drawn.reads.max_age = Some(Duration::from_secs(1));
    assert_eq!(record(&drawn), 1);
}

#[tokio::test]
async fn an_answer_like_the_one_before_stores_nothing_and_is_named_again() {
    let publisher = Publisher::new().await;
    let url = "/content/site/en.html";
    let record = || {
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
        let when = publisher.begin();
        let drawn = publisher.site.render(&request);
        let look = ResponseFingerprint::from_response(&drawn, &request);
        assert_eq!(
            publisher.ledger.record_answer(when, url, &drawn, look),
            RecordOutcome::Recorded
        );
        let counters = publisher.ledger.counters();
        (
            counters.renderings_recorded.load(Ordering::Relaxed),
            counters.dependency_additions.load(Ordering::Relaxed),
        )
    };
    assert_eq!((record(), record(), record()), ((1, 1), (2, 1), (3, 1)));
    // It reads the same after each of these, and looks otherwise.
    for (number, title) in [(4, "One"), (6, "Two")] {
        let affected = publisher.edit("/content/site/en/jcr:content", "jcr:title", title);
        assert_eq!(affected.urls, [url]);
        publisher.ledger.acknowledge(&affected);
        let grown = number / 2;
        assert_eq!((record(), record()), ((number, grown), (number + 1, grown)), "{title}");
    }
    // Flushed, drawn as before and named again: each drawing may be about.
    publisher.ledger.acknowledge(&publisher.edit(
        "/content/site/en/jcr:content",
        "jcr:title",
        "One",
    ));
    publisher.ledger.acknowledge(&publisher.edit(
        "/content/site/en/jcr:content",
        "jcr:title",
        "Two",
    ));
    assert_eq!(record(), (8, 3));
    assert_eq!(publisher.edit("/content/site/en/jcr:content", "jcr:title", "X").urls, [url]);
    // A drawing that began before that change is not taken for known.
    let when = publisher.begin();
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
    let drawn = publisher.site.render(&request);
    publisher.edit("/content/site/en/jcr:content", "jcr:title", "Y");
    let look = ResponseFingerprint::from_response(&drawn, &request);
    assert_eq!(publisher.ledger.record_answer(when, url, &drawn, look), RecordOutcome::Outdated);
}

#[tokio::test]
async fn names_what_was_not_there_when_it_comes() {
    let publisher = Publisher::new().await;
    publisher.draw("/content/site/en/later.html");
    publisher.draw("/content/site/en.html");
    let before = publisher.snapshot();
    publisher.site.put("/content/site/en/later", crate::site::page("later", "Later", "test/page"));
    let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
    assert_eq!(affected.urls, ["/content/site/en/later.html"]);
    publisher.ledger.acknowledge(&affected);
    // A script that comes before the one that drew it.
    let before = publisher.snapshot();
    publisher.site.script("/apps/test/page/html.j2", "other");
    let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
    assert_eq!(affected.urls, ["/content/site/en.html"]);
}

#[tokio::test]
async fn what_a_library_is_joined_from_concerns_who_has_it_or_its_address() {
    let publisher = Publisher::new().await;
    let site = &publisher.site;
    let yes = Property::Single(Value::Boolean(true));
    let library = Subtree::new("base", "cq:ClientLibraryFolder")
        .with_property("categories", texts(&["t.base"]))
        .with_property("allowProxy", yes)
        .with_child(file(&site.repository, "css.txt", b"a.css", "text/plain"))
        .with_child(file(&site.repository, "a.css", b"b { color: red }", "text/plain"));
    site.put("/apps/t/clientlibs/base", library);
    site.script("/apps/test/sheet/sheet.html.j2", "{{ clientlib(\"t/clientlibs/base.css\") }}");
    site.edit(|session| {
        let path = NodePath::new("/content/site/en/zebra/jcr:content").unwrap();
        session.set_property(&path, "sling:resourceType", "test/sheet".into()).unwrap();
    });
    publisher.ledger.acknowledge_step(publisher.snapshot().root_id());
    let urls = ["/content/site/en/zebra.html", "/etc.clientlibs/t/clientlibs/base.css"];
    let texts = || urls.map(|url| site.text(url));
    let old = texts();
    urls.iter().for_each(|url| publisher.draw(url));
    publisher.draw("/content/site/en/apple.html");
    let before = publisher.snapshot();
    site.script("/apps/t/clientlibs/base/a.css", "b { color: blue }");
    assert!(std::iter::zip(old, texts()).all(|(old, new)| old != new));
    let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
    assert_eq!(affected.urls, urls);
}

#[test]
fn a_node_that_comes_into_sight_with_another_type_concerns_who_looked_for_it() {
    let site = Site::sample(RenderMode::Publish);
    site.script(
        "/apps/test/list/list.html.j2",
        "{% for one in resource.children %}{{ one.name }} {% endfor %}\
         {% if node(\"/content/site/en/jcr:content/later\") %}there{% endif %}",
    );
    let policy = |name: &str, entry: Subtree| {
        let all = Property::List(ValueType::Name, vec![Value::Name("jcr:read".to_owned())]);
        let entry = entry
            .with_property("rep:principalName", "everyone")
            .with_property("rep:privileges", all);
        Subtree { name: name.to_owned(), ..entry }
    };
    let types = Property::List(ValueType::Name, vec![Value::Name("oak:Unstructured".to_owned())]);
    let limits =
        Subtree::new("rep:restrictions", "rep:Restrictions").with_property("rep:ntNames", types);
    let policies = Subtree::new("rep:policy", "rep:ACL")
        .with_child(policy("allow", Subtree::new("", "rep:GrantACE")))
        .with_child(policy("deny", Subtree::new("", "rep:DenyACE").with_child(limits)));
    site.put("/content/rep:policy", policies);
    let put = |kind: &str| {
        site.put("/content/site/en/jcr:content/later", Subtree::new("later", kind));
        site.repository.snapshot().unwrap()
    };
    site.edit(|session| {
        let path = NodePath::new("/content/site/en/jcr:content").unwrap();
        session.set_property(&path, "sling:resourceType", "test/list".into()).unwrap();
    });
    let before = put("oak:Unstructured");
    let draw = |state: &Snapshot| {
        let request = RenderRequest::get("/content/site/en.html");
        let request = RenderRequest { recording: ReadRecording::Paths, ..request };
        let viewer = Viewer::anonymous();
        let drawn = site.renderer().render(&state.as_viewer(&viewer), &request);
        (body_text(&drawn), drawn.reads.dependencies())
    };
    let (text, read) = draw(&before);
    assert_eq!(text, "root ");
    let after = put("nt:unstructured");
    assert_eq!(draw(&after).0, "root later there");
    assert!(ChangedAspects::between_snapshots(&before, &after).unwrap().affects(&read));
}

#[tokio::test]
async fn an_answer_is_named_again_until_it_is_settled() {
    let publisher = Publisher::new().await;
    publisher.draw("/content/site/en.html");
    let first = publisher.edit("/content/site/en/jcr:content", "jcr:title", "One");
    assert_eq!(first.urls, ["/content/site/en.html"]);
    let second = publisher.edit("/content/site/en/apple/jcr:content", "jcr:title", "Two");
    assert_eq!(second.urls, ["/content/site/en.html"]);
    publisher.ledger.acknowledge(&second);
    assert!(!publisher.ledger.has_pending_flushes());
}

#[tokio::test]
async fn a_rendering_that_a_change_overtook_is_not_cached() {
    let publisher = Publisher::new().await;
    let (home, apple) = ("/content/site/en.html", "/content/site/en/apple.html");
    let when = publisher.begin();
    let (of_home, of_apple) = (publisher.read(home), publisher.read(apple));
    publisher.edit("/content/site/en/jcr:content", "jcr:title", "Newer");
    assert_eq!(publisher.ledger.record(when, home, &of_home), RecordOutcome::Outdated);
    assert_eq!(publisher.ledger.record(when, apple, &of_apple), RecordOutcome::Recorded);
    publisher.draw(home);
    // More changes than are remembered.
    let when = publisher.begin();
    for number in 0..300 {
        publisher.edit("/content/site/en/zebra/jcr:content", "unseen", &number.to_string());
    }
    assert_eq!(publisher.ledger.record(when, apple, &of_apple), RecordOutcome::Outdated);
}

#[tokio::test]
async fn all_variants_of_a_url_count_until_it_is_flushed() {
    let publisher = Publisher::new().await;
    let (home, apple) =
        (publisher.read("/content/site/en.html"), publisher.read("/content/site/en/apple.html"));
    for read in [&home, &apple] {
        let when = publisher.begin();
        assert_eq!(publisher.ledger.record(when, "/x.html", read), RecordOutcome::Recorded);
    }
    let affected = publisher.edit("/content/site/en/jcr:content", "jcr:title", "Newer");
    assert_eq!(affected.urls, ["/x.html"]);
    publisher.ledger.acknowledge(&affected);
    let when = publisher.begin();
    assert_eq!(publisher.ledger.record(when, "/x.html", &apple), RecordOutcome::Recorded);
    assert!(publisher.edit("/content/site/en/jcr:content", "jcr:title", "Newest").is_empty());
}

#[tokio::test]
async fn a_change_of_rights_names_every_url() {
    let publisher = Publisher::new().await;
    publisher.draw("/content/site/en.html");
    publisher.draw("/content/site/en/apple.html");
    let before = publisher.snapshot();
    publisher
        .site
        .put("/content/site/rep:policy", tympan_content::Subtree::new("rep:policy", "rep:ACL"));
    let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
    assert_eq!(affected.urls.len(), 2);
}

#[tokio::test]
async fn a_change_of_what_urls_mean_names_every_url() {
    let publisher = Publisher::new().await;
    publisher.draw("/content/site/en.html");
    let affected = publisher.edit("/content/site/en/zebra/jcr:content", "sling:vanityPath", "/z");
    assert_eq!(affected.urls, ["/content/site/en.html"]);
    publisher.ledger.acknowledge(&affected);
    let before = publisher.snapshot();
    let tree = tympan_content::Subtree::new("host", "sling:Mapping");
    publisher.site.put("/etc/map/http/host", tree);
    let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
    assert_eq!(affected.urls, ["/content/site/en.html"]);
}

#[tokio::test]
async fn what_was_stored_is_known_after_a_kill_and_the_rest_depends_on_anything() {
    let mut publisher = Publisher::new().await;
    publisher.draw("/content/site/en.html");
    publisher.ledger.store_pending().await.unwrap();
    publisher.draw("/content/site/en/apple.html");
    // What a killed process leaves: nothing was stored or closed.
    publisher.ledger = open(publisher.folder.path()).await;
    let affected = publisher.edit("/content/site/en/zebra/jcr:content", "unseen", "1");
    assert_eq!(affected.urls, ["/content/site/en/apple.html"]);
    assert!(affected.scopes.is_empty());
    publisher.ledger.acknowledge(&affected);
    publisher.draw("/content/site/en/apple.html");
    assert!(publisher.edit("/content/site/en/zebra/jcr:content", "unseen", "2").is_empty());
    let affected = publisher.edit("/content/site/en/jcr:content", "jcr:title", "Newer");
    assert_eq!(affected.urls, ["/content/site/en.html"]);
    // Opened again after a clean end, and after another kill with everything stored.
    publisher.ledger.close().await.unwrap();
    for title in ["Newer still", "Newest"] {
        publisher.ledger = open(publisher.folder.path()).await;
        assert!(publisher.edit("/content/site/en/zebra/jcr:content", "unseen", "3").is_empty());
        let affected = publisher.edit("/content/site/en/jcr:content", "jcr:title", title);
        assert_eq!(affected.urls, ["/content/site/en.html"]);
    }
}

#[tokio::test]
async fn a_machine_that_stopped_makes_everything_uncertain() {
    let folder = tempfile::tempdir().unwrap();
    let state = state(folder.path()).await;
    let open = async |boot: &str| {
        let options = options(&state, folder.path(), "one");
        DependencyLedger::open(LedgerOptions { boot: boot.to_owned(), ..options }, NOW)
            .await
            .unwrap()
    };
    // Nobody knows what was drawn before the first start.
    let ledger = open("first").await;
    assert_eq!(ledger.pending_flushes().scopes, ["/"]);
    ledger.acknowledge(&ledger.pending_flushes());
    ledger.store_pending().await.unwrap();
    assert!(!open("first").await.has_pending_flushes());
    let ledger = open("second").await;
    assert_eq!(ledger.pending_flushes().scopes, ["/"]);
    ledger.acknowledge(&ledger.pending_flushes());
    ledger.close().await.unwrap();
    assert!(!open("third").await.has_pending_flushes());
}

#[tokio::test]
async fn another_program_or_setting_makes_what_was_rendered_uncertain() {
    let publisher = Publisher::new().await;
    let (home, apple) = ("/content/site/en.html", "/content/site/en/apple.html");
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(apple) };
    let drawn = publisher.site.render(&request);
    let look = ResponseFingerprint::from_response(&drawn, &request);
    let kept = publisher.ledger.record_answer(publisher.begin(), apple, &drawn, look);
    assert_eq!(kept, RecordOutcome::Recorded);
    publisher.draw(home);
    publisher.ledger.close().await.unwrap();
    let folder = publisher.folder.path();
    let open_by = async |drawn_by: &str| {
        let options = options(&state(folder).await, folder, "one");
        let options = LedgerOptions { renderer_fingerprint: drawn_by.to_owned(), ..options };
        DependencyLedger::open(options, NOW).await.unwrap()
    };
    let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
        Some(publisher.site.renderer().render(state, request))
    };
    assert!(!open_by("the same").await.has_pending_flushes());
    // Opened by another one and killed before anything was flushed, and again.
    for _ in 0..2 {
        let ledger = open_by("another").await;
        let now = publisher.snapshot();
        let affected = ledger.visibly_affected_urls(&now, &now, &draw).unwrap();
        // Of this one it is not known how it looks.
        assert_eq!((affected.urls, affected.unchanged_urls), (vec![home.to_owned()], 1));
    }
    let ledger = open_by("a third").await;
    assert!(ledger.has_pending_flushes());
    let now = publisher.snapshot();
    ledger.acknowledge(&ledger.visibly_affected_urls(&now, &now, &draw).unwrap());
    ledger.store_pending().await.unwrap();
    assert!(!ledger.has_pending_flushes());
    let ledger = open_by("a third").await;
    assert!(!ledger.has_pending_flushes());
    let affected = ledger.visibly_affected_urls(&now, &now, &draw).unwrap();
    assert!(affected.is_empty(), "{affected:?}");
}

#[tokio::test]
async fn what_was_rendered_by_older_templates_is_named_while_it_runs() {
    let publisher = Publisher::new().await;
    let (home, apple) = ("/content/site/en.html", "/content/site/en/apple.html");
    let folder = publisher.folder.path();
    let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
        Some(publisher.site.renderer().render(state, request))
    };
    let record = |ledger: &DependencyLedger, when, url| {
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
        let drawn = publisher.site.render(&request);
        ledger.record_answer(
            when,
            url,
            &drawn,
            ResponseFingerprint::from_response(&drawn, &request),
        )
    };
    let step = |ledger: &DependencyLedger| {
        let now = publisher.snapshot();
        let affected = ledger.visibly_affected_urls(&now, &now, &draw).unwrap();
        (affected.urls.clone(), affected)
    };
    let ledger = &publisher.ledger;
    assert_eq!(record(ledger, publisher.begin(), apple), RecordOutcome::Recorded);
    publisher.draw(home);
    let slow = publisher.begin();
    ledger.set_renderer_fingerprint("others").await.unwrap();
    assert!(ledger.has_pending_flushes());
    // Drawn by nobody knows which templates, as the answer is still out.
    let late = "/content/site/en/zebra.html";
    publisher.draw(late);
    // Of the page that looks the same nobody has to hear.
    let (urls, affected) = step(ledger);
    assert_eq!(urls, [home, late]);
    // A drawing that began before may be of the older ones: no copy of it may be kept.
    assert_eq!(record(ledger, slow, apple), RecordOutcome::Outdated);
    assert_eq!(ledger.record(slow, home, &publisher.read(home)), RecordOutcome::Outdated);
    ledger.acknowledge(&affected);
    assert!(!ledger.has_pending_flushes());
    assert_eq!(record(ledger, slow, apple), RecordOutcome::Outdated);
    assert_eq!(record(ledger, publisher.begin(), apple), RecordOutcome::Recorded);
    assert!(step(ledger).0.is_empty());
    // Killed before anybody asked, the next start still knows.
    publisher.draw(home);
    ledger.set_renderer_fingerprint("more").await.unwrap();
    let options = options(&state(folder).await, folder, "one");
    let options = LedgerOptions { renderer_fingerprint: "more".to_owned(), ..options };
    let ledger = DependencyLedger::open(options, NOW).await.unwrap();
    assert_eq!(step(&ledger).0, [home, late]);
}

#[tokio::test]
async fn urls_beyond_the_bound_are_flushed_with_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let state = state(folder.path()).await;
    let few = LedgerOptions { max_urls: 20, ..options(&state, folder.path(), "one") };
    let ledger = DependencyLedger::open(few, NOW).await.unwrap();
    ledger.acknowledge(&ledger.pending_flushes());
    let publisher = Publisher::new().await;
    let read = publisher.read("/content/site/en.html");
    for number in 0..34 {
        let url = format!("/content/site/{}/p{number}.html", number / 10);
        assert_eq!(
            ledger.record(publisher.begin_at(&ledger), &url, &read),
            RecordOutcome::Recorded
        );
    }
    let long = format!("/content/long/{}.html", "x".repeat(2000));
    assert_eq!(ledger.record(publisher.begin_at(&ledger), &long, &read), RecordOutcome::Recorded);
    assert!(ledger.url_and_dependency_counts().0 <= 20, "{:?}", ledger.url_and_dependency_counts());
    let before = publisher.snapshot();
    publisher.edit("/content/site/en/zebra/jcr:content", "unseen", "1");
    let after = publisher.snapshot();
    let affected = ledger.affected_urls(&before, &after).unwrap();
    assert_eq!(affected.scopes, ["/content/long", "/content/site/0", "/content/site/1"]);
    assert!(affected.urls.is_empty());
    // Stored before they are settled, they are known after a kill.
    ledger.store_pending().await.unwrap();
    let ledger = DependencyLedger::open(options(&state, folder.path(), "one"), NOW).await.unwrap();
    let again = ledger.affected_urls(&before, &after).unwrap();
    assert_eq!(again.scopes, affected.scopes);
    ledger.acknowledge(&again);
    assert!(ledger.affected_urls(&before, &after).unwrap().is_empty());
}

#[tokio::test]
async fn the_urls_of_a_dead_publisher_are_taken_over() {
    let publisher = Publisher::new().await;
    let state = state(publisher.folder.path()).await;
    let other = tempfile::tempdir().unwrap();
    let dead = DependencyLedger::open(options(&state, other.path(), "dead"), NOW).await.unwrap();
    dead.acknowledge(&dead.pending_flushes());
    let read = publisher.read("/content/site/en.html");
    assert_eq!(
        dead.record(publisher.begin_at(&dead), "/drawn-by-the-dead.html", &read),
        RecordOutcome::Recorded
    );
    dead.store_pending().await.unwrap();
    publisher.ledger.renew_and_take_over(NOW + Duration::from_secs(30)).await.unwrap();
    assert!(!publisher.ledger.has_pending_flushes());
    publisher.ledger.renew_and_take_over(NOW + Duration::from_secs(90)).await.unwrap();
    // It was killed, so what it had no time to store is not known either; what it had is owed at once.
    let owed = publisher.ledger.pending_flushes();
    assert_eq!(
        (owed.urls, owed.scopes),
        (vec!["/drawn-by-the-dead.html".to_owned()], vec!["/".to_owned()])
    );
    // What changed since it was killed was told without it: nothing waits for a further change, also not after a kill.
    assert!(publisher.ledger.has_pending_flushes());
    assert_eq!(publisher.ledger.take_taken_over_publishers(), ["dead"]);
    assert_eq!(publisher.ledger.publisher_names().await.unwrap(), ["one"]);
    let now = publisher.snapshot();
    assert_eq!(publisher.ledger.affected_by_step(&now, &now, &|_, _| None).unwrap().scopes, ["/"]);
    let again =
        DependencyLedger::open(options(&state, publisher.folder.path(), "one"), NOW).await.unwrap();
    assert!(again.has_pending_flushes());
    assert_eq!(
        again.take_taken_over_publishers(),
        ["dead"],
        "whoever took over may have had no time to say so"
    );
    assert_eq!(again.affected_by_step(&now, &now, &|_, _| None).unwrap().scopes, ["/"]);
    drop(again);
    publisher.ledger.acknowledge(&publisher.ledger.pending_flushes());
    assert!(!publisher.ledger.has_pending_flushes());
    let affected = publisher.edit("/content/site/en/jcr:content", "jcr:title", "Newer");
    assert_eq!(affected.urls, ["/drawn-by-the-dead.html"]);
    // It was not dead: it stores everything again.
    dead.renew_and_take_over(NOW + Duration::from_secs(91)).await.unwrap();
    drop(dead);
    let again = DependencyLedger::open(options(&state, other.path(), "dead"), NOW).await.unwrap();
    assert_eq!(again.url_and_dependency_counts().0, 1);
}

#[tokio::test]
async fn what_was_taken_over_is_owed_after_a_kill() {
    let publisher = Publisher::new().await;
    let state = state(publisher.folder.path()).await;
    let other = tempfile::tempdir().unwrap();
    let gone = DependencyLedger::open(options(&state, other.path(), "gone"), NOW).await.unwrap();
    gone.acknowledge(&gone.pending_flushes());
    let read = publisher.read("/content/site/en.html");
    let url = "/drawn-by-who-is-gone.html";
    assert_eq!(gone.record(publisher.begin_at(&gone), url, &read), RecordOutcome::Recorded);
    gone.close().await.unwrap();
    drop(gone);
    // What it drew is changed while nobody is there who would say so.
    publisher.edit("/content/site/en/jcr:content", "jcr:title", "Newer");
    publisher.ledger.renew_and_take_over(NOW + Duration::from_secs(90)).await.unwrap();
    let owed = publisher.ledger.pending_flushes();
    assert_eq!((owed.urls, owed.scopes), (vec![url.to_owned()], Vec::new()));
    // It is killed before that is flushed.
    let again =
        DependencyLedger::open(options(&state, publisher.folder.path(), "one"), NOW).await.unwrap();
    assert_eq!(again.take_taken_over_publishers(), ["gone"]);
    assert!(again.has_pending_flushes(), "it waits for no further change");
    let now = publisher.snapshot();
    let affected = again.affected_by_step(&now, &now, &|_, _| None).unwrap();
    assert_eq!(affected.urls, [url]);
    again.acknowledge_step(now.root_id());
    assert!(again.affected_by_step(&now, &now, &|_, _| None).unwrap().urls.is_empty());
    assert!(!again.has_pending_flushes());
}

#[tokio::test]
async fn a_step_is_settled_when_its_flushes_are_stored() {
    let publisher = Publisher::new().await;
    publisher.draw("/content/site/en.html");
    let title = |text: &str| {
        publisher.site.edit(|session| {
            let path = NodePath::new("/content/site/en/jcr:content").unwrap();
            session.set_property(&path, "jcr:title", text.into()).unwrap();
        });
        publisher.snapshot()
    };
    let (first, second) = (publisher.snapshot(), title("Two"));
    let home = ["/content/site/en.html"];
    assert_eq!(
        publisher.ledger.affected_by_step(&first, &second, &|_, _| None).unwrap().urls,
        home
    );
    // The follower could not store it and asks for more.
    publisher.site.edit(|session| {
        let path = NodePath::new("/content/site/en/zebra/jcr:content").unwrap();
        session.set_property(&path, "unseen", "x".into()).unwrap();
    });
    let third = publisher.snapshot();
    assert_eq!(publisher.ledger.affected_by_step(&first, &third, &|_, _| None).unwrap().urls, home);
    assert!(publisher.ledger.has_pending_flushes());
    publisher.ledger.acknowledge_step(third.root_id());
    assert!(!publisher.ledger.has_pending_flushes());
    publisher.site.edit(|session| {
        let path = NodePath::new("/content/site/en/zebra/jcr:content").unwrap();
        session.set_property(&path, "unseen", "y".into()).unwrap();
    });
    assert!(
        publisher
            .ledger
            .affected_by_step(&third, &publisher.snapshot(), &|_, _| None)
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn the_error_page_of_a_site_is_what_a_missing_page_was_rendered_from() {
    let publisher = Publisher::new().await;
    let (none, apple) = ("/content/site/en/none.html", "/content/site/en/apple.html");
    let changed = |affected: &AffectedUrls| {
        publisher.ledger.acknowledge(affected);
        publisher.draw(none);
        publisher.draw(apple);
        affected.urls.clone()
    };
    publisher.draw(none);
    publisher.draw(apple);
    // The site names the folder of its error pages before there are any.
    let site = "/content/site/en/jcr:content";
    let affected = publisher.edit(site, "errorPages", "/content/site/errors");
    assert_eq!(changed(&affected), [none]);
    for name in ["default", "404"] {
        let before = publisher.snapshot();
        let page = crate::site::page(name, "Nothing here", "test/page");
        publisher.site.put(&format!("/content/site/errors/{name}"), page);
        let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
        assert_eq!(changed(&affected), [none], "{name}");
    }
    let own = "/content/site/errors/404/jcr:content";
    let affected = publisher.edit(own, "jcr:title", "Gone");
    assert_eq!(changed(&affected), [none]);
    let affected = publisher.edit("/content/site/errors/default/jcr:content", "jcr:title", "x");
    assert_eq!(changed(&affected), [] as [&str; 0]);
    // A page nearer than the site may name others.
    let nearer = "/content/site/en/none/below.html";
    publisher.draw(nearer);
    let affected = publisher.edit(own, "jcr:title", "Lost");
    assert_eq!(affected.urls, [none, nearer]);
}

#[tokio::test]
async fn other_names_of_pages_concern_every_url() {
    let publisher = Publisher::new().await;
    let home = "/content/site/en.html";
    let content = "/content/site/en/apple/jcr:content";
    publisher.edit(content, "sling:vanityPath", "/fruit");
    for (name, value) in [
        ("sling:vanityPath", "/apples"),
        ("sling:redirect", "true"),
        ("sling:redirectStatus", "301"),
        ("sling:vanityOrder", "3"),
        ("sling:alias", "pomme"),
    ] {
        publisher.draw(home);
        let affected = publisher.edit(content, name, value);
        assert_eq!(affected.urls, [home], "{name}");
        publisher.ledger.acknowledge(&affected);
    }
    for path in ["/etc/map/http", "/oak:index/slingAlias"] {
        publisher.draw(home);
        let before = publisher.snapshot();
        let name = path.rsplit('/').next().unwrap();
        publisher.site.put(path, tympan_content::Subtree::new(name, "nt:unstructured"));
        let affected = publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap();
        assert_eq!(affected.urls, [home], "{path}");
        publisher.ledger.acknowledge(&affected);
    }
}
