//! The ledger asks again: what a change concerns is named only if it looks otherwise, or a list answers otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tympan_content::{ChunkId, NodePath, Session, Snapshot, Subtree};
use tympan_render::ledger::{
    AffectedUrls, DependencyLedger, LedgerOptions, MIGRATIONS, RecordOutcome, RenderTicket,
    ResponseFingerprint,
};
use tympan_render::{
    BackendClient, BackendConfig, BackendRegistry, ReadRecording, RenderMode, RenderOptions,
    RenderRequest, RenderResponse, Renderer,
};
use tympan_testkit::StateDatabase;

use crate::site::{Site, component, page};

/// A publisher with its ledger.
struct Publisher {
    site: Site,
    renderer: Renderer,
    ledger: DependencyLedger,
    folder: TempDir,
    asked: Arc<AtomicUsize>,
}

/// Who asks: a cache that fills in includes, or anybody else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Anybody,
    Filler,
}

/// A back end that counts how often it is asked.
#[derive(Debug)]
struct Wire(Arc<AtomicUsize>);

impl BackendClient for Wire {
    fn fetch(&self, _: &str, _: Duration, _: usize) -> Result<Vec<u8>, String> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(b"{\"state\": \"sent\"}".to_vec())
    }

    fn post_json(&self, _: &str, _: &[u8], _: Duration, _: usize) -> Result<Vec<u8>, String> {
        Err("nothing is sent".to_owned())
    }
}

async fn open(folder: &TempDir, max_urls: usize) -> DependencyLedger {
    let state = StateDatabase::open(&folder.path().join("state.db")).await.unwrap();
    state.migrate_tables("render", MIGRATIONS).await.unwrap();
    let options = LedgerOptions {
        pool: state.pool().clone(),
        folder: folder.path().to_owned(),
        publisher: "one".to_owned(),
        boot: "first".to_owned(),
        renderer_fingerprint: "the same".to_owned(),
        max_urls,
    };
    let ledger = DependencyLedger::open(options, SystemTime::UNIX_EPOCH).await.unwrap();
    ledger.acknowledge(&ledger.pending_flushes());
    ledger
}

impl Publisher {
    async fn new() -> Self {
        Self::bounded(1000).await
    }

    async fn bounded(max_urls: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ledger = open(&folder, max_urls).await;
        let site = Site::sample(RenderMode::Publish);
        let asked = Arc::new(AtomicUsize::new(0));
        let places =
            BTreeMap::from([("legacy".to_owned(), BackendConfig::new("http://127.0.0.1:1/"))]);
        let back_ends = BackendRegistry::new(places, Box::new(Wire(Arc::clone(&asked))));
        let renderer = Renderer::new(&site.repository, RenderOptions::default());
        let renderer = renderer.with_backends(Arc::new(back_ends));
        Self { site, renderer, ledger, folder, asked }
    }

    /// Ends without storing anything more and starts again.
    async fn restart(&mut self) {
        self.ledger = open(&self.folder, 1000).await;
    }

    fn answer(&self, url: &str, by: By) -> (RenderResponse, Option<ResponseFingerprint>) {
        let request = RenderRequest {
            recording: ReadRecording::Paths,
            supports_includes: by == By::Filler,
            ..RenderRequest::get(url)
        };
        let drawn = self.renderer.render(&self.snapshot(), &request);
        let look = ResponseFingerprint::from_response(&drawn, &request);
        (drawn, look)
    }

    /// Begins a drawing of the newest state.
    fn begin(&self) -> (RenderTicket, Option<ChunkId>) {
        (self.ledger.begin_rendering(), self.snapshot().visible_root_id())
    }

    fn visit(&self, url: &str, by: By) -> RecordOutcome {
        let when = self.begin();
        let (drawn, look) = self.answer(url, by);
        self.ledger.record_answer(when, url, &drawn, look)
    }

    #[track_caller]
    fn keep(&self, url: &str, by: By) {
        assert_eq!(self.visit(url, by), RecordOutcome::Recorded, "{url}");
    }

    fn snapshot(&self) -> Snapshot {
        self.site.repository.snapshot().unwrap()
    }

    /// Edits and returns what is to be flushed.
    fn change(&self, edit: impl FnOnce(&mut Session)) -> AffectedUrls {
        let before = self.snapshot();
        self.site.edit(edit);
        self.named(&before)
    }

    /// Returns what is to be flushed since a state.
    fn named(&self, before: &Snapshot) -> AffectedUrls {
        let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
            Some(self.renderer.render(state, request))
        };
        self.ledger.visibly_affected_urls(before, &self.snapshot(), &draw).unwrap()
    }

    fn set(&self, path: &str, name: &str, value: &str) -> AffectedUrls {
        self.change(|session| {
            session.set_property(&NodePath::new(path).unwrap(), name, value.into()).unwrap();
        })
    }

    /// Edits, flushes what is named, and returns it.
    fn flush(&self, affected: &AffectedUrls) -> Vec<String> {
        self.ledger.acknowledge(affected);
        affected.urls.clone()
    }

    fn count(&self, counter: &str) -> u64 {
        self.ledger.counters().all().find(|(name, ..)| *name == counter).unwrap().2
    }
}

const HOME: &str = "/content/site/en.html";
const CONTENT: &str = "/content/site/en/jcr:content";
const NOTHING: [&str; 0] = [];

#[tokio::test]
async fn a_page_with_an_include_is_compared_as_its_cache_has_it() {
    let mut publisher = Publisher::new().await;
    publisher.site.script("/apps/test/greeting/greeting.html.j2", "Hello {{ request.user }}");
    publisher.set("/apps/test/greeting", "dynamic", "include");
    publisher.site.put(&format!("{CONTENT}/root/greeting"), component("greeting", "test/greeting"));
    // Read, and not shown.
    let page =
        "{% if properties.unseen %}{% endif %}{{ page.title }}{{ include(\"root/greeting\") }}";
    publisher.site.script("/apps/test/page/page.html.j2", page);
    publisher.keep(HOME, By::Filler);
    // What a visitor gets without a cache in front is that visitor's alone, and says nothing of the cache's copy.
    publisher.keep(HOME, By::Anybody);
    assert_eq!(publisher.set(CONTENT, "unseen", "1").urls, NOTHING);
    assert_eq!(publisher.count("comparison_renderings"), 1);
    publisher.ledger.store_pending().await.unwrap();
    publisher.restart().await;
    assert_eq!(publisher.set(CONTENT, "unseen", "2").urls, NOTHING);
    assert_eq!(publisher.set(CONTENT, "jcr:title", "Other").urls, [HOME]);
}

#[tokio::test]
async fn copies_of_both_kinds_are_compared() {
    let publisher = Publisher::new().await;
    publisher.site.script("/apps/test/empty/empty.html.j2", "{# nothing #}");
    publisher.keep(HOME, By::Anybody);
    publisher.keep(HOME, By::Filler);
    // Drawn in its place it shows nothing; a cache that fills in includes has a tag for it.
    let affected = publisher.change(|session| {
        let folder = NodePath::new("/apps/test/empty").unwrap();
        session.set_property(&folder, "dynamic", "include".into()).unwrap();
        let path = NodePath::new(&format!("{CONTENT}/root/empty")).unwrap();
        session.put_node(&path, component("empty", "test/empty")).unwrap();
    });
    assert_eq!(affected.urls, [HOME]);
    publisher.ledger.acknowledge(&affected);
}

#[tokio::test]
async fn a_page_that_begins_to_show_parameters_is_named_for_copies_with_some() {
    let publisher = Publisher::new().await;
    let text = "{% if properties.echo %}{{ request.parameters.q }}{% endif %}";
    publisher.site.script("/apps/test/page/page.html.j2", text);
    for query in ["q=typed", ""] {
        let request =
            RenderRequest { query, recording: ReadRecording::Paths, ..RenderRequest::get(HOME) };
        let when = publisher.begin();
        let drawn = publisher.renderer.render(&publisher.snapshot(), &request);
        let look = ResponseFingerprint::from_response(&drawn, &request);
        let kept = publisher.ledger.record_answer(when, HOME, &drawn, look);
        assert_eq!(kept, RecordOutcome::Recorded);
    }
    // Nothing that is read shows.
    assert!(publisher.set(CONTENT, "echo", "").is_empty());
    assert_eq!(publisher.set(CONTENT, "echo", "yes").urls, [HOME]);
}

#[tokio::test]
async fn no_back_end_is_asked_to_compare() {
    let publisher = Publisher::new().await;
    publisher.keep(HOME, By::Anybody);
    // From now on the page would ask.
    let script = "{{ data(\"legacy\", \"/orders/7\").state }}";
    let before = publisher.snapshot();
    publisher.site.script("/apps/test/page/page.html.j2", script);
    let affected = publisher.named(&before);
    assert_eq!((affected.urls, publisher.asked.load(Ordering::SeqCst)), (vec![HOME.to_owned()], 0));
    let (drawn, look) = publisher.answer(HOME, By::Anybody);
    assert_eq!((publisher.asked.load(Ordering::SeqCst), look), (1, None), "{drawn:?}");
}

#[tokio::test]
async fn what_is_rendered_after_an_answer_is_not_taken_for_flushed() {
    let publisher = Publisher::new().await;
    publisher.keep(HOME, By::Anybody);
    let first = publisher.set(CONTENT, "jcr:title", "One");
    assert_eq!(first.urls, [HOME]);
    // A visitor's copy of the new state goes to a cache before the flushes are stored: these need not reach it.
    publisher.keep(HOME, By::Anybody);
    publisher.ledger.acknowledge(&first);
    let second = publisher.set(CONTENT, "jcr:title", "Two");
    assert_eq!(second.urls, [HOME], "the copy that was made meanwhile shows the title");
    publisher.ledger.acknowledge(&second);
    // The same, with a copy that reads less: the answer before it covers the copies with the text.
    publisher.keep(HOME, By::Anybody);
    let before = publisher.snapshot();
    publisher.site.script("/apps/test/page/page.html.j2", "{{ page.title }}");
    let third = publisher.named(&before);
    publisher.keep(HOME, By::Anybody);
    assert_eq!(publisher.flush(&third), [HOME]);
    let text = format!("{CONTENT}/root/one");
    assert_eq!(publisher.set(&text, "text", "Unseen").urls, NOTHING);
    assert_eq!(publisher.set(CONTENT, "jcr:title", "Three").urls, [HOME]);
}

#[tokio::test]
async fn made_up_urls_take_no_space_from_others() {
    let mut publisher = Publisher::bounded(100).await;
    publisher.keep(HOME, By::Anybody);
    let made_up = |number: usize| format!("/content/site/en/none-{number}.html");
    for number in 0..10 {
        publisher.keep(&made_up(number), By::Anybody);
    }
    // No cache may keep these, so nobody need know of them.
    for number in 10..500 {
        assert_eq!(publisher.visit(&made_up(number), By::Anybody), RecordOutcome::TooManyFaults);
    }
    publisher.keep("/content/site/en/apple.html", By::Anybody);
    assert_eq!(
        (publisher.ledger.url_and_dependency_counts().0, publisher.count("evictions")),
        (12, 0)
    );
    publisher.ledger.store_pending().await.unwrap();
    publisher.restart().await;
    // What a cache may hold is flushed when there is a page.
    let before = publisher.snapshot();
    publisher.site.put("/content/site/en/none-3", page("none-3", "There", "test/page"));
    let affected = publisher.named(&before);
    assert_eq!(affected.scopes, NOTHING);
    assert_eq!(publisher.flush(&affected), [made_up(3)]);
    // It is a page like others now.
    publisher.keep(&made_up(3), By::Anybody);
    let content = "/content/site/en/none-3/jcr:content";
    assert_eq!(publisher.flush(&publisher.set(content, "jcr:title", "Still")), [made_up(3)]);
}

#[tokio::test]
async fn flushed_errors_free_space() {
    let publisher = Publisher::bounded(20).await;
    let url = |name: &str| format!("/content/site/en/{name}.html");
    publisher.keep(&url("a"), By::Anybody);
    publisher.keep(&url("b"), By::Anybody);
    assert_eq!(publisher.visit(&url("c"), By::Anybody), RecordOutcome::TooManyFaults);
    let affected = publisher.change(|session| {
        let path = NodePath::new("/content/site/en/a").unwrap();
        session.put_node(&path, page("a", "A", "test/page")).unwrap();
    });
    assert_eq!(publisher.flush(&affected), [url("a")]);
    publisher.keep(&url("c"), By::Anybody);
    publisher.keep(&url("a"), By::Anybody);
    assert_eq!(publisher.ledger.url_and_dependency_counts().0, 3);
}

/// A site of articles with dates and tags, and a page that lists some of them.
fn articles(publisher: &Publisher, list: &str) {
    publisher.site.script("/apps/test/list/list.html.j2", list);
    publisher.site.edit(|session| {
        for number in 0..9 {
            let name = format!("a{number}");
            let path = NodePath::new(&format!("/content/site/en/zebra/{name}")).unwrap();
            session
                .put_node(&path, page(&name, &format!("Article {number}"), "test/page"))
                .unwrap();
            let content = path.child("jcr:content").unwrap();
            let date = date(&format!("2024-05-0{}", number + 1));
            session.set_property(&content, "date", date.as_str().into()).unwrap();
            let tag = ["odd", "even"][number % 2];
            session.set_property(&content, "cq:tags", tag.into()).unwrap();
        }
        let list = Subtree::new("list", "cq:Page")
            .with_child(component("jcr:content", "test/list").with_property("jcr:title", "List"));
        session.put_node(&NodePath::new("/content/site/en/list").unwrap(), list).unwrap();
    });
}

fn date(day: &str) -> String {
    format!("{day}T00:00:00.000Z")
}

const LIST: &str = "/content/site/en/list.html";

fn article(number: usize) -> String {
    format!("/content/site/en/zebra/a{number}/jcr:content")
}

#[tokio::test]
async fn a_list_depends_on_what_it_selects() {
    for (list, seen, unseen) in [
        (
            "{% for one in pages(\"/content/site/en/zebra\", order=\"date\", limit=3) %}{{ one.title }}{% endfor %}",
            // The newest three are 8, 7 and 6.
            &[("jcr:title", 7, "Other"), ("date", 0, "2025-01-01"), ("date", 7, "2020-01-01")][..],
            &[
                ("jcr:title", 2, "Other"),
                ("date", 1, "2023-01-01"),
                ("date", 8, "2026-01-01"),
                ("cq:tags", 7, "none"),
            ][..],
        ),
        (
            "{% for one in pages(\"/content/site/en/zebra\", order=\"title\", tag=\"even\") %}{{ one.name }}{% endfor %}",
            &[("cq:tags", 4, "even"), ("cq:tags", 5, "odd"), ("jcr:title", 1, "Last")],
            &[("jcr:title", 2, "Other"), ("jcr:title", 1, "Article 0"), ("cq:tags", 8, "none")],
        ),
        (
            "{% for one in tags(\"/content/site/en/zebra\") %}{{ one.title }} {{ one.count }}{% endfor %}",
            &[("cq:tags", 4, "even")],
            &[("jcr:title", 2, "Other"), ("date", 3, "2020-01-01")],
        ),
    ] {
        let publisher = Publisher::new().await;
        articles(&publisher, list);
        // The list is not drawn again here: its record decides alone.
        let set = |(name, number, value): (&str, usize, &str)| {
            let before = publisher.snapshot();
            publisher.site.edit(|session| {
                let path = NodePath::new(&article(number)).unwrap();
                let value = if name == "date" { date(value) } else { value.to_owned() };
                session.set_property(&path, name, value.as_str().into()).unwrap();
            });
            publisher.ledger.affected_urls(&before, &publisher.snapshot()).unwrap()
        };
        publisher.ledger.acknowledge_step(publisher.snapshot().root_id());
        publisher.keep(LIST, By::Anybody);
        for edit in unseen {
            assert_eq!(set(*edit).urls, NOTHING, "{edit:?} does not show in {list}");
        }
        for edit in seen {
            let affected = set(*edit);
            assert_eq!(publisher.flush(&affected), [LIST], "{edit:?} shows in {list}");
            publisher.keep(LIST, By::Anybody);
        }
        assert!(publisher.count("lists_unchanged") > 0);
    }
}

#[tokio::test]
async fn lists_are_asked_once_for_all_pages_that_have_them() {
    let publisher = Publisher::new().await;
    articles(
        &publisher,
        "{% for one in pages(\"/content/site/en/zebra\", order=\"date\", limit=2) %}{{ one.title }}{% endfor %}",
    );
    publisher.site.edit(|session| {
        for number in 0..300 {
            let content = component("jcr:content", "test/list").with_property("jcr:title", "x");
            let path = NodePath::new(&format!("/content/site/en/apple/p{number}")).unwrap();
            session.put_node(&path, Subtree::new("p", "cq:Page").with_child(content)).unwrap();
        }
    });
    let url = |number: usize| format!("/content/site/en/apple/p{number}.html");
    (0..300).for_each(|number| publisher.keep(&url(number), By::Anybody));
    // More than are drawn for comparison.
    assert_eq!(publisher.set(&article(0), "date", &date("2023-03-03")).urls, NOTHING);
    assert_eq!(
        (publisher.count("lists_requeried"), publisher.count("comparison_renderings")),
        (1, 0)
    );
    let affected = publisher.set(&article(0), "date", &date("2025-03-03"));
    assert_eq!(publisher.flush(&affected).len(), 300);
    assert_eq!(publisher.count("lists_requeried"), 2);
}

#[tokio::test]
async fn lists_are_known_after_a_kill() {
    let mut publisher = Publisher::new().await;
    articles(
        &publisher,
        "{% for one in pages(\"/content/site/en/zebra\", order=\"date\", limit=2) %}{{ one.name }}{% endfor %}",
    );
    publisher.keep(LIST, By::Anybody);
    publisher.ledger.store_pending().await.unwrap();
    publisher.restart().await;
    assert_eq!(publisher.set(&article(0), "date", &date("2023-03-03")).urls, NOTHING);
    assert_eq!(publisher.count("lists_requeried"), 1);
    // Nobody asked it again for a while: what it answered then is not what it answered before the next change.
    let gone =
        publisher.set("/content/site/en/list/jcr:content", "sling:resourceType", "test/page");
    assert_eq!(publisher.flush(&gone), [LIST]);
    publisher.keep(LIST, By::Anybody);
    assert_eq!(publisher.set(&article(0), "date", &date("2025-03-03")).urls, NOTHING);
    let back =
        publisher.set("/content/site/en/list/jcr:content", "sling:resourceType", "test/list");
    assert_eq!(publisher.flush(&back), [LIST]);
    publisher.keep(LIST, By::Anybody);
    let affected = publisher.set(&article(0), "date", &date("2023-03-03"));
    assert_eq!(publisher.flush(&affected), [LIST]);
}

#[tokio::test]
async fn a_list_that_changed_while_it_was_rendered_is_rendered_again() {
    let publisher = Publisher::new().await;
    articles(
        &publisher,
        "{% for one in pages(\"/content/site/en/zebra\", order=\"date\", limit=2) %}{{ one.name }}{% endfor %}",
    );
    let when = publisher.begin();
    let (drawn, look) = publisher.answer(LIST, By::Anybody);
    // Nobody knows of the list when the change is answered.
    publisher.set(&article(0), "date", &date("2025-03-03"));
    assert_eq!(publisher.ledger.record_answer(when, LIST, &drawn, look), RecordOutcome::Outdated);
}

/// A site of pages that show a navigation of sections and a teaser of the page before them.
fn sections(publisher: &Publisher, pages: usize) -> Vec<String> {
    let template = "{% for one in nav(\"/content/big\") %}{{ one.title }}{% endfor %}{{ page.title }}\
        {{ node(properties.other).properties[\"jcr:title\"] }}{{ properties.text|trim }}";
    publisher.site.script("/apps/test/section/section.html.j2", template);
    let path_of = |number: usize| format!("/content/big/s{}/p{number}", number % 20);
    publisher.site.put("/content/big/s0", page("s0", "Section 0", "test/section"));
    publisher.site.edit(|session| {
        for number in 1..20 {
            let section = page("s", &format!("Section {number}"), "test/section");
            session
                .put_node(&NodePath::new(&format!("/content/big/s{number}")).unwrap(), section)
                .unwrap();
        }
        for number in 0..pages {
            let other = format!("{}/jcr:content", path_of(number.saturating_sub(1)));
            let content = component("jcr:content", "test/section")
                .with_property("jcr:title", format!("Page {number}").as_str())
                .with_property("other", other.as_str())
                .with_property("text", "Text");
            let tree = Subtree::new("p", "cq:Page").with_child(content);
            session.put_node(&NodePath::new(&path_of(number)).unwrap(), tree).unwrap();
        }
    });
    (0..pages).map(|number| format!("{}.html", path_of(number))).collect()
}

#[tokio::test]
async fn a_publish_renders_exactly_the_pages_that_show_it_once_each() {
    let publisher = Publisher::bounded(10_000).await;
    let urls = sections(&publisher, 1000);
    urls.iter().for_each(|url| publisher.keep(url, By::Filler));
    let content = |number: usize| format!("/content/big/s{}/p{number}/jcr:content", number % 20);
    let title = "/content/big/s3/jcr:content".to_owned();
    for (path, name, value, expected, compared) in [
        (content(500), "text", "Another text", 1, 1),
        (content(500), "jcr:title", "Another title", 2, 2),
        // Blanks that nothing shows.
        (content(500), "text", "  Another text", 0, 1),
        (content(500), "cq:lastReplicated", "now", 0, 0),
        // Each page reads the title, so that none is in doubt.
        (title, "jcr:title", "Everywhere", urls.len(), 0),
    ] {
        let before =
            [publisher.count("renderings_recorded"), publisher.count("comparison_renderings")];
        let affected = publisher.set(&path, name, value);
        let named = publisher.flush(&affected);
        named.iter().for_each(|url| publisher.keep(url, By::Filler));
        let after =
            [publisher.count("renderings_recorded"), publisher.count("comparison_renderings")];
        assert_eq!(named.len(), expected, "{name} of {path}");
        assert_eq!(after[0] - before[0], expected as u64, "{name} of {path}: drawn once each");
        assert_eq!(after[1] - before[1], compared, "{name} of {path}: drawn to compare");
    }
}
