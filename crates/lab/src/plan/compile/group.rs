//! Thread groups, of JMeter and of the plugins that plans use.

use super::super::element::{Element, entries};
use super::super::model::{Group, Kind, Node, OnError, Shape, Stage};
use super::super::template::Template;
use super::{Compiler, Levels};

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
