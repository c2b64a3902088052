//! XMP write-back as AEM has it: a workflow that a launcher starts when somebody edits metadata.
//!
//! In: the step's payload, an asset or something in it. Out: files that say what content says, and on the asset why
//! not, if not.
//!
//! Launchers follow the difference of revisions. What the write-back commits, and what processing an upload commits,
//! starts none of them, so that no edit goes round in a circle; and a file that says it all already is not written.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use tympan_content::{
    JCR_CONTENT, NodePath, Property, Repository, Revising, Session, Subtree, Value,
};

use super::ingest::ASSET;
use super::studio::Studio;
use super::write_back::{ATTEMPTS, Pen, WriteBack, WrittenBack, write_back};
use crate::JobContext;
use crate::error::chain;
use crate::workflow::{Process, StepOutcome, StepRun, WORKFLOW_USER};

/// On `jcr:content` of an asset: why its file does not say what content says. It is not one of AEM's.
const FAILURE: &str = "dam:xmpWriteBackFailure";
const MODEL: &str = "/var/workflow/models/dam-xmp-writeback";
const LAUNCHER: &str = "/conf/global/settings/workflow/launcher/config/dam_xmp_writeback";
/// What the launcher looks at, as AEM's does.
const GLOB: &str = "/content/dam(/((?!/subassets).)*/)jcr:content/metadata";

/// The process `XMPWritebackProcess`. Its arguments are AEM's: `createversion:true`, and `rendition:` with a name for
/// each rendition that gets the metadata beside the original.
#[derive(Debug, Clone)]
pub struct WriteBackProcess {
    repository: Repository,
    studio: Option<Arc<Studio>>,
}

impl WriteBackProcess {
    /// Makes it for the assets of a repository.
    #[must_use]
    pub fn new(repository: Repository) -> Self {
        Self { repository, studio: None }
    }

    /// Lets it write into PDF, too, which is read by processes of this studio.
    #[must_use]
    pub fn with_studio(self, studio: Arc<Studio>) -> Self {
        Self { studio: Some(studio), ..self }
    }

    fn carry_out(
        &self,
        step: &StepRun,
        now: SystemTime,
    ) -> tympan_content::Result<Option<WrittenBack>> {
        let Some(path) = self.asset_of(&step.payload)? else { return Ok(None) };
        let pen = Pen { repository: &self.repository, studio: self.studio.as_deref() };
        let written = write_back(pen, &path, &how(step), now)?;
        let failure = match &written {
            WrittenBack::Skipped(reason) => Some(reason.as_str()),
            WrittenBack::Written(_) | WrittenBack::Unchanged => None,
        };
        self.note(&path, failure, now)?;
        Ok(Some(written))
    }

    /// Finds the asset that a path is of, or lies in.
    fn asset_of(&self, payload: &str) -> tympan_content::Result<Option<NodePath>> {
        let snapshot = self.repository.snapshot()?;
        let mut path = NodePath::new(payload).ok();
        while let Some(above) = path {
            if snapshot.node(&above)?.is_some_and(|node| node.primary_type() == ASSET) {
                return Ok(Some(above));
            }
            path = above.parent();
        }
        Ok(None)
    }

    /// Notes on the asset why its file stays as it is, or that nothing is in the way any more.
    fn note(
        &self,
        asset: &NodePath,
        failure: Option<&str>,
        now: SystemTime,
    ) -> tympan_content::Result<()> {
        let revising = Revising { user: WORKFLOW_USER, message: "note a write-back", at: now };
        self.repository.retry(ATTEMPTS, revising, |session| {
            let content = asset.child(JCR_CONTENT)?;
            let Some(node) = session.node(&content)? else { return Ok(()) };
            match failure {
                Some(reason) if node.text(FAILURE).as_deref() != Some(reason) => {
                    session.set_property(&content, FAILURE, Property::text(reason))
                }
                None if node.property(FAILURE).is_some() => {
                    session.remove_property(&content, FAILURE).map(drop)
                }
                _ => Ok(()),
            }
        })
    }
}

/// Reads the arguments of the step.
fn how(step: &StepRun) -> WriteBack {
    let mut how = WriteBack::default();
    let arguments = step.arguments.get("PROCESS_ARGS").and_then(Json::as_str).unwrap_or_default();
    for argument in arguments.split(',').map(str::trim) {
        match argument.split_once(':') {
            Some(("createversion", value)) => how.makes_version = value.trim() == "true",
            Some(("rendition", name)) => how.renditions.push(name.trim().to_owned()),
            _ => {}
        }
    }
    how
}

impl Process for WriteBackProcess {
    fn name(&self) -> &str {
        "com.day.cq.dam.core.process.XMPWritebackProcess"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        let told = match self.carry_out(step, SystemTime::now()) {
            Ok(Some(WrittenBack::Written(names))) => format!("written: {}", names.join(", ")),
            Ok(Some(WrittenBack::Unchanged)) => "unchanged".to_owned(),
            Ok(Some(WrittenBack::Skipped(reason))) => format!("skipped: {reason}"),
            Ok(None) => "skipped: the asset is gone".to_owned(),
            Err(error) if error.is_transient() => return StepOutcome::Retry(chain(&error)),
            Err(error) => return StepOutcome::Failed(chain(&error)),
        };
        StepOutcome::Done(Map::from_iter([("xmpWriteBack".to_owned(), Json::from(told))]))
    }
}

/// Switches write-back on or off: puts its model, unless there is one, and its launcher into content. Both are as AEM
/// keeps them, and may be changed there.
///
/// # Errors
/// If the session may not, or the store fails.
pub fn switch_write_back(session: &mut Session, is_on: bool) -> tympan_content::Result<()> {
    let (model, launcher) = (NodePath::new(MODEL)?, NodePath::new(LAUNCHER)?);
    let is_there = session.node(&launcher)?.is_some();
    if is_there {
        session.set_property(&launcher, "enabled", Value::Boolean(is_on).into())?;
    }
    if is_there || !is_on {
        return Ok(());
    }
    if session.node(&model)?.is_none() {
        make_parents(session, &model)?;
        session.put(&model, model_tree())?;
    }
    make_parents(session, &launcher)?;
    let text = |text: &str| Property::text(text);
    let tree = Subtree::new(launcher.name(), "cq:WorkflowLauncher")
        .with("description", text("Writes edited metadata into the files of assets"))
        .with("enabled", Value::Boolean(true))
        .with("eventType", Value::Long(16))
        .with("glob", text(GLOB))
        .with("nodetype", text("nt:unstructured"))
        .with("workflow", text(MODEL));
    session.put(&launcher, tree)
}

fn model_tree() -> Subtree {
    let node = |name: &str, kind: &str, title: &str| {
        Subtree::new(name, "cq:WorkflowNode")
            .with("title", Property::text(title))
            .with("type", Property::text(kind))
    };
    let data = Subtree::new("metaData", "nt:unstructured")
        .with("PROCESS", Property::text("com.day.cq.dam.core.process.XMPWritebackProcess"))
        .with("PROCESS_ARGS", Property::text("createversion:false"))
        .with("PROCESS_AUTO_ADVANCE", Property::text("true"));
    let nodes = Subtree::new("nodes", "nt:unstructured")
        .with_child(node("node0", "START", "Start"))
        .with_child(node("node1", "PROCESS", "XMP Writeback").with_child(data))
        .with_child(node("node2", "END", "End"));
    let way = |name: &str, from: &str, to: &str| {
        Subtree::new(name, "cq:WorkflowTransition")
            .with("from", Property::text(from))
            .with("to", Property::text(to))
    };
    let ways = Subtree::new("transitions", "nt:unstructured")
        .with_child(way("node0#node1", "node0", "node1"))
        .with_child(way("node1#node2", "node1", "node2"));
    Subtree::new("dam-xmp-writeback", "cq:WorkflowModel")
        .with("title", Property::text("DAM MetaData Writeback"))
        .with_child(nodes)
        .with_child(ways)
}

fn make_parents(session: &mut Session, path: &NodePath) -> tympan_content::Result<()> {
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
