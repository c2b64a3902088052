//! What a reader of templates would object to before they run: names that mean nothing, and queries in templates that
//! only display.
//!
//! In: a template's text. Out: findings with line and column. What the compiler or the pass over positions refuses is
//! theirs to tell.

use std::collections::HashSet;
use std::ops::Range;

use minijinja::machinery::{Span, ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind};

use super::position::Refusal;

/// Something to object to.
#[derive(Debug)]
pub(crate) struct Objection {
    pub refusal: Refusal,
    /// Whether the template still draws what it should.
    pub is_warning: bool,
}

/// Looks through a template that compiles.
pub(crate) fn lint(environment: &Environment<'_>, path: &str, text: &str) -> Vec<Objection> {
    let Ok(tree) = parse(text, path, SyntaxConfig::default()) else {
        return Vec::new();
    };
    let globals = environment.globals().map(|(name, _)| name.to_owned()).collect();
    let mut reader = Reader {
        environment,
        path,
        text,
        globals,
        declared: HashSet::from(["caller", "super", "loop", "self"].map(str::to_owned)),
        reads_request: false,
        queries: Vec::new(),
        found: Vec::new(),
    };
    reader.declare(&tree);
    reader.statement(&tree);
    // Where the request decides what is asked, there is nothing that could be kept beside the content.
    if !reader.reads_request {
        for (range, name) in std::mem::take(&mut reader.queries) {
            let message = format!(
                "`{name}` runs a query each time this is drawn; if the answer changes with the content alone, list pages \
                 by their place (`nav`, `pages`) or store what is shown"
            );
            reader.object(range, message, true);
        }
    }
    reader.found
}

struct Reader<'a> {
    environment: &'a Environment<'a>,
    path: &'a str,
    text: &'a str,
    globals: HashSet<String>,
    /// Names of macros, imports and variables, wherever they are declared.
    declared: HashSet<String>,
    reads_request: bool,
    queries: Vec<(Range<usize>, String)>,
    found: Vec<Objection>,
}

impl Reader<'_> {
    fn object(&mut self, range: Range<usize>, message: String, is_warning: bool) {
        let refusal = Refusal::new(self.path, self.text, range, message);
        self.found.push(Objection { refusal, is_warning });
    }

    /// Collects what a statement declares.
    fn declare(&mut self, statement: &ast::Stmt<'_>) {
        use ast::Stmt;
        match statement {
            Stmt::Set(set) => self.declare_target(&set.target),
            Stmt::SetBlock(set) => self.declare_target(&set.target),
            Stmt::ForLoop(one) => self.declare_target(&one.target),
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(target, _)| self.declare_target(target));
            }
            Stmt::Import(import) => self.declare_target(&import.name),
            Stmt::FromImport(import) => {
                for (name, alias) in &import.names {
                    self.declare_target(alias.as_ref().unwrap_or(name));
                }
            }
            Stmt::Macro(one) => self.declare_macro(one),
            Stmt::CallBlock(call) => self.declare_macro(&call.macro_decl),
            _ => {}
        }
        for part in parts(statement) {
            part.iter().for_each(|one| self.declare(one));
        }
    }

    fn declare_macro(&mut self, one: &ast::Macro<'_>) {
        self.declared.insert(one.name.to_owned());
        one.args.iter().for_each(|argument| self.declare_target(argument));
    }

    fn declare_target(&mut self, target: &ast::Expr<'_>) {
        match target {
            ast::Expr::Var(variable) => {
                self.declared.insert(variable.id.to_owned());
            }
            ast::Expr::List(list) => list.items.iter().for_each(|one| self.declare_target(one)),
            ast::Expr::Tuple(list) => list.items.iter().for_each(|one| self.declare_target(one)),
            _ => {}
        }
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>) {
        use ast::Stmt;
        match statement {
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(one) => {
                self.expression(&one.iter);
                one.filter_expr.iter().for_each(|filter| self.expression(filter));
            }
            Stmt::IfCond(branch) => self.expression(&branch.expr),
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, value)| self.expression(value));
            }
            Stmt::Set(set) => self.expression(&set.expr),
            Stmt::SetBlock(set) => set.filter.iter().for_each(|filter| self.expression(filter)),
            Stmt::FilterBlock(filter) => self.expression(&filter.filter),
            Stmt::Include(include) => self.expression(&include.name),
            Stmt::Macro(one) => one.defaults.iter().for_each(|value| self.expression(value)),
            Stmt::CallBlock(call) => self.call(&call.call, call.span()),
            Stmt::Do(one) => self.call(&one.call, one.span()),
            _ => {}
        }
        for part in parts(statement) {
            part.iter().for_each(|one| self.statement(one));
        }
    }

    fn expression(&mut self, expression: &ast::Expr<'_>) {
        use ast::Expr;
        match expression {
            Expr::Var(variable) => self.reads_request |= variable.id == "request",
            Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.expression(&slice.expr);
                let ends = [&slice.start, &slice.stop, &slice.step];
                ends.into_iter().flatten().for_each(|one| self.expression(one));
            }
            Expr::UnaryOp(one) => self.expression(&one.expr),
            Expr::BinOp(two) => {
                self.expression(&two.left);
                self.expression(&two.right);
            }
            Expr::Compare(compare) => {
                self.expression(&compare.expr);
                compare.ops.iter().for_each(|one| self.expression(&one.expr));
            }
            Expr::IfExpr(branch) => {
                self.expression(&branch.test_expr);
                self.expression(&branch.true_expr);
                branch.false_expr.iter().for_each(|one| self.expression(one));
            }
            Expr::Filter(filter) => {
                filter.expr.iter().for_each(|one| self.expression(one));
                self.arguments(&filter.args);
                let applied = self.environment.empty_state().apply_filter(filter.name, &[]);
                if applied.is_err_and(|error| error.kind() == ErrorKind::UnknownFilter) {
                    let message = format!("there is no filter `{}`", filter.name);
                    self.object(range(filter.span()), message, false);
                }
            }
            Expr::Test(test) => {
                self.expression(&test.expr);
                self.arguments(&test.args);
                let performed = self.environment.empty_state().perform_test(test.name, &[]);
                if performed.is_err_and(|error| error.kind() == ErrorKind::UnknownTest) {
                    let message = format!("there is no test `{}`", test.name);
                    self.object(range(test.span()), message, false);
                }
            }
            Expr::GetAttr(one) => self.expression(&one.expr),
            Expr::GetItem(one) => {
                self.expression(&one.expr);
                self.expression(&one.subscript_expr);
            }
            Expr::Call(call) => self.call(call, call.span()),
            Expr::List(list) => list.items.iter().for_each(|one| self.expression(one)),
            Expr::Tuple(list) => list.items.iter().for_each(|one| self.expression(one)),
            Expr::Map(map) => {
                map.keys.iter().chain(&map.values).for_each(|one| self.expression(one));
            }
        }
    }

    fn call(&mut self, call: &ast::Call<'_>, span: Span) {
        self.arguments(&call.args);
        let ast::CallType::Function(name) = call.identify_call() else {
            return self.expression(&call.expr);
        };
        if !self.globals.contains(name) && !self.declared.contains(name) {
            let message = format!("there is no function `{name}`");
            self.object(range(span), message, false);
        }
        if matches!(name, "search" | "query") {
            self.queries.push((range(span), name.to_owned()));
        }
    }

    fn arguments(&mut self, arguments: &[ast::CallArg<'_>]) {
        use ast::CallArg;
        for argument in arguments {
            match argument {
                CallArg::Pos(one)
                | CallArg::Kwarg(_, one)
                | CallArg::PosSplat(one)
                | CallArg::KwargSplat(one) => self.expression(one),
            }
        }
    }
}

/// Returns the bodies of a statement.
fn parts<'s, 'a>(statement: &'s ast::Stmt<'a>) -> Vec<&'s [ast::Stmt<'a>]> {
    use ast::Stmt;
    match statement {
        Stmt::Template(one) => vec![&one.children],
        Stmt::ForLoop(one) => vec![&one.body, &one.else_body],
        Stmt::IfCond(one) => vec![&one.true_body, &one.false_body],
        Stmt::WithBlock(one) => vec![&one.body],
        Stmt::SetBlock(one) => vec![&one.body],
        Stmt::FilterBlock(one) => vec![&one.body],
        Stmt::Block(one) => vec![&one.body],
        Stmt::Macro(one) => vec![&one.body],
        Stmt::CallBlock(one) => vec![&one.macro_decl.body],
        _ => Vec::new(),
    }
}

fn range(span: Span) -> Range<usize> {
    span.start_offset as usize..span.end_offset as usize
}
