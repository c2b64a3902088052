//! A4: empty durable jobs through the queues: added by many callers, claimed, run and removed, each step synced.
//!
//! The peer is the disk itself: how many syncs of one small record it does in a second.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tokio::sync::watch;
use tympan_jobs::{
    JOB_MIGRATIONS, Job, JobContext, JobHandler, JobOutcome, JobQueues, JobWorker,
    JobWorkerOptions, NewJob,
};
use tympan_store::StateDatabase;

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::figure::{Figure, Goal};

const ROW: &str = "A4";
/// Callers that add jobs at the same time.
const CALLERS: usize = 256;
/// Jobs of each caller.
const JOBS: usize = 80;
/// Syncs of the bare loop.
const SYNCS: usize = 200;

/// Does nothing.
struct Empty(Arc<AtomicUsize>);

impl JobHandler for Empty {
    fn topic(&self) -> &str {
        "bench/**"
    }

    fn run(&self, _job: &Job, _context: &JobContext) -> JobOutcome {
        self.0.fetch_add(1, Ordering::Relaxed);
        JobOutcome::Done
    }
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let rounds = context.pairs();
    let folder = context.new_folder("jobs-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (mut rates, mut syncs) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let rate = runtime.block_on(rate(&folder.join(format!("{round}.db"))))?;
        let bare = bare_syncs(&folder.join("bare"))?;
        // The first round warms up.
        if round > 0 {
            rates.push(rate);
            syncs.push(bare);
        }
    }
    let (rate, sync) = (Spread::of(rates), Spread::of(syncs));
    let note = format!(
        "{CALLERS} callers at once, each job added by itself and durable before the next; the disk does {:.0} syncs/s",
        sync.median
    );
    let figure = Figure::spread(ROW, "empty durable jobs, added and done", &rate, "jobs/s");
    Ok(vec![figure.goal(Goal::AtLeast(5_000.0)).note(note)])
}

/// Adds jobs and has them run; returns how many a second did both.
async fn rate(file: &std::path::Path) -> Outcome<f64> {
    let state = StateDatabase::open(file).await?;
    state.migrate_tables("jobs", JOB_MIGRATIONS).await?;
    let queues = JobQueues::new(state.pool().clone());
    let done = Arc::new(AtomicUsize::new(0));
    let worker = JobWorker::new(queues.clone(), JobWorkerOptions::new("bench", "bench".to_owned()));
    worker.register_handler(Arc::new(Empty(done.clone())));
    let (stop, stopped) = watch::channel(false);
    let working = tokio::spawn(worker.run(stopped));
    let began = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let queues = queues.clone();
        tokio::spawn(async move {
            for number in 0..JOBS {
                let job = NewJob::new("bench/empty", json!([caller, number]));
                queues.add_job(job, SystemTime::now()).await?;
            }
            Ok::<(), tympan_jobs::Error>(())
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    while queues.statistics().count_jobs("bench/empty").await? > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let elapsed = began.elapsed();
    stop.send_replace(true);
    working.await?;
    state.close().await;
    let ran = done.load(Ordering::Relaxed);
    if ran != CALLERS * JOBS {
        return Err(format!("{ran} jobs ran, {} were added", CALLERS * JOBS).into());
    }
    Ok((CALLERS * JOBS) as f64 / elapsed.as_secs_f64())
}

fn bare_syncs(file: &std::path::Path) -> Outcome<f64> {
    let mut file = File::options().append(true).create(true).open(file)?;
    let began = Instant::now();
    for _ in 0..SYNCS {
        file.write_all(&[0; 512])?;
        file.sync_data()?;
    }
    Ok(SYNCS as f64 / began.elapsed().as_secs_f64())
}
