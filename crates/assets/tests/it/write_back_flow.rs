//! Metadata that a person edits goes into the file by a workflow, and round no circle.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_assets::{
    ASSET_UPDATE_USER, AssetProcessor, WriteBackWorkflowStep, needs_processing,
    set_write_back_enabled,
};
use tympan_content::{Property, Repository, Session};
use tympan_jobs::workflow::{
    WorkflowEngine, WorkflowFilter, WorkflowHandler, WorkflowInstance, WorkflowLauncher,
    WorkflowState,
};
use tympan_jobs::{JobWorker, JobWorkerOptions};

use crate::ingest::{assets, path, read, upload};
use crate::place::Place;
use crate::test_pictures::{jpeg, photo};
use crate::write_back::original;

struct Flow {
    repository: Repository,
    runtime: tokio::runtime::Runtime,
    _home: Place,
    assets: AssetProcessor,
    workflows: WorkflowEngine,
    launcher: WorkflowLauncher,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Flow {
    fn new() -> Self {
        let home = Place::sqlite();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let queues = runtime.block_on(home.open());
        let assets = assets();
        let repository = assets.repository().clone();
        let workflows = WorkflowEngine::new(queues.clone());
        let launcher = WorkflowLauncher::new(workflows.clone(), repository.clone(), &["author"])
            .ignoring_user(ASSET_UPDATE_USER);
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(20),
            ..JobWorkerOptions::new("author", "one".to_owned())
        };
        let worker = JobWorker::new(queues.clone(), options);
        let process = Arc::new(WriteBackWorkflowStep::new(repository.clone()));
        for handler in WorkflowHandler::for_processes(&workflows, runtime.handle(), vec![process]) {
            worker.register_handler(handler);
        }
        let (stop, stopped) = tokio::sync::watch::channel(false);
        runtime.spawn(worker.run(stopped));
        Self { repository, runtime, _home: home, assets, workflows, launcher, stop }
    }

    /// Lets launchers look at everything, and waits until what they started has ended.
    fn settle(&self) -> Vec<WorkflowInstance> {
        let now = SystemTime::now();
        while !self.runtime.block_on(self.launcher.process_next_changes(now)).unwrap() {}
        loop {
            let filter = WorkflowFilter::default();
            let all = self.workflows.list_instances(&filter, 100);
            let all = self.runtime.block_on(all).unwrap();
            if all.iter().all(|one| one.state == WorkflowState::Completed) {
                return all;
            }
            std::thread::yield_now();
        }
    }

    fn edit(&self, work: impl FnOnce(&mut Session)) {
        let mut session = self.repository.session("ann").unwrap();
        work(&mut session);
        session.commit("edit", SystemTime::now()).unwrap();
    }

    fn describe(&self, asset: &str, title: &str) {
        self.edit(|session| {
            let metadata = path(&format!("{asset}/jcr:content/metadata"));
            session.set_property(&metadata, "dc:title", Property::text(title)).unwrap();
        });
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

#[test]
fn an_edit_goes_into_the_file_once() {
    let flow = Flow::new();
    flow.settle();
    let asset = upload(&flow.assets, "/content/dam/a.jpg", "", &jpeg(&photo(60, 40), 90));
    flow.assets.process_asset(&asset, SystemTime::now()).unwrap();
    // It is off until somebody switches it on.
    flow.describe("/content/dam/a.jpg", "ignored");
    assert!(flow.settle().is_empty());
    flow.edit(|session| set_write_back_enabled(session, true).unwrap());
    assert!(flow.settle().is_empty());
    flow.describe("/content/dam/a.jpg", "written");
    assert_eq!(flow.settle().len(), 1);
    let bytes = original(&flow.assets, &read(&flow.assets, &asset));
    assert!(String::from_utf8_lossy(&bytes).contains("written"));
    // Neither what it committed nor what processing says of the new file starts it again.
    let snapshot = flow.repository.snapshot().unwrap();
    assert!(!needs_processing(&snapshot.node(&asset).unwrap().unwrap()).unwrap());
    flow.assets.process_asset(&asset, SystemTime::now()).unwrap();
    assert_eq!(flow.settle().len(), 1);
    let metadata = path("/content/dam/a.jpg/jcr:content/metadata");
    let metadata = flow.repository.snapshot().unwrap().node(&metadata).unwrap().unwrap();
    assert_eq!(metadata.text("dc:title").as_deref(), Some("written"));
    flow.edit(|session| set_write_back_enabled(session, false).unwrap());
    flow.describe("/content/dam/a.jpg", "off again");
    assert_eq!(flow.settle().len(), 1);
}

#[test]
fn an_asset_says_why_its_file_stays_as_it_is() {
    let flow = Flow::new();
    flow.edit(|session| set_write_back_enabled(session, true).unwrap());
    flow.settle();
    upload(&flow.assets, "/content/dam/a.gif", "", b"GIF89a\x01\0\x01\0\0\0\0;");
    flow.describe("/content/dam/a.gif", "title");
    assert_eq!(flow.settle().len(), 1);
    let content = path("/content/dam/a.gif/jcr:content");
    let failure = || {
        let node = flow.repository.snapshot().unwrap().node(&content).unwrap().unwrap();
        node.text("dam:xmpWriteBackFailure")
    };
    assert!(failure().unwrap().contains("metadata cannot be written"));
}
