//! Arguments of `tympan lab estimate`: calculations that send no request.

use clap::{Args, Subcommand};

use super::WorkingDayArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum LabEstimateCommand {
    Users(LabUsersArgs),
    UploadGoal(LabUploadGoalArgs),
}

/// Converts a number of users and the interval of their requests into arrivals per second and concurrent requests.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab estimate users --users 1000 --interval 2s --response-time 150ms"
)]
pub(crate) struct LabUsersArgs {
    /// Number of users.
    #[arg(long, value_name = "COUNT")]
    pub(crate) users: u64,
    /// Interval between requests of one user, such as `2s`.
    #[arg(long, alias = "every", value_name = "TIME")]
    pub(crate) interval: String,
    /// Response time of a request, such as `150ms`.
    #[arg(long, alias = "resp", value_name = "TIME", default_value = "0s")]
    pub(crate) response_time: String,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Converts a day's assets into megabytes per second, on average and at the peak.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab estimate upload-goal --assets 500 --size 12 --renditions 4 --window 8h --skew 80/20"
)]
pub(crate) struct LabUploadGoalArgs {
    /// Assets per window; `500/day` is read as 500.
    #[arg(long, value_name = "COUNT")]
    pub(crate) assets: String,
    /// Size of an original in megabytes.
    #[arg(long, value_name = "MEGABYTES")]
    pub(crate) size: String,
    #[command(flatten)]
    pub(crate) spread: WorkingDayArgs,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
