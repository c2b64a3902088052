//! Steps that are open: beginning them, the jobs that carry them out, jumps, and workflows within workflows.

use std::time::SystemTime;

use serde_json::json;
use sqlx::Row;

use crate::config::{EXTERNAL_TOPIC, TRANSIENT_TOPIC, WORKFLOW_TOPIC};
use crate::sql::{Transaction, database, millis};
use crate::workflow::engine::{Ending, Locked, Move, PartOf, StartWorkflow, WorkflowId, Workflows};
use crate::workflow::model::{Model, Step, StepKind};
use crate::workflow::query::WorkflowState;
use crate::workflow::timeout::watch_of;
use crate::{Error, NewJob, Result};

/// How many workflows may be within each other.
const MAX_DEPTH: u64 = 10;

impl Workflows {
    /// Stores a step that begins, with its job and its time-out.
    pub(crate) async fn begin_step(
        &self,
        transaction: &mut Transaction,
        instance: &Locked,
        name: &str,
        now: SystemTime,
    ) -> Result<()> {
        let action = "begin a step";
        let missing = || Error::Workflow(format!("there is no step `{name}`"));
        let step = instance.model.steps.get(name).ok_or_else(missing)?;
        let assignee = step.text("PARTICIPANT").filter(|_| step.kind == StepKind::Participant);
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
        .bind(millis(now))
        .fetch_one(&mut **transaction)
        .await
        .map_err(database(action))?;
        let item: i64 = row.try_get(0).map_err(database(action))?;
        if step.kind != StepKind::Participant {
            self.queue_step(transaction, instance, (item, step), now).await?;
        }
        self.watch(transaction, instance, (item, step), now).await
    }

    /// Stores the job that carries a step out.
    pub(crate) async fn queue_step(
        &self,
        transaction: &mut Transaction,
        instance: &Locked,
        (item, step): (i64, &Step),
        now: SystemTime,
    ) -> Result<()> {
        let base = match step.kind {
            StepKind::External => EXTERNAL_TOPIC,
            _ if instance.model.is_transient => TRANSIENT_TOPIC,
            _ => WORKFLOW_TOPIC,
        };
        let properties = json!({
            "item": item, "workflow": instance.id, "model": instance.model.path,
            "payload": instance.payload, "step": step.title,
        });
        let job = NewJob::new(format!("{base}/{}", instance.model.suffix), properties)
            .key(key_of(item))
            .user(instance.initiator.as_str());
        let ids = self.queues.insert(transaction, &[(job, now)], None).await?;
        sqlx::query("UPDATE work_item SET job = $1 WHERE id = $2")
            .bind(ids.first().map(|id| id.0))
            .bind(item)
            .execute(&mut **transaction)
            .await
            .map_err(database("begin a step"))?;
        Ok(())
    }

    /// Takes an open step away, with its time-out, and returns its name; nothing if it is gone.
    pub(crate) async fn take_item(
        &self,
        transaction: &mut Transaction,
        instance: &Locked,
        item: i64,
    ) -> Result<Option<String>> {
        let action = "end a step";
        let row =
            sqlx::query("DELETE FROM work_item WHERE id = $1 AND workflow = $2 RETURNING node")
                .bind(item)
                .bind(instance.id)
                .fetch_optional(&mut **transaction)
                .await
                .map_err(database(action))?;
        let Some(row) = row else { return Ok(None) };
        let name: String = row.try_get(0).map_err(database(action))?;
        let step = instance.model.steps.get(&name);
        if step.is_some_and(|step| step.data.keys().any(|key| key.starts_with("timeout"))) {
            let (topic, key) = watch_of(instance, item);
            sqlx::query("DELETE FROM job WHERE topic = $1 AND job_key = $2 AND state <> 'ACTIVE'")
                .bind(topic)
                .bind(key)
                .execute(&mut **transaction)
                .await
                .map_err(database(action))?;
        }
        Ok(Some(name))
    }

    /// Finds the instance of an open step.
    pub(crate) async fn workflow_of_item(
        &self,
        transaction: &mut Transaction,
        item: i64,
    ) -> Result<Option<WorkflowId>> {
        let action = "read a step";
        let row = sqlx::query("SELECT workflow FROM work_item WHERE id = $1")
            .bind(item)
            .fetch_optional(&mut **transaction)
            .await
            .map_err(database(action))?;
        row.map(|row| row.try_get(0)).transpose().map_err(database(action))
    }

    /// Leaves an open step for another one within the same splits, whether or not a way leads there. Tells whether it
    /// was open.
    ///
    /// # Errors
    /// [`Error::Workflow`] if there is no such step or it lies in other splits; the database's.
    pub(crate) async fn jump(
        &self,
        (item, id): (i64, WorkflowId),
        target: &str,
        word: &str,
        moving: &Move<'_>,
    ) -> Result<bool> {
        let action = "leave a step";
        let mut transaction = self.queues.begin(action).await?;
        let Some(mut instance) = self.lock(&mut transaction, id).await? else { return Ok(false) };
        let Some(step) = self.take_item(&mut transaction, &instance, item).await? else {
            return Ok(false);
        };
        let depths = instance.model.depths();
        let (from, to) = (depths.get(&*step), depths.get(target));
        if to.is_none() || from != to {
            return Err(Error::Workflow(format!(
                "no way leads from the step `{step}` to `{target}`: it is not there, or in another split"
            )));
        }
        self.record(&mut transaction, &instance, (&step, word), moving).await?;
        let begun =
            instance.flow.enter(&instance.model, vec![target.to_owned()], &instance.data)?;
        self.arrive(&mut transaction, &mut instance, (&step, &begun), moving).await?;
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(true)
    }

    /// Names who is to do a step that is open.
    pub(crate) async fn assign(&self, item: i64, to: &str) -> Result<()> {
        let action = "name who does a step";
        let mut transaction = self.queues.begin(action).await?;
        sqlx::query("UPDATE work_item SET assignee = $1, kind = 'PARTICIPANT' WHERE id = $2")
            .bind(to)
            .bind(item)
            .execute(&mut *transaction)
            .await
            .map_err(database(action))?;
        transaction.commit().await.map_err(database(action))
    }

    /// Starts the workflow that a container goes through, unless it is on its way: the step ends with it.
    pub(crate) async fn begin_part(
        &self,
        (item, id): (i64, WorkflowId),
        model: Model,
        now: SystemTime,
    ) -> Result<()> {
        let action = "begin a part of a workflow";
        let mut transaction = self.queues.begin(action).await?;
        let Some(outer) = self.lock(&mut transaction, id).await? else { return Ok(()) };
        let row = sqlx::query(
            "SELECT (SELECT COUNT(*) FROM workflow WHERE parent_item = $1 AND state IN ('RUNNING', 'SUSPENDED')) \
             FROM work_item WHERE id = $2",
        )
        .bind(item)
        .bind(item)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(database(action))?;
        let running = row.map(|row| row.try_get::<i64, _>(0)).transpose();
        if running.map_err(database(action))? != Some(0) {
            return Ok(());
        }
        if outer.flow.depth >= MAX_DEPTH {
            return Err(Error::Workflow(format!(
                "more than {MAX_DEPTH} workflows are within each other"
            )));
        }
        let (payload, initiator) = (outer.payload.clone(), outer.initiator.clone());
        let start = StartWorkflow { model, payload, initiator, data: outer.data.clone() };
        let part_of = PartOf { item, flow: &outer.flow };
        let inner = self.start_in(&mut transaction, &start, Some(part_of), now).await?;
        if inner.state == WorkflowState::Completed {
            let moving = Move { user: &start.initiator, comment: None, now };
            let ending = Ending::new(item, id, inner.data);
            self.end_item_in(&mut transaction, ending, &moving).await?;
        }
        transaction.commit().await.map_err(database(action))?;
        self.queues.ring();
        Ok(())
    }
}

/// Returns the key of the job that carries a step out.
pub(crate) fn key_of(item: i64) -> String {
    format!("item {item}")
}
