//! XPath 1.0: from an expression and a tree to a value.

use std::borrow::Cow;

use super::path::{Axis, Expression, From, Function, Operator, Step, Test, XPath};
use super::{Kind, Place, Tree};

/// A node, or with a number above 0 one of its attributes: sorts in the order of the document.
pub(super) type Item = (Place, usize);

/// What an expression gives.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    /// In the order of the document, each once.
    Nodes(Vec<Item>),
    Text(String),
    Number(f64),
    Flag(bool),
}

/// What an expression found, as a plan can use it.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) enum Found {
    /// Nodes, in the order of the document.
    Nodes(Vec<Match>),
    /// Anything else, as text.
    Value(String),
    /// True or false.
    Flag(bool),
}

/// A node that was found.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Match {
    /// The node's own value; of an element, its first child's. `None` where the document model has none.
    pub(in super::super) value: Option<String>,
    /// All text in it.
    pub(in super::super) text: String,
    place: Item,
}

impl Match {
    /// Returns the node as markup.
    pub(in super::super) fn markup(&self, tree: &Tree) -> String {
        match self.place {
            (place, 0) => tree.markup(place),
            (place, number) => match tree.attributes(place).get(number - 1) {
                Some((name, value)) => format!("{name}=\"{value}\""),
                None => String::new(),
            },
        }
    }
}

impl XPath {
    /// Looks into a document.
    pub(in super::super) fn find(&self, tree: &Tree) -> Found {
        match evaluate(&self.0, &Context { tree, item: (0, 0), position: 1, size: 1 }) {
            Value::Nodes(items) => {
                Found::Nodes(items.into_iter().map(|item| matched(tree, item)).collect())
            }
            Value::Flag(flag) => Found::Flag(flag),
            other => Found::Value(text_of(tree, &other).into_owned()),
        }
    }
}

fn matched(tree: &Tree, item: Item) -> Match {
    let text = item_text(tree, item);
    let value = match item {
        (place, 0) if matches!(tree.kind(place), Kind::Element { .. } | Kind::Root) => {
            let first = tree.children(place).first();
            first.and_then(|first| tree.own_value(*first)).map(str::to_owned)
        }
        _ => Some(text.clone()),
    };
    Match { value, text, place: item }
}

#[derive(Clone, Copy)]
struct Context<'t> {
    tree: &'t Tree,
    item: Item,
    position: usize,
    size: usize,
}

fn item_text(tree: &Tree, (place, number): Item) -> String {
    match number.checked_sub(1) {
        None => tree.text(place),
        Some(number) => {
            tree.attributes(place).get(number).map_or_else(String::new, |(_, value)| value.clone())
        }
    }
}

fn item_name(tree: &Tree, (place, number): Item) -> &str {
    match number.checked_sub(1) {
        None => match tree.kind(place) {
            Kind::Instruction { target, .. } => target,
            _ => tree.name(place),
        },
        Some(number) => tree.attributes(place).get(number).map_or("", |(name, _)| name.as_str()),
    }
}

fn text_of<'v>(tree: &Tree, value: &'v Value) -> Cow<'v, str> {
    match value {
        Value::Nodes(items) => {
            items.first().map_or(Cow::Borrowed(""), |item| item_text(tree, *item).into())
        }
        Value::Text(text) => text.as_str().into(),
        Value::Number(number) => shown(*number).into(),
        Value::Flag(flag) => if *flag { "true" } else { "false" }.into(),
    }
}

/// Returns a number as XPath writes it: whole ones without a point.
fn shown(number: f64) -> String {
    if number.is_nan() {
        "NaN".to_owned()
    } else if number.is_infinite() {
        if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else if number == 0.0 {
        "0".to_owned()
    } else {
        number.to_string()
    }
}

fn parse_number(text: &str) -> f64 {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    let is_number =
        text.strip_prefix('-').unwrap_or(text).chars().all(|c| c.is_ascii_digit() || c == '.');
    if is_number { text.parse().unwrap_or(f64::NAN) } else { f64::NAN }
}

fn number_of(tree: &Tree, value: &Value) -> f64 {
    match value {
        Value::Number(number) => *number,
        Value::Flag(flag) => f64::from(u8::from(*flag)),
        Value::Nodes(_) | Value::Text(_) => parse_number(&text_of(tree, value)),
    }
}

fn flag_of(value: &Value) -> bool {
    match value {
        Value::Nodes(items) => !items.is_empty(),
        Value::Text(text) => !text.is_empty(),
        Value::Number(number) => *number != 0.0 && !number.is_nan(),
        Value::Flag(flag) => *flag,
    }
}

fn evaluate(expression: &Expression, context: &Context<'_>) -> Value {
    match expression {
        Expression::Text(text) => Value::Text(text.clone()),
        Expression::Number(number) => Value::Number(*number),
        Expression::Negative(inner) => {
            Value::Number(-number_of(context.tree, &evaluate(inner, context)))
        }
        Expression::Binary(operator, left, right) => binary(*operator, (left, right), context),
        Expression::Call(function, arguments) => call(*function, arguments, context),
        Expression::Path { from, steps } => walk(from, steps, context),
    }
}

fn binary(
    operator: Operator,
    (left, right): (&Expression, &Expression),
    context: &Context<'_>,
) -> Value {
    let tree = context.tree;
    let left = evaluate(left, context);
    match operator {
        Operator::Or if flag_of(&left) => return Value::Flag(true),
        Operator::And if !flag_of(&left) => return Value::Flag(false),
        _ => {}
    }
    let right = evaluate(right, context);
    let (one, other) = (|| number_of(tree, &left), || number_of(tree, &right));
    match operator {
        Operator::Or | Operator::And => Value::Flag(flag_of(&right)),
        Operator::Add => Value::Number(one() + other()),
        Operator::Subtract => Value::Number(one() - other()),
        Operator::Multiply => Value::Number(one() * other()),
        Operator::Divide => Value::Number(one() / other()),
        Operator::Remainder => Value::Number(one() % other()),
        Operator::Union => match (left, right) {
            (Value::Nodes(mut items), Value::Nodes(more)) => {
                items.extend(more);
                items.sort_unstable();
                items.dedup();
                Value::Nodes(items)
            }
            _ => Value::Nodes(Vec::new()),
        },
        _ => Value::Flag(compare(operator, &left, &right, tree)),
    }
}

/// Compares as XPath does: of node sets, some pair is enough.
fn compare(operator: Operator, left: &Value, right: &Value, tree: &Tree) -> bool {
    match (left, right) {
        (Value::Flag(_), Value::Nodes(_)) | (Value::Nodes(_), Value::Flag(_)) => {
            compare(operator, &Value::Flag(flag_of(left)), &Value::Flag(flag_of(right)), tree)
        }
        (Value::Nodes(items), _) => items
            .iter()
            .any(|item| compare(operator, &Value::Text(item_text(tree, *item)), right, tree)),
        (_, Value::Nodes(items)) => items
            .iter()
            .any(|item| compare(operator, left, &Value::Text(item_text(tree, *item)), tree)),
        _ => {
            let (one, other) = (number_of(tree, left), number_of(tree, right));
            match operator {
                Operator::Less => one < other,
                Operator::LessOrEqual => one <= other,
                Operator::Greater => one > other,
                Operator::GreaterOrEqual => one >= other,
                _ => {
                    let is_equal = match (left, right) {
                        (Value::Flag(_), _) | (_, Value::Flag(_)) => {
                            flag_of(left) == flag_of(right)
                        }
                        (Value::Number(_), _) | (_, Value::Number(_)) => one == other,
                        _ => text_of(tree, left) == text_of(tree, right),
                    };
                    is_equal == (operator == Operator::Equal)
                }
            }
        }
    }
}

fn walk(from: &From, steps: &[Step], context: &Context<'_>) -> Value {
    let tree = context.tree;
    let mut items = match from {
        From::Root => vec![(0, 0)],
        From::Here => vec![context.item],
        From::Expression(inner, predicates) => match evaluate(inner, context) {
            Value::Nodes(items) => filter(items, predicates, tree),
            // Only nodes have anything below them.
            _ => Vec::new(),
        },
    };
    for step in steps {
        let mut next = Vec::new();
        for item in items {
            let found: Vec<Item> = along(tree, item, step.axis)
                .into_iter()
                .filter(|item| fits(tree, *item, step))
                .collect();
            next.extend(filter(found, &step.predicates, tree));
        }
        next.sort_unstable();
        next.dedup();
        items = next;
    }
    Value::Nodes(items)
}

fn filter(mut items: Vec<Item>, predicates: &[Expression], tree: &Tree) -> Vec<Item> {
    for predicate in predicates {
        let size = items.len();
        let mut position = 0;
        items.retain(|item| {
            position += 1;
            match evaluate(predicate, &Context { tree, item: *item, position, size }) {
                Value::Number(number) => number == position as f64,
                other => flag_of(&other),
            }
        });
    }
    items
}

/// Returns what an axis leads to, the nearest first.
fn along(tree: &Tree, item: Item, axis: Axis) -> Vec<Item> {
    let (place, number) = item;
    let plain = |places: &mut dyn Iterator<Item = Place>| {
        places.map(|place| (place, 0)).collect::<Vec<_>>()
    };
    if number > 0 {
        // An attribute has a parent, and nothing else around it.
        return match axis {
            Axis::Own | Axis::DescendantOrSelf => vec![item],
            Axis::Parent => vec![(place, 0)],
            Axis::Ancestor => plain(&mut std::iter::once(place).chain(tree.above(place))),
            Axis::AncestorOrSelf => {
                let mut all = vec![item];
                all.extend(plain(&mut std::iter::once(place).chain(tree.above(place))));
                all
            }
            _ => Vec::new(),
        };
    }
    match axis {
        Axis::Own => vec![item],
        Axis::Child => plain(&mut tree.children(place).iter().copied()),
        Axis::Descendant => plain(&mut tree.below(place)),
        Axis::DescendantOrSelf => plain(&mut std::iter::once(place).chain(tree.below(place))),
        Axis::Parent => plain(&mut tree.parent(place).into_iter()),
        Axis::Ancestor => plain(&mut tree.above(place)),
        Axis::AncestorOrSelf => plain(&mut std::iter::once(place).chain(tree.above(place))),
        Axis::Attribute => {
            (1..=tree.attributes(place).len()).map(|number| (place, number)).collect()
        }
        Axis::FollowingSibling => plain(&mut tree.after(place).iter().copied()),
        Axis::PrecedingSibling => plain(&mut tree.before(place).iter().rev().copied()),
        Axis::Following => {
            let beginnings = std::iter::once(place).chain(tree.above(place));
            let mut all = plain(&mut beginnings.flat_map(move |at| {
                tree.after(at)
                    .iter()
                    .flat_map(move |next| std::iter::once(*next).chain(tree.below(*next)))
            }));
            all.sort_unstable();
            all
        }
        Axis::Preceding => {
            let beginnings = std::iter::once(place).chain(tree.above(place));
            let mut all = plain(&mut beginnings.flat_map(move |at| {
                tree.before(at)
                    .iter()
                    .flat_map(move |next| std::iter::once(*next).chain(tree.below(*next)))
            }));
            all.sort_unstable_by(|one, other| other.cmp(one));
            all
        }
    }
}

fn fits(tree: &Tree, item: Item, step: &Step) -> bool {
    let (place, number) = item;
    // `*` and names stand for what an axis is mainly about: attributes on theirs, elements elsewhere.
    let is_main = if step.axis == Axis::Attribute {
        number > 0
    } else {
        number == 0 && tree.is_element(place)
    };
    match &step.test {
        Test::Node => true,
        Test::Any => is_main,
        Test::Name(name) => is_main && item_name(tree, item) == name,
        Test::Prefix(prefix) => {
            is_main
                && item_name(tree, item).split_once(':').is_some_and(|(known, _)| known == prefix)
        }
        Test::Text => number == 0 && matches!(tree.kind(place), Kind::Text(_)),
        Test::Comment => number == 0 && matches!(tree.kind(place), Kind::Comment(_)),
        Test::Instruction(wanted) => match tree.kind(place) {
            Kind::Instruction { target, .. } => {
                wanted.as_ref().is_none_or(|wanted| wanted == target)
            }
            _ => false,
        },
    }
}

fn call(function: Function, arguments: &[Expression], context: &Context<'_>) -> Value {
    let tree = context.tree;
    let values: Vec<Value> = arguments.iter().map(|argument| evaluate(argument, context)).collect();
    let here = Value::Nodes(vec![context.item]);
    let value = |place: usize| values.get(place).unwrap_or(&here);
    let text = |place: usize| text_of(tree, value(place)).into_owned();
    let number = |place: usize| number_of(tree, value(place));
    let count = |number: usize| Value::Number(number as f64);
    let first_name = || match value(0) {
        Value::Nodes(items) => items.first().map_or("", |item| item_name(tree, *item)),
        _ => "",
    };
    match function {
        Function::Last => count(context.size),
        Function::Position => count(context.position),
        Function::Count => match value(0) {
            Value::Nodes(items) => count(items.len()),
            _ => Value::Number(f64::NAN),
        },
        Function::Sum => match value(0) {
            Value::Nodes(items) => {
                Value::Number(items.iter().map(|item| parse_number(&item_text(tree, *item))).sum())
            }
            _ => Value::Number(f64::NAN),
        },
        Function::Name => Value::Text(first_name().to_owned()),
        Function::LocalName => {
            let name = first_name();
            Value::Text(name.rsplit(':').next().unwrap_or(name).to_owned())
        }
        Function::Text => Value::Text(text(0)),
        Function::Concat => Value::Text((0..values.len()).map(text).collect()),
        Function::StartsWith => Value::Flag(text(0).starts_with(&text(1))),
        Function::EndsWith => Value::Flag(text(0).ends_with(&text(1))),
        Function::Contains => Value::Flag(text(0).contains(&text(1))),
        Function::Before => {
            Value::Text(text(0).split_once(&text(1)).map_or("", |(before, _)| before).to_owned())
        }
        Function::After => {
            Value::Text(text(0).split_once(&text(1)).map_or("", |(_, after)| after).to_owned())
        }
        Function::Substring => {
            let length = (values.len() > 2).then(|| number(2));
            Value::Text(substring(&text(0), number(1), length))
        }
        Function::Length => count(text(0).chars().count()),
        Function::Normalize => {
            Value::Text(text(0).split_ascii_whitespace().collect::<Vec<_>>().join(" "))
        }
        Function::Translate => Value::Text(translate(&text(0), &text(1), &text(2))),
        Function::Boolean => Value::Flag(flag_of(value(0))),
        Function::Not => Value::Flag(!flag_of(value(0))),
        Function::True => Value::Flag(true),
        Function::False => Value::Flag(false),
        Function::Number => Value::Number(number(0)),
        Function::Floor => Value::Number(number(0).floor()),
        Function::Ceiling => Value::Number(number(0).ceil()),
        Function::Round => Value::Number((number(0) + 0.5).floor()),
        Function::Lower => Value::Text(text(0).to_lowercase()),
        Function::Upper => Value::Text(text(0).to_uppercase()),
        Function::Join => {
            let parts: Vec<String> = match value(0) {
                Value::Nodes(items) => items.iter().map(|item| item_text(tree, *item)).collect(),
                _ => vec![text(0)],
            };
            Value::Text(parts.join(&text(1)))
        }
        Function::Matches => {
            let pattern = super::super::pattern::compile(&text(1));
            Value::Flag(pattern.is_ok_and(|pattern| pattern.is_match(&text(0))))
        }
    }
}

fn substring(text: &str, from: f64, length: Option<f64>) -> String {
    let round = |number: f64| (number + 0.5).floor();
    let from = round(from);
    let end = length.map_or(f64::INFINITY, |length| from + round(length));
    let letters = text.chars().enumerate();
    // Places count from 1; comparisons with what is no number hold for none.
    letters
        .filter(|(at, _)| (*at as f64 + 1.0) >= from && (*at as f64 + 1.0) < end)
        .map(|(_, c)| c)
        .collect()
}

fn translate(text: &str, from: &str, to: &str) -> String {
    let to: Vec<char> = to.chars().collect();
    text.chars()
        .filter_map(|letter| match from.chars().position(|one| one == letter) {
            None => Some(letter),
            Some(at) => to.get(at).copied(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKS: &str = "<shop xmlns:p='u'><book id='1' lang='en'><title>One</title><price>10</price></book>\
         <book id='2'><title>Two <b>bold</b></title><price>20.5</price></book><!--note--><p:extra>x</p:extra></shop>";

    #[track_caller]
    fn check(path: &str, expected: &[&str]) {
        let tree = Tree::of_xml(BOOKS).unwrap();
        let found = match XPath::parse(path, true).unwrap().find(&tree) {
            Found::Nodes(all) => all.into_iter().map(|one| one.text).collect(),
            Found::Value(text) => vec![text],
            Found::Flag(flag) => vec![flag.to_string()],
        };
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn paths_find_what_the_standard_says() {
        check("/shop/book/title", &["One", "Two bold"]);
        check("//title", &["One", "Two bold"]);
        check("//book[2]/title/text()", &["Two "]);
        check("//book[@lang='en']/@id", &["1"]);
        check("//book[price > 15]/@id", &["2"]);
        check("//title[1]", &["One", "Two bold"]);
        check("(//title)[1]", &["One"]);
        check("(//title)[last()]", &["Two bold"]);
        check("//b/ancestor::book/@id", &["2"]);
        check("//b/ancestor::*[1]/text()", &["Two "]);
        check("//price[. = 10]/preceding-sibling::title", &["One"]);
        check("//title[.='One']/following::title", &["Two bold"]);
        check("//b/preceding::price", &["10"]);
        check("//book[1]/following-sibling::*[1]/@id", &["2"]);
        check("//comment()", &["note"]);
        check("//p:extra", &["x"]);
        check("//p:*", &["x"]);
        check("//*[local-name()='extra']", &["x"]);
        check("//title | //price", &["One", "10", "Two bold", "20.5"]);
        check("//book[not(@lang)]/title/b", &["bold"]);
        check("//@*[name()='lang']/..", &["One10"]);
        check("//book[position()=last()]/@id", &["2"]);
        check("//nothing", &[]);
        check("//book/title[contains(., 'bold')]/b", &["bold"]);
    }

    #[test]
    fn values_are_those_of_the_standard() {
        check("count(//book)", &["2"]);
        check("sum(//price)", &["30.5"]);
        check("1 + 2 * 3 - 4 div 2", &["5"]);
        check("7 mod 3", &["1"]);
        check("-(2 - 5)", &["3"]);
        check("1 div 0", &["Infinity"]);
        check("number('x')", &["NaN"]);
        check("count(//book) = 2 and 3 > 2", &["true"]);
        check("//price = 10", &["true"]);
        check("//price != 10", &["true"]);
        check("//price = 11", &["false"]);
        check("concat(//title, '-', 1)", &["One-1"]);
        check("substring('12345', 2, 3)", &["234"]);
        check("substring('12345', 1.5, 2.6)", &["234"]);
        check("substring('12345', 0 div 0, 3)", &[""]);
        check("substring-before('a=b', '=')", &["a"]);
        check("substring-after('a=b', '=')", &["b"]);
        check("translate('bar', 'abc', 'AB')", &["BAr"]);
        check("normalize-space('  a   b ')", &["a b"]);
        check("string-length('äö')", &["2"]);
        check("round(-2.5)", &["-2"]);
        check("upper-case('x')", &["X"]);
        check("string-join(//title, ',')", &["One,Two bold"]);
        check("matches('abc', '^a')", &["true"]);
    }

    #[test]
    fn an_element_s_own_value_is_its_first_child_s() {
        let tree = Tree::of_xml("<a><b>text<c/>more</b><d><e/></d></a>").unwrap();
        let Found::Nodes(found) = XPath::parse("//b | //d", false).unwrap().find(&tree) else {
            panic!()
        };
        let values: Vec<_> = found.iter().map(|one| one.value.as_deref()).collect();
        assert_eq!(values, [Some("text"), None]);
        assert_eq!(found[0].markup(&tree), "<b>text<c/>more</b>");
    }
}
