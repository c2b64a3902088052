//! S6: folders of many children: listing them, adding one, and putting one in the middle of an order.
//!
//! All folders are in one tree, so that a child more in a large one and in a small one write paths of the same height.
//! The small ones are many, and each addition takes another, so that none stands for all by where its chunks end.
//! The large folder has 100,000 children and the ordered one 1,000,000; 20,000 and 100,000 in a quick run.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_blobs::MemoryBlobStore;
use tympan_content::{NodePath, Repository, SiblingPosition, Subtree};
use tympan_store::{Chunk, ChunkBatch, ChunkKind, SortedMap, StoreRoot, key};

use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::counting::{CountingStore, Counts};
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::{Outcome, cpu};

const ROW: &str = "S6";
/// Children of each small folder.
const FEW: usize = 10;
/// Small folders of each kind.
const SMALL: usize = 1_000;
/// Children that one commit loads.
const LOAD: usize = 10_000;
/// Additions between two turns of the other folder.
const TURN: usize = 40;
/// Children on a page of a listing.
const PAGE: usize = 100;
const GOAL: Goal = Goal::AtMost(1.2);

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let (many, ordered) = if context.is_quick { (20_000, 100_000) } else { (100_000, 1_000_000) };
    let site = Site::build(&context.new_folder("children-")?, many, ordered)?;
    let mut figures = vec![site.listing("many", many)?];
    let mut additions = |what: String, [large, small]: [Target; 2]| -> Outcome<()> {
        let seed = std::cell::Cell::new(0);
        let turn = |target: Target| {
            seed.set(seed.get() + 1);
            site.additions(target, seed.get())
        };
        let sides = alternate(pairs, [&mut || turn(large), &mut || turn(small)])?;
        figures.extend(cost_figures(&what, &sides));
        Ok(())
    };
    let large = |folder: &'static str, children| Target { folder, small: None, children };
    let small = |folder: &'static str| Target { folder, small: Some(SMALL), children: FEW };
    additions(format!("a child among {many}"), [large("many", many), small("few")])?;
    additions(
        format!("a place in the middle of {ordered} ordered siblings"),
        [large("many-ordered", ordered), small("few-ordered")],
    )?;
    figures.push(site.page("many-ordered", ordered)?);
    Ok(figures)
}

/// The folders, and the store that counts.
struct Site {
    store: Arc<CountingStore>,
    repository: Repository,
}

/// Where children are added: in one large folder, or in small ones below a folder.
#[derive(Clone, Copy, Debug)]
struct Target {
    folder: &'static str,
    small: Option<usize>,
    children: usize,
}

impl Target {
    /// Returns a folder to add to.
    fn pick(self, random: &mut Random) -> String {
        match self.small {
            Some(folders) => small_folder(self.folder, random.below(folders)),
            None => self.folder.to_owned(),
        }
    }
}

/// What one of a turn's additions cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    chunks: f64,
    bytes: f64,
    micros: f64,
}

impl Site {
    fn build(folder: &std::path::Path, many: usize, ordered: usize) -> Outcome<Self> {
        eprintln!("building folders of {many} and {ordered} children");
        let store = Arc::new(CountingStore::open(folder.join("store"))?);
        let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default()))?;
        let site = Self { store, repository };
        for (folder, primary_type, children) in
            [("many", "sling:Folder", many), ("many-ordered", "sling:OrderedFolder", ordered)]
        {
            site.load(folder, primary_type, children)?;
        }
        for (folder, primary_type) in
            [("few", "sling:Folder"), ("few-ordered", "sling:OrderedFolder")]
        {
            site.load(folder, "sling:Folder", 0)?;
            let mut session = site.repository.session("bench")?;
            for small in 0..SMALL {
                let mut tree = Subtree::new("folder", primary_type);
                tree.children.extend((0..FEW).map(|child| child_tree(child, small * FEW + child)));
                let path = NodePath::new(&format!("/{}", small_folder(folder, small)))?;
                session.put_node(&path, tree)?;
            }
            session.commit("load", SystemTime::UNIX_EPOCH)?;
        }
        Ok(site)
    }

    fn load(&self, folder: &str, primary_type: &str, children: usize) -> Outcome<()> {
        let mut session = self.repository.session("bench")?;
        session.add_node(&NodePath::new(&format!("/{folder}"))?, primary_type)?;
        for child in 0..children {
            session.put_node(&child_path(folder, &child_name(child))?, child_tree(child, child))?;
            if child % LOAD == LOAD - 1 {
                session.commit("load", SystemTime::UNIX_EPOCH)?;
            }
        }
        session.commit("load", SystemTime::UNIX_EPOCH)?;
        Ok(())
    }

    /// Lists a folder; counts the chunks that this loads against those that the children's records fill.
    fn listing(&self, folder: &str, children: usize) -> Outcome<Figure> {
        let snapshot = self.repository.snapshot()?;
        let node = snapshot.node(&NodePath::new(&format!("/{folder}"))?)?.ok_or("no folder")?;
        let before = self.store.counts();
        let (listed, seconds) = cpu::spent(|| node.listed_children());
        let loads = self.store.counts().since(before).loads;
        let listed = listed?.len();
        if listed != children {
            return Err(format!("{listed} children were listed, not {children}").into());
        }
        let content = StoreRoot::read(&*self.store, &snapshot.root_id())?.map("content");
        let range = key::children_range(&[folder])?;
        let records = content.range(&*self.store, range.bounds());
        let records = records.map(|entry| entry.map(|(key, value)| (key.to_vec(), value)));
        let mut batch = ChunkBatch::new();
        SortedMap::build(&mut batch, records.collect::<Result<Vec<_>, _>>()?.into_iter())?;
        let mut leaves = 0_u32;
        for (_, bytes) in batch.chunks() {
            leaves += u32::from(Chunk::parse(bytes.clone())?.kind() == ChunkKind::Leaf);
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let (loads, children) = (loads as f64, children as f64);
        let what = format!("chunks loaded by a listing of {children} children");
        Ok(Figure::value(ROW, what, loads / f64::from(leaves), "x")
            .against("the chunks their records fill")
            .goal(Goal::AtMost(1.1))
            .note(format!(
                "{loads} against {leaves}; {:.2} us of CPU for each child",
                seconds * 1e6 / children
            )))
    }

    /// Lists a page in the middle of a folder.
    fn page(&self, folder: &str, children: usize) -> Outcome<Figure> {
        let snapshot = self.repository.snapshot()?;
        let node = snapshot.node(&NodePath::new(&format!("/{folder}"))?)?.ok_or("no folder")?;
        let before = self.store.counts();
        if node.listed_page(children / 2, PAGE)?.len() != PAGE {
            return Err("the page is not full".into());
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let loads = self.store.counts().since(before).loads as f64;
        let what = format!("chunks loaded by a page of {PAGE} in the middle of {children}");
        Ok(Figure::value(ROW, what, loads, "chunks"))
    }

    /// Adds some children at random places, each in a commit of its own, and removes them again, which is not measured.
    fn additions(&self, target: Target, seed: u64) -> Outcome<Cost> {
        let mut random = Random::new(seed);
        let is_ordered = target.folder.ends_with("-ordered");
        let mut paths = Vec::with_capacity(TURN);
        for one in 0..TURN {
            let name = format!("{}-{one}", child_name(random.below(target.children)));
            let middle = SiblingPosition::After(child_name(random.below(target.children)));
            paths.push((child_path(&target.pick(&mut random), &name)?, middle));
        }
        let before = self.store.counts();
        let (result, seconds) = cpu::spent(|| -> Outcome<()> {
            for (one, (path, middle)) in paths.iter().enumerate() {
                let mut session = self.repository.session("bench")?;
                session.put_node(path, child_tree(0, one))?;
                if is_ordered {
                    session.reorder_node(path, middle)?;
                }
                session.commit("add", SystemTime::UNIX_EPOCH)?;
            }
            Ok(())
        });
        result?;
        let counts = self.store.counts().since(before);
        let mut session = self.repository.session("bench")?;
        for (path, _) in &paths {
            session.remove_node(path)?;
        }
        session.commit("remove", SystemTime::UNIX_EPOCH)?;
        Ok(Cost::of(counts, seconds))
    }
}

impl Cost {
    #[expect(clippy::cast_precision_loss, reason = "counts of one turn are small")]
    fn of(counts: Counts, seconds: f64) -> Self {
        let turn = TURN as f64;
        Self {
            chunks: counts.chunks as f64 / turn,
            bytes: counts.bytes as f64 / turn,
            micros: seconds * 1e6 / turn,
        }
    }
}

/// A figure's name, its value of a cost, the unit.
type Part = (&'static str, fn(&Cost) -> f64, &'static str);

fn cost_figures(what: &str, [large, small]: &[Vec<Cost>; 2]) -> Vec<Figure> {
    let parts: [Part; 3] = [
        ("chunks stored for", |cost| cost.chunks, "chunks"),
        ("bytes appended for", |cost| cost.bytes, "bytes"),
        ("CPU for", |cost| cost.micros, "us"),
    ];
    let figure = |(name, value, unit): Part| {
        let median = |side: &[Cost]| Spread::of(side.iter().map(value)).median;
        let spread = ratio(large, small, value);
        let note = format!("{:.1} against {:.1} {unit}", median(large), median(small));
        Figure::spread(ROW, format!("{name} {what}"), &spread, "x")
            .against(format!("a folder of {FEW}"))
            .goal(GOAL)
            .note(note)
    };
    parts.into_iter().map(figure).collect()
}

fn small_folder(folder: &str, small: usize) -> String {
    format!("{folder}/folder-{small:04}")
}

fn child_name(child: usize) -> String {
    format!("child-{child:07}")
}

fn child_path(folder: &str, name: &str) -> Outcome<NodePath> {
    Ok(NodePath::new(&format!("/{folder}/{name}"))?)
}

/// Makes a child whose title no other has, so that compression finds as little in small folders as in large ones.
fn child_tree(child: usize, title: usize) -> Subtree {
    Subtree::new(child_name(child), "nt:unstructured")
        .with_property("jcr:title", Random::new(title as u64).words(30).as_str())
}
