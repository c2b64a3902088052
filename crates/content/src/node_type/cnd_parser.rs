//! The parser of CND, the text form of node types: JCR 2.0's grammar with long and short keywords, and the older ones
//! that packages still use (`primary`, `multiple` for children).
//!
//! In: a text. Out: the valid definitions, and every fault with its position. A fault ends the definition that contains
//! it; parsing continues with the next.
//!
//! `?` instead of an attribute leaves it to the repository, which uses the default.

use std::collections::BTreeMap;

use super::cnd_lexer::{CndDiagnostic, CndPosition, CndToken, tokenize_cnd};
use super::type_definition::{
    AvailableQueryOperator, ChildDefinition, ItemFlags, NodeTypeDefinition, NodeTypeFlags,
    OnParentVersion, PropertyDefinition, PropertyQueryUse, RESIDUAL_NAME,
};
use crate::{ValueType, check_item_name};

/// The content of a CND text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CndDocument {
    /// The namespace URIs by prefix.
    pub namespaces: BTreeMap<String, String>,
    /// The definitions, in text order.
    pub types: Vec<NodeTypeDefinition>,
    /// The faults.
    pub diagnostics: Vec<CndDiagnostic>,
}

/// Parses CND.
#[must_use]
pub fn parse_cnd(text: &str) -> CndDocument {
    let mut cnd = CndDocument::default();
    let tokens = tokenize_cnd(text, &mut cnd.diagnostics);
    let mut parser = CndParser { tokens, token_index: 0 };
    while parser.peek().is_some() {
        let start = parser.token_index;
        if let Err(diagnostic) = parser.parse_statement(&mut cnd) {
            cnd.diagnostics.push(diagnostic);
            parser.token_index = parser.token_index.max(start + 1);
            parser.skip_to_statement();
        }
    }
    cnd.diagnostics.sort_by_key(|entry| (entry.line, entry.column));
    cnd
}

type CndResult<T> = std::result::Result<T, CndDiagnostic>;

struct CndParser {
    tokens: Vec<(CndPosition, CndToken)>,
    token_index: usize,
}

impl CndParser {
    fn peek(&self) -> Option<&CndToken> {
        self.tokens.get(self.token_index).map(|(_, token)| token)
    }

    fn position(&self) -> CndPosition {
        let last =
            || self.tokens.last().map_or(CndPosition { line: 1, column: 1 }, |(spot, _)| *spot);
        self.tokens.get(self.token_index).map_or_else(last, |(spot, _)| *spot)
    }

    fn next(&mut self) -> Option<CndToken> {
        let (_, token) = self.tokens.get(self.token_index)?;
        self.token_index += 1;
        Some(token.clone())
    }

    fn expected_error<T>(&self, expectation: &str) -> CndResult<T> {
        let token = self.peek().map_or_else(|| "the end".to_owned(), CndToken::to_string);
        Err(self.position().to_diagnostic(format!("expected {expectation}, found {token}")))
    }

    fn is_sign(&self, sign: char) -> bool {
        self.peek() == Some(&CndToken::Sign(sign))
    }

    /// Consumes the sign if it is next.
    fn take_sign(&mut self, sign: char) -> bool {
        let is_next = self.is_sign(sign);
        self.token_index += usize::from(is_next);
        is_next
    }

    fn expect_sign(&mut self, sign: char) -> CndResult<()> {
        if self.take_sign(sign) { Ok(()) } else { self.expected_error(&format!("`{sign}`")) }
    }

    /// Consumes one of these keywords, in any case, if it is next, with the `?` that may follow.
    fn take_keyword(&mut self, words: &[&str]) -> CndAttributeState {
        let is_next = match self.peek() {
            Some(CndToken::Word(text)) => {
                words.iter().any(|keyword| keyword.eq_ignore_ascii_case(text))
            }
            Some(CndToken::Sign(sign)) => words.contains(&sign.to_string().as_str()),
            _ => false,
        };
        if !is_next {
            return CndAttributeState::Absent;
        }
        self.token_index += 1;
        if self.take_sign('?') { CndAttributeState::Open } else { CndAttributeState::Present }
    }

    /// Recovers after a fault: skips to the next definition or mapping.
    fn skip_to_statement(&mut self) {
        while self.peek().is_some() && !self.is_sign('[') && !self.is_at_mapping() {
            self.token_index += 1;
        }
    }

    /// Returns true if a namespace mapping is next, rather than the constraints of a property.
    fn is_at_mapping(&self) -> bool {
        let after = self.tokens.get(self.token_index + 2).map(|(_, token)| token);
        self.is_sign('<') && after == Some(&CndToken::Sign('='))
    }

    fn parse_statement(&mut self, cnd: &mut CndDocument) -> CndResult<()> {
        if self.is_sign('<') {
            let (prefix, uri) = self.parse_mapping()?;
            cnd.namespaces.insert(prefix, uri);
            return Ok(());
        }
        if !self.is_sign('[') {
            return self.expected_error("`[` of a type or `<` of a namespace");
        }
        let spot = self.position();
        let definition = self.parse_definition()?;
        if cnd.types.iter().any(|node_type| node_type.name == definition.name) {
            return Err(spot.to_diagnostic(format!("`{}` is defined twice", definition.name)));
        }
        cnd.types.push(definition);
        Ok(())
    }

    fn parse_mapping(&mut self) -> CndResult<(String, String)> {
        self.expect_sign('<')?;
        let prefix = self.parse_text("a prefix")?;
        self.expect_sign('=')?;
        let uri = self.parse_text("a URI in quotes")?;
        self.expect_sign('>')?;
        Ok((prefix, uri))
    }

    fn parse_text(&mut self, expectation: &str) -> CndResult<String> {
        match self.peek() {
            Some(CndToken::Word(_) | CndToken::Quoted(_)) => match self.next() {
                Some(CndToken::Word(text) | CndToken::Quoted(text)) => Ok(text),
                _ => self.expected_error(expectation),
            },
            _ => self.expected_error(expectation),
        }
    }

    /// Reads a name and checks it.
    fn parse_name(&mut self, expectation: &str) -> CndResult<String> {
        let spot = self.position();
        let name = self.parse_text(expectation)?;
        check_item_name(&name).map_err(|error| spot.to_diagnostic(error.to_string()))?;
        Ok(name)
    }

    /// Reads the name of an item, which may be the wildcard for all names.
    fn parse_item_name(&mut self) -> CndResult<String> {
        if self.take_sign('*') {
            return Ok(RESIDUAL_NAME.to_owned());
        }
        if self.peek() == Some(&CndToken::Quoted(RESIDUAL_NAME.to_owned())) {
            self.token_index += 1;
            return Ok(RESIDUAL_NAME.to_owned());
        }
        self.parse_name("a name or `*`")
    }

    /// Reads `a, b` or `?`, which yields an empty list.
    fn parse_list<T>(
        &mut self,
        mut parse_item: impl FnMut(&mut Self) -> CndResult<T>,
    ) -> CndResult<Vec<T>> {
        let mut list = Vec::new();
        if self.take_sign('?') {
            return Ok(list);
        }
        loop {
            list.push(parse_item(self)?);
            if !self.take_sign(',') {
                return Ok(list);
            }
        }
    }

    fn parse_definition(&mut self) -> CndResult<NodeTypeDefinition> {
        self.expect_sign('[')?;
        let mut definition = NodeTypeDefinition::new(self.parse_name("the name of a type")?);
        self.expect_sign(']')?;
        if self.take_sign('>') {
            definition.supertypes =
                self.parse_list(|parser| parser.parse_name("the name of a supertype"))?;
        }
        while self.parse_type_attribute(&mut definition)? {}
        loop {
            if self.take_sign('-') {
                let property = self.parse_property(&mut definition.primary_item)?;
                definition.properties.push(property);
            } else if self.take_sign('+') {
                let child = self.parse_child(&mut definition.primary_item)?;
                definition.children.push(child);
            } else if self.peek().is_none() || self.is_sign('[') || self.is_at_mapping() {
                return Ok(definition);
            } else {
                return self.expected_error("an attribute, `-`, `+` or the next type");
            }
        }
    }

    fn parse_type_attribute(&mut self, definition: &mut NodeTypeDefinition) -> CndResult<bool> {
        type Setting = (&'static [&'static str], fn(&mut NodeTypeFlags));
        let settings: [Setting; 5] = [
            (&["orderable", "ord", "o"], |flags| flags.has_orderable_children = true),
            (&["mixin", "mix", "m"], |flags| flags.is_mixin = true),
            (&["abstract", "abs", "a"], |flags| flags.is_abstract = true),
            (&["noquery", "nq"], |flags| flags.is_queryable = false),
            (&["query", "q"], |flags| flags.is_queryable = true),
        ];
        for (words, set) in settings {
            let attribute = self.take_keyword(words);
            if attribute == CndAttributeState::Present {
                set(&mut definition.flags);
            }
            if attribute != CndAttributeState::Absent {
                return Ok(true);
            }
        }
        match self.take_keyword(&["primaryitem", "!"]) {
            CndAttributeState::Absent => Ok(false),
            CndAttributeState::Open => Ok(true),
            CndAttributeState::Present => {
                definition.primary_item = Some(self.parse_name("the name of the primary item")?);
                Ok(true)
            }
        }
    }

    fn parse_property(
        &mut self,
        primary_item: &mut Option<String>,
    ) -> CndResult<PropertyDefinition> {
        let mut property =
            PropertyDefinition { name: self.parse_item_name()?, ..PropertyDefinition::default() };
        if self.take_sign('(') {
            property.value_type = self.parse_value_type()?;
            self.expect_sign(')')?;
        }
        if self.take_sign('=') {
            property.default_values =
                self.parse_list(|parser| parser.parse_text("a default value"))?;
        }
        loop {
            if self.parse_query_attribute(&mut property.query_use)?
                || self.parse_item_flag(&mut property.flags)
            {
                continue;
            }
            match self.take_keyword(&["multiple", "mul", "*"]) {
                CndAttributeState::Absent => {}
                CndAttributeState::Open => continue,
                CndAttributeState::Present => {
                    property.is_multiple = true;
                    continue;
                }
            }
            if self.take_keyword(&["primary", "pri", "!"]) == CndAttributeState::Absent {
                break;
            }
            *primary_item = Some(property.name.clone());
        }
        if self.is_sign('<') && !self.is_at_mapping() {
            self.token_index += 1;
            property.constraints =
                self.parse_list(|parser| parser.parse_text("a value constraint"))?;
        }
        Ok(property)
    }

    fn parse_value_type(&mut self) -> CndResult<Option<ValueType>> {
        if self.take_sign('*') || self.take_sign('?') {
            return Ok(None);
        }
        let spot = self.position();
        let name = self.parse_text("a property type")?;
        if name.eq_ignore_ascii_case("undefined") {
            return Ok(None);
        }
        let unknown = || {
            let names: Vec<String> =
                ValueType::ALL.iter().map(|value_type| value_type.name().to_uppercase()).collect();
            spot.to_diagnostic(format!(
                "`{name}` is not a property type; use one of {}, UNDEFINED",
                names.join(", ")
            ))
        };
        ValueType::find(&name).map(Some).ok_or_else(unknown)
    }

    fn parse_query_attribute(&mut self, query: &mut PropertyQueryUse) -> CndResult<bool> {
        match self.take_keyword(&["nofulltext", "nof"]) {
            CndAttributeState::Absent => {}
            attribute => {
                query.is_full_text_searchable = attribute == CndAttributeState::Open;
                return Ok(true);
            }
        }
        match self.take_keyword(&["noqueryorder", "nqord"]) {
            CndAttributeState::Absent => {}
            attribute => {
                query.is_orderable = attribute == CndAttributeState::Open;
                return Ok(true);
            }
        }
        match self.take_keyword(&["queryops", "qop"]) {
            CndAttributeState::Absent => return Ok(false),
            CndAttributeState::Open => return Ok(true),
            CndAttributeState::Present => {}
        }
        let spot = self.position();
        let signs = self.parse_text("operators in quotes")?;
        query.operators = Vec::new();
        for sign in signs.split(',').map(str::trim).filter(|sign| !sign.is_empty()) {
            let unknown = || spot.to_diagnostic(format!("`{sign}` is not an operator"));
            let operator = AvailableQueryOperator::find_sign(sign).ok_or_else(unknown)?;
            if !query.operators.contains(&operator) {
                query.operators.push(operator);
            }
        }
        Ok(true)
    }

    /// Reads an attribute that properties and children share; returns true if one was read.
    fn parse_item_flag(&mut self, flags: &mut ItemFlags) -> bool {
        let settings: [(&[&str], &mut bool); 3] = [
            (&["autocreated", "aut", "a"], &mut flags.is_autocreated),
            (&["mandatory", "man", "m"], &mut flags.is_mandatory),
            (&["protected", "pro", "p"], &mut flags.is_protected),
        ];
        for (words, flag) in settings {
            let attribute = self.take_keyword(words);
            if attribute != CndAttributeState::Absent {
                *flag |= attribute == CndAttributeState::Present;
                return true;
            }
        }
        if self.take_keyword(&["opv"]) != CndAttributeState::Absent {
            return true;
        }
        let on_parent_version = match self.peek() {
            Some(CndToken::Word(text)) => OnParentVersion::find(text),
            _ => None,
        };
        if let Some(action) = on_parent_version {
            self.token_index += 1;
            flags.on_parent_version = action;
        }
        on_parent_version.is_some()
    }

    fn parse_child(&mut self, primary_item: &mut Option<String>) -> CndResult<ChildDefinition> {
        let mut child =
            ChildDefinition { name: self.parse_item_name()?, ..ChildDefinition::default() };
        if self.take_sign('(') {
            child.required_types =
                self.parse_list(|parser| parser.parse_name("the name of a type"))?;
            self.expect_sign(')')?;
        }
        if self.take_sign('=') && !self.take_sign('?') {
            child.default_type = Some(self.parse_name("the name of a type")?);
        }
        loop {
            if self.parse_item_flag(&mut child.flags) {
                continue;
            }
            match self.take_keyword(&["sns", "*", "multiple", "mul"]) {
                CndAttributeState::Absent => {}
                attribute => {
                    child.allows_same_names |= attribute == CndAttributeState::Present;
                    continue;
                }
            }
            if self.take_keyword(&["primary", "pri", "!"]) == CndAttributeState::Absent {
                return Ok(child);
            }
            *primary_item = Some(child.name.clone());
        }
    }
}

/// The state of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CndAttributeState {
    Absent,
    Present,
    /// With `?`: left open to the repository.
    Open,
}
