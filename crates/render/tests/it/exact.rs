//! The promise of the ledger: whatever is edited, every URL whose bytes differ is named.
//!
//! `TYMPAN_EDITS` edits of each site (200 unless set) are compared for `TYMPAN_URLS` URLs (30 unless set), some of them
//! after the process lost everything that was not stored. What is named without need is counted and printed.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tympan_content::{Date, Node, NodePath, Property, Repository, Session, Subtree, Value, Viewer};
use tympan_render::ledger::{Affected, Ledger, LedgerOptions, MIGRATIONS, Recorded};
use tympan_render::{FragmentCache, FragmentOptions, Options, Recording, RenderRequest, Renderer};
use tympan_testkit::State;

use crate::corpus::{self, documents, put_below};
use crate::site::{body_text, file, page};

/// A number of the environment.
fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Numbers that repeat with the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
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
    ledger: Option<Ledger>,
    urls: Vec<String>,
    cached: HashMap<String, String>,
    random: Random,
}

impl World {
    fn new(
        repository: Repository,
        urls: Vec<String>,
        seed: u64,
        fragments: Option<FragmentOptions>,
    ) -> Self {
        let kept = fragments.map(|options| {
            let renderer = Renderer::new(&repository, Options::default());
            renderer.with_fragments(FragmentCache::new(options))
        });
        let renderer = Renderer::new(&repository, Options::default());
        let viewer = repository.viewer(None).unwrap();
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
            random: Random(seed),
        };
        world.restart();
        let begun = world.ledger().owed();
        assert_eq!(begun.scopes, ["/"], "what was drawn before there was a ledger is not known");
        world.ledger().settle(&begun);
        world.runtime.block_on(world.ledger().store()).unwrap();
        for url in world.urls.clone() {
            world.refresh(&url);
        }
        world
    }

    /// Opens the ledger, anew if there was one: what that had not stored is lost with it.
    fn restart(&mut self) {
        drop(self.ledger.take());
        let folder = self.folder.path().to_owned();
        self.ledger = Some(self.runtime.block_on(async {
            let state = State::open(&folder.join("state.db")).await.unwrap();
            state.migrate("render", MIGRATIONS).await.unwrap();
            let options = LedgerOptions {
                pool: state.pool().clone(),
                folder,
                publisher: "one".to_owned(),
                boot: "same".to_owned(),
                max_urls: 10_000,
            };
            Ledger::open(options, SystemTime::UNIX_EPOCH).await.unwrap()
        }));
    }

    fn ledger(&self) -> &Ledger {
        self.ledger.as_ref().unwrap()
    }

    /// Draws a URL as a publisher does and keeps what it gave.
    fn refresh(&mut self, url: &str) {
        let ticket = self.ledger().ticket();
        let (text, read) = self.draw_with(self.kept.as_ref().unwrap_or(&self.renderer), url);
        assert_eq!(self.ledger().record(ticket, url, &read), Recorded::Kept);
        self.cached.insert(url.to_owned(), text);
    }

    fn draw(&self, url: &str) -> String {
        self.draw_with(&self.renderer, url).0
    }

    fn draw_with(&self, renderer: &Renderer, url: &str) -> (String, tympan_render::Dependencies) {
        let snapshot = self.repository.snapshot().unwrap().seen_by(&self.viewer);
        let request = RenderRequest { recording: Recording::Paths, ..RenderRequest::get(url) };
        let drawn = renderer.render(&snapshot, &request);
        let text = format!(
            "{:?} {} {:?}\n{}",
            drawn.outcome,
            drawn.content_type,
            drawn.headers,
            body_text(&drawn)
        );
        (text, drawn.reads.dependencies())
    }

    /// Edits something; returns the answer of the ledger and what was done, or nothing if content refused it.
    fn edit(&mut self) -> Option<(Affected, String)> {
        let before = self.repository.snapshot().unwrap();
        let mut session = self.repository.session("test").unwrap();
        let what = change(&self.repository, &self.urls, &mut session, &mut self.random)?;
        session.commit("edit", SystemTime::UNIX_EPOCH).ok()?;
        let after = self.repository.snapshot().unwrap();
        Some((self.ledger().affected(&before, &after).unwrap(), what))
    }
}

/// What a run found.
#[derive(Default)]
struct Found {
    edits: usize,
    named: usize,
    changed: usize,
    /// Edits that had to name all.
    sweeping: usize,
}

fn run(world: &mut World, edits: usize) -> Found {
    let mut found = Found::default();
    while found.edits < edits {
        if world.random.below(25) == 0 {
            if world.random.below(2) == 0 {
                world.runtime.block_on(world.ledger().store()).unwrap();
            }
            world.restart();
        }
        let Some((affected, what)) = world.edit() else { continue };
        found.edits += 1;
        assert_eq!(affected.scopes, Vec::<String>::new());
        let mut changed = 0;
        for url in world.urls.clone() {
            let text = world.draw(&url);
            if let Some(kept) = &world.kept {
                let (kept, _) = world.draw_with(kept, &url);
                assert_eq!(kept, text, "after {what} a fragment of {url} is old");
            }
            if world.cached[&url] != text {
                let old = &world.cached[&url];
                let is_named = affected.urls.contains(&url);
                assert!(is_named, "after {what} the old {url} would stay:\n{old}\n\nnow {text}");
                changed += 1;
            }
        }
        if affected.urls.len() == world.urls.len() && changed * 2 < world.urls.len() {
            found.sweeping += 1;
        } else {
            found.named += affected.urls.len();
            found.changed += changed;
        }
        world.ledger().settle(&affected);
        for url in &affected.urls {
            world.refresh(url);
        }
    }
    found
}

/// Changes something at random; says what. Content may refuse it.
#[expect(clippy::too_many_lines, reason = "a flat list of edits")]
fn change(
    repository: &Repository,
    urls: &[String],
    session: &mut Session,
    random: &mut Random,
) -> Option<String> {
    let documents = documents(repository);
    let is_content = |node: &&Node| node.path().as_str().starts_with("/content/");
    // Mostly near what is cached, sometimes anywhere.
    let near = urls.get(random.below(urls.len()))?;
    let near = near.split('.').next().unwrap_or(near);
    let candidates: Vec<&Node> = match random.below(4) {
        0 => documents.iter().filter(is_content).collect(),
        1 => documents.iter().filter(|node| is_content(node) && node.is_page()).collect(),
        _ => documents
            .iter()
            .filter(|node| {
                near.starts_with(node.path().as_str()) || node.path().as_str().starts_with(near)
            })
            .filter(is_content)
            .collect(),
    };
    let document = *random.pick(&candidates)?;
    let inner = inner_paths(document);
    let node = random.pick(&inner)?.clone();
    match random.below(16) {
        0..=4 => set(session, &node, random),
        5 => {
            session.set_property(&node, "note", "added".into()).ok()?;
            Some(format!("a new property of {node}"))
        }
        6 => {
            let name = property_of(session, &node, random)?;
            session.remove_property(&node, &name).ok()?;
            Some(format!("the removal of {name} of {node}"))
        }
        7 => {
            let parent = node.parent()?;
            let copy = parent.child(&format!("{}-copy{}", node.name(), random.below(3))).ok()?;
            session.copy_node(&node, &copy).ok()?;
            Some(format!("a copy of {node} to {copy}"))
        }
        8 if node.depth() > 4 => {
            session.remove(&node).ok()?;
            Some(format!("the removal of {node}"))
        }
        9 => {
            let mut names: Vec<String> = children(session, &node)?;
            let by = random.below(names.len());
            names.rotate_left(by);
            session.order_children(&node, &names).ok()?;
            Some(format!("another order below {node}"))
        }
        10 if node.depth() > 3 => {
            let target = node.parent()?.child(&format!("moved-{}", random.below(4))).ok()?;
            session.move_node(&node, &target).ok()?;
            Some(format!("a move of {node} to {target}"))
        }
        11 => {
            let content = document.path().child("jcr:content").ok()?;
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(random.below(1 << 30) as u64);
            for name in ["cq:lastModified", "cq:lastReplicated"] {
                let date = Property::Single(Value::Date(Date::from_system_time(now)));
                session.set_property(&content, name, date).ok()?;
            }
            Some(format!("stamps of {content}"))
        }
        12 => {
            // What was asked for and was not there, or a neighbor of what is.
            let path = NodePath::new(near).ok()?;
            let is_there = session.node(&path).ok()?.is_some();
            let path =
                if is_there { path.child(&format!("new{}", random.below(5))).ok()? } else { path };
            let parent = session.node(&path.parent()?).ok()??;
            let resource_type = parent.content().ok()?.and_then(|content| content.resource_type());
            let tree =
                page(path.name(), "New", &resource_type.unwrap_or_else(|| "none".to_owned()));
            session.put(&path, tree).ok()?;
            Some(format!("a new page {path}"))
        }
        13 => script(repository, session, random),
        14 if random.below(4) == 0 => policy(session, document.path()),
        _ => {
            let content = document.path().child("jcr:content").ok()?;
            let title = format!("Title {}", random.below(1000));
            session.set_property(&content, "jcr:title", title.as_str().into()).ok()?;
            Some(format!("the title of {content}"))
        }
    }
}

/// Returns the document's own path and those of the nodes inside of it.
fn inner_paths(document: &Node) -> Vec<NodePath> {
    fn add(path: &NodePath, tree: &Subtree, found: &mut Vec<NodePath>) {
        found.push(path.clone());
        for child in &tree.children {
            add(&path.child(&child.name).unwrap(), child, found);
        }
    }
    let mut found = vec![document.path().clone()];
    if let Ok(Some(content)) = document.content() {
        add(content.path(), &content.read().unwrap(), &mut found);
    }
    found
}

fn children(session: &mut Session, node: &NodePath) -> Option<Vec<String>> {
    let children = session.node(node).ok()??.children().ok()?;
    let names: Vec<String> = children.iter().map(|child| child.name().to_owned()).collect();
    (names.len() > 1).then_some(names)
}

fn property_of(session: &mut Session, node: &NodePath, random: &mut Random) -> Option<String> {
    let properties = session.node(node).ok()??.properties();
    let names: Vec<String> = properties
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !matches!(name.as_str(), "jcr:primaryType" | "jcr:mixinTypes" | "jcr:uuid"))
        .collect();
    random.pick(&names).cloned()
}

/// Gives a property another value of its type.
fn set(session: &mut Session, node: &NodePath, random: &mut Random) -> Option<String> {
    let name = property_of(session, node, random)?;
    let old = session.node(node).ok()??.property(&name)?;
    let number = random.below(1000);
    let other = |value: &Value| match value {
        Value::Boolean(truth) => Value::Boolean(!truth),
        Value::Long(_) => Value::Long(number as i64),
        Value::String(_) => Value::String(format!("value {number}")),
        Value::Date(date) => {
            Value::Date(Date { millis: date.millis + number as i64 * 1000, ..*date })
        }
        other => other.clone(),
    };
    let new = match &old {
        Property::Single(value) => Property::Single(other(value)),
        Property::List(kind, values) => Property::List(*kind, values.iter().map(other).collect()),
    };
    session.set_property(node, &name, new).ok()?;
    Some(format!("another {name} of {node}"))
}

/// Changes a script, or adds one that goes before another.
fn script(repository: &Repository, session: &mut Session, random: &mut Random) -> Option<String> {
    let scripts: Vec<NodePath> = documents(repository)
        .into_iter()
        .map(|node| node.path().clone())
        .filter(|path| path.as_str().ends_with(".html.j2") && !path.as_str().contains("404"))
        .collect();
    let script = random.pick(&scripts)?;
    let text = format!("<p>drawn by version {}</p>{{{{ properties.text }}}}", random.below(100));
    let folder = script.parent()?;
    let target = match random.below(3) {
        0 => script.clone(),
        1 => folder.child("GET.j2").ok()?,
        _ => folder.child("html.j2").ok()?,
    };
    if session.node(&target).ok()?.is_some() {
        session.remove(&target).ok()?;
    }
    put_below(session, &target, file(repository, target.name(), text.as_bytes(), "text/plain"));
    Some(format!("the script {target}"))
}

/// Hides something from visitors.
fn policy(session: &mut Session, path: &NodePath) -> Option<String> {
    let entry = Subtree::new("deny", "rep:DenyACE").with("rep:principalName", "everyone").with(
        "rep:privileges",
        Property::List(tympan_content::ValueType::Name, vec![Value::Name("jcr:read".to_owned())]),
    );
    let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
    session.put(&path.child("rep:policy").ok()?, policy).ok()?;
    Some(format!("a policy of {path}"))
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

#[expect(clippy::print_stdout, reason = "the share is what the test is read for")]
fn report(site: &str, found: &Found) {
    let needless = found.named - found.changed;
    println!(
        "{site}: {} edits, {} URLs named, {} of them without need ({:.1} %), {} edits of rights or all pages",
        found.edits,
        found.named,
        needless,
        100.0 * needless as f64 / found.named.max(1) as f64,
        found.sweeping,
    );
}

#[test]
fn every_url_whose_bytes_differ_is_named_on_the_sample_site() {
    let repository = corpus::sample();
    let urls = choose(&repository, "/content/wayfare", setting("TYMPAN_URLS", 30), 7);
    let mut world = World::new(repository, urls, 0x5eed, None);
    let found = run(&mut world, setting("TYMPAN_EDITS", 200));
    report("sample site", &found);
}

#[test]
fn every_url_whose_bytes_differ_is_named_on_the_wknd_site() {
    let Some(repository) = corpus::wknd() else { return };
    let urls = choose(&repository, "/content/wknd", setting("TYMPAN_URLS", 30), 11);
    let mut world = World::new(repository, urls, 0xabcd, None);
    // Its pages take longer to draw.
    let found = run(&mut world, setting("TYMPAN_EDITS", 200) * 3 / 5);
    report("WKND", &found);
}

#[test]
fn no_fragment_shows_an_old_byte() {
    let repository = corpus::sample();
    corpus::commit(&repository, |session| {
        session.set_property(&NodePath::new("/apps").unwrap(), "cache", "always".into()).unwrap();
    });
    let urls = choose(&repository, "/content/wayfare", setting("TYMPAN_URLS", 30) / 2, 13);
    // Small enough that fragments go for want of room, too.
    let small =
        FragmentOptions { max_bytes: 150_000, avg_bytes: 100_000, ..FragmentOptions::default() };
    let mut world = World::new(repository, urls, 0xcafe, Some(small));
    let found = run(&mut world, setting("TYMPAN_EDITS", 200) / 2);
    report("sample site with fragments", &found);
    let report = world.kept.as_ref().unwrap().fragments().unwrap().report(0);
    assert!(report.hits > 1000 && report.evicted > 0, "{report:?}");
}
