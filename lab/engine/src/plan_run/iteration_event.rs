//! The events at the start of a controller's iteration: rows of data sets, counters, random variables, parameters of
//! users.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use tympan_lab_plan::model::IterationEvent;
use tympan_lab_plan::{PlanNodeId, RowFetch, TextTemplate};

use super::thread_context::ThreadContext;

/// The counters of one thread.
#[derive(Debug, Default)]
pub(super) struct ThreadCounters {
    /// The value of each counter that the thread does not share, and the iteration in which it was set.
    values: HashMap<usize, (i64, u64)>,
}

impl ThreadCounters {
    /// Runs the events at the start of a controller's iteration.
    pub(super) fn fire_iteration_events(&mut self, node: PlanNodeId, thread: &mut ThreadContext) {
        let model = Arc::clone(&thread.model);
        let Some(node) = model.nodes.get(node) else { return };
        for event in &node.events {
            match *event {
                IterationEvent::DataSet(index) => {
                    let Some(data) = model.data_sets.get(index) else { continue };
                    match data.fetch_row(&mut thread.scope) {
                        RowFetch::Row => {}
                        RowFetch::Exhausted => thread.is_ending = true,
                        RowFetch::Failed(fault) => {
                            thread.record_run_fault(&fault);
                            thread.is_ending = true;
                        }
                    }
                }
                IterationEvent::Counter(index) => self.advance_counter(thread, index),
                IterationEvent::RandomVariable(index) => {
                    let Some(variable) = model.random_variables.get(index) else { continue };
                    let low = variable.low.evaluate(&mut thread.scope).trim().parse().unwrap_or(0);
                    let high =
                        variable.high.evaluate(&mut thread.scope).trim().parse().unwrap_or(low);
                    let value = thread.scope.random_between(low, high);
                    let format = variable.format.evaluate(&mut thread.scope).into_owned();
                    let name = variable.name.evaluate(&mut thread.scope).into_owned();
                    thread.scope.set_variable(&name, &format_decimal(&format, value));
                }
                IterationEvent::UserParameters(index) => apply_user_parameters(thread, index),
            }
        }
    }

    fn advance_counter(&mut self, thread: &mut ThreadContext, index: usize) {
        let model = Arc::clone(&thread.model);
        let Some(counter) = model.counters.get(index) else { return };
        let mut number = |template: &TextTemplate| -> Option<i64> {
            template.evaluate(&mut thread.scope).trim().parse().ok()
        };
        let start = number(&counter.start).unwrap_or(0);
        let step = number(&counter.step).unwrap_or(1);
        let end = number(&counter.end).unwrap_or(i64::MAX);
        let advance = |previous: Option<i64>| match previous {
            None => start,
            Some(value) if value.saturating_add(step) > end => start,
            Some(value) => value.saturating_add(step),
        };
        let value = if counter.per_user {
            let resets = counter.resets && thread.scope.iteration != self.counter_iteration(index);
            let previous =
                if resets { None } else { self.values.get(&index).map(|(value, _)| *value) };
            let value = advance(previous);
            self.values.insert(index, (value, thread.scope.iteration));
            value
        } else {
            let mut shared = counter.shared_value.lock().unwrap_or_else(PoisonError::into_inner);
            // Each process takes every `count`th value of a shared counter.
            let portion = thread.scope.run_context.portion;
            let turns = if shared.is_none() { portion.index + 1 } else { portion.count };
            let mut value = start;
            for _ in 0..turns {
                value = advance(*shared);
                *shared = Some(value);
            }
            value
        };
        let format = counter.format.evaluate(&mut thread.scope).into_owned();
        let name = counter.name.evaluate(&mut thread.scope).into_owned();
        thread.scope.set_variable(&name, &format_decimal(&format, value));
    }

    fn counter_iteration(&self, index: usize) -> u64 {
        self.values.get(&index).map_or(0, |(_, iteration)| *iteration)
    }
}

/// Sets the variables of a user parameters element to the values of the thread's number.
pub(super) fn apply_user_parameters(thread: &mut ThreadContext, index: usize) {
    let model = Arc::clone(&thread.model);
    let Some(parameters) = model.user_parameters.get(index) else { return };
    if parameters.user_values.is_empty() {
        return;
    }
    let user = (thread.scope.thread_number - 1) % parameters.user_values.len();
    let Some(values) = parameters.user_values.get(user) else { return };
    for (name, value) in parameters.names.iter().zip(values) {
        let name = name.evaluate(&mut thread.scope).into_owned();
        let value = value.evaluate(&mut thread.scope).into_owned();
        thread.scope.set_variable(&name, &value);
    }
}

/// Formats as Java's `DecimalFormat` does in the forms that plans use: zeros for mandatory digits, between literal
/// texts.
fn format_decimal(format: &str, value: i64) -> String {
    let Some(from) = format.find(['0', '#']) else {
        return if format.is_empty() { value.to_string() } else { format!("{format}{value}") };
    };
    let rest = format.get(from..).unwrap_or_default();
    let length = rest.find(|c| !matches!(c, '0' | '#')).unwrap_or(rest.len());
    let (digits, suffix) = rest.split_at(length);
    let width = digits.bytes().filter(|&byte| byte == b'0').count();
    let prefix = format.get(..from).unwrap_or_default();
    format!("{prefix}{value:0width$}{suffix}")
}
