//! The compiler: from markup with statements to steps, in one pass.
//!
//! Elements are a stack of what their end tags have to do; nothing is built of them, so that the depth of markup costs
//! no stack. Statements of an element take effect in the order of their priority, as in Sling:
//!
//! 1. `template` begins a function of its own.
//! 2. `set`, `test` and `use`, in the order of the source.
//! 3. `element`, `unwrap`, `list` and `repeat`, in front of the tag.
//! 4. The tag, with `attribute`.
//! 5. Of `call`, `text`, `include` and `resource` the first, in place of the content.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{HtlCompileError, HtlDiagnostic};
use crate::escape::{DisplayContext, is_sensitive_attribute};
use crate::markup::{MarkupToken, MarkupTokenizer, StartTag, TagAttribute};
use crate::program::{
    AttributeMapStep, AttributePart, AttributeStep, AttributeValue, CallStep, ComputedValue,
    ContextChoice, LoopStep, OuterName, ProgramExpression, ProgramStep, ScriptFunction,
    ScriptProgram, Slot, SourceRange, StepIndex, UseStep, ValueOptions, place_of,
};
use crate::syntax::{
    SyntaxExpression, SyntaxFault, SyntaxNode, SyntaxOption, find_expression_end, parse_expression,
};

/// Longer sources are refused: positions are four bytes, and a script of this size is a mistake.
const MAX_SOURCE_BYTES: usize = 8 << 20;
/// After this number of faults the rest is not checked; further warnings are left out.
const MAX_FAULTS: usize = 100;

/// Elements that have no end tag.
pub(crate) const VOID_ELEMENTS: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
];

/// Compiles a script.
pub(crate) fn compile_script(name: &str, source: &str) -> Result<ScriptProgram, HtlCompileError> {
    let name: Arc<str> = name.into();
    if source.len() > MAX_SOURCE_BYTES {
        let message = format!("the script has more than {MAX_SOURCE_BYTES} bytes");
        let place = place_of(&name, source, 0);
        return Err(HtlCompileError::new(vec![HtlDiagnostic { place, message }]));
    }
    let mut compiler = ScriptCompiler {
        source,
        elements: Vec::new(),
        open_names: HashMap::new(),
        function: FunctionBuilder::default(),
        finished: Vec::new(),
        template_names: HashSet::new(),
        outer_names: Vec::new(),
        outer_positions: HashMap::new(),
        faults: Vec::new(),
        warnings: Vec::new(),
    };
    compiler.run();
    let diagnostics = |mut list: Vec<SyntaxFault>| -> Vec<HtlDiagnostic> {
        list.sort_by_key(|fault| fault.offset);
        let diagnostic = |fault: SyntaxFault| HtlDiagnostic {
            place: place_of(&name, source, fault.offset),
            message: fault.message,
        };
        list.into_iter().map(diagnostic).collect()
    };
    if !compiler.faults.is_empty() {
        return Err(HtlCompileError::new(diagnostics(compiler.faults)));
    }
    let warnings = diagnostics(compiler.warnings);
    let mut functions = vec![compiler.function.finish()];
    functions.append(&mut compiler.finished);
    let templates: HashMap<&str, usize> = functions
        .iter()
        .enumerate()
        .skip(1)
        .map(|(index, function)| (&*function.name, index))
        .collect();
    let outer_names = compiler.outer_names.into_iter().map(|name| match templates.get(&*name) {
        Some(index) => OuterName::Template(*index),
        None => OuterName::Host(name),
    });
    let outer_names = outer_names.collect();
    Ok(ScriptProgram { name, source: source.to_owned(), functions, outer_names, warnings })
}

/// The pass over the tokens of a script.
struct ScriptCompiler<'a> {
    source: &'a str,
    /// The open elements, outermost first.
    elements: Vec<OpenElement>,
    /// The number of open elements by name in lower case, so that an end tag without a start is noticed at once.
    open_names: HashMap<String, usize>,
    /// The function that is being built.
    function: FunctionBuilder,
    /// Templates that are complete.
    finished: Vec<ScriptFunction>,
    template_names: HashSet<Arc<str>>,
    outer_names: Vec<Arc<str>>,
    outer_positions: HashMap<Arc<str>, usize>,
    faults: Vec<SyntaxFault>,
    warnings: Vec<SyntaxFault>,
}

/// A function while it is built.
#[derive(Default)]
struct FunctionBuilder {
    name: Arc<str>,
    parameters: Vec<Arc<str>>,
    steps: Vec<ProgramStep>,
    slots: usize,
    /// Variables that statements set, and parameters.
    variables: HashMap<Arc<str>, Slot>,
    /// Names of `variables` in the order in which they were set first.
    declared: Vec<Arc<str>>,
    /// Variables of the loops around the current place, innermost last.
    loops: Vec<LoopScope>,
    /// True if a step can be reached from elsewhere, so that the next one cannot be joined to it.
    is_target: bool,
}

/// The variables of a loop.
struct LoopScope {
    item_name: Arc<str>,
    item: Slot,
    status_name: Arc<str>,
    status: Slot,
    is_status_read: bool,
    /// The step of the loop, which learns whether the status is read.
    begin: StepIndex,
}

impl FunctionBuilder {
    fn finish(self) -> ScriptFunction {
        ScriptFunction {
            name: self.name,
            parameters: self.parameters,
            slots: self.slots,
            steps: self.steps,
        }
    }

    fn new_slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    /// Returns the slot of a variable that a statement sets.
    fn declare(&mut self, name: &Arc<str>) -> Slot {
        if let Some(scope) = self.loops.iter().rev().find(|scope| scope.item_name == *name) {
            return scope.item;
        }
        if let Some(slot) = self.variables.get(name) {
            return *slot;
        }
        let slot = self.new_slot();
        self.variables.insert(Arc::clone(name), slot);
        self.declared.push(Arc::clone(name));
        slot
    }

    fn find(&mut self, name: &str) -> Option<Slot> {
        for scope in self.loops.iter_mut().rev() {
            if *scope.item_name == *name {
                return Some(scope.item);
            }
            if *scope.status_name == *name {
                scope.is_status_read = true;
                return Some(scope.status);
            }
        }
        self.variables.get(name).copied()
    }

    fn add(&mut self, step: ProgramStep) -> StepIndex {
        self.is_target = false;
        self.steps.push(step);
        self.steps.len() - 1
    }

    /// Adds a part of the source, joined to the one in front of it if nothing is between them.
    fn add_source(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let range = source_range(&range);
        if !self.is_target
            && let Some(ProgramStep::Source(last)) = self.steps.last_mut()
            && last.end == range.start
        {
            last.end = range.end;
            return;
        }
        self.add(ProgramStep::Source(range));
    }

    /// Returns the index of the next step, which jumps may lead to.
    fn target(&mut self) -> StepIndex {
        self.is_target = true;
        self.steps.len()
    }

    /// Makes a jump lead to the next step.
    fn land(&mut self, jump: StepIndex) {
        let target = self.target();
        match self.steps.get_mut(jump) {
            Some(
                ProgramStep::Jump(to)
                | ProgramStep::JumpUnless(_, to)
                | ProgramStep::JumpIf(_, to)
                | ProgramStep::JumpIfVoidElement(_, to)
                | ProgramStep::LoopNext(to),
            ) => *to = target,
            Some(ProgramStep::LoopBegin(step)) => step.exit = target,
            _ => {}
        }
    }

    /// Forgets steps and variables of content that is never shown.
    fn discard_from(&mut self, mark: ContentMark) {
        self.steps.truncate(mark.steps);
        self.is_target = true;
        for name in self.declared.drain(mark.declared.min(self.declared.len())..) {
            self.variables.remove(&name);
        }
    }
}

/// The state of a function in front of content that is replaced.
#[derive(Clone, Copy)]
struct ContentMark {
    steps: usize,
    declared: usize,
}

/// An element whose end was not reached.
#[derive(Default)]
struct OpenElement {
    /// The name in lower case.
    name: String,
    offset: usize,
    has_statements: bool,
    /// The kind of text inside: outputs in scripts and styles need a context.
    is_code: bool,
    /// The function around a template, restored at its end.
    outer_function: Option<FunctionBuilder>,
    /// Jumps to the place behind the element.
    exits: Vec<StepIndex>,
    /// Content that is replaced begins here.
    hidden_content: Option<ContentMark>,
    tag: TagVisibility,
    /// The variable with the name of the element.
    element_name: Option<Slot>,
    list: Option<StepIndex>,
    repeat: Option<StepIndex>,
}

/// Whether the tags of an element are written.
#[derive(Default, Clone, Copy)]
enum TagVisibility {
    #[default]
    Always,
    Never,
    /// Unless a variable is true.
    Unless(Slot),
}

/// A statement of an element.
struct BlockStatement<'a> {
    kind: &'a str,
    /// The part behind the first period.
    identifier: Option<&'a str>,
    value: Option<Range<usize>>,
    name_offset: usize,
    /// The index among the attributes.
    position: usize,
}

const STATEMENTS: [&str; 13] = [
    "attribute",
    "call",
    "element",
    "include",
    "list",
    "repeat",
    "resource",
    "set",
    "template",
    "test",
    "text",
    "unwrap",
    "use",
];

/// The value of a statement: a value, and options that are the statement's own.
struct StatementValue {
    value: ComputedValue,
    /// True if the attribute has a value.
    is_given: bool,
    options: Vec<(Arc<str>, ProgramExpression)>,
}

impl<'a> ScriptCompiler<'a> {
    fn run(&mut self) {
        for token in MarkupTokenizer::new(self.source) {
            if self.faults.len() >= MAX_FAULTS {
                return;
            }
            match token {
                MarkupToken::Text(range) => {
                    let is_code = self.elements.last().is_some_and(|element| element.is_code);
                    self.text(range, if is_code { None } else { Some(DisplayContext::Text) });
                }
                MarkupToken::Comment(range) => self.text(range, Some(DisplayContext::Comment)),
                MarkupToken::HtlComment(_) => {}
                MarkupToken::Declaration(range) => self.function.add_source(range),
                MarkupToken::StartTag(tag) => self.start_tag(&tag),
                MarkupToken::EndTag { range, name } => self.end_tag(range, name),
            }
        }
        while let Some(element) = self.elements.pop() {
            if element.has_statements {
                let message = format!("the element `{}` has no end tag", element.name);
                self.warn(element.offset, message);
            }
            self.close(element, None);
        }
    }

    fn slice(&self, range: &Range<usize>) -> &'a str {
        self.source.get(range.clone()).unwrap_or_default()
    }

    fn fault(&mut self, offset: usize, message: impl Into<String>) {
        self.faults.push(SyntaxFault { offset, message: message.into() });
    }

    fn warn(&mut self, offset: usize, message: impl Into<String>) {
        if self.warnings.len() >= MAX_FAULTS {
            return;
        }
        self.warnings.push(SyntaxFault { offset, message: message.into() });
    }

    /// Splits a part of the source into literal parts and expressions.
    fn fragments(&mut self, range: &Range<usize>) -> Vec<SourceFragment> {
        let mut fragments = Vec::new();
        let mut at = range.start;
        let mut literal = range.start;
        while let Some(found) = memchr::memmem::find(self.slice(&(at..range.end)).as_bytes(), b"${")
        {
            at += found;
            if at > range.start && self.source.as_bytes().get(at - 1) == Some(&b'\\') {
                // `\${...}` is written without the backslash and without a meaning.
                if at - 1 > literal {
                    fragments.push(SourceFragment::Literal(literal..at - 1));
                }
                literal = at;
                let close = memchr::memchr(b'}', self.slice(&(at..range.end)).as_bytes());
                at = close.map_or(range.end, |close| at + close + 1);
                continue;
            }
            if at > literal {
                fragments.push(SourceFragment::Literal(literal..at));
            }
            match parse_expression(self.source, at, range.end) {
                Ok((expression, end)) => {
                    fragments.push(SourceFragment::Expression(at, expression));
                    at = end;
                }
                Err(fault) => {
                    self.faults.push(fault);
                    let source = self.source.as_bytes().get(..range.end).unwrap_or_default();
                    at = find_expression_end(source, at).unwrap_or(range.end);
                }
            }
            literal = at;
            if self.faults.len() >= MAX_FAULTS {
                break;
            }
        }
        if literal < range.end {
            fragments.push(SourceFragment::Literal(literal..range.end));
        }
        fragments
    }

    /// Compiles text; without a default context, expressions need their own.
    fn text(&mut self, range: Range<usize>, context: Option<DisplayContext>) {
        if memchr::memmem::find(self.slice(&range).as_bytes(), b"${").is_none() {
            self.function.add_source(range);
            return;
        }
        for fragment in self.fragments(&range) {
            match fragment {
                SourceFragment::Literal(literal) => self.function.add_source(literal),
                SourceFragment::Expression(offset, expression) => {
                    let value = self.computed(offset, expression);
                    let has_context = has_context(&value);
                    match context {
                        None if !has_context => self.warn(
                            offset,
                            "an expression in a script or style sheet writes nothing without the option `context`",
                        ),
                        _ => {
                            let context = context.unwrap_or(DisplayContext::Text);
                            self.function.add(ProgramStep::Output(Box::new(value), context));
                        }
                    }
                }
            }
        }
    }

    /// Resolves the variables of an expression.
    fn lower(&mut self, node: SyntaxNode) -> ProgramExpression {
        match node {
            SyntaxNode::Boolean(value) => ProgramExpression::Boolean(value),
            SyntaxNode::Integer(number) => ProgramExpression::Integer(number),
            SyntaxNode::Float(number) => ProgramExpression::Float(number),
            SyntaxNode::Text(text) => ProgramExpression::Text(text),
            SyntaxNode::Name(name) => self.variable(&name),
            SyntaxNode::List(items) => ProgramExpression::List(self.lower_all(items)),
            SyntaxNode::Path(base, keys) => {
                ProgramExpression::Path(Box::new(self.lower(*base)), self.lower_all(keys))
            }
            SyntaxNode::Not(node) => ProgramExpression::Not(Box::new(self.lower(*node))),
            SyntaxNode::And(nodes) => ProgramExpression::And(self.lower_all(nodes)),
            SyntaxNode::Or(nodes) => ProgramExpression::Or(self.lower_all(nodes)),
            SyntaxNode::Contains { item, container } => ProgramExpression::Contains {
                item: Box::new(self.lower(*item)),
                container: Box::new(self.lower(*container)),
            },
            SyntaxNode::Compare(operator, left, right) => ProgramExpression::Compare(
                operator,
                Box::new(self.lower(*left)),
                Box::new(self.lower(*right)),
            ),
            SyntaxNode::Choice(parts) => {
                ProgramExpression::Choice(Box::new(parts.map(|part| self.lower(part))))
            }
        }
    }

    fn lower_all(&mut self, nodes: Vec<SyntaxNode>) -> Vec<ProgramExpression> {
        nodes.into_iter().map(|node| self.lower(node)).collect()
    }

    fn lower_option(&mut self, value: Option<SyntaxNode>) -> ProgramExpression {
        value.map_or(ProgramExpression::Null, |node| self.lower(node))
    }

    fn variable(&mut self, name: &Arc<str>) -> ProgramExpression {
        if let Some(slot) = self.function.find(name) {
            return ProgramExpression::Local(slot);
        }
        let position = self.outer_positions.get(name).copied().unwrap_or_else(|| {
            self.outer_names.push(Arc::clone(name));
            self.outer_positions.insert(Arc::clone(name), self.outer_names.len() - 1);
            self.outer_names.len() - 1
        });
        ProgramExpression::Outer(position)
    }

    /// Compiles an expression whose options change its value.
    fn computed(&mut self, offset: usize, expression: SyntaxExpression) -> ComputedValue {
        let root = self.lower_option(expression.root);
        let mut options = ValueOptions::default();
        let mut has_options = false;
        for option in expression.options {
            has_options |= self.value_option(&mut options, option);
        }
        let options = has_options.then(|| Box::new(options));
        ComputedValue { offset: to_u32(offset), root, options }
    }

    /// Adds an option; returns false if it is not one that changes a value.
    fn value_option(&mut self, options: &mut ValueOptions, option: SyntaxOption) -> bool {
        let place = match &*option.name {
            "context" => {
                options.context = Some(match option.value {
                    Some(SyntaxNode::Text(name)) => {
                        let context = DisplayContext::find(&name);
                        if context.is_none() {
                            let message =
                                format!("there is no context `{name}`; nothing is written");
                            self.warn(option.offset, message);
                        }
                        ContextChoice::Fixed(context)
                    }
                    value => ContextChoice::Computed(self.lower_option(value)),
                });
                return true;
            }
            "i18n" => {
                options.i18n = true;
                return true;
            }
            "locale" => &mut options.locale,
            "hint" => &mut options.hint,
            "basename" => &mut options.basename,
            "format" => &mut options.format,
            "type" => &mut options.kind,
            "timezone" => &mut options.timezone,
            "join" => &mut options.join,
            "scheme" | "domain" | "path" | "prependPath" | "appendPath" | "selectors"
            | "addSelectors" | "removeSelectors" | "extension" | "suffix" | "prependSuffix"
            | "appendSuffix" | "fragment" | "query" | "addQuery" | "removeQuery" => {
                let value = self.lower_option(option.value);
                options.uri.push((option.name, value));
                return true;
            }
            name => {
                let message = format!("the option `{name}` has no effect here");
                self.warn(option.offset, message);
                return false;
            }
        };
        *place = Some(self.lower_option(option.value));
        true
    }

    /// Compiles the value of a statement. `own` are the options that the statement takes itself, besides unknown ones;
    /// `takes_all` is true if all are parameters.
    fn statement_value(
        &mut self,
        statement: &BlockStatement<'_>,
        own: &[&str],
        takes_all: bool,
        takes_unknown: bool,
    ) -> StatementValue {
        let offset = statement.value.as_ref().map_or(statement.name_offset, |value| value.start);
        let fragments = statement.value.clone().map(|value| self.fragments(&value));
        let is_given = fragments.is_some();
        let mut fragments = fragments.unwrap_or_default();
        let mut options = Vec::new();
        for fragment in &mut fragments {
            if let SourceFragment::Expression(_, expression) = fragment {
                let all = std::mem::take(&mut expression.options);
                for option in all {
                    let is_own = takes_all
                        || own.contains(&&*option.name)
                        || (takes_unknown && !is_value_option(&option.name));
                    if is_own {
                        let value = self.lower_option(option.value);
                        options.push((option.name, value));
                    } else {
                        expression.options.push(option);
                    }
                }
            }
        }
        let value = match fragments.len() {
            0 => ComputedValue {
                offset: to_u32(offset),
                root: ProgramExpression::Text(Arc::default()),
                options: None,
            },
            1 => match fragments.pop() {
                Some(SourceFragment::Expression(offset, expression)) => {
                    self.computed(offset, expression)
                }
                Some(SourceFragment::Literal(range)) => self.literal(&range),
                None => return StatementValue { value: null_value(offset), is_given, options },
            },
            _ => {
                let parts = fragments.into_iter().map(|fragment| match fragment {
                    SourceFragment::Expression(offset, expression) => {
                        self.computed(offset, expression)
                    }
                    SourceFragment::Literal(range) => self.literal(&range),
                });
                let root = ProgramExpression::Joined(parts.collect());
                ComputedValue { offset: to_u32(offset), root, options: None }
            }
        };
        StatementValue { value, is_given, options }
    }

    fn literal(&self, range: &Range<usize>) -> ComputedValue {
        ComputedValue {
            offset: to_u32(range.start),
            root: ProgramExpression::Text(self.slice(range).into()),
            options: None,
        }
    }

    /// Returns the name of a variable from a statement, in lower case.
    fn identifier(&mut self, statement: &BlockStatement<'_>, default: &str) -> Arc<str> {
        let name = statement.identifier.unwrap_or(default);
        let mut bytes = name.bytes();
        let is_valid =
            bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
        if !is_valid {
            let message = format!("expressions cannot name a variable `{name}`");
            self.warn(statement.name_offset, message);
        }
        name.to_ascii_lowercase().into()
    }

    /// Returns the statements of a tag, in the order of the source.
    fn statements(&mut self, tag: &StartTag) -> Vec<BlockStatement<'a>> {
        let mut statements = Vec::new();
        for (position, attribute) in tag.attributes.iter().enumerate() {
            let Some(statement) = statement_name(self.slice(&attribute.name)) else {
                continue;
            };
            let (kind, identifier) = match statement.split_once('.') {
                Some((kind, identifier)) => {
                    (kind, Some(identifier).filter(|name| !name.is_empty()))
                }
                None => (statement, None),
            };
            let Some(kind) = STATEMENTS.iter().find(|known| known.eq_ignore_ascii_case(kind))
            else {
                let message = format!("there is no statement `data-sly-{kind}`");
                self.fault(attribute.name.start, message);
                continue;
            };
            let value = attribute.value.clone();
            let name_offset = attribute.name.start;
            statements.push(BlockStatement { kind, identifier, value, name_offset, position });
        }
        statements
    }

    fn start_tag(&mut self, tag: &StartTag) {
        let name = self.slice(&tag.name).to_ascii_lowercase();
        let is_closed = tag.is_self_closing || VOID_ELEMENTS.contains(&&*name);
        let statements = self.statements(tag);
        let parent_is_code = self.elements.last().is_some_and(|element| element.is_code);
        let mut element = OpenElement {
            offset: tag.range.start,
            has_statements: !statements.is_empty(),
            is_code: parent_is_code || matches!(&*name, "script" | "style"),
            name,
            ..OpenElement::default()
        };
        let has_expressions =
            memchr::memmem::find(self.slice(&tag.range).as_bytes(), b"${").is_some();
        if statements.is_empty() && !has_expressions && element.name != "sly" {
            self.function.add_source(tag.range.clone());
        } else {
            self.computed_tag(tag, &statements, &mut element);
        }
        if is_closed {
            self.close(element, None);
            return;
        }
        match self.open_names.get_mut(&element.name) {
            Some(count) => *count += 1,
            None => {
                self.open_names.insert(element.name.clone(), 1);
            }
        }
        self.elements.push(element);
    }

    fn computed_tag(
        &mut self,
        tag: &StartTag,
        statements: &[BlockStatement<'a>],
        element: &mut OpenElement,
    ) {
        if element.name == "sly" {
            element.tag = TagVisibility::Never;
        }
        if let Some(statement) = statements.iter().find(|statement| statement.kind == "template") {
            self.begin_template(statement, element);
        }
        for statement in statements {
            match statement.kind {
                "set" => self.set_statement(statement),
                "test" => self.test_statement(statement, element),
                "use" => self.use_statement(statement),
                _ => {}
            }
        }
        if let Some(statement) = statements.iter().find(|statement| statement.kind == "element") {
            let mut value = self.statement_value(statement, &[], false, false).value;
            add_context(&mut value, DisplayContext::ElementName);
            let slot = self.function.new_slot();
            self.function.add(ProgramStep::Set(slot, Box::new(value)));
            element.element_name = Some(slot);
        }
        if let Some(statement) = statements.iter().find(|statement| statement.kind == "unwrap") {
            self.unwrap_statement(statement, element);
        }
        if let Some(statement) = statements.iter().find(|statement| statement.kind == "repeat") {
            let begin = self.begin_loop(statement);
            element.exits.push(begin);
            element.repeat = Some(self.function.target());
            self.function.add(ProgramStep::LoopNext(0));
        }
        let list = statements.iter().find(|statement| statement.kind == "list");
        if let Some(statement) = list {
            let begin = self.begin_loop(statement);
            element.exits.push(begin);
        }
        self.open_tag(tag, statements, element);
        if list.is_some() {
            element.list = Some(self.function.target());
        }
        let content = ["call", "text", "include", "resource"]
            .iter()
            .find_map(|kind| statements.iter().find(|statement| statement.kind == *kind));
        if let Some(statement) = content {
            self.content_statement(statement);
            element.hidden_content = Some(ContentMark {
                steps: self.function.steps.len(),
                declared: self.function.declared.len(),
            });
        }
        if list.is_some() {
            self.function.add(ProgramStep::LoopNext(0));
        }
    }

    fn begin_template(&mut self, statement: &BlockStatement<'a>, element: &mut OpenElement) {
        if statement.identifier.is_none() {
            self.fault(
                statement.name_offset,
                "`data-sly-template` takes a name, as in `data-sly-template.name`",
            );
        }
        let name = self.identifier(statement, "");
        if !self.template_names.insert(Arc::clone(&name)) {
            let message = format!("there are several templates `{name}`; the last one is called");
            self.warn(statement.name_offset, message);
        }
        let value = self.statement_value(statement, &[], true, false);
        let mut function = FunctionBuilder { name, ..FunctionBuilder::default() };
        for (parameter, _) in value.options {
            let parameter: Arc<str> = parameter.to_ascii_lowercase().into();
            if !function.variables.contains_key(&parameter) {
                function.declare(&parameter);
                function.parameters.push(parameter);
            }
        }
        function.declared.clear();
        element.outer_function = Some(std::mem::replace(&mut self.function, function));
        element.tag = TagVisibility::Never;
    }

    fn set_statement(&mut self, statement: &BlockStatement<'a>) {
        if statement.identifier.is_none() {
            self.fault(
                statement.name_offset,
                "`data-sly-set` takes a name, as in `data-sly-set.name`",
            );
            return;
        }
        let value = self.statement_value(statement, &[], false, false).value;
        let name = self.identifier(statement, "");
        let slot = self.function.declare(&name);
        self.function.add(ProgramStep::Set(slot, Box::new(value)));
    }

    /// Returns the variable that a statement with an optional identifier sets.
    fn optional_slot(&mut self, statement: &BlockStatement<'a>) -> Slot {
        if statement.identifier.is_none() {
            return self.function.new_slot();
        }
        let name = self.identifier(statement, "");
        self.function.declare(&name)
    }

    fn test_statement(&mut self, statement: &BlockStatement<'a>, element: &mut OpenElement) {
        let value = self.statement_value(statement, &[], false, false).value;
        let slot = self.optional_slot(statement);
        self.function.add(ProgramStep::Set(slot, Box::new(value)));
        element.exits.push(self.function.add(ProgramStep::JumpUnless(slot, 0)));
    }

    fn use_statement(&mut self, statement: &BlockStatement<'a>) {
        let value = self.statement_value(statement, &[], true, false);
        if !value.is_given {
            self.fault(statement.name_offset, "`data-sly-use` takes the name of a class or script");
        }
        let name = self.identifier(statement, "useBean");
        let slot = self.function.declare(&name);
        let call = CallStep { target: value.value, options: value.options };
        self.function.add(ProgramStep::Use(Box::new(UseStep { slot, name, call })));
    }

    fn unwrap_statement(&mut self, statement: &BlockStatement<'a>, element: &mut OpenElement) {
        let mut value = self.statement_value(statement, &[], false, false);
        if !value.is_given {
            value.value.root = ProgramExpression::Boolean(true);
        }
        let slot = self.optional_slot(statement);
        self.function.add(ProgramStep::Set(slot, Box::new(value.value)));
        if element.outer_function.is_none() {
            element.tag = TagVisibility::Unless(slot);
        }
    }

    /// Adds the beginning of a loop and its variables.
    fn begin_loop(&mut self, statement: &BlockStatement<'a>) -> StepIndex {
        let mut value = self.statement_value(statement, &["begin", "step", "end"], false, false);
        let mut option = |name: &str| {
            let position = value.options.iter().position(|(option, _)| &**option == name)?;
            Some(value.options.swap_remove(position).1)
        };
        let (begin, step, end) = (option("begin"), option("step"), option("end"));
        let item_name = self.identifier(statement, "item");
        let status_name: Arc<str> = format!("{item_name}list").into();
        let item = self.function.new_slot();
        let status = self.function.new_slot();
        let mut collection = value.value;
        if !value.is_given {
            collection.root = ProgramExpression::Null;
        }
        let step = LoopStep { collection, begin, step, end, item, status: None, exit: 0 };
        let begin = self.function.add(ProgramStep::LoopBegin(Box::new(step)));
        let is_status_read = false;
        self.function.loops.push(LoopScope {
            item_name,
            item,
            status_name,
            status,
            is_status_read,
            begin,
        });
        begin
    }

    /// Adds the end of a loop: the jump to its next round.
    fn end_loop(&mut self, next: StepIndex) {
        self.function.add(ProgramStep::Jump(next));
        self.function.land(next);
        self.end_loop_scope();
    }

    fn end_loop_scope(&mut self) {
        if let Some(scope) = self.function.loops.pop()
            && scope.is_status_read
            && let Some(ProgramStep::LoopBegin(step)) = self.function.steps.get_mut(scope.begin)
        {
            step.status = Some(scope.status);
        }
    }

    fn content_statement(&mut self, statement: &BlockStatement<'a>) {
        match statement.kind {
            "text" => {
                let value = self.statement_value(statement, &[], false, false).value;
                self.function.add(ProgramStep::Output(Box::new(value), DisplayContext::Text));
            }
            "call" => {
                if statement.identifier.is_some() {
                    self.fault(statement.name_offset, "`data-sly-call` takes no name");
                }
                let value = self.statement_value(statement, &[], true, false);
                let call = CallStep { target: value.value, options: value.options };
                self.function.add(ProgramStep::Call(Box::new(call)));
            }
            "include" => {
                let own = ["appendPath", "prependPath", "file", "path"];
                let value = self.statement_value(statement, &own, false, true);
                let call = CallStep { target: value.value, options: value.options };
                self.function.add(ProgramStep::Include(Box::new(call)));
            }
            _ => {
                let own = [
                    "appendPath",
                    "prependPath",
                    "path",
                    "file",
                    "selectors",
                    "addSelectors",
                    "removeSelectors",
                    "resourceType",
                ];
                let value = self.statement_value(statement, &own, false, true);
                let call = CallStep { target: value.value, options: value.options };
                self.function.add(ProgramStep::Resource(Box::new(call)));
            }
        }
    }

    fn open_tag(
        &mut self,
        tag: &StartTag,
        statements: &[BlockStatement<'a>],
        element: &OpenElement,
    ) {
        let hidden = match element.tag {
            TagVisibility::Never => return,
            TagVisibility::Always => None,
            TagVisibility::Unless(slot) => Some(self.function.add(ProgramStep::JumpIf(slot, 0))),
        };
        let start = tag.range.start..tag.name.end;
        let tail = tag.tail..tag.range.end;
        if let Some(slot) = element.element_name {
            let other = self.function.add(ProgramStep::JumpUnless(slot, 0));
            self.function.add(ProgramStep::Fixed("<"));
            self.function.add(ProgramStep::Raw(slot));
            let behind = self.function.add(ProgramStep::Jump(0));
            self.function.land(other);
            self.function.add_source(start);
            self.function.land(behind);
            self.attributes(tag, statements);
            let other = self.function.add(ProgramStep::JumpUnless(slot, 0));
            self.function.add(ProgramStep::Fixed(">"));
            let behind = self.function.add(ProgramStep::Jump(0));
            self.function.land(other);
            self.function.add_source(tail);
            self.function.land(behind);
        } else {
            self.function.add_source(start);
            self.attributes(tag, statements);
            self.function.add_source(tail);
        }
        if let Some(jump) = hidden {
            self.function.land(jump);
        }
    }

    /// Adds the attributes of a tag. Plain attributes and `data-sly-attribute` apply from left to right: what comes later
    /// in the tag wins.
    fn attributes(&mut self, tag: &StartTag, statements: &[BlockStatement<'a>]) {
        let mut singles = Vec::new();
        let mut maps: Vec<(usize, Slot, u32)> = Vec::new();
        for statement in statements.iter().filter(|statement| statement.kind == "attribute") {
            let value = self.statement_value(statement, &[], false, false).value;
            let Some(name) = statement.identifier else {
                let slot = self.function.new_slot();
                maps.push((statement.position, slot, value.offset));
                self.function.add(ProgramStep::Set(slot, Box::new(value)));
                continue;
            };
            // Sling joins the parts of `data-sly-attribute.a.b` so.
            let name = name.replace('.', "-");
            if is_sensitive_attribute(&name) {
                let message = format!(
                    "`data-sly-attribute` cannot write `{name}`; write the attribute with an expression that has a `context`"
                );
                self.warn(statement.name_offset, message);
                continue;
            }
            singles.push(NamedAttribute {
                position: statement.position,
                name: name.into(),
                value: Some(value),
            });
        }
        let maps_behind = |position: usize| -> Vec<Slot> {
            let behind = maps.iter().rev().filter(|(map, _, _)| *map > position);
            behind.map(|(_, slot, _)| *slot).collect()
        };
        let mut plain_names: Vec<Arc<str>> = Vec::new();
        for (position, attribute) in tag.attributes.iter().enumerate() {
            let name = self.slice(&attribute.name);
            if statement_name(name).is_some() {
                continue;
            }
            plain_names.push(name.to_ascii_lowercase().into());
            let single = singles.iter_mut().rev().find(|single| {
                single.position > position && single.name.eq_ignore_ascii_case(name)
            });
            let name_source = Some(source_range(&(attribute.range.start..attribute.name.end)));
            let hint = DisplayContext::of_attribute(name);
            let name: Arc<str> = name.into();
            if let Some(single) = single {
                let maps = maps_behind(single.position);
                let value =
                    single.value.take().map_or(AttributeValue::Absent, AttributeValue::Single);
                let step = AttributeStep { name_source, name, quote: b'"', value, maps, hint };
                self.function.add(ProgramStep::Attribute(Box::new(step)));
                continue;
            }
            let maps = maps_behind(position);
            let value = self.attribute_value(attribute, &name);
            match value {
                AttributeValue::Literal(_) if maps.is_empty() => {
                    self.function.add_source(attribute.range.clone());
                }
                value => {
                    let quote = attribute.quote.unwrap_or(b'"');
                    let step = AttributeStep { name_source, name, quote, value, maps, hint };
                    self.function.add(ProgramStep::Attribute(Box::new(step)));
                }
            }
        }
        let mut written: HashSet<Arc<str>> = plain_names.iter().cloned().collect();
        // The last statement for a name is the one that counts; it stands where the first one would.
        let mut last_of: HashMap<Arc<str>, usize> = HashMap::new();
        for (index, single) in singles.iter().enumerate() {
            last_of.insert(single.name.to_ascii_lowercase().into(), index);
        }
        let mut ignored = plain_names;
        for index in 0..singles.len() {
            let Some(single) = singles.get(index) else { continue };
            let key: Arc<str> = single.name.to_ascii_lowercase().into();
            ignored.push(Arc::clone(&key));
            if !written.insert(Arc::clone(&key)) {
                continue;
            }
            let last = last_of.get(&key).copied().unwrap_or(index);
            let Some(single) = singles.get_mut(last) else { continue };
            let Some(value) = single.value.take() else { continue };
            let step = AttributeStep {
                name_source: None,
                name: Arc::clone(&single.name),
                quote: b'"',
                value: AttributeValue::Single(value),
                maps: maps_behind(single.position),
                hint: DisplayContext::of_attribute(&single.name),
            };
            self.function.add(ProgramStep::Attribute(Box::new(step)));
        }
        for (position, map, offset) in &maps {
            let later_maps = maps_behind(*position);
            let ignored = ignored.clone();
            let step = AttributeMapStep { map: *map, ignored, later_maps, offset: *offset };
            self.function.add(ProgramStep::AttributeMap(Box::new(step)));
        }
    }

    fn attribute_value(&mut self, attribute: &TagAttribute, name: &str) -> AttributeValue {
        let literal = AttributeValue::Literal(source_range(&attribute.range));
        let Some(range) = attribute.value.clone() else {
            return literal;
        };
        let fragments = self.fragments(&range);
        let has_expression =
            fragments.iter().any(|fragment| matches!(fragment, SourceFragment::Expression(..)));
        // An escaped expression alone loses its backslash.
        let is_whole = matches!(&*fragments, [SourceFragment::Literal(part)] if *part == range);
        if !has_expression && (is_whole || fragments.is_empty()) {
            return literal;
        }
        let is_single = fragments.len() == 1 && has_expression;
        let mut parts = Vec::new();
        for fragment in fragments {
            match fragment {
                SourceFragment::Literal(range) => {
                    parts.push(AttributePart::Source(source_range(&range)));
                }
                SourceFragment::Expression(offset, expression) => {
                    let value = self.computed(offset, expression);
                    if is_sensitive_attribute(name) && !has_context(&value) {
                        let message = format!(
                            "an expression in the attribute `{name}` writes nothing without the option `context`"
                        );
                        self.warn(offset, message);
                    } else if is_single {
                        return AttributeValue::Single(value);
                    } else {
                        parts.push(AttributePart::Value(value));
                    }
                }
            }
        }
        if parts.is_empty() { AttributeValue::Absent } else { AttributeValue::Mixed(parts) }
    }

    fn end_tag(&mut self, range: Range<usize>, name: Range<usize>) {
        let name = self.slice(&name).to_ascii_lowercase();
        if self.open_names.get(&name).copied().unwrap_or(0) == 0 {
            if name == "sly" {
                self.warn(range.start, "the end tag `sly` has no start tag");
            } else {
                self.function.add_source(range);
            }
            return;
        }
        while let Some(element) = self.elements.pop() {
            if let Some(count) = self.open_names.get_mut(&element.name) {
                *count = count.saturating_sub(1);
            }
            if element.name == name {
                self.close(element, Some(range));
                return;
            }
            if element.has_statements {
                let message = format!("the element `{}` has no end tag", element.name);
                self.warn(element.offset, message);
            }
            self.close(element, None);
        }
    }

    /// Ends an element, with the range of its end tag if it has one.
    fn close(&mut self, element: OpenElement, end: Option<Range<usize>>) {
        if let Some(mark) = element.hidden_content {
            self.function.discard_from(mark);
            if element.list.is_some() {
                self.function.add(ProgramStep::LoopEnd);
                self.end_loop_scope();
            }
        } else if let Some(next) = element.list {
            self.end_loop(next);
        }
        self.close_tag(&element, end);
        if let Some(next) = element.repeat {
            self.end_loop(next);
        }
        for exit in element.exits {
            self.function.land(exit);
        }
        if let Some(outer) = element.outer_function {
            let function = std::mem::replace(&mut self.function, outer);
            self.finished.push(function.finish());
        }
    }

    fn close_tag(&mut self, element: &OpenElement, end: Option<Range<usize>>) {
        if end.is_none() && element.element_name.is_none() {
            return;
        }
        let hidden = match element.tag {
            TagVisibility::Never => return,
            TagVisibility::Always => None,
            TagVisibility::Unless(slot) => Some(self.function.add(ProgramStep::JumpIf(slot, 0))),
        };
        if let Some(slot) = element.element_name {
            let other = self.function.add(ProgramStep::JumpUnless(slot, 0));
            let void = self.function.add(ProgramStep::JumpIfVoidElement(slot, 0));
            self.function.add(ProgramStep::Fixed("</"));
            self.function.add(ProgramStep::Raw(slot));
            self.function.add(ProgramStep::Fixed(">"));
            let behind = self.function.add(ProgramStep::Jump(0));
            self.function.land(other);
            self.function.add_source(end.unwrap_or_default());
            self.function.land(void);
            self.function.land(behind);
        } else {
            self.function.add_source(end.unwrap_or_default());
        }
        if let Some(jump) = hidden {
            self.function.land(jump);
        }
    }
}

/// A literal part of text, or an expression and its first byte.
enum SourceFragment {
    Literal(Range<usize>),
    Expression(usize, SyntaxExpression),
}

/// A `data-sly-attribute` with a name.
struct NamedAttribute {
    position: usize,
    name: Arc<str>,
    value: Option<ComputedValue>,
}

/// Returns the part of an attribute's name behind `data-sly-`.
fn statement_name(name: &str) -> Option<&str> {
    const PREFIX: &str = "data-sly-";
    let is_statement = name.get(..PREFIX.len())?.eq_ignore_ascii_case(PREFIX);
    if is_statement { name.get(PREFIX.len()..) } else { None }
}

fn is_value_option(name: &str) -> bool {
    matches!(
        name,
        "context"
            | "i18n"
            | "locale"
            | "hint"
            | "basename"
            | "format"
            | "type"
            | "timezone"
            | "join"
            | "scheme"
            | "domain"
            | "extension"
            | "suffix"
            | "prependSuffix"
            | "appendSuffix"
            | "fragment"
            | "query"
            | "addQuery"
            | "removeQuery"
    )
}

fn has_context(value: &ComputedValue) -> bool {
    value.options.as_ref().is_some_and(|options| options.context.is_some())
}

/// Gives a value a context unless it has one.
fn add_context(value: &mut ComputedValue, context: DisplayContext) {
    let options = value.options.get_or_insert_default();
    if options.context.is_none() {
        options.context = Some(ContextChoice::Fixed(Some(context)));
    }
}

fn null_value(offset: usize) -> ComputedValue {
    ComputedValue { offset: to_u32(offset), root: ProgramExpression::Null, options: None }
}

fn source_range(range: &Range<usize>) -> SourceRange {
    SourceRange { start: to_u32(range.start), end: to_u32(range.end) }
}

/// Sources have at most [`MAX_SOURCE_BYTES`].
fn to_u32(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}
