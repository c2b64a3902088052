//! S4: warm reads of a page of 25 nodes and of one node, against rows.
//!
//! Both sides hand out owned names and values. A page is read in a snapshot or transaction of its own; nodes are read
//! 25 to a snapshot or transaction.

use std::hint::black_box;

use tympan_content::{NodePath, Property};

use super::written::load_rows;
use crate::alternate::{alternate, ratio};
use crate::context::Context;
use crate::engine::{self, Engine, Shape};
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::{NODES_PER_PAGE, Tree, component_path, page_path};
use crate::{Outcome, cpu};

const ROW: &str = "S4";
/// Pages that are read over and over; they fit every side's cache.
const HOT_PAGES: usize = 1_000;
/// Reads of the quickest side between two turns.
const TURN: usize = 5_000;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let folder = context.new_folder("read-")?;
    let tree = context.tree()?;
    let mut engines = engine::open_all(&folder, Shape::Nodes)?;
    load_rows(HOT_PAGES, &mut engines)?;
    let mut figures = Vec::new();
    for engine in &engines {
        figures.push(pages(tree, engine.as_ref(), pairs)?);
    }
    for engine in &engines {
        figures.push(nodes(tree, engine.as_ref(), pairs)?);
    }
    Ok(figures)
}

fn pages(tree: &Tree, engine: &dyn Engine, pairs: usize) -> Outcome<Figure> {
    let paths = hot_pages()
        .map(|page| Ok(NodePath::new(&page_path(page))?))
        .collect::<Outcome<Vec<_>>>()?;
    let prefixes: Vec<Vec<u8>> = hot_pages().map(|page| page_path(page).into_bytes()).collect();
    let ours = || -> Outcome<()> {
        for path in &paths {
            let snapshot = tree.repository.snapshot()?;
            let page = snapshot.node(path)?.ok_or("a page is missing")?;
            black_box(page.properties());
            let content = page.content()?.ok_or("a page has no content")?.read()?;
            assert_count(content.count() + 1)?;
            black_box(content);
        }
        Ok(())
    };
    let theirs = || -> Outcome<()> {
        for prefix in &prefixes {
            let mut nodes = Vec::with_capacity(NODES_PER_PAGE);
            engine.scan(prefix, &mut |_, value| nodes.extend(engine::decode(value)))?;
            assert_count(nodes.len())?;
            black_box(nodes);
        }
        Ok(())
    };
    let measured = alternate(pairs, [&mut || micros(ours), &mut || micros(theirs)])?;
    let goal = match engine.name() {
        "SQLite" => Goal::AtMost(0.4),
        "LMDB" => Goal::AtMost(1.0),
        _ => Goal::None,
    };
    Ok(figure("warm read of a page, CPU", engine, &measured, goal))
}

fn nodes(tree: &Tree, engine: &dyn Engine, pairs: usize) -> Outcome<Figure> {
    let component = |page: usize| component_path(page, page % 20);
    let paths = hot_pages()
        .map(|page| Ok(NodePath::new(&component(page))?))
        .collect::<Outcome<Vec<_>>>()?;
    let keys: Vec<Vec<u8>> = hot_pages().map(|page| component(page).into_bytes()).collect();
    let ours = || -> Outcome<()> {
        for paths in paths.chunks(NODES_PER_PAGE) {
            let snapshot = tree.repository.snapshot()?;
            for path in paths {
                let node = snapshot.node(path)?.ok_or("a node is missing")?;
                black_box(node.properties());
            }
        }
        Ok(())
    };
    let theirs = || -> Outcome<()> {
        for keys in keys.chunks(NODES_PER_PAGE) {
            let mut nodes: Vec<Vec<(String, Property)>> = Vec::new();
            engine.read(keys, &mut |_, value| nodes.extend(engine::decode(value)))?;
            if nodes.len() != keys.len() {
                return Err("a row is missing".into());
            }
            black_box(nodes);
        }
        Ok(())
    };
    let measured = alternate(pairs, [&mut || micros(ours), &mut || micros(theirs)])?;
    Ok(figure("warm read of a node, CPU", engine, &measured, Goal::AtMost(0.6)))
}

fn figure(what: &str, engine: &dyn Engine, [ours, theirs]: &[Vec<f64>; 2], goal: Goal) -> Figure {
    let median = |side: &[f64]| crate::alternate::Spread::of(side.iter().copied()).median;
    let note = format!("{:.2} us against {:.2} us", median(ours), median(theirs));
    let spread = ratio(ours, theirs, |time| *time);
    Figure::spread(ROW, what, &spread, "x")
        .against(format!("rows in {}", engine.name()))
        .goal(goal)
        .note(note)
}

fn assert_count(count: usize) -> Outcome<()> {
    if count == NODES_PER_PAGE { Ok(()) } else { Err(format!("a page of {count} nodes").into()) }
}

/// Returns the hot pages, each several times, in a random but fixed order.
fn hot_pages() -> impl Iterator<Item = usize> {
    let mut random = Random::new(4);
    std::iter::repeat_with(move || random.below(HOT_PAGES)).take(TURN)
}

/// Returns the microseconds of CPU for one of a turn's reads.
fn micros(run: impl FnOnce() -> Outcome<()>) -> Outcome<f64> {
    let (result, seconds) = cpu::spent(run);
    result?;
    #[expect(clippy::cast_precision_loss, reason = "a small constant")]
    let reads = TURN as f64;
    Ok(seconds * 1e6 / reads)
}
