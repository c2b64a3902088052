//! S4: warm reads of a page of 25 nodes and of one node, against rows.
//!
//! Both sides visit every name and value, in place: what a renderer does. The same reads with copies of all names and
//! values stand beside, without a goal, as there the allocator is most of both sides. A page is read in a snapshot or
//! transaction of its own; nodes are read 25 to a snapshot or transaction.

use std::hint::black_box;

use tympan_content::{BorrowedNode, NodePath};

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
    for engine in &engines {
        figures.push(copied_pages(tree, engine.as_ref(), pairs)?);
    }
    for engine in &engines {
        figures.push(copied_nodes(tree, engine.as_ref(), pairs)?);
    }
    Ok(figures)
}

fn pages(tree: &Tree, engine: &dyn Engine, pairs: usize) -> Outcome<Figure> {
    let (paths, keys) = hot(page_path)?;
    let ours = || -> Outcome<()> {
        for path in &paths {
            let snapshot = tree.repository.snapshot()?;
            let page = snapshot.node(path)?.ok_or("a page is missing")?;
            assert_count(visit_tree(page.as_borrowed().ok_or("a page has no body")?))?;
        }
        Ok(())
    };
    let theirs = || -> Outcome<()> {
        for key in &keys {
            let mut count = 0;
            engine.scan(key, &mut |_, value| {
                visit_row(value);
                count += 1;
            })?;
            assert_count(count)?;
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
    let (paths, keys) = hot(|page| component_path(page, page % 20))?;
    let ours = || -> Outcome<()> {
        for paths in paths.chunks(NODES_PER_PAGE) {
            let snapshot = tree.repository.snapshot()?;
            for path in paths {
                let node = snapshot.node(path)?.ok_or("a node is missing")?;
                visit_node(node.as_borrowed().ok_or("a node has no body")?);
            }
        }
        Ok(())
    };
    let theirs = || -> Outcome<()> {
        for keys in keys.chunks(NODES_PER_PAGE) {
            let mut count = 0;
            engine.read(keys, &mut |_, value| {
                visit_row(value);
                count += 1;
            })?;
            if count != keys.len() {
                return Err("a row is missing".into());
            }
        }
        Ok(())
    };
    let measured = alternate(pairs, [&mut || micros(ours), &mut || micros(theirs)])?;
    Ok(figure("warm read of a node, CPU", engine, &measured, Goal::AtMost(0.6)))
}

fn copied_pages(tree: &Tree, engine: &dyn Engine, pairs: usize) -> Outcome<Figure> {
    let (paths, keys) = hot(page_path)?;
    let ours = || -> Outcome<()> {
        for path in &paths {
            let snapshot = tree.repository.snapshot()?;
            let page = snapshot.node(path)?.ok_or("a page is missing")?.read_subtree()?;
            assert_count(page.node_count())?;
            black_box(page);
        }
        Ok(())
    };
    let theirs = || -> Outcome<()> {
        for key in &keys {
            let mut nodes = Vec::with_capacity(NODES_PER_PAGE);
            engine.scan(key, &mut |_, value| nodes.push(engine::decode(value)))?;
            assert_count(nodes.len())?;
            black_box(nodes);
        }
        Ok(())
    };
    let measured = alternate(pairs, [&mut || micros(ours), &mut || micros(theirs)])?;
    Ok(figure("warm copy of a page, CPU", engine, &measured, Goal::None))
}

fn copied_nodes(tree: &Tree, engine: &dyn Engine, pairs: usize) -> Outcome<Figure> {
    let (paths, keys) = hot(|page| component_path(page, page % 20))?;
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
            engine.read(keys, &mut |_, value| _ = black_box(engine::decode(value)))?;
        }
        Ok(())
    };
    let measured = alternate(pairs, [&mut || micros(ours), &mut || micros(theirs)])?;
    Ok(figure("warm copy of a node, CPU", engine, &measured, Goal::None))
}

/// Visits the names and values of a node and of everything below it; returns how many nodes there were.
fn visit_tree(node: BorrowedNode<'_>) -> usize {
    visit_node(node);
    1 + node.children().map(visit_tree).sum::<usize>()
}

fn visit_node(node: BorrowedNode<'_>) {
    for (name, property) in node.properties() {
        black_box((name, property.first()));
    }
}

fn visit_row(value: &[u8]) {
    engine::fields(value).for_each(|field| _ = black_box(field));
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

/// Returns paths and keys of nodes of the hot pages.
fn hot(path_of: impl Fn(usize) -> String) -> Outcome<(Vec<NodePath>, Vec<Vec<u8>>)> {
    let texts: Vec<String> = hot_pages().map(path_of).collect();
    let paths = texts.iter().map(|text| NodePath::new(text)).collect::<Result<_, _>>()?;
    Ok((paths, texts.into_iter().map(String::into_bytes).collect()))
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
