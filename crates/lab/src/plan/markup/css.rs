//! Selectors as jsoup reads them: CSS, and jsoup's own `:eq`, `:contains`, `:has`, `:matches`, `[^prefix]`, `[name~=regex]`.
//!
//! A selector is read once, when the plan is; what it does not know is told then.

use super::super::pattern::Pattern;

use super::{Kind, Place, Tree};

/// A selector.
#[derive(Debug, Clone)]
pub(in super::super) struct Selector(Vec<Chain>);

/// Compounds from left to right, each with what joins it to the one before.
type Chain = Vec<(Join, Vec<Test>)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    Below,
    Child,
    Next,
    After,
}

#[derive(Debug, Clone)]
enum Test {
    Name(String),
    Id(String),
    Class(String),
    Has(String),
    HasPrefix(String),
    Attribute {
        name: String,
        how: How,
        value: String,
    },
    AttributeMatches(String, Pattern),
    /// `an+b` of all siblings, or of those with the same name, from the front or from the end.
    Nth {
        a: i64,
        b: i64,
        is_of_type: bool,
        is_from_end: bool,
    },
    Only {
        is_of_type: bool,
    },
    Empty,
    Root,
    Index(std::cmp::Ordering, i64),
    Not(Selector),
    Holds(Selector),
    Is(Selector),
    Text {
        text: String,
        is_own: bool,
    },
    TextMatches {
        pattern: Pattern,
        is_own: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Equal,
    NotEqual,
    Begins,
    Ends,
    Contains,
}

/// Deepest nesting of selectors in selectors.
const DEEPEST: usize = 16;

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// What is not understood.
    pub(in super::super) fn parse(text: &str) -> Result<Self, String> {
        parse(text, 0).map_err(|fault| format!("selector `{text}`: {fault}"))
    }

    /// Returns the elements that match, in the order of the document.
    pub(in super::super) fn select(&self, tree: &Tree) -> Vec<Place> {
        self.below(tree, 0)
    }

    fn below(&self, tree: &Tree, root: Place) -> Vec<Place> {
        tree.below(root)
            .filter(|place| tree.is_element(*place) && self.matches(tree, *place))
            .collect()
    }

    fn matches(&self, tree: &Tree, place: Place) -> bool {
        self.0.iter().any(|chain| chain_matches(tree, place, chain))
    }
}

fn chain_matches(tree: &Tree, place: Place, chain: &[(Join, Vec<Test>)]) -> bool {
    let Some(((join, tests), before)) = chain.split_last() else { return true };
    if !tests.iter().all(|test| test.holds(tree, place)) {
        return false;
    }
    if before.is_empty() {
        return true;
    }
    let fits = |place: Place| tree.is_element(place) && chain_matches(tree, place, before);
    match join {
        Join::Below => tree.above(place).any(fits),
        Join::Child => tree.parent(place).is_some_and(fits),
        Join::Next => {
            let previous = tree.before(place).iter().rev().find(|one| tree.is_element(**one));
            previous.is_some_and(|previous| fits(*previous))
        }
        Join::After => tree.before(place).iter().any(|one| fits(*one)),
    }
}

impl Test {
    fn holds(&self, tree: &Tree, place: Place) -> bool {
        let value = |name: &str| tree.attribute(place, name);
        match self {
            Self::Name(name) => tree.name(place).eq_ignore_ascii_case(name),
            Self::Id(id) => value("id").is_some_and(|known| known == id),
            Self::Class(class) => value("class").is_some_and(|all| {
                all.split_whitespace().any(|one| one.eq_ignore_ascii_case(class))
            }),
            Self::Has(name) => value(name).is_some(),
            Self::HasPrefix(prefix) => {
                tree.attributes(place).iter().any(|(name, _)| name.starts_with(prefix.as_str()))
            }
            Self::Attribute { name, how, value: wanted } => {
                let found = value(name).map(|found| found.trim().to_lowercase());
                match (how, found) {
                    (How::NotEqual, found) => found.is_none_or(|found| found != *wanted),
                    (_, None) => false,
                    (How::Equal, Some(found)) => found == *wanted,
                    (How::Begins, Some(found)) => found.starts_with(wanted.as_str()),
                    (How::Ends, Some(found)) => found.ends_with(wanted.as_str()),
                    (How::Contains, Some(found)) => found.contains(wanted.as_str()),
                }
            }
            Self::AttributeMatches(name, pattern) => {
                value(name).is_some_and(|found| pattern.is_match(found))
            }
            Self::Nth { a, b, is_of_type, is_from_end } => {
                let mut siblings = siblings(tree, place, *is_of_type);
                if *is_from_end {
                    siblings.reverse();
                }
                let at = siblings.iter().position(|one| *one == place);
                let at = at.and_then(|at| i64::try_from(at + 1).ok()).unwrap_or(0);
                let rest = at - b;
                if *a == 0 { rest == 0 } else { rest % a == 0 && rest / a >= 0 }
            }
            Self::Only { is_of_type } => siblings(tree, place, *is_of_type).len() == 1,
            Self::Empty => !tree.children(place).iter().any(|child| match tree.kind(*child) {
                Kind::Text(text) => !text.trim().is_empty(),
                Kind::Element { .. } => true,
                _ => false,
            }),
            Self::Root => tree.parent(place) == Some(0),
            Self::Index(order, wanted) => {
                let siblings = tree.element_siblings(place);
                let at = siblings.iter().position(|one| *one == place);
                at.and_then(|at| i64::try_from(at).ok()).is_some_and(|at| at.cmp(wanted) == *order)
            }
            Self::Not(selector) => !selector.matches(tree, place),
            Self::Is(selector) => selector.matches(tree, place),
            Self::Holds(selector) => !selector.below(tree, place).is_empty(),
            Self::Text { text, is_own } => {
                shown(tree, place, *is_own).to_lowercase().contains(text)
            }
            Self::TextMatches { pattern, is_own } => pattern.is_match(&shown(tree, place, *is_own)),
        }
    }
}

fn siblings(tree: &Tree, place: Place, is_of_type: bool) -> Vec<Place> {
    let mut all = tree.element_siblings(place);
    if is_of_type {
        all.retain(|one| tree.name(*one) == tree.name(place));
    }
    all
}

fn shown(tree: &Tree, place: Place, is_own: bool) -> String {
    if !is_own {
        return tree.shown(place);
    }
    let texts = tree.children(place).iter().filter_map(|child| match tree.kind(*child) {
        Kind::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Elements that begin a line of their own, so that the words around them do not run together.
const BLOCKS: [&str; 46] = [
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

impl Tree {
    /// Returns the text of an element as a reader sees it: white space as one blank, blocks apart.
    pub(in super::super) fn shown(&self, place: Place) -> String {
        let mut out = String::new();
        let apart = |out: &mut String| {
            if !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
        };
        // Blocks are apart from what stands before them, and from what stands behind them.
        let mut open: Vec<(Place, bool)> =
            self.children(place).iter().rev().map(|&child| (child, false)).collect();
        while let Some((at, is_end)) = open.pop() {
            match self.kind(at) {
                Kind::Text(text) if !is_hidden(self, at) => {
                    for letter in text.chars() {
                        if letter.is_whitespace() {
                            apart(&mut out);
                        } else {
                            out.push(letter);
                        }
                    }
                }
                Kind::Element { name, .. } => {
                    if name == "br" || BLOCKS.contains(&name.as_str()) {
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

/// Scripts and styles hold data, not text.
fn is_hidden(tree: &Tree, place: Place) -> bool {
    let name = tree.parent(place).map_or("", |parent| tree.name(parent));
    matches!(name, "script" | "style")
}

fn parse(text: &str, depth: usize) -> Result<Selector, String> {
    if depth > DEEPEST {
        return Err("it is nested too deeply".to_owned());
    }
    let mut reader = Reader { text, at: 0, depth };
    let mut chains = Vec::new();
    loop {
        chains.push(reader.chain()?);
        if !reader.take(",") {
            break;
        }
    }
    if reader.at < text.len() {
        return Err(format!("`{}` is not understood", reader.rest()));
    }
    Ok(Selector(chains))
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn skip_space(&mut self) -> bool {
        let rest = self.rest();
        let blank = rest.len() - rest.trim_start().len();
        self.at += blank;
        blank > 0
    }

    fn word(&mut self) -> Result<&'t str, String> {
        let rest = self.rest();
        let is_part = |letter: char| {
            letter.is_alphanumeric() || matches!(letter, '-' | '_') || !letter.is_ascii()
        };
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        if end == 0 {
            return Err(format!("a name is missing before `{rest}`"));
        }
        self.at += end;
        Ok(rest.get(..end).unwrap_or_default())
    }

    fn chain(&mut self) -> Result<Chain, String> {
        let mut chain: Chain = Vec::new();
        self.skip_space();
        let mut join = Join::Below;
        loop {
            chain.push((join, self.compound()?));
            let has_blank = self.skip_space();
            join = match self.rest().chars().next() {
                None | Some(',') => return Ok(chain),
                Some('>') => Join::Child,
                Some('+') => Join::Next,
                Some('~') => Join::After,
                Some(_) if has_blank => Join::Below,
                Some(_) => return Err(format!("`{}` is not understood", self.rest())),
            };
            if join != Join::Below {
                self.at += 1;
                self.skip_space();
            }
        }
    }

    fn compound(&mut self) -> Result<Vec<Test>, String> {
        let mut tests = Vec::new();
        if self.take("*") {
            tests.push(Test::Is(Selector(vec![Vec::new()])));
        } else if self.rest().starts_with(|letter: char| letter.is_alphabetic()) {
            let mut name = self.word()?.to_owned();
            // jsoup's `ns|name` stands for an element `ns:name`.
            if self.take("|") {
                name = format!("{name}:{}", self.word()?);
            }
            tests.push(Test::Name(name));
        }
        loop {
            if self.take("#") {
                tests.push(Test::Id(self.word()?.to_owned()));
            } else if self.take(".") {
                tests.push(Test::Class(self.word()?.to_owned()));
            } else if self.take("[") {
                let inside = self.until(']')?;
                tests.push(attribute(inside)?);
            } else if self.take(":") {
                tests.push(self.pseudo()?);
            } else if tests.is_empty() {
                return Err(format!("`{}` is not understood", self.rest()));
            } else {
                return Ok(tests);
            }
        }
    }

    /// Returns what stands before the closing bracket, inner ones and quotes respected.
    fn until(&mut self, close: char) -> Result<&'t str, String> {
        let open = if close == ')' { '(' } else { '[' };
        let (rest, mut depth, mut quote) = (self.rest(), 1, None);
        for (at, letter) in rest.char_indices() {
            match quote {
                Some(mark) if letter == mark => quote = None,
                Some(_) => {}
                None if letter == '"' || letter == '\'' => quote = Some(letter),
                None if letter == open => depth += 1,
                None if letter == close => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += at + close.len_utf8();
                        return Ok(rest.get(..at).unwrap_or_default());
                    }
                }
                None => {}
            }
        }
        Err(format!("`{close}` is missing"))
    }

    fn pseudo(&mut self) -> Result<Test, String> {
        let name = self.word()?.to_ascii_lowercase();
        let nth = |a, b, is_of_type, is_from_end| Test::Nth { a, b, is_of_type, is_from_end };
        let plain = match name.as_str() {
            "first-child" => Some(nth(0, 1, false, false)),
            "last-child" => Some(nth(0, 1, false, true)),
            "first-of-type" => Some(nth(0, 1, true, false)),
            "last-of-type" => Some(nth(0, 1, true, true)),
            "only-child" => Some(Test::Only { is_of_type: false }),
            "only-of-type" => Some(Test::Only { is_of_type: true }),
            "empty" => Some(Test::Empty),
            "root" => Some(Test::Root),
            _ => None,
        };
        if let Some(test) = plain {
            return Ok(test);
        }
        if !self.take("(") {
            return Err(format!("`:{name}` is not supported"));
        }
        let inside = self.until(')')?.trim();
        let index =
            || inside.parse::<i32>().map(i64::from).map_err(|_| format!("`{inside}` is no number"));
        let inner = || parse(inside, self.depth + 1);
        let pattern = || super::super::pattern::compile(inside);
        let text = || inside.trim_matches(['"', '\'']).to_lowercase();
        Ok(match name.as_str() {
            "eq" => Test::Index(std::cmp::Ordering::Equal, index()?),
            "lt" => Test::Index(std::cmp::Ordering::Less, index()?),
            "gt" => Test::Index(std::cmp::Ordering::Greater, index()?),
            "not" => Test::Not(inner()?),
            "has" => Test::Holds(inner()?),
            "is" => Test::Is(inner()?),
            "contains" => Test::Text { text: text(), is_own: false },
            "containsown" => Test::Text { text: text(), is_own: true },
            "matches" => Test::TextMatches { pattern: pattern()?, is_own: false },
            "matchesown" => Test::TextMatches { pattern: pattern()?, is_own: true },
            "nth-child" | "nth-last-child" | "nth-of-type" | "nth-last-of-type" => {
                let (a, b) = steps(inside)?;
                nth(a, b, name.ends_with("of-type"), name.contains("last"))
            }
            _ => return Err(format!("`:{name}` is not supported")),
        })
    }
}

fn attribute(inside: &str) -> Result<Test, String> {
    let inside = inside.trim();
    if let Some(prefix) = inside.strip_prefix('^') {
        return Ok(Test::HasPrefix(prefix.to_lowercase()));
    }
    let Some(at) = inside.find('=') else { return Ok(Test::Has(inside.to_lowercase())) };
    let (name, value) =
        (inside.get(..at).unwrap_or_default(), inside.get(at + 1..).unwrap_or_default());
    let value = value.trim().trim_matches(['"', '\'']);
    let (name, how) = match name.chars().last() {
        Some('!') => (name.strip_suffix('!'), How::NotEqual),
        Some('^') => (name.strip_suffix('^'), How::Begins),
        Some('$') => (name.strip_suffix('$'), How::Ends),
        Some('*') => (name.strip_suffix('*'), How::Contains),
        Some('~') => {
            let name = name.trim_end_matches('~').trim().to_lowercase();
            return Ok(Test::AttributeMatches(name, super::super::pattern::compile(value)?));
        }
        _ => (Some(name), How::Equal),
    };
    let name = name.unwrap_or_default().trim().to_lowercase();
    if name.is_empty() {
        return Err(format!("`[{inside}]` names no attribute"));
    }
    Ok(Test::Attribute { name, how, value: value.trim().to_lowercase() })
}

/// Reads `2n+1`, `odd`, `even`, `3`.
fn steps(text: &str) -> Result<(i64, i64), String> {
    let text: String = text.to_ascii_lowercase().split_whitespace().collect();
    let number = |text: &str| text.trim_start_matches('+').parse::<i32>().ok().map(i64::from);
    let found = match text.as_str() {
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
    found.ok_or_else(|| format!("`{text}` is no place among siblings"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<body><ul id=menu class='a B'><li>one<li class=x data-n=1>two<li title=Third>three</ul>\
                        <p>first <b>bold</b></p><div><p lang=EN>second</p>tail<br>more</div>";

    #[track_caller]
    fn check(selector: &str, expected: &[&str]) {
        let tree = Tree::of_html(PAGE);
        let found = Selector::parse(selector).unwrap().select(&tree);
        let found: Vec<String> = found.iter().map(|place| tree.shown(*place)).collect();
        assert_eq!(found, expected, "{selector}");
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
    fn what_is_no_selector_is_told() {
        for text in ["", "li >", "li:hover", "[", "li:nth-child(x)", "a b)", ":has(", "[=x]"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
        let deep = ":not(".repeat(50) + "a" + &")".repeat(50);
        assert!(Selector::parse(&deep).unwrap_err().contains("too deeply"));
    }
}
