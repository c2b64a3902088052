//! Schedules: jobs that are added again and again, or at a time.

use std::time::SystemTime;

use crate::Result;
use crate::sql::Transaction;
use crate::worker::Inner;

impl Inner {
    /// Adds the jobs of schedules whose time has come.
    pub(crate) async fn run_schedules(
        &self,
        _transaction: &mut Transaction,
        _now: SystemTime,
    ) -> Result<()> {
        Ok(())
    }
}
