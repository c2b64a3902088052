//! The escaping analysis over the syntax trees of all templates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use minijinja::machinery::{Span, ast, parse};
use minijinja::syntax::SyntaxConfig;

use super::context::EscapeContext;
use super::output_escape::OutputEscape;
use super::refusal::TemplateRefusal;
use super::rewrite::{RewrittenTemplate, TemplateEdit};
use crate::template::template_name::{TemplateLanguage, resolve_template_name};

/// The parser states in which a position of a template can be reached; empty if it is unreachable.
type EscapeContextSet = BTreeSet<EscapeContext>;

/// Maximum number of states at one position; a template with more is too complex.
const MAX_STATES: usize = 24;

/// Maximum number of rounds for the states of a loop to converge.
const MAX_LOOP_ROUNDS: usize = 24;

/// Maximum number of variants of a template; more indicate a cycle of includes.
const MAX_VARIANTS: usize = 64;

/// Determines the escapes of all templates, by the names under which they are compiled.
///
/// Templates that do not parse are omitted: compiling them reports the reason.
pub(crate) fn analyze_templates(
    scripts: &BTreeMap<String, String>,
) -> BTreeMap<String, Result<RewrittenTemplate, TemplateRefusal>> {
    let mut analyst =
        EscapeAnalyzer { scripts, entries: HashMap::new(), variant_counts: HashMap::new() };
    for path in scripts.keys() {
        analyst.visit_template(path, &initial_contexts(path));
    }
    let done = analyst.entries.into_iter();
    done.filter_map(|((path, _), entry)| {
        let AnalysisEntry::Analyzed { name, analysis } = entry else {
            return None;
        };
        let analysis = analysis.map(|analysis| {
            let original = scripts.get(&path).map(String::as_str).unwrap_or_default();
            RewrittenTemplate::new(original.into(), analysis.edits.clone())
        });
        Some((name, analysis.map_err(|refusal| (*refusal).clone())))
    })
    .collect()
}

/// Returns the states at the beginning of a template.
fn initial_contexts(path: &str) -> EscapeContextSet {
    EscapeContextSet::from([match TemplateLanguage::from_template_name(path) {
        TemplateLanguage::Html | TemplateLanguage::Text => EscapeContext::html(),
        TemplateLanguage::Xml => EscapeContext::xml(),
        TemplateLanguage::Json | TemplateLanguage::Script => EscapeContext::script(),
        TemplateLanguage::Style => EscapeContext::style(),
    }])
}

/// All templates, and their analyses so far.
struct EscapeAnalyzer<'a> {
    scripts: &'a BTreeMap<String, String>,
    entries: HashMap<(String, EscapeContextSet), AnalysisEntry>,
    /// Number of names that a template has so far.
    variant_counts: HashMap<String, usize>,
}

enum AnalysisEntry {
    Running,
    Analyzed {
        name: String,
        analysis: Result<Arc<TemplateAnalysis>, Arc<TemplateRefusal>>,
    },
    /// The template does not parse.
    ParseFailed,
}

/// The analysis of a template for a set of initial states.
#[derive(Debug, Default)]
struct TemplateAnalysis {
    edits: Vec<TemplateEdit>,
    end_contexts: EscapeContextSet,
    /// The states at the begin and end of each block, for templates that extend this one.
    block_contexts: HashMap<String, (EscapeContextSet, EscapeContextSet)>,
}

/// A template as other templates refer to it.
enum TemplateReference {
    Analyzed(String, Arc<TemplateAnalysis>),
    Refused(Arc<TemplateRefusal>),
    /// The template is missing or does not parse; running it reports the error.
    Unknown,
    Cyclic,
}

impl EscapeAnalyzer<'_> {
    /// Analyzes a template for a set of initial states, once.
    fn visit_template(&mut self, path: &str, begin_states: &EscapeContextSet) -> TemplateReference {
        let key = (path.to_owned(), begin_states.clone());
        match self.entries.get(&key) {
            Some(AnalysisEntry::Running) => return TemplateReference::Cyclic,
            Some(AnalysisEntry::ParseFailed) => return TemplateReference::Unknown,
            Some(AnalysisEntry::Analyzed { name, analysis }) => {
                return match analysis {
                    Ok(analysis) => TemplateReference::Analyzed(name.clone(), Arc::clone(analysis)),
                    Err(refusal) => TemplateReference::Refused(Arc::clone(refusal)),
                };
            }
            None => {}
        }
        let Some(text) = self.scripts.get(path) else {
            return TemplateReference::Unknown;
        };
        let Ok(tree) = parse(text, path, SyntaxConfig::default()) else {
            self.entries.insert(key, AnalysisEntry::ParseFailed);
            return TemplateReference::Unknown;
        };
        let is_plain = *begin_states == initial_contexts(path);
        let number = self.variant_counts.entry(path.to_owned()).or_default();
        *number += usize::from(!is_plain);
        let name = if is_plain { path.to_owned() } else { format!("{path}#{number}") };
        if *number > MAX_VARIANTS {
            return TemplateReference::Cyclic;
        }
        self.entries.insert(key.clone(), AnalysisEntry::Running);
        let analysis = self.analyze_template(path, text, &tree, begin_states);
        let analysis = analysis.map(Arc::new).map_err(Arc::new);
        let reference = match &analysis {
            Ok(analysis) => TemplateReference::Analyzed(name.clone(), Arc::clone(analysis)),
            Err(refusal) => TemplateReference::Refused(Arc::clone(refusal)),
        };
        self.entries.insert(key, AnalysisEntry::Analyzed { name, analysis });
        reference
    }

    fn analyze_template(
        &mut self,
        path: &str,
        text: &str,
        tree: &ast::Stmt<'_>,
        begin_states: &EscapeContextSet,
    ) -> Result<TemplateAnalysis, TemplateRefusal> {
        let ast::Stmt::Template(template) = tree else {
            return Ok(TemplateAnalysis::default());
        };
        if TemplateLanguage::from_template_name(path) == TemplateLanguage::Text {
            return Ok(TemplateAnalysis {
                end_contexts: begin_states.clone(),
                ..TemplateAnalysis::default()
            });
        }
        let mut pass = TemplatePass {
            analyzer: self,
            path,
            text,
            begin_contexts: initial_contexts(path),
            analysis: TemplateAnalysis::default(),
            loops: Vec::new(),
            parent: None,
            parent_block: None,
        };
        let end = pass.walk_statements(&template.children, begin_states.clone())?;
        let end = if pass.parent.is_some() { begin_states.clone() } else { end };
        if *begin_states == pass.begin_contexts {
            pass.require_complete(&end, text.len()..text.len(), "the template ends inside")?;
        }
        let mut analysis = pass.analysis;
        analysis.end_contexts = end;
        Ok(analysis)
    }
}

/// A loop that encloses the current position.
#[derive(Default)]
struct LoopContexts {
    begin_contexts: EscapeContextSet,
    continue_contexts: EscapeContextSet,
    break_contexts: EscapeContextSet,
}

/// A single pass over one template.
struct TemplatePass<'p, 'a> {
    analyzer: &'p mut EscapeAnalyzer<'a>,
    path: &'p str,
    text: &'p str,
    /// The initial states of captures and macros.
    begin_contexts: EscapeContextSet,
    analysis: TemplateAnalysis,
    loops: Vec<LoopContexts>,
    /// The template that this one extends.
    parent: Option<Arc<TemplateAnalysis>>,
    /// The states at the begin and end of the enclosing block in the parent.
    parent_block: Option<(EscapeContextSet, EscapeContextSet)>,
}

type WalkResult = Result<EscapeContextSet, TemplateRefusal>;

impl TemplatePass<'_, '_> {
    fn walk_statements(
        &mut self,
        statements: &[ast::Stmt<'_>],
        states: EscapeContextSet,
    ) -> WalkResult {
        statements
            .iter()
            .try_fold(states, |states, statement| self.visit_statement(statement, states))
    }

    fn visit_statement(
        &mut self,
        statement: &ast::Stmt<'_>,
        states: EscapeContextSet,
    ) -> WalkResult {
        use ast::Stmt;
        match statement {
            Stmt::Template(template) => self.walk_statements(&template.children, states),
            Stmt::EmitRaw(raw) => self.read_static_text(raw.raw, raw.span(), states),
            Stmt::EmitExpr(emit) => self.visit_output(&emit.expr, emit.span(), states),
            Stmt::ForLoop(for_loop) => self.visit_loop(for_loop, states),
            Stmt::IfCond(branch) => {
                let mut end = self.walk_statements(&branch.true_body, states.clone())?;
                end.extend(self.walk_statements(&branch.false_body, states)?);
                Ok(end)
            }
            Stmt::WithBlock(with) => self.walk_statements(&with.body, states),
            Stmt::SetBlock(set) => {
                self.visit_capture(&set.body, set.span(), "the captured text")?;
                Ok(states)
            }
            Stmt::FilterBlock(filter) => {
                self.visit_capture(&filter.body, filter.span(), "the filtered text")?;
                self.visit_unfiltered_output(states, filter.span(), "a filter block")
            }
            Stmt::AutoEscape(escape) => Err(self.refusal_at(
                escape.span(),
                "outputs are escaped according to their position; remove the `autoescape` block, and use the \
                 filter `richtext` for an author's rich text",
            )),
            Stmt::Block(block) => self.visit_block(block, states),
            Stmt::Extends(extends) => self.visit_extends(extends, states),
            Stmt::Include(include) => self.visit_include(include, states),
            Stmt::Macro(macro_node) => {
                self.visit_capture(&macro_node.body, macro_node.span(), "the text of the macro")?;
                Ok(states)
            }
            Stmt::CallBlock(call) => {
                self.visit_capture(&call.macro_decl.body, call.span(), "the text of the call")?;
                self.visit_unfiltered_output(states, call.span(), "a call block")
            }
            Stmt::Continue(_) => Ok(self.leave_iteration(states, |innermost_loop| &mut innermost_loop.continue_contexts)),
            Stmt::Break(_) => Ok(self.leave_iteration(states, |innermost_loop| &mut innermost_loop.break_contexts)),
            Stmt::Set(_) | Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Do(_) => Ok(states),
        }
    }

    /// Reads static text.
    fn read_static_text(&self, text: &str, span: Span, states: EscapeContextSet) -> WalkResult {
        let mut end = EscapeContextSet::new();
        for mut state in states {
            text.bytes().for_each(|byte| state.read_byte(byte));
            if let Some(fault) = state.fault() {
                return Err(self.refusal_at(span, fault));
            }
            end.insert(state);
        }
        Ok(end)
    }

    /// Determines the escape of an output and wraps it in the escape's filter.
    fn visit_output(
        &mut self,
        expression: &ast::Expr<'_>,
        span: Span,
        states: EscapeContextSet,
    ) -> WalkResult {
        if let ast::Expr::Call(call) = expression
            && let Some(call_kind) = in_place_call(call)
        {
            return self.visit_in_place_call(call_kind, expression.span(), states);
        }
        let (escape, end) = self.join_escapes(states, expression.span())?;
        let is_formatted = match escape {
            None | Some(OutputEscape::Text) => true,
            // The formatter writes JSON.
            Some(OutputEscape::Script) => {
                TemplateLanguage::from_template_name(self.path) == TemplateLanguage::Json
            }
            Some(_) => false,
        };
        if let (false, Some(escape)) = (is_formatted, escape) {
            let delimiter = self.text.get(span.start_offset as usize..).unwrap_or_default();
            let is_trimming = delimiter.get(2..3).is_some_and(|mark| mark == "-" || mark == "+");
            let at = span.start_offset as usize + 2 + usize::from(is_trimming);
            self.analysis.edits.push(TemplateEdit { offset: at, text: "(".to_owned() });
            let text = format!(")|{}", escape.filter_name());
            self.analysis.edits.push(TemplateEdit { offset: span.end_offset as usize, text });
        }
        Ok(end)
    }

    /// Returns the escape that is correct in all states, and the states after the output.
    fn join_escapes(
        &self,
        states: EscapeContextSet,
        span: Span,
    ) -> Result<(Option<OutputEscape>, EscapeContextSet), TemplateRefusal> {
        let mut common: Option<OutputEscape> = None;
        let mut end = EscapeContextSet::new();
        for mut state in states {
            let position = state.describe();
            let escape = state
                .apply_output()
                .map_err(|reason| self.refusal_at(span, &format!("in {position}: {reason}")))?;
            common = match common {
                None => Some(escape),
                Some(joined) => Some(joined.join_escape(escape).ok_or_else(|| {
                    let message = format!(
                        "the branches before this output end in different positions: one of them ends in \
                         {position}"
                    );
                    self.refusal_at(span, &message)
                })?),
            };
            end.insert(state);
        }
        Ok((common, end))
    }

    /// Analyzes the output of a statement that cannot have a filter.
    fn visit_unfiltered_output(
        &self,
        states: EscapeContextSet,
        span: Span,
        subject: &str,
    ) -> WalkResult {
        let position = states.first().map(EscapeContext::describe).unwrap_or_default();
        match self.join_escapes(states, span)? {
            (None | Some(OutputEscape::Text), end) => Ok(end),
            _ => {
                let message = format!("{subject} is allowed only in text, and this is {position}");
                Err(self.refusal_at(span, &message))
            }
        }
    }

    /// Analyzes a call that continues the output of this template.
    fn visit_in_place_call(
        &mut self,
        call_kind: InPlaceCall,
        span: Span,
        states: EscapeContextSet,
    ) -> WalkResult {
        match call_kind {
            InPlaceCall::Super => match &self.parent_block {
                Some((begin, end)) if states.is_subset(begin) => Ok(end.clone()),
                _ => Err(self.refusal_at(
                    span,
                    "`super()` is allowed only where the block of the extended template begins",
                )),
            },
            // The loop may also begin in these states, and ends as for its other initial states.
            InPlaceCall::Loop => match self.loops.last_mut() {
                Some(innermost_loop) => {
                    innermost_loop.continue_contexts.extend(states.iter().cloned());
                    Ok(states
                        .into_iter()
                        .chain(innermost_loop.begin_contexts.iter().cloned())
                        .collect())
                }
                None => Err(self.refusal_at(span, "`loop(…)` is allowed only in a loop")),
            },
            InPlaceCall::Block => {
                self.visit_unfiltered_output(states, span, "a block of this template")
            }
        }
    }

    fn visit_loop(
        &mut self,
        for_loop: &ast::Spanned<ast::ForLoop<'_>>,
        states: EscapeContextSet,
    ) -> WalkResult {
        let edits = self.analysis.edits.len();
        let mut begin = states.clone();
        for _ in 0..MAX_LOOP_ROUNDS {
            self.analysis.edits.truncate(edits);
            self.loops
                .push(LoopContexts { begin_contexts: begin.clone(), ..LoopContexts::default() });
            let end = self.walk_statements(&for_loop.body, begin.clone());
            let innermost_loop = self.loops.pop().unwrap_or_default();
            let mut next = begin.clone();
            next.extend(end?);
            next.extend(innermost_loop.continue_contexts);
            if next == begin {
                let mut end = begin;
                end.extend(innermost_loop.break_contexts);
                end.extend(self.walk_statements(&for_loop.else_body, states)?);
                return Ok(end);
            }
            if next.len() > MAX_STATES {
                break;
            }
            begin = next;
        }
        Err(self.refusal_at(
            for_loop.span(),
            "each iteration of this loop ends in a different position; begin and end it in the same one",
        ))
    }

    fn leave_iteration(
        &mut self,
        states: EscapeContextSet,
        select_states: impl FnOnce(&mut LoopContexts) -> &mut EscapeContextSet,
    ) -> EscapeContextSet {
        if let Some(innermost_loop) = self.loops.last_mut() {
            select_states(innermost_loop).extend(states);
        }
        EscapeContextSet::new()
    }

    /// Analyzes text that becomes a value: it begins and ends like a template.
    fn visit_capture(
        &mut self,
        body: &[ast::Stmt<'_>],
        span: Span,
        subject: &str,
    ) -> Result<(), TemplateRefusal> {
        let loops = std::mem::take(&mut self.loops);
        let end = self.walk_statements(body, self.begin_contexts.clone());
        self.loops = loops;
        let range = span.start_offset as usize..span.end_offset as usize;
        self.require_complete(&end?, range, &format!("{subject} ends inside"))
    }

    fn require_complete(
        &self,
        states: &EscapeContextSet,
        range: std::ops::Range<usize>,
        subject: &str,
    ) -> Result<(), TemplateRefusal> {
        match states.iter().find(|state| !state.is_complete()) {
            None => Ok(()),
            Some(state) => {
                let message = format!("{subject} {}", state.describe());
                Err(TemplateRefusal::new(self.path, self.text, range, message))
            }
        }
    }

    fn visit_block(
        &mut self,
        block: &ast::Spanned<ast::Block<'_>>,
        states: EscapeContextSet,
    ) -> WalkResult {
        let inherited =
            self.parent.as_ref().and_then(|parent| parent.block_contexts.get(block.name));
        let Some((begin, end)) = inherited.cloned() else {
            let end = self.walk_statements(&block.body, states.clone())?;
            self.analysis.block_contexts.insert(block.name.to_owned(), (states, end.clone()));
            return Ok(end);
        };
        let around = self.parent_block.replace((begin.clone(), end.clone()));
        let own_end = self.walk_statements(&block.body, begin);
        self.parent_block = around;
        if own_end?.is_subset(&end) {
            return Ok(states);
        }
        let message = format!(
            "the block `{}` ends in a different position than the block of the parent",
            block.name
        );
        Err(self.refusal_at(block.span(), &message))
    }

    fn visit_extends(
        &mut self,
        extends: &ast::Spanned<ast::Extends<'_>>,
        states: EscapeContextSet,
    ) -> WalkResult {
        let Some(name) = constant_text(&extends.name) else {
            return Err(self.refusal_at(
                extends.span(),
                "the template to extend must be named by a string literal",
            ));
        };
        self.require_same_language([&name].into_iter(), extends.span())?;
        let parent = resolve_template_name(&name, self.path);
        let begin_states = initial_contexts(&parent);
        match self.analyzer.visit_template(&parent, &begin_states) {
            TemplateReference::Analyzed(_, analysis) => {
                self.analysis.block_contexts.clone_from(&analysis.block_contexts);
                self.parent = Some(analysis);
                Ok(states)
            }
            TemplateReference::Unknown => Ok(states),
            TemplateReference::Refused(refusal) => {
                let message = format!("the template that this one extends is rejected: {refusal}");
                Err(self.refusal_at(extends.span(), &message))
            }
            TemplateReference::Cyclic => {
                Err(self.refusal_at(extends.span(), "the templates extend each other in a cycle"))
            }
        }
    }

    fn visit_include(
        &mut self,
        include: &ast::Spanned<ast::Include<'_>>,
        states: EscapeContextSet,
    ) -> WalkResult {
        let Some(names) = constant_texts(&include.name) else {
            return Err(self.refusal_at(
                include.span(),
                "an included template must be named by a string literal here; to render a component, call \
                 `include(…)`",
            ));
        };
        self.require_same_language(names.iter(), include.span())?;
        if states == initial_contexts(self.path) {
            return Ok(states);
        }
        let Some(name) = constant_text(&include.name) else {
            return Err(self.refusal_at(
                include.span(),
                "a template that is included inside a tag, script or style must be named by a single string \
                 literal",
            ));
        };
        match self.analyzer.visit_template(&resolve_template_name(&name, self.path), &states) {
            TemplateReference::Analyzed(variant, analysis) => {
                let span = include.name.span();
                let inserted = variant.rsplit_once('#').map_or("", |(_, number)| number);
                // The name is a quoted text; its variant has a number appended.
                if !inserted.is_empty() {
                    let at = (span.end_offset as usize).saturating_sub(1);
                    self.analysis
                        .edits
                        .push(TemplateEdit { offset: at, text: format!("#{inserted}") });
                }
                Ok(analysis.end_contexts.clone())
            }
            TemplateReference::Unknown => Ok(states),
            TemplateReference::Refused(refusal) => {
                let message =
                    format!("the included template is rejected in this position: {refusal}");
                Err(self.refusal_at(include.span(), &message))
            }
            TemplateReference::Cyclic => {
                Err(self.refusal_at(include.span(), "the templates include each other in a cycle"))
            }
        }
    }

    /// Rejects templates of another language: their outputs are escaped differently.
    fn require_same_language<'n>(
        &self,
        mut names: impl Iterator<Item = &'n String>,
        span: Span,
    ) -> Result<(), TemplateRefusal> {
        let own = TemplateLanguage::from_template_name(self.path);
        match names.find(|name| TemplateLanguage::from_template_name(name).is_incompatible(own)) {
            None => Ok(()),
            Some(name) => {
                let message = format!("`{name}` is in a different language than this template");
                Err(self.refusal_at(span, &message))
            }
        }
    }

    fn refusal_at(&self, span: Span, message: &str) -> TemplateRefusal {
        let range = span.start_offset as usize..span.end_offset as usize;
        TemplateRefusal::new(self.path, self.text, range, message.to_owned())
    }
}

/// Calls that run a part of the template in place instead of returning a value.
#[derive(Debug, Clone, Copy)]
enum InPlaceCall {
    Super,
    Loop,
    Block,
}

/// Determines if a call runs a part of the template, as the compiler does.
fn in_place_call(call: &ast::Call<'_>) -> Option<InPlaceCall> {
    match call.identify_call() {
        ast::CallType::Function("super") if call.args.is_empty() => Some(InPlaceCall::Super),
        ast::CallType::Function("loop") if call.args.len() == 1 => Some(InPlaceCall::Loop),
        ast::CallType::Block(_) => Some(InPlaceCall::Block),
        _ => None,
    }
}

/// Returns the possible texts of an expression; `None` if it may be something else.
fn constant_texts(expression: &ast::Expr<'_>) -> Option<Vec<String>> {
    match expression {
        ast::Expr::Const(_) => Some(vec![constant_text(expression)?]),
        ast::Expr::List(list) => list.items.iter().map(constant_text).collect(),
        ast::Expr::Tuple(list) => list.items.iter().map(constant_text).collect(),
        ast::Expr::IfExpr(branch) => {
            let mut texts = constant_texts(&branch.true_expr)?;
            texts.extend(constant_texts(branch.false_expr.as_ref()?)?);
            Some(texts)
        }
        _ => None,
    }
}

/// Returns the text of a constant expression.
fn constant_text(expression: &ast::Expr<'_>) -> Option<String> {
    match expression {
        ast::Expr::Const(constant) => constant.value.as_str().map(str::to_owned),
        _ => None,
    }
}
