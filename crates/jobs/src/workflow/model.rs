//! Workflow models in content: steps and transitions.
//!
//! A model is a node with the children `nodes` and `transitions`, as AEM stores it: below `/var/workflow/models`, or as
//! `jcr:content/model` of a page below `/conf/global/settings/workflow/models` or `/etc/workflow/models`.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use tympan_content::{JCR_CONTENT, Node, NodePath, Snapshot, is_path_within};

use crate::osgi_config::node_properties_as_json;
use crate::workflow::model_step::{WorkflowStep, WorkflowStepKind};
use crate::workflow::step_timeout::StepTimeout;
use crate::{Error, Result, escape_topic_part};

/// Default locations of models.
const DEFAULT_MODEL_ROOTS: &[&str] =
    &["/conf/global/settings/workflow/models", "/var/workflow/models", "/etc/workflow/models"];
/// Paths that cannot contain models, because all editors can write there.
const FORBIDDEN_MODEL_ROOTS: &[&str] = &["/content", "/home", "/tmp"];
/// The path under which notices are listed; no content exists there.
const NOTICE_MODEL_PATH: &str = "/libs/settings/workflow/models/notice";
/// Maximum search depth.
const MAX_MODEL_DEPTH: usize = 6;

/// A transition from one step to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowTransition {
    /// The step that ends.
    pub from: String,
    /// The step that begins.
    pub to: String,
    /// The rule for this transition; `None` means always.
    pub rule: Option<String>,
}

/// A workflow model.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowModel {
    /// Its path, without `/jcr:content/model`.
    pub path: String,
    /// The model's title.
    pub title: String,
    /// The topic suffix of its jobs, after the general topic.
    pub topic_suffix: String,
    /// True if its instances leave no traces.
    pub is_transient: bool,
    /// The steps by name.
    pub steps: BTreeMap<String, WorkflowStep>,
    /// The transitions, in order.
    pub transitions: Vec<WorkflowTransition>,
}

/// The only paths below which models are read. Users who may write content elsewhere must not decide what steps do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowModelRoots(Vec<NodePath>);

impl Default for WorkflowModelRoots {
    /// Returns AEM's paths.
    fn default() -> Self {
        let roots = DEFAULT_MODEL_ROOTS.iter().filter_map(|root| NodePath::new(root).ok());
        Self(roots.collect())
    }
}

impl WorkflowModelRoots {
    /// Creates the roots from configured paths.
    ///
    /// # Errors
    /// [`Error::Workflow`] that names a path below which users other than workflow administrators write.
    pub fn new(roots: &[String]) -> Result<Self> {
        let root = |text: &String| {
            let root = NodePath::new(text)?;
            let is_open =
                FORBIDDEN_MODEL_ROOTS.iter().any(|open| is_path_within(root.as_str(), open));
            if root.is_root() || is_open {
                return Err(Error::Workflow(format!(
                    "`{text}` cannot hold workflow models: every editor can write there, and a model decides \
                     what runs with the permissions of others"
                )));
            }
            Ok(root)
        };
        roots.iter().map(root).collect::<Result<_>>().map(Self)
    }

    /// Returns true if models are read at a path.
    pub(crate) fn contains_path(&self, path: &str) -> bool {
        NodePath::new(path)
            .is_ok_and(|path| self.0.iter().any(|root| path != *root && path.is_within(root)))
    }

    /// Reads the model at a path, which may be that of its page, its content or the model itself.
    ///
    /// # Errors
    /// [`Error::Workflow`] that describes what is wrong with it; errors of content.
    pub fn read_model(&self, snapshot: &Snapshot, path: &str) -> Result<WorkflowModel> {
        let base = path.strip_suffix("/jcr:content/model").unwrap_or(path);
        let node_path = NodePath::new(base)?;
        if !self.contains_path(node_path.as_str()) {
            let roots: Vec<&str> = self.0.iter().map(NodePath::as_str).collect();
            return Err(Error::Workflow(format!(
                "there is no workflow model at `{path}`: models are allowed only below {}",
                roots.join(", ")
            )));
        }
        WorkflowModel::read_model(snapshot, path, &node_path)
    }

    /// Lists the models in content; for invalid ones, with the error.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn find_models(&self, snapshot: &Snapshot) -> Result<Vec<(String, Result<WorkflowModel>)>> {
        let mut models = Vec::new();
        for root in &self.0 {
            if let Some(node) = snapshot.node(root)? {
                for child in node.children()? {
                    self.search_models(snapshot, &child, MAX_MODEL_DEPTH, &mut models)?;
                }
            }
        }
        Ok(models)
    }

    fn search_models(
        &self,
        snapshot: &Snapshot,
        node: &Node,
        depth: usize,
        models: &mut Vec<(String, Result<WorkflowModel>)>,
    ) -> Result<()> {
        let inner =
            node.child(JCR_CONTENT)?.map(|content| content.child("model")).transpose()?.flatten();
        if inner.is_some() || node.primary_type() == "cq:WorkflowModel" {
            let path = node.path().to_string();
            let model = self.read_model(snapshot, &path);
            models.push((path, model));
            return Ok(());
        }
        if depth > 1 {
            for child in node.children()? {
                self.search_models(snapshot, &child, depth - 1, models)?;
            }
        }
        Ok(())
    }
}

impl WorkflowModel {
    fn read_model(snapshot: &Snapshot, path: &str, node_path: &NodePath) -> Result<Self> {
        let missing = || Error::Workflow(format!("there is no workflow model at `{path}`"));
        let page = snapshot.node(node_path)?.ok_or_else(missing)?;
        let content = page.child(JCR_CONTENT)?;
        let inner = content.as_ref().map(|content| content.child("model")).transpose()?.flatten();
        let node = inner.as_ref().unwrap_or(&page);
        let (Some(nodes), Some(transition_nodes)) =
            (node.child("nodes")?, node.child("transitions")?)
        else {
            return Err(missing());
        };
        let mut steps = BTreeMap::new();
        for step in nodes.children()? {
            let kind = step.text("type").unwrap_or_default();
            let step_kind = WorkflowStepKind::from_name(&kind).ok_or_else(|| {
                Error::Workflow(format!("the step `{}` has the unknown type `{kind}`", step.path()))
            })?;
            let data = step
                .child("metaData")?
                .map(|data| node_properties_as_json(&data))
                .unwrap_or_default();
            let title = step.text("title").unwrap_or_else(|| step.name().to_owned());
            let is_goto = data
                .get("PROCESS")
                .and_then(Json::as_str)
                .is_some_and(|process| process.ends_with(".GotoProcess"));
            // A dynamic participant without a chooser is a named participant.
            let is_named = data.contains_key("PARTICIPANT")
                && !data.contains_key("DYNAMIC_PARTICIPANT")
                && !data.contains_key("PROCESS");
            let kind = match step_kind {
                _ if is_goto => WorkflowStepKind::Goto,
                WorkflowStepKind::DynamicParticipant if is_named => WorkflowStepKind::Participant,
                step_kind => step_kind,
            };
            steps.insert(step.name().to_owned(), WorkflowStep { kind, title, arguments: data });
        }
        let mut transitions = Vec::new();
        for transition in transition_nodes.children()? {
            let end = |name: &str| transition.text(name).unwrap_or_default();
            let rule = transition.text("rule").filter(|rule| !rule.trim().is_empty());
            transitions.push(WorkflowTransition { from: end("from"), to: end("to"), rule });
        }
        let data =
            node.child("metaData")?.map(|data| node_properties_as_json(&data)).unwrap_or_default();
        let is_transient = matches!(data.get("transient"), Some(Json::Bool(true)))
            || data.get("transient").and_then(Json::as_str) == Some("true");
        let title = node
            .text("title")
            .or_else(|| content.and_then(|content| content.text("jcr:title")))
            .unwrap_or_else(|| page.name().to_owned());
        let suffix = escape_topic_part(if inner.is_some() {
            node.path().as_str()
        } else {
            node_path.as_str()
        });
        let model = Self {
            path: node_path.to_string(),
            title,
            topic_suffix: suffix,
            is_transient,
            steps,
            transitions,
        };
        model.check_structure()?;
        Ok(model)
    }

    /// Returns an error for a model that cannot be executed.
    fn check_structure(&self) -> Result<()> {
        let fault =
            |reason: String| Err(Error::Workflow(format!("the model `{}` {reason}", self.path)));
        if self.start_step().is_none() {
            return fault("has no step of type START".to_owned());
        }
        for transition in &self.transitions {
            for end in [&transition.from, &transition.to] {
                if !self.steps.contains_key(end) {
                    return fault(format!("has a transition to the missing step `{end}`"));
                }
            }
        }
        let depths = self.split_depths();
        for (name, step) in &self.steps {
            let has_way = self.transitions.iter().any(|transition| transition.from == *name);
            if step.kind != WorkflowStepKind::End && !has_way {
                return fault(format!("does not define what follows the step `{name}`"));
            }
            let (argument_name, value) = match step.kind {
                WorkflowStepKind::Process | WorkflowStepKind::External => {
                    ("PROCESS", step.text_argument("PROCESS"))
                }
                WorkflowStepKind::Participant => ("PARTICIPANT", step.text_argument("PARTICIPANT")),
                WorkflowStepKind::DynamicParticipant => {
                    ("DYNAMIC_PARTICIPANT", step.chooser_name())
                }
                WorkflowStepKind::Container => ("SUB_WORKFLOW", step.inner_model_path()),
                _ => continue,
            };
            if value.is_none() {
                return fault(format!("has a step `{name}` without `{argument_name}`"));
            }
            if let Err(reason) = StepTimeout::of_step(step) {
                return fault(format!("has a step `{name}` with an invalid timeout: {reason}"));
            }
            if let Some(target) = step.text_argument("timeoutTarget")
                && (!depths.contains_key(target) || depths.get(target) != depths.get(name.as_str()))
            {
                return fault(format!(
                    "has a step `{name}` whose `timeoutTarget` is `{target}`: name a step of the same branch"
                ));
            }
        }
        Ok(())
    }

    /// Returns the name of the first step.
    #[must_use]
    pub fn start_step(&self) -> Option<&str> {
        let starts = self.steps.iter().find(|(_, step)| step.kind == WorkflowStepKind::Start);
        starts.map(|(name, _)| name.as_str())
    }

    /// Returns the number of splits around each reachable step.
    pub(crate) fn split_depths(&self) -> BTreeMap<&str, u32> {
        let mut depths = BTreeMap::new();
        let mut open: Vec<(&str, u32)> =
            self.start_step().map(|start| (start, 0)).into_iter().collect();
        while let Some((name, depth)) = open.pop() {
            let Some(step) = self.steps.get(name) else { continue };
            let own = if step.kind == WorkflowStepKind::AndJoin {
                depth.saturating_sub(1)
            } else {
                depth
            };
            if depths.contains_key(name) {
                continue;
            }
            depths.insert(name, own);
            let below = own + u32::from(step.kind == WorkflowStepKind::AndSplit);
            let transitions = self.transitions.iter().filter(|transition| transition.from == name);
            open.extend(transitions.map(|transition| (transition.to.as_str(), below)));
        }
        depths
    }

    /// Creates the model of a notice: one step, which its reader completes to remove it from the inbox.
    pub(crate) fn notice_model(title: &str, reader: &str) -> Self {
        let step = |kind, title: &str, data| WorkflowStep {
            kind,
            title: title.to_owned(),
            arguments: data,
        };
        let mut data = Map::new();
        data.insert("PARTICIPANT".to_owned(), reader.into());
        let steps = [
            ("start", step(WorkflowStepKind::Start, "", Map::new())),
            ("notice", step(WorkflowStepKind::Participant, title, data)),
            ("end", step(WorkflowStepKind::End, "", Map::new())),
        ];
        let transition = |from: &str, to: &str| WorkflowTransition {
            from: from.to_owned(),
            to: to.to_owned(),
            rule: None,
        };
        Self {
            path: NOTICE_MODEL_PATH.to_owned(),
            title: "Notice".to_owned(),
            topic_suffix: escape_topic_part(NOTICE_MODEL_PATH),
            is_transient: false,
            steps: steps.map(|(name, step)| (name.to_owned(), step)).into(),
            transitions: vec![transition("start", "notice"), transition("notice", "end")],
        }
    }

    /// Serializes the model for an instance.
    pub(crate) fn to_json(&self) -> Json {
        let steps = self.steps.iter().map(|(name, step)| {
            (
                name.clone(),
                json!({ "type": step.kind.name(), "title": step.title, "data": step.arguments }),
            )
        });
        let transitions = self
            .transitions
            .iter()
            .map(|transition| json!({ "from": transition.from, "to": transition.to, "rule": transition.rule }));
        json!({
            "path": self.path, "title": self.title, "suffix": self.topic_suffix, "transient": self.is_transient,
            "steps": steps.collect::<Map<_, _>>(), "transitions": transitions.collect::<Vec<_>>(),
        })
    }

    /// Deserializes the output of [`WorkflowModel::to_json`]; `None` if it is damaged.
    pub(crate) fn from_json(value: &Json) -> Option<Self> {
        let text = |value: &Json, name: &str| value.get(name)?.as_str().map(str::to_owned);
        let mut steps = BTreeMap::new();
        for (name, step) in value.get("steps")?.as_object()? {
            let kind = WorkflowStepKind::from_name(step.get("type")?.as_str()?)?;
            let data = step.get("data")?.as_object()?.clone();
            steps.insert(
                name.clone(),
                WorkflowStep { kind, title: text(step, "title")?, arguments: data },
            );
        }
        let mut transitions = Vec::new();
        for transition in value.get("transitions")?.as_array()? {
            let (from, to) = (text(transition, "from")?, text(transition, "to")?);
            transitions.push(WorkflowTransition { from, to, rule: text(transition, "rule") });
        }
        Some(Self {
            path: text(value, "path")?,
            title: text(value, "title")?,
            topic_suffix: text(value, "suffix")?,
            is_transient: value.get("transient")?.as_bool()?,
            steps,
            transitions,
        })
    }
}
