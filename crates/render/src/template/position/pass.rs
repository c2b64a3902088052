//! The pass over the syntax trees of all templates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use minijinja::machinery::{Span, ast, parse};
use minijinja::syntax::SyntaxConfig;

use super::html::Context;
use super::rewrite::Edit;
use super::{Escape, Refusal, Rewritten};
use crate::template::{Language, join};

/// The states that a place in a template can be reached in; none where it cannot be reached.
type States = BTreeSet<Context>;

/// More states than this at one place are a template that nobody can follow.
const MOST_STATES: usize = 24;

/// A loop whose states do not come to rest in as many rounds never will.
const MOST_ROUNDS: usize = 24;

/// More variants than this are an include that goes round in circles.
const MOST_VARIANTS: usize = 64;

/// Finds the escapes of all templates, by the names under which they are to be compiled.
///
/// Templates that do not parse are left out: compiling them tells why.
pub(crate) fn analyze(
    scripts: &BTreeMap<String, String>,
) -> BTreeMap<String, Result<Rewritten, Refusal>> {
    let mut analyst = Analyst { scripts, done: HashMap::new(), variants: HashMap::new() };
    for path in scripts.keys() {
        analyst.visit(path, &begin(path));
    }
    let done = analyst.done.into_iter();
    done.filter_map(|((path, _), entry)| {
        let Entry::Done { name, found } = entry else {
            return None;
        };
        let found = found.map(|found| {
            let original = scripts.get(&path).map(String::as_str).unwrap_or_default();
            Rewritten::new(original.into(), found.edits.clone())
        });
        Some((name, found.map_err(|refusal| (*refusal).clone())))
    })
    .collect()
}

/// Returns where a template begins.
fn begin(path: &str) -> States {
    States::from([match Language::of(path) {
        Language::Html | Language::Text => Context::html(),
        Language::Xml => Context::xml(),
        Language::Json | Language::Script => Context::script(),
        Language::Style => Context::style(),
    }])
}

/// All templates, and what was found out about them.
struct Analyst<'a> {
    scripts: &'a BTreeMap<String, String>,
    done: HashMap<(String, States), Entry>,
    /// How many names a template has so far.
    variants: HashMap<String, usize>,
}

enum Entry {
    Running,
    Done {
        name: String,
        found: Result<Arc<Found>, Arc<Refusal>>,
    },
    /// Does not parse.
    Broken,
}

/// What is known of a template that begins in some states.
#[derive(Debug, Default)]
struct Found {
    edits: Vec<Edit>,
    end: States,
    /// Where each block begins and ends, for templates that extend this one.
    blocks: HashMap<String, (States, States)>,
}

/// A template as others see it.
enum Other {
    Found(String, Arc<Found>),
    Refused(Arc<Refusal>),
    /// There is no such template, or it does not parse; running it tells so.
    Unknown,
    Circle,
}

impl Analyst<'_> {
    /// Looks at a template that begins in some states, once.
    fn visit(&mut self, path: &str, begin_states: &States) -> Other {
        let key = (path.to_owned(), begin_states.clone());
        match self.done.get(&key) {
            Some(Entry::Running) => return Other::Circle,
            Some(Entry::Broken) => return Other::Unknown,
            Some(Entry::Done { name, found }) => {
                return match found {
                    Ok(found) => Other::Found(name.clone(), Arc::clone(found)),
                    Err(refusal) => Other::Refused(Arc::clone(refusal)),
                };
            }
            None => {}
        }
        let Some(text) = self.scripts.get(path) else {
            return Other::Unknown;
        };
        let Ok(tree) = parse(text, path, SyntaxConfig::default()) else {
            self.done.insert(key, Entry::Broken);
            return Other::Unknown;
        };
        let is_plain = *begin_states == begin(path);
        let number = self.variants.entry(path.to_owned()).or_default();
        *number += usize::from(!is_plain);
        let name = if is_plain { path.to_owned() } else { format!("{path}#{number}") };
        if *number > MOST_VARIANTS {
            return Other::Circle;
        }
        self.done.insert(key.clone(), Entry::Running);
        let found = self.walk_template(path, text, &tree, begin_states);
        let found = found.map(Arc::new).map_err(Arc::new);
        let other = match &found {
            Ok(found) => Other::Found(name.clone(), Arc::clone(found)),
            Err(refusal) => Other::Refused(Arc::clone(refusal)),
        };
        self.done.insert(key, Entry::Done { name, found });
        other
    }

    fn walk_template(
        &mut self,
        path: &str,
        text: &str,
        tree: &ast::Stmt<'_>,
        begin_states: &States,
    ) -> Result<Found, Refusal> {
        let ast::Stmt::Template(template) = tree else {
            return Ok(Found::default());
        };
        if Language::of(path) == Language::Text {
            return Ok(Found { end: begin_states.clone(), ..Found::default() });
        }
        let mut pass = Pass {
            analyst: self,
            path,
            text,
            begin: begin(path),
            found: Found::default(),
            loops: Vec::new(),
            parent: None,
            block: None,
        };
        let end = pass.walk(&template.children, begin_states.clone())?;
        let end = if pass.parent.is_some() { begin_states.clone() } else { end };
        if *begin_states == pass.begin {
            pass.require_rest(&end, text.len()..text.len(), "the template ends inside")?;
        }
        let mut found = pass.found;
        found.end = end;
        Ok(found)
    }
}

/// A loop around the place that is looked at.
#[derive(Default)]
struct Loop {
    begin: States,
    continues: States,
    breaks: States,
}

/// One look at one template.
struct Pass<'p, 'a> {
    analyst: &'p mut Analyst<'a>,
    path: &'p str,
    text: &'p str,
    /// Where captures and macros begin.
    begin: States,
    found: Found,
    loops: Vec<Loop>,
    /// The template that this one extends.
    parent: Option<Arc<Found>>,
    /// Where the block around the place begins and ends in the parent.
    block: Option<(States, States)>,
}

type Walked = Result<States, Refusal>;

impl Pass<'_, '_> {
    fn walk(&mut self, statements: &[ast::Stmt<'_>], states: States) -> Walked {
        statements.iter().try_fold(states, |states, statement| self.visit(statement, states))
    }

    fn visit(&mut self, statement: &ast::Stmt<'_>, states: States) -> Walked {
        use ast::Stmt;
        match statement {
            Stmt::Template(template) => self.walk(&template.children, states),
            Stmt::EmitRaw(raw) => self.read(raw.raw, raw.span(), states),
            Stmt::EmitExpr(emit) => self.put_out(&emit.expr, emit.span(), states),
            Stmt::ForLoop(one) => self.visit_loop(one, states),
            Stmt::IfCond(branch) => {
                let mut end = self.walk(&branch.true_body, states.clone())?;
                end.extend(self.walk(&branch.false_body, states)?);
                Ok(end)
            }
            Stmt::WithBlock(with) => self.walk(&with.body, states),
            Stmt::SetBlock(set) => {
                self.capture(&set.body, set.span(), "the captured text")?;
                Ok(states)
            }
            Stmt::FilterBlock(filter) => {
                self.capture(&filter.body, filter.span(), "the filtered text")?;
                self.put_out_plain(states, filter.span(), "a filter block")
            }
            Stmt::AutoEscape(escape) => Err(self.refuse(
                escape.span(),
                "how outputs are escaped follows from where they stand; remove the `autoescape` block, and for an \
                 author's rich text use the filter `richtext`",
            )),
            Stmt::Block(block) => self.visit_block(block, states),
            Stmt::Extends(extends) => self.visit_extends(extends, states),
            Stmt::Include(include) => self.visit_include(include, states),
            Stmt::Macro(one) => {
                self.capture(&one.body, one.span(), "the text of the macro")?;
                Ok(states)
            }
            Stmt::CallBlock(call) => {
                self.capture(&call.macro_decl.body, call.span(), "the text of the call")?;
                self.put_out_plain(states, call.span(), "a call block")
            }
            Stmt::Continue(_) => Ok(self.leave_round(states, |round| &mut round.continues)),
            Stmt::Break(_) => Ok(self.leave_round(states, |round| &mut round.breaks)),
            Stmt::Set(_) | Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Do(_) => Ok(states),
        }
    }

    /// Reads static text.
    fn read(&self, text: &str, span: Span, states: States) -> Walked {
        let mut end = States::new();
        for mut state in states {
            text.bytes().for_each(|byte| state.step(byte));
            if let Some(fault) = state.fault() {
                return Err(self.refuse(span, fault));
            }
            end.insert(state);
        }
        Ok(end)
    }

    /// Finds the escape of an output and puts its filter around it.
    fn put_out(&mut self, expression: &ast::Expr<'_>, span: Span, states: States) -> Walked {
        if let ast::Expr::Call(call) = expression
            && let Some(what) = own_output(call)
        {
            return self.put_out_own(what, expression.span(), states);
        }
        let (escape, end) = self.escape_of(states, expression.span())?;
        let is_formatted = match escape {
            None | Some(Escape::Text) => true,
            // The formatter writes JSON.
            Some(Escape::Script) => Language::of(self.path) == Language::Json,
            Some(_) => false,
        };
        if let (false, Some(escape)) = (is_formatted, escape) {
            let delimiter = self.text.get(span.start_offset as usize..).unwrap_or_default();
            let is_trimming = delimiter.get(2..3).is_some_and(|mark| mark == "-" || mark == "+");
            let at = span.start_offset as usize + 2 + usize::from(is_trimming);
            self.found.edits.push(Edit { at, text: "(".to_owned() });
            let text = format!(")|{}", escape.filter());
            self.found.edits.push(Edit { at: span.end_offset as usize, text });
        }
        Ok(end)
    }

    /// Finds the escape that is right in all states, and the states after the output.
    fn escape_of(&self, states: States, span: Span) -> Result<(Option<Escape>, States), Refusal> {
        let mut common: Option<Escape> = None;
        let mut end = States::new();
        for mut state in states {
            let place = state.describe();
            let escape = state
                .put_out()
                .map_err(|reason| self.refuse(span, &format!("in {place}: {reason}")))?;
            common = match common {
                None => Some(escape),
                Some(known) => Some(known.join(escape).ok_or_else(|| {
                    let message = format!(
                        "the branches before this output do not agree on where it stands: one of them leads into {place}"
                    );
                    self.refuse(span, &message)
                })?),
            };
            end.insert(state);
        }
        Ok((common, end))
    }

    /// Looks at what a statement puts out that cannot have a filter.
    fn put_out_plain(&self, states: States, span: Span, what: &str) -> Walked {
        let place = states.first().map(Context::describe).unwrap_or_default();
        match self.escape_of(states, span)? {
            (None | Some(Escape::Text), end) => Ok(end),
            _ => {
                let message = format!("{what} can stand in text only, and this is {place}");
                Err(self.refuse(span, &message))
            }
        }
    }

    /// Looks at a call that continues the output of this very template.
    fn put_out_own(&mut self, what: Own, span: Span, states: States) -> Walked {
        match what {
            Own::Super => match &self.block {
                Some((begin, end)) if states.is_subset(begin) => Ok(end.clone()),
                _ => Err(self.refuse(
                    span,
                    "`super()` can stand only where the block of the extended template begins",
                )),
            },
            // The loop begins in these states too, and ends as it does at its other begins.
            Own::Loop => match self.loops.last_mut() {
                Some(round) => {
                    round.continues.extend(states.iter().cloned());
                    Ok(states.into_iter().chain(round.begin.iter().cloned()).collect())
                }
                None => Err(self.refuse(span, "`loop(…)` can stand in a loop only")),
            },
            Own::Block => self.put_out_plain(states, span, "a block of this template"),
        }
    }

    fn visit_loop(&mut self, one: &ast::Spanned<ast::ForLoop<'_>>, states: States) -> Walked {
        let edits = self.found.edits.len();
        let mut begin = states.clone();
        for _ in 0..MOST_ROUNDS {
            self.found.edits.truncate(edits);
            self.loops.push(Loop { begin: begin.clone(), ..Loop::default() });
            let end = self.walk(&one.body, begin.clone());
            let round = self.loops.pop().unwrap_or_default();
            let mut next = begin.clone();
            next.extend(end?);
            next.extend(round.continues);
            if next == begin {
                let mut end = begin;
                end.extend(round.breaks);
                end.extend(self.walk(&one.else_body, states)?);
                return Ok(end);
            }
            if next.len() > MOST_STATES {
                break;
            }
            begin = next;
        }
        Err(self.refuse(
            one.span(),
            "each round of this loop ends in another place; begin and end it in the same",
        ))
    }

    fn leave_round(
        &mut self,
        states: States,
        way: impl FnOnce(&mut Loop) -> &mut States,
    ) -> States {
        if let Some(round) = self.loops.last_mut() {
            way(round).extend(states);
        }
        States::new()
    }

    /// Looks at text that becomes a value: it begins and ends as a template does.
    fn capture(&mut self, body: &[ast::Stmt<'_>], span: Span, what: &str) -> Result<(), Refusal> {
        let loops = std::mem::take(&mut self.loops);
        let end = self.walk(body, self.begin.clone());
        self.loops = loops;
        let range = span.start_offset as usize..span.end_offset as usize;
        self.require_rest(&end?, range, &format!("{what} ends inside"))
    }

    fn require_rest(
        &self,
        states: &States,
        range: std::ops::Range<usize>,
        what: &str,
    ) -> Result<(), Refusal> {
        match states.iter().find(|state| !state.is_at_rest()) {
            None => Ok(()),
            Some(state) => {
                let message = format!("{what} {}", state.describe());
                Err(Refusal::new(self.path, self.text, range, message))
            }
        }
    }

    fn visit_block(&mut self, block: &ast::Spanned<ast::Block<'_>>, states: States) -> Walked {
        let inherited = self.parent.as_ref().and_then(|parent| parent.blocks.get(block.name));
        let Some((begin, end)) = inherited.cloned() else {
            let end = self.walk(&block.body, states.clone())?;
            self.found.blocks.insert(block.name.to_owned(), (states, end.clone()));
            return Ok(end);
        };
        let around = self.block.replace((begin.clone(), end.clone()));
        let own_end = self.walk(&block.body, begin);
        self.block = around;
        if own_end?.is_subset(&end) {
            return Ok(states);
        }
        let message = format!(
            "the block `{}` ends in another place than where the parent's ends",
            block.name
        );
        Err(self.refuse(block.span(), &message))
    }

    fn visit_extends(
        &mut self,
        extends: &ast::Spanned<ast::Extends<'_>>,
        states: States,
    ) -> Walked {
        let Some(name) = constant(&extends.name) else {
            return Err(
                self.refuse(extends.span(), "the template to extend must be named by a text")
            );
        };
        self.require_like([&name].into_iter(), extends.span())?;
        let parent = join(&name, self.path);
        let begin_states = begin(&parent);
        match self.analyst.visit(&parent, &begin_states) {
            Other::Found(_, found) => {
                self.found.blocks.clone_from(&found.blocks);
                self.parent = Some(found);
                Ok(states)
            }
            Other::Unknown => Ok(states),
            Other::Refused(refusal) => {
                let message = format!("the template that this one extends is refused: {refusal}");
                Err(self.refuse(extends.span(), &message))
            }
            Other::Circle => {
                Err(self.refuse(extends.span(), "the templates extend each other in a circle"))
            }
        }
    }

    fn visit_include(
        &mut self,
        include: &ast::Spanned<ast::Include<'_>>,
        states: States,
    ) -> Walked {
        let Some(names) = constants(&include.name) else {
            return Err(self.refuse(
                include.span(),
                "what is included must be named by a text here; to draw a component, call `include(…)`",
            ));
        };
        self.require_like(names.iter(), include.span())?;
        if states == begin(self.path) {
            return Ok(states);
        }
        let Some(name) = constant(&include.name) else {
            return Err(self.refuse(
                include.span(),
                "what is included inside a tag, script or style must be named by one text",
            ));
        };
        match self.analyst.visit(&join(&name, self.path), &states) {
            Other::Found(variant, found) => {
                let span = include.name.span();
                let inserted = variant.rsplit_once('#').map_or("", |(_, number)| number);
                // The name is a text in quotes; its variant has a number behind it.
                if !inserted.is_empty() {
                    let at = (span.end_offset as usize).saturating_sub(1);
                    self.found.edits.push(Edit { at, text: format!("#{inserted}") });
                }
                Ok(found.end.clone())
            }
            Other::Unknown => Ok(states),
            Other::Refused(refusal) => {
                let message = format!("what is included is refused in this place: {refusal}");
                Err(self.refuse(include.span(), &message))
            }
            Other::Circle => {
                Err(self.refuse(include.span(), "the templates include each other in a circle"))
            }
        }
    }

    /// Refuses templates of another language: their outputs are escaped for something else.
    fn require_like<'n>(
        &self,
        mut names: impl Iterator<Item = &'n String>,
        span: Span,
    ) -> Result<(), Refusal> {
        let own = Language::of(self.path);
        match names.find(|name| Language::of(name).is_unlike(own)) {
            None => Ok(()),
            Some(name) => {
                let message = format!("`{name}` is of another language than this template");
                Err(self.refuse(span, &message))
            }
        }
    }

    fn refuse(&self, span: Span, message: &str) -> Refusal {
        let range = span.start_offset as usize..span.end_offset as usize;
        Refusal::new(self.path, self.text, range, message.to_owned())
    }
}

/// Calls that run a part of the template in place instead of giving a value.
#[derive(Debug, Clone, Copy)]
enum Own {
    Super,
    Loop,
    Block,
}

/// Finds out whether a call runs a part of the template, as the compiler decides it.
fn own_output(call: &ast::Call<'_>) -> Option<Own> {
    match call.identify_call() {
        ast::CallType::Function("super") if call.args.is_empty() => Some(Own::Super),
        ast::CallType::Function("loop") if call.args.len() == 1 => Some(Own::Loop),
        ast::CallType::Block(_) => Some(Own::Block),
        _ => None,
    }
}

/// Returns the texts that an expression may be, if it can be nothing else.
fn constants(expression: &ast::Expr<'_>) -> Option<Vec<String>> {
    match expression {
        ast::Expr::Const(_) => Some(vec![constant(expression)?]),
        ast::Expr::List(list) => list.items.iter().map(constant).collect(),
        ast::Expr::Tuple(list) => list.items.iter().map(constant).collect(),
        ast::Expr::IfExpr(branch) => {
            let mut texts = constants(&branch.true_expr)?;
            texts.extend(constants(branch.false_expr.as_ref()?)?);
            Some(texts)
        }
        _ => None,
    }
}

/// Returns the text of an expression that is one.
fn constant(expression: &ast::Expr<'_>) -> Option<String> {
    match expression {
        ast::Expr::Const(constant) => constant.value.as_str().map(str::to_owned),
        _ => None,
    }
}
