//! Elements that hold scripts.

use std::sync::Arc;

use super::super::element::Element;
use super::super::script::{Dialect, Script};
use super::super::template::Template;
use super::Compiler;

/// Where a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    After,
    Judge,
    Sample,
    /// When the sample has been judged.
    Told,
}

/// Returns when an element's script runs; `None` if it holds none that can be run.
pub(super) fn moment(class: &str) -> Option<Moment> {
    Some(match class {
        "JSR223PreProcessor" | "BeanShellPreProcessor" => Moment::Before,
        "JSR223PostProcessor" | "BeanShellPostProcessor" => Moment::After,
        "JSR223Assertion" | "BeanShellAssertion" => Moment::Judge,
        "JSR223Sampler" | "BeanShellSampler" => Moment::Sample,
        "JSR223Listener" | "BeanShellListener" => Moment::Told,
        _ => return None,
    })
}

impl<'a> Compiler<'a> {
    /// Compiles the script of an element, once for all samplers in its scope.
    pub(super) fn script(&mut self, element: &Element<'a>) -> Option<Arc<Script>> {
        if let Some(known) = self.scripts.get(&element.id()) {
            return known.clone();
        }
        let script = self.read_script(element);
        self.scripts.insert(element.id(), script.clone());
        script
    }

    fn read_script(&mut self, element: &Element<'a>) -> Option<Arc<Script>> {
        // Two elements of JMeter's put their name before their properties.
        let [text, parameters, file, reset] = match element.class {
            "BeanShellSampler" => [
                "BeanShellSampler.query",
                "BeanShellSampler.parameters",
                "BeanShellSampler.filename",
                "BeanShellSampler.resetInterpreter",
            ],
            "BeanShellAssertion" => [
                "BeanShellAssertion.query",
                "BeanShellAssertion.parameters",
                "BeanShellAssertion.filename",
                "BeanShellAssertion.resetInterpreter",
            ],
            _ => ["script", "parameters", "filename", "resetInterpreter"],
        };
        element.ignore(&[reset, "cacheKey"]);
        let dialect = if element.class.starts_with("BeanShell") {
            Some(Dialect::Java)
        } else {
            Dialect::find(element.text("scriptLanguage"))
        };
        let Some(dialect) = dialect else {
            let why = format!("language `{}` is not supported", element.text("scriptLanguage"));
            self.refuse(element, &why);
            return None;
        };
        let name = element.text(file).trim();
        let source = if name.is_empty() {
            self.property(element, text)
        } else {
            // What stands in the element itself does not count then.
            element.ignore(&[file, text]);
            self.script_of_file(element, name)?
        };
        let given = self.property(element, parameters);
        let is_before = matches!(moment(element.class), Some(Moment::Before | Moment::Sample))
            || element.class.ends_with("Timer");
        // Before its sample, and as a sample itself, a script sees the one before.
        let words = ["prev", "Previous", "SampleResult"];
        if is_before && words.iter().any(|word| source.source().contains(word)) {
            self.model.keeps_previous = true;
        }
        match Script::new(dialect, source, given) {
            Ok(script) => {
                if moment(element.class) != Some(Moment::Sample) {
                    self.close(element);
                }
                Some(Arc::new(script))
            }
            Err(fault) if name.is_empty() => {
                self.refuse(element, &fault);
                None
            }
            Err(fault) => {
                self.refuse(element, &format!("`{name}`: {fault}"));
                None
            }
        }
    }

    /// Reads a script from a file of its own, where nothing is replaced; it goes to agents with the plan.
    fn script_of_file(&mut self, element: &Element<'a>, name: &str) -> Option<Template> {
        if name.contains("${") {
            self.refuse(element, "the name of its script's file is known only while the plan runs");
            return None;
        }
        let text = self.files.locate(name).and_then(|path| {
            let told = |error| format!("cannot read `{}`: {error}", path.display());
            std::fs::read_to_string(&path).map_err(told)
        });
        match text {
            Ok(text) => {
                self.model.included.push(Template::literal(name));
                Some(Template::literal(text.trim_start_matches('\u{feff}')))
            }
            Err(fault) => {
                self.refuse(element, &fault);
                None
            }
        }
    }
}
