//! Text with `${variables}` and `${__functions(...)}`, compiled once.
//!
//! Invariants
//! * As in JMeter, a reference to an unknown variable remains unchanged, and backslashes before `$`, `,` and `\` are
//!   removed only in text with references.
//! * An unknown function is reported when the plan is read, not when it runs.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::function::JMeterFunction;
use super::variable_scope::VariableScope;

/// A compiled text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TextTemplate {
    parts: Vec<TextTemplatePart>,
    source: Arc<str>,
}

#[derive(Debug, Clone, PartialEq)]
enum TextTemplatePart {
    Text(Arc<str>),
    Variable(Arc<str>),
    Call(Arc<FunctionCall>),
}

/// A function and its arguments.
#[derive(Debug, PartialEq)]
pub(crate) struct FunctionCall {
    pub(crate) function: JMeterFunction,
    pub(crate) arguments: Vec<TextTemplate>,
    /// The source text of the call and what follows it.
    pub(crate) source: Arc<str>,
    /// Identifies the position in a plan, for functions with a counter.
    pub(crate) call_site: Arc<str>,
}

/// A text that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextTemplateError(pub(crate) String);

impl fmt::Display for TextTemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TextTemplate {
    /// Returns a text without references.
    pub(crate) fn literal(text: &str) -> Self {
        let source: Arc<str> = text.into();
        let parts = if text.is_empty() {
            Vec::new()
        } else {
            vec![TextTemplatePart::Text(Arc::clone(&source))]
        };
        Self { parts, source }
    }

    /// Compiles a text.
    ///
    /// # Errors
    /// [`TextTemplateError`] names a function that is not supported, or misused.
    pub(crate) fn parse(text: &str) -> Result<Self, TextTemplateError> {
        Self::parse_at_call_site(text, "")
    }

    /// Compiles a text at a position of a JMeter plan. The position distinguishes calls that count. An unknown function
    /// remains unchanged, as does an undefined variable.
    ///
    /// # Errors
    /// [`TextTemplateError`] names a function that is not supported, or misused.
    pub(crate) fn parse_at_call_site(
        text: &str,
        call_site: &str,
    ) -> Result<Self, TextTemplateError> {
        if !text.contains("${") {
            return Ok(Self::literal(text));
        }
        if reference_depth(text) > MAX_REFERENCE_DEPTH {
            return Err(TextTemplateError(format!(
                "functions are nested deeper than {MAX_REFERENCE_DEPTH} levels"
            )));
        }
        let parts = parse_parts(text, call_site)?;
        if parts.iter().all(|part| matches!(part, TextTemplatePart::Text(_))) {
            return Ok(Self::literal(text));
        }
        Ok(Self { parts, source: text.into() })
    }

    /// Returns the source text.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the text if it has no references.
    pub(crate) fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [TextTemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Evaluates the text.
    pub(crate) fn evaluate<'a>(&'a self, scope: &mut VariableScope) -> Cow<'a, str> {
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
    pub(crate) fn evaluate_shared(&self, scope: &mut VariableScope) -> Arc<str> {
        match self.parts.as_slice() {
            [TextTemplatePart::Text(text)] => Arc::clone(text),
            [] => Arc::clone(&self.source),
            _ => self.evaluate(scope).into(),
        }
    }

    /// Returns the text with `stand_in` in place of every reference, to check its form.
    pub(crate) fn with_placeholder(&self, stand_in: &str) -> String {
        let text = |part: &TextTemplatePart| match part {
            TextTemplatePart::Text(text) => text.to_string(),
            TextTemplatePart::Variable(_) | TextTemplatePart::Call(_) => stand_in.to_owned(),
        };
        self.parts.iter().map(text).collect()
    }

    /// Calls `each` with every variable in the text, including those in function arguments.
    pub(crate) fn for_each_variable(&self, each: &mut dyn FnMut(&str)) {
        for part in &self.parts {
            match part {
                TextTemplatePart::Text(_) => {}
                TextTemplatePart::Variable(name) => each(name),
                TextTemplatePart::Call(call) => {
                    call.arguments.iter().for_each(|argument| argument.for_each_variable(each));
                }
            }
        }
    }

    /// Calls `each` with every function in the text, including nested ones.
    pub(crate) fn for_each_call(&self, each: &mut dyn FnMut(&FunctionCall)) {
        for part in &self.parts {
            if let TextTemplatePart::Call(call) = part {
                each(call);
                for argument in &call.arguments {
                    argument.for_each_call(each);
                }
            }
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
                let result = call.function.call(call, scope);
                out.push_str(&result);
            }
        }
    }
}

/// Maximum nesting depth of references.
const MAX_REFERENCE_DEPTH: usize = 50;

/// Returns the maximum nesting depth of references.
fn reference_depth(text: &str) -> usize {
    let (mut depth, mut most, mut previous) = (0usize, 0, ' ');
    for c in text.chars() {
        match c {
            '{' if previous == '$' => {
                depth += 1;
                most = most.max(depth);
            }
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = c;
    }
    most
}

fn parse_parts(text: &str, call_site: &str) -> Result<Vec<TextTemplatePart>, TextTemplateError> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(escaped) = rest.strip_prefix('\\') {
            let next = escaped.chars().next();
            if !matches!(next, Some('$' | ',' | '\\')) {
                plain.push('\\');
            }
            plain.extend(next);
            rest = escaped.get(next.map_or(0, char::len_utf8)..).unwrap_or_default();
        } else if let Some(inside) = rest.strip_prefix("${") {
            match parse_reference(inside, call_site)? {
                Some((part, after)) => {
                    if !plain.is_empty() {
                        parts.push(TextTemplatePart::Text(std::mem::take(&mut plain).into()));
                    }
                    parts.push(part);
                    rest = after;
                }
                None => {
                    plain.push_str("${");
                    rest = inside;
                }
            }
        } else {
            plain.push(c);
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
        }
    }
    if !plain.is_empty() {
        parts.push(TextTemplatePart::Text(plain.into()));
    }
    Ok(parts)
}

/// Parses the text after `${`; `None` if it is not a reference.
fn parse_reference<'a>(
    inside: &'a str,
    call_site: &str,
) -> Result<Option<(TextTemplatePart, &'a str)>, TextTemplateError> {
    let Some(end) = inside.find(['}', '(']) else { return Ok(None) };
    let (name, rest) = inside.split_at(end);
    let name = name.trim();
    if let Some(after) = rest.strip_prefix('}') {
        // JMeter's own controller variables look like functions.
        if name.starts_with("__jm__") {
            return Ok(Some((TextTemplatePart::Variable(name.into()), after)));
        }
        if name.starts_with("__") && !is_unknown_jmeter_function(name, call_site) {
            let function = JMeterFunction::find(name).ok_or_else(|| unknown_function(name))?;
            return Ok(Some((function_call_part(function, Vec::new(), inside, call_site)?, after)));
        }
        return Ok(Some((TextTemplatePart::Variable(name.into()), after)));
    }
    if !name.starts_with("__") || is_unknown_jmeter_function(name, call_site) {
        // A parenthesis is part of a variable's name: such a variable can exist.
        let Some((name, after)) = inside.split_once('}') else { return Ok(None) };
        return Ok(Some((TextTemplatePart::Variable(name.into()), after)));
    }
    let function = JMeterFunction::find(name).ok_or_else(|| unknown_function(name))?;
    let (arguments, after) = parse_arguments(rest.get(1..).unwrap_or_default(), call_site)?;
    let after = after.trim_start();
    let Some(after) = after.strip_prefix('}') else {
        return Err(TextTemplateError(format!("`${{{name}(` does not end with `)}}`")));
    };
    Ok(Some((function_call_part(function, arguments, inside, call_site)?, after)))
}

/// Returns true if a function in a JMeter plan is unknown to JMeter.
fn is_unknown_jmeter_function(name: &str, call_site: &str) -> bool {
    !call_site.is_empty()
        && JMeterFunction::find(name).is_none()
        && !super::function::is_unsupported_function(name)
}

fn unknown_function(name: &str) -> TextTemplateError {
    TextTemplateError(format!("function {name}: not supported"))
}

fn function_call_part(
    function: JMeterFunction,
    arguments: Vec<TextTemplate>,
    inside: &str,
    call_site: &str,
) -> Result<TextTemplatePart, TextTemplateError> {
    let source: Arc<str> = inside.into();
    let call_site = if call_site.is_empty() {
        Arc::clone(&source)
    } else {
        format!("{call_site} {inside}").into()
    };
    let call = FunctionCall { function, arguments, source, call_site };
    function.check_call(&call).map_err(TextTemplateError)?;
    Ok(TextTemplatePart::Call(Arc::new(call)))
}

/// Parses arguments up to the closing parenthesis, as JMeter's parser does.
fn parse_arguments<'a>(
    text: &'a str,
    call_site: &str,
) -> Result<(Vec<TextTemplate>, &'a str), TextTemplateError> {
    let mut arguments = Vec::new();
    let mut buffer = String::new();
    let (mut functions, mut parentheses) = (0, 0);
    let mut previous = ' ';
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                let next = chars.next().map(|(_, next)| next);
                // Inside a nested reference, its own parsing removes the backslash.
                if functions > 0 || !matches!(next, Some('$' | ',' | '\\')) {
                    buffer.push('\\');
                }
                buffer.extend(next);
                previous = ' ';
                continue;
            }
            ',' if functions == 0 => {
                arguments.push(TextTemplate::parse_at_call_site(
                    &std::mem::take(&mut buffer),
                    call_site,
                )?);
            }
            ')' if functions == 0 && parentheses == 0 => {
                if !(arguments.is_empty() && buffer.is_empty()) {
                    arguments.push(TextTemplate::parse_at_call_site(&buffer, call_site)?);
                }
                return Ok((arguments, text.get(at + 1..).unwrap_or_default()));
            }
            '{' if previous == '$' => {
                functions += 1;
                buffer.push(c);
            }
            '}' if functions > 0 => {
                functions -= 1;
                buffer.push(c);
            }
            ')' if functions == 0 => {
                parentheses -= 1;
                buffer.push(c);
            }
            '(' if functions == 0 => {
                parentheses += 1;
                buffer.push(c);
            }
            _ => buffer.push(c),
        }
        previous = c;
    }
    Err(TextTemplateError(format!("a function's arguments do not end: `{text}`")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::plan::variable_scope::RunContext;

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
