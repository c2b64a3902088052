//! Elements that hold scripts.

use std::sync::Arc;

use super::super::element::Element;
use super::super::script::{Dialect, Script};
use super::Compiler;

/// Where a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    After,
    Judge,
    Sample,
}

/// Returns when an element's script runs; `None` if it holds none that can be run.
pub(super) fn moment(class: &str) -> Option<Moment> {
    Some(match class {
        "JSR223PreProcessor" | "BeanShellPreProcessor" => Moment::Before,
        "JSR223PostProcessor" | "BeanShellPostProcessor" => Moment::After,
        "JSR223Assertion" | "BeanShellAssertion" => Moment::Judge,
        "JSR223Sampler" | "BeanShellSampler" => Moment::Sample,
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
        if !element.text(file).trim().is_empty() {
            element.ignore(&[file]);
            self.refuse(element, "its script stands in a file of its own, which is not supported");
            return None;
        }
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
        let source = self.property(element, text);
        let given = self.property(element, parameters);
        let is_before =
            moment(element.class) == Some(Moment::Before) || element.class.ends_with("Timer");
        if is_before && source.source().contains("prev.") {
            self.refuse(element, "script uses `prev` before the sample (not supported)");
            return None;
        }
        match Script::new(dialect, source, given) {
            Ok(script) => {
                if moment(element.class) != Some(Moment::Sample) {
                    self.close(element);
                }
                Some(Arc::new(script))
            }
            Err(fault) => {
                self.refuse(element, &fault);
                None
            }
        }
    }
}
