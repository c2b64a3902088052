//! The sections `[jobs]` and `[workflows]` of `tympan.toml`.

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_notation::DurationText;

use crate::worker::job_worker::JobWorkerOptions;
use crate::workflow::WorkflowModelRoots;

/// Job processing.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobsSection {
    /// The maximum number of concurrent jobs of all queues together; default 64. Lower it if memory is short.
    pub threads: Option<usize>,
    /// The time that running jobs get to complete when the instance stops; default 20 s. Raise it if jobs are expensive
    /// to restart.
    pub drain: Option<DurationText>,
    /// The time after which other processes on the same database take over the jobs of a process that does not respond;
    /// default 60 s. Clocks must differ by less than that. Lower it if jobs must not wait after a crash.
    pub lease: Option<DurationText>,
    /// Run modes in addition to the role, which select configuration folders such as `config.author.prod`; default
    /// none.
    pub run_modes: Vec<String>,
}

impl JobsSection {
    /// Returns the options of the worker of a process with this role and name.
    pub fn worker_options(&self, role: &str, name: String) -> JobWorkerOptions {
        let mut options = JobWorkerOptions::new(role, name);
        if let Some(threads) = self.threads {
            options.threads = threads;
        }
        if let Some(drain) = self.drain {
            options.drain_timeout = drain.0;
        }
        if let Some(lease) = self.lease {
            options.lease = lease.0;
        }
        options
    }
}

/// The location of workflow models.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkflowsSection {
    /// The paths below which workflow models are read; default `["/conf/global/settings/workflow/models",
    /// "/var/workflow/models", "/etc/workflow/models"]`. Users who may write there decide what is done in the names of
    /// others.
    pub models: Option<Vec<String>>,
}

impl WorkflowsSection {
    /// Returns the paths of workflow models.
    ///
    /// # Errors
    /// With the path that cannot contain any.
    pub fn model_roots(&self) -> Result<WorkflowModelRoots, String> {
        let Some(models) = &self.models else { return Ok(WorkflowModelRoots::default()) };
        WorkflowModelRoots::new(models)
            .map_err(|error| format!("tympan.toml: `models` of `[workflows]`: {error}"))
    }
}
