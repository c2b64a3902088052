//! Queries instances: lists, the inbox of a person, history; also completes inbox items.

use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use sqlx::Row;
use sqlx::any::AnyRow;

use crate::queue::sql::{database_error, from_epoch_millis, sql_placeholders, to_epoch_millis};
use crate::workflow::engine::{LockedWorkflow, StepActionContext, WorkflowEngine, WorkflowId};
use crate::workflow::workflow_state::WorkflowState;
use crate::{Error, Result};

/// An instance.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowInstance {
    /// Its number.
    pub id: WorkflowId,
    /// The path of its model.
    pub model: String,
    /// The model's title.
    pub title: String,
    /// The payload.
    pub payload: String,
    /// The instance's state.
    pub state: WorkflowState,
    /// Data for rules and processes.
    pub data: Map<String, Json>,
    /// The user who started it.
    pub initiator: String,
    /// Start time.
    pub started_at: SystemTime,
    /// End time, if it has ended.
    pub ended_at: Option<SystemTime>,
}

/// A step that waits for somebody or is being executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkItem {
    /// Its number.
    pub id: i64,
    /// Its instance.
    pub workflow_id: WorkflowId,
    /// The path of the model that its instance began with.
    pub model: String,
    /// The step.
    pub step: String,
    /// The step's title.
    pub title: String,
    /// The step's kind, by AEM's name.
    pub kind: String,
    /// The assignee: a user or a group.
    pub assignee: Option<String>,
    /// Start time of the step.
    pub started_at: SystemTime,
    /// The payload of the instance.
    pub payload: String,
    /// The steps that may be chosen as the next one.
    pub routes: Vec<String>,
}

/// An entry of an instance's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowHistoryEntry {
    /// The step; empty for the whole instance.
    pub step: String,
    /// The step's title.
    pub title: String,
    /// The action.
    pub action: String,
    /// The user who acted.
    pub user: String,
    /// Time of the action.
    pub at: SystemTime,
    /// The user's comment.
    pub comment: Option<String>,
}

/// A filter for lists of instances.
#[derive(Debug, Clone, Default)]
pub struct WorkflowFilter {
    /// Instances in this state.
    pub state: Option<WorkflowState>,
    /// Instances of this model.
    pub model: Option<String>,
    /// Instances with this payload.
    pub payload: Option<String>,
    /// Instances that this user started.
    pub initiator: Option<String>,
    /// Instances with lower numbers.
    pub before_id: Option<WorkflowId>,
}

const INSTANCE_COLUMNS: &str = "id, model, title, payload, state, data, initiator, started, ended";

impl WorkflowEngine {
    /// Lists instances, newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_instances(
        &self,
        filter: &WorkflowFilter,
        limit: u32,
    ) -> Result<Vec<WorkflowInstance>> {
        let mut text = format!("SELECT {INSTANCE_COLUMNS} FROM workflow WHERE id < $1");
        let mut values = Vec::new();
        let filters = [
            ("state", filter.state.map(|state| state.name().to_owned())),
            ("model", filter.model.clone()),
            ("payload", filter.payload.clone()),
            ("initiator", filter.initiator.clone()),
        ];
        for (name, value) in filters {
            if let Some(value) = value {
                values.push(value);
                text.push_str(&format!(" AND {name} = ${}", values.len() + 2));
            }
        }
        text.push_str(" ORDER BY id DESC LIMIT $2");
        let mut query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(filter.before_id.unwrap_or(i64::MAX))
            .bind(i64::from(limit));
        for value in values {
            query = query.bind(value);
        }
        let rows =
            query.fetch_all(&self.queues.pool).await.map_err(database_error("list workflows"))?;
        rows.iter().map(instance_from_row).collect()
    }

    /// Finds an instance.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn find_instance(&self, id: WorkflowId) -> Result<Option<WorkflowInstance>> {
        let text = format!("SELECT {INSTANCE_COLUMNS} FROM workflow WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id)
            .fetch_optional(&self.queues.pool)
            .await
            .map_err(database_error("find a workflow"))?;
        row.as_ref().map(instance_from_row).transpose()
    }

    /// Lists the steps assigned to `names`, a user and their groups, oldest first. If `names` is empty, lists the steps
    /// of all assignees.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_inbox(&self, names: &[String], limit: u32) -> Result<Vec<WorkItem>> {
        let action = "read an inbox";
        let assignee_filter = if names.is_empty() {
            String::new()
        } else {
            format!("AND work_item.assignee IN ({})", sql_placeholders(2, names.len()))
        };
        let text = format!(
            "SELECT work_item.id, workflow, node, work_item.title, kind, assignee, work_item.started, payload, definition, model \
             FROM work_item JOIN workflow ON workflow.id = work_item.workflow \
             WHERE kind = 'PARTICIPANT' AND state = 'RUNNING' {assignee_filter} ORDER BY work_item.id LIMIT $1"
        );
        let mut query = sqlx::query(sqlx::AssertSqlSafe(text)).bind(i64::from(limit));
        for name in names {
            query = query.bind(name.as_str());
        }
        let rows = query.fetch_all(&self.queues.pool).await.map_err(database_error(action))?;
        rows.iter().map(work_item_from_row).collect()
    }

    /// Lists the open steps of an instance.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_open_steps(&self, id: WorkflowId) -> Result<Vec<WorkItem>> {
        let rows = sqlx::query(
            "SELECT work_item.id, workflow, node, work_item.title, kind, assignee, work_item.started, payload, definition, model \
             FROM work_item JOIN workflow ON workflow.id = work_item.workflow \
             WHERE workflow = $1 ORDER BY work_item.id",
        )
        .bind(id)
        .fetch_all(&self.queues.pool)
        .await
        .map_err(database_error("read the steps of a workflow"))?;
        rows.iter().map(work_item_from_row).collect()
    }

    /// Completes a participant's step with `data` for later steps, by the route to `route` if there are several. `names` are the user and their
    /// groups; only steps assigned to one of them are completed. If `names` is empty, the assignee is not checked.
    ///
    /// # Errors
    /// [`Error::Workflow`] if the step is not assigned to them or not open; errors of the database.
    pub async fn complete_participant_step(
        &self,
        item: i64,
        names: &[String],
        route: Option<&str>,
        data: Map<String, Json>,
        action: &StepActionContext<'_>,
    ) -> Result<()> {
        let id = self.require_assigned_item(item, names).await?;
        if self.complete_step((item, id), data, route, action).await? {
            Ok(())
        } else {
            Err(Error::Workflow(format!("the step {item} is not open")))
        }
    }

    /// Returns the running instance of an open participant's step assigned to one of `names`; if `names` is empty, the
    /// assignee is not checked.
    pub(crate) async fn require_assigned_item(
        &self,
        item: i64,
        names: &[String],
    ) -> Result<WorkflowId> {
        let action = "read a step";
        let row = sqlx::query(
            "SELECT workflow, kind, assignee, state FROM work_item JOIN workflow ON workflow.id = work_item.workflow \
             WHERE work_item.id = $1",
        )
        .bind(item)
        .fetch_optional(&self.queues.pool)
        .await
        .map_err(database_error(action))?;
        let missing_error = || Error::Workflow(format!("the step {item} is not open"));
        let row = row.ok_or_else(missing_error)?;
        let id: i64 = row.try_get(0).map_err(database_error(action))?;
        let kind: String = row.try_get(1).map_err(database_error(action))?;
        let assignee: Option<String> = row.try_get(2).map_err(database_error(action))?;
        let state: String = row.try_get(3).map_err(database_error(action))?;
        let is_theirs = names.is_empty() || assignee.is_some_and(|name| names.contains(&name));
        if kind != "PARTICIPANT" || !is_theirs {
            return Err(missing_error());
        }
        if state != WorkflowState::Running.name() {
            return Err(Error::Workflow(format!("the instance {id} is {}", state.to_lowercase())));
        }
        Ok(id)
    }

    /// Reassigns a participant's step. Returns true if it was open.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn delegate_step(&self, item: i64, to: &str) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE work_item SET assignee = $1 WHERE id = $2 AND kind = 'PARTICIPANT'",
        )
        .bind(to)
        .bind(item)
        .execute(&self.queues.pool)
        .await
        .map_err(database_error("delegate a step"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Returns the history of an instance, in order.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_history(&self, id: WorkflowId) -> Result<Vec<WorkflowHistoryEntry>> {
        let action = "read the history of a workflow";
        let rows = sqlx::query(
            "SELECT node, title, action, user_name, at, comment FROM workflow_history WHERE workflow = $1 ORDER BY id",
        )
        .bind(id)
        .fetch_all(&self.queues.pool)
        .await
        .map_err(database_error(action))?;
        let entry = |row: &AnyRow| -> Result<WorkflowHistoryEntry> {
            let text = |at: usize| row.try_get::<String, _>(at).map_err(database_error(action));
            Ok(WorkflowHistoryEntry {
                step: text(0)?,
                title: text(1)?,
                action: text(2)?,
                user: text(3)?,
                at: from_epoch_millis(row.try_get(4).map_err(database_error(action))?),
                comment: row.try_get(5).map_err(database_error(action))?,
            })
        };
        rows.iter().map(entry).collect()
    }

    /// Removes instances that ended before a time, with their history; only those of one model if it is given. Returns
    /// the number of removed instances.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn purge_ended(&self, before: SystemTime, model: Option<&str>) -> Result<u64> {
        let action = "purge workflows";
        let which = "SELECT id FROM workflow WHERE state IN ('COMPLETED', 'ABORTED') AND ended <= $1 \
                     AND ($2 = '' OR model = $3)";
        let mut transaction = self.queues.begin_write(action).await?;
        let mut removed = 0;
        for text in [
            format!("DELETE FROM workflow_history WHERE workflow IN ({which})"),
            format!("DELETE FROM workflow WHERE id IN ({which})"),
        ] {
            let done = sqlx::query(sqlx::AssertSqlSafe(text))
                .bind(to_epoch_millis(before))
                .bind(model.unwrap_or_default())
                .bind(model.unwrap_or_default())
                .execute(&mut *transaction)
                .await
                .map_err(database_error(action))?;
            removed = done.rows_affected();
        }
        transaction.commit().await.map_err(database_error(action))?;
        Ok(removed)
    }

    /// Reads an open step with its instance, for the job that executes it.
    pub(crate) async fn load_open_item(
        &self,
        item: i64,
    ) -> Result<Option<(LockedWorkflow, String, Map<String, Json>)>> {
        let action = "read a step";
        let mut transaction = self.queues.begin_write(action).await?;
        let row = sqlx::query("SELECT workflow, node, data FROM work_item WHERE id = $1")
            .bind(item)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(None) };
        let id: i64 = row.try_get(0).map_err(database_error(action))?;
        let step: String = row.try_get(1).map_err(database_error(action))?;
        let data: String = row.try_get(2).map_err(database_error(action))?;
        let instance = self.lock_instance(&mut transaction, id).await?;
        transaction.commit().await.map_err(database_error(action))?;
        let data: Json = serde_json::from_str(&data).unwrap_or_default();
        Ok(instance.map(|instance| (instance, step, data.as_object().cloned().unwrap_or_default())))
    }

    /// Stores the data of a waiting process.
    pub(crate) async fn save_step_data(&self, item: i64, data: &Map<String, Json>) -> Result<()> {
        let action = "save the data of a step";
        let mut transaction = self.queues.begin_write(action).await?;
        sqlx::query("UPDATE work_item SET data = $1 WHERE id = $2")
            .bind(Json::Object(data.clone()).to_string())
            .bind(item)
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        transaction.commit().await.map_err(database_error(action))
    }
}

fn instance_from_row(row: &AnyRow) -> Result<WorkflowInstance> {
    let action = "read a workflow";
    let text = |at: usize| row.try_get::<String, _>(at).map_err(database_error(action));
    let data: Json = serde_json::from_str(&text(5)?).unwrap_or_default();
    let ended: Option<i64> = row.try_get(8).map_err(database_error(action))?;
    Ok(WorkflowInstance {
        id: row.try_get(0).map_err(database_error(action))?,
        model: text(1)?,
        title: text(2)?,
        payload: text(3)?,
        state: WorkflowState::from_name(&text(4)?).unwrap_or(WorkflowState::Stale),
        data: data.as_object().cloned().unwrap_or_default(),
        initiator: text(6)?,
        started_at: from_epoch_millis(row.try_get(7).map_err(database_error(action))?),
        ended_at: ended.map(from_epoch_millis),
    })
}

fn work_item_from_row(row: &AnyRow) -> Result<WorkItem> {
    let action = "read a step";
    let text = |at: usize| row.try_get::<String, _>(at).map_err(database_error(action));
    let step = text(2)?;
    let definition: Json = serde_json::from_str(&text(8)?).unwrap_or_default();
    let transitions = definition.get("transitions").and_then(Json::as_array);
    let transitions = transitions
        .into_iter()
        .flatten()
        .filter(|transition| transition.get("from").and_then(Json::as_str) == Some(step.as_str()));
    let routes = transitions
        .filter_map(|transition| transition.get("to")?.as_str().map(str::to_owned))
        .collect();
    Ok(WorkItem {
        id: row.try_get(0).map_err(database_error(action))?,
        workflow_id: row.try_get(1).map_err(database_error(action))?,
        title: text(3)?,
        kind: text(4)?,
        assignee: row.try_get(5).map_err(database_error(action))?,
        started_at: from_epoch_millis(row.try_get(6).map_err(database_error(action))?),
        payload: text(7)?,
        model: text(9)?,
        routes,
        step,
    })
}
