//! CND, the text form of node types, read: JCR 2.0's grammar with long and short words, and the older ones that
//! packages still carry (`primary`, `multiple` for children).
//!
//! In: a text. Out: what could be read, and every fault with its place. A fault ends the definition that it stands in;
//! reading goes on with the next.
//!
//! `?` in the place of an attribute leaves it to the repository, which takes what is said where nothing is.

use std::collections::BTreeMap;

use super::definition::{
    ChildDefinition, ItemFlags, OnParentVersion, Operator, PropertyDefinition, QueryUse, RESIDUAL,
    TypeDefinition, TypeFlags,
};
use super::lexer::{Diagnostic, Spot, Token, tokens};
use crate::{ValueType, check_name};

/// What a CND text says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cnd {
    /// The URIs that prefixes stand for.
    pub namespaces: BTreeMap<String, String>,
    /// The definitions, in their order.
    pub types: Vec<TypeDefinition>,
    /// What could not be read.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads CND.
#[must_use]
pub fn parse_cnd(text: &str) -> Cnd {
    let mut cnd = Cnd::default();
    let tokens = tokens(text, &mut cnd.diagnostics);
    let mut parser = Parser { tokens, at: 0 };
    while parser.peek().is_some() {
        let start = parser.at;
        if let Err(diagnostic) = parser.statement(&mut cnd) {
            cnd.diagnostics.push(diagnostic);
            parser.at = parser.at.max(start + 1);
            parser.skip_to_statement();
        }
    }
    cnd.diagnostics.sort_by_key(|one| (one.line, one.column));
    cnd
}

type Result<T> = std::result::Result<T, Diagnostic>;

struct Parser {
    tokens: Vec<(Spot, Token)>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn spot(&self) -> Spot {
        let last = || self.tokens.last().map_or(Spot { line: 1, column: 1 }, |(spot, _)| *spot);
        self.tokens.get(self.at).map_or_else(last, |(spot, _)| *spot)
    }

    fn next(&mut self) -> Option<Token> {
        let (_, token) = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token.clone())
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        let found = self.peek().map_or_else(|| "the end".to_owned(), Token::to_string);
        Err(self.spot().says(format!("expected {what}, found {found}")))
    }

    fn is_sign(&self, sign: char) -> bool {
        self.peek() == Some(&Token::Sign(sign))
    }

    /// Takes the sign if it is next.
    fn take(&mut self, sign: char) -> bool {
        let is_next = self.is_sign(sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: char) -> Result<()> {
        if self.take(sign) { Ok(()) } else { self.expected(&format!("`{sign}`")) }
    }

    /// Takes one of these words, in any case, if it is next, with the `?` that may follow.
    fn take_word(&mut self, words: &[&str]) -> Attribute {
        let is_next = match self.peek() {
            Some(Token::Word(word)) => words.iter().any(|one| one.eq_ignore_ascii_case(word)),
            Some(Token::Sign(sign)) => words.contains(&sign.to_string().as_str()),
            _ => false,
        };
        if !is_next {
            return Attribute::Absent;
        }
        self.at += 1;
        if self.take('?') { Attribute::Open } else { Attribute::Given }
    }

    /// Goes on behind a fault: at the next definition or mapping.
    fn skip_to_statement(&mut self) {
        while self.peek().is_some() && !self.is_sign('[') && !self.begins_mapping() {
            self.at += 1;
        }
    }

    /// Tells whether a namespace mapping is next, rather than the constraints of a property.
    fn begins_mapping(&self) -> bool {
        let after = self.tokens.get(self.at + 2).map(|(_, token)| token);
        self.is_sign('<') && after == Some(&Token::Sign('='))
    }

    fn statement(&mut self, cnd: &mut Cnd) -> Result<()> {
        if self.is_sign('<') {
            let (prefix, uri) = self.mapping()?;
            cnd.namespaces.insert(prefix, uri);
            return Ok(());
        }
        if !self.is_sign('[') {
            return self.expected("`[` of a type or `<` of a namespace");
        }
        let spot = self.spot();
        let definition = self.definition()?;
        if cnd.types.iter().any(|one| one.name == definition.name) {
            return Err(spot.says(format!("`{}` is defined twice", definition.name)));
        }
        cnd.types.push(definition);
        Ok(())
    }

    fn mapping(&mut self) -> Result<(String, String)> {
        self.expect('<')?;
        let prefix = self.text("a prefix")?;
        self.expect('=')?;
        let uri = self.text("a URI in quotes")?;
        self.expect('>')?;
        Ok((prefix, uri))
    }

    fn text(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::Word(_) | Token::Quoted(_)) => match self.next() {
                Some(Token::Word(text) | Token::Quoted(text)) => Ok(text),
                _ => self.expected(what),
            },
            _ => self.expected(what),
        }
    }

    /// Reads a name and checks it.
    fn name(&mut self, what: &str) -> Result<String> {
        let spot = self.spot();
        let name = self.text(what)?;
        check_name(&name).map_err(|error| spot.says(error.to_string()))?;
        Ok(name)
    }

    /// Reads the name of an item, which may stand for all.
    fn item_name(&mut self) -> Result<String> {
        if self.take('*') {
            return Ok(RESIDUAL.to_owned());
        }
        if self.peek() == Some(&Token::Quoted(RESIDUAL.to_owned())) {
            self.at += 1;
            return Ok(RESIDUAL.to_owned());
        }
        self.name("a name or `*`")
    }

    /// Reads `a, b` or `?`, which stands for none.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut list = Vec::new();
        if self.take('?') {
            return Ok(list);
        }
        loop {
            list.push(one(self)?);
            if !self.take(',') {
                return Ok(list);
            }
        }
    }

    fn definition(&mut self) -> Result<TypeDefinition> {
        self.expect('[')?;
        let mut definition = TypeDefinition::new(self.name("the name of a type")?);
        self.expect(']')?;
        if self.take('>') {
            definition.supertypes = self.list(|parser| parser.name("the name of a supertype"))?;
        }
        while self.type_attribute(&mut definition)? {}
        loop {
            if self.take('-') {
                let property = self.property(&mut definition.primary_item)?;
                definition.properties.push(property);
            } else if self.take('+') {
                let child = self.child(&mut definition.primary_item)?;
                definition.children.push(child);
            } else if self.peek().is_none() || self.is_sign('[') || self.begins_mapping() {
                return Ok(definition);
            } else {
                return self.expected("an attribute, `-`, `+` or the next type");
            }
        }
    }

    fn type_attribute(&mut self, definition: &mut TypeDefinition) -> Result<bool> {
        type Setting = (&'static [&'static str], fn(&mut TypeFlags));
        let settings: [Setting; 5] = [
            (&["orderable", "ord", "o"], |flags| flags.has_orderable_children = true),
            (&["mixin", "mix", "m"], |flags| flags.is_mixin = true),
            (&["abstract", "abs", "a"], |flags| flags.is_abstract = true),
            (&["noquery", "nq"], |flags| flags.is_queryable = false),
            (&["query", "q"], |flags| flags.is_queryable = true),
        ];
        for (words, set) in settings {
            let attribute = self.take_word(words);
            if attribute == Attribute::Given {
                set(&mut definition.flags);
            }
            if attribute != Attribute::Absent {
                return Ok(true);
            }
        }
        match self.take_word(&["primaryitem", "!"]) {
            Attribute::Absent => Ok(false),
            Attribute::Open => Ok(true),
            Attribute::Given => {
                definition.primary_item = Some(self.name("the name of the primary item")?);
                Ok(true)
            }
        }
    }

    fn property(&mut self, primary_item: &mut Option<String>) -> Result<PropertyDefinition> {
        let mut property =
            PropertyDefinition { name: self.item_name()?, ..PropertyDefinition::default() };
        if self.take('(') {
            property.value_type = self.value_type()?;
            self.expect(')')?;
        }
        if self.take('=') {
            property.default_values = self.list(|parser| parser.text("a default value"))?;
        }
        loop {
            if self.query_attribute(&mut property.query)? || self.flag(&mut property.flags) {
                continue;
            }
            match self.take_word(&["multiple", "mul", "*"]) {
                Attribute::Absent => {}
                Attribute::Open => continue,
                Attribute::Given => {
                    property.is_multiple = true;
                    continue;
                }
            }
            if self.take_word(&["primary", "pri", "!"]) == Attribute::Absent {
                break;
            }
            *primary_item = Some(property.name.clone());
        }
        if self.is_sign('<') && !self.begins_mapping() {
            self.at += 1;
            property.constraints = self.list(|parser| parser.text("a value constraint"))?;
        }
        Ok(property)
    }

    fn value_type(&mut self) -> Result<Option<ValueType>> {
        if self.take('*') || self.take('?') {
            return Ok(None);
        }
        let spot = self.spot();
        let name = self.text("a type of values")?;
        if name.eq_ignore_ascii_case("undefined") {
            return Ok(None);
        }
        let unknown = || {
            let names: Vec<String> =
                ValueType::ALL.iter().map(|one| one.name().to_uppercase()).collect();
            spot.says(format!(
                "`{name}` is no type of values; there are {}, UNDEFINED",
                names.join(", ")
            ))
        };
        ValueType::find(&name).map(Some).ok_or_else(unknown)
    }

    fn query_attribute(&mut self, query: &mut QueryUse) -> Result<bool> {
        match self.take_word(&["nofulltext", "nof"]) {
            Attribute::Absent => {}
            attribute => {
                query.is_full_text_searchable = attribute == Attribute::Open;
                return Ok(true);
            }
        }
        match self.take_word(&["noqueryorder", "nqord"]) {
            Attribute::Absent => {}
            attribute => {
                query.is_orderable = attribute == Attribute::Open;
                return Ok(true);
            }
        }
        match self.take_word(&["queryops", "qop"]) {
            Attribute::Absent => return Ok(false),
            Attribute::Open => return Ok(true),
            Attribute::Given => {}
        }
        let spot = self.spot();
        let signs = self.text("operators in quotes")?;
        query.operators = Vec::new();
        for sign in signs.split(',').map(str::trim).filter(|sign| !sign.is_empty()) {
            let unknown = || spot.says(format!("`{sign}` is no operator"));
            let operator = Operator::find_sign(sign).ok_or_else(unknown)?;
            if !query.operators.contains(&operator) {
                query.operators.push(operator);
            }
        }
        Ok(true)
    }

    /// Reads an attribute that properties and children share.
    fn flag(&mut self, flags: &mut ItemFlags) -> bool {
        let settings: [(&[&str], &mut bool); 3] = [
            (&["autocreated", "aut", "a"], &mut flags.is_autocreated),
            (&["mandatory", "man", "m"], &mut flags.is_mandatory),
            (&["protected", "pro", "p"], &mut flags.is_protected),
        ];
        for (words, flag) in settings {
            let attribute = self.take_word(words);
            if attribute != Attribute::Absent {
                *flag |= attribute == Attribute::Given;
                return true;
            }
        }
        if self.take_word(&["opv"]) != Attribute::Absent {
            return true;
        }
        let on_parent_version = match self.peek() {
            Some(Token::Word(word)) => OnParentVersion::find(word),
            _ => None,
        };
        if let Some(found) = on_parent_version {
            self.at += 1;
            flags.on_parent_version = found;
        }
        on_parent_version.is_some()
    }

    fn child(&mut self, primary_item: &mut Option<String>) -> Result<ChildDefinition> {
        let mut child = ChildDefinition { name: self.item_name()?, ..ChildDefinition::default() };
        if self.take('(') {
            child.required_types = self.list(|parser| parser.name("the name of a type"))?;
            self.expect(')')?;
        }
        if self.take('=') && !self.take('?') {
            child.default_type = Some(self.name("the name of a type")?);
        }
        loop {
            if self.flag(&mut child.flags) {
                continue;
            }
            match self.take_word(&["sns", "*", "multiple", "mul"]) {
                Attribute::Absent => {}
                attribute => {
                    child.allows_same_names |= attribute == Attribute::Given;
                    continue;
                }
            }
            if self.take_word(&["primary", "pri", "!"]) == Attribute::Absent {
                return Ok(child);
            }
            *primary_item = Some(child.name.clone());
        }
    }
}

/// Whether an attribute stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attribute {
    Absent,
    Given,
    /// With `?`: left to the repository.
    Open,
}
