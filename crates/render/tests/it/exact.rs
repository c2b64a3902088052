//! The promise of the ledger: whatever is edited, every URL whose bytes differ is named.
//!
//! `TYMPAN_EDITS` edits of each site (200 unless set) are compared for `TYMPAN_URLS` URLs (30 unless set), some of them
//! after the process lost everything that was not stored. What is named without need is counted and printed, by what of
//! it was touched: by the record alone, and after the URLs were drawn again and compared.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tympan_content::{Node, NodePath, Repository, Viewer};
use tympan_render::ledger::{
    AffectedUrls, DependencyLedger, LedgerOptions, MIGRATIONS, RecordOutcome, ResponseFingerprint,
};
use tympan_render::{
    ChangedAspects, DependencySet, FragmentCache, FragmentCacheOptions, ReadRecording,
    RenderOptions, RenderRequest, RenderResponse, Renderer, RequestFacts,
};
use tympan_testkit::StateDatabase;

use crate::corpus::{self, documents};
use crate::edits::{Change, Random, anything, authoring};
use crate::site::body_text;
use crate::wild;

/// A number of the environment.
fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A publisher with a cache of everything that it drew.
struct World {
    repository: Repository,
    renderer: Renderer,
    /// Draws what the publisher keeps, with a fragment cache; without one, the renderer does.
    kept: Option<Renderer>,
    viewer: Viewer,
    runtime: Runtime,
    folder: TempDir,
    ledger: Option<DependencyLedger>,
    urls: Vec<String>,
    cached: HashMap<String, String>,
    /// What each of these was drawn from, and whether it can be compared.
    read: HashMap<String, (DependencySet, bool)>,
    change: Change,
    random: Random,
    /// URLs that were drawn since rows were stored, and those that a kill made uncertain.
    unstored: Vec<String>,
    lost: Vec<String>,
}

/// An edit that was made.
struct Edited {
    affected: AffectedUrls,
    touched: ChangedAspects,
    what: String,
}

impl World {
    fn new(
        repository: Repository,
        urls: Vec<String>,
        seed: u64,
        (change, fragments): (Change, Option<FragmentCacheOptions>),
    ) -> Self {
        let kept = fragments.map(|options| {
            let renderer = Renderer::new(&repository, RenderOptions::default());
            renderer.with_fragments(FragmentCache::new(options))
        });
        let renderer = Renderer::new(&repository, RenderOptions::default());
        let viewer = Viewer::anonymous();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut world = Self {
            repository,
            renderer,
            kept,
            viewer,
            runtime,
            folder: tempfile::tempdir().unwrap(),
            ledger: None,
            urls,
            cached: HashMap::new(),
            read: HashMap::new(),
            change,
            random: Random(seed),
            unstored: Vec::new(),
            lost: Vec::new(),
        };
        world.restart();
        let begun = world.ledger().pending_flushes();
        assert_eq!(begun.scopes, ["/"], "what was drawn before there was a ledger is not known");
        world.ledger().acknowledge(&begun);
        world.runtime.block_on(world.ledger().store_pending()).unwrap();
        for url in world.urls.clone() {
            world.refresh(&url);
            world.unstored.push(url);
        }
        world
    }

    /// Opens the ledger, anew if there was one: what that had not stored is lost with it.
    fn restart(&mut self) {
        drop(self.ledger.take());
        self.lost.append(&mut self.unstored);
        let folder = self.folder.path().to_owned();
        self.ledger = Some(self.runtime.block_on(async {
            let state = StateDatabase::open(&folder.join("state.db")).await.unwrap();
            state.migrate_tables("render", MIGRATIONS).await.unwrap();
            let options = LedgerOptions {
                pool: state.pool().clone(),
                folder,
                publisher: "one".to_owned(),
                boot: "same".to_owned(),
                renderer_fingerprint: "the same".to_owned(),
                max_urls: 10_000,
            };
            DependencyLedger::open(options, SystemTime::UNIX_EPOCH).await.unwrap()
        }));
    }

    fn ledger(&self) -> &DependencyLedger {
        self.ledger.as_ref().unwrap()
    }

    /// Draws a URL as a publisher does and keeps what it gave, unless it is one visitor's alone.
    fn refresh(&mut self, url: &str) {
        let when = (
            self.ledger().begin_rendering(),
            self.repository.snapshot().unwrap().visible_root_id(),
        );
        let drawn = self.answer(self.kept.as_ref().unwrap_or(&self.renderer), url);
        let look = ResponseFingerprint::from_response(&drawn, &recorded(url));
        let is_comparable = look.is_some();
        assert_eq!(self.ledger().record_answer(when, url, &drawn, look), RecordOutcome::Recorded);
        if drawn.reads.facts.intersects(RequestFacts::USER) {
            self.cached.remove(url);
            return;
        }
        self.cached.insert(url.to_owned(), text_of(&drawn));
        self.read.insert(url.to_owned(), (drawn.reads.dependencies(), is_comparable));
    }

    fn draw(&self, url: &str) -> String {
        text_of(&self.answer(&self.renderer, url))
    }

    fn answer(&self, renderer: &Renderer, url: &str) -> RenderResponse {
        let snapshot = self.repository.snapshot().unwrap().as_viewer(&self.viewer);
        renderer.render(&snapshot, &recorded(url))
    }

    /// Edits something; nothing if content refused it.
    fn edit(&mut self) -> Option<Edited> {
        let before = self.repository.snapshot().unwrap();
        let mut session = self.repository.session("test").unwrap();
        let what = (self.change)(&self.repository, &self.urls, &mut session, &mut self.random)?;
        session.commit("edit", SystemTime::UNIX_EPOCH).ok()?;
        let after = self.repository.snapshot().unwrap();
        let renderer = self.kept.as_ref().unwrap_or(&self.renderer);
        let [seen_before, seen_after] =
            [&before, &after].map(|state| state.as_viewer(&self.viewer));
        let affected =
            self.ledger().visibly_affected_urls(&seen_before, &seen_after, &|state, request| {
                Some(renderer.render(state, request))
            });
        let touched = ChangedAspects::between_snapshots(&before, &after).unwrap();
        Some(Edited { affected: affected.unwrap(), touched, what })
    }
}

/// Asks as half of the caches do that fill in includes, or as others.
fn recorded(url: &str) -> RenderRequest<'_> {
    let fills_includes = url.len().is_multiple_of(2);
    let (recording, host) = (ReadRecording::Paths, wild::host());
    RenderRequest { recording, host, supports_includes: fills_includes, ..RenderRequest::get(url) }
}

/// Returns all that a client gets.
fn text_of(drawn: &RenderResponse) -> String {
    let RenderResponse { outcome, content_type, headers, .. } = drawn;
    format!("{outcome:?} {content_type} {headers:?}\n{}", body_text(drawn))
}

/// What a run found.
#[derive(Default)]
struct Found {
    edits: usize,
    named: usize,
    changed: usize,
    /// URLs that read something that was touched.
    concerned: usize,
    /// URLs that were named because a kill lost what they were drawn from.
    unknown: usize,
    /// Those that are concerned and look the same, by what was touched.
    needless: BTreeMap<String, usize>,
    /// The same, by the kind of edit.
    by_edit: BTreeMap<String, usize>,
    /// Those that were named, by the reason for that.
    in_vain: BTreeMap<String, usize>,
}

/// After so many edits little is left of a site that shows anything, and it is begun anew.
const ROUND: usize = 400;

/// Makes edits, each round of them to a world of its own. Returns what was found, and the last world.
fn run_all(edits: usize, begin: impl Fn(u64) -> World) -> (Found, World) {
    let (mut all, mut round) = (Found::default(), 0);
    loop {
        let mut world = begin(round);
        all.add(run(&mut world, (edits - all.edits).min(ROUND)));
        round += 1;
        if all.edits >= edits {
            return (all, world);
        }
    }
}

fn run(world: &mut World, edits: usize) -> Found {
    let mut found = Found::default();
    while found.edits < edits {
        if world.random.below(25) == 0 {
            world.restart();
        }
        let Some(Edited { affected, touched, what }) = world.edit() else { continue };
        found.edits += 1;
        assert_eq!(affected.scopes, Vec::<String>::new());
        for url in world.urls.clone() {
            let text = world.draw(&url);
            if let Some(kept) = &world.kept {
                let kept = text_of(&world.answer(kept, &url));
                assert_eq!(kept, text, "after {what} a fragment of {url} is old");
            }
            let Some(old) = world.cached.get(&url) else { continue };
            let (read, is_comparable) = &world.read[&url];
            let is_named = affected.urls.contains(&url);
            let is_concerned = touched.affects(read);
            found.concerned += usize::from(is_concerned);
            if *old != text {
                assert!(is_named, "after {what} the old {url} would stay:\n{old}\n\nnow {text}");
                found.changed += 1;
                found.named += 1;
                continue;
            }
            if is_concerned {
                let kind = match touched.is_everything_changed() {
                    true => "anything".to_owned(),
                    false => format!("{:?}", touched.common_aspects(read)),
                };
                *found.needless.entry(kind).or_default() += 1;
                let edit = what
                    .split_once(" of ")
                    .or(what.split_once(" /"))
                    .map_or(&*what, |(edit, _)| edit);
                *found.by_edit.entry(edit.to_owned()).or_default() += 1;
            }
            match (is_named, is_concerned) {
                (false, _) => {}
                (true, false) => found.unknown += 1,
                (true, true) => {
                    found.named += 1;
                    let why = match (world.lost.contains(&url), is_comparable) {
                        (true, _) => "lost with a kill",
                        (false, false) => "cannot be drawn again",
                        (false, true) => "other",
                    };
                    *found.in_vain.entry(format!("{why}: {url}")).or_default() += 1;
                }
            }
        }
        world.lost.clear();
        world.ledger().acknowledge(&affected);
        for url in &affected.urls {
            world.refresh(url);
            world.unstored.push(url.clone());
        }
        // What nobody could keep is asked for again.
        for url in world.urls.clone() {
            if !world.cached.contains_key(&url) {
                world.refresh(&url);
                world.unstored.push(url);
            }
        }
        // Rows are stored a moment later, mostly before the next change.
        if world.random.below(4) > 0 {
            world.runtime.block_on(world.ledger().store_pending()).unwrap();
            world.unstored.clear();
        }
    }
    found
}

/// Chooses URLs of a site: pages, their JSON, files, and what is not there.
fn choose(repository: &Repository, below: &str, count: usize, seed: u64) -> Vec<String> {
    let mut random = Random(seed);
    let documents = documents(repository);
    let within: Vec<&Node> =
        documents.iter().filter(|node| node.path().as_str().starts_with(below)).collect();
    let pages: Vec<&&Node> = within.iter().filter(|node| node.is_page()).collect();
    let files: Vec<&Node> = documents
        .iter()
        .filter(|node| matches!(node.primary_type(), "dam:Asset" | "nt:file"))
        .filter(|node| node.path().as_str().starts_with("/content/dam"))
        .collect();
    let mut urls = Vec::new();
    while urls.len() < count {
        let page = random.pick(&pages).unwrap().path().as_str();
        let url = match random.below(12) {
            0 => format!("{page}.1.json"),
            1 => format!("{page}/missing-{}.html", random.below(3)),
            2 => format!("{page}.print.html"),
            3 => {
                random.pick(&files).map_or_else(|| page.to_owned(), |file| file.path().to_string())
            }
            _ => format!("{page}.html"),
        };
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

impl Found {
    fn add(&mut self, other: Self) {
        let Self { edits, named, changed, concerned, unknown, needless, by_edit, in_vain } = other;
        self.edits += edits;
        self.named += named;
        self.changed += changed;
        self.concerned += concerned;
        self.unknown += unknown;
        for (all, more) in [
            (&mut self.needless, needless),
            (&mut self.by_edit, by_edit),
            (&mut self.in_vain, in_vain),
        ] {
            more.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
        }
    }

    /// Refuses more than one URL of twenty that is named without need.
    fn check(&self) {
        let needless = self.named - self.changed;
        assert!(20 * needless <= self.named, "{needless} of {} without need", self.named);
    }
}

#[expect(clippy::print_stdout, reason = "the share is what the test is read for")]
fn report(site: &str, found: &Found) {
    let share = |of: usize| 100.0 * (of - found.changed) as f64 / of.max(1) as f64;
    println!(
        "{site}: {} edits, {} URLs differ; concerned by record {} ({:.1} % without need), named {} ({:.1} % without need) and {} that a kill made uncertain",
        found.edits,
        found.changed,
        found.concerned,
        share(found.concerned),
        found.named,
        share(found.named),
        found.unknown,
    );
    for (what, counts) in [
        ("without need by the record, by touched", &found.needless),
        ("without need by the record, by edit", &found.by_edit),
        ("named without need", &found.in_vain),
    ] {
        let mut counts: Vec<_> = counts.iter().collect();
        counts.sort_by_key(|(kind, count)| (std::cmp::Reverse(**count), (*kind).clone()));
        let most = counts.iter().take(12).map(|(kind, count)| format!("{count} {kind}"));
        println!("  {what}: {}", most.collect::<Vec<_>>().join(", "));
    }
}

#[test]
fn every_url_whose_bytes_differ_is_named_on_the_sample_site() {
    let (found, _) = run_all(setting("TYMPAN_EDITS", 200), |round| {
        let repository = corpus::sample();
        let urls = choose(&repository, "/content/wayfare", setting("TYMPAN_URLS", 30), 7 + round);
        World::new(repository, urls, 0x5eed + round, (anything, None))
    });
    report("sample site, anything edited", &found);
    found.check();
}

#[test]
fn every_url_whose_bytes_differ_is_named_whatever_pages_use() {
    // There is much to draw.
    let (found, _) = run_all(setting("TYMPAN_EDITS", 200) / 5, |round| {
        let repository = wild::site();
        let count = setting("TYMPAN_URLS", 30) / 3;
        let mut urls = choose(&repository, "/content/wayfare", count, 17 + round);
        urls.extend(wild::URLS.iter().map(|url| (*url).to_owned()));
        World::new(repository, urls, 0xd1ce + round, (wild::edit, None))
    });
    // A page with a query is named by any change.
    report("sample site, all that pages use", &found);
    assert!(found.changed > found.edits / 2, "{}", found.changed);
}

#[test]
fn what_authors_do_names_what_shows_it_and_no_more() {
    let repository = corpus::sample();
    let urls: Vec<String> = documents(&repository)
        .iter()
        .filter(|node| node.is_page() && node.path().as_str().starts_with("/content/wayfare"))
        .map(|node| format!("{}.html", node.path()))
        .collect();
    drop(repository);
    let (found, _) = run_all(setting("TYMPAN_EDITS", 200) / 4, |round| {
        World::new(corpus::sample(), urls.clone(), 0xfeed + round, (authoring, None))
    });
    report("sample site, as authors do", &found);
    found.check();
}

#[test]
fn every_url_whose_bytes_differ_is_named_on_the_wknd_site() {
    if corpus::wknd().is_none() {
        return;
    }
    // Its pages take longer to draw.
    let (found, _) = run_all(setting("TYMPAN_EDITS", 200) * 3 / 5, |round| {
        let repository = corpus::wknd().unwrap();
        let urls = choose(&repository, "/content/wknd", setting("TYMPAN_URLS", 30), 11 + round);
        World::new(repository, urls, 0xabcd + round, (anything, None))
    });
    report("WKND, anything edited", &found);
    found.check();
}

#[test]
fn no_fragment_shows_an_old_byte() {
    // Small enough that fragments go for want of room, too.
    let small = || FragmentCacheOptions {
        max_bytes: 150_000,
        avg_bytes: 100_000,
        ..FragmentCacheOptions::default()
    };
    let (found, world) = run_all(setting("TYMPAN_EDITS", 200) / 2, |round| {
        let repository = corpus::sample();
        corpus::commit(&repository, |session| {
            let apps = NodePath::new("/apps").unwrap();
            session.set_property(&apps, "cache", "always".into()).unwrap();
        });
        let count = setting("TYMPAN_URLS", 30) / 2;
        let urls = choose(&repository, "/content/wayfare", count, 13 + round);
        World::new(repository, urls, 0xcafe + round, (anything, Some(small())))
    });
    report("sample site with fragments", &found);
    let report = world.kept.as_ref().unwrap().fragments().unwrap().report(0);
    assert!(report.hits > 1000 && report.evicted > 0, "{report:?}");
}
