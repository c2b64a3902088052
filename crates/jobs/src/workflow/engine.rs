//! Advances instances, each time in one transaction.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};
use sqlx::Row;

use crate::queue::follower_root::advance_root;
use crate::queue::sql::{SqlDialect, WriteTransaction, database_error, to_epoch_millis};
use crate::workflow::flow_state::FlowState;
use crate::workflow::model::{WorkflowModel, WorkflowModelRoots};
use crate::workflow::workflow_state::WorkflowState;
use crate::{Error, JobQueues, Result};

/// The number of an instance.
pub type WorkflowId = i64;

/// Maximum size of an instance's data, in bytes.
const MAX_WORKFLOW_DATA_BYTES: usize = 256 * 1024;

/// A request to start a workflow.
#[derive(Debug, Clone)]
pub struct WorkflowStart {
    /// The current model.
    pub model: WorkflowModel,
    /// The payload: a node path.
    pub payload: String,
    /// The user who starts it.
    pub initiator: String,
    /// Data for its rules and processes.
    pub data: Map<String, Json>,
}

/// The instances of one state database. Clones share it.
#[derive(Debug, Clone)]
pub struct WorkflowEngine {
    pub(crate) queues: JobQueues,
}

/// An instance, locked by a transaction.
pub(crate) struct LockedWorkflow {
    pub(crate) id: WorkflowId,
    pub(crate) model: WorkflowModel,
    pub(crate) payload: String,
    pub(crate) initiator: String,
    pub(crate) state: WorkflowState,
    pub(crate) data: Map<String, Json>,
    pub(crate) flow: FlowState,
    /// The step of the parent instance, for a nested instance.
    parent_item_id: Option<i64>,
}

/// The user who advances an instance, and their comment.
#[derive(Debug, Clone, Copy)]
pub struct StepActionContext<'a> {
    /// The user.
    pub user: &'a str,
    /// The comment for the history.
    pub comment: Option<&'a str>,
    /// The time of the action.
    pub now: SystemTime,
}

/// The completion of a step.
pub(crate) struct StepCompletion<'a> {
    pub(crate) item_id: i64,
    pub(crate) workflow_id: WorkflowId,
    /// Data for later steps.
    pub(crate) data: Map<String, Json>,
    /// The route, if somebody chose one.
    pub(crate) chosen_route: Option<&'a str>,
    /// The new payload of the instance, if it changes.
    pub(crate) payload: Option<String>,
}

impl StepCompletion<'_> {
    pub(crate) fn new(item: i64, id: WorkflowId, data: Map<String, Json>) -> Self {
        Self { item_id: item, workflow_id: id, data, chosen_route: None, payload: None }
    }
}

/// The parent step of a nested instance, and that step's nesting state.
pub(crate) struct ParentStep<'a> {
    pub(crate) item_id: i64,
    pub(crate) flow: &'a FlowState,
}

impl WorkflowEngine {
    /// Creates an engine on the database of the queues.
    #[must_use]
    pub fn new(queues: JobQueues) -> Self {
        Self { queues }
    }

    /// Returns the queues.
    #[must_use]
    pub fn queues(&self) -> &JobQueues {
        &self.queues
    }

    /// Starts an instance durably.
    ///
    /// # Errors
    /// [`Error::Workflow`] if no step can begin; errors of the database.
    pub async fn start_workflow(
        &self,
        start: &WorkflowStart,
        now: SystemTime,
    ) -> Result<WorkflowId> {
        let action = "start a workflow";
        let mut transaction = self.queues.begin_write(action).await?;
        let id = self.start_in_transaction(&mut transaction, start, None, now).await?.id;
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.wake_job_workers();
        Ok(id)
    }

    /// Checks that a model can be executed here: the processes and choosers that it names are known, and a route leads
    /// on from its start.
    ///
    /// # Errors
    /// [`Error::Workflow`] that names the step and the known processes or choosers.
    pub fn check_start(&self, start: &WorkflowStart) -> Result<()> {
        self.check_model(&start.model)?;
        let first = start.model.start_step().unwrap_or_default();
        FlowState::default().leave_step(&start.model, first, &start.data, None).map(|_| ())
    }

    /// Checks that the processes, choosers and nested models of a model are known: the part of
    /// [`WorkflowEngine::check_start`] that needs no instance. Without a worker that executes steps nothing is known,
    /// and nothing is rejected.
    ///
    /// # Errors
    /// [`Error::Workflow`] that names the step and the known processes or choosers.
    pub fn check_model(&self, model: &WorkflowModel) -> Result<()> {
        let registry = self.queues.step_registry();
        registry.map_or(Ok(()), |registry| registry.check_model(model, &self.model_roots()))
    }

    /// Restricts models to these paths, for all clones of the queues.
    #[must_use]
    pub fn with_model_roots(self, roots: WorkflowModelRoots) -> Self {
        self.queues.set_model_roots(roots);
        self
    }

    /// Returns the locations of models.
    #[must_use]
    pub fn model_roots(&self) -> Arc<WorkflowModelRoots> {
        self.queues.model_roots()
    }

    /// Advances a follower of content from one cursor to the next and starts the resulting workflows, all or none.
    /// Returns true if the follower was still at the first cursor.
    pub(crate) async fn advance_follower(
        &self,
        follower: &str,
        from: Option<&str>,
        to: &str,
        starts: &[WorkflowStart],
        now: SystemTime,
    ) -> Result<bool> {
        let action = "start workflows";
        let mut transaction = self.queues.begin_write(action).await?;
        if !advance_root(&mut transaction, follower, from, to).await? {
            return Ok(false);
        }
        for start in starts {
            self.start_in_transaction(&mut transaction, start, None, now).await?;
        }
        transaction.commit().await.map_err(database_error(action))?;
        if !starts.is_empty() {
            self.queues.wake_job_workers();
        }
        Ok(true)
    }

    pub(crate) async fn start_in_transaction(
        &self,
        transaction: &mut WriteTransaction,
        start: &WorkflowStart,
        part_of: Option<ParentStep<'_>>,
        now: SystemTime,
    ) -> Result<LockedWorkflow> {
        let action = "start a workflow";
        self.check_start(start)?;
        let row = sqlx::query(
            "INSERT INTO workflow (model, title, definition, payload, state, data, flow, initiator, started, \
             is_transient, parent_item) VALUES ($1, $2, $3, $4, 'RUNNING', $5, '{}', $6, $7, $8, $9) RETURNING id",
        )
        .bind(start.model.path.as_str())
        .bind(start.model.title.as_str())
        .bind(start.model.to_json().to_string())
        .bind(start.payload.as_str())
        .bind(workflow_data_to_json(&start.data)?)
        .bind(start.initiator.as_str())
        .bind(to_epoch_millis(now))
        .bind(i64::from(start.model.is_transient))
        .bind(part_of.as_ref().map(|part| part.item_id))
        .fetch_one(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        let id: i64 = row.try_get(0).map_err(database_error(action))?;
        let mut instance = LockedWorkflow {
            id,
            model: start.model.clone(),
            payload: start.payload.clone(),
            initiator: start.initiator.clone(),
            state: WorkflowState::Running,
            data: start.data.clone(),
            parent_item_id: part_of.as_ref().map(|part| part.item_id),
            flow: part_of.map_or_else(FlowState::default, |part| FlowState {
                nesting_depth: part.flow.nesting_depth + 1,
                ..FlowState::default()
            }),
        };
        let moving = StepActionContext { user: &start.initiator, comment: None, now };
        let first = instance.model.start_step().unwrap_or_default().to_owned();
        self.record_history(transaction, &instance, &first, "started", &moving).await?;
        self.leave_step(transaction, &mut instance, (&first, None), &moving).await?;
        Ok(instance)
    }

    /// Ends a step and begins the following ones.
    pub(crate) async fn leave_step(
        &self,
        transaction: &mut WriteTransaction,
        instance: &mut LockedWorkflow,
        (step, route): (&str, Option<&str>),
        moving: &StepActionContext<'_>,
    ) -> Result<()> {
        let new_steps = instance.flow.leave_step(&instance.model, step, &instance.data, route)?;
        self.enter_steps(transaction, instance, (step, &new_steps), moving).await
    }

    /// Begins the steps after a completed one, and stores the state of the instance.
    pub(crate) async fn enter_steps(
        &self,
        transaction: &mut WriteTransaction,
        instance: &mut LockedWorkflow,
        (step, new_steps): (&str, &[String]),
        moving: &StepActionContext<'_>,
    ) -> Result<()> {
        let action = "advance a workflow";
        for name in new_steps {
            self.begin_step(transaction, instance, name, moving.now).await?;
        }
        let row = sqlx::query("SELECT COUNT(*) FROM work_item WHERE workflow = $1")
            .bind(instance.id)
            .fetch_one(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        let open: i64 = row.try_get(0).map_err(database_error(action))?;
        let is_stuck = open == 0 && !instance.flow.join_arrivals.is_empty();
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
                .map_err(database_error(action))?;
            return Ok(());
        }
        if is_stuck {
            let comment = "a join waits for a branch that can no longer arrive";
            let moving = StepActionContext { comment: Some(comment), ..*moving };
            self.record_history(transaction, instance, step, "stale", &moving).await?;
        }
        let is_over = matches!(instance.state, WorkflowState::Completed | WorkflowState::Stale);
        sqlx::query(
            "UPDATE workflow SET state = $1, data = $2, flow = $3, ended = $4, payload = $5 WHERE id = $6",
        )
        .bind(instance.state.name())
        .bind(workflow_data_to_json(&instance.data)?)
        .bind(instance.flow.to_json().to_string())
        .bind(is_over.then(|| to_epoch_millis(moving.now)))
        .bind(instance.payload.as_str())
        .bind(instance.id)
        .execute(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        Ok(())
    }

    /// Reads an instance and locks it until the transaction ends.
    pub(crate) async fn lock_instance(
        &self,
        transaction: &mut WriteTransaction,
        id: WorkflowId,
    ) -> Result<Option<LockedWorkflow>> {
        let action = "read a workflow";
        let lock = match self.queues.dialect {
            SqlDialect::Sqlite => "",
            SqlDialect::Postgres => " FOR UPDATE",
        };
        let text = format!(
            "SELECT definition, payload, initiator, state, data, flow, parent_item FROM workflow WHERE id = $1{lock}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id)
            .fetch_optional(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(None) };
        let text = |at: usize| row.try_get::<String, _>(at).map_err(database_error(action));
        let parsed = |text: &str| serde_json::from_str::<Json>(text).unwrap_or_default();
        let damaged = || Error::Workflow(format!("the model of the instance {id} is damaged"));
        Ok(Some(LockedWorkflow {
            id,
            model: WorkflowModel::from_json(&parsed(&text(0)?)).ok_or_else(damaged)?,
            payload: text(1)?,
            initiator: text(2)?,
            state: WorkflowState::from_name(&text(3)?).unwrap_or(WorkflowState::Stale),
            data: parsed(&text(4)?).as_object().cloned().unwrap_or_default(),
            flow: FlowState::from_json(&parsed(&text(5)?)),
            parent_item_id: row.try_get(6).map_err(database_error(action))?,
        }))
    }

    /// Completes a step, if it is still open, and starts its notice.
    pub(crate) async fn complete_step_with_notice(
        &self,
        ending: StepCompletion<'_>,
        notice: Option<WorkflowStart>,
        moving: &StepActionContext<'_>,
    ) -> Result<()> {
        let action = "end a step";
        let mut transaction = self.queues.begin_write(action).await?;
        if !self.complete_step_in_transaction(&mut transaction, ending, moving).await? {
            return Ok(());
        }
        if let Some(notice) = notice {
            self.start_in_transaction(&mut transaction, &notice, None, moving.now).await?;
        }
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.wake_job_workers();
        Ok(())
    }

    /// Completes the step of a work item, if it is still open. Returns true if it was.
    pub(crate) async fn complete_step(
        &self,
        (item, id): (i64, WorkflowId),
        data: Map<String, Json>,
        route: Option<&str>,
        moving: &StepActionContext<'_>,
    ) -> Result<bool> {
        let action = "end a step";
        let mut transaction = self.queues.begin_write(action).await?;
        let ending = StepCompletion { chosen_route: route, ..StepCompletion::new(item, id, data) };
        if !self.complete_step_in_transaction(&mut transaction, ending, moving).await? {
            return Ok(false);
        }
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.wake_job_workers();
        Ok(true)
    }

    /// Completes the step of a work item; if that ends a nested instance, also completes the parent step. Returns true
    /// if the first step was open.
    pub(crate) async fn complete_step_in_transaction(
        &self,
        transaction: &mut WriteTransaction,
        mut ending: StepCompletion<'_>,
        moving: &StepActionContext<'_>,
    ) -> Result<bool> {
        let mut was_open = false;
        loop {
            let StepCompletion { item_id, workflow_id, data, chosen_route, payload } = ending;
            let Some(mut instance) = self.lock_instance(transaction, workflow_id).await? else {
                return Ok(was_open);
            };
            // Two callers may complete it at the same time; the second finds no open item.
            let Some(step) = self.remove_open_item(transaction, &instance, item_id).await? else {
                return Ok(was_open);
            };
            was_open = true;
            instance.data.extend(data);
            instance.payload = payload.unwrap_or(instance.payload);
            self.record_history(transaction, &instance, &step, "completed", moving).await?;
            self.leave_step(transaction, &mut instance, (&step, chosen_route), moving).await?;
            let (WorkflowState::Completed, Some(outer)) = (instance.state, instance.parent_item_id)
            else {
                return Ok(true);
            };
            let Some(workflow_id) = self.workflow_id_of_item(transaction, outer).await? else {
                return Ok(true);
            };
            let payload = Some(instance.payload);
            ending = StepCompletion {
                payload,
                ..StepCompletion::new(outer, workflow_id, instance.data)
            };
        }
    }

    /// Adds an entry to the history; transient instances have none.
    pub(crate) async fn record_history(
        &self,
        transaction: &mut WriteTransaction,
        instance: &LockedWorkflow,
        step: &str,
        event: &str,
        moving: &StepActionContext<'_>,
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
        .bind(event)
        .bind(moving.user)
        .bind(to_epoch_millis(moving.now))
        .bind(moving.comment)
        .execute(&mut **transaction)
        .await
        .map_err(database_error("write the history of a workflow"))?;
        Ok(())
    }
}

fn workflow_data_to_json(data: &Map<String, Json>) -> Result<String> {
    let text = Json::Object(data.clone()).to_string();
    if text.len() > MAX_WORKFLOW_DATA_BYTES {
        return Err(Error::Workflow(format!(
            "the data of the instance exceeds {MAX_WORKFLOW_DATA_BYTES} bytes"
        )));
    }
    Ok(text)
}
