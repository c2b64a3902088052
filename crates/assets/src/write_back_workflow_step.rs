//! XMP write-back as in AEM: a workflow that a launcher starts when somebody edits metadata.
//!
//! In: the step's payload, an asset or a node below it. Out: files that match content, or the reason on the asset.
//!
//! Launchers follow the difference of revisions. Commits of the write-back and of upload processing start no launcher,
//! so an edit causes no loop. A file that matches already is not written.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use tympan_content::{
    JCR_CONTENT, NodePath, Property, Repository, RevisionDetails, Session, Subtree, Value,
};
use tympan_jobs::JobContext;
use tympan_jobs::workflow::{StepOutcome, StepRun, WORKFLOW_USER, WorkflowProcess};
use tympan_notation::error_chain_text;

use crate::asset_processor::ASSET_NODE_TYPE;
use crate::decoder_process_pool::DecoderProcessPool;
use crate::write_back::{
    COMMIT_ATTEMPTS, MetadataWriter, WriteBackOptions, WriteBackOutcome, write_back_metadata,
};

/// Property of `jcr:content` of an asset: the reason why its file does not match content. It is not an AEM property.
const WRITE_BACK_FAILURE_PROPERTY: &str = "dam:xmpWriteBackFailure";
const WRITE_BACK_MODEL_PATH: &str = "/var/workflow/models/dam-xmp-writeback";
const WRITE_BACK_LAUNCHER_PATH: &str =
    "/conf/global/settings/workflow/launcher/config/dam_xmp_writeback";
/// The glob of the launcher, as in AEM.
const METADATA_GLOB: &str = "/content/dam(/((?!/subassets).)*/)jcr:content/metadata";

/// The workflow step `XMPWritebackProcess`. Its arguments are AEM's: `createversion:true`, and `rendition:` with a name for
/// each rendition that receives the metadata beside the original.
#[derive(Debug, Clone)]
pub struct WriteBackWorkflowStep {
    repository: Repository,
    decoder_pool: Option<Arc<DecoderProcessPool>>,
}

impl WriteBackWorkflowStep {
    /// Creates the step for the assets of a repository.
    #[must_use]
    pub fn new(repository: Repository) -> Self {
        Self { repository, decoder_pool: None }
    }

    /// Enables writing into PDF, which is read by processes of this pool.
    #[must_use]
    pub fn with_decoder_pool(self, decoder_pool: Arc<DecoderProcessPool>) -> Self {
        Self { decoder_pool: Some(decoder_pool), ..self }
    }

    fn execute_step(
        &self,
        step: &StepRun,
        now: SystemTime,
    ) -> tympan_content::Result<Option<WriteBackOutcome>> {
        let Some(path) = self.find_asset(&step.payload)? else { return Ok(None) };
        let writer = MetadataWriter {
            repository: &self.repository,
            decoder_pool: self.decoder_pool.as_deref(),
        };
        let outcome = write_back_metadata(writer, &path, &parse_step_options(step), now)?;
        let failure = match &outcome {
            WriteBackOutcome::Skipped(reason) => Some(reason.as_str()),
            WriteBackOutcome::Written(_) | WriteBackOutcome::Unchanged => None,
        };
        self.record_failure(&path, failure, now)?;
        Ok(Some(outcome))
    }

    /// Returns the asset at a path or above it.
    fn find_asset(&self, payload: &str) -> tympan_content::Result<Option<NodePath>> {
        let snapshot = self.repository.snapshot()?;
        let mut path = NodePath::new(payload).ok();
        while let Some(above) = path {
            if snapshot.node(&above)?.is_some_and(|node| node.primary_type() == ASSET_NODE_TYPE) {
                return Ok(Some(above));
            }
            path = above.parent();
        }
        Ok(None)
    }

    /// Records on the asset why its file is unchanged, or removes the former reason.
    fn record_failure(
        &self,
        asset: &NodePath,
        failure: Option<&str>,
        now: SystemTime,
    ) -> tympan_content::Result<()> {
        let revising =
            RevisionDetails { user: WORKFLOW_USER, message: "record a write-back", time: now };
        self.repository.commit_with_retry(COMMIT_ATTEMPTS, revising, |session| {
            let content = asset.child(JCR_CONTENT)?;
            let Some(node) = session.node(&content)? else { return Ok(()) };
            match failure {
                Some(reason)
                    if node.text(WRITE_BACK_FAILURE_PROPERTY).as_deref() != Some(reason) =>
                {
                    session.set_property(
                        &content,
                        WRITE_BACK_FAILURE_PROPERTY,
                        Property::text(reason),
                    )
                }
                None if node.property(WRITE_BACK_FAILURE_PROPERTY).is_some() => {
                    session.remove_property(&content, WRITE_BACK_FAILURE_PROPERTY).map(drop)
                }
                _ => Ok(()),
            }
        })
    }
}

/// Parses the arguments of the step.
fn parse_step_options(step: &StepRun) -> WriteBackOptions {
    let mut options = WriteBackOptions::default();
    let arguments = step.arguments.get("PROCESS_ARGS").and_then(Json::as_str).unwrap_or_default();
    for argument in arguments.split(',').map(str::trim) {
        match argument.split_once(':') {
            Some(("createversion", value)) => options.creates_version = value.trim() == "true",
            Some(("rendition", name)) => options.renditions.push(name.trim().to_owned()),
            _ => {}
        }
    }
    options
}

impl WorkflowProcess for WriteBackWorkflowStep {
    fn name(&self) -> &str {
        "com.day.cq.dam.core.process.XMPWritebackProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let summary = match self.execute_step(step, SystemTime::now()) {
            Ok(Some(WriteBackOutcome::Written(names))) => format!("written: {}", names.join(", ")),
            Ok(Some(WriteBackOutcome::Unchanged)) => "unchanged".to_owned(),
            Ok(Some(WriteBackOutcome::Skipped(reason))) => format!("skipped: {reason}"),
            Ok(None) => "skipped: the asset is gone".to_owned(),
            Err(error) if error.is_transient() => {
                return StepOutcome::Retry(error_chain_text(&error));
            }
            Err(error) => return StepOutcome::Failed(error_chain_text(&error)),
        };
        StepOutcome::Done(Map::from_iter([("xmpWriteBack".to_owned(), Json::from(summary))]))
    }
}

/// Switches write-back on or off: creates its model, unless one exists, and its launcher in content. Both are stored as
/// in AEM and may be changed there.
///
/// # Errors
/// If the session lacks the permission, or the store fails.
pub fn set_write_back_enabled(session: &mut Session, is_on: bool) -> tympan_content::Result<()> {
    let (model, launcher) =
        (NodePath::new(WRITE_BACK_MODEL_PATH)?, NodePath::new(WRITE_BACK_LAUNCHER_PATH)?);
    let launcher_exists = session.node(&launcher)?.is_some();
    if launcher_exists {
        session.set_property(&launcher, "enabled", Value::Boolean(is_on).into())?;
    }
    if launcher_exists || !is_on {
        return Ok(());
    }
    if session.node(&model)?.is_none() {
        create_parents(session, &model)?;
        session.put_node(&model, write_back_model_tree())?;
    }
    create_parents(session, &launcher)?;
    let text = |text: &str| Property::text(text);
    let tree = Subtree::new(launcher.name(), "cq:WorkflowLauncher")
        .with_property("description", text("Writes edited metadata into the files of assets"))
        .with_property("enabled", Value::Boolean(true))
        .with_property("eventType", Value::Long(16))
        .with_property("glob", text(METADATA_GLOB))
        .with_property("nodetype", text("nt:unstructured"))
        .with_property("workflow", text(WRITE_BACK_MODEL_PATH));
    session.put_node(&launcher, tree)
}

fn write_back_model_tree() -> Subtree {
    let node = |name: &str, kind: &str, title: &str| {
        Subtree::new(name, "cq:WorkflowNode")
            .with_property("title", Property::text(title))
            .with_property("type", Property::text(kind))
    };
    let data = Subtree::new("metaData", "nt:unstructured")
        .with_property("PROCESS", Property::text("com.day.cq.dam.core.process.XMPWritebackProcess"))
        .with_property("PROCESS_ARGS", Property::text("createversion:false"))
        .with_property("PROCESS_AUTO_ADVANCE", Property::text("true"));
    let nodes = Subtree::new("nodes", "nt:unstructured")
        .with_child(node("node0", "START", "Start"))
        .with_child(node("node1", "PROCESS", "XMP Writeback").with_child(data))
        .with_child(node("node2", "END", "End"));
    let transition = |name: &str, from: &str, to: &str| {
        Subtree::new(name, "cq:WorkflowTransition")
            .with_property("from", Property::text(from))
            .with_property("to", Property::text(to))
    };
    let transitions = Subtree::new("transitions", "nt:unstructured")
        .with_child(transition("node0#node1", "node0", "node1"))
        .with_child(transition("node1#node2", "node1", "node2"));
    Subtree::new("dam-xmp-writeback", "cq:WorkflowModel")
        .with_property("title", Property::text("DAM MetaData Writeback"))
        .with_child(nodes)
        .with_child(transitions)
}

fn create_parents(session: &mut Session, path: &NodePath) -> tympan_content::Result<()> {
    let mut missing = Vec::new();
    let mut above = path.parent();
    while let Some(folder) = above {
        if session.node(&folder)?.is_some() {
            break;
        }
        above = folder.parent();
        missing.push(folder);
    }
    missing.iter().rev().try_for_each(|folder| session.add_node(folder, "sling:Folder"))
}
