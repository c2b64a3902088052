//! Parses scripts of repository initialization: one statement for each line, and one for each line of a block.

use tympan_content::AccountKind;

use super::statement::{
    EntryTemplate, InitialNode, PolicyTarget, PropertyAssignment, RepoinitOperation, RepoinitPath,
    RepoinitStatement,
};
use super::token::RepoinitLine;

/// Parses a script. A line that is not understood is a statement to skip.
pub(super) fn parse_repoinit(text: &str) -> Vec<RepoinitStatement> {
    let mut parser = RepoinitParser { lines: text.lines().enumerate(), statements: Vec::new() };
    while let Some((line, text)) = parser.next_line() {
        parser.statement(line, text);
    }
    parser.statements
}

struct RepoinitParser<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    statements: Vec<RepoinitStatement>,
}

/// A block of lines up to `end`.
enum StatementBlock {
    /// `set ACL on`: the lines name principals.
    PathPolicy(Vec<RepoinitPath>),
    /// `set ACL for`: the lines name paths.
    PrincipalPolicy {
        principals: Vec<String>,
        is_principal_based: bool,
    },
    /// `set repository ACL for`: the lines name neither.
    RepositoryPolicy(Vec<String>),
    Properties(Vec<RepoinitPath>),
    /// A block that is not carried out.
    Skipped(&'static str),
}

type ParseResult<T> = Result<T, String>;

impl<'a> RepoinitParser<'a> {
    /// Returns the next line that is neither empty nor a comment.
    fn next_line(&mut self) -> Option<(u32, &'a str)> {
        self.lines.find_map(|(index, line)| {
            let text = line.trim();
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            (!text.is_empty() && !text.starts_with('#')).then_some((number, text))
        })
    }

    fn add(&mut self, line: u32, text: String, operation: ParseResult<RepoinitOperation>) {
        let operation = operation.unwrap_or_else(|fault| {
            RepoinitOperation::Skip(format!("the statement is not understood: {fault}"))
        });
        self.statements.push(RepoinitStatement { line, text, operation });
    }

    fn statement(&mut self, line: u32, text: &str) {
        let words = match RepoinitLine::parse(text) {
            Ok(words) => words,
            Err(fault) => return self.add(line, text.to_owned(), Err(fault)),
        };
        match parse_block_head(&mut words.clone()) {
            Some(Ok(block)) => self.block(line, text, &block),
            Some(Err(fault)) => {
                self.add(line, text.to_owned(), Err(fault));
                self.block(line, text, &StatementBlock::Skipped("its head is not understood"));
            }
            None => {
                let operation = self.single_statement(words);
                self.add(line, text.to_owned(), operation);
            }
        }
    }

    /// Parses the lines of a block.
    fn block(&mut self, head_line: u32, head: &str, block: &StatementBlock) {
        let mut is_empty = true;
        while let Some((line, text)) = self.next_line() {
            if text == "end" || text.starts_with("end ") || text.starts_with("end\t") {
                if is_empty && let StatementBlock::Skipped(reason) = block {
                    let operation = RepoinitOperation::Skip((*reason).to_owned());
                    self.add(head_line, head.to_owned(), Ok(operation));
                }
                return;
            }
            is_empty = false;
            let operation = RepoinitLine::parse(text).and_then(|words| block_line(words, block));
            self.add(line, format!("{head}: {text}"), operation);
        }
        self.add(head_line, head.to_owned(), Err("the block has no `end`".to_owned()));
    }

    fn single_statement(&mut self, mut words: RepoinitLine) -> ParseResult<RepoinitOperation> {
        if words.take_words(&["create", "path"]) || words.take_words(&["ensure", "nodes"]) {
            return initial_nodes(words);
        }
        for (start, kind) in [
            (&["create", "service", "user"][..], AccountKind::SystemUser),
            (&["create", "user"][..], AccountKind::User),
            (&["create", "group"][..], AccountKind::Group),
        ] {
            if words.take_words(start) {
                return new_accounts(words, kind);
            }
        }
        if words.take_words(&["add", "mixin"]) {
            return Ok(skip("mixins of existing nodes are not changed; put them into a package"));
        }
        if words.take_words(&["add"]) {
            let members = words.texts("a user or group")?;
            if !words.take_words(&["to", "group"]) {
                return Err("`to group` is missing".to_owned());
            }
            let group = words.text("a group")?;
            words.end()?;
            return Ok(RepoinitOperation::AddMembers { members, group });
        }
        if words.take_words(&["disable", "service", "user"]) {
            let name = words.text("a user")?;
            let has_reason = words.take_words(&[":"]);
            let reason = if has_reason { words.text("a reason")? } else { String::new() };
            words.end()?;
            return Ok(RepoinitOperation::DisableUser { name, reason });
        }
        if words.take_words(&["register", "namespace"]) {
            words.symbol('(')?;
            let prefix = words.text("a prefix")?;
            words.symbol(')')?;
            let uri = words.text("a namespace")?;
            words.end()?;
            return Ok(RepoinitOperation::RegisterNamespace { prefix, uri });
        }
        if words.take_words(&["register", "nodetypes"]) {
            return self.node_types();
        }
        if words.take_words(&["register"]) {
            return Ok(skip("there are no custom privileges"));
        }
        if words.take_words(&["delete"]) || words.take_words(&["remove"]) {
            return Ok(skip("nothing is removed; remove it by hand"));
        }
        Err("there is no such statement".to_owned())
    }

    /// Reads the text of `register nodetypes`.
    fn node_types(&mut self) -> ParseResult<RepoinitOperation> {
        match self.next_line() {
            Some((_, "<<===")) => {}
            _ => return Err("`<<===` is missing".to_owned()),
        }
        let mut definitions = String::new();
        for (_, line) in self.lines.by_ref() {
            if line.trim() == "===>>" {
                return Ok(RepoinitOperation::RegisterNodeTypes(definitions));
            }
            // Marks that protect the lines from other parsers.
            definitions.push_str(line.trim_start().strip_prefix("<<").unwrap_or(line));
            definitions.push('\n');
        }
        Err("`===>>` is missing".to_owned())
    }
}

fn skip(reason: &str) -> RepoinitOperation {
    RepoinitOperation::Skip(reason.to_owned())
}

/// Parses the head of a block; `None` if the line begins none.
fn parse_block_head(words: &mut RepoinitLine) -> Option<ParseResult<StatementBlock>> {
    if words.take_words(&["set", "ACL", "on"]) {
        Some(paths(words).map(StatementBlock::PathPolicy))
    } else if words.take_words(&["set", "ACL", "for"]) {
        let principals = words.texts("a principal");
        Some(principals.map(|principals| StatementBlock::PrincipalPolicy {
            principals,
            is_principal_based: false,
        }))
    } else if words.take_words(&["set", "principal", "ACL", "for"])
        || words.take_words(&["ensure", "principal", "ACL", "for"])
    {
        let principals = words.texts("a principal");
        Some(principals.map(|principals| StatementBlock::PrincipalPolicy {
            principals,
            is_principal_based: true,
        }))
    } else if words.take_words(&["set", "repository", "ACL", "for"]) {
        Some(words.texts("a principal").map(StatementBlock::RepositoryPolicy))
    } else if words.take_words(&["set", "properties", "on"]) {
        Some(paths(words).map(StatementBlock::Properties))
    } else if words.take_words(&["remove", "ACE"])
        || words.take_words(&["remove", "principal", "ACE"])
    {
        Some(Ok(StatementBlock::Skipped("single entries of policies are not removed")))
    } else {
        None
    }
}

fn block_line(mut words: RepoinitLine, block: &StatementBlock) -> ParseResult<RepoinitOperation> {
    let (paths_of_head, principals_of_head, is_principal_based) = match block {
        StatementBlock::Skipped(reason) => return Ok(skip(reason)),
        StatementBlock::Properties(targets) => return property_line(words, targets),
        StatementBlock::PathPolicy(paths) => (Some(paths.clone()), None, false),
        StatementBlock::RepositoryPolicy(principals) => {
            (Some(vec![RepoinitPath::Repository]), Some(principals.clone()), false)
        }
        StatementBlock::PrincipalPolicy { principals, is_principal_based } => {
            (None, Some(principals.clone()), *is_principal_based)
        }
    };
    let is_removal = words.take_words(&["remove"]);
    let is_grant = !is_removal && words.take_words(&["allow"]);
    if !is_removal && !is_grant && !words.take_words(&["deny"]) {
        return Err("a line begins with `allow`, `deny` or `remove`".to_owned());
    }
    let privileges = words.texts("a privilege")?;
    let paths = match paths_of_head {
        Some(paths) => paths,
        None if words.take_words(&["on"]) => paths(&mut words)?,
        None => return Err("`on` is missing".to_owned()),
    };
    let principals = match principals_of_head {
        Some(principals) => principals,
        None if words.take_words(&["for"]) => words.texts("a principal")?,
        None => return Err("`for` is missing".to_owned()),
    };
    let target = PolicyTarget { paths, principals, is_principal_based };
    if is_removal {
        words.end()?;
        return Ok(match privileges.as_slice() {
            [all] if all == "*" => RepoinitOperation::RemoveEntries(target),
            _ => skip("single privileges are not removed"),
        });
    }
    let mut restrictions = Vec::new();
    if words.take_words(&["nodetypes"]) {
        restrictions.push(("rep:ntNames".to_owned(), words.texts("a node type")?));
    }
    while words.take_words(&["restriction"]) {
        words.symbol('(')?;
        let name = words.text("a restriction")?;
        let mut values = Vec::new();
        while words.take_symbol(',') {
            values.push(words.text("a value")?);
        }
        words.symbol(')')?;
        restrictions.push((name, values));
    }
    words.end()?;
    let entry = EntryTemplate { is_grant, privileges, restrictions };
    Ok(RepoinitOperation::AddEntry { target, entry })
}

/// Parses paths with commas between them: absolute ones, `home(name)`, `authorizable(name)` and `:repository`.
fn paths(words: &mut RepoinitLine) -> ParseResult<Vec<RepoinitPath>> {
    let mut paths = Vec::new();
    loop {
        let text = words.text("a path")?;
        paths.push(match text.as_str() {
            ":repository" => RepoinitPath::Repository,
            "home" | "authorizable" if words.take_symbol('(') => {
                let name = words.text("a user or group")?;
                words.symbol(')')?;
                let rest = match words.clone().text("a path") {
                    Ok(rest) if rest.starts_with('/') => words.text("a path")?,
                    _ => String::new(),
                };
                RepoinitPath::Account(name, rest)
            }
            path if path.starts_with('/') => RepoinitPath::Node(path.to_owned()),
            other => return Err(format!("`{other}` is not an absolute path")),
        });
        if !words.take_symbol(',') {
            return Ok(paths);
        }
    }
}

/// Parses the nodes of `create path`.
fn initial_nodes(mut words: RepoinitLine) -> ParseResult<RepoinitOperation> {
    let mut default_type = None;
    if words.take_symbol('(') {
        default_type = Some(words.text("a node type")?);
        words.symbol(')')?;
    }
    let mut nodes: Vec<InitialNode> = Vec::new();
    let mut parent = String::new();
    while !words.is_empty() {
        let part = words.text("a path")?;
        if !part.starts_with('/') {
            return Err(format!("`{part}` is not an absolute path"));
        }
        for name in part.split('/').filter(|name| !name.is_empty()) {
            parent = format!("{parent}/{name}");
            let primary_type = default_type.clone();
            nodes.push(InitialNode { path: parent.clone(), primary_type, mixins: Vec::new() });
        }
        if words.take_symbol('(') {
            let last = nodes.last_mut().ok_or("the root has its type")?;
            if !words.take_words(&["mixin"]) {
                last.primary_type = Some(words.text("a node type")?);
                if words.take_words(&["mixin"]) {
                    last.mixins = words.texts("a mixin")?;
                }
            } else {
                last.mixins = words.texts("a mixin")?;
            }
            words.symbol(')')?;
        }
    }
    if nodes.is_empty() {
        return Err("the path is missing".to_owned());
    }
    Ok(RepoinitOperation::CreateNodes(nodes))
}

fn new_accounts(mut words: RepoinitLine, kind: AccountKind) -> ParseResult<RepoinitOperation> {
    let names = words.texts("a name")?;
    let mut folder = None;
    if words.take_words(&["with", "path"]) || words.take_words(&["with", "forced", "path"]) {
        folder = Some(words.text("a path")?);
    }
    let has_password = words.take_words(&["with", "password"]);
    if has_password {
        if words.take_symbol('{') {
            words.text("an encoding")?;
            words.symbol('}')?;
        }
        words.text("a password")?;
    }
    words.end()?;
    Ok(RepoinitOperation::CreateAccounts { kind, names, folder, has_password })
}

fn property_line(
    mut words: RepoinitLine,
    targets: &[RepoinitPath],
) -> ParseResult<RepoinitOperation> {
    let is_default = words.take_words(&["default"]);
    if !is_default && !words.take_words(&["set"]) {
        return Err("a line begins with `set` or `default`".to_owned());
    }
    let name = words.text("a property")?;
    let mut type_name = "String".to_owned();
    if words.take_symbol('{') {
        type_name = words.text("a type")?;
        words.symbol('}')?;
    }
    let is_list = type_name.ends_with("[]");
    let type_name = type_name.trim_end_matches("[]").to_owned();
    if !words.take_words(&["to"]) {
        return Err("`to` is missing".to_owned());
    }
    let values = words.texts("a value")?;
    words.end()?;
    let is_list = is_list || values.len() > 1;
    let property = PropertyAssignment { name, type_name, is_list, values, is_default };
    Ok(RepoinitOperation::SetProperty { targets: targets.to_vec(), property })
}
