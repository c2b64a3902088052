//! S5: chunks that a difference of two states loads.

use std::time::Instant;

use tympan_store::SortedMap;

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::{NODES_PER_PAGE, Tree};

const ROW: &str = "S5";
const SAMPLES: usize = 20;
const MANY: usize = 100;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let tree = context.tree()?;
    let mut random = Random::new(5);
    let mut single = Vec::new();
    for _ in 0..SAMPLES {
        let before = tree.content_map()?;
        tree.save(random.below(tree.pages))?;
        single.push(loads(tree, before, 1)?.0);
    }
    let before = tree.content_map()?;
    let mut pages: Vec<usize> = (0..MANY).map(|_| random.below(tree.pages)).collect();
    pages.sort_unstable();
    pages.dedup();
    for page in &pages {
        tree.save(*page)?;
    }
    let (many, many_ms) = loads(tree, before, pages.len())?;
    let scan_ms = scan(tree)?;
    let note = format!(
        "{} nodes in {} records",
        tree.pages * NODES_PER_PAGE,
        tree.content_map()?.count_records(&*tree.full)?
    );
    let what = format!("chunks loaded for {} changed pages", pages.len());
    let time = Figure::value(ROW, "time of that difference", many_ms / scan_ms, "x");
    Ok(vec![
        Figure::spread(ROW, "chunks loaded for one changed page", &Spread::of(single), "chunks")
            .goal(Goal::AtMost(12.0))
            .note(note),
        Figure::value(ROW, what, many, "chunks").goal(Goal::AtMost(700.0)),
        time.against("a scan of all records")
            .note(format!("{many_ms:.1} ms against {scan_ms:.1} ms")),
    ])
}

/// Returns the chunks that the difference to now loads, and its time in milliseconds.
fn loads(tree: &Tree, before: SortedMap, expected: usize) -> Outcome<(f64, f64)> {
    let now = tree.content_map()?;
    let counts = tree.full.counts();
    let begin = Instant::now();
    let changes = before.diff(&now, &*tree.full).collect::<Result<Vec<_>, _>>()?;
    let elapsed = begin.elapsed().as_secs_f64() * 1e3;
    if changes.len() != expected {
        return Err(format!("the difference has {} records, not {expected}", changes.len()).into());
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let loaded = tree.full.counts().since(counts).loads as f64;
    Ok((loaded, elapsed))
}

/// Returns the milliseconds of a walk over all records, bodies not read.
fn scan(tree: &Tree) -> Outcome<f64> {
    let map = tree.content_map()?;
    let begin = Instant::now();
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let count =
        map.range(&*tree.full, all).try_fold(0_u64, |count, entry| entry.map(|_| count + 1))?;
    if count < tree.pages as u64 {
        return Err("records are missing".into());
    }
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}
