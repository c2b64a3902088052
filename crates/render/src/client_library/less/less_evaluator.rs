//! Evaluation of a style sheet: variables, mixins, nesting, and expressions.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::less_fault::LessFault;
use super::less_function::call_function;
use super::less_parser::{
    LessParameter, LessRule, LessStatement, LocatedStatement, find_outside, is_name_character,
    split_outside, string_length,
};
use super::less_value::LessValue;

/// Maximum depth of calls of mixins, nested blocks and variables.
const MAX_DEPTH: usize = 200;

/// Maximum depth of parentheses and of calls of functions in one value.
const MAX_PARENTHESES: usize = 32;

/// Maximum number of evaluated statements.
const MAX_STEPS: usize = 500_000;

/// Maximum size of the output in bytes.
const MAX_OUTPUT_BYTES: usize = 8 * 1024 * 1024;

/// Maximum size of one value, selector or name in bytes.
const MAX_VALUE_BYTES: usize = 1024 * 1024;

/// Maximum size in bytes of all values, selectors and names that are computed, including those that only lead to others.
const MAX_COMPUTED_BYTES: usize = 64 * 1024 * 1024;

/// The mark that a call of a mixin adds to declarations.
const IMPORTANT_MARK: &str = " !important";

/// Maximum number of selectors of one rule.
const MAX_SELECTORS: usize = 5_000;

/// Maximum number of scopes that are searched for a name.
const MAX_SCOPES: usize = 2000;

/// At-rules whose blocks hold rules for the enclosing selectors.
const CONDITIONAL_RULES: [&str; 5] = ["media", "supports", "layer", "container", "document"];

/// Evaluates the statements of the style sheet in a file.
///
/// # Errors
/// What is undefined, malformed, or too large.
pub(super) fn evaluate_style_sheet(
    file: &str,
    statements: &[LocatedStatement],
) -> Result<String, LessFault> {
    let mut evaluator = LessEvaluator { steps: 0, depth: 0, computed_bytes: 0, fault_place: None };
    evaluator.evaluate(statements).map_err(|reason| {
        let (file, line) = evaluator.fault_place.unwrap_or_else(|| (file.into(), 1));
        LessFault { file: file.to_string(), line, reason }
    })
}

/// The texts of variables by their names.
type LessVariables = HashMap<Rc<str>, Rc<str>>;

/// The variables and mixins of a block.
struct LessScope {
    variables: LessVariables,
    rules: Vec<Rc<LessRule>>,
    parent: Option<Rc<LessScope>>,
    /// The scope that called the mixin, which is searched after those around its definition.
    caller: Option<Rc<LessScope>>,
}

impl LessScope {
    fn new(statements: &[LocatedStatement], parent: Option<Rc<Self>>) -> Rc<Self> {
        let mut variables = LessVariables::new();
        let mut rules = Vec::new();
        for located in statements {
            match &located.statement {
                LessStatement::Variable { name, value } => {
                    variables.insert(Rc::clone(name), Rc::clone(value));
                }
                LessStatement::Rule(rule) if rule.selector.starts_with(['.', '#']) => {
                    rules.push(Rc::clone(rule));
                }
                _ => {}
            }
        }
        Rc::new(Self { variables, rules, parent, caller: None })
    }

    /// Creates a scope of bound parameters.
    fn with_variables(variables: LessVariables, parent: Rc<Self>, caller: &Rc<Self>) -> Rc<Self> {
        let (parent, caller) = (Some(parent), Some(Rc::clone(caller)));
        Rc::new(Self { variables, rules: Vec::new(), parent, caller })
    }
}

/// Returns a scope and those around it, innermost first, then those around the callers of its mixins.
fn enclosing_scopes(scope: &Rc<LessScope>) -> impl Iterator<Item = Rc<LessScope>> {
    let mut next = Some(Rc::clone(scope));
    let mut callers = VecDeque::new();
    let mut left = MAX_SCOPES;
    std::iter::from_fn(move || {
        let current = next.take().or_else(|| callers.pop_front())?;
        left = usize::checked_sub(left, 1)?;
        next.clone_from(&current.parent);
        callers.extend(current.caller.clone());
        Some(current)
    })
}

/// The output of a block.
#[derive(Default)]
struct OutputBlock {
    declarations: Vec<(String, String)>,
    parts: Vec<OutputPart>,
}

/// A part of the output.
enum OutputPart {
    Rule { selectors: Vec<String>, declarations: Vec<(String, String)> },
    AtRule { head: String, declarations: Vec<(String, String)>, parts: Vec<OutputPart> },
    Statement(String),
}

impl OutputPart {
    fn write(&self, out: &mut String, depth: usize) -> Result<(), String> {
        let indent = "  ".repeat(depth);
        match self {
            Self::Rule { selectors, declarations } => {
                append_output(out, &[&indent])?;
                for (index, selector) in selectors.iter().enumerate() {
                    append_output(out, &[if index > 0 { ", " } else { "" }, selector])?;
                }
                append_output(out, &[" {\n"])?;
                write_declarations(declarations, out, &indent)?;
                append_output(out, &[&indent, "}\n"])
            }
            Self::AtRule { head, declarations, parts } => {
                append_output(out, &[&indent, head, " {\n"])?;
                write_declarations(declarations, out, &indent)?;
                for part in parts {
                    part.write(out, depth + 1)?;
                }
                append_output(out, &[&indent, "}\n"])
            }
            Self::Statement(text) => append_output(out, &[&indent, text, ";\n"]),
        }
    }
}

fn write_declarations(
    declarations: &[(String, String)],
    out: &mut String,
    indent: &str,
) -> Result<(), String> {
    for (name, value) in declarations {
        append_output(out, &[indent, "  ", name, ": ", value, ";\n"])?;
    }
    Ok(())
}

/// Appends texts to the output unless it would become too large.
fn append_output(out: &mut String, texts: &[&str]) -> Result<(), String> {
    for text in texts {
        if out.len().saturating_add(text.len()) > MAX_OUTPUT_BYTES {
            return Err(format!("the style sheet is larger than {MAX_OUTPUT_BYTES} bytes"));
        }
        out.push_str(text);
    }
    Ok(())
}

/// An argument of a call of a mixin.
struct EvaluatedArgument<'a> {
    name: Option<&'a str>,
    value: Rc<str>,
}

struct LessEvaluator {
    steps: usize,
    depth: usize,
    /// Bytes of the values that were computed so far.
    computed_bytes: usize,
    /// The file and line of the innermost statement that failed.
    fault_place: Option<(Rc<str>, usize)>,
}

impl LessEvaluator {
    fn evaluate(&mut self, statements: &[LocatedStatement]) -> Result<String, String> {
        let scope = LessScope::new(statements, None);
        let mut block = OutputBlock::default();
        self.evaluate_block(statements, &scope, &[], &mut block)?;
        if !block.declarations.is_empty() {
            return Err("there is a declaration outside of a rule".to_owned());
        }
        let mut out = String::new();
        for part in &block.parts {
            part.write(&mut out, 0)?;
        }
        Ok(out)
    }

    /// Runs a function one level deeper.
    fn nested<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        if self.depth >= MAX_DEPTH {
            return Err(format!("mixins, blocks or variables are more than {MAX_DEPTH} deep"));
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    fn count_step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(format!("the style sheet takes more than {MAX_STEPS} steps"));
        }
        Ok(())
    }

    /// Counts the bytes of a text before it is copied or computed.
    fn charge(&mut self, bytes: usize) -> Result<(), String> {
        self.computed_bytes = self.computed_bytes.saturating_add(bytes);
        if self.computed_bytes > MAX_COMPUTED_BYTES {
            return Err(format!(
                "the values of the style sheet are larger than {MAX_COMPUTED_BYTES} bytes"
            ));
        }
        Ok(())
    }

    /// Appends a text to a value.
    fn append(&mut self, value: &mut String, text: &str) -> Result<(), String> {
        check_value_size(value.len().saturating_add(text.len()))?;
        self.charge(text.len())?;
        value.push_str(text);
        Ok(())
    }

    /// Joins values by blanks.
    fn join_values<'a>(
        &mut self,
        values: impl Iterator<Item = &'a EvaluatedArgument<'a>>,
    ) -> Result<Rc<str>, String> {
        let mut joined = String::new();
        for (index, argument) in values.enumerate() {
            if index > 0 {
                self.append(&mut joined, " ")?;
            }
            self.append(&mut joined, &argument.value)?;
        }
        Ok(joined.into())
    }

    fn evaluate_block(
        &mut self,
        statements: &[LocatedStatement],
        scope: &Rc<LessScope>,
        selectors: &[String],
        block: &mut OutputBlock,
    ) -> Result<(), String> {
        for LocatedStatement { file, line, statement } in statements {
            if let Err(reason) = self.evaluate_statement(statement, scope, selectors, block) {
                self.fault_place.get_or_insert_with(|| (Rc::clone(file), *line));
                return Err(reason);
            }
        }
        Ok(())
    }

    fn evaluate_statement(
        &mut self,
        statement: &LessStatement,
        scope: &Rc<LessScope>,
        selectors: &[String],
        block: &mut OutputBlock,
    ) -> Result<(), String> {
        self.count_step()?;
        match statement {
            LessStatement::Variable { .. } => {}
            LessStatement::Declaration { name, value } => {
                let name = self.interpolate(name, scope)?;
                let value = self.evaluate_text(value, scope)?;
                block.declarations.push((name, value));
            }
            LessStatement::Rule(rule) if rule.parameters.is_none() => {
                self.evaluate_rule(rule, scope, selectors, block)?;
            }
            LessStatement::Rule(_) => {}
            LessStatement::AtRule { name, prelude, body } => {
                let body = body.as_deref();
                self.evaluate_at_rule(name, prelude, body, scope, selectors, block)?;
            }
            LessStatement::MixinCall { path, arguments, is_important } => {
                let first = block.declarations.len();
                self.nested(|this| this.call_mixin(path, arguments, scope, selectors, block))?;
                if *is_important {
                    for (_, value) in block.declarations.iter_mut().skip(first) {
                        self.append(value, IMPORTANT_MARK)?;
                    }
                }
            }
            LessStatement::Import { text, .. } => {
                self.charge(text.len())?;
                block.parts.push(OutputPart::Statement(text.clone()));
            }
        }
        Ok(())
    }

    fn evaluate_rule(
        &mut self,
        rule: &LessRule,
        scope: &Rc<LessScope>,
        selectors: &[String],
        block: &mut OutputBlock,
    ) -> Result<(), String> {
        if let Some(guard) = &rule.guard
            && !self.is_guard_true(guard, scope, false)?
        {
            return Ok(());
        }
        let own = self.interpolate(&rule.selector, scope)?;
        let selectors = self.join_selectors(selectors, &own)?;
        let inner_scope = LessScope::new(&rule.body, Some(Rc::clone(scope)));
        let mut inner = OutputBlock::default();
        self.nested(|this| this.evaluate_block(&rule.body, &inner_scope, &selectors, &mut inner))?;
        if !inner.declarations.is_empty() {
            block.parts.push(OutputPart::Rule { selectors, declarations: inner.declarations });
        }
        block.parts.append(&mut inner.parts);
        Ok(())
    }

    /// Combines the selectors of a nested rule with those around it.
    fn join_selectors(&mut self, outer: &[String], own: &str) -> Result<Vec<String>, String> {
        let mut selectors = Vec::new();
        // A rule outside of others has nothing that `&` stands for.
        let top = [String::new()];
        let outer = if outer.is_empty() { &top } else { outer };
        for own in split_outside(own, ',') {
            let own = own.split_whitespace().collect::<Vec<_>>().join(" ");
            let ampersands = own.matches('&').count();
            for outer in outer {
                let inserted = outer.len().saturating_mul(ampersands.max(1));
                let bytes = own.len().saturating_add(inserted);
                check_value_size(bytes)?;
                self.charge(bytes)?;
                let joined = match ampersands {
                    0 => format!("{outer} {own}"),
                    _ => own.replace('&', outer),
                };
                selectors.push(joined.trim().to_owned());
                if selectors.len() > MAX_SELECTORS {
                    return Err(format!("a rule has more than {MAX_SELECTORS} selectors"));
                }
            }
        }
        Ok(selectors)
    }

    fn evaluate_at_rule(
        &mut self,
        name: &str,
        prelude: &str,
        body: Option<&[LocatedStatement]>,
        scope: &Rc<LessScope>,
        selectors: &[String],
        block: &mut OutputBlock,
    ) -> Result<(), String> {
        let prelude = if name == "charset" || name == "namespace" {
            prelude.to_owned()
        } else {
            self.substitute_variables(prelude, scope)?
        };
        let head = format!("@{name} {prelude}").trim_end().to_owned();
        self.charge(head.len())?;
        let Some(body) = body else {
            block.parts.push(OutputPart::Statement(head));
            return Ok(());
        };
        let inner_scope = LessScope::new(body, Some(Rc::clone(scope)));
        let mut inner = OutputBlock::default();
        let is_conditional = CONDITIONAL_RULES.contains(&name);
        let inner_selectors = if is_conditional { selectors } else { &[] };
        self.nested(|this| this.evaluate_block(body, &inner_scope, inner_selectors, &mut inner))?;
        let OutputBlock { mut declarations, mut parts } = inner;
        if is_conditional && !selectors.is_empty() && !declarations.is_empty() {
            self.charge(selectors.iter().map(String::len).sum())?;
            let declarations = std::mem::take(&mut declarations);
            parts.insert(0, OutputPart::Rule { selectors: selectors.to_vec(), declarations });
        }
        if !declarations.is_empty() || !parts.is_empty() {
            block.parts.push(OutputPart::AtRule { head, declarations, parts });
        }
        Ok(())
    }

    /// Calls every mixin of a name whose parameters and guard match.
    fn call_mixin(
        &mut self,
        path: &[String],
        arguments: &[(Option<String>, String)],
        scope: &Rc<LessScope>,
        selectors: &[String],
        block: &mut OutputBlock,
    ) -> Result<(), String> {
        let mut values = Vec::new();
        for (name, value) in arguments {
            let value = self.evaluate_text(value, scope)?.into();
            values.push(EvaluatedArgument { name: name.as_deref(), value });
        }
        let candidates = find_mixins(path, scope);
        if candidates.is_empty() {
            return Err(format!("there is no mixin `{}`", path.join(" > ")));
        }
        let mut matching = Vec::new();
        let mut defaults = Vec::new();
        for (rule, definition_scope) in candidates {
            let parameters = rule.parameters.as_deref().unwrap_or_default();
            let Some(bound) = self.bind_arguments(parameters, &values, &definition_scope, scope)?
            else {
                continue;
            };
            let parameter_scope =
                LessScope::with_variables(bound, Rc::clone(&definition_scope), scope);
            match &rule.guard {
                None => matching.push((rule, parameter_scope)),
                Some(guard) if guard.contains("default()") => {
                    defaults.push((rule, parameter_scope))
                }
                Some(guard) => {
                    if self.is_guard_true(guard, &parameter_scope, false)? {
                        matching.push((rule, parameter_scope));
                    }
                }
            }
        }
        for (rule, parameter_scope) in defaults {
            let guard = rule.guard.as_deref().unwrap_or_default();
            if self.is_guard_true(guard, &parameter_scope, matching.is_empty())? {
                matching.push((rule, parameter_scope));
            }
        }
        for (rule, parameter_scope) in matching {
            let body_scope = LessScope::new(&rule.body, Some(parameter_scope));
            self.nested(|this| this.evaluate_block(&rule.body, &body_scope, selectors, block))?;
        }
        Ok(())
    }

    /// Binds the arguments of a call to parameters; `None` if they do not fit.
    fn bind_arguments(
        &mut self,
        parameters: &[LessParameter],
        arguments: &[EvaluatedArgument<'_>],
        scope: &Rc<LessScope>,
        caller: &Rc<LessScope>,
    ) -> Result<Option<LessVariables>, String> {
        let mut bound = LessVariables::new();
        for argument in arguments {
            if let Some(name) = argument.name {
                if !parameters.iter().any(|parameter| *parameter.name == *name) {
                    return Ok(None);
                }
                bound.insert(name.into(), Rc::clone(&argument.value));
            }
        }
        let mut positional = arguments.iter().filter(|argument| argument.name.is_none());
        for parameter in parameters {
            if bound.contains_key(&parameter.name) {
                continue;
            }
            if parameter.takes_rest {
                let rest = self.join_values(positional.by_ref())?;
                bound.insert(Rc::clone(&parameter.name), rest);
                continue;
            }
            let value = match (positional.next(), &parameter.default) {
                (Some(argument), pattern) if parameter.name.is_empty() => {
                    if pattern.as_deref() != Some(&*argument.value) {
                        return Ok(None);
                    }
                    continue;
                }
                (Some(argument), _) => Rc::clone(&argument.value),
                (None, Some(default)) if !parameter.name.is_empty() => {
                    // The copy holds references to the texts.
                    self.charge(bound.len().saturating_mul(size_of::<[Rc<str>; 2]>()))?;
                    let partial =
                        LessScope::with_variables(bound.clone(), Rc::clone(scope), caller);
                    self.evaluate_text(default, &partial)?.into()
                }
                (None, _) => return Ok(None),
            };
            bound.insert(Rc::clone(&parameter.name), value);
        }
        if positional.next().is_some() {
            return Ok(None);
        }
        bound.insert("arguments".into(), self.join_values(arguments.iter())?);
        Ok(Some(bound))
    }

    /// Evaluates the guard of a mixin or rule.
    fn is_guard_true(
        &mut self,
        guard: &str,
        scope: &Rc<LessScope>,
        is_default: bool,
    ) -> Result<bool, String> {
        self.charge(guard.len())?;
        for alternative in split_outside(guard, ',') {
            let mut is_true = true;
            for condition in split_words(alternative, "and") {
                let (condition, is_negated) = match condition.strip_prefix("not") {
                    Some(rest) => (rest.trim(), true),
                    None => (condition.as_str(), false),
                };
                let inner = condition.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
                let holds =
                    self.is_condition_true(inner.unwrap_or(condition).trim(), scope, is_default)?;
                is_true &= holds != is_negated;
            }
            if is_true {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_condition_true(
        &mut self,
        condition: &str,
        scope: &Rc<LessScope>,
        is_default: bool,
    ) -> Result<bool, String> {
        if condition == "default()" {
            return Ok(is_default);
        }
        for operator in [">=", "=<", "<=", ">", "<", "="] {
            if let Some((left, right)) = condition.split_once(operator) {
                let left = self.evaluate_single(left.trim(), scope)?;
                let right = self.evaluate_single(right.trim(), scope)?;
                return Ok(match (&left, &right) {
                    (
                        LessValue::Number { number: left, .. },
                        LessValue::Number { number: right, .. },
                    ) => match operator {
                        ">=" => left >= right,
                        "=<" | "<=" => left <= right,
                        ">" => left > right,
                        "<" => left < right,
                        _ => (left - right).abs() < f64::EPSILON,
                    },
                    _ => operator == "=" && left.plain_text() == right.plain_text(),
                });
            }
        }
        if let Some((name, rest)) = condition.split_once('(')
            && let Some(argument) = rest.strip_suffix(')')
        {
            let value = self.evaluate_single(argument.trim(), scope)?;
            let unit = match &value {
                LessValue::Number { unit, .. } => Some(unit.as_str()),
                _ => None,
            };
            return Ok(match name {
                "isnumber" => unit.is_some(),
                "iscolor" => value.to_color().is_some(),
                "isstring" => matches!(value, LessValue::Quoted(..)),
                "iskeyword" => {
                    matches!(&value, LessValue::Text(text) if text.chars().all(is_name_character))
                }
                "ispixel" => unit == Some("px"),
                "ispercentage" => unit == Some("%"),
                "isem" => unit == Some("em"),
                _ => return Err(format!("`{name}` in a guard is not supported")),
            });
        }
        Ok(self.evaluate_text(condition, scope)? == "true")
    }

    /// Returns the evaluated value of a variable.
    fn variable(&mut self, name: &str, scope: &Rc<LessScope>) -> Result<String, String> {
        for candidate in enclosing_scopes(scope) {
            if let Some(value) = candidate.variables.get(name) {
                let value = Rc::clone(value);
                return self.nested(|this| this.evaluate_text(&value, scope)).map_err(|reason| {
                    if reason.contains("deep") {
                        format!("`@{name}` is defined by itself, or too deeply")
                    } else {
                        reason
                    }
                });
            }
        }
        Err(format!("there is no variable `@{name}`"))
    }

    /// Replaces interpolations (`@{name}`) in a selector, a name or a string.
    fn interpolate(&mut self, text: &str, scope: &Rc<LessScope>) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("@{") {
            let (before, after) = rest.split_at(at);
            self.append(&mut out, before)?;
            let end = after.find('}').ok_or("an interpolation has no `}`")?;
            let name = after.get(2..end).unwrap_or_default();
            let value = self.variable(name, scope)?;
            self.append(&mut out, value.trim_matches(['"', '\'']))?;
            rest = after.get(end + 1..).unwrap_or_default();
        }
        self.append(&mut out, rest)?;
        Ok(out)
    }

    /// Replaces variables in a text that is no expression, such as the condition of `@media`.
    fn substitute_variables(
        &mut self,
        text: &str,
        scope: &Rc<LessScope>,
    ) -> Result<String, String> {
        let text = self.interpolate(text, scope)?;
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find('@') {
            let (before, after) = rest.split_at(at);
            self.append(&mut out, before)?;
            let name = after.get(1..).unwrap_or_default();
            let end = name.find(|next: char| !is_name_character(next)).unwrap_or(name.len());
            let (name, after) = name.split_at(end);
            let value = self.variable(name, scope)?;
            // A whole condition is often stored as an escaped string.
            self.append(&mut out, value.trim_matches(['"', '\'']))?;
            rest = after;
        }
        self.append(&mut out, rest)?;
        Ok(out.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Evaluates the value of a declaration or variable.
    fn evaluate_text(&mut self, text: &str, scope: &Rc<LessScope>) -> Result<String, String> {
        self.count_step()?;
        // A long text takes time even if its value is short.
        self.charge(text.len())?;
        let mut value = String::new();
        for (index, part) in split_outside(text, ',').into_iter().enumerate() {
            if index > 0 {
                self.append(&mut value, ", ")?;
            }
            let mut reader =
                ExpressionReader { evaluator: self, scope, rest: part.trim(), depth: 0 };
            let list = reader.read_list()?;
            self.append(&mut value, &list)?;
        }
        Ok(value)
    }

    /// Evaluates an expression to one value.
    fn evaluate_single(&mut self, text: &str, scope: &Rc<LessScope>) -> Result<LessValue, String> {
        let text = self.evaluate_text(text, scope)?;
        Ok(value_from_text(&text))
    }
}

/// Returns the value that an evaluated text stands for.
fn value_from_text(text: &str) -> LessValue {
    match text.chars().next() {
        Some(quote @ ('"' | '\''))
            if text.len() > 1 && string_length(text, quote) == text.len() =>
        {
            LessValue::Quoted(text.get(1..text.len() - 1).unwrap_or_default().to_owned(), quote)
        }
        _ => match parse_rgb(text) {
            Some(color) => color,
            None => LessValue::from_word(text),
        },
    }
}

/// Parses `rgb()` and `rgba()` with numbers.
fn parse_rgb(text: &str) -> Option<LessValue> {
    let inner =
        text.strip_prefix("rgba(").or_else(|| text.strip_prefix("rgb("))?.strip_suffix(')')?;
    let numbers: Vec<f64> =
        inner.split(',').map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
    let alpha = numbers.get(3).copied().unwrap_or(1.0);
    let [red, green, blue] = *numbers.first_chunk()?;
    Some(LessValue::Color { channels: [red, green, blue], alpha, text: Some(text.to_owned()) })
}

/// Refuses a value that is too large.
fn check_value_size(bytes: usize) -> Result<(), String> {
    if bytes > MAX_VALUE_BYTES {
        return Err(format!("a value is larger than {MAX_VALUE_BYTES} bytes"));
    }
    Ok(())
}

/// Finds the mixins of a path, in the nearest scope that has any.
fn find_mixins(path: &[String], scope: &Rc<LessScope>) -> Vec<(Rc<LessRule>, Rc<LessScope>)> {
    let Some((name, inner)) = path.split_first() else { return Vec::new() };
    for candidate in enclosing_scopes(scope) {
        let named = candidate.rules.iter().filter(|rule| {
            split_outside(&rule.selector, ',').into_iter().any(|selector| selector == *name)
        });
        let mut found = Vec::new();
        for rule in named {
            if inner.is_empty() {
                found.push((Rc::clone(rule), Rc::clone(&candidate)));
            } else {
                let folder = LessScope::new(&rule.body, Some(Rc::clone(&candidate)));
                let is_own =
                    |(_, scope): &(Rc<LessRule>, Rc<LessScope>)| Rc::ptr_eq(scope, &folder);
                let below = find_mixins(inner, &folder).into_iter();
                found.extend(below.filter(|entry| inner.len() > 1 || is_own(entry)));
            }
        }
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Splits a text at a word outside of parentheses.
fn split_words(text: &str, word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for part in split_outside(text, ' ').into_iter().filter(|part| !part.is_empty()) {
        match parts.last_mut() {
            Some(_) if part == word => parts.push(String::new()),
            Some(last) => {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(part);
            }
            None => {}
        }
    }
    parts
}

/// Reads an expression without commas.
struct ExpressionReader<'a, 'b> {
    evaluator: &'a mut LessEvaluator,
    scope: &'a Rc<LessScope>,
    rest: &'b str,
    /// Depth of parentheses, in which a slash divides.
    depth: usize,
}

impl ExpressionReader<'_, '_> {
    /// Reads values that are separated by blanks.
    fn read_list(&mut self) -> Result<String, String> {
        let mut out = String::new();
        loop {
            let trimmed = self.rest.trim_start();
            let has_blank = trimmed.len() < self.rest.len();
            self.rest = trimmed;
            if self.rest.is_empty() {
                return Ok(out);
            }
            let before = self.rest.len();
            let value = self.read_sum()?;
            if has_blank && !out.is_empty() {
                self.evaluator.append(&mut out, " ")?;
            }
            self.evaluator.append(&mut out, &value.to_string())?;
            if self.rest.len() == before {
                // Nothing above knows this character: it is CSS.
                let next = self.rest.chars().next().map_or(0, char::len_utf8);
                let (taken, left) = self.rest.split_at(next);
                self.evaluator.append(&mut out, taken)?;
                self.rest = left;
            }
        }
    }

    fn read_sum(&mut self) -> Result<LessValue, String> {
        let mut left = self.read_product()?;
        loop {
            let after = self.rest.trim_start();
            let has_blank = after.len() < self.rest.len();
            let Some(operator) = after.chars().next().filter(|next| matches!(next, '+' | '-'))
            else {
                return Ok(left);
            };
            let right_text = after.get(1..).unwrap_or_default();
            let is_followed_by_blank = right_text.starts_with(char::is_whitespace);
            // `a -b` is a list, `a - b` and `a-b` are operations.
            if has_blank != is_followed_by_blank || !is_operand(&left) {
                return Ok(left);
            }
            let before = self.rest;
            self.rest = right_text.trim_start();
            let right = self.read_product()?;
            match operate(&left, operator, &right) {
                Some(result) => left = result,
                None => {
                    self.rest = before;
                    return Ok(left);
                }
            }
        }
    }

    fn read_product(&mut self) -> Result<LessValue, String> {
        let (mut left, mut is_computed) = self.read_operand()?;
        loop {
            let after = self.rest.trim_start();
            let has_blank = after.len() < self.rest.len();
            let Some(operator) = after.chars().next().filter(|next| matches!(next, '*' | '/'))
            else {
                return Ok(left);
            };
            let before = self.rest;
            let right_text = after.get(1..).unwrap_or_default();
            self.rest = right_text.trim_start();
            let (right, is_right_computed) = self.read_operand()?;
            // A slash between two plain numbers is CSS, as in `font: 12px/1.5`.
            let divides = operator == '*'
                || self.depth > 0
                || is_computed
                || is_right_computed
                || (has_blank && right_text.starts_with(' '));
            match operate(&left, operator, &right).filter(|_| divides) {
                Some(result) => (left, is_computed) = (result, true),
                None => {
                    self.rest = before;
                    return Ok(left);
                }
            }
        }
    }

    /// Reads one operand, and returns whether it was computed.
    fn read_operand(&mut self) -> Result<(LessValue, bool), String> {
        let rest = self.rest;
        let Some(next) = rest.chars().next() else {
            return Ok((LessValue::Text(String::new()), false));
        };
        let take = |length: usize| rest.split_at(length.min(rest.len()));
        if rest.starts_with("~\"") || rest.starts_with("~'") {
            let quote = rest.chars().nth(1).unwrap_or('"');
            let inner = rest.get(1..).unwrap_or_default();
            let length = string_length(inner, quote);
            self.rest = inner.get(length..).unwrap_or_default();
            let text = inner.get(1..length.saturating_sub(1)).unwrap_or_default();
            let text = self.evaluator.interpolate(text, self.scope)?;
            return Ok((LessValue::Text(text), true));
        }
        match next {
            '"' | '\'' => {
                let (text, left) = take(string_length(rest, next));
                self.rest = left;
                let inner = text.get(1..text.len().saturating_sub(1)).unwrap_or_default();
                let inner = self.evaluator.interpolate(inner, self.scope)?;
                Ok((LessValue::Quoted(inner, next), false))
            }
            '(' => {
                let end = closing_parenthesis(rest)?;
                let inner = rest.get(1..end).unwrap_or_default();
                self.rest = rest.get(end + 1..).unwrap_or_default();
                let value = self.read_parenthesized(inner)?;
                Ok((value, true))
            }
            '@' => {
                let is_indirect = rest.starts_with("@@");
                let name = rest.trim_start_matches('@');
                if rest.starts_with("@{") {
                    let end = rest.find('}').map_or(rest.len(), |end| end + 1);
                    let (text, left) = take(end);
                    self.rest = left;
                    let value = self.evaluator.interpolate(text, self.scope)?;
                    return Ok((value_from_text(&value), true));
                }
                let end = name.find(|next: char| !is_name_character(next)).unwrap_or(name.len());
                let (name, left) = name.split_at(end);
                self.rest = left;
                let mut value = self.evaluator.variable(name, self.scope)?;
                if is_indirect {
                    let name = value.trim_matches(['"', '\'']).to_owned();
                    value = self.evaluator.variable(&name, self.scope)?;
                }
                Ok((value_from_text(&value), true))
            }
            '-' if rest.starts_with("-@") || rest.starts_with("-(") => {
                self.rest = rest.get(1..).unwrap_or_default();
                let (value, _) = self.read_operand()?;
                let zero = LessValue::number(0.0, "");
                Ok((operate(&zero, '-', &value).unwrap_or(value), true))
            }
            _ => self.read_word(),
        }
    }

    /// Reads a number, a color, a name, or a call of a function.
    fn read_word(&mut self) -> Result<(LessValue, bool), String> {
        let rest = self.rest;
        let starts_number = |text: &str| {
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            digits.starts_with(|next: char| next.is_ascii_digit())
                || (digits.starts_with('.')
                    && digits.chars().nth(1).is_some_and(|next| next.is_ascii_digit()))
        };
        // A range of characters is no sum.
        if rest.starts_with("U+") || rest.starts_with("u+") {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let (word, left) = rest.split_at(end);
            self.rest = left;
            return Ok((LessValue::Text(word.to_owned()), false));
        }
        let is_number = starts_number(rest);
        let end = rest
            .char_indices()
            .skip(1)
            .find(|(_, next)| match is_number {
                true => !next.is_ascii_alphanumeric() && !matches!(next, '.' | '%'),
                false => {
                    !is_name_character(*next)
                        && !matches!(next, '.' | ':' | '=' | '#' | '%' | '!' | '?')
                }
            })
            .map_or(rest.len(), |(at, _)| at);
        let (word, left) = rest.split_at(end);
        if left.starts_with('(') && !is_number {
            let close = closing_parenthesis(left)?;
            let inner = left.get(1..close).unwrap_or_default();
            self.rest = left.get(close + 1..).unwrap_or_default();
            return self.read_call(word, inner);
        }
        self.rest = left;
        Ok((LessValue::from_word(word), false))
    }

    fn read_call(&mut self, name: &str, inner: &str) -> Result<(LessValue, bool), String> {
        if name == "url" && !inner.contains('@') {
            return Ok((LessValue::Text(format!("url({inner})")), false));
        }
        if name == "calc" || name == "var" || name.starts_with("progid") {
            let inner = self.evaluator.substitute_variables(inner, self.scope)?;
            return Ok((LessValue::Text(format!("{name}({inner})")), false));
        }
        self.check_depth()?;
        let mut arguments = Vec::new();
        let mut bytes = 0_usize;
        for part in split_outside(inner, ',').into_iter().filter(|part| !part.is_empty()) {
            let mut reader = ExpressionReader {
                evaluator: self.evaluator,
                scope: self.scope,
                rest: part,
                depth: self.depth + 1,
            };
            let text = reader.read_list()?;
            // The call is a value itself if no function has its name.
            bytes = bytes.saturating_add(text.len());
            check_value_size(bytes)?;
            arguments.push(value_from_text(&text));
        }
        match call_function(name, &arguments) {
            Some(result) => Ok((result?, true)),
            None => {
                let texts: Vec<_> = arguments.iter().map(ToString::to_string).collect();
                let text = format!("{name}({})", texts.join(", "));
                Ok((value_from_text(&text), false))
            }
        }
    }

    fn check_depth(&self) -> Result<(), String> {
        if self.depth > MAX_PARENTHESES {
            return Err(format!("parentheses are more than {MAX_PARENTHESES} deep"));
        }
        Ok(())
    }

    /// Reads an expression in parentheses.
    fn read_parenthesized(&mut self, inner: &str) -> Result<LessValue, String> {
        self.check_depth()?;
        let mut reader = ExpressionReader {
            evaluator: self.evaluator,
            scope: self.scope,
            rest: inner.trim(),
            depth: self.depth + 1,
        };
        let text = reader.read_list()?;
        Ok(match value_from_text(&text) {
            value @ (LessValue::Number { .. } | LessValue::Color { .. }) => value,
            _ => LessValue::Text(format!("({text})")),
        })
    }
}

/// Returns the position of the parenthesis that closes the first one.
fn closing_parenthesis(text: &str) -> Result<usize, String> {
    let inner = text.get(1..).unwrap_or_default();
    find_outside(inner, &[')'])
        .map(|at| at + 1)
        .ok_or_else(|| format!("`{text}` has no closing parenthesis"))
}

/// Returns true if a value can be an operand.
fn is_operand(value: &LessValue) -> bool {
    matches!(value, LessValue::Number { .. } | LessValue::Color { .. })
}

/// Computes an operation; `None` if the operands allow none.
fn operate(left: &LessValue, operator: char, right: &LessValue) -> Option<LessValue> {
    let compute = |left: f64, right: f64| match operator {
        '+' => Some(left + right),
        '-' => Some(left - right),
        '*' => Some(left * right),
        _ => (right != 0.0).then(|| left / right),
    };
    match (left, right) {
        (
            LessValue::Number { number: left, unit },
            LessValue::Number { number: right, unit: right_unit },
        ) => {
            let unit = if unit.is_empty() { right_unit } else { unit };
            Some(LessValue::number(compute(*left, *right)?, unit))
        }
        (LessValue::Color { channels, alpha, .. }, LessValue::Number { number, .. }) => {
            let mut result = [0.0; 3];
            for (out, channel) in result.iter_mut().zip(channels) {
                *out = compute(*channel, *number)?;
            }
            Some(LessValue::color(result, *alpha))
        }
        (LessValue::Color { channels, alpha, .. }, LessValue::Color { channels: other, .. }) => {
            let mut result = [0.0; 3];
            for ((out, channel), other) in result.iter_mut().zip(channels).zip(other) {
                *out = compute(*channel, *other)?;
            }
            Some(LessValue::color(result, *alpha))
        }
        _ => None,
    }
}
