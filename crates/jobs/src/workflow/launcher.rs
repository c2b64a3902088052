//! Launchers: content that determines which changes start which workflow.
//!
//! A launcher is a `cq:WorkflowLauncher` below `/conf/global/settings/workflow/launcher`,
//! `/etc/workflow/launcher/config` or `/libs/settings/workflow/launcher`. It names an event type (1 for a created node,
//! 2 for a removed one, 16 for a changed one), a node type, a path pattern, conditions on properties, changed
//! properties to ignore, and run modes.
//!
//! Invariants
//! * Each commit is processed once, in order: the cursor after it is stored together with the workflows that it starts.
//! * Commits of workflow steps start nothing, so no workflow starts itself.

use std::time::{Duration, SystemTime};

use regex::Regex;
use serde_json::{Map, Value as Json};
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::{
    ChangeCursor, FeedChangeKind, Node, NodeChange, NodePath, Repository, RevisionChanges,
    Snapshot, is_path_within,
};
use tympan_notation::error_chain_text;

use crate::follower_loop::{ChangesAfterCursor, FollowerLoop, read_changes_after};
use crate::osgi_config::node_properties_as_json;
use crate::workflow::engine::{WorkflowEngine, WorkflowStart};
use crate::workflow::flow_state::evaluate_rule;
use crate::workflow::process::WORKFLOW_MESSAGE_PREFIX;
use crate::{Error, Result};

const LAUNCHER_ROOTS: &[&str] = &[
    "/conf/global/settings/workflow/launcher",
    "/etc/workflow/launcher",
    "/libs/settings/workflow/launcher",
];
/// The follower that starts workflows.
const LAUNCHER_FOLLOWER_NAME: &str = "workflow-launchers";
/// The follower's name in the log.
const LAUNCHERS_LOG_NAME: &str = "launchers";
/// The user in whose name workflow processes change content; such changes start nothing.
pub const WORKFLOW_USER: &str = "workflow-process-service";
/// Maximum number of changes per poll.
const MAX_CHANGES_PER_POLL: usize = 1000;
/// Interval at which content is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// One launcher.
#[derive(Debug, Clone)]
pub struct LauncherRule {
    /// The launcher's path.
    pub path: String,
    /// The kind of change.
    pub change_kind: FeedChangeKind,
    /// The node type; any if empty.
    pub node_type: String,
    /// The model that it starts.
    pub model: String,
    path_pattern: Regex,
    /// Texts that the path must not contain.
    forbidden_path_parts: Vec<String>,
    conditions: Vec<String>,
    excluded_properties: Vec<String>,
}

impl LauncherRule {
    /// Reads a launcher; `None` if it is disabled or for other run modes.
    ///
    /// # Errors
    /// A message that describes what is wrong.
    pub fn read_launcher(node: &Node, run_modes: &[&str]) -> Result<Option<Self>, String> {
        let properties = node_properties_as_json(node);
        let text = |name: &str| properties.get(name).and_then(Json::as_str).unwrap_or_default();
        let is_off = matches!(properties.get("enabled"), Some(Json::Bool(false)))
            || text("enabled") == "false";
        let modes = json_string_list(properties.get("runModes"));
        if is_off
            || (!modes.is_empty() && !modes.iter().any(|mode| run_modes.contains(&mode.as_str())))
        {
            return Ok(None);
        }
        let number = properties.get("eventType");
        let number =
            number.and_then(|value| value.as_i64().or_else(|| value.as_str()?.parse().ok()));
        let event = match number {
            Some(1) => FeedChangeKind::Added,
            Some(2) => FeedChangeKind::Removed,
            Some(16) => FeedChangeKind::Changed,
            _ => {
                return Err(
                    "`eventType` must be 1 for new nodes, 2 for removed ones or 16 for changed ones"
                        .to_owned(),
                );
            }
        };
        if text("workflow").is_empty() {
            return Err("the launcher names no `workflow`".to_owned());
        }
        let (glob, without) = parse_path_pattern(text("glob"))?;
        Ok(Some(Self {
            path: node.path().to_string(),
            change_kind: event,
            node_type: text("nodetype").to_owned(),
            model: text("workflow").to_owned(),
            path_pattern: glob,
            forbidden_path_parts: without,
            conditions: [
                json_string_list(properties.get("conditions")),
                json_string_list(properties.get("condition")),
            ]
            .concat(),
            excluded_properties: json_string_list(properties.get("excludeList")),
        }))
    }

    /// Returns true if a change matches the launcher, except for the conditions, which
    /// [`LauncherRule::matches_conditions`] checks.
    fn matches_change(&self, change: &NodeChange) -> bool {
        let kind = match change.kind {
            FeedChangeKind::Moved => FeedChangeKind::Added,
            FeedChangeKind::Reordered => FeedChangeKind::Changed,
            other => other,
        };
        let is_path = |path: &str| {
            self.path_pattern.is_match(path)
                && !self.forbidden_path_parts.iter().any(|part| path.contains(part.as_str()))
        };
        let is_type = self.node_type.is_empty() || self.node_type == change.node_type;
        // A change of excluded properties alone is ignored.
        let counts = self.change_kind != FeedChangeKind::Changed
            || change.kind == FeedChangeKind::Reordered
            || change
                .properties
                .iter()
                .any(|property| !self.excluded_properties.contains(&property.name));
        kind == self.change_kind && is_type && counts && is_path(change.path.as_str())
    }

    fn matches_conditions(&self, snapshot: &Snapshot, path: &NodePath) -> Result<bool> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        let Some(node) = snapshot.node(path)? else { return Ok(false) };
        let properties = node_properties_as_json(&node);
        Ok(self
            .conditions
            .iter()
            .all(|condition| evaluate_rule(condition, &with_type_properties(&node, &properties))))
    }
}

/// Adds the type properties to which conditions may refer, beside the properties of the application.
fn with_type_properties(node: &Node, properties: &Map<String, Json>) -> Map<String, Json> {
    let mut all = properties.clone();
    for name in ["jcr:primaryType", "jcr:title", "jcr:mimeType", "sling:resourceType"] {
        if let Some(text) = node.text(name) {
            all.insert(name.to_owned(), text.into());
        }
    }
    all
}

fn json_string_list(value: Option<&Json>) -> Vec<String> {
    let texts: Vec<&str> = match value {
        Some(Json::Array(values)) => values.iter().filter_map(Json::as_str).collect(),
        Some(Json::String(text)) => text.split(',').collect(),
        _ => Vec::new(),
    };
    let texts = texts.into_iter().map(str::trim).filter(|text| !text.is_empty());
    texts.map(str::to_owned).collect()
}

/// Parses a path pattern: a regular expression, as in AEM's launchers. The only kind of look-ahead that they use,
/// `((?!text).)*`, becomes a text that the path must not contain.
fn parse_path_pattern(glob: &str) -> Result<(Regex, Vec<String>), String> {
    let mut text = if glob.is_empty() { ".*".to_owned() } else { glob.to_owned() };
    let mut without = Vec::new();
    while let Some(start) = text.find("((?!") {
        let rest = text.get(start + 4..).unwrap_or_default();
        let Some((literal, _)) = rest.split_once(").)*") else {
            return Err(format!("the pattern `{glob}` has an unsupported lookahead"));
        };
        let literal = literal.to_owned();
        text = text.replacen(&format!("((?!{literal}).)*"), "(.*)", 1);
        without.push(literal.replace('\\', ""));
    }
    let anchored = format!("^(?:{text})$");
    let glob = regex::RegexBuilder::new(&anchored).size_limit(1 << 20).build();
    glob.map(|glob| (glob, without))
        .map_err(|error| format!("the pattern `{text}` is invalid: {error}"))
}

/// Starts workflows for changes of content.
#[derive(Debug, Clone)]
pub struct WorkflowLauncher {
    engine: WorkflowEngine,
    repository: Repository,
    run_modes: Vec<String>,
    /// Users whose changes start nothing.
    machine_users: Vec<&'static str>,
}

impl WorkflowLauncher {
    /// Creates a launcher for the run modes of an instance.
    #[must_use]
    pub fn new(workflows: WorkflowEngine, repository: Repository, run_modes: &[&str]) -> Self {
        let run_modes = run_modes.iter().map(|mode| (*mode).to_owned()).collect();
        Self { engine: workflows, repository, run_modes, machine_users: vec![WORKFLOW_USER] }
    }

    /// Ignores the changes of one more user, in whose name another service changes content.
    #[must_use]
    pub fn ignoring_user(mut self, user: &'static str) -> Self {
        self.machine_users.push(user);
        self
    }

    /// Follows content until `stop` turns true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let mut follower_loop = FollowerLoop::new(LAUNCHERS_LOG_NAME, stop, POLL_INTERVAL * 10);
        while !follower_loop.is_stopped() {
            let done = self.process_next_changes(SystemTime::now()).await;
            let wait = done.map(|is_end| if is_end { POLL_INTERVAL } else { Duration::ZERO });
            follower_loop.finish_round(wait.map_err(|failure| error_chain_text(&failure))).await;
        }
    }

    /// Processes the next changes. Returns true if there are no more. The first call only stores the start position.
    ///
    /// # Errors
    /// If content or the database fail.
    pub async fn process_next_changes(&self, now: SystemTime) -> Result<bool> {
        let stored = self.engine.queues().followers().root_of(LAUNCHER_FOLLOWER_NAME).await?;
        let (this, from) = (self.clone(), stored.clone());
        let look = tokio::task::spawn_blocking(move || this.collect_starts(from.as_deref())).await;
        let look = look.map_err(|error| Error::Workflow(error.to_string()))??;
        let (starts, next, is_end) = look;
        let next = next.to_string();
        if stored.as_deref() == Some(&*next) {
            return Ok(true);
        }
        let is_moved = self
            .engine
            .advance_follower(LAUNCHER_FOLLOWER_NAME, stored.as_deref(), &next, &starts, now)
            .await?;
        if is_moved && !starts.is_empty() {
            info!(workflows = starts.len(), "launchers started workflows");
        }
        Ok(is_end)
    }

    /// Reads changes and collects the workflows that they start.
    fn collect_starts(
        &self,
        from: Option<&str>,
    ) -> Result<(Vec<WorkflowStart>, ChangeCursor, bool)> {
        let page = match read_changes_after(
            &self.repository,
            from,
            MAX_CHANGES_PER_POLL,
            LAUNCHERS_LOG_NAME,
        )? {
            ChangesAfterCursor::Changes(page) => page,
            ChangesAfterCursor::Start(cursor) => return Ok((Vec::new(), cursor, true)),
        };
        let mut starts = Vec::new();
        if !page.revisions.is_empty() {
            self.warn_of_unusable_models(&page.revisions)?;
            let rules = self.load_rules(&self.repository.snapshot()?)?;
            for revision in
                page.revisions.iter().filter(|revision| !self.is_machine_revision(revision))
            {
                self.collect_revision_starts(revision, &rules, &mut starts)?;
            }
        }
        Ok((starts, page.next, page.is_end))
    }

    /// Returns true if a workflow or another service made a revision.
    fn is_machine_revision(&self, revision: &RevisionChanges) -> bool {
        let message = revision.message.as_deref().unwrap_or_default();
        self.machine_users.contains(&revision.user.as_str())
            || message.starts_with(WORKFLOW_MESSAGE_PREFIX)
    }

    /// Logs warnings about saved models that cannot start.
    fn warn_of_unusable_models(&self, revisions: &[RevisionChanges]) -> Result<()> {
        let models = self.engine.model_roots();
        let changed: Vec<&str> = revisions
            .iter()
            .flat_map(|revision| &revision.changes)
            .map(|change| change.path.as_str())
            .filter(|path| models.contains_path(path))
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        for (path, model) in models.find_models(&self.repository.snapshot()?)? {
            let fault = model.and_then(|model| self.engine.check_model(&model)).err();
            let is_in = |changed: &&str| is_path_within(changed, &path);
            if let Some(fault) = fault.filter(|_| changed.iter().any(is_in)) {
                warn!(
                    path,
                    reason = error_chain_text(&fault),
                    "cannot start a workflow model that was saved"
                );
            }
        }
        Ok(())
    }

    fn collect_revision_starts(
        &self,
        revision: &RevisionChanges,
        rules: &[LauncherRule],
        starts: &mut Vec<WorkflowStart>,
    ) -> Result<()> {
        let mut snapshot = None;
        for change in &revision.changes {
            for rule in rules.iter().filter(|rule| rule.matches_change(change)) {
                // The state after the commit, or the newest state if that was collected.
                let current_snapshot = match &snapshot {
                    Some(snapshot) => snapshot,
                    None => snapshot.insert(
                        self.repository
                            .snapshot_at(revision.root)
                            .or_else(|_| self.repository.snapshot())?,
                    ),
                };
                if !rule.matches_conditions(current_snapshot, &change.path)? {
                    continue;
                }
                let models = self.engine.model_roots();
                let model = models.read_model(&self.repository.snapshot()?, &rule.model);
                let start = model.and_then(|model| {
                    let (payload, initiator) = (change.path.to_string(), revision.user.clone());
                    let start = WorkflowStart { model, payload, initiator, data: Map::new() };
                    // A workflow that cannot start must not prevent others from starting.
                    self.engine.check_start(&start).map(|()| start)
                });
                match start {
                    Ok(start) => starts.push(start),
                    Err(failure) => {
                        warn!(
                            path = rule.path,
                            reason = error_chain_text(&failure),
                            "cannot start the workflow of a launcher"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn load_rules(&self, snapshot: &Snapshot) -> Result<Vec<LauncherRule>> {
        let modes: Vec<&str> = self.run_modes.iter().map(String::as_str).collect();
        let mut rules = Vec::new();
        for root in LAUNCHER_ROOTS {
            if let Some(node) = snapshot.node(&NodePath::new(root)?)? {
                collect_launchers(&node, &modes, 4, &mut rules)?;
            }
        }
        Ok(rules)
    }
}

fn collect_launchers(
    node: &Node,
    modes: &[&str],
    depth: usize,
    rules: &mut Vec<LauncherRule>,
) -> Result<()> {
    for child in node.children()? {
        if child.primary_type() == "cq:WorkflowLauncher" {
            match LauncherRule::read_launcher(&child, modes) {
                Ok(rule) => rules.extend(rule),
                Err(reason) => warn!(path = %child.path(), reason, "skipped an invalid launcher"),
            }
        } else if depth > 0 {
            collect_launchers(&child, modes, depth - 1, rules)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_aem() {
        let check = |glob: &str, path: &str, expected: bool| {
            let (glob, without) = parse_path_pattern(glob).unwrap();
            let is_match =
                glob.is_match(path) && !without.iter().any(|part| path.contains(part.as_str()));
            assert_eq!(is_match, expected, "{glob} {path}");
        };
        let original = "/content/dam(/((?!/subassets).)*/)renditions/original";
        check(original, "/content/dam/a/b.jpg/jcr:content/renditions/original", true);
        check(original, "/content/dam/a/subassets/b.jpg/jcr:content/renditions/original", false);
        check(original, "/content/dam/a/b.jpg/jcr:content/renditions/web", false);
        check("/content(/.*)?", "/content", true);
        check("/content(/.*)?", "/contents", false);
        check("", "/anything", true);
        parse_path_pattern("(?=x)").unwrap_err();
        parse_path_pattern("(").unwrap_err();
    }
}
