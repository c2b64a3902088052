//! Moving instances on, each time in one transaction.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use sqlx::Row;

use crate::sql::{Dialect, Transaction, database, millis};
use crate::workflow::flow::Flow;
use crate::workflow::model::{Model, ModelRoots};
use crate::workflow::query::WorkflowState;
use crate::{Error, Queues, Result};

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
    /// The step of another instance for which this one is gone through.
    pub(crate) part_of: Option<i64>,
}

/// Who moves an instance on, and what they say.
pub(crate) struct Move<'a> {
    pub(crate) user: &'a str,
    pub(crate) comment: Option<&'a str>,
    pub(crate) now: SystemTime,
}

/// The end of a step.
pub(crate) struct Ending<'a> {
    pub(crate) item: i64,
    pub(crate) id: WorkflowId,
    /// What it leaves for later steps.
    pub(crate) data: Map<String, Json>,
    /// The way on, where somebody chose it.
    pub(crate) route: Option<&'a str>,
    /// What the instance is about from now on, where that changes.
    pub(crate) payload: Option<String>,
}

impl Ending<'_> {
    pub(crate) fn new(item: i64, id: WorkflowId, data: Map<String, Json>) -> Self {
        Self { item, id, data, route: None, payload: None }
    }
}

/// The step for which an instance is gone through, and how that one's went so far.
pub(crate) struct PartOf<'a> {
    pub(crate) item: i64,
    pub(crate) flow: &'a Flow,
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
        let id = self.start_in(&mut transaction, start, None, now).await?.id;
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(id)
    }

    /// Checks that a model can be gone through here: that the processes and choosers that it names are known, and that a
    /// way leads on from its start.
    ///
    /// # Errors
    /// [`Error::Workflow`] that names the step and what is known.
    pub fn check(&self, start: &StartWorkflow) -> Result<()> {
        self.check_model(&start.model)?;
        let first = start.model.start().unwrap_or_default();
        Flow::default().leave(&start.model, first, &start.data, None).map(|_| ())
    }

    /// Checks that the processes, choosers and inner models are known that a model names: the part of
    /// [`Workflows::check`] that needs no instance. Where no worker carries out steps nothing is known, and nothing
    /// refused.
    ///
    /// # Errors
    /// [`Error::Workflow`] that names the step and what is known.
    pub fn check_model(&self, model: &Model) -> Result<()> {
        let known = self.queues.known_steps();
        known.map_or(Ok(()), |known| known.check(model, &self.models()))
    }

    /// Lets models be at these paths only, for all who share the queues.
    #[must_use]
    pub fn with_models(self, roots: ModelRoots) -> Self {
        self.queues.know_model_roots(roots);
        self
    }

    /// Returns where models are.
    #[must_use]
    pub fn models(&self) -> Arc<ModelRoots> {
        self.queues.model_roots()
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
            self.start_in(&mut transaction, start, None, now).await?;
        }
        transaction.commit().await.map_err(database(action))?;
        if !starts.is_empty() {
            self.queues.ring();
        }
        Ok(true)
    }

    pub(crate) async fn start_in(
        &self,
        transaction: &mut Transaction,
        start: &StartWorkflow,
        part_of: Option<PartOf<'_>>,
        now: SystemTime,
    ) -> Result<Locked> {
        let action = "start a workflow";
        self.check(start)?;
        let row = sqlx::query(
            "INSERT INTO workflow (model, title, definition, payload, state, data, flow, initiator, started, \
             is_transient, parent_item) VALUES ($1, $2, $3, $4, 'RUNNING', $5, '{}', $6, $7, $8, $9) RETURNING id",
        )
        .bind(start.model.path.as_str())
        .bind(start.model.title.as_str())
        .bind(start.model.to_json().to_string())
        .bind(start.payload.as_str())
        .bind(data_text(&start.data)?)
        .bind(start.initiator.as_str())
        .bind(millis(now))
        .bind(i64::from(start.model.is_transient))
        .bind(part_of.as_ref().map(|part| part.item))
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
            part_of: part_of.as_ref().map(|part| part.item),
            flow: part_of.map_or_else(Flow::default, |part| Flow {
                depth: part.flow.depth + 1,
                ..Flow::default()
            }),
        };
        let moving = Move { user: &start.initiator, comment: None, now };
        let first = instance.model.start().unwrap_or_default().to_owned();
        self.record(transaction, &instance, (&first, "started"), &moving).await?;
        self.go_on(transaction, &mut instance, (&first, None), &moving).await?;
        Ok(instance)
    }

    /// Ends a step and begins those that follow.
    pub(crate) async fn go_on(
        &self,
        transaction: &mut Transaction,
        instance: &mut Locked,
        (step, route): (&str, Option<&str>),
        moving: &Move<'_>,
    ) -> Result<()> {
        let begun = instance.flow.leave(&instance.model, step, &instance.data, route)?;
        self.arrive(transaction, instance, (step, &begun), moving).await
    }

    /// Begins steps after the end of one, and stores where the instance stands.
    pub(crate) async fn arrive(
        &self,
        transaction: &mut Transaction,
        instance: &mut Locked,
        (step, begun): (&str, &[String]),
        moving: &Move<'_>,
    ) -> Result<()> {
        let action = "move a workflow on";
        for name in begun {
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
            "UPDATE workflow SET state = $1, data = $2, flow = $3, ended = $4, payload = $5 WHERE id = $6",
        )
        .bind(instance.state.name())
        .bind(data_text(&instance.data)?)
        .bind(instance.flow.to_json().to_string())
        .bind(is_over.then(|| millis(moving.now)))
        .bind(instance.payload.as_str())
        .bind(instance.id)
        .execute(&mut **transaction)
        .await
        .map_err(database(action))?;
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
            "SELECT definition, payload, initiator, state, data, flow, parent_item FROM workflow WHERE id = $1{lock}"
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
            part_of: row.try_get(6).map_err(database(action))?,
        }))
    }

    /// Ends a step, if it is still open, and starts what lets somebody know.
    pub(crate) async fn end_with_notice(
        &self,
        ending: Ending<'_>,
        notice: Option<StartWorkflow>,
        moving: &Move<'_>,
    ) -> Result<()> {
        let action = "end a step";
        let mut transaction = self.queues.begin(action).await?;
        if !self.end_item_in(&mut transaction, ending, moving).await? {
            return Ok(());
        }
        if let Some(notice) = notice {
            self.start_in(&mut transaction, &notice, None, moving.now).await?;
        }
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(())
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
        let ending = Ending { route, ..Ending::new(item, id, data) };
        if !self.end_item_in(&mut transaction, ending, moving).await? {
            return Ok(false);
        }
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(true)
    }

    /// Ends the step of a work item, and with an instance that comes to its end the step for which it was gone through.
    /// Tells whether the first was open.
    pub(crate) async fn end_item_in(
        &self,
        transaction: &mut Transaction,
        mut ending: Ending<'_>,
        moving: &Move<'_>,
    ) -> Result<bool> {
        let mut was_open = false;
        loop {
            let Ending { item, id, data, route, payload } = ending;
            let Some(mut instance) = self.lock(transaction, id).await? else { return Ok(was_open) };
            // Two may end it at the same time; the second finds it gone.
            let Some(step) = self.take_item(transaction, &instance, item).await? else {
                return Ok(was_open);
            };
            was_open = true;
            instance.data.extend(data);
            instance.payload = payload.unwrap_or(instance.payload);
            self.record(transaction, &instance, (&step, "completed"), moving).await?;
            self.go_on(transaction, &mut instance, (&step, route), moving).await?;
            let (WorkflowState::Completed, Some(outer)) = (instance.state, instance.part_of) else {
                return Ok(true);
            };
            let Some(id) = self.workflow_of_item(transaction, outer).await? else {
                return Ok(true);
            };
            let payload = Some(instance.payload);
            ending = Ending { payload, ..Ending::new(outer, id, instance.data) };
        }
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
