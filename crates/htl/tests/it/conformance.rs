//! The conformance kit of HTL 1.4: its scripts, and the definitions of what their output must contain.
//!
//! Maven fetches the kit, once for all test runs; it is not part of the project. Its objects in Java and JavaScript have
//! native stand-ins here.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;
use tympan_htl::{
    HostError, HtlBudget, HtlHost, HtlObject, HtlOptions, HtlScript, HtlUseRequest, HtlUseResult,
    HtlValue, ResourceInclusion, ScriptInclusion, TranslationRequest,
};
use tympan_testkit::external_tool::{command_succeeds, install_once, report_skip};

const KIT: &str = "io.sightly:io.sightly.tck:1.2.0";

/// Returns the files of the kit by name.
fn kit() -> Option<HashMap<String, String>> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("htl-tck-1.2.0");
    let is_here = install_once(&home, |making| {
        std::fs::create_dir_all(making).unwrap();
        let goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";
        let artifact = format!("-Dartifact={KIT}");
        let fetch = |offline: &[&str]| {
            let mut maven = Command::new("mvn");
            maven.args(["-q", "-B", goal, &artifact, "-DoutputDirectory=."]);
            command_succeeds(maven.args(offline).current_dir(making))
        };
        fetch(&["-o"]) || fetch(&[])
    });
    if !is_here {
        report_skip("the conformance kit of HTL", "Maven");
        return None;
    }
    let file = std::fs::File::open(home.join("io.sightly.tck-1.2.0.jar")).unwrap();
    let mut archive = zip::ZipArchive::new(file).unwrap();
    let mut files = HashMap::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).unwrap();
        let name = entry.name().unwrap().to_string();
        if name.starts_with("testfiles/") && !name.ends_with('/') {
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.insert(name, text);
        }
    }
    Some(files)
}

/// An object with the properties of a stand-in, which is no map.
#[derive(Debug)]
struct StandIn(Vec<(&'static str, HtlValue)>);

impl HtlObject for StandIn {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(self.0.iter().find(|(property, _)| *property == name).map(|(_, value)| value.clone()))
    }
}

/// A constant of an enumeration.
#[derive(Debug)]
struct Constant(&'static str);

impl HtlObject for Constant {
    fn property(&self, _name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(None)
    }

    fn primitive(&self) -> Option<HtlValue> {
        Some(self.0.into())
    }
}

fn object(properties: Vec<(&'static str, HtlValue)>) -> HtlValue {
    HtlValue::object(StandIn(properties))
}

/// Returns the stand-in of an object of the kit.
fn stand_in(name: &str, options: &HtlOptions) -> Option<HtlValue> {
    let option = |name: &str| options.value(name).cloned().unwrap_or_default();
    let number = |name: &str| option(name).to_text().parse::<i64>().unwrap_or_default();
    Some(match name.rsplit('.').next()? {
        "AttributesPojo" => {
            let injection = "><script>alert('busted')</script>";
            object(vec![
                (
                    "attributes",
                    HtlValue::map([("class", "foo".into()), ("data-number", "2".into())]),
                ),
                (
                    "rogueAttributes",
                    HtlValue::map([
                        (injection, injection.into()),
                        ("style", "color:red".into()),
                        ("onmouseover", "alert('PAWNED')".into()),
                        ("href='alert(\"PAWNED\")' data-href", "something".into()),
                    ]),
                ),
                ("rogueHref", HtlValue::map([("href", "javascript:alert('foo')".into())])),
            ])
        }
        "UsePojo" => object(vec![("title", "Pojo Title".into())]),
        "FiltersPojo" => {
            let entries = [("a", "1".into()), ("b", "2".into()), ("c", "3".into())];
            object(vec![("collection", HtlValue::map(entries))])
        }
        "UseEnumTestHelper" => object(vec![
            ("value1", HtlValue::object(Constant("CONSTANT1"))),
            ("value2", HtlValue::object(Constant("CONSTANT2"))),
        ]),
        "XSSPojo" => object(vec![
            ("attributeContent", "Some \"attribute\" with quotes".into()),
            ("htmlContent", "<p style=\"color: red\">This is a red text.</p>".into()),
            ("javaScriptCode", "alert(null)".into()),
            ("javaScriptUri", "javascript:alert(null)".into()),
            ("uriContent", "/sightlytck".into()),
        ]),
        "js" => match name {
            "UseScript.js" => HtlValue::map([("title", "title".into())]),
            "attributes.js" => HtlValue::map([(
                "attributes",
                HtlValue::map([("data-attr1", HtlValue::Null), ("data-attr2", "false".into())]),
            )]),
            "filteroptions.js" => {
                let names = ["i18n", "join", "context", "format", "uri"];
                HtlValue::map(names.map(|name| (name, option(name))))
            }
            "uri.js" => {
                let numbers = HtlValue::list([1, 2, 3].map(HtlValue::Integer));
                let query = HtlValue::map([("q", "sightly".into()), ("array", numbers)]);
                HtlValue::map([("query", query)])
            }
            "math.js" => match &*option("operation").to_text() {
                "dec" => (number("arg1") - 1).into(),
                "mult" => (number("arg1") * number("arg2")).into(),
                _ => return None,
            },
            _ => return None,
        },
        _ => return None,
    })
}

/// A host over the files of the kit.
struct KitHost<'a> {
    files: &'a HashMap<String, String>,
    budget: HtlBudget,
}

impl KitHost<'_> {
    fn load(&self, path: &str) -> Result<HtlScript, HostError> {
        let source = self.files.get(path);
        let source = source.ok_or_else(|| HostError::message(format!("there is no `{path}`")))?;
        HtlScript::compile(path, source).map_err(HostError::new)
    }

    /// Returns the file of a script, whose path is relative to the calling one or absolute in the kit's content.
    fn file(&self, script: &str, path: &str) -> String {
        if let Some(rest) = path.trim_start_matches('/').strip_prefix("sightlytck/") {
            return format!("testfiles/{rest}");
        }
        let mut parts: Vec<&str> = script.split('/').collect();
        parts.pop();
        for part in path.split('/') {
            if part == ".." {
                parts.pop();
            } else {
                parts.push(part);
            }
        }
        parts.join("/")
    }
}

impl HtlHost for KitHost<'_> {
    fn global(&mut self, _name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(None)
    }

    fn use_object(&mut self, request: &HtlUseRequest<'_>) -> Result<HtlUseResult, HostError> {
        if request.name.ends_with(".html") {
            let file = self.file(request.script, request.name);
            return self.load(&file).map(HtlUseResult::Templates);
        }
        let object = stand_in(request.name, request.options);
        let missing = || HostError::message(format!("there is no `{}`", request.name));
        object.map(HtlUseResult::Object).ok_or_else(missing)
    }

    fn include_resource(
        &mut self,
        inclusion: &ResourceInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        let path = inclusion.path.unwrap_or_default().trim_start_matches('/');
        if path != "sightlytck/helpers/testresource" {
            return Err(HostError::message(format!("there is no resource `{path}`")));
        }
        let script = self.load("testfiles/scripts/helpers/testresource/testresource.html")?;
        let budget = self.budget.clone();
        Ok(script.render(self, &budget, out)?)
    }

    fn include_script(
        &mut self,
        inclusion: &ScriptInclusion<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), HostError> {
        let script = self.load(&self.file(inclusion.script, inclusion.path))?;
        let budget = self.budget.clone();
        Ok(script.render(self, &budget, out)?)
    }

    fn translate(&mut self, request: &TranslationRequest<'_>) -> Result<Option<String>, HostError> {
        Ok(match (request.text, request.locale, request.hint) {
            ("hello", Some("de"), Some("some-hint")) => Some("Hallo mit einem Hauch".to_owned()),
            ("hello", Some("de"), None) => Some("Hallo".to_owned()),
            ("world", Some("de"), None) => Some("Welt".to_owned()),
            _ => None,
        })
    }
}

/// A node of parsed output.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Element { name: String, attributes: Vec<(String, String)>, children: Vec<Node> },
    Text(String),
}

const VOID: [&str; 8] = ["br", "img", "input", "link", "meta", "hr", "wbr", "base"];

/// Name, attributes and the children so far of an element that is not closed.
type OpenElement = (String, Vec<(String, String)>, Vec<Node>);

/// Parses output as far as the kit needs it: elements, attributes, texts with white space collapsed.
fn parse(html: &str) -> Vec<Node> {
    let mut stack: Vec<OpenElement> = vec![(String::new(), Vec::new(), Vec::new())];
    let mut rest = html;
    let close = |stack: &mut Vec<OpenElement>| {
        let (name, attributes, children) = stack.pop().unwrap();
        stack.last_mut().unwrap().2.push(Node::Element { name, attributes, children });
    };
    while !rest.is_empty() {
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.split_once("-->").map_or("", |(_, rest)| rest);
        } else if rest.starts_with("<!") {
            rest = rest.split_once('>').map_or("", |(_, rest)| rest);
        } else if let Some(end) = rest.strip_prefix("</") {
            let (name, behind) = end.split_once('>').unwrap();
            rest = behind;
            if stack.iter().skip(1).any(|open| open.0 == name.trim()) {
                while stack.last().unwrap().0 != name.trim() {
                    close(&mut stack);
                }
                close(&mut stack);
            }
        } else if rest.starts_with('<')
            && rest[1..].starts_with(|next: char| next.is_ascii_alphabetic())
        {
            let (element, is_closed, behind) = parse_tag(rest);
            rest = behind;
            let name = element.0.clone();
            stack.push((element.0, element.1, Vec::new()));
            if is_closed || VOID.contains(&&*name) {
                close(&mut stack);
            } else if name == "script" || name == "style" {
                let (text, _) = rest.split_once(&format!("</{name}")).unwrap();
                rest = &rest[text.len()..];
                stack.last_mut().unwrap().2.push(Node::Text(text.to_owned()));
            }
        } else {
            let end = rest[1..].find('<').map_or(rest.len(), |at| at + 1);
            let words: Vec<&str> = rest[..end].split_whitespace().collect();
            if !words.is_empty() {
                stack.last_mut().unwrap().2.push(Node::Text(decode(&words.join(" "))));
            }
            rest = &rest[end..];
        }
    }
    while stack.len() > 1 {
        close(&mut stack);
    }
    stack.pop().unwrap().2
}

type Tag = (String, Vec<(String, String)>);

fn parse_tag(html: &str) -> (Tag, bool, &str) {
    let name_end =
        html.find(|next: char| next.is_whitespace() || matches!(next, '>' | '/')).unwrap();
    let name = html[1..name_end].to_lowercase();
    let mut attributes = Vec::new();
    let mut rest = html[name_end..].trim_start();
    loop {
        if let Some(behind) = rest.strip_prefix("/>") {
            return ((name, attributes), true, behind);
        }
        if let Some(behind) = rest.strip_prefix('>') {
            return ((name, attributes), false, behind);
        }
        let end = rest
            .find(|next: char| next.is_whitespace() || matches!(next, '>' | '/' | '='))
            .unwrap();
        let key = rest[..end].to_owned();
        rest = rest[end..].trim_start();
        let mut value = String::new();
        if let Some(behind) = rest.strip_prefix('=') {
            let quote = behind.chars().next().unwrap();
            let (text, behind) = behind[1..].split_once(quote).unwrap();
            value = decode(text);
            rest = behind.trim_start();
        }
        attributes.push((key, value));
    }
}

fn decode(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&#39;", "'")
        .replace("&Atilde;", "Ã")
        .replace("&amp;", "&")
}

/// Finds all elements that a selector of names, classes and identifiers describes.
fn select<'n>(nodes: &'n [Node], selector: &[&str], found: &mut Vec<&'n Node>) {
    for node in nodes {
        let Node::Element { children, .. } = node else { continue };
        let (first, others) = selector.split_first().unwrap();
        let is_match = matches(node, first);
        if is_match && others.is_empty() {
            found.push(node);
        }
        if is_match && !others.is_empty() {
            select(children, others, found);
        } else {
            select(children, selector, found);
        }
    }
}

fn attribute<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    let Node::Element { attributes, .. } = node else { return None };
    attributes.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
}

fn matches(node: &Node, selector: &str) -> bool {
    let Node::Element { name, .. } = node else { return false };
    let end = selector.find(['#', '.']).unwrap_or(selector.len());
    let mut rest = &selector[end..];
    let mut is_match = end == 0 || name == &selector[..end];
    while !rest.is_empty() {
        let end = rest[1..].find(['#', '.']).map_or(rest.len(), |at| at + 1);
        let word = &rest[1..end];
        is_match &= if rest.starts_with('#') {
            attribute(node, "id") == Some(word)
        } else {
            attribute(node, "class")
                .is_some_and(|classes| classes.split(' ').any(|class| class == word))
        };
        rest = &rest[end..];
    }
    is_match
}

fn children(node: &Node) -> &[Node] {
    match node {
        Node::Element { children, .. } => children,
        Node::Text(_) => &[],
    }
}

/// Checks a case; returns what is wrong.
fn check(case: &Json, method: &str, output: &[Node]) -> Option<String> {
    let selector = case["selector"].as_str().unwrap();
    let is_positive = case["positive"].as_bool().unwrap_or(true);
    let parts: Vec<&str> = selector.split(' ').collect();
    let mut found = Vec::new();
    select(output, &parts, &mut found);
    let method = case["method"].as_str().unwrap_or(method);
    if method == "exists" {
        return (found.is_empty() == is_positive)
            .then(|| format!("`{selector}` exists: {}", !is_positive));
    }
    let Some(first) = found.first() else { return Some(format!("`{selector}` is missing")) };
    match method {
        "innerHTMLEquals" => {
            let expected = parse(case["value"].as_str().unwrap());
            let actual: Vec<Node> = found.iter().flat_map(|node| children(node)).cloned().collect();
            (actual != expected).then(|| format!("`{selector}` has {actual:?}, not {expected:?}"))
        }
        "hasAttribute" => {
            let name = case["attribute"].as_str().unwrap();
            let actual = found.iter().find_map(|node| attribute(node, name));
            let expected = case["value"].as_str().filter(|value| !value.is_empty());
            let is_right = match (is_positive, expected) {
                (true, Some(expected)) => actual == Some(expected),
                (true, None) => true,
                (false, _) => actual.is_none(),
            };
            (!is_right).then(|| format!("`{selector}` has `{name}` {actual:?}, not {expected:?}"))
        }
        "hasChildren" => {
            let count =
                children(first).iter().filter(|node| matches!(node, Node::Element { .. })).count();
            let expected = case["value"].as_u64().unwrap_or(0);
            (count as u64 != expected)
                .then(|| format!("`{selector}` has {count} children, not {expected}"))
        }
        other => Some(format!("unknown method `{other}`")),
    }
}

#[test]
fn conformance_kit_passes() {
    let Some(files) = kit() else { return };
    let mut outputs: HashMap<String, Vec<Node>> = HashMap::new();
    let mut faults = Vec::new();
    let mut count = 0;
    for (name, text) in &files {
        if !name.starts_with("testfiles/definitions/") {
            continue;
        }
        let suite: Json = serde_json::from_str(text).unwrap();
        for group in suite["groups"].as_array().unwrap() {
            let text =
                |key: &str| group[key].as_str().or_else(|| suite[key].as_str()).unwrap_or_default();
            let url = text("url");
            let output = outputs.entry(url.to_owned()).or_insert_with(|| {
                let path = url.trim_start_matches("/sightlytck/").trim_end_matches(".html");
                let file = path.rsplit('/').next().unwrap();
                let script = format!("testfiles/scripts/{path}/{file}.html");
                let script = HtlScript::compile(&script, &files[&script]).unwrap();
                let mut host = KitHost { files: &files, budget: HtlBudget::default() };
                let mut out = Vec::new();
                let budget = host.budget.clone();
                script.render(&mut host, &budget, &mut out).unwrap();
                parse(&String::from_utf8(out).unwrap())
            });
            for case in group["cases"].as_array().unwrap() {
                count += 1;
                if let Some(fault) = check(case, text("method"), output) {
                    faults.push(format!("{url} {}: {fault}", group["name"]));
                }
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(count, 348);
}
