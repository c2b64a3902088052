//! Expressions in dialogs: `${cqDesign.titleHidden}` in a property of a dialog's node.
//!
//! In: the text of a property, and the scope: the properties of the component's content policy (`cqDesign`), and the
//! paths of the component and of the dialog's node (`requestPathInfo`). Out: the value; nothing if it is null.
//!
//! The grammar is the part of the Expression Language that dialogs use: `?:`, `or` `||`, `and` `&&`, `==` `!=` `eq`
//! `ne`, `not` `!` `empty`, texts, numbers, `true`, `false`, `null`, names with members, and parentheses.
//!
//! On failure: an expression that cannot be read, or that uses another function or name, is null.

use tympan_content::{Node, Property, Value};

/// Maximum length of an expression.
const MAX_EXPRESSION_BYTES: usize = 1000;
/// Maximum depth of parentheses and conditions.
const MAX_EXPRESSION_DEPTH: usize = 20;

/// What the names of an expression stand for.
pub(super) struct ExpressionScope {
    /// The policy of the component.
    pub(super) policy: Option<Node>,
    /// The path of the component that is edited.
    pub(super) component_path: String,
}

/// The value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum DialogExpressionValue {
    /// Nothing.
    Null,
    /// A truth value.
    Boolean(bool),
    /// A number, as it is written.
    Number(String),
    /// A text.
    Text(String),
}

impl DialogExpressionValue {
    /// Returns true for `true`, as a truth value or a text.
    pub(super) fn is_true(&self) -> bool {
        matches!(self, Self::Boolean(true)) || matches!(self, Self::Text(text) if text == "true")
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Null) || matches!(self, Self::Text(text) if text.is_empty())
    }

    fn text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Boolean(truth) => truth.to_string(),
            Self::Number(text) | Self::Text(text) => text.clone(),
        }
    }

    /// Compares as the Expression Language does: null equals null only, other values by their text.
    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, other) | (other, Self::Null) => *other == Self::Null,
            (one, other) => one.text() == other.text(),
        }
    }

    /// Returns the value of a property; `None` for null.
    pub(super) fn into_property(self) -> Option<Property> {
        match self {
            Self::Null => None,
            Self::Boolean(truth) => Some(Property::Single(Value::Boolean(truth))),
            Self::Number(text) | Self::Text(text) => Some(Property::text(text)),
        }
    }
}

/// Returns the value of a text with expressions; `None` for a text without any.
pub(super) fn evaluate_text(text: &str, scope: &ExpressionScope) -> Option<DialogExpressionValue> {
    let (before, rest) = text.split_once("${")?;
    if text.len() > MAX_EXPRESSION_BYTES {
        return Some(DialogExpressionValue::Null);
    }
    let (expression, after) = rest.split_once('}')?;
    let value = evaluate(expression, scope);
    if before.is_empty() && after.is_empty() {
        return Some(value);
    }
    let after = match evaluate_text(after, scope) {
        Some(value) => value.text(),
        None => after.to_owned(),
    };
    Some(DialogExpressionValue::Text(format!("{before}{}{after}", value.text())))
}

/// Returns the value of one expression, without its braces.
pub(super) fn evaluate(expression: &str, scope: &ExpressionScope) -> DialogExpressionValue {
    let tokens = tokenize(expression);
    let mut parser = DialogExpressionParser { tokens: &tokens, at: 0, depth: 0, scope };
    match parser.conditional() {
        Some(value) if parser.at == tokens.len() => value,
        _ => DialogExpressionValue::Null,
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Text(String),
    Number(String),
    Name(String),
    Sign(&'static str),
}

fn tokenize(expression: &str) -> Vec<Token> {
    const SIGNS: [&str; 9] = ["&&", "||", "==", "!=", "!", "?", ":", "(", ")"];
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            rest = rest.get(sign.len()..).unwrap_or_default();
        } else if matches!(first, '\'' | '"') {
            let inner = rest.get(1..).unwrap_or_default();
            let Some((text, after)) = inner.split_once(first) else { return Vec::new() };
            tokens.push(Token::Text(text.to_owned()));
            rest = after;
        } else {
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let word = rest.get(..end).unwrap_or_default();
            match word {
                "" => return Vec::new(),
                "and" => tokens.push(Token::Sign("&&")),
                "or" => tokens.push(Token::Sign("||")),
                "eq" => tokens.push(Token::Sign("==")),
                "ne" => tokens.push(Token::Sign("!=")),
                "not" => tokens.push(Token::Sign("!")),
                word if word.parse::<f64>().is_ok() => tokens.push(Token::Number(word.to_owned())),
                word => tokens.push(Token::Name(word.to_owned())),
            }
            rest = rest.get(end..).unwrap_or_default();
        }
        rest = rest.trim_start();
    }
    tokens
}

struct DialogExpressionParser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    scope: &'a ExpressionScope,
}

impl DialogExpressionParser<'_> {
    fn accept(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.tokens.get(self.at), Some(Token::Sign(next)) if *next == sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn conditional(&mut self) -> Option<DialogExpressionValue> {
        self.depth += 1;
        if self.depth > MAX_EXPRESSION_DEPTH {
            return None;
        }
        let condition = self.disjunction()?;
        let value = if self.accept("?") {
            let yes = self.conditional()?;
            let no = if self.accept(":") { self.conditional()? } else { return None };
            if condition.is_true() { yes } else { no }
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn disjunction(&mut self) -> Option<DialogExpressionValue> {
        let mut value = self.conjunction()?;
        while self.accept("||") {
            let other = self.conjunction()?;
            value = DialogExpressionValue::Boolean(value.is_true() || other.is_true());
        }
        Some(value)
    }

    fn conjunction(&mut self) -> Option<DialogExpressionValue> {
        let mut value = self.comparison()?;
        while self.accept("&&") {
            let other = self.comparison()?;
            value = DialogExpressionValue::Boolean(value.is_true() && other.is_true());
        }
        Some(value)
    }

    fn comparison(&mut self) -> Option<DialogExpressionValue> {
        let value = self.unary()?;
        if self.accept("==") {
            return Some(DialogExpressionValue::Boolean(value.equals(&self.unary()?)));
        }
        if self.accept("!=") {
            return Some(DialogExpressionValue::Boolean(!value.equals(&self.unary()?)));
        }
        Some(value)
    }

    fn unary(&mut self) -> Option<DialogExpressionValue> {
        let mut is_negated = false;
        while self.accept("!") {
            is_negated = !is_negated;
        }
        let value = match self.tokens.get(self.at)? {
            Token::Name(name) if name == "empty" => {
                self.at += 1;
                DialogExpressionValue::Boolean(self.unary()?.is_empty())
            }
            _ => self.primary()?,
        };
        Some(if is_negated { DialogExpressionValue::Boolean(!value.is_true()) } else { value })
    }

    fn primary(&mut self) -> Option<DialogExpressionValue> {
        if self.accept("(") {
            let value = self.conditional()?;
            return self.accept(")").then_some(value);
        }
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        match token {
            Token::Text(text) => Some(DialogExpressionValue::Text(text.clone())),
            Token::Number(text) => Some(DialogExpressionValue::Number(text.clone())),
            Token::Name(name) => Some(self.named(name)),
            Token::Sign(_) => None,
        }
    }

    fn named(&self, name: &str) -> DialogExpressionValue {
        match name {
            "true" => DialogExpressionValue::Boolean(true),
            "false" => DialogExpressionValue::Boolean(false),
            "requestPathInfo.suffix" => {
                DialogExpressionValue::Text(self.scope.component_path.clone())
            }
            name => match name.strip_prefix("cqDesign.") {
                Some(name) => self.policy_value(name),
                None => DialogExpressionValue::Null,
            },
        }
    }

    /// Returns a property of the policy. A name cannot contain a colon: `_jcr_title` stands for `jcr:title`.
    fn policy_value(&self, name: &str) -> DialogExpressionValue {
        let name = match name.strip_prefix('_').and_then(|rest| rest.split_once('_')) {
            Some((prefix, local)) => format!("{prefix}:{local}"),
            None => name.to_owned(),
        };
        let property = self.scope.policy.as_ref().and_then(|policy| policy.property(&name));
        match property.as_ref().map(|property| (property, property.first())) {
            Some((_, Some(Value::Boolean(truth)))) => DialogExpressionValue::Boolean(*truth),
            Some((_, Some(value))) => DialogExpressionValue::Text(value.to_text().into_owned()),
            Some((_, None)) | None => DialogExpressionValue::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use tympan_content::{NodePath, Repository, Subtree};

    use super::*;

    fn scope() -> ExpressionScope {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("admin").unwrap();
        let policy = Subtree::new("policy", "nt:unstructured")
            .with_property("delay", "3000")
            .with_property("on", Value::Boolean(true))
            .with_property("off", "false")
            .with_property("jcr:description", "Text");
        let path = NodePath::new("/policy").unwrap();
        session.put_node(&path, policy).unwrap();
        session.commit("begin", std::time::SystemTime::UNIX_EPOCH).unwrap();
        let policy = repository.snapshot().unwrap().node(&path).unwrap();
        ExpressionScope { policy, component_path: "/content/it".to_owned() }
    }

    #[test]
    fn expressions_of_dialogs_have_their_value() {
        let scope = scope();
        for (text, expected) in [
            ("${cqDesign.on}", "true"),
            ("${!cqDesign.on}", "false"),
            ("${cqDesign.off}", "false"),
            ("${cqDesign.none}", "-"),
            ("${not empty cqDesign.delay ? cqDesign.delay : 5000}", "3000"),
            ("${not empty cqDesign.none ? cqDesign.none : 5000}", "5000"),
            ("${cqDesign.none == null ? 'no' : cqDesign.none}", "no"),
            ("${cqDesign._jcr_description}", "Text"),
            ("${cqDesign.off == 'false' && cqDesign.on}", "true"),
            ("${!cqDesign.on or (empty cqDesign.none and empty cqDesign.other)}", "true"),
            ("${!cqDesign.on or not empty cqDesign.none or not empty cqDesign.other}", "false"),
            ("${(cqDesign.on && cqDesign.off)}", "false"),
            ("${requestPathInfo.suffix}", "/content/it"),
            ("${empty param.item ? requestPathInfo.suffix : param.item}", "/content/it"),
            ("a${cqDesign.delay}b${true}", "a3000btrue"),
            ("${cqDesign.on", "plain"),
            ("${granite:encode(x)}", "-"),
            ("${((((((((((((((((((((((((true))))))))))))))))))))))))}", "-"),
            ("text", "plain"),
        ] {
            let value = match evaluate_text(text, &scope) {
                None => "plain".to_owned(),
                Some(DialogExpressionValue::Null) => "-".to_owned(),
                Some(value) => value.text(),
            };
            assert_eq!(value, expected, "{text}");
        }
    }
}
