//! CSS selectors in jsoup's dialect, including jsoup's own `:eq`, `:contains`, `:has`, `:matches`, `[^prefix]`,
//! `[name~=regex]`.
//!
//! A selector is parsed once, when the plan is read; unsupported syntax is reported then.

use super::super::regex_pattern::RegexPattern;

use super::tree::{MarkupNodeId, MarkupNodeKind, MarkupTree};

/// A selector.
#[derive(Debug, Clone)]
pub(crate) struct CssSelector(Vec<CssSelectorChain>);

/// Compound selectors from left to right, each with the combinator that joins it to the previous one.
type CssSelectorChain = Vec<(CssCombinator, Vec<CssSimpleSelector>)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CssCombinator {
    Descendant,
    Child,
    NextSibling,
    SubsequentSibling,
}

#[derive(Debug, Clone)]
enum CssSimpleSelector {
    ElementName(String),
    Id(String),
    Class(String),
    HasAttribute(String),
    HasAttributePrefix(String),
    Attribute {
        name: String,
        operator: CssAttributeOperator,
        value: String,
    },
    AttributeMatches(String, RegexPattern),
    /// `an+b` of all siblings, or of those with the same name, counted from the start or from the end.
    Nth {
        step: i64,
        offset: i64,
        is_of_type: bool,
        is_from_end: bool,
    },
    OnlyChild {
        is_of_type: bool,
    },
    Empty,
    Root,
    SiblingIndex(std::cmp::Ordering, i64),
    Not(CssSelector),
    ContainsMatch(CssSelector),
    MatchesAny(CssSelector),
    ContainsText {
        text: String,
        is_own_text: bool,
    },
    TextMatches {
        pattern: RegexPattern,
        is_own_text: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CssAttributeOperator {
    Equal,
    NotEqual,
    StartsWith,
    EndsWith,
    Contains,
}

/// Maximum nesting depth of selectors.
const MAX_SELECTOR_DEPTH: usize = 16;

impl CssSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// The unsupported syntax.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        parse_selector(text, 0).map_err(|fault| format!("selector `{text}`: {fault}"))
    }

    /// Returns the matching elements in document order.
    pub(crate) fn select(&self, tree: &MarkupTree) -> Vec<MarkupNodeId> {
        self.select_below(tree, 0)
    }

    fn select_below(&self, tree: &MarkupTree, root: MarkupNodeId) -> Vec<MarkupNodeId> {
        tree.descendants(root)
            .filter(|node| tree.is_element(*node) && self.matches(tree, *node))
            .collect()
    }

    fn matches(&self, tree: &MarkupTree, node: MarkupNodeId) -> bool {
        self.0.iter().any(|chain| chain_matches(tree, node, chain))
    }
}

fn chain_matches(
    tree: &MarkupTree,
    node: MarkupNodeId,
    chain: &[(CssCombinator, Vec<CssSimpleSelector>)],
) -> bool {
    let Some(((join, tests), before)) = chain.split_last() else { return true };
    if !tests.iter().all(|test| test.matches(tree, node)) {
        return false;
    }
    if before.is_empty() {
        return true;
    }
    let fits = |node: MarkupNodeId| tree.is_element(node) && chain_matches(tree, node, before);
    match join {
        CssCombinator::Descendant => tree.ancestors(node).any(fits),
        CssCombinator::Child => tree.parent(node).is_some_and(fits),
        CssCombinator::NextSibling => {
            let previous = tree
                .preceding_siblings(node)
                .iter()
                .rev()
                .find(|sibling| tree.is_element(**sibling));
            previous.is_some_and(|previous| fits(*previous))
        }
        CssCombinator::SubsequentSibling => {
            tree.preceding_siblings(node).iter().any(|sibling| fits(*sibling))
        }
    }
}

impl CssSimpleSelector {
    fn matches(&self, tree: &MarkupTree, node: MarkupNodeId) -> bool {
        let value = |name: &str| tree.attribute(node, name);
        match self {
            Self::ElementName(name) => tree.name(node).eq_ignore_ascii_case(name),
            Self::Id(id) => value("id").is_some_and(|element_id| element_id == id),
            Self::Class(class) => value("class").is_some_and(|all| {
                all.split_whitespace().any(|candidate| candidate.eq_ignore_ascii_case(class))
            }),
            Self::HasAttribute(name) => value(name).is_some(),
            Self::HasAttributePrefix(prefix) => {
                tree.attributes(node).iter().any(|(name, _)| name.starts_with(prefix.as_str()))
            }
            Self::Attribute { name, operator, value: expected } => {
                let actual =
                    value(name).map(|attribute_value| attribute_value.trim().to_lowercase());
                match (operator, actual) {
                    (CssAttributeOperator::NotEqual, actual) => {
                        actual.is_none_or(|actual| actual != *expected)
                    }
                    (_, None) => false,
                    (CssAttributeOperator::Equal, Some(actual)) => actual == *expected,
                    (CssAttributeOperator::StartsWith, Some(actual)) => {
                        actual.starts_with(expected.as_str())
                    }
                    (CssAttributeOperator::EndsWith, Some(actual)) => {
                        actual.ends_with(expected.as_str())
                    }
                    (CssAttributeOperator::Contains, Some(actual)) => {
                        actual.contains(expected.as_str())
                    }
                }
            }
            Self::AttributeMatches(name, pattern) => {
                value(name).is_some_and(|attribute_value| pattern.is_match(attribute_value))
            }
            Self::Nth { step, offset, is_of_type, is_from_end } => {
                let mut siblings = element_siblings(tree, node, *is_of_type);
                if *is_from_end {
                    siblings.reverse();
                }
                let at = siblings.iter().position(|sibling| *sibling == node);
                let at = at.and_then(|at| i64::try_from(at + 1).ok()).unwrap_or(0);
                let rest = at - offset;
                if *step == 0 { rest == 0 } else { rest % step == 0 && rest / step >= 0 }
            }
            Self::OnlyChild { is_of_type } => element_siblings(tree, node, *is_of_type).len() == 1,
            Self::Empty => !tree.children(node).iter().any(|child| match tree.kind(*child) {
                MarkupNodeKind::Text(text) => !text.trim().is_empty(),
                MarkupNodeKind::Element { .. } => true,
                _ => false,
            }),
            Self::Root => tree.parent(node) == Some(0),
            Self::SiblingIndex(order, range) => {
                let siblings = tree.element_siblings(node);
                let at = siblings.iter().position(|sibling| *sibling == node);
                at.and_then(|at| i64::try_from(at).ok()).is_some_and(|at| at.cmp(range) == *order)
            }
            Self::Not(selector) => !selector.matches(tree, node),
            Self::MatchesAny(selector) => selector.matches(tree, node),
            Self::ContainsMatch(selector) => !selector.select_below(tree, node).is_empty(),
            Self::ContainsText { text, is_own_text } => {
                element_text(tree, node, *is_own_text).to_lowercase().contains(text)
            }
            Self::TextMatches { pattern, is_own_text } => {
                pattern.is_match(&element_text(tree, node, *is_own_text))
            }
        }
    }
}

fn element_siblings(tree: &MarkupTree, node: MarkupNodeId, is_of_type: bool) -> Vec<MarkupNodeId> {
    let mut all = tree.element_siblings(node);
    if is_of_type {
        all.retain(|sibling| tree.name(*sibling) == tree.name(node));
    }
    all
}

fn element_text(tree: &MarkupTree, node: MarkupNodeId, is_own: bool) -> String {
    if !is_own {
        return tree.display_text(node);
    }
    let texts = tree.children(node).iter().filter_map(|child| match tree.kind(*child) {
        MarkupNodeKind::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Block elements, which separate the words around them.
const BLOCK_ELEMENTS: [&str; 46] = [
    "html",
    "head",
    "body",
    "frameset",
    "script",
    "noscript",
    "style",
    "meta",
    "link",
    "title",
    "frame",
    "noframes",
    "section",
    "nav",
    "aside",
    "hgroup",
    "header",
    "footer",
    "p",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "pre",
    "div",
    "blockquote",
    "hr",
    "address",
    "figure",
    "form",
    "fieldset",
    "dl",
    "dt",
    "dd",
    "li",
    "table",
    "tbody",
    "tr",
    "td",
    "th",
    "article",
    "main",
];

impl MarkupTree {
    /// Returns the visible text of an element: whitespace is collapsed, blocks are separated.
    pub(crate) fn display_text(&self, node: MarkupNodeId) -> String {
        let mut out = String::new();
        let apart = |out: &mut String| {
            if !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
        };
        // Blocks are separated from the text before and after them.
        let mut open: Vec<(MarkupNodeId, bool)> =
            self.children(node).iter().rev().map(|&child| (child, false)).collect();
        while let Some((at, is_end)) = open.pop() {
            match self.kind(at) {
                MarkupNodeKind::Text(text) if !is_hidden_element(self, at) => {
                    for letter in text.chars() {
                        if letter.is_whitespace() {
                            apart(&mut out);
                        } else {
                            out.push(letter);
                        }
                    }
                }
                MarkupNodeKind::Element { name, .. } => {
                    if name == "br" || BLOCK_ELEMENTS.contains(&name.as_str()) {
                        apart(&mut out);
                    }
                    if !is_end {
                        open.push((at, true));
                        open.extend(self.children(at).iter().rev().map(|&child| (child, false)));
                    }
                }
                _ => {}
            }
        }
        out.trim().to_owned()
    }
}

/// Returns true for scripts and styles, which contain no visible text.
fn is_hidden_element(tree: &MarkupTree, node: MarkupNodeId) -> bool {
    let name = tree.parent(node).map_or("", |parent| tree.name(parent));
    matches!(name, "script" | "style")
}

fn parse_selector(text: &str, depth: usize) -> Result<CssSelector, String> {
    if depth > MAX_SELECTOR_DEPTH {
        return Err("it is nested too deeply".to_owned());
    }
    let mut reader = CssSelectorParser { text, position: 0, depth };
    let mut chains = Vec::new();
    loop {
        chains.push(reader.parse_chain()?);
        if !reader.accept(",") {
            break;
        }
    }
    if reader.position < text.len() {
        return Err(format!("cannot parse `{}`", reader.remaining()));
    }
    Ok(CssSelector(chains))
}

struct CssSelectorParser<'t> {
    text: &'t str,
    position: usize,
    depth: usize,
}

impl<'t> CssSelectorParser<'t> {
    fn remaining(&self) -> &'t str {
        self.text.get(self.position..).unwrap_or_default()
    }

    fn accept(&mut self, token: &str) -> bool {
        let is_accepted = self.remaining().starts_with(token);
        if is_accepted {
            self.position += token.len();
        }
        is_accepted
    }

    fn skip_space(&mut self) -> bool {
        let rest = self.remaining();
        let blank = rest.len() - rest.trim_start().len();
        self.position += blank;
        blank > 0
    }

    fn read_identifier(&mut self) -> Result<&'t str, String> {
        let rest = self.remaining();
        let is_part = |letter: char| {
            letter.is_alphanumeric() || matches!(letter, '-' | '_') || !letter.is_ascii()
        };
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        if end == 0 {
            return Err(format!("a name is missing before `{rest}`"));
        }
        self.position += end;
        Ok(rest.get(..end).unwrap_or_default())
    }

    fn parse_chain(&mut self) -> Result<CssSelectorChain, String> {
        let mut chain: CssSelectorChain = Vec::new();
        self.skip_space();
        let mut join = CssCombinator::Descendant;
        loop {
            chain.push((join, self.parse_compound()?));
            let has_blank = self.skip_space();
            join = match self.remaining().chars().next() {
                None | Some(',') => return Ok(chain),
                Some('>') => CssCombinator::Child,
                Some('+') => CssCombinator::NextSibling,
                Some('~') => CssCombinator::SubsequentSibling,
                Some(_) if has_blank => CssCombinator::Descendant,
                Some(_) => return Err(format!("cannot parse `{}`", self.remaining())),
            };
            if join != CssCombinator::Descendant {
                self.position += 1;
                self.skip_space();
            }
        }
    }

    fn parse_compound(&mut self) -> Result<Vec<CssSimpleSelector>, String> {
        let mut tests = Vec::new();
        if self.accept("*") {
            tests.push(CssSimpleSelector::MatchesAny(CssSelector(vec![Vec::new()])));
        } else if self.remaining().starts_with(|letter: char| letter.is_alphabetic()) {
            let mut name = self.read_identifier()?.to_owned();
            // jsoup's `ns|name` denotes an element `ns:name`.
            if self.accept("|") {
                name = format!("{name}:{}", self.read_identifier()?);
            }
            tests.push(CssSimpleSelector::ElementName(name));
        }
        loop {
            if self.accept("#") {
                tests.push(CssSimpleSelector::Id(self.read_identifier()?.to_owned()));
            } else if self.accept(".") {
                tests.push(CssSimpleSelector::Class(self.read_identifier()?.to_owned()));
            } else if self.accept("[") {
                let inside = self.read_until(']')?;
                tests.push(parse_attribute(inside)?);
            } else if self.accept(":") {
                tests.push(self.parse_pseudo_class()?);
            } else if tests.is_empty() {
                return Err(format!("cannot parse `{}`", self.remaining()));
            } else {
                return Ok(tests);
            }
        }
    }

    /// Returns the text before the closing bracket, respecting nested brackets and quotes.
    fn read_until(&mut self, close: char) -> Result<&'t str, String> {
        let open = if close == ')' { '(' } else { '[' };
        let (rest, mut depth, mut quote) = (self.remaining(), 1, None);
        for (at, letter) in rest.char_indices() {
            match quote {
                Some(mark) if letter == mark => quote = None,
                Some(_) => {}
                None if letter == '"' || letter == '\'' => quote = Some(letter),
                None if letter == open => depth += 1,
                None if letter == close => {
                    depth -= 1;
                    if depth == 0 {
                        self.position += at + close.len_utf8();
                        return Ok(rest.get(..at).unwrap_or_default());
                    }
                }
                None => {}
            }
        }
        Err(format!("`{close}` is missing"))
    }

    fn parse_pseudo_class(&mut self) -> Result<CssSimpleSelector, String> {
        let name = self.read_identifier()?.to_ascii_lowercase();
        let nth = |a, b, is_of_type, is_from_end| CssSimpleSelector::Nth {
            step: a,
            offset: b,
            is_of_type,
            is_from_end,
        };
        let plain = match name.as_str() {
            "first-child" => Some(nth(0, 1, false, false)),
            "last-child" => Some(nth(0, 1, false, true)),
            "first-of-type" => Some(nth(0, 1, true, false)),
            "last-of-type" => Some(nth(0, 1, true, true)),
            "only-child" => Some(CssSimpleSelector::OnlyChild { is_of_type: false }),
            "only-of-type" => Some(CssSimpleSelector::OnlyChild { is_of_type: true }),
            "empty" => Some(CssSimpleSelector::Empty),
            "root" => Some(CssSimpleSelector::Root),
            _ => None,
        };
        if let Some(test) = plain {
            return Ok(test);
        }
        if !self.accept("(") {
            return Err(format!("`:{name}` is not supported"));
        }
        let inside = self.read_until(')')?.trim();
        let index = || {
            inside.parse::<i32>().map(i64::from).map_err(|_| format!("`{inside}` is not a number"))
        };
        let inner = || parse_selector(inside, self.depth + 1);
        let pattern = || super::super::regex_pattern::compile_pattern(inside);
        let text = || inside.trim_matches(['"', '\'']).to_lowercase();
        Ok(match name.as_str() {
            "eq" => CssSimpleSelector::SiblingIndex(std::cmp::Ordering::Equal, index()?),
            "lt" => CssSimpleSelector::SiblingIndex(std::cmp::Ordering::Less, index()?),
            "gt" => CssSimpleSelector::SiblingIndex(std::cmp::Ordering::Greater, index()?),
            "not" => CssSimpleSelector::Not(inner()?),
            "has" => CssSimpleSelector::ContainsMatch(inner()?),
            "is" => CssSimpleSelector::MatchesAny(inner()?),
            "contains" => CssSimpleSelector::ContainsText { text: text(), is_own_text: false },
            "containsown" => CssSimpleSelector::ContainsText { text: text(), is_own_text: true },
            "matches" => CssSimpleSelector::TextMatches { pattern: pattern()?, is_own_text: false },
            "matchesown" => {
                CssSimpleSelector::TextMatches { pattern: pattern()?, is_own_text: true }
            }
            "nth-child" | "nth-last-child" | "nth-of-type" | "nth-last-of-type" => {
                let (a, b) = parse_nth_formula(inside)?;
                nth(a, b, name.ends_with("of-type"), name.contains("last"))
            }
            _ => return Err(format!("`:{name}` is not supported")),
        })
    }
}

fn parse_attribute(inside: &str) -> Result<CssSimpleSelector, String> {
    let inside = inside.trim();
    if let Some(prefix) = inside.strip_prefix('^') {
        return Ok(CssSimpleSelector::HasAttributePrefix(prefix.to_lowercase()));
    }
    let Some(at) = inside.find('=') else {
        return Ok(CssSimpleSelector::HasAttribute(inside.to_lowercase()));
    };
    let (name, value) =
        (inside.get(..at).unwrap_or_default(), inside.get(at + 1..).unwrap_or_default());
    let value = value.trim().trim_matches(['"', '\'']);
    let (name, how) = match name.chars().last() {
        Some('!') => (name.strip_suffix('!'), CssAttributeOperator::NotEqual),
        Some('^') => (name.strip_suffix('^'), CssAttributeOperator::StartsWith),
        Some('$') => (name.strip_suffix('$'), CssAttributeOperator::EndsWith),
        Some('*') => (name.strip_suffix('*'), CssAttributeOperator::Contains),
        Some('~') => {
            let name = name.trim_end_matches('~').trim().to_lowercase();
            return Ok(CssSimpleSelector::AttributeMatches(
                name,
                super::super::regex_pattern::compile_pattern(value)?,
            ));
        }
        _ => (Some(name), CssAttributeOperator::Equal),
    };
    let name = name.unwrap_or_default().trim().to_lowercase();
    if name.is_empty() {
        return Err(format!("`[{inside}]` has no attribute name"));
    }
    Ok(CssSimpleSelector::Attribute { name, operator: how, value: value.trim().to_lowercase() })
}

/// Parses `2n+1`, `odd`, `even`, `3`.
fn parse_nth_formula(text: &str) -> Result<(i64, i64), String> {
    let text: String = text.to_ascii_lowercase().split_whitespace().collect();
    let number = |text: &str| text.trim_start_matches('+').parse::<i32>().ok().map(i64::from);
    let formula = match text.as_str() {
        "odd" => Some((2, 1)),
        "even" => Some((2, 0)),
        _ => match text.split_once('n') {
            None => number(&text).map(|b| (0, b)),
            Some((a, b)) => {
                let a = match a {
                    "" | "+" => Some(1),
                    "-" => Some(-1),
                    a => number(a),
                };
                a.zip(if b.is_empty() { Some(0) } else { number(b) })
            }
        },
    };
    formula.ok_or_else(|| format!("`{text}` is not a valid nth expression"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<body><ul id=menu class='a B'><li>one<li class=x data-n=1>two<li title=Third>three</ul>\
                        <p>first <b>bold</b></p><div><p lang=EN>second</p>tail<br>more</div>";

    #[track_caller]
    fn check(selector: &str, expected: &[&str]) {
        let tree = MarkupTree::parse_html(PAGE);
        let nodes = CssSelector::parse(selector).unwrap().select(&tree);
        let texts: Vec<String> = nodes.iter().map(|node| tree.display_text(*node)).collect();
        assert_eq!(texts, expected, "{selector}");
    }

    #[test]
    fn selectors_find_what_jsoup_finds() {
        check("li", &["one", "two", "three"]);
        check("#menu > li.x", &["two"]);
        check("ul.b li:first-child", &["one"]);
        check("[data-n]", &["two"]);
        check("[^data-]", &["two"]);
        check("[title=third]", &["three"]);
        check("[title^=th]", &["three"]);
        check("[title~=^T.*d$]", &["three"]);
        check("li[title!=third]", &["one", "two"]);
        check("li:eq(1)", &["two"]);
        check("li:gt(0)", &["two", "three"]);
        check("li:nth-child(odd)", &["one", "three"]);
        check("li:nth-last-child(1)", &["three"]);
        check("li:not(.x)", &["one", "three"]);
        check("p:has(b)", &["first bold"]);
        check("p:contains(SECOND)", &["second"]);
        check("p:containsOwn(bold)", &[]);
        check("li + li", &["two", "three"]);
        check("li.x ~ li", &["three"]);
        check("div", &["second tail more"]);
        check("b, li:matches(^o)", &["one", "bold"]);
        check("* > b", &["bold"]);
    }

    #[test]
    fn what_is_no_selector_is_reported() {
        for text in ["", "li >", "li:hover", "[", "li:nth-child(x)", "a b)", ":has(", "[=x]"] {
            assert!(CssSelector::parse(text).is_err(), "{text}");
        }
        let deep = ":not(".repeat(50) + "a" + &")".repeat(50);
        assert!(CssSelector::parse(&deep).unwrap_err().contains("too deeply"));
    }
}
