//! Compares healthy traffic during a disturbance with healthy traffic alone.

use std::time::Duration;

use tympan_lab_engine::goal::{GoalResult, format_response_time};

use super::PhaseMeasurement;

/// Smaller differences of healthy times are noise.
const MIN_TIME_DIFFERENCE: Duration = Duration::from_millis(5);

/// Returns the degradation of the healthy traffic: name, before, after, and whether it is within the limit.
pub(super) fn judge_healthy_traffic(
    max_slowdown: f64,
    alone: &PhaseMeasurement,
    beside: &PhaseMeasurement,
) -> Vec<GoalResult> {
    let label = format!("healthy {}", beside.phase.name.trim_start_matches("healthy "));
    let time = |name: &str, share: f64| {
        let (before, after) = (
            alone.total_stats.response_times.quantile(share),
            beside.total_stats.response_times.quantile(share),
        );
        let most = before.mul_f64(1.0 + max_slowdown).max(before + MIN_TIME_DIFFERENCE);
        GoalResult {
            label: label.clone(),
            requirement: format!("{name} at most {}", format_response_time(most)),
            measured: format!(
                "{} (alone {})",
                format_response_time(after),
                format_response_time(before)
            ),
            is_met: after <= most,
        }
    };
    let rate = |measured: &PhaseMeasurement| measured.achieved_rate;
    let errors = (alone.total_stats.error_rate(), beside.total_stats.error_rate());
    vec![
        time("p50", 0.5),
        time("p95", 0.95),
        GoalResult {
            label: label.clone(),
            requirement: format!("at least {:.1}/s", rate(alone) * (1.0 - max_slowdown)),
            measured: format!("{:.1}/s (alone {:.1}/s)", rate(beside), rate(alone)),
            is_met: rate(beside) >= rate(alone) * (1.0 - max_slowdown),
        },
        GoalResult {
            label: label.clone(),
            requirement: "no more failures than alone, or 0.1 %".to_owned(),
            measured: format!("{:.2} % (alone {:.2} %)", errors.1 * 100.0, errors.0 * 100.0),
            is_met: errors.1 <= (errors.0 * (1.0 + max_slowdown)).max(0.001),
        },
    ]
}
