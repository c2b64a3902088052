//! Metadata that a person edits goes into the file by a workflow, and round no circle.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_content::Property;
use tympan_jobs::asset::{
    AssetProcessor, ProcessingLimits, RenditionProfile, WriteBackProcess, needs_processing,
    set_write_back_enabled,
};
use tympan_jobs::workflow::{
    WorkflowEngine, WorkflowFilter, WorkflowHandler, WorkflowInstance, WorkflowLauncher,
    WorkflowState,
};
use tympan_jobs::{JobWorker, JobWorkerOptions};

use crate::asset_ingest::{path, upload};
use crate::asset_support::{jpeg, photo, studio};
use crate::mount::Desk;

struct Flow {
    desk: Desk,
    assets: AssetProcessor,
    workflows: WorkflowEngine,
    launcher: WorkflowLauncher,
    stop: tokio::sync::watch::Sender<bool>,
}

impl Flow {
    fn new() -> Self {
        let desk = Desk::new();
        desk.edit(|session| {
            for folder in ["/content", "/content/dam"] {
                session.add_node(&path(folder), "sling:Folder").unwrap();
            }
        });
        let assets = AssetProcessor::new(
            desk.repository.clone(),
            studio(),
            RenditionProfile::default(),
            ProcessingLimits::default(),
        );
        let workflows = WorkflowEngine::new(desk.queues.clone());
        let launcher =
            WorkflowLauncher::new(workflows.clone(), desk.repository.clone(), &["author"]);
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(20),
            ..JobWorkerOptions::new("author", "one".to_owned())
        };
        let worker = JobWorker::new(desk.queues.clone(), options);
        let process = Arc::new(WriteBackProcess::new(desk.repository.clone()));
        for handler in
            WorkflowHandler::for_processes(&workflows, desk.runtime.handle(), vec![process])
        {
            worker.register_handler(handler);
        }
        let (stop, stopped) = tokio::sync::watch::channel(false);
        desk.runtime.spawn(worker.run(stopped));
        Self { desk, assets, workflows, launcher, stop }
    }

    /// Lets launchers look at everything, and waits until what they started has ended.
    fn settle(&self) -> Vec<WorkflowInstance> {
        let now = SystemTime::now();
        while !self.desk.runtime.block_on(self.launcher.process_next_changes(now)).unwrap() {}
        loop {
            let filter = WorkflowFilter::default();
            let all = self.workflows.list_instances(&filter, 100);
            let all = self.desk.runtime.block_on(all).unwrap();
            if all.iter().all(|one| one.state == WorkflowState::Completed) {
                return all;
            }
            std::thread::yield_now();
        }
    }

    fn describe(&self, asset: &str, title: &str) {
        self.desk.edit(|session| {
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
    flow.desk.edit(|session| set_write_back_enabled(session, true).unwrap());
    assert!(flow.settle().is_empty());
    flow.describe("/content/dam/a.jpg", "written");
    assert_eq!(flow.settle().len(), 1);
    let bytes = flow.desk.original("/content/dam/a.jpg");
    assert!(String::from_utf8_lossy(&bytes).contains("written"));
    // Neither what it committed nor what processing says of the new file starts it again.
    let snapshot = flow.desk.repository.snapshot().unwrap();
    assert!(!needs_processing(&snapshot.node(&asset).unwrap().unwrap()).unwrap());
    flow.assets.process_asset(&asset, SystemTime::now()).unwrap();
    assert_eq!(flow.settle().len(), 1);
    let metadata = path("/content/dam/a.jpg/jcr:content/metadata");
    let metadata = flow.desk.repository.snapshot().unwrap().node(&metadata).unwrap().unwrap();
    assert_eq!(metadata.text("dc:title").as_deref(), Some("written"));
    flow.desk.edit(|session| set_write_back_enabled(session, false).unwrap());
    flow.describe("/content/dam/a.jpg", "off again");
    assert_eq!(flow.settle().len(), 1);
}

#[test]
fn an_asset_says_why_its_file_stays_as_it_is() {
    let flow = Flow::new();
    flow.desk.edit(|session| set_write_back_enabled(session, true).unwrap());
    flow.settle();
    upload(&flow.assets, "/content/dam/a.gif", "", b"GIF89a\x01\0\x01\0\0\0\0;");
    flow.describe("/content/dam/a.gif", "title");
    assert_eq!(flow.settle().len(), 1);
    let content = path("/content/dam/a.gif/jcr:content");
    let failure = || {
        let node = flow.desk.repository.snapshot().unwrap().node(&content).unwrap().unwrap();
        node.text("dam:xmpWriteBackFailure")
    };
    assert!(failure().unwrap().contains("metadata cannot be written"));
}
