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
                "`{name}` runs a query on every rendering; if the result changes only with the content, list \
                 pages by their position (`nav`, `pages`) or store the result"
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
            Stmt::ForLoop(for_loop) => self.declare_target(&for_loop.target),
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(target, _)| self.declare_target(target));
            }
            Stmt::Import(import) => self.declare_target(&import.name),
            Stmt::FromImport(import) => {
                for (name, alias) in &import.names {
                    self.declare_target(alias.as_ref().unwrap_or(name));
                }
            }
            Stmt::Macro(macro_node) => self.declare_macro(macro_node),
            Stmt::CallBlock(call) => self.declare_macro(&call.macro_decl),
            _ => {}
        }
        for part in statement_bodies(statement) {
            part.iter().for_each(|child| self.declare_names(child));
        }
    }

    fn declare_macro(&mut self, macro_node: &ast::Macro<'_>) {
        self.declared_names.insert(macro_node.name.to_owned());
        macro_node.args.iter().for_each(|argument| self.declare_target(argument));
    }

    fn declare_target(&mut self, target: &ast::Expr<'_>) {
        match target {
            ast::Expr::Var(variable) => {
                self.declared_names.insert(variable.id.to_owned());
            }
            ast::Expr::List(list) => list.items.iter().for_each(|item| self.declare_target(item)),
            ast::Expr::Tuple(list) => list.items.iter().for_each(|item| self.declare_target(item)),
            _ => {}
        }
    }

    fn lint_statement(&mut self, statement: &ast::Stmt<'_>) {
        use ast::Stmt;
        match statement {
            Stmt::EmitExpr(emit) => self.lint_expression(&emit.expr),
            Stmt::ForLoop(for_loop) => {
                self.lint_expression(&for_loop.iter);
                for_loop.filter_expr.iter().for_each(|filter| self.lint_expression(filter));
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
            Stmt::Macro(macro_node) => {
                macro_node.defaults.iter().for_each(|value| self.lint_expression(value))
            }
            Stmt::CallBlock(call) => self.lint_call(&call.call, call.span()),
            Stmt::Do(do_node) => self.lint_call(&do_node.call, do_node.span()),
            _ => {}
        }
        for part in statement_bodies(statement) {
            part.iter().for_each(|child| self.lint_statement(child));
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
                ends.into_iter().flatten().for_each(|bound| self.lint_expression(bound));
            }
            Expr::UnaryOp(unary) => self.lint_expression(&unary.expr),
            Expr::BinOp(binary) => {
                self.lint_expression(&binary.left);
                self.lint_expression(&binary.right);
            }
            Expr::Compare(compare) => {
                self.lint_expression(&compare.expr);
                compare.ops.iter().for_each(|operand| self.lint_expression(&operand.expr));
            }
            Expr::IfExpr(branch) => {
                self.lint_expression(&branch.test_expr);
                self.lint_expression(&branch.true_expr);
                branch.false_expr.iter().for_each(|operand| self.lint_expression(operand));
            }
            Expr::Filter(filter) => {
                filter.expr.iter().for_each(|operand| self.lint_expression(operand));
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
            Expr::GetAttr(attribute) => self.lint_expression(&attribute.expr),
            Expr::GetItem(subscript) => {
                self.lint_expression(&subscript.expr);
                self.lint_expression(&subscript.subscript_expr);
            }
            Expr::Call(call) => self.lint_call(call, call.span()),
            Expr::List(list) => list.items.iter().for_each(|item| self.lint_expression(item)),
            Expr::Tuple(list) => list.items.iter().for_each(|item| self.lint_expression(item)),
            Expr::Map(map) => {
                map.keys.iter().chain(&map.values).for_each(|item| self.lint_expression(item));
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
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.lint_expression(value),
            }
        }
    }
}

/// Returns the bodies of a statement.
fn statement_bodies<'s, 'a>(statement: &'s ast::Stmt<'a>) -> Vec<&'s [ast::Stmt<'a>]> {
    use ast::Stmt;
    match statement {
        Stmt::Template(template) => vec![&template.children],
        Stmt::ForLoop(for_loop) => vec![&for_loop.body, &for_loop.else_body],
        Stmt::IfCond(branch) => vec![&branch.true_body, &branch.false_body],
        Stmt::WithBlock(with_block) => vec![&with_block.body],
        Stmt::SetBlock(set_block) => vec![&set_block.body],
        Stmt::FilterBlock(filter_block) => vec![&filter_block.body],
        Stmt::Block(block) => vec![&block.body],
        Stmt::Macro(macro_node) => vec![&macro_node.body],
        Stmt::CallBlock(call_block) => vec![&call_block.macro_decl.body],
        _ => Vec::new(),
    }
}

fn span_range(span: Span) -> Range<usize> {
    span.start_offset as usize..span.end_offset as usize
}
