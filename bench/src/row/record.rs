//! R4: what it costs a render to keep what it read: to note it, to see how the page looks, and to record both.

use std::path::Path;
use std::time::SystemTime;

use tokio::runtime::Runtime;
use tympan_content::ChunkId;
use tympan_render::ledger::{
    DEFAULT_MAX_URLS, DependencyLedger, LedgerOptions, MIGRATIONS, RecordOutcome,
    ResponseFingerprint,
};
use tympan_render::{ReadRecording, RenderOptions, RenderRequest, RenderResponseBody, Renderer};
use tympan_store::StateDatabase;

use crate::alternate::{Spread, alternate};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::site::{BENCH_PAGE, HOME_PAGE};
use crate::{Outcome, cpu};

const ROW: &str = "R4";
/// Turns of each side; short and many, as a render is short and the machine is not quiet.
const TURNS: usize = 61;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let painter = Painter::new(context)?;
    let mut figures = Vec::new();
    for (what, path, renders) in [("bench page", BENCH_PAGE, 100), ("home page", HOME_PAGE, 10)] {
        let paths = painter.reads(path)?;
        let [with, without] = alternate(
            TURNS,
            [&mut || painter.turn(path, ReadRecording::Paths, renders), &mut || {
                painter.turn(path, ReadRecording::Count, renders)
            }],
        )?;
        let (with, without) = (Spread::of(with), Spread::of(without));
        // The least disturbed quarter of each side is compared: what disturbs only ever adds.
        let cost = (with.lower_quartile / without.lower_quartile - 1.0) * 100.0;
        let note = format!(
            "{paths} paths, as each time before; a render takes {:.0} us of CPU; lower quartiles of {TURNS} turns",
            without.median
        );
        let what = format!("{what}, CPU of the dependency record");
        let figure = Figure::value(ROW, what, cost, "%").pairs(TURNS).against("a render without");
        figures.push(figure.goal(Goal::AtMost(5.0)).note(note));
    }
    Ok(figures)
}

/// Opens a new ledger in a folder; it owes nothing.
pub(super) fn open_ledger(folder: &Path) -> Outcome<(DependencyLedger, Runtime)> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let ledger = runtime.block_on(async {
        let state = StateDatabase::open(&folder.join("state.db")).await?;
        state.migrate_tables("render", MIGRATIONS).await?;
        let options = LedgerOptions {
            pool: state.pool().clone(),
            folder: folder.to_owned(),
            publisher: "bench".to_owned(),
            boot: "bench".to_owned(),
            renderer_fingerprint: "the same".to_owned(),
            max_urls: DEFAULT_MAX_URLS,
        };
        let ledger = DependencyLedger::open(options, SystemTime::now()).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(ledger)
    });
    let ledger = ledger.map_err(|error| error.to_string())?;
    ledger.acknowledge(&ledger.pending_flushes());
    Ok((ledger, runtime))
}

/// Draws pages in this process, from the publisher's content.
pub(super) struct Painter {
    repository: tympan_content::Repository,
    renderer: Renderer,
    ledger: DependencyLedger,
    /// The ledger's database lives in it.
    _runtime: Runtime,
}

impl Painter {
    pub(super) fn new(context: &mut Context) -> Outcome<Self> {
        let repository = context.site()?.open()?;
        let renderer = Renderer::new(&repository, RenderOptions::default());
        let (ledger, runtime) = open_ledger(&context.new_folder("record-")?)?;
        // As a publisher does whose flushes are all stored.
        ledger.acknowledge_step(repository.snapshot()?.root_id());
        Ok(Self { repository, renderer, ledger, _runtime: runtime })
    }

    /// Draws a page many times and returns the microseconds of CPU for one.
    pub(super) fn turn(&self, path: &str, recording: ReadRecording, renders: u32) -> Outcome<f64> {
        let draw = |_| -> Outcome<()> {
            let ticket = self.ledger.begin_rendering();
            let (drawn, root) = self.render(path, recording)?;
            if recording == ReadRecording::Count {
                return Ok(());
            }
            let request = RenderRequest { recording, ..RenderRequest::get(path) };
            let look = ResponseFingerprint::from_response(&drawn, &request);
            match self.ledger.record_answer((ticket, root), path, &drawn, look) {
                RecordOutcome::Recorded => Ok(()),
                other => Err(format!("{path} is not kept: {other:?}").into()),
            }
        };
        let (result, seconds) = cpu::spent(|| (0..renders).try_for_each(draw));
        result?;
        Ok(seconds * 1e6 / f64::from(renders))
    }

    /// Returns how many different paths a page is drawn from.
    pub(super) fn reads(&self, path: &str) -> Outcome<usize> {
        Ok(self.render(path, ReadRecording::Paths)?.0.reads.dependencies().len())
    }

    /// Draws a page; tells of which state.
    fn render(
        &self,
        path: &str,
        recording: ReadRecording,
    ) -> Outcome<(tympan_render::RenderResponse, Option<ChunkId>)> {
        let request = RenderRequest { recording, ..RenderRequest::get(path) };
        let snapshot = self.repository.snapshot()?;
        let response = self.renderer.render(&snapshot, &request);
        match &response.body {
            RenderResponseBody::Bytes(bytes)
                if bytes.len() > 1_000 && response.failed_component_count == 0 =>
            {
                Ok((response, snapshot.visible_root_id()))
            }
            _ => Err(format!("{path} is not drawn: {:?}", response.outcome).into()),
        }
    }
}
