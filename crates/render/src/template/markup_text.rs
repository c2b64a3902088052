//! The text of markup, without its tags and entities.

/// Removes tags and comments, decodes common entities and collapses white space.
pub(super) fn strip_markup(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        // A tag separates words: `</p><p>` becomes a blank, and so does `<br>`.
        text.push(' ');
        rest = skip_tag(after);
    }
    text.push_str(rest);
    decode_entities(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text after a tag, given the text after its `<`; skips scripts and styles with their content.
fn skip_tag(after: &str) -> &str {
    if let Some(comment) = after.strip_prefix("!--") {
        return comment.split_once("-->").map_or("", |(_, rest)| rest);
    }
    for name in ["script", "style"] {
        if after.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)) {
            let end = after.to_ascii_lowercase().find(&format!("</{name}"));
            let rest = end.and_then(|end| after.get(end..)).unwrap_or_default();
            return rest.split_once('>').map_or("", |(_, rest)| rest);
        }
    }
    after.split_once('>').map_or("", |(_, rest)| rest)
}

/// Decodes the named entities that editors write, and numeric ones.
pub(super) fn decode_entities(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let entity =
            after.split_once(';').and_then(|(name, tail)| Some((decode_entity(name)?, tail)));
        match entity {
            Some((character, tail)) => {
                out.push(character);
                rest = tail;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out + rest
}

/// Finds the character of an entity.
fn decode_entity(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => ' ',
        "ndash" => '–',
        "mdash" => '—',
        "hellip" => '…',
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)?
        }
    })
}
