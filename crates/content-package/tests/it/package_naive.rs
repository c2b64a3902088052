//! A second reader of XML for the package tests, made of string searches only.

#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    /// The line of its `<`, from 1.
    pub(crate) line: usize,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) children: Vec<Element>,
}

/// Reads an XML document with string searches only.
pub(crate) fn naive_xml(text: &str) -> Element {
    let mut open: Vec<Element> = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find('<').map(|offset| at + offset) {
        let line = text[..start].matches('\n').count() + 1;
        if text[start..].starts_with("<!--") {
            at = start + text[start..].find("-->").unwrap() + 3;
            continue;
        }
        // No attribute of these documents holds a bare `>`; FileVault writes it so, too.
        let end = tag_end(text, start);
        let tag = &text[start + 1..end];
        at = end + 1;
        if tag.starts_with('?') {
            continue;
        }
        let closes = tag.starts_with('/') || tag.ends_with('/');
        if !tag.starts_with('/') {
            open.push(naive_tag(tag.trim_end_matches('/'), line));
        }
        if closes {
            let element = open.pop().unwrap();
            match open.last_mut() {
                Some(parent) => parent.children.push(element),
                None => return element,
            }
        }
    }
    panic!("the document does not end");
}

fn tag_end(text: &str, start: usize) -> usize {
    let mut is_quoted = false;
    for (offset, character) in text[start..].char_indices() {
        match character {
            '"' => is_quoted = !is_quoted,
            '>' if !is_quoted => return start + offset,
            _ => {}
        }
    }
    panic!("a tag does not end");
}

fn naive_tag(tag: &str, line: usize) -> Element {
    let (name, mut rest) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
    let mut attributes = Vec::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').unwrap();
        rest = after;
        if !key.trim().starts_with("xmlns") {
            attributes.push((naive_name(key.trim()), naive_text(value)));
        }
    }
    Element { name: naive_name(name), line, attributes, children: Vec::new() }
}

fn naive_name(name: &str) -> String {
    let mut out = name.to_owned();
    while let Some(at) = out.find("_x00") {
        let code = u32::from_str_radix(&out[at + 2..at + 6], 16).unwrap();
        out.replace_range(at..at + 7, &char::from_u32(code).unwrap().to_string());
    }
    out
}

fn naive_text(text: &str) -> String {
    let blank = text.replace(['\n', '\t'], " ");
    let mut out = String::new();
    let mut parts = blank.split('&');
    out.push_str(parts.next().unwrap());
    for part in parts {
        let (entity, after) = part.split_once(';').unwrap();
        let code = match entity {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            other => match other.strip_prefix("#x") {
                Some(hex) => char::from_u32(u32::from_str_radix(hex, 16).unwrap()),
                None => char::from_u32(other.strip_prefix('#').unwrap().parse().unwrap()),
            },
        };
        out.push(code.unwrap());
        out.push_str(after);
    }
    out
}
