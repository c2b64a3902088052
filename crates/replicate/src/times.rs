//! On and off times: pages that appear and vanish by the clock.
//!
//! `onTime` and `offTime` stand on a page's `jcr:content`, as in AEM. An activated page whose `onTime` is still to come is
//! not sent before, so that visitors keep what they have; at `onTime` it is. At `offTime` it is taken away, and an
//! activation after it sends nothing.
//!
//! Invariants
//! * Each change of content is met once, in order: the cursor behind it is stored together with the jobs that follow. A time
//!   that passes while no process runs is made up for.
//! * What happens at a time needs `crx:replicate` of whoever made the change that it follows from.
//! * A page whose times were changed meanwhile follows the new ones only.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::debug;
use tympan_content::{
    Cursor, Date, Depth, JCR_CONTENT, Node, NodePath, Property, RevisionChanges, Value,
};
use tympan_jobs::{
    Behind, Handler, Job, JobContext, NewJob, Outcome, Rounds, chain, changes_behind,
};

use crate::activation::{Action, Keeping, Wish, is_live, require_replicate, viewer_of};
use crate::replicator::Replicator;
use crate::send::blocking;
use crate::{Error, Result};

/// The topic of what is to happen at a time.
const TOPIC: &str = "com/day/cq/replication/times";
const FOLLOWER: &str = "replication-times";
/// Its name in the log.
const WHAT: &str = "on and off times";
/// How often content is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Changes of one look.
const LIMIT: usize = 1000;

/// Returns when a page appears or vanishes.
fn time_of(node: &Node, name: &str) -> tympan_content::Result<Option<Date>> {
    let content = node.content()?;
    let property = content.and_then(|content| content.property(name));
    Ok(match property.as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(*date),
        Some(value) => Date::parse_lenient(&value.to_text()).ok(),
        None => None,
    })
}

/// Tells whether visitors may have a page at a time.
///
/// # Errors
/// If content fails.
pub(crate) fn is_due(node: &Node, now: SystemTime) -> Result<bool> {
    if !node.is_page() {
        return Ok(true);
    }
    let now = Date::from_system_time(now).millis;
    let is_early = time_of(node, "onTime")?.is_some_and(|on| on.millis > now);
    let is_late = time_of(node, "offTime")?.is_some_and(|off| off.millis <= now);
    Ok(!is_early && !is_late)
}

/// Follows content and stores what is to happen at which time.
#[derive(Debug, Clone)]
pub struct Times {
    replicator: Replicator,
}

impl Times {
    /// Makes one for an author.
    #[must_use]
    pub fn new(replicator: Replicator) -> Self {
        Self { replicator }
    }

    /// Follows until `stop` turns true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let mut rounds = Rounds::new(WHAT, stop, LOOK * 10);
        while !rounds.is_over() {
            let done = self.step(SystemTime::now()).await;
            let wait = done.map(|is_end| if is_end { LOOK } else { Duration::ZERO });
            rounds.end(wait.map_err(|error| chain(&error))).await;
        }
    }

    /// Digests the next changes. Tells whether those were all there are. The first call only notes where to begin.
    ///
    /// # Errors
    /// If content or the queues fail.
    pub async fn step(&self, now: SystemTime) -> Result<bool> {
        let queues = self.replicator.queues();
        let stored = queues.digested(FOLLOWER).await?;
        let (this, from) = (self.clone(), stored.clone());
        let (jobs, next, is_end) = blocking(move || this.look(from.as_deref(), now)).await??;
        let next = next.to_string();
        if stored.as_deref() != Some(&*next) {
            queues.digest(FOLLOWER, (stored.as_deref(), &next), jobs, now).await?;
        }
        Ok(is_end)
    }

    fn look(&self, from: Option<&str>, now: SystemTime) -> Result<(Vec<NewJob>, Cursor, bool)> {
        let repository = self.replicator.repository();
        let page = match changes_behind(repository, from, LIMIT, WHAT)? {
            Behind::Changes(page) => page,
            Behind::Begin(cursor) => return Ok((Vec::new(), cursor, true)),
        };
        let mut jobs = Vec::new();
        for revision in &page.revisions {
            self.follow(revision, now, &mut jobs)?;
        }
        Ok((jobs, page.next, page.is_end))
    }

    fn follow(
        &self,
        revision: &RevisionChanges,
        now: SystemTime,
        jobs: &mut Vec<NewJob>,
    ) -> Result<()> {
        let mut pages = BTreeSet::new();
        for change in &revision.changes {
            let path = &change.path;
            if path.name() == JCR_CONTENT {
                pages.extend(path.parent());
            } else {
                pages.insert(path.clone());
            }
        }
        let repository = self.replicator.repository();
        // The state that the commit led to; the newest one where that is collected.
        let snapshot = repository.snapshot_at(revision.root).or_else(|_| repository.snapshot())?;
        let made = Date::from_system_time(revision.at).millis;
        for path in pages {
            let Some(node) = snapshot.node(&path)?.filter(Node::is_page) else { continue };
            for (name, action) in [("onTime", Action::Activate), ("offTime", Action::Deactivate)] {
                // What was in the past when it was written is nothing to wait for.
                let time = time_of(&node, name)?.filter(|time| time.millis > made);
                let Some(time) = time else { continue };
                let wait = time.to_system_time().duration_since(now).unwrap_or_default();
                let (user, at) = (revision.user.as_str(), time.millis);
                let properties =
                    json!({ "path": path.as_str(), "action": action.name(), "at": at });
                let job = NewJob::new(TOPIC, properties)
                    .key(format!("{} {at} {user} {path}", action.name()))
                    .user(user)
                    .delay(wait);
                jobs.push(job);
            }
        }
        Ok(())
    }
}

/// Carries out what is to happen at a time.
#[derive(Debug)]
pub struct TimesHandler {
    replicator: Replicator,
    keeping: Keeping,
    runtime: Handle,
}

impl TimesHandler {
    /// Makes the handler, to be registered with a worker.
    #[must_use]
    pub fn new(replicator: Replicator, keeping: Keeping, runtime: Handle) -> Self {
        Self { replicator, keeping, runtime }
    }

    fn carry_out(&self, job: &Job) -> Result<()> {
        let member = |name: &str| job.properties.get(name);
        let text = |name: &str| member(name).and_then(Json::as_str).unwrap_or_default();
        let path = NodePath::new(text("path"))?;
        let unknown = || Error::Malformed(format!("the job {} has no action", job.id));
        let action = Action::find(text("action")).ok_or_else(unknown)?;
        let snapshot = self.replicator.repository().snapshot()?;
        let Some(node) = snapshot.node(&path)? else { return Ok(()) };
        let name = if action == Action::Activate { "onTime" } else { "offTime" };
        let at = time_of(&node, name)?.map(|time| time.millis);
        if at != member("at").and_then(Json::as_i64) || !is_wanted(&node, action)? {
            return Ok(());
        }
        let wish = Wish { action, path, depth: Depth::Document, user: job.user.clone() };
        let viewer = viewer_of(self.replicator.repository(), &job.user)?;
        match require_replicate(&snapshot.seen_by(&viewer), &wish) {
            Err(Error::Content(tympan_content::Error::AccessDenied { path, .. })) => {
                debug!(path = %path, user = job.user, "who set a time may not replicate");
                return Ok(());
            }
            permitted => permitted?,
        }
        let done = self.replicator.wish(vec![wish], self.keeping, SystemTime::now());
        self.runtime.block_on(done).map(|_| ())
    }
}

/// Tells whether a page is to appear, because somebody activated it before, or to vanish, because visitors have it.
fn is_wanted(node: &Node, action: Action) -> Result<bool> {
    let was_activated = node.summary().and_then(|summary| summary.activation());
    match action {
        Action::Activate => Ok(was_activated == Some(Action::Activate.name())),
        Action::Deactivate => is_live(node),
    }
}

impl Handler for TimesHandler {
    fn topic(&self) -> &str {
        TOPIC
    }

    fn run(&self, job: &Job, _context: &JobContext) -> Outcome {
        match self.carry_out(job) {
            Ok(()) => Outcome::Done,
            Err(error) if error.is_transient() => {
                Outcome::Retry { after: None, reason: chain(&error) }
            }
            Err(error) => Outcome::Failed { reason: chain(&error) },
        }
    }
}
