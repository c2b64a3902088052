//! S8: what a branch costs, at 1,000 nodes and at 1,000,000.
//!
//! A branch is a ref to the root that `main` names. It is made durable before the call returns, so that its time is
//! that of one sync; both sides take turns.

use std::time::{Instant, SystemTime};

use tympan_store::{Batch, ChunkStore, RefUpdate};

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::counting::Counts;
use crate::figure::{Figure, Goal};
use crate::tree::{NODES_PER_PAGE, Tree};

const ROW: &str = "S8";
const SMALL_PAGES: usize = 40;
/// Branches created in one turn.
const TURN: usize = 20;

/// What creating branches cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    milliseconds: f64,
    bytes: f64,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let small = Tree::build(&context.new_folder("small-")?, SMALL_PAGES)?;
    let large = context.tree()?;
    let nodes = large.pages * NODES_PER_PAGE;
    let (mut small_names, mut large_names) = (0.., 0..);
    let [at_small, at_large] = alternate(
        pairs,
        [&mut || create(&small, &mut small_names), &mut || create(large, &mut large_names)],
    )?;
    let bytes = |side: &[Cost]| Spread::of(side.iter().map(|cost| cost.bytes));
    let written = |side: &[Cost], nodes: usize| {
        let what = format!("written to create a branch of {nodes} nodes");
        Figure::spread(ROW, what, &bytes(side), "B").goal(Goal::AtMost(1_024.0))
    };
    let time = ratio(&at_large, &at_small, |cost| cost.milliseconds);
    let median = |side: &[Cost]| Spread::of(side.iter().map(|cost| cost.milliseconds)).median;
    let note =
        format!("{:.2} ms against {:.2} ms, one sync each", median(&at_large), median(&at_small));
    Ok(vec![
        written(&at_small, SMALL_PAGES * NODES_PER_PAGE),
        written(&at_large, nodes),
        Figure::spread(ROW, format!("time to create a branch of {nodes} nodes"), &time, "x")
            .against("a branch of 1,000 nodes")
            .goal(Goal::AtMost(1.2))
            .note(note),
    ])
}

/// Creates branches off `main`; gives the cost of one.
fn create(tree: &Tree, numbers: &mut std::ops::RangeFrom<u32>) -> Outcome<Cost> {
    let mut times = Vec::new();
    let mut bytes = Vec::new();
    for number in numbers.take(TURN) {
        let mut batch = Batch::new();
        batch.move_ref(RefUpdate {
            name: format!("branch-{number:06}"),
            expected: None,
            new: Some(tree.repository.head()?),
            at: SystemTime::UNIX_EPOCH,
            author: "bench".to_owned(),
            message: "branch create".to_owned(),
        });
        let before = tree.full.counts();
        let begin = Instant::now();
        tree.full.commit(batch)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        let Counts { bytes: appended, .. } = tree.full.counts().since(before);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        bytes.push(appended as f64);
    }
    Ok(Cost { milliseconds: Spread::of(times).median, bytes: Spread::of(bytes).median })
}
