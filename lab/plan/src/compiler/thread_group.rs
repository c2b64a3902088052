//! Thread groups, of JMeter and of the plugins that plans use.

use std::time::Duration;

use super::super::jmx_element::{JmxElement, collection_entries};
use super::super::model::{
    LoadShape, OpenModelArrivals, PlanNode, PlanNodeKind, SampleErrorAction, ThreadGroup,
    ThreadGroupStage,
};
use super::super::template::TextTemplate;
use super::{ElementScope, JmxCompiler};
use crate::arrival_schedule::{ArrivalProcess, RateInterval};

/// Maximum number of concurrent visitors of an Open Model Thread Group.
const MAX_VISITORS: usize = 10_000;

/// Parses the schedule of an Open Model Thread Group: `rate(5/s) random_arrivals(10 min) rate(10/s) pause(1 min)`.
///
/// # Errors
/// A description of the invalid text.
fn parse_schedule(text: &str) -> Result<(ArrivalProcess, Vec<RateInterval>), String> {
    let fault = |message: &str| Err(format!("schedule `{text}`: {message}"));
    let bare: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let (mut rate, mut process) = (0.0, None);
    let mut stretches: Vec<RateInterval> = Vec::new();
    // The rate of an interval changes to the rate that follows it.
    let mut is_open = false;
    let mut rest = bare.trim();
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once('(') else { return fault("`(` is missing") };
        let Some((inner, after)) = after.split_once(')') else { return fault("`)` is missing") };
        rest = after.trim_start();
        match name.trim() {
            "rate" => {
                let Some(parsed_rate) = parse_rate(inner) else {
                    return fault("expected a rate such as 5/s");
                };
                rate = parsed_rate;
                if let Some(last) = stretches.last_mut().filter(|_| is_open) {
                    last.end_rate = rate;
                }
                is_open = false;
            }
            name @ ("random_arrivals" | "even_arrivals" | "pause") => {
                let Some(duration) = parse_jmeter_duration(inner) else {
                    return fault("expected a time such as 10 min");
                };
                let kind = if name == "even_arrivals" {
                    ArrivalProcess::Uniform
                } else {
                    ArrivalProcess::Poisson
                };
                if name != "pause"
                    && process.replace(kind).is_some_and(|previous_kind| previous_kind != kind)
                {
                    return fault("random and even arrivals in one group are not supported");
                }
                let level = if name == "pause" { 0.0 } else { rate };
                stretches.push(RateInterval::constant(level, duration));
                is_open = name != "pause";
            }
            step_name => return fault(&format!("`{step_name}` is not supported")),
        }
    }
    if stretches.is_empty() {
        fault("it has no arrivals")
    } else {
        Ok((process.unwrap_or(ArrivalProcess::Poisson), stretches))
    }
}

/// Returns the length of a time unit in seconds.
fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit.trim().to_ascii_lowercase().as_str() {
        "ms" => 0.001,
        "" | "s" | "sec" | "second" | "seconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return None,
    })
}

fn parse_rate(text: &str) -> Option<f64> {
    let (number, per) = text.split_once('/').unwrap_or((text, "s"));
    let rate = number.trim().parse::<f64>().ok()? / unit_seconds(per)?;
    (rate.is_finite() && rate >= 0.0).then_some(rate)
}

fn parse_jmeter_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text.get(..at)?.parse::<f64>().ok()?;
    Duration::try_from_secs_f64(number * unit_seconds(text.get(at..)?)?).ok()
}

pub(super) fn is_thread_group(element: &JmxElement<'_>) -> bool {
    element.class.ends_with("ThreadGroup")
}

impl<'a> JmxCompiler<'a> {
    pub(super) fn compile_group(
        &mut self,
        element: &'a JmxElement<'a>,
        plan: &ElementScope<'_, 'a>,
    ) {
        let stage = match element.class {
            "SetupThreadGroup" => ThreadGroupStage::Setup,
            "PostThreadGroup" => ThreadGroupStage::Teardown,
            _ => ThreadGroupStage::Main,
        };
        let Some(shape) = self.compile_load_shape(element) else {
            self.reader.report_unsupported(
                element,
                "this kind of thread group is not supported by tympan lab",
            );
            return;
        };
        let on_error = match element.text_property("ThreadGroup.on_sample_error") {
            "" | "continue" => SampleErrorAction::Continue,
            "startnextloop" => SampleErrorAction::NextLoop,
            "stopthread" => SampleErrorAction::StopThread,
            "stoptest" | "stoptestnow" => SampleErrorAction::StopTest,
            action_name => {
                let why = format!("unknown on_sample_error `{action_name}`");
                self.reader.report_unsupported(element, &why);
                SampleErrorAction::Continue
            }
        };
        let (loops, is_endless) = self.compile_loops(element);
        let root = self.add_node(PlanNodeKind::Simple, element);
        let name = self.reader.compile_template(element, element.name);
        let is_same_user = element.flag_property("ThreadGroup.same_user_on_next_iteration", true);
        self.reader.report_unread_properties(element);
        self.model.groups.push(ThreadGroup {
            stage,
            name,
            load_shape: shape,
            loops,
            is_endless,
            on_error,
            is_same_user,
            root,
            line: element.line,
        });
        self.compile_children(root, &element.children, Some(plan));
        self.add_iteration_events(plan.level_elements, root);
    }

    /// Compiles the arrival times of a plugin's group.
    fn compile_arrivals(&mut self, element: &JmxElement<'a>) -> LoadShape {
        element.ignore_properties(&["LogFilename", "ThreadGroup.main_controller"]);
        self.reject_property(element, "Iterations", "a maximum number of iterations");
        let in_minutes = element.text_property("Unit") != "S";
        let most = self.reader.compile_property(element, "ConcurrencyLimit");
        if element.class == "FreeFormArrivalsThreadGroup" {
            return LoadShape::ArrivalRates {
                rows: self.reader.compile_number_rows(element, "Schedule"),
                in_minutes,
                max_visitors: most,
            };
        }
        let values = ["TargetLevel", "RampUp", "Steps", "Hold"];
        let values = Box::new(values.map(|name| self.reader.compile_property(element, name)));
        LoadShape::ArrivalRamp { settings: values, in_minutes, max_visitors: most }
    }

    /// Reports an element that sets an unsupported property.
    fn reject_property(&mut self, element: &JmxElement<'a>, name: &'a str, reason: &str) {
        if !matches!(element.text_property(name).trim(), "" | "0") {
            let why = format!("{reason} is not supported");
            self.reader.report_unsupported(element, &why);
        }
    }

    /// Adds a node and returns its index.
    pub(super) fn add_node(&mut self, kind: PlanNodeKind, element: &JmxElement<'a>) -> usize {
        let name = self.reader.compile_template(element, element.name);
        self.model.nodes.push(PlanNode { kind, name, children: Vec::new(), events: Vec::new() });
        self.model.nodes.len() - 1
    }

    fn compile_loops(&mut self, element: &JmxElement<'a>) -> (TextTemplate, bool) {
        let Some(main) = element.find_property("ThreadGroup.main_controller") else {
            return (TextTemplate::literal("1"), !matches!(element.class, "ThreadGroup"));
        };
        let loops = super::super::jmx_element::nested_text(main, "LoopController.loops")
            .unwrap_or("1")
            .trim();
        let forever =
            super::super::jmx_element::nested_text(main, "LoopController.continue_forever");
        let is_endless = loops == "-1" || (loops.is_empty() && forever == Some("true"));
        (self.reader.compile_template(element, loops), is_endless)
    }

    fn compile_load_shape(&mut self, element: &JmxElement<'a>) -> Option<LoadShape> {
        Some(match element.class {
            "ThreadGroup" | "SetupThreadGroup" | "PostThreadGroup" => {
                let has_scheduler = element.flag_property("ThreadGroup.scheduler", false);
                let duration = self.reader.compile_property(element, "ThreadGroup.duration");
                let delay = self.reader.compile_property(element, "ThreadGroup.delay");
                LoadShape::Ramp {
                    threads: self.reader.compile_property(element, "ThreadGroup.num_threads"),
                    ramp: self.reader.compile_property(element, "ThreadGroup.ramp_time"),
                    delay: if has_scheduler { delay } else { TextTemplate::default() },
                    duration: has_scheduler.then_some(duration),
                }
            }
            "UltimateThreadGroup" => {
                let rows = collection_entries(element.find_property("ultimatethreadgroupdata"), "");
                let rows = rows
                    .iter()
                    .map(|row| {
                        let mut cells = row.children().filter(roxmltree::Node::is_element);
                        std::array::from_fn(|_| {
                            let text = cells.next().and_then(|cell| cell.text()).unwrap_or("0");
                            self.reader.compile_template(element, text)
                        })
                    })
                    .collect();
                element.ignore_properties(&["ThreadGroup.num_threads"]);
                LoadShape::ThreadRows(rows)
            }
            "SteppingThreadGroup" => LoadShape::ThreadSteps(Box::new([
                self.reader.compile_property(element, "Threads initial delay"),
                self.reader.compile_property(element, "Start users count burst"),
                self.reader.compile_property(element, "ThreadGroup.num_threads"),
                self.reader.compile_property(element, "Start users count"),
                self.reader.compile_property(element, "Start users period"),
                self.reader.compile_property(element, "rampUp"),
                self.reader.compile_property(element, "flighttime"),
                self.reader.compile_property(element, "Stop users count"),
                self.reader.compile_property(element, "Stop users period"),
            ])),
            "OpenModelThreadGroup" => {
                // Its seed would require Java's generator.
                element.ignore_properties(&[
                    "OpenModelThreadGroup.random_seed",
                    "ThreadGroup.main_controller",
                ]);
                let text = element.text_property("OpenModelThreadGroup.schedule");
                match parse_schedule(text) {
                    Ok((process, stretches)) => LoadShape::Arrivals(OpenModelArrivals {
                        process,
                        rate_intervals: stretches,
                        max_visitors: MAX_VISITORS,
                    }),
                    Err(fault) => {
                        self.reader.report_unsupported(element, &fault);
                        return Some(LoadShape::Lifetimes(Vec::new()));
                    }
                }
            }
            "ArrivalsThreadGroup" | "FreeFormArrivalsThreadGroup" => self.compile_arrivals(element),
            "ConcurrencyThreadGroup" => {
                element.ignore_properties(&["LogFilename", "Iterations"]);
                LoadShape::Concurrency {
                    target: self.reader.compile_property(element, "TargetLevel"),
                    ramp: self.reader.compile_property(element, "RampUp"),
                    steps: self.reader.compile_property(element, "Steps"),
                    hold: self.reader.compile_property(element, "Hold"),
                    in_minutes: element.text_property("Unit") == "M",
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_of_the_open_model_are_read() {
        let check = |text: &str, expected: &[(f64, f64, u64)]| {
            let (_, stretches) = parse_schedule(text).unwrap();
            let rates: Vec<_> = stretches
                .iter()
                .map(|stretch| (stretch.start_rate, stretch.end_rate, stretch.duration.as_secs()))
                .collect();
            assert_eq!(rates, expected, "{text}");
        };
        check("rate(5/s) random_arrivals(10 min)", &[(5.0, 5.0, 600)]);
        check(
            "rate(0/s) even_arrivals(30 s) rate(60/min) even_arrivals(1min) // the end",
            &[(0.0, 1.0, 30), (1.0, 1.0, 60)],
        );
        check(
            "rate(2) random_arrivals(1s) pause(2 s) random_arrivals(1)",
            &[(2.0, 2.0, 1), (0.0, 0.0, 2), (2.0, 2.0, 1)],
        );
        for text in [
            "",
            "rate(x)",
            "rate(1/s) often(3 s)",
            "rate(1/s",
            "rate(1/s) random_arrivals(3 weeks)",
        ] {
            assert!(parse_schedule(text).is_err(), "{text}");
        }
    }
}
