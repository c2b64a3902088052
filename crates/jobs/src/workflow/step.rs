//! Open steps: their start, the jobs that execute them, jumps, and nested workflows.

use std::time::SystemTime;

use serde_json::json;
use sqlx::Row;

use crate::queue::queue_config::{EXTERNAL_TOPIC, TRANSIENT_TOPIC, WORKFLOW_TOPIC};
use crate::queue::sql::{WriteTransaction, database_error, to_epoch_millis};
use crate::workflow::engine::{
    LockedWorkflow, ParentStep, StepActionContext, StepCompletion, WorkflowEngine, WorkflowId,
    WorkflowStart,
};
use crate::workflow::model::WorkflowModel;
use crate::workflow::model_step::{WorkflowStep, WorkflowStepKind};
use crate::workflow::step_timeout_job::timeout_job_identity;
use crate::workflow::workflow_state::WorkflowState;
use crate::{Error, NewJob, Result};

/// Maximum nesting depth of workflows.
const MAX_NESTING_DEPTH: u64 = 10;

impl WorkflowEngine {
    /// Stores a step that begins, with its job and its timeout.
    pub(crate) async fn begin_step(
        &self,
        transaction: &mut WriteTransaction,
        instance: &LockedWorkflow,
        name: &str,
        now: SystemTime,
    ) -> Result<()> {
        let action = "begin a step";
        let missing = || Error::Workflow(format!("there is no step `{name}`"));
        let step = instance.model.steps.get(name).ok_or_else(missing)?;
        let assignee = step
            .text_argument("PARTICIPANT")
            .filter(|_| step.kind == WorkflowStepKind::Participant);
        let assignee = assignee.map(|participant| match participant {
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
        .bind(to_epoch_millis(now))
        .fetch_one(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        let item: i64 = row.try_get(0).map_err(database_error(action))?;
        if step.kind != WorkflowStepKind::Participant {
            self.queue_step(transaction, instance, item, step, now).await?;
        }
        self.add_timeout_job(transaction, instance, item, step, now).await
    }

    /// Stores the job that executes a step.
    pub(crate) async fn queue_step(
        &self,
        transaction: &mut WriteTransaction,
        instance: &LockedWorkflow,
        item: i64,
        step: &WorkflowStep,
        now: SystemTime,
    ) -> Result<()> {
        let base = match step.kind {
            WorkflowStepKind::External => EXTERNAL_TOPIC,
            _ if instance.model.is_transient => TRANSIENT_TOPIC,
            _ => WORKFLOW_TOPIC,
        };
        let properties = json!({
            "item": item, "workflow": instance.id, "model": instance.model.path,
            "payload": instance.payload, "step": step.title,
        });
        let job = NewJob::new(format!("{base}/{}", instance.model.topic_suffix), properties)
            .with_key(step_job_key(item))
            .with_user(instance.initiator.as_str());
        let ids = self.queues.insert_jobs(transaction, &[(job, now)], None).await?;
        sqlx::query("UPDATE work_item SET job = $1 WHERE id = $2")
            .bind(ids.first().map(|id| id.0))
            .bind(item)
            .execute(&mut **transaction)
            .await
            .map_err(database_error("begin a step"))?;
        Ok(())
    }

    /// Removes an open step, with its timeout, and returns its name; `None` if it does not exist.
    pub(crate) async fn remove_open_item(
        &self,
        transaction: &mut WriteTransaction,
        instance: &LockedWorkflow,
        item: i64,
    ) -> Result<Option<String>> {
        let action = "end a step";
        let row =
            sqlx::query("DELETE FROM work_item WHERE id = $1 AND workflow = $2 RETURNING node")
                .bind(item)
                .bind(instance.id)
                .fetch_optional(&mut **transaction)
                .await
                .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(None) };
        let name: String = row.try_get(0).map_err(database_error(action))?;
        let step = instance.model.steps.get(&name);
        if step.is_some_and(|step| step.arguments.keys().any(|key| key.starts_with("timeout"))) {
            let (topic, key) = timeout_job_identity(instance, item);
            sqlx::query("DELETE FROM job WHERE topic = $1 AND job_key = $2 AND state <> 'ACTIVE'")
                .bind(topic)
                .bind(key)
                .execute(&mut **transaction)
                .await
                .map_err(database_error(action))?;
        }
        Ok(Some(name))
    }

    /// Returns the instance of an open step.
    pub(crate) async fn workflow_id_of_item(
        &self,
        transaction: &mut WriteTransaction,
        item: i64,
    ) -> Result<Option<WorkflowId>> {
        let action = "read a step";
        let row = sqlx::query("SELECT workflow FROM work_item WHERE id = $1")
            .bind(item)
            .fetch_optional(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        row.map(|row| row.try_get(0)).transpose().map_err(database_error(action))
    }

    /// Leaves an open step for another one within the same splits, whether or not a route leads there. Returns true if
    /// the step was open.
    ///
    /// # Errors
    /// [`Error::Workflow`] if there is no such step or it is within other splits; errors of the database.
    pub(crate) async fn jump_to_step(
        &self,
        item: i64,
        id: WorkflowId,
        target: &str,
        event: &str,
        moving: &StepActionContext<'_>,
    ) -> Result<bool> {
        let action = "leave a step";
        let mut transaction = self.queues.begin_write(action).await?;
        let Some(mut instance) = self.lock_instance(&mut transaction, id).await? else {
            return Ok(false);
        };
        let Some(step) = self.remove_open_item(&mut transaction, &instance, item).await? else {
            return Ok(false);
        };
        let depths = instance.model.split_depths();
        let (from, to) = (depths.get(&*step), depths.get(target));
        if to.is_none() || from != to {
            return Err(Error::Workflow(format!(
                "no transition leads from the step `{step}` to `{target}`: it does not exist, or is in \
                 another split"
            )));
        }
        self.record_history(&mut transaction, &instance, &step, event, moving).await?;
        let new_steps =
            instance.flow.enter_steps(&instance.model, vec![target.to_owned()], &instance.data)?;
        self.enter_steps(&mut transaction, &mut instance, (&step, &new_steps), moving).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.wake_job_workers();
        Ok(true)
    }

    /// Sets the assignee of an open step.
    pub(crate) async fn assign_step(&self, item: i64, to: &str) -> Result<()> {
        let action = "assign a step";
        let mut transaction = self.queues.begin_write(action).await?;
        sqlx::query("UPDATE work_item SET assignee = $1, kind = 'PARTICIPANT' WHERE id = $2")
            .bind(to)
            .bind(item)
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        transaction.commit().await.map_err(database_error(action))
    }

    /// Starts the nested workflow of a container, unless it is in progress. The step ends with it.
    pub(crate) async fn begin_nested_workflow(
        &self,
        item: i64,
        id: WorkflowId,
        model: WorkflowModel,
        now: SystemTime,
    ) -> Result<()> {
        let action = "start a nested workflow";
        let mut transaction = self.queues.begin_write(action).await?;
        let Some(outer) = self.lock_instance(&mut transaction, id).await? else { return Ok(()) };
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM workflow WHERE parent_item = $1 AND state IN ('RUNNING', 'SUSPENDED')) \
             FROM work_item WHERE id = $2",
        )
        .bind(item)
        .bind(item)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(database_error(action))?;
        let running = row.map(|row| row.try_get::<i64, _>(0)).transpose();
        if running.map_err(database_error(action))? != Some(0) {
            return Ok(());
        }
        if outer.flow.nesting_depth >= MAX_NESTING_DEPTH {
            return Err(Error::Workflow(format!(
                "workflows are nested more than {MAX_NESTING_DEPTH} deep"
            )));
        }
        let (payload, initiator) = (outer.payload.clone(), outer.initiator.clone());
        let start = WorkflowStart { model, payload, initiator, data: outer.data.clone() };
        let part_of = ParentStep { item_id: item, flow: &outer.flow };
        let inner = self.start_in_transaction(&mut transaction, &start, Some(part_of), now).await?;
        if inner.state == WorkflowState::Completed {
            let moving = StepActionContext { user: &start.initiator, comment: None, now };
            let ending = StepCompletion::new(item, id, inner.data);
            self.complete_step_in_transaction(&mut transaction, ending, &moving).await?;
        }
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.wake_job_workers();
        Ok(())
    }
}

/// Returns the key of the job that executes a step.
pub(crate) fn step_job_key(item: i64) -> String {
    format!("item {item}")
}
