//! R7: one page of 10,000 is published, then a title that every page shows.
//!
//! Every page shows a navigation of all sections and a teaser of the page before it. In this process: content, renderer
//! and ledger are the program's, the dispatcher is a map from URLs to what was drawn.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use tympan_content::{NodePath, Property, Repository, Snapshot, Subtree, Value};
use tympan_render::ledger::{DependencyLedger, RecordOutcome, ResponseFingerprint};
use tympan_render::{ReadRecording, RenderOptions, RenderRequest, RenderResponseBody, Renderer};

use crate::Outcome;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::row::record::open_ledger;

const ROW: &str = "R7";
pub(super) const PAGES: usize = 10_000;
pub(super) const QUICK_PAGES: usize = 2_000;
const SECTIONS: usize = 20;

const TEMPLATE: &str = "<title>{{ page.title }}</title>\
    {% for one in nav(\"/content/site\") %}<a href=\"{{ one.url }}\">{{ one.title }}</a>{% endfor %}\
    <p>{{ properties.text|trim }}</p>{% set other = node(properties.other) %}\
    <aside>{{ other.properties[\"jcr:title\"] }}</aside>";

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pages = if context.is_quick { QUICK_PAGES } else { PAGES };
    let folder = context.new_folder("fresh-")?;
    let site = Site::new(pages, &folder)?;
    let all = urls(pages);
    all.iter().try_for_each(|url| site.fetch(url).map(drop))?;
    let mut cache = HashMap::new();
    for url in &all {
        cache.insert(url.clone(), site.fetch(url)?);
    }
    let edited = pages / 2;
    let (named, _) = site.edit(&content_of(edited), "text", "A text that nobody else shows")?;
    let one = refresh(&site, &mut cache, &named)?;
    let title = "A title that the next page shows";
    let (named, compared) = site.edit(&content_of(edited), "jcr:title", title)?;
    let two = refresh(&site, &mut cache, &named)?;
    // Written anew with the blanks around it that nothing shows; the record alone would name both pages.
    let (named, again) =
        site.edit(&content_of(edited), "text", "  A text that nobody else shows")?;
    let none = refresh(&site, &mut cache, &named)?;
    let stale = all.iter().filter(|url| site.fetch(url).ok().as_ref() != cache.get(*url)).count();
    let mut figures = vec![
        Figure::value(
            ROW,
            format!("a text of one page of {pages}: pages drawn anew"),
            one,
            "pages",
        )
        .goal(Goal::Exactly(1.0)),
        Figure::value(ROW, "its title, which another page shows: pages drawn anew", two, "pages")
            .goal(Goal::Exactly(2.0))
            .note(format!("{compared} drawings in the publisher before, to see who shows it")),
        Figure::value(ROW, "blanks that no page shows: pages drawn anew", none, "pages")
            .goal(Goal::Exactly(0.0))
            .note(format!("{again} drawings in the publisher")),
        Figure::value(ROW, "pages left old after these", to_f64(stale), "pages")
            .goal(Goal::Exactly(0.0)),
    ];
    figures.extend(sweep(&site, &all)?);
    Ok(figures)
}

/// Changes a title that every page shows while visitors go on, and tells when the last old page is gone.
fn sweep(site: &Site, all: &[String]) -> Outcome<Vec<Figure>> {
    let (is_over, visits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let visitor = scope.spawn(|| {
            let mut at = 0;
            while !is_over.load(Ordering::Relaxed) {
                at = (at + 7919) % all.len();
                let url = all.get(at).map(String::as_str).unwrap_or_default();
                visits.fetch_add(u64::from(site.fetch(url).is_ok()), Ordering::Relaxed);
            }
        });
        let began = Instant::now();
        let swept = site.edit("/content/site/s3/jcr:content", "jcr:title", "Everywhere");
        let found = began.elapsed();
        let drawn = swept.and_then(|(named, _)| {
            named.iter().try_for_each(|url| site.fetch(url).map(drop))?;
            Ok(named.len())
        });
        let took = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        if visitor.join().is_err() {
            return Err("the visitor's thread panicked".into());
        }
        let drawn = drawn?;
        let note = format!(
            "commit and look-up took {:.1} ms; a second thread drew {} pages meanwhile",
            found.as_secs_f64() * 1e3,
            visits.load(Ordering::Relaxed)
        );
        let count = Figure::value(
            ROW,
            "a title that every page shows: pages drawn anew",
            to_f64(drawn),
            "pages",
        );
        let time = Figure::value(
            ROW,
            "the same under load: time until the last old page is gone",
            took.as_secs_f64() * 1e3,
            "ms",
        );
        Ok(vec![count.goal(Goal::Exactly(to_f64(all.len()))), time.note(note)])
    })
}

/// Draws what was named; returns how many pages that were.
fn refresh(site: &Site, cache: &mut HashMap<String, Vec<u8>>, named: &[String]) -> Outcome<f64> {
    for url in named {
        cache.insert(url.clone(), site.fetch(url)?);
    }
    Ok(to_f64(named.len()))
}

#[expect(clippy::cast_precision_loss, reason = "a small count")]
fn to_f64(count: usize) -> f64 {
    count as f64
}

/// A publisher in this process.
struct Site {
    repository: Repository,
    renderer: Renderer,
    ledger: DependencyLedger,
    runtime: tokio::runtime::Runtime,
}

impl Site {
    fn new(pages: usize, folder: &Path) -> Outcome<Self> {
        let repository = Repository::in_memory()?;
        write_pages(&repository, pages)?;
        let renderer = Renderer::new(&repository, RenderOptions::default());
        let (ledger, runtime) = open_ledger(folder)?;
        ledger.acknowledge_step(repository.snapshot()?.root_id());
        Ok(Self { repository, renderer, ledger, runtime })
    }

    /// Answers a URL as a publisher does.
    fn fetch(&self, url: &str) -> Outcome<Vec<u8>> {
        loop {
            let ticket = self.ledger.begin_rendering();
            let request =
                RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
            let snapshot = self.repository.snapshot()?;
            let drawn = self.renderer.render(&snapshot, &request);
            let (look, when) = (
                ResponseFingerprint::from_response(&drawn, &request),
                (ticket, snapshot.visible_root_id()),
            );
            match self.ledger.record_answer(when, url, &drawn, look) {
                RecordOutcome::Outdated => {}
                RecordOutcome::NotRecorded | RecordOutcome::TooManyFaults => {
                    return Err("the ledger cannot be written".into());
                }
                RecordOutcome::Recorded => match drawn.body {
                    RenderResponseBody::Bytes(bytes) => return Ok(bytes.to_vec()),
                    other => return Err(format!("{url} is drawn as {other:?}").into()),
                },
            }
        }
    }

    /// Publishes a property and returns the URLs to draw anew, and how many were drawn to find them.
    fn edit(&self, path: &str, name: &str, value: &str) -> Outcome<(Vec<String>, u64)> {
        let before = self.repository.snapshot()?;
        let mut session = self.repository.session("bench")?;
        session.set_property(&NodePath::new(path)?, name, value.into())?;
        session.commit("edit", SystemTime::UNIX_EPOCH)?;
        let compared = AtomicU64::new(0);
        let draw = |state: &Snapshot, request: &RenderRequest<'_>| {
            compared.fetch_add(1, Ordering::Relaxed);
            Some(self.renderer.render(state, request))
        };
        let after = self.repository.snapshot()?;
        let affected = self.ledger.visibly_affected_urls(&before, &after, &draw)?;
        self.ledger.acknowledge(&affected);
        self.runtime.block_on(self.ledger.store_pending())?;
        Ok((affected.urls, compared.into_inner()))
    }
}

/// Writes the pages, and what draws them.
pub(super) fn write_pages(repository: &Repository, pages: usize) -> Outcome<()> {
    let mut session = repository.session("bench")?;
    for path in ["/apps", "/apps/bench", "/apps/bench/page", "/content"] {
        let path = NodePath::new(path)?;
        if session.node(&path)?.is_none() {
            session.put_node(&path, Subtree::new("", "sling:Folder"))?;
        }
    }
    let script = NodePath::new("/apps/bench/page/page.html.j2")?;
    let blob = repository.blobs().put(&mut TEMPLATE.as_bytes())?;
    let data = Subtree::new("jcr:content", "nt:resource")
        .with_property("jcr:data", Property::Single(Value::Binary(blob)))
        .with_property("jcr:mimeType", "text/plain");
    session.put_node(&script, Subtree::new("page.html.j2", "nt:file").with_child(data))?;
    session.put_node(&NodePath::new("/content/site")?, page("site", "Site", "/content/site"))?;
    for section in 0..SECTIONS {
        let name = format!("s{section}");
        let path = NodePath::new(&format!("/content/site/{name}"))?;
        session.put_node(&path, page(&name, &format!("Section {section}"), "/content/site"))?;
    }
    for number in 0..pages {
        let path = NodePath::new(&path_of(number))?;
        let other = content_of(number.saturating_sub(1));
        session.put_node(&path, page(path.name(), &format!("Page {number}"), &other))?;
    }
    session.commit("pages", SystemTime::UNIX_EPOCH)?;
    Ok(())
}

/// Returns the URLs of so many pages.
pub(super) fn urls(pages: usize) -> Vec<String> {
    (0..pages).map(|number| format!("{}.html", path_of(number))).collect()
}

fn path_of(number: usize) -> String {
    format!("/content/site/s{}/p{number}", number % SECTIONS)
}

fn content_of(number: usize) -> String {
    format!("{}/jcr:content", path_of(number))
}

fn page(name: &str, title: &str, other: &str) -> Subtree {
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("sling:resourceType", "bench/page")
        .with_property("jcr:title", title)
        .with_property("text", "Some text")
        .with_property("other", other);
    Subtree::new(name, "cq:Page").with_child(content)
}
