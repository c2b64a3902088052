//! Evaluates compiled text for a user.
//!
//! Invariant: a text that refers to itself ends.

use std::borrow::Cow;
use std::sync::Arc;

use super::function::store_result;
use super::function_name::JMeterFunction;
use super::template::{FunctionCall, TextTemplate, TextTemplatePart};
use super::variable_scope::{SamplerName, VariableScope};

impl TextTemplate {
    /// Evaluates the text.
    pub fn evaluate<'a>(&'a self, scope: &mut VariableScope) -> Cow<'a, str> {
        match self.parts.as_slice() {
            [] => Cow::Borrowed(""),
            [TextTemplatePart::Text(text)] => Cow::Borrowed(text),
            parts => {
                let mut out = String::new();
                for part in parts {
                    part.evaluate_into(scope, &mut out);
                }
                Cow::Owned(out)
            }
        }
    }

    /// Evaluates the text; a text without references is shared, not copied.
    pub fn evaluate_shared(&self, scope: &mut VariableScope) -> Arc<str> {
        match self.parts.as_slice() {
            [TextTemplatePart::Text(text)] => Arc::clone(text),
            [] => Arc::clone(&self.source),
            _ => self.evaluate(scope).into(),
        }
    }
}

impl TextTemplatePart {
    fn evaluate_into(&self, scope: &mut VariableScope, out: &mut String) {
        match self {
            Self::Text(text) => out.push_str(text),
            Self::Variable(name) => match scope.variable(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("${");
                    out.push_str(name);
                    out.push('}');
                }
            },
            Self::Call(call) => {
                let result = evaluate_call(call, scope);
                out.push_str(&result);
            }
        }
    }
}

/// Evaluates a function call after its arguments.
fn evaluate_call(call: &FunctionCall, scope: &mut VariableScope) -> String {
    let mut arguments = Vec::with_capacity(call.arguments.len());
    for argument in &call.arguments {
        arguments.push(argument.evaluate(scope).into_owned());
    }
    let first = arguments.first().map_or("", String::as_str);
    match call.function {
        JMeterFunction::Evaluate => evaluate_text(first, scope),
        JMeterFunction::EvaluateVariable => {
            let inner = scope.variable(first).unwrap_or_default().to_owned();
            evaluate_text(&inner, scope)
        }
        JMeterFunction::SamplerName => {
            let name = scope.evaluate_sampler_name().to_string();
            store_result(&arguments, 0, &name, scope);
            name
        }
        function => function.call(&arguments, &call.call_site, scope),
    }
}

/// Maximum depth of recursive text evaluation.
const MAX_EVALUATION_DEPTH: u32 = 20;

fn evaluate_text(text: &str, scope: &mut VariableScope) -> String {
    // A variable may hold a text that evaluates itself.
    if scope.evaluation_depth > MAX_EVALUATION_DEPTH {
        return text.to_owned();
    }
    scope.evaluation_depth += 1;
    let result = TextTemplate::parse(text).map(|template| template.evaluate(scope).into_owned());
    scope.evaluation_depth -= 1;
    match result {
        Ok(output) => output,
        Err(_) => text.to_owned(),
    }
}

impl VariableScope {
    /// Records the sampler that is running.
    pub fn enter_sampler(&mut self, name: &TextTemplate) {
        self.sampler_name = match name.as_literal() {
            Some(_) => SamplerName::Fixed(name.evaluate_shared(self)),
            None => SamplerName::Templated(Box::new(name.clone())),
        };
    }

    /// Returns the name of the sampler that is running. As in JMeter, each call evaluates the name again.
    pub(crate) fn evaluate_sampler_name(&mut self) -> Arc<str> {
        let template = match &mut self.sampler_name {
            SamplerName::Fixed(name) => return Arc::clone(name),
            // A name that refers to itself evaluates to an empty name.
            SamplerName::Templated(template) => std::mem::take(template),
        };
        let evaluated_name = template.evaluate(self).as_ref().into();
        self.sampler_name = SamplerName::Templated(template);
        evaluated_name
    }

    /// Sets the running sample's label to the current value of the sampler's name.
    pub fn label_sample(&mut self) {
        self.sample_label = self.evaluate_sampler_name();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::variable_scope::RunContext;

    fn scope() -> VariableScope {
        let mut scope = VariableScope::new(Arc::new(RunContext::default()));
        scope.set_variable("name", "page");
        scope.set_variable("n", "2");
        scope.set_variable("item_2", "second");
        scope
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(TextTemplate::parse(text).unwrap().evaluate(&mut scope()), expected, "{text}");
    }

    #[test]
    fn references_are_replaced_as_in_jmeter() {
        check("plain", "plain");
        check("a\\,b", "a\\,b");
        check("/${name}/x", "/page/x");
        check("${missing}", "${missing}");
        check("${__V(item_${n})}", "second");
        check("${__P(threads,10)}", "10");
        check("${__P(threads,)}", "");
        check("${__P(threads)}", "1");
        check("${__changeCase(a\\,b,UPPER)}", "A,B");
        check("${__uppercase(${__V(name)})}", "PAGE");
        check("${__intSum(1,2,3)}", "6");
        check("${__split(a;b,part,;)}${part_2}${part_n}", "a;bb2");
        check("${__urlencode(a b&c)}", "a+b%26c");
        check("${__base64Encode(hi)}", "aGk=");
        check("${__isVarDefined(name)}${__isVarDefined(x)}", "truefalse");
        check("${__jexl3(\"${name}\" == \"page\" && ${n} > 1)}", "true");
        check("${__time(/1000)}x", &format!("{}x", VariableScope::now_ms() / 1000));
        check("${", "${");
        check("${a", "${a");
    }

    #[test]
    fn what_is_unknown_or_endless_is_refused() {
        for text in ["${__nothing(1)}", "${__P(x}", "${__P(x)", "${__Random(1)}", "${__time(qqq)}"]
        {
            assert!(TextTemplate::parse(text).is_err(), "{text}");
        }
        let deep = format!("{}x{}", "${__eval(".repeat(5000), ")}".repeat(5000));
        assert!(TextTemplate::parse(&deep).is_err());
    }

    #[test]
    fn what_nobody_knows_stays_as_it_stands_in_plans_of_jmeter() {
        let draw = |text: &str| {
            TextTemplate::parse_at_call_site(text, "1")
                .map(|text| text.evaluate(&mut scope()).into_owned())
        };
        for text in ["${__GetSecret(key)}", "${__nothing}", "a${__nothing(1,2)}b"] {
            assert_eq!(draw(text).as_deref(), Ok(text));
        }
        assert_eq!(draw("${__P(x,${__GetSecret(key)})}").as_deref(), Ok("${__GetSecret(key)}"));
        // Functions of JMeter, and those of widespread plugins.
        for text in ["${__XPath(a,b)}", "${__StringToFile(a,b)}", "${__env(HOME)}"] {
            assert!(draw(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_text_that_evaluates_itself_ends() {
        let mut scope = scope();
        scope.set_variable("self", "${__eval(${self})}");
        let template = TextTemplate::parse("${__evalVar(self)}").unwrap();
        assert!(template.evaluate(&mut scope).contains("self"));
    }

    proptest! {
        #[test]
        fn any_text_compiles_or_is_refused(text in "[$\\{\\}(),a_\\\\P ]{0,60}") {
            if let Ok(template) = TextTemplate::parse(&text) {
                template.evaluate(&mut scope());
            }
        }
    }
}
