//! Moving instances on, each time in one transaction.

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};
use sqlx::Row;

use crate::config::{EXTERNAL_TOPIC, TRANSIENT_TOPIC, WORKFLOW_TOPIC};
use crate::sql::{Dialect, Transaction, database, millis};
use crate::workflow::flow::Flow;
use crate::workflow::model::{Model, StepKind};
use crate::workflow::query::WorkflowState;
use crate::{Error, NewJob, Queues, Result};

/// The number of an instance.
pub type WorkflowId = i64;

/// The most bytes of an instance's data.
const MAX_DATA_BYTES: usize = 256 * 1024;

/// A wish to start a workflow.
#[derive(Debug, Clone)]
pub struct StartWorkflow {
    /// The model, as it is now.
    pub model: Model,
    /// What it is about: a node path.
    pub payload: String,
    /// Who starts it.
    pub initiator: String,
    /// What its rules and processes may read.
    pub data: Map<String, Json>,
}

/// The instances of one state database. Clones share it.
#[derive(Debug, Clone)]
pub struct Workflows {
    pub(crate) queues: Queues,
}

/// An instance, locked by a transaction.
pub(crate) struct Locked {
    pub(crate) id: WorkflowId,
    pub(crate) model: Model,
    pub(crate) payload: String,
    pub(crate) initiator: String,
    pub(crate) state: WorkflowState,
    pub(crate) data: Map<String, Json>,
    pub(crate) flow: Flow,
}

/// Who moves an instance on, and what they say.
pub(crate) struct Move<'a> {
    pub(crate) user: &'a str,
    pub(crate) comment: Option<&'a str>,
    pub(crate) now: SystemTime,
}

impl Workflows {
    /// Uses the same database as the queues.
    #[must_use]
    pub fn new(queues: Queues) -> Self {
        Self { queues }
    }

    /// Returns the queues.
    #[must_use]
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Starts an instance durably.
    ///
    /// # Errors
    /// [`Error::Workflow`] if the model leads nowhere; the database's.
    pub async fn start(&self, start: &StartWorkflow, now: SystemTime) -> Result<WorkflowId> {
        let action = "start a workflow";
        let mut transaction = self.queues.begin(action).await?;
        let id = self.start_in(&mut transaction, start, now).await?;
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(id)
    }

    /// Moves a follower of content from one cursor to the next and starts what follows from the changes, all or none.
    /// Tells whether it was still at the first cursor.
    pub(crate) async fn digest(
        &self,
        follower: &str,
        (from, to): (Option<&str>, &str),
        starts: &[StartWorkflow],
        now: SystemTime,
    ) -> Result<bool> {
        let action = "start workflows";
        let mut transaction = self.queues.begin(action).await?;
        let moved = match from {
            Some(from) => {
                sqlx::query("UPDATE follower SET root = $1 WHERE name = $2 AND root = $3")
                    .bind(to)
                    .bind(follower)
                    .bind(from)
            }
            None => sqlx::query(
                "INSERT INTO follower (root, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            )
            .bind(to)
            .bind(follower),
        };
        let moved = moved.execute(&mut *transaction).await.map_err(database(action))?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        for start in starts {
            self.start_in(&mut transaction, start, now).await?;
        }
        transaction.commit().await.map_err(database(action))?;
        if !starts.is_empty() {
            self.queues.ring();
        }
        Ok(true)
    }

    async fn start_in(
        &self,
        transaction: &mut Transaction,
        start: &StartWorkflow,
        now: SystemTime,
    ) -> Result<WorkflowId> {
        let action = "start a workflow";
        let row = sqlx::query(
            "INSERT INTO workflow (model, title, definition, payload, state, data, flow, initiator, started, is_transient) \
             VALUES ($1, $2, $3, $4, 'RUNNING', $5, '{}', $6, $7, $8) RETURNING id",
        )
        .bind(start.model.path.as_str())
        .bind(start.model.title.as_str())
        .bind(start.model.to_json().to_string())
        .bind(start.payload.as_str())
        .bind(data_text(&start.data)?)
        .bind(start.initiator.as_str())
        .bind(millis(now))
        .bind(i64::from(start.model.is_transient))
        .fetch_one(&mut **transaction)
        .await
        .map_err(database(action))?;
        let id: i64 = row.try_get(0).map_err(database(action))?;
        let mut instance = Locked {
            id,
            model: start.model.clone(),
            payload: start.payload.clone(),
            initiator: start.initiator.clone(),
            state: WorkflowState::Running,
            data: start.data.clone(),
            flow: Flow::default(),
        };
        let moving = Move { user: &start.initiator, comment: None, now };
        let first = instance.model.start().unwrap_or_default().to_owned();
        self.record(transaction, &instance, (&first, "started"), &moving).await?;
        self.go_on(transaction, &mut instance, (&first, None), &moving).await?;
        Ok(id)
    }

    /// Ends a step and begins those that follow.
    pub(crate) async fn go_on(
        &self,
        transaction: &mut Transaction,
        instance: &mut Locked,
        (step, route): (&str, Option<&str>),
        moving: &Move<'_>,
    ) -> Result<()> {
        let action = "move a workflow on";
        let begun = instance.flow.leave(&instance.model, step, &instance.data, route)?;
        for name in &begun {
            self.begin_step(transaction, instance, name, moving.now).await?;
        }
        let row = sqlx::query("SELECT COUNT(*) FROM work_item WHERE workflow = $1")
            .bind(instance.id)
            .fetch_one(&mut **transaction)
            .await
            .map_err(database(action))?;
        let open: i64 = row.try_get(0).map_err(database(action))?;
        let is_stuck = open == 0 && !instance.flow.joins.is_empty();
        instance.state = match (open, is_stuck) {
            (0, true) => WorkflowState::Stale,
            (0, false) => WorkflowState::Completed,
            _ => instance.state,
        };
        if instance.state == WorkflowState::Completed && instance.model.is_transient {
            sqlx::query("DELETE FROM workflow WHERE id = $1")
                .bind(instance.id)
                .execute(&mut **transaction)
                .await
                .map_err(database(action))?;
            return Ok(());
        }
        if is_stuck {
            let comment = "a join waits for a way that nobody goes any more";
            let moving = Move { comment: Some(comment), ..*moving };
            self.record(transaction, instance, (step, "stale"), &moving).await?;
        }
        let is_over = matches!(instance.state, WorkflowState::Completed | WorkflowState::Stale);
        sqlx::query(
            "UPDATE workflow SET state = $1, data = $2, flow = $3, ended = $4 WHERE id = $5",
        )
        .bind(instance.state.name())
        .bind(data_text(&instance.data)?)
        .bind(instance.flow.to_json().to_string())
        .bind(is_over.then(|| millis(moving.now)))
        .bind(instance.id)
        .execute(&mut **transaction)
        .await
        .map_err(database(action))?;
        Ok(())
    }

    async fn begin_step(
        &self,
        transaction: &mut Transaction,
        instance: &Locked,
        name: &str,
        now: SystemTime,
    ) -> Result<()> {
        let action = "begin a step";
        let missing = || Error::Workflow(format!("there is no step `{name}`"));
        let step = instance.model.steps.get(name).ok_or_else(missing)?;
        let assignee = step.text("PARTICIPANT").map(|participant| match participant {
            "initiator" => instance.initiator.as_str(),
            other => other,
        });
        let row = sqlx::query(
            "INSERT INTO work_item (workflow, node, kind, title, assignee, started, data) \
             VALUES ($1, $2, $3, $4, $5, $6, '{}') RETURNING id",
        )
        .bind(instance.id)
        .bind(name)
        .bind(step.kind.name())
        .bind(step.title.as_str())
        .bind(assignee)
        .bind(millis(now))
        .fetch_one(&mut **transaction)
        .await
        .map_err(database(action))?;
        let item: i64 = row.try_get(0).map_err(database(action))?;
        let base = match step.kind {
            StepKind::External => EXTERNAL_TOPIC,
            _ if instance.model.is_transient => TRANSIENT_TOPIC,
            _ => WORKFLOW_TOPIC,
        };
        if step.kind != StepKind::Participant {
            let properties = json!({
                "item": item, "workflow": instance.id, "model": instance.model.path,
                "payload": instance.payload, "step": step.title,
            });
            let topic = format!("{base}/{}", instance.model.suffix);
            let job = NewJob::new(topic, properties)
                .key(format!("item {item}"))
                .user(instance.initiator.as_str());
            self.queues.insert(transaction, &[(job, now)], None).await?;
        }
        Ok(())
    }

    /// Reads an instance and keeps others from moving it until the transaction ends.
    pub(crate) async fn lock(
        &self,
        transaction: &mut Transaction,
        id: WorkflowId,
    ) -> Result<Option<Locked>> {
        let action = "read a workflow";
        let lock = match self.queues.dialect {
            Dialect::Sqlite => "",
            Dialect::Postgres => " FOR UPDATE",
        };
        let text = format!(
            "SELECT definition, payload, initiator, state, data, flow FROM workflow WHERE id = $1{lock}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id)
            .fetch_optional(&mut **transaction)
            .await
            .map_err(database(action))?;
        let Some(row) = row else { return Ok(None) };
        let text = |at: usize| row.try_get::<String, _>(at).map_err(database(action));
        let parsed = |text: &str| serde_json::from_str::<Json>(text).unwrap_or_default();
        let damaged = || Error::Workflow(format!("the model of the instance {id} is damaged"));
        Ok(Some(Locked {
            id,
            model: Model::from_json(&parsed(&text(0)?)).ok_or_else(damaged)?,
            payload: text(1)?,
            initiator: text(2)?,
            state: WorkflowState::find(&text(3)?).unwrap_or(WorkflowState::Stale),
            data: parsed(&text(4)?).as_object().cloned().unwrap_or_default(),
            flow: Flow::from_json(&parsed(&text(5)?)),
        }))
    }

    /// Ends the step of a work item, if it is still open. Tells whether it was.
    pub(crate) async fn end_item(
        &self,
        (item, id): (i64, WorkflowId),
        data: Map<String, Json>,
        route: Option<&str>,
        moving: &Move<'_>,
    ) -> Result<bool> {
        let action = "end a step";
        let mut transaction = self.queues.begin(action).await?;
        let Some(mut instance) = self.lock(&mut transaction, id).await? else { return Ok(false) };
        let ended = sqlx::query("DELETE FROM work_item WHERE id = $1 RETURNING node")
            .bind(item)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(database(action))?;
        // Two may end it at the same time; the second finds it gone.
        let Some(row) = ended else { return Ok(false) };
        let step: String = row.try_get(0).map_err(database(action))?;
        instance.data.extend(data);
        self.record(&mut transaction, &instance, (&step, "completed"), moving).await?;
        self.go_on(&mut transaction, &mut instance, (&step, route), moving).await?;
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(true)
    }

    /// Ends an instance before its time.
    ///
    /// # Errors
    /// [`Error::Workflow`] if it is over already or there is none; the database's.
    pub async fn terminate(
        &self,
        id: WorkflowId,
        user: &str,
        comment: Option<&str>,
        now: SystemTime,
    ) -> Result<()> {
        let action = "end a workflow";
        let mut transaction = self.queues.begin(action).await?;
        let instance = self.lock(&mut transaction, id).await?;
        let instance = instance
            .filter(|instance| instance.state.is_open() || instance.state == WorkflowState::Stale);
        let gone = || Error::Workflow(format!("no instance {id} runs"));
        let instance = instance.ok_or_else(gone)?;
        for text in [
            "DELETE FROM work_item WHERE workflow = $1",
            "UPDATE workflow SET state = 'ABORTED' WHERE id = $1",
        ] {
            let done = sqlx::query(text).bind(id).execute(&mut *transaction).await;
            done.map_err(database(action))?;
        }
        sqlx::query("UPDATE workflow SET ended = $1 WHERE id = $2")
            .bind(millis(now))
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(database(action))?;
        self.record(&mut transaction, &instance, ("", "aborted"), &Move { user, comment, now })
            .await?;
        transaction.commit().await.map_err(database(action))?;
        Ok(())
    }

    /// Keeps an instance from going on, or lets it. Tells whether that changed anything.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn suspend(
        &self,
        id: WorkflowId,
        to: WorkflowState,
        user: &str,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "suspend a workflow";
        let from = match to {
            WorkflowState::Suspended => WorkflowState::Running,
            _ => WorkflowState::Suspended,
        };
        let mut transaction = self.queues.begin(action).await?;
        let Some(instance) = self.lock(&mut transaction, id).await? else { return Ok(false) };
        if instance.state != from {
            return Ok(false);
        }
        sqlx::query("UPDATE workflow SET state = $1 WHERE id = $2")
            .bind(to.name())
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(database(action))?;
        let word = if to == WorkflowState::Suspended { "suspended" } else { "resumed" };
        self.record(&mut transaction, &instance, ("", word), &Move { user, comment: None, now })
            .await?;
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(true)
    }

    /// Writes a line of the history; transient instances have none.
    pub(crate) async fn record(
        &self,
        transaction: &mut Transaction,
        instance: &Locked,
        (step, what): (&str, &str),
        moving: &Move<'_>,
    ) -> Result<()> {
        if instance.model.is_transient {
            return Ok(());
        }
        let title = instance.model.steps.get(step).map_or("", |step| step.title.as_str());
        sqlx::query(
            "INSERT INTO workflow_history (workflow, node, title, action, user_name, at, comment) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(instance.id)
        .bind(step)
        .bind(title)
        .bind(what)
        .bind(moving.user)
        .bind(millis(moving.now))
        .bind(moving.comment)
        .execute(&mut **transaction)
        .await
        .map_err(database("write the history of a workflow"))?;
        Ok(())
    }
}

fn data_text(data: &Map<String, Json>) -> Result<String> {
    let text = Json::Object(data.clone()).to_string();
    if text.len() > MAX_DATA_BYTES {
        return Err(Error::Workflow(format!(
            "the data of the instance exceed {MAX_DATA_BYTES} bytes"
        )));
    }
    Ok(text)
}
