//! Actions of people on instances other than completing steps: terminate, suspend, restart a failed step, step back.

use std::time::SystemTime;

use sqlx::Row;

use crate::queue::sql::{WriteTransaction, database_error, from_epoch_millis, to_epoch_millis};
use crate::workflow::engine::{LockedWorkflow, StepActionContext, WorkflowEngine, WorkflowId};
use crate::workflow::step::step_job_key;
use crate::workflow::workflow_state::WorkflowState;
use crate::{Error, JobState, Result};

/// A step that was given up and needs attention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedWorkflowStep {
    /// The number of the work item.
    pub item_id: i64,
    /// Its instance.
    pub workflow_id: WorkflowId,
    /// The step's title.
    pub title: String,
    /// The payload of the instance.
    pub payload: String,
    /// Its job.
    pub job_id: i64,
    /// The reason of the failure.
    pub reason: String,
    /// Time at which it was given up.
    pub given_up_at: Option<SystemTime>,
}

impl WorkflowEngine {
    /// Terminates an instance, and the nested instances of its steps.
    ///
    /// # Errors
    /// [`Error::Workflow`] if it has ended already or does not exist; errors of the database.
    pub async fn terminate(
        &self,
        id: WorkflowId,
        user: &str,
        comment: Option<&str>,
        now: SystemTime,
    ) -> Result<()> {
        let action = "end a workflow";
        let mut transaction = self.queues.begin_write(action).await?;
        let mut has_ended = false;
        for instance_id in self.with_nested_instances(&mut transaction, id).await? {
            let instance = self.lock_instance(&mut transaction, instance_id).await?;
            let can_end =
                |it: &LockedWorkflow| it.state.is_open() || it.state == WorkflowState::Stale;
            let Some(instance) = instance.filter(can_end) else { continue };
            has_ended |= instance_id == id;
            let items = sqlx::query("SELECT id FROM work_item WHERE workflow = $1")
                .bind(instance_id)
                .fetch_all(&mut *transaction)
                .await
                .map_err(database_error(action))?;
            for item in &items {
                let item: i64 = item.try_get(0).map_err(database_error(action))?;
                self.remove_open_item(&mut transaction, &instance, item).await?;
            }
            sqlx::query("UPDATE workflow SET state = 'ABORTED', ended = $1 WHERE id = $2")
                .bind(to_epoch_millis(now))
                .bind(instance_id)
                .execute(&mut *transaction)
                .await
                .map_err(database_error(action))?;
            let moving = StepActionContext { user, comment, now };
            self.record_history(&mut transaction, &instance, "", "aborted", &moving).await?;
        }
        if !has_ended {
            return Err(Error::Workflow(format!("no workflow instance {id} is running")));
        }
        transaction.commit().await.map_err(database_error(action))
    }

    /// Returns an instance and the nested instances of its steps, the innermost first, which is the order in which the
    /// end of a step locks them.
    async fn with_nested_instances(
        &self,
        transaction: &mut WriteTransaction,
        id: WorkflowId,
    ) -> Result<Vec<WorkflowId>> {
        let action = "read the nested workflows";
        let mut all = vec![id];
        let mut at = 0;
        while let Some(outer) = all.get(at).copied() {
            at += 1;
            let rows = sqlx::query(
                "SELECT id FROM workflow WHERE parent_item IN (SELECT id FROM work_item WHERE workflow = $1)",
            )
            .bind(outer)
            .fetch_all(&mut **transaction)
            .await
            .map_err(database_error(action))?;
            for row in &rows {
                all.push(row.try_get(0).map_err(database_error(action))?);
            }
        }
        all.reverse();
        Ok(all)
    }

    /// Suspends or resumes an instance and its nested instances. Returns true if that changed anything.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_workflow_state(
        &self,
        id: WorkflowId,
        to: WorkflowState,
        user: &str,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "suspend a workflow";
        let (from, event) = match to {
            WorkflowState::Suspended => (WorkflowState::Running, "suspended"),
            _ => (WorkflowState::Suspended, "resumed"),
        };
        let mut transaction = self.queues.begin_write(action).await?;
        let mut is_changed = false;
        for instance_id in self.with_nested_instances(&mut transaction, id).await? {
            let instance = self.lock_instance(&mut transaction, instance_id).await?;
            let Some(instance) = instance.filter(|instance| instance.state == from) else {
                continue;
            };
            is_changed |= instance_id == id;
            sqlx::query("UPDATE workflow SET state = $1 WHERE id = $2")
                .bind(to.name())
                .bind(instance_id)
                .execute(&mut *transaction)
                .await
                .map_err(database_error(action))?;
            let moving = StepActionContext { user, comment: None, now };
            self.record_history(&mut transaction, &instance, "", event, &moving).await?;
        }
        if is_changed {
            transaction.commit().await.map_err(database_error(action))?;
            self.queues.wake_job_workers();
        }
        Ok(is_changed)
    }

    /// Lists steps that were given up, oldest first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_failed_steps(&self, limit: u32) -> Result<Vec<FailedWorkflowStep>> {
        let action = "list failed steps";
        let rows = sqlx::query(
            "SELECT work_item.id, work_item.workflow, work_item.title, workflow.payload, job.id, job.last_error, job.ended \
             FROM work_item JOIN workflow ON workflow.id = work_item.workflow JOIN job ON job.id = work_item.job \
             WHERE job.state IN ('GIVEN_UP', 'ERROR') AND workflow.state IN ('RUNNING', 'SUSPENDED') \
             ORDER BY work_item.id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.queues.pool)
        .await
        .map_err(database_error(action))?;
        let failed = |row: &sqlx::any::AnyRow| -> Result<FailedWorkflowStep> {
            let number = |at: usize| row.try_get::<i64, _>(at).map_err(database_error(action));
            let text = |at: usize| row.try_get::<String, _>(at).map_err(database_error(action));
            let reason: Option<String> = row.try_get(5).map_err(database_error(action))?;
            let ended: Option<i64> = row.try_get(6).map_err(database_error(action))?;
            Ok(FailedWorkflowStep {
                item_id: number(0)?,
                workflow_id: number(1)?,
                title: text(2)?,
                payload: text(3)?,
                job_id: number(4)?,
                reason: reason.unwrap_or_default(),
                given_up_at: ended.map(from_epoch_millis),
            })
        };
        rows.iter().map(failed).collect()
    }

    /// Executes a failed step again, with all its attempts.
    ///
    /// # Errors
    /// [`Error::Workflow`] if the step is not open, is a participant's or is being executed; errors of the database.
    pub async fn restart_failed_step(&self, item: i64, user: &str, now: SystemTime) -> Result<()> {
        let action = "restart a step";
        let refused = |why: &str| Error::Workflow(format!("the step {item} {why}"));
        let mut transaction = self.queues.begin_write(action).await?;
        let id = self.workflow_id_of_item(&mut transaction, item).await?;
        let id = id.ok_or_else(|| refused("is not open"))?;
        let instance = self.lock_instance(&mut transaction, id).await?;
        let instance = instance.ok_or_else(|| refused("is not open"))?;
        let row = sqlx::query(
            "SELECT work_item.node, work_item.kind, job.id, job.state FROM work_item \
             LEFT JOIN job ON job.id = work_item.job WHERE work_item.id = $1",
        )
        .bind(item)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(database_error(action))?;
        let row = row.ok_or_else(|| refused("is not open"))?;
        let name: String = row.try_get(0).map_err(database_error(action))?;
        let kind: String = row.try_get(1).map_err(database_error(action))?;
        let job: Option<i64> = row.try_get(2).map_err(database_error(action))?;
        let state: Option<String> = row.try_get(3).map_err(database_error(action))?;
        if kind == "PARTICIPANT" {
            return Err(refused("waits for a person"));
        }
        let step = instance.model.steps.get(&name).ok_or_else(|| refused("is not open"))?;
        match (job, state.as_deref().and_then(JobState::from_name)) {
            (Some(_), Some(state)) if state.is_open() => {
                return Err(refused("is being executed"));
            }
            (Some(job), Some(_)) => {
                sqlx::query(
                    "UPDATE job SET state = 'QUEUED', run_at = $1, attempt = 0, ended = NULL, cancel = 0, \
                     worker = NULL, lease_until = NULL, job_key = $2 WHERE id = $3",
                )
                .bind(to_epoch_millis(now))
                .bind(step_job_key(item))
                .bind(job)
                .execute(&mut *transaction)
                .await
                .map_err(database_error(action))?;
            }
            // The job was removed by a person or pruned.
            _ => self.queue_step(&mut transaction, &instance, item, step, now).await?,
        }
        let moving = StepActionContext { user, comment: None, now };
        self.record_history(&mut transaction, &instance, &name, "restarted", &moving).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.wake_job_workers();
        Ok(())
    }

    /// Lists the completed steps to which an open step can go back, newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn back_targets(&self, item: i64) -> Result<Vec<String>> {
        let action = "list the steps that a step can go back to";
        let mut transaction = self.queues.begin_write(action).await?;
        let Some(id) = self.workflow_id_of_item(&mut transaction, item).await? else {
            return Ok(Vec::new());
        };
        let Some(instance) = self.lock_instance(&mut transaction, id).await? else {
            return Ok(Vec::new());
        };
        let row = sqlx::query("SELECT node FROM work_item WHERE id = $1")
            .bind(item)
            .fetch_one(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        let at: String = row.try_get(0).map_err(database_error(action))?;
        let rows = sqlx::query(
            "SELECT node FROM workflow_history WHERE workflow = $1 AND action = 'completed' ORDER BY id DESC",
        )
        .bind(id)
        .fetch_all(&mut *transaction)
        .await
        .map_err(database_error(action))?;
        let depths = instance.model.split_depths();
        let mut targets: Vec<String> = Vec::new();
        for row in &rows {
            let step: String = row.try_get(0).map_err(database_error(action))?;
            let is_near = depths.contains_key(&*step) && depths.get(&*step) == depths.get(&*at);
            if is_near && step != at && !targets.contains(&step) {
                targets.push(step);
            }
        }
        Ok(targets)
    }

    /// Like [`WorkflowEngine::back_targets`], for a participant's step assigned to one of `names`, the user and their
    /// groups. If `names` is empty, the assignee is not checked.
    ///
    /// # Errors
    /// [`Error::Workflow`] if the step is not assigned to them or not open; errors of the database.
    pub async fn back_targets_for(&self, item: i64, names: &[String]) -> Result<Vec<String>> {
        self.require_assigned_item(item, names).await?;
        self.back_targets(item).await
    }

    /// Sends a participant's step back to a completed step: the one named by `to`, or the last possible one. `names`
    /// are the user and their groups; if empty, the assignee is not checked.
    ///
    /// # Errors
    /// [`Error::Workflow`] if the step is not assigned to them, is not open, or cannot go back there; errors of the
    /// database.
    pub async fn step_back(
        &self,
        item: i64,
        to: Option<&str>,
        names: &[String],
        action: &StepActionContext<'_>,
    ) -> Result<()> {
        let id = self.require_assigned_item(item, names).await?;
        let routes = self.back_targets(item).await?;
        let target = match to {
            Some(to) => routes.iter().find(|route| *route == to),
            None => routes.first(),
        };
        let nowhere = || {
            let destination = to.map_or_else(String::new, |to| format!(" to `{to}`"));
            Error::Workflow(format!(
                "the step {item} cannot go back{destination}; it can go back to [{}]",
                routes.join(", ")
            ))
        };
        let target = target.ok_or_else(nowhere)?;
        if self.jump_to_step(item, id, target, "stepped back", action).await? {
            Ok(())
        } else {
            Err(Error::Workflow(format!("the step {item} is not open")))
        }
    }

    /// Reassigns a late step.
    pub(crate) async fn escalate_step(
        &self,
        item: i64,
        id: WorkflowId,
        to: &str,
        moving: &StepActionContext<'_>,
    ) -> Result<()> {
        let action = "escalate a step";
        let mut transaction = self.queues.begin_write(action).await?;
        let Some(instance) = self.lock_instance(&mut transaction, id).await? else { return Ok(()) };
        let row = sqlx::query(
            "UPDATE work_item SET assignee = $1 WHERE id = $2 AND kind = 'PARTICIPANT' RETURNING node",
        )
        .bind(to)
        .bind(item)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(()) };
        let step: String = row.try_get(0).map_err(database_error(action))?;
        self.record_history(&mut transaction, &instance, &step, "escalated", moving).await?;
        transaction.commit().await.map_err(database_error(action))
    }
}
