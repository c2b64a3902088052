//! New originals become jobs, and jobs finished assets, through stops at any instant.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tympan_assets::{
    ASSET_UPDATE_TOPIC, AssetCounters, AssetFollower, AssetHandler, AssetProcessor,
    DecoderPoolOptions, DecoderProcessPool, ProcessingLimits, ProgramCommand, RenditionProfile,
};
use tympan_content::{NodePath, Value};
use tympan_jobs::{
    Job, JobContext, JobHandler, JobOutcome, JobQueues, JobState, JobWorker, JobWorkerOptions,
    NewJob, QUEUE_FACTORY, QueueConfig,
};

use crate::ingest::{assets, path, read, upload};
use crate::place::{Place, both};
use crate::test_pictures::{decoder_pool, jpeg, options, photo, png};

/// The queue that assets have unless somebody makes another.
const QUEUE: &str = "Granite Workflow Queue";
const NOW: SystemTime = SystemTime::UNIX_EPOCH;

/// What follows content and works off the jobs of assets.
struct Running {
    queues: JobQueues,
    follower: AssetFollower,
    worker: JobWorker,
    counters: Arc<AssetCounters>,
    stop: watch::Sender<bool>,
    working: JoinHandle<()>,
}

impl Running {
    fn start(assets: &AssetProcessor, queues: &JobQueues) -> Self {
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(10),
            cores: 4,
            ..JobWorkerOptions::new("author", "worker".to_owned())
        };
        let worker = JobWorker::new(queues.clone(), options);
        let handler = AssetHandler::new(assets.clone());
        let counters = handler.counters();
        worker.register_handler(Arc::new(handler));
        let (stop, stopped) = watch::channel(false);
        let working = tokio::spawn(worker.clone().run(stopped));
        let follower = AssetFollower::new(assets.repository().clone(), queues.clone());
        Self { queues: queues.clone(), follower, worker, counters, stop, working }
    }

    async fn follow(&mut self) -> usize {
        self.follower.process_newest_root(SystemTime::now()).await.unwrap()
    }

    /// Waits until all that content holds is processed.
    async fn settle(&mut self) {
        loop {
            let added = self.follow().await;
            if added == 0
                && self.queues.statistics().count_jobs(ASSET_UPDATE_TOPIC).await.unwrap() == 0
            {
                // What was processed last has changed content.
                if self.follow().await == 0 {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn counts(&self) -> (u64, u64, u64) {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (
            count(&self.counters.processed),
            count(&self.counters.failed),
            count(&self.counters.retried),
        )
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.working.await.unwrap();
    }
}

fn state(assets: &AssetProcessor, asset: &NodePath) -> Option<String> {
    read(assets, asset)
        .find_descendant("jcr:content")
        .unwrap()
        .text("dam:assetState")
        .map(str::to_owned)
}

fn replace(assets: &AssetProcessor, asset: &NodePath, bytes: &[u8]) {
    let mut session = assets.repository().session("ann").unwrap();
    let blob = session.put_blob(&mut &*bytes).unwrap();
    let resource = path(&format!("{asset}/jcr:content/renditions/original/jcr:content"));
    session.set_property(&resource, "jcr:data", Value::Binary(blob).into()).unwrap();
    session.commit("replace", NOW).unwrap();
}

/// Returns the paths of the stored jobs.
async fn stored(queues: &JobQueues) -> Vec<String> {
    let jobs = queues.list_topic(ASSET_UPDATE_TOPIC, 100).await.unwrap();
    jobs.iter().map(|job| job.properties["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_stores_what_is_due_and_nothing_else() {
    for place in both() {
        let (assets, queues) = (assets(), place.open().await);
        let mut follower = AssetFollower::new(assets.repository().clone(), queues.clone());
        let first = upload(&assets, "/content/dam/a.png", "", &png(photo(20, 20)));
        // The first time it looks at everything, then only at what changed.
        assert_eq!(follower.process_newest_root(NOW).await.unwrap(), 1);
        assert_eq!(follower.process_newest_root(NOW).await.unwrap(), 0);
        assert_eq!(stored(&queues).await, ["/content/dam/a.png"]);
        assets.process_asset(&first, NOW).unwrap();
        assert_eq!(
            follower.process_newest_root(NOW).await.unwrap(),
            0,
            "its own work makes no new work"
        );
        upload(&assets, "/content/dam/b.png", "", &png(photo(21, 20)));
        assert_eq!(follower.process_newest_root(NOW).await.unwrap(), 1);
        let mut session = assets.repository().session("ann").unwrap();
        session.set_property(&path("/content/dam"), "jcr:title", "Assets".into()).unwrap();
        let metadata = path("/content/dam/a.png/jcr:content/metadata");
        session.set_property(&metadata, "dc:title", "A".into()).unwrap();
        session.commit("describe", NOW).unwrap();
        assert_eq!(follower.process_newest_root(NOW).await.unwrap(), 0);
        // A new original while the job of the former one waits is a job of its own.
        replace(&assets, &path("/content/dam/b.png"), &png(photo(22, 20)));
        assert_eq!(follower.process_newest_root(NOW).await.unwrap(), 1);
        let names = ["/content/dam/a.png", "/content/dam/b.png", "/content/dam/b.png"];
        assert_eq!(stored(&queues).await, names);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_where_the_last_one_was() {
    let (assets, place) = (assets(), Place::sqlite());
    let queues = place.open().await;
    for number in 0..3 {
        upload(&assets, &format!("/content/dam/{number}.png"), "", &png(photo(20 + number, 20)));
    }
    let new = || AssetFollower::new(assets.repository().clone(), queues.clone());
    assert_eq!(new().process_newest_root(NOW).await.unwrap(), 3);
    assert_eq!(new().process_newest_root(NOW).await.unwrap(), 0, "another one has nothing to add");
    // Of two that see the same change one moves on.
    let (mut one, mut other) = (new(), new());
    upload(&assets, "/content/dam/4.png", "", &png(photo(30, 20)));
    let (one, other) = tokio::join!(one.process_newest_root(NOW), other.process_newest_root(NOW));
    assert!(one.unwrap() + other.unwrap() >= 1);
    assert_eq!(queues.statistics().count_jobs(ASSET_UPDATE_TOPIC).await.unwrap(), 4);
    // A root that is gone is no reason to lose anything: what waits already has the same key.
    let digested = queues.followers().root_of("assets").await.unwrap();
    queues
        .followers()
        .advance("assets", (digested.as_deref(), "gone"), Vec::new(), NOW)
        .await
        .unwrap();
    assert_eq!(new().process_newest_root(NOW).await.unwrap(), 4);
    assert_eq!(queues.statistics().count_jobs(ASSET_UPDATE_TOPIC).await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_processed_before_and_after_the_start() {
    for place in both() {
        let (assets, queues) = (assets(), place.open().await);
        let before = upload(&assets, "/content/dam/before.jpg", "", &jpeg(&photo(400, 300), 90));
        let mut running = Running::start(&assets, &queues);
        let after: Vec<_> = (0..6)
            .map(|number| {
                let place = format!("/content/dam/{number}.png");
                upload(&assets, &place, "", &png(photo(30 + number, 20)))
            })
            .collect();
        let broken = upload(&assets, "/content/dam/broken.jpg", "", b"not a picture");
        running.settle().await;
        for asset in after.iter().chain([&before]) {
            assert_eq!(state(&assets, asset).as_deref(), Some("processed"), "{asset}");
            let tree = read(&assets, asset);
            assert_eq!(tree.find_descendant("jcr:content/renditions").unwrap().children.len(), 5);
        }
        assert_eq!(state(&assets, &broken).as_deref(), Some("failed"));
        assert_eq!(running.counts(), (7, 1, 0));
        assert_eq!(running.counters.renditions.load(Ordering::Relaxed), 28);
        let topics = queues.statistics().topic_statistics().await.unwrap();
        assert_eq!(
            topics[ASSET_UPDATE_TOPIC].finished, 8,
            "a file that cannot be drawn is a job done"
        );
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_original_is_processed_again() {
    let (assets, place) = (assets(), Place::sqlite());
    let asset = upload(&assets, "/content/dam/a.png", "", &png(photo(30, 20)));
    let mut running = Running::start(&assets, &place.open().await);
    running.settle().await;
    replace(&assets, &asset, &png(photo(50, 20)));
    running.settle().await;
    let tree = read(&assets, &asset);
    let metadata = tree.find_descendant("jcr:content/metadata").unwrap();
    assert_eq!(metadata.properties["tiff:ImageWidth"], Value::Long(50).into());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_asset_is_finished_or_gone_ends_without_drawing() {
    let (assets, place) = (assets(), Place::sqlite());
    let queues = place.open().await;
    let finished = upload(&assets, "/content/dam/a.png", "", &png(photo(30, 20)));
    let gone = upload(&assets, "/content/dam/b.png", "", &png(photo(31, 20)));
    AssetFollower::new(assets.repository().clone(), queues.clone())
        .process_newest_root(NOW)
        .await
        .unwrap();
    // As a crash between the commit and the end of the job leaves it.
    assets.process_asset(&finished, NOW).unwrap();
    let mut session = assets.repository().session("ann").unwrap();
    session.remove_node(&gone).unwrap();
    session.commit("remove", NOW).unwrap();
    let root = assets.repository().head_root().unwrap();
    let mut running = Running::start(&assets, &queues);
    running.settle().await;
    assert_eq!(running.counts(), (0, 0, 0));
    assert_eq!(assets.repository().head_root().unwrap(), root);
    running.stop().await;
}

/// Processing is one commit: at every root there is either nothing of it, or all.
#[tokio::test(flavor = "multi_thread")]
async fn there_is_never_half_an_asset() {
    let (assets, place) = (assets(), Place::sqlite());
    let queues = place.open().await;
    let uploaded: Vec<_> = (0..8)
        .map(|number| {
            let place = format!("/content/dam/{number}.png");
            upload(&assets, &place, "", &png(photo(40 + number, 20)))
        })
        .collect();
    let mut running = Running::start(&assets, &queues);
    running.follow().await;
    let mut states = 0;
    while queues.statistics().count_jobs(ASSET_UPDATE_TOPIC).await.unwrap() > 0 || states == 0 {
        let snapshot = assets.repository().snapshot().unwrap();
        for asset in &uploaded {
            let tree = snapshot.read_subtree(asset).unwrap().unwrap();
            let renditions = tree.find_descendant("jcr:content/renditions").unwrap().children.len();
            let state = tree.find_descendant("jcr:content").unwrap().text("dam:assetState");
            assert!(
                matches!((renditions, state), (1, None) | (5, Some("processed"))),
                "{renditions} {state:?}"
            );
            states += 1;
        }
    }
    running.stop().await;
}

/// Notes that it ran.
struct Other;

impl JobHandler for Other {
    fn topic(&self) -> &str {
        "other"
    }

    fn run(&self, _: &Job, _: &JobContext) -> JobOutcome {
        JobOutcome::Done
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_holds_assets() {
    let (assets, place) = (assets(), Place::sqlite());
    let queues = place.open().await;
    queues.pause_queue(QUEUE, "admin", NOW).await.unwrap();
    let asset = upload(&assets, "/content/dam/a.png", "", &png(photo(30, 20)));
    let mut running = Running::start(&assets, &queues);
    running.worker.register_handler(Arc::new(Other));
    assert_eq!(running.follow().await, 1);
    // Later work of another queue is done, so the worker had its chance.
    for _ in 0..3 {
        queues.add_job(NewJob::new("other", json!({})), SystemTime::now()).await.unwrap();
        while queues.statistics().count_jobs("other").await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!((running.counts(), state(&assets, &asset)), ((0, 0, 0), None));
    assert!(queues.resume_queue(QUEUE).await.unwrap());
    running.settle().await;
    assert_eq!(state(&assets, &asset).as_deref(), Some("processed"));
    running.stop().await;
}

fn assets_with(
    assets: &AssetProcessor,
    change: impl FnOnce(&mut DecoderPoolOptions),
) -> AssetProcessor {
    let mut options = options();
    change(&mut options);
    let decoder_pool = Arc::new(DecoderProcessPool::new(options));
    AssetProcessor::new(
        assets.repository().clone(),
        decoder_pool,
        RenditionProfile::default(),
        ProcessingLimits::default(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_machine_fails_is_tried_again() {
    let (assets, place) = (assets(), Place::sqlite());
    let queues = place.open().await;
    let asset = upload(&assets, "/content/dam/a.png", "", &png(photo(30, 20)));
    let broken =
        assets_with(&assets, |options| options.process_command.program = "/nonexistent".into());
    let mut running = Running::start(&broken, &queues);
    running.follow().await;
    let waiting = loop {
        let jobs = queues.list_topic(ASSET_UPDATE_TOPIC, 1).await.unwrap();
        if let [job] = &*jobs
            && job.last_error.is_some()
        {
            break job.clone();
        }
        tokio::task::yield_now().await;
    };
    let reason = waiting.last_error.unwrap();
    assert!(reason.contains("cannot start the rendering process"), "{reason}");
    assert_eq!((state(&assets, &asset), running.counts().0), (None, 0));
    running.stop().await;
    let mut running = Running::start(&assets, &queues);
    queues.retry_job(waiting.id, SystemTime::now()).await.unwrap();
    running.settle().await;
    assert_eq!(state(&assets, &asset).as_deref(), Some("processed"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_process_is_always_killed_is_given_up_at_the_asset() {
    let (assets, place) = (assets(), Place::sqlite());
    let queues = place.open().await;
    let asset = upload(&assets, "/content/dam/a.png", "", &png(photo(30, 20)));
    // It reads the beginning of the file and dies, as by a system that is short of memory.
    let dying = assets_with(&assets, |options| {
        let arguments = ["-c", "IFS= read -r line; kill -9 $$"];
        options.process_command = ProgramCommand {
            program: "/bin/sh".into(),
            arguments: arguments.map(Into::into).into(),
        };
    });
    let mut running = Running::start(&dying, &queues);
    running.worker.set_queue_configs(vec![QueueConfig {
        retries: Some(0),
        pid: format!("{QUEUE_FACTORY}-assets"),
        ..QueueConfig::new("assets", &[ASSET_UPDATE_TOPIC])
    }]);
    running.follow().await;
    let job = loop {
        let jobs = queues.list_topic(ASSET_UPDATE_TOPIC, 1).await.unwrap();
        if let [job] = &*jobs
            && job.ended_at.is_some()
        {
            break job.clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(job.state, JobState::Error);
    let tree = read(&assets, &asset);
    let content = tree.find_descendant("jcr:content").unwrap();
    assert_eq!(content.text("dam:assetState"), Some("failed"));
    assert!(content.text("dam:failureReason").unwrap().contains("was killed"), "{content:?}");
    assert_eq!(running.counts(), (0, 1, 0));
    running.stop().await;
}

#[test]
fn widths_for_pages_are_made_where_they_are_wanted() {
    let plain = assets();
    let profile =
        RenditionProfile { responsive_widths: vec![320, 640], ..RenditionProfile::default() };
    let assets = AssetProcessor::new(
        plain.repository().clone(),
        decoder_pool(),
        profile,
        ProcessingLimits::default(),
    );
    let asset = upload(&assets, "/content/dam/a.jpg", "", &jpeg(&photo(900, 300), 90));
    assets.process_asset(&asset, NOW).unwrap();
    let tree = read(&assets, &asset);
    for (name, width) in [("cq5dam.width.320.webp", 320), ("cq5dam.width.640.webp", 640)] {
        let resource =
            tree.find_descendant(&format!("jcr:content/renditions/{name}/jcr:content")).unwrap();
        let Some(Value::Binary(blob)) = resource.properties["jcr:data"].first() else { panic!() };
        let opened = assets.repository().blobs().open(blob).unwrap().unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut opened.into_reader(), &mut bytes).unwrap();
        assert_eq!(image::load_from_memory(&bytes).unwrap().width(), width);
    }
}
