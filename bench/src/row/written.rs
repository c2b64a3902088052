//! S2: bytes written for one page save, against peers with the same chunks and with plain rows.
//!
//! Peers: what they hand to the kernel, log and checkpoint included; they write whole pages. Ours: every block of 4 KiB
//! that an append touches. The kernel's own counter of disk writes is no help, as it takes a large folio of the page
//! cache for written when one of its pages is.

use crate::context::Context;
use crate::counting::BLOCK_BYTES;
use crate::engine::{self, Engine, Row, Shape};
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::{Save, Tree, changed_rows, page_rows};
use crate::{Outcome, cpu};

const ROW: &str = "S2";
/// Rows loaded by one transaction.
const LOAD_BATCH: usize = 50_000;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let count = if context.is_quick { 100 } else { 300 };
    let folder = context.new_folder("written-")?;
    let tree = context.tree()?;
    tree.catch_up()?;
    let mut chunk_engines = engine::open_all(&folder.join("chunks"), Shape::Chunks)?;
    load_chunks(tree, &mut chunk_engines)?;
    let mut row_engines = engine::open_all(&folder.join("rows"), Shape::Nodes)?;
    load_rows(tree.pages, &mut row_engines)?;

    let mut random = Random::new(2);
    let saves =
        (0..count).map(|_| tree.save(random.below(tree.pages))).collect::<Outcome<Vec<_>>>()?;
    let before = tree.plain.counts();
    for save in &saves {
        let replay = tree.replay_of(save)?;
        tree.replay(&replay)?;
    }
    let blocks = tree.plain.counts().since(before).blocks;
    let own = kib_each(blocks * BLOCK_BYTES, count);
    let mut figures = vec![Figure::value(ROW, "our packs write for a page save", own, "KiB")];
    for engine in &mut chunk_engines {
        let theirs = written_by(&saves, |save| engine.commit(&compressed(tree.chunks_of(save)?)))?
            + settled(engine, count)?;
        let peer = format!("the same chunks in {}", engine.name());
        figures.push(
            compare("bytes written for a page save", own, theirs, Goal::AtMost(0.25)).against(peer),
        );
    }
    for engine in &mut row_engines {
        let theirs = written_by(&saves, |save| {
            engine.commit(&to_rows(changed_rows(save.page, save.version)?))
        })? + settled(engine, count)?;
        let peer = format!("plain rows in {}", engine.name());
        // The goal names redb and LMDB; SQLite stands beside them.
        let goal = if engine.name() == "SQLite" { Goal::None } else { Goal::AtMost(0.5) };
        figures.push(compare("bytes written for a page save", own, theirs, goal).against(peer));
    }
    Ok(figures)
}

fn compare(what: &str, ours: f64, theirs: f64, goal: Goal) -> Figure {
    Figure::value(ROW, what, ours / theirs, "x")
        .goal(goal)
        .note(format!("{ours:.1} KiB against {theirs:.1} KiB"))
}

/// Runs every save and returns the KiB written for one.
fn written_by(saves: &[Save], mut run: impl FnMut(&Save) -> Outcome<()>) -> Outcome<f64> {
    let before = written()?;
    saves.iter().try_for_each(&mut run)?;
    Ok(kib_each(written()? - before, saves.len()))
}

/// Lets an engine fold its log; gives the KiB for one save.
fn settled(engine: &mut Box<dyn Engine>, saves: usize) -> Outcome<f64> {
    let before = written()?;
    engine.settle()?;
    Ok(kib_each(written()? - before, saves))
}

fn written() -> Outcome<u64> {
    cpu::bytes_written().ok_or_else(|| "the kernel does not count written bytes".into())
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn kib_each(bytes: u64, saves: usize) -> f64 {
    bytes as f64 / saves as f64 / 1024.0
}

/// Returns chunks as rows, compressed as our packs compress them.
fn compressed(chunks: Vec<(tympan_store::ChunkId, bytes::Bytes)>) -> Vec<Row> {
    let row = |(id, bytes): (tympan_store::ChunkId, bytes::Bytes)| {
        (id.as_bytes().to_vec(), lz4_flex::block::compress(&bytes))
    };
    chunks.into_iter().map(row).collect()
}

/// Returns nodes as rows.
pub(super) fn to_rows(nodes: Vec<(String, tympan_content::Subtree)>) -> Vec<Row> {
    nodes.into_iter().map(|(path, node)| (path.into_bytes(), engine::encode(&node))).collect()
}

fn load_chunks(tree: &Tree, engines: &mut [Box<dyn Engine>]) -> Outcome<()> {
    let mut rows = Vec::new();
    tree.each_chunk(&mut |id, bytes| {
        rows.extend(compressed(vec![(id, bytes.clone())]));
        if rows.len() >= LOAD_BATCH {
            load(&mut rows, engines)?;
        }
        Ok(())
    })?;
    load(&mut rows, engines)
}

/// Loads the rows of all pages into engines.
pub(super) fn load_rows(pages: usize, engines: &mut [Box<dyn Engine>]) -> Outcome<()> {
    let mut rows = Vec::new();
    for page in 0..pages {
        rows.extend(to_rows(page_rows(page)));
        if rows.len() >= LOAD_BATCH {
            load(&mut rows, engines)?;
        }
    }
    load(&mut rows, engines)
}

/// Loads rows in the order of their keys.
fn load(rows: &mut Vec<Row>, engines: &mut [Box<dyn Engine>]) -> Outcome<()> {
    rows.sort_unstable();
    for engine in engines {
        engine.commit(rows)?;
        engine.settle()?;
    }
    rows.clear();
    Ok(())
}
