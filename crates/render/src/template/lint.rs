//! Static checks of templates: undefined names, and queries in templates that only display.
//!
//! Input: a template's text. Output: findings with line and column. Not here: errors of the compiler or of the escaping
//! pass.

use std::collections::HashSet;
use std::ops::Range;

use minijinja::machinery::{Span, ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind};

use super::autoescape::TemplateRefusal;

/// A finding of the check.
#[derive(Debug)]
pub(crate) struct TemplateLintFinding {
    pub refusal: TemplateRefusal,
    /// True if the template still renders correctly.
    pub is_warning: bool,
}

/// Checks a template that compiles.
pub(crate) fn lint_template(
    environment: &Environment<'_>,
    path: &str,
    text: &str,
) -> Vec<TemplateLintFinding> {
    let Ok(tree) = parse(text, path, SyntaxConfig::default()) else {
        return Vec::new();
    };
    let globals = environment.globals().map(|(name, _)| name.to_owned()).collect();
    let mut reader = TemplateLinter {
        environment,
        path,
        text,
        globals,
        declared_names: HashSet::from(["caller", "super", "loop", "self"].map(str::to_owned)),
        reads_request: false,
        queries: Vec::new(),
        findings: Vec::new(),
    };
    reader.declare_names(&tree);
    reader.lint_statement(&tree);
    // If the query depends on the request, its result cannot be stored with the content.
    if !reader.reads_request {
        for (range, name) in std::mem::take(&mut reader.queries) {
            let message = format!(
                "`{name}` runs a query each time this is drawn; if the answer changes with the content alone, list pages \
                 by their place (`nav`, `pages`) or store what is shown"
            );
            reader.report(range, message, true);
        }
    }
    reader.findings
}

struct TemplateLinter<'a> {
    environment: &'a Environment<'a>,
    path: &'a str,
    text: &'a str,
    globals: HashSet<String>,
    /// Names of macros, imports and variables, regardless of their scope.
    declared_names: HashSet<String>,
    reads_request: bool,
    queries: Vec<(Range<usize>, String)>,
    findings: Vec<TemplateLintFinding>,
}

impl TemplateLinter<'_> {
    fn report(&mut self, range: Range<usize>, message: String, is_warning: bool) {
        let refusal = TemplateRefusal::new(self.path, self.text, range, message);
        self.findings.push(TemplateLintFinding { refusal, is_warning });
    }

    /// Collects the names that a statement declares.
    fn declare_names(&mut self, statement: &ast::Stmt<'_>) {
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
        for part in statement_bodies(statement) {
            part.iter().for_each(|one| self.declare_names(one));
        }
    }

    fn declare_macro(&mut self, one: &ast::Macro<'_>) {
        self.declared_names.insert(one.name.to_owned());
        one.args.iter().for_each(|argument| self.declare_target(argument));
    }

    fn declare_target(&mut self, target: &ast::Expr<'_>) {
        match target {
            ast::Expr::Var(variable) => {
                self.declared_names.insert(variable.id.to_owned());
            }
            ast::Expr::List(list) => list.items.iter().for_each(|one| self.declare_target(one)),
            ast::Expr::Tuple(list) => list.items.iter().for_each(|one| self.declare_target(one)),
            _ => {}
        }
    }

    fn lint_statement(&mut self, statement: &ast::Stmt<'_>) {
        use ast::Stmt;
        match statement {
            Stmt::EmitExpr(emit) => self.lint_expression(&emit.expr),
            Stmt::ForLoop(one) => {
                self.lint_expression(&one.iter);
                one.filter_expr.iter().for_each(|filter| self.lint_expression(filter));
            }
            Stmt::IfCond(branch) => self.lint_expression(&branch.expr),
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, value)| self.lint_expression(value));
            }
            Stmt::Set(set) => self.lint_expression(&set.expr),
            Stmt::SetBlock(set) => {
                set.filter.iter().for_each(|filter| self.lint_expression(filter))
            }
            Stmt::FilterBlock(filter) => self.lint_expression(&filter.filter),
            Stmt::Include(include) => self.lint_expression(&include.name),
            Stmt::Macro(one) => one.defaults.iter().for_each(|value| self.lint_expression(value)),
            Stmt::CallBlock(call) => self.lint_call(&call.call, call.span()),
            Stmt::Do(one) => self.lint_call(&one.call, one.span()),
            _ => {}
        }
        for part in statement_bodies(statement) {
            part.iter().for_each(|one| self.lint_statement(one));
        }
    }

    fn lint_expression(&mut self, expression: &ast::Expr<'_>) {
        use ast::Expr;
        match expression {
            Expr::Var(variable) => self.reads_request |= variable.id == "request",
            Expr::Const(_) => {}
            Expr::Slice(slice) => {
                self.lint_expression(&slice.expr);
                let ends = [&slice.start, &slice.stop, &slice.step];
                ends.into_iter().flatten().for_each(|one| self.lint_expression(one));
            }
            Expr::UnaryOp(one) => self.lint_expression(&one.expr),
            Expr::BinOp(two) => {
                self.lint_expression(&two.left);
                self.lint_expression(&two.right);
            }
            Expr::Compare(compare) => {
                self.lint_expression(&compare.expr);
                compare.ops.iter().for_each(|one| self.lint_expression(&one.expr));
            }
            Expr::IfExpr(branch) => {
                self.lint_expression(&branch.test_expr);
                self.lint_expression(&branch.true_expr);
                branch.false_expr.iter().for_each(|one| self.lint_expression(one));
            }
            Expr::Filter(filter) => {
                filter.expr.iter().for_each(|one| self.lint_expression(one));
                self.lint_arguments(&filter.args);
                let applied = self.environment.empty_state().apply_filter(filter.name, &[]);
                if applied.is_err_and(|error| error.kind() == ErrorKind::UnknownFilter) {
                    let message = format!("there is no filter `{}`", filter.name);
                    self.report(span_range(filter.span()), message, false);
                }
            }
            Expr::Test(test) => {
                self.lint_expression(&test.expr);
                self.lint_arguments(&test.args);
                let performed = self.environment.empty_state().perform_test(test.name, &[]);
                if performed.is_err_and(|error| error.kind() == ErrorKind::UnknownTest) {
                    let message = format!("there is no test `{}`", test.name);
                    self.report(span_range(test.span()), message, false);
                }
            }
            Expr::GetAttr(one) => self.lint_expression(&one.expr),
            Expr::GetItem(one) => {
                self.lint_expression(&one.expr);
                self.lint_expression(&one.subscript_expr);
            }
            Expr::Call(call) => self.lint_call(call, call.span()),
            Expr::List(list) => list.items.iter().for_each(|one| self.lint_expression(one)),
            Expr::Tuple(list) => list.items.iter().for_each(|one| self.lint_expression(one)),
            Expr::Map(map) => {
                map.keys.iter().chain(&map.values).for_each(|one| self.lint_expression(one));
            }
        }
    }

    fn lint_call(&mut self, call: &ast::Call<'_>, span: Span) {
        self.lint_arguments(&call.args);
        let ast::CallType::Function(name) = call.identify_call() else {
            return self.lint_expression(&call.expr);
        };
        if !self.globals.contains(name) && !self.declared_names.contains(name) {
            let message = format!("there is no function `{name}`");
            self.report(span_range(span), message, false);
        }
        if matches!(name, "search" | "query") {
            self.queries.push((span_range(span), name.to_owned()));
        }
    }

    fn lint_arguments(&mut self, arguments: &[ast::CallArg<'_>]) {
        use ast::CallArg;
        for argument in arguments {
            match argument {
                CallArg::Pos(one)
                | CallArg::Kwarg(_, one)
                | CallArg::PosSplat(one)
                | CallArg::KwargSplat(one) => self.lint_expression(one),
            }
        }
    }
}

/// Returns the bodies of a statement.
fn statement_bodies<'s, 'a>(statement: &'s ast::Stmt<'a>) -> Vec<&'s [ast::Stmt<'a>]> {
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

fn span_range(span: Span) -> Range<usize> {
    span.start_offset as usize..span.end_offset as usize
}
