//! S9, beside Apache Oak: the same units of work on Oak's segment store, in turn.
//!
//! Both sides hold 1,000 pages of 11 nodes in sections of 100, and a folder of 10,000 children. Each has folders as it
//! does them best: `oak:Unstructured` there, `sling:Folder` here. Saves are durable on both sides: Oak's own save is
//! not, so the peer flushes its store after each; what Oak does without that stands beside, without a goal.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tympan_blobs::MemoryBlobStore;
use tympan_content::{Node, NodePath, Property, Repository, Subtree};
use tympan_store::LocalStore;
use tympan_store::disk::FileDisk;

use super::collect::ROW;
use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::oak::Oak;
use crate::random::Random;

const PAGES: usize = 1_000;
const SECTION: usize = 100;
const COMPONENTS: usize = 8;
const CHILDREN: usize = 10_000;
const WRITERS: usize = 64;
/// Oak's compiler needs some seconds to warm up.
const WARM: u32 = 3;

/// One unit of work: what it is, what Oak calls it, and how it is done here.
struct Unit {
    what: &'static str,
    name: &'static str,
    goal: Goal,
    run: fn(&Ours, Duration) -> Outcome<f64>,
}

const UNITS: &[Unit] = &[
    Unit {
        what: "nodes read by path each second, one property of each",
        name: "read_nodes",
        goal: Goal::AtLeast(2.0),
        run: Ours::read_nodes,
    },
    Unit {
        what: "nodes walked in pages each second, all properties",
        name: "read_pages",
        goal: Goal::AtLeast(2.0),
        run: Ours::read_pages,
    },
    Unit {
        what: "durable commits each second",
        name: "commit_durable",
        goal: Goal::AtLeast(5.0),
        run: Ours::commit,
    },
    Unit {
        what: "durable commits each second, 64 writers",
        name: "commit_64_durable",
        goal: Goal::AtLeast(5.0),
        run: Ours::commit_many,
    },
    Unit {
        what: "durable commits each second, against commits that Oak makes durable every 5 s",
        name: "commit",
        goal: Goal::None,
        run: Ours::commit,
    },
    Unit {
        what: "nodes created each second, 10,000 to a commit",
        name: "create_durable",
        goal: Goal::AtLeast(2.0),
        run: Ours::create,
    },
    Unit {
        what: "children listed each second, of 10,000, one property of each",
        name: "list",
        goal: Goal::AtLeast(2.0),
        run: Ours::list,
    },
    Unit {
        what: "moves of 100 pages each second",
        name: "move_durable",
        goal: Goal::AtLeast(2.0),
        run: Ours::move_section,
    },
];

const PEER: &str = "Oak's segment store";

/// Measures the units.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let missing =
        |reason: String| Ok(vec![Figure::missing(ROW, "units of work", reason).against(PEER)]);
    if !context.has_peer("oak") {
        return missing("set PEERS=oak; it needs Java and Maven".to_owned());
    }
    let (pairs, time) = (context.pairs(), Duration::from_secs(context.seconds()));
    let work = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench/peer-oak");
    let mut oak = match Oak::start(&work, &context.new_folder("oak-")?, PAGES) {
        Ok(oak) => oak,
        Err(error) => return missing(error.to_string()),
    };
    let ours = Ours::build(&context.new_folder("units-")?)?;
    UNITS.iter().map(|unit| compare(unit, &ours, &mut oak, pairs, time)).collect()
}

fn compare(
    unit: &Unit,
    ours: &Ours,
    oak: &mut Oak,
    pairs: usize,
    time: Duration,
) -> Outcome<Figure> {
    oak.rate(unit.name, time * WARM)?;
    let [ours, theirs] =
        alternate(pairs, [&mut || (unit.run)(ours, time), &mut || oak.rate(unit.name, time)])?;
    let median = |side: &[f64]| Spread::of(side.iter().copied()).median;
    let note = format!("{:.0} against {:.0}", median(&ours), median(&theirs));
    Ok(Figure::spread(ROW, unit.what, &ratio(&ours, &theirs, |rate| *rate), "x")
        .against(PEER)
        .goal(unit.goal)
        .note(note))
}

/// The same content here.
struct Ours {
    repository: Repository,
    names: AtomicUsize,
}

impl Ours {
    fn build(folder: &Path) -> Outcome<Self> {
        let disk = Arc::new(FileDisk::open(folder)?);
        let store = Arc::new(LocalStore::open(disk, tympan_store::LocalStoreOptions::default())?);
        let repository = Repository::open(store, Arc::new(MemoryBlobStore::default()))?;
        let mut session = repository.session("bench")?;
        let mut bench = Subtree::new("bench", "sling:Folder");
        for section in 0..PAGES / SECTION {
            let mut folder = Subtree::new(format!("f{section}"), "sling:Folder");
            folder.children.extend((0..SECTION).map(|page| page_tree(section * SECTION + page)));
            bench.children.push(folder);
        }
        session.put_node(&NodePath::new("/bench")?, bench)?;
        let mut many = Subtree::new("many", "sling:Folder");
        let child = |number| {
            Subtree::new(format!("n{number}"), "nt:unstructured")
                .with_property("title", Property::text(format!("Child {number}")))
        };
        many.children.extend((0..CHILDREN).map(child));
        session.put_node(&NodePath::new("/many")?, many)?;
        for folder in ["/made", "/moved"] {
            session.add_node(&NodePath::new(folder)?, "sling:Folder")?;
        }
        session.commit("begin", SystemTime::UNIX_EPOCH)?;
        Ok(Self { repository, names: AtomicUsize::new(0) })
    }

    fn read_nodes(&self, time: Duration) -> Outcome<f64> {
        const TOGETHER: usize = 100;
        let mut random = Random::new(1);
        repeat(time, || {
            let snapshot = self.repository.snapshot()?;
            for _ in 0..TOGETHER {
                let path = NodePath::new(&content_path(random.below(PAGES)))?;
                let node = snapshot.node(&path)?.ok_or("a node is missing")?;
                black_box(node.text("title").ok_or("a title is missing")?);
            }
            Ok(TOGETHER)
        })
    }

    fn read_pages(&self, time: Duration) -> Outcome<f64> {
        let mut random = Random::new(2);
        repeat(time, || {
            let path = NodePath::new(&content_path(random.below(PAGES)))?;
            let node = self.repository.snapshot()?.node(&path)?.ok_or("a node is missing")?;
            walk(&node)
        })
    }

    fn commit(&self, time: Duration) -> Outcome<f64> {
        let path = self.add_page()?;
        let mut count = 0;
        repeat(time, || self.set_count(&path, &mut count))
    }

    fn commit_many(&self, time: Duration) -> Outcome<f64> {
        let paths = (0..WRITERS).map(|_| self.add_page()).collect::<Outcome<Vec<_>>>()?;
        let begin = Instant::now();
        let commits: Result<usize, String> = std::thread::scope(|scope| {
            let write = |path| {
                scope.spawn(move || {
                    let mut count = 0;
                    while begin.elapsed() < time {
                        self.set_count(path, &mut count).map_err(|error| error.to_string())?;
                    }
                    Ok::<_, String>(count)
                })
            };
            let threads: Vec<_> = paths.iter().map(write).collect();
            let joined = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err("a writer panicked".to_owned()))
            };
            threads.into_iter().map(joined).sum()
        });
        #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
        Ok(commits? as f64 / begin.elapsed().as_secs_f64())
    }

    fn add_page(&self) -> Outcome<NodePath> {
        let name = format!("/made/c{}", self.names.fetch_add(1, Ordering::Relaxed));
        let path = NodePath::new(&name)?;
        let mut session = self.repository.session("bench")?;
        session.add_node(&path, "nt:unstructured")?;
        session.commit("add", SystemTime::UNIX_EPOCH)?;
        Ok(path)
    }

    fn set_count(&self, path: &NodePath, count: &mut usize) -> Outcome<usize> {
        *count += 1;
        let mut session = self.repository.session("bench")?;
        session.set_property(path, "count", Property::text(count.to_string()))?;
        session.commit("count", SystemTime::UNIX_EPOCH)?;
        Ok(1)
    }

    fn create(&self, time: Duration) -> Outcome<f64> {
        repeat(time, || {
            let name = format!("m{}", self.names.fetch_add(1, Ordering::Relaxed));
            let path = NodePath::new(&format!("/made/{name}"))?;
            let mut session = self.repository.session("bench")?;
            session.add_node(&path, "sling:Folder")?;
            for child in 0..CHILDREN {
                session.add_node(&path.child(&format!("n{child}"))?, "nt:unstructured")?;
            }
            session.commit("create", SystemTime::UNIX_EPOCH)?;
            Ok(CHILDREN)
        })
    }

    fn list(&self, time: Duration) -> Outcome<f64> {
        let path = NodePath::new("/many")?;
        repeat(time, || {
            let folder = self.repository.snapshot()?.node(&path)?.ok_or("a folder is missing")?;
            let children = folder.children()?;
            let titles = children.iter().filter_map(|child| child.text("title"));
            Ok(black_box(titles.collect::<Vec<_>>()).len())
        })
    }

    fn move_section(&self, time: Duration) -> Outcome<f64> {
        let (home, away) = (NodePath::new("/bench/f0")?, NodePath::new("/moved/f0")?);
        repeat(time, || {
            for (from, to) in [(&home, &away), (&away, &home)] {
                let mut session = self.repository.session("bench")?;
                session.move_node(from, to)?;
                session.commit("move", SystemTime::UNIX_EPOCH)?;
            }
            Ok(2)
        })
    }
}

fn content_path(page: usize) -> String {
    format!("/bench/f{}/p{page}/jcr:content", page / SECTION)
}

fn page_tree(number: usize) -> Subtree {
    let mut components = Subtree::new("par", "nt:unstructured");
    components.children.extend((0..COMPONENTS).map(|component| {
        let text = format!("Lorem ipsum dolor sit amet {component} on page {number}");
        Subtree::new(format!("text{component}"), "nt:unstructured")
            .with_property("type", "bench/text")
            .with_property("text", Property::text(text))
    }));
    let content = Subtree::new("jcr:content", "nt:unstructured")
        .with_property("title", Property::text(format!("Page {number}")))
        .with_property("template", "/conf/bench/page")
        .with_child(components);
    Subtree::new(format!("p{number}"), "cq:Page").with_child(content)
}

/// Reads all properties of a node and what is below it; gives the number of nodes.
fn walk(node: &Node) -> Outcome<usize> {
    black_box(node.properties());
    node.children()?.iter().try_fold(1, |count, child| Ok(count + walk(child)?))
}

/// Does something again and again until time is up; gives operations for each second.
fn repeat(time: Duration, mut step: impl FnMut() -> Outcome<usize>) -> Outcome<f64> {
    let begin = Instant::now();
    let mut operations = 0;
    loop {
        operations += step()?;
        if begin.elapsed() >= time {
            break;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    Ok(operations as f64 / begin.elapsed().as_secs_f64())
}
