//! Checks that a site still responds as before: an optimization must not change what visitors get.
//!
//! In: requests, or a plan, and two sites. Out: a [`SiteComparisonResult`] with every difference in status, headers and
//! bodies.
//!
//! Invariants
//! * The same request goes to both sites, once each. Before a difference is reported as a change, both sites are
//!   queried again, and differences between two responses of one site are reported as unstable, not as changed.
//! * Requests that write are not judged by repetition, because the second response reflects another state.
//! * Only the parts that the [`ComparisonRules`] name are ignored, equally for both sites.
//!
//! Not here: load, and performance comparison ([`crate::comparison::metric_comparison`]).

mod comparison_rule;
mod difference;
mod plan_comparison;
mod site_comparison;

pub use comparison_rule::ComparisonRules;
pub use difference::{DifferenceAspect, ResponseDifference};
pub use plan_comparison::compare_plan_runs;
pub use site_comparison::{
    ListedRequest, SiteComparison, SiteComparisonResult, parse_request_list,
};
