//! Thread groups, of JMeter and of the plugins that plans use.

use std::time::Duration;

use super::super::element::{Element, entries};
use super::super::model::{Arrivals, Group, Kind, Node, OnError, Shape, Stage};
use super::super::template::Template;
use super::{Compiler, Levels};
use crate::load::{Process, Stretch};

/// Most visitors of an Open Model Thread Group at a time.
const MOST_VISITORS: usize = 10_000;

/// Reads the schedule of an Open Model Thread Group: `rate(5/s) random_arrivals(10 min) rate(10/s) pause(1 min)`.
///
/// # Errors
/// What is not understood.
fn schedule(text: &str) -> Result<(Process, Vec<Stretch>), String> {
    let fault = |what: &str| Err(format!("schedule `{text}`: {what}"));
    let bare: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let (mut rate, mut process) = (0.0, None);
    let mut stretches: Vec<Stretch> = Vec::new();
    // A stretch grows to the rate that is named behind it.
    let mut is_open = false;
    let mut rest = bare.trim();
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once('(') else { return fault("`(` is missing") };
        let Some((inner, after)) = after.split_once(')') else { return fault("`)` is missing") };
        rest = after.trim_start();
        match name.trim() {
            "rate" => {
                let Some(found) = rate_of(inner) else { return fault("a rate is such as 5/s") };
                rate = found;
                if let Some(last) = stretches.last_mut().filter(|_| is_open) {
                    last.to = rate;
                }
                is_open = false;
            }
            name @ ("random_arrivals" | "even_arrivals" | "pause") => {
                let Some(lasts) = time_of(inner) else { return fault("a time is such as 10 min") };
                let kind =
                    if name == "even_arrivals" { Process::Uniform } else { Process::Poisson };
                if name != "pause" && process.replace(kind).is_some_and(|known| known != kind) {
                    return fault("random and even arrivals in one group are not supported");
                }
                let level = if name == "pause" { 0.0 } else { rate };
                stretches.push(Stretch::steady(level, lasts));
                is_open = name != "pause";
            }
            other => return fault(&format!("`{other}` is not supported")),
        }
    }
    if stretches.is_empty() {
        fault("it names no arrivals")
    } else {
        Ok((process.unwrap_or(Process::Poisson), stretches))
    }
}

/// Returns the seconds of a unit of time.
fn unit(word: &str) -> Option<f64> {
    Some(match word.trim().to_ascii_lowercase().as_str() {
        "ms" => 0.001,
        "" | "s" | "sec" | "second" | "seconds" => 1.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "h" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return None,
    })
}

fn rate_of(text: &str) -> Option<f64> {
    let (number, per) = text.split_once('/').unwrap_or((text, "s"));
    let rate = number.trim().parse::<f64>().ok()? / unit(per)?;
    (rate.is_finite() && rate >= 0.0).then_some(rate)
}

fn time_of(text: &str) -> Option<Duration> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text.get(..at)?.parse::<f64>().ok()?;
    Duration::try_from_secs_f64(number * unit(text.get(at..)?)?).ok()
}

pub(super) fn is_group(element: &Element<'_>) -> bool {
    element.class.ends_with("ThreadGroup")
}

impl<'a> Compiler<'a> {
    pub(super) fn group(&mut self, element: &'a Element<'a>, plan: &Levels<'_, 'a>) {
        let stage = match element.class {
            "SetupThreadGroup" => Stage::Setup,
            "PostThreadGroup" => Stage::Teardown,
            _ => Stage::Main,
        };
        let Some(shape) = self.shape(element) else {
            self.refuse(element, "this kind of thread group is not supported by tympan lab");
            return;
        };
        let on_error = match element.text("ThreadGroup.on_sample_error") {
            "" | "continue" => OnError::Continue,
            "startnextloop" => OnError::NextLoop,
            "stopthread" => OnError::StopThread,
            "stoptest" | "stoptestnow" => OnError::StopTest,
            other => {
                let why = format!("on_sample_error `{other}` is not known");
                self.refuse(element, &why);
                OnError::Continue
            }
        };
        let (loops, is_endless) = self.loops(element);
        let root = self.node(Kind::Simple, element);
        let name = self.template(element, element.name);
        let is_same_user = element.flag("ThreadGroup.same_user_on_next_iteration", true);
        self.close(element);
        self.model.groups.push(Group {
            stage,
            name,
            shape,
            loops,
            is_endless,
            on_error,
            is_same_user,
            root,
            line: element.line,
        });
        self.children(root, &element.children, Some(plan));
        self.events_of(plan.own, root);
    }

    /// Compiles when the visitors of a plugin's group come.
    fn arrivals(&mut self, element: &Element<'a>) -> Shape {
        element.ignore(&["LogFilename", "ThreadGroup.main_controller"]);
        self.only_without(element, "Iterations", "a most number of iterations");
        let in_minutes = element.text("Unit") != "S";
        let most = self.property(element, "ConcurrencyLimit");
        if element.class == "FreeFormArrivalsThreadGroup" {
            return Shape::Paced { rows: self.rows(element, "Schedule"), in_minutes, most };
        }
        let values = ["TargetLevel", "RampUp", "Steps", "Hold"];
        let values = Box::new(values.map(|name| self.property(element, name)));
        Shape::Grown { values, in_minutes, most }
    }

    /// Refuses an element that sets a property.
    fn only_without(&mut self, element: &Element<'a>, name: &'a str, what: &str) {
        if !matches!(element.text(name).trim(), "" | "0") {
            let why = format!("{what} is not supported");
            self.refuse(element, &why);
        }
    }

    /// Adds a node and returns its place.
    pub(super) fn node(&mut self, kind: Kind, element: &Element<'a>) -> usize {
        let name = self.template(element, element.name);
        self.model.nodes.push(Node { kind, name, children: Vec::new(), events: Vec::new() });
        self.model.nodes.len() - 1
    }

    fn loops(&mut self, element: &Element<'a>) -> (Template, bool) {
        let Some(main) = element.find("ThreadGroup.main_controller") else {
            return (Template::literal("1"), !matches!(element.class, "ThreadGroup"));
        };
        let loops =
            super::super::element::inner(main, "LoopController.loops").unwrap_or("1").trim();
        let forever = super::super::element::inner(main, "LoopController.continue_forever");
        let is_endless = loops == "-1" || (loops.is_empty() && forever == Some("true"));
        (self.template(element, loops), is_endless)
    }

    fn shape(&mut self, element: &Element<'a>) -> Option<Shape> {
        Some(match element.class {
            "ThreadGroup" | "SetupThreadGroup" | "PostThreadGroup" => {
                let has_scheduler = element.flag("ThreadGroup.scheduler", false);
                let duration = self.property(element, "ThreadGroup.duration");
                let delay = self.property(element, "ThreadGroup.delay");
                Shape::Ramp {
                    threads: self.property(element, "ThreadGroup.num_threads"),
                    ramp: self.property(element, "ThreadGroup.ramp_time"),
                    delay: if has_scheduler { delay } else { Template::default() },
                    duration: has_scheduler.then_some(duration),
                }
            }
            "UltimateThreadGroup" => {
                let rows = entries(element.find("ultimatethreadgroupdata"), "");
                let rows = rows
                    .iter()
                    .map(|row| {
                        let mut cells = row.children().filter(roxmltree::Node::is_element);
                        std::array::from_fn(|_| {
                            let text = cells.next().and_then(|cell| cell.text()).unwrap_or("0");
                            self.template(element, text)
                        })
                    })
                    .collect();
                element.ignore(&["ThreadGroup.num_threads"]);
                Shape::Rows(rows)
            }
            "SteppingThreadGroup" => Shape::Steps(Box::new([
                self.property(element, "Threads initial delay"),
                self.property(element, "Start users count burst"),
                self.property(element, "ThreadGroup.num_threads"),
                self.property(element, "Start users count"),
                self.property(element, "Start users period"),
                self.property(element, "rampUp"),
                self.property(element, "flighttime"),
                self.property(element, "Stop users count"),
                self.property(element, "Stop users period"),
            ])),
            "OpenModelThreadGroup" => {
                // Its seed would have to be Java's.
                element
                    .ignore(&["OpenModelThreadGroup.random_seed", "ThreadGroup.main_controller"]);
                let text = element.text("OpenModelThreadGroup.schedule");
                match schedule(text) {
                    Ok((process, stretches)) => {
                        Shape::Arrivals(Arrivals { process, stretches, most: MOST_VISITORS })
                    }
                    Err(fault) => {
                        self.refuse(element, &fault);
                        return Some(Shape::Spans(Vec::new()));
                    }
                }
            }
            "ArrivalsThreadGroup" | "FreeFormArrivalsThreadGroup" => self.arrivals(element),
            "ConcurrencyThreadGroup" => {
                element.ignore(&["LogFilename", "Iterations"]);
                Shape::Concurrency {
                    target: self.property(element, "TargetLevel"),
                    ramp: self.property(element, "RampUp"),
                    steps: self.property(element, "Steps"),
                    hold: self.property(element, "Hold"),
                    in_minutes: element.text("Unit") == "M",
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
            let (_, stretches) = schedule(text).unwrap();
            let found: Vec<_> =
                stretches.iter().map(|one| (one.from, one.to, one.lasts.as_secs())).collect();
            assert_eq!(found, expected, "{text}");
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
            assert!(schedule(text).is_err(), "{text}");
        }
    }
}
