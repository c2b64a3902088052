//! S1: saving one page, 10 of its 25 nodes changed, against a bare append of 20 KB with a sync.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::counting::{CountingStore, Counts};
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::{NODES_PER_PAGE, Save, Tree};

const ROW: &str = "S1";
const INDEXES: &str = "S1/indexes";
/// Saves between two turns of the bare loop.
const TURN: usize = 20;
const BARE_BYTES: usize = 20_000;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let folder = context.new_folder("bare-")?;
    let tree = context.tree()?;
    tree.catch_up()?;
    let (saves, full_counts) = save_pages(tree, (pairs + 1) * TURN)?;
    let replays = saves.iter().map(|save| tree.replay_of(save)).collect::<Outcome<Vec<_>>>()?;

    let mut bare = Bare::create(&folder)?;
    let mut waiting = replays.iter();
    let mut plain_counts = Vec::new();
    let turns = alternate(
        pairs,
        [
            &mut || {
                let turn = waiting.by_ref().take(TURN).map(|replay| {
                    let before = tree.plain.counts();
                    let elapsed = tree.replay(replay)?;
                    plain_counts.push(tree.plain.counts().since(before));
                    Ok(elapsed)
                });
                Ok(median(turn.collect::<Outcome<Vec<_>>>()?))
            },
            &mut || Ok(median((0..TURN).map(|_| bare.append()).collect::<Outcome<Vec<_>>>()?)),
        ],
    )?;
    let [ours, theirs] = turns;
    let nodes = tree.pages * NODES_PER_PAGE;
    let mut figures = count_figures(
        ROW,
        &plain_counts,
        &format!("{nodes} nodes, the content map alone; goal on the median"),
    );
    let time =
        Figure::spread(ROW, "time of a page save (p50)", &ratio(&ours, &theirs, |time| *time), "x");
    let note = format!(
        "{:.2} ms against {:.2} ms",
        Spread::of(ours).median,
        Spread::of(theirs.iter().copied()).median
    );
    figures.push(time.against("append of 20 KB + fdatasync").goal(Goal::AtMost(1.2)).note(note));

    let with_indexes = count_figures(
        INDEXES,
        &full_counts,
        "the same saves through a session, five index maps beside",
    );
    figures.extend(with_indexes.into_iter().map(|figure| figure.goal(Goal::None)));
    let times = saves.iter().map(|save| save.elapsed.as_secs_f64() * 1e3);
    let session =
        Figure::spread(INDEXES, "time of a page save through a session", &Spread::of(times), "ms");
    figures.push(session);
    Ok(figures)
}

/// Saves random pages through sessions; gives what each wrote.
fn save_pages(tree: &mut Tree, count: usize) -> Outcome<(Vec<Save>, Vec<Counts>)> {
    let mut random = Random::new(count as u64);
    let mut saves = Vec::new();
    let mut counts = Vec::new();
    for _ in 0..count {
        let page = random.below(tree.pages);
        let (save, written) = counted(&tree.full.clone(), || tree.save(page))?;
        saves.push(save);
        counts.push(written);
    }
    Ok((saves, counts))
}

fn counted<T>(store: &CountingStore, run: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Counts)> {
    let before = store.counts();
    let value = run()?;
    Ok((value, store.counts().since(before)))
}

fn count_figures(row: &str, counts: &[Counts], note: &str) -> Vec<Figure> {
    #[expect(clippy::cast_precision_loss, reason = "counts of one save are small")]
    let spread =
        |value: fn(&Counts) -> u64| Spread::of(counts.iter().map(|counts| value(counts) as f64));
    let kib = |spread: Spread| Spread {
        median: spread.median / 1024.0,
        low: spread.low / 1024.0,
        high: spread.high / 1024.0,
        ..spread
    };
    vec![
        Figure::spread(
            row,
            "chunks stored by a page save",
            &spread(|counts| counts.chunks),
            "chunks",
        )
        .goal(Goal::AtMost(5.0))
        .note(note),
        Figure::spread(row, "appended by a page save", &kib(spread(|counts| counts.bytes)), "KiB")
            .goal(Goal::AtMost(12.0)),
        Figure::spread(row, "syncs of a page save", &spread(|counts| counts.syncs), "syncs")
            .goal(Goal::Exactly(1.0)),
    ]
}

fn median(times: Vec<Duration>) -> f64 {
    Spread::of(times.into_iter().map(|time| time.as_secs_f64() * 1e3)).median
}

/// The least that any store has to do: append and sync.
struct Bare {
    file: File,
    bytes: Vec<u8>,
}

impl Bare {
    fn create(folder: &std::path::Path) -> Outcome<Self> {
        let file = File::options().create(true).append(true).open(folder.join("bare"))?;
        Ok(Self { file, bytes: Random::new(1).bytes(BARE_BYTES) })
    }

    fn append(&mut self) -> Outcome<Duration> {
        let begin = Instant::now();
        self.file.write_all(&self.bytes)?;
        self.file.sync_data()?;
        Ok(begin.elapsed())
    }
}
