//! Elements that hold scripts.

use std::sync::Arc;

use super::super::jmx_element::JmxElement;
use super::super::script::{PlanScript, ScriptDialect};
use super::super::template::TextTemplate;
use super::JmxCompiler;

/// The phase in which a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptPhase {
    PreProcessor,
    PostProcessor,
    Assertion,
    Sampler,
    /// After the sample has been evaluated.
    Listener,
}

/// Returns the phase of an element's script; `None` if it has no script that can be run.
pub(super) fn script_phase(class: &str) -> Option<ScriptPhase> {
    Some(match class {
        "JSR223PreProcessor" | "BeanShellPreProcessor" => ScriptPhase::PreProcessor,
        "JSR223PostProcessor" | "BeanShellPostProcessor" => ScriptPhase::PostProcessor,
        "JSR223Assertion" | "BeanShellAssertion" => ScriptPhase::Assertion,
        "JSR223Sampler" | "BeanShellSampler" => ScriptPhase::Sampler,
        "JSR223Listener" | "BeanShellListener" => ScriptPhase::Listener,
        _ => return None,
    })
}

impl<'a> JmxCompiler<'a> {
    /// Compiles the script of an element, once for all samplers in its scope.
    pub(super) fn compile_script(&mut self, element: &JmxElement<'a>) -> Option<Arc<PlanScript>> {
        if let Some(cached_script) = self.scripts.get(&element.id()) {
            return cached_script.clone();
        }
        let script = self.read_script(element);
        self.scripts.insert(element.id(), script.clone());
        script
    }

    fn read_script(&mut self, element: &JmxElement<'a>) -> Option<Arc<PlanScript>> {
        // Two JMeter elements prefix their property names.
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
        element.ignore_properties(&[reset, "cacheKey"]);
        let dialect = if element.class.starts_with("BeanShell") {
            Some(ScriptDialect::Java)
        } else {
            ScriptDialect::find(element.text_property("scriptLanguage"))
        };
        let Some(dialect) = dialect else {
            let why =
                format!("language `{}` is not supported", element.text_property("scriptLanguage"));
            self.reader.report_unsupported(element, &why);
            return None;
        };
        let name = element.text_property(file).trim();
        let source = if name.is_empty() {
            self.reader.compile_property(element, text)
        } else {
            // The text in the element itself is ignored in this case.
            element.ignore_properties(&[file, text]);
            self.compile_script_file(element, name)?
        };
        let arguments = self.reader.compile_property(element, parameters);
        let is_before = matches!(
            script_phase(element.class),
            Some(ScriptPhase::PreProcessor | ScriptPhase::Sampler)
        ) || element.class.ends_with("Timer");
        // Before its sample, and as a sampler itself, a script accesses the previous sample.
        let words = ["prev", "Previous", "SampleResult"];
        if is_before && words.iter().any(|keyword| source.source().contains(keyword)) {
            self.model.retains_previous_sample = true;
        }
        match PlanScript::new(dialect, source, arguments) {
            Ok(script) => {
                if script_phase(element.class) != Some(ScriptPhase::Sampler) {
                    self.reader.report_unread_properties(element);
                }
                Some(Arc::new(script))
            }
            Err(fault) if name.is_empty() => {
                self.reader.report_unsupported(element, &fault);
                None
            }
            Err(fault) => {
                self.reader.report_unsupported(element, &format!("`{name}`: {fault}"));
                None
            }
        }
    }

    /// Reads a script from a separate file, in which nothing is substituted; it is sent to agents with the plan.
    fn compile_script_file(
        &mut self,
        element: &JmxElement<'a>,
        name: &str,
    ) -> Option<TextTemplate> {
        if name.contains("${") {
            self.reader.report_unsupported(
                element,
                "the name of its script file is known only while the plan runs",
            );
            return None;
        }
        let text = self.files.locate(name).and_then(|path| {
            let describe_failure = |error| format!("cannot read `{}`: {error}", path.display());
            std::fs::read_to_string(&path).map_err(describe_failure)
        });
        match text {
            Ok(text) => {
                self.model.included_files.push(TextTemplate::literal(name));
                Some(TextTemplate::literal(text.trim_start_matches('\u{feff}')))
            }
            Err(fault) => {
                self.reader.report_unsupported(element, &fault);
                None
            }
        }
    }
}
