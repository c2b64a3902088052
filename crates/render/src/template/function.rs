//! The functions that templates call.
#![expect(
    clippy::needless_pass_by_value,
    reason = "MiniJinja hands keyword arguments over by value"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, State, Value};
use tympan_notation::escape_html;

use super::asset::asset_value;
use super::date::DateStyle;
use super::failure::invalid_call;
use super::frame::{ComponentFrame, IncludeOverrides};
use super::output_filter::plain_text_of;
use super::page_object::{PageObject, TagObject, navigation_value};
use super::resource_object::{NodeListObject, ResourceObject};
use super::scope::{RenderScope, ResponseOverride};
use super::{breakpoint, date};
use crate::client_library::ClientLibraryKind;
use crate::client_library::client_library_file::ClientLibraryResolver;
use crate::dependency::content_reader::RequestFacts;
use crate::i18n::message_format;
use crate::page;
use crate::page::list_query::PageOrder;
use crate::page::search::{self, PageSearch, PageSearchResults};
use crate::render_options::RenderMode;
use crate::response::RedirectKind;
use crate::text_picture::TextPicture;
use crate::url::split_selectors;

/// The maximum time of `sleep_ms` and `burn_cpu_ms`.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Adds all functions to an environment.
pub(super) fn add_functions(environment: &mut Environment<'_>) {
    environment.add_function("include", include);
    environment.add_function("include_children", include_children);
    environment.add_function("node", node);
    environment.add_function("page_at", page_at);
    environment.add_function("nav", nav);
    environment.add_function("breadcrumb", breadcrumb);
    environment.add_function("pages", pages);
    environment.add_function("search", search);
    environment.add_function("search_titles", search_titles);
    environment.add_function("data", data);
    environment.add_function("send", send);
    environment.add_function("send_text_picture", send_text_picture);
    environment.add_function("tags", tags);
    environment.add_function("link", link);
    environment.add_function("asset", asset);
    environment.add_function("clientlib", clientlib);
    environment.add_function("clientlibs", clientlibs);
    environment.add_function("i18n", i18n);
    environment.add_function("query", query);
    environment.add_function("date", write_date);
    environment.add_function("breakpoints", breakpoints);
    environment.add_function("send_file", send_file);
    environment.add_function("not_found", not_found);
    environment.add_function("redirect", redirect);
    environment.add_function("sleep_ms", sleep_ms);
    environment.add_function("burn_cpu_ms", burn_cpu_ms);
}

/// `include(path_or_resource, type=none, selectors=none)`
fn include(
    state: &mut State<'_, '_>,
    target: &Value,
    resource_type: Option<Value>,
    selectors: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let resource_type = argument_or_option(resource_type, &options, "type")?;
    let selectors = argument_or_option(selectors, &options, "selectors")?;
    options.assert_all_used()?;
    let change = IncludeOverrides {
        resource_type: resource_type.as_ref().and_then(Value::as_str).map(str::to_owned),
        selectors: selectors.as_ref().map(parse_selectors).transpose()?,
    };
    let frame = ComponentFrame::from_state(state)?;
    frame.scope.count_steps(state);
    Ok(Value::from_safe_string(frame.include(target, change)))
}

/// `include_children(resource)`: the component itself without an argument.
fn include_children(state: &mut State<'_, '_>, target: Option<Value>) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    frame.scope.count_steps(state);
    let target = target.unwrap_or_else(|| Value::from(frame.resource.path().as_str()));
    Ok(Value::from_safe_string(frame.include_children(&target)))
}

/// `node(path)`
fn node(state: &mut State<'_, '_>, path: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    Ok(ResourceObject::to_optional_value(&frame.scope, frame.find_node_existence(path)))
}

/// `page_at(path)`: the page at the path, or the one that contains the node there.
fn page_at(state: &mut State<'_, '_>, path: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    let node = frame.find_node_existence(path);
    let page = node.and_then(|node| page::containing_page(&frame.scope.reader, node.path()));
    Ok(PageObject::to_optional_value(&frame.scope, page))
}

/// `nav(root, depth=1)`
fn nav(
    state: &mut State<'_, '_>,
    root: &Value,
    depth: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let depth = parse_count(argument_or_option(depth, &options, "depth")?.as_ref(), 1)?;
    options.assert_all_used()?;
    let frame = ComponentFrame::from_state(state)?;
    Ok(match frame.find_node_existence(root) {
        Some(root) => navigation_value(&frame.scope, &root, depth),
        None => Value::from(Vec::<Value>::new()),
    })
}

/// `breadcrumb(min_depth=2)`: levels count as in AEM, `/content` is level 0.
fn breadcrumb(
    state: &mut State<'_, '_>,
    min_depth: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let level = parse_count(argument_or_option(min_depth, &options, "min_depth")?.as_ref(), 2)?;
    options.assert_all_used()?;
    let frame = ComponentFrame::from_state(state)?;
    let reader = &frame.scope.reader;
    let trail =
        frame.scope.requested_page().map(|page| page::page_ancestors(reader, page, level + 1));
    Ok(NodeListObject::to_template_value(
        &frame.scope,
        trail.unwrap_or_default(),
        PageObject::to_template_value,
    ))
}

/// `pages(root, limit=all, order="modified", tag=none)`
fn pages(state: &mut State<'_, '_>, root: &Value, options: Kwargs) -> Result<Value, Error> {
    let limit = parse_count(value_option(&options, "limit")?.as_ref(), usize::MAX)?;
    let order = match value_option(&options, "order")?.as_ref().and_then(Value::as_str) {
        None | Some("modified") => PageOrder::Modified,
        Some("date") => PageOrder::Date,
        Some("title") => PageOrder::Title,
        Some(unknown_order) => {
            let message =
                format!("`order` is `{unknown_order}`; it must be modified, date or title");
            return Err(invalid_call(message));
        }
    };
    let tag = value_option(&options, "tag")?.map(|tag| tag.to_string());
    options.assert_all_used()?;
    let frame = ComponentFrame::from_state(state)?;
    let (scope, tag) = (&frame.scope, tag.as_deref());
    let pages = frame
        .find_node_existence(root)
        .map(|root| page::list_pages(&scope.reader, &root, order, tag, limit));
    Ok(NodeListObject::to_template_value(
        scope,
        pages.unwrap_or_default(),
        PageObject::to_template_value,
    ))
}

/// `search(root, words, limit=20, number=1)`
fn search(
    state: &mut State<'_, '_>,
    root: &Value,
    words: &Value,
    options: Kwargs,
) -> Result<Value, Error> {
    let limit = parse_count(value_option(&options, "limit")?.as_ref(), 20)?;
    let number = parse_count(value_option(&options, "number")?.as_ref(), 1)?;
    options.assert_all_used()?;
    let frame = ComponentFrame::from_state(state)?;
    let scope = &frame.scope;
    let root = frame.find_node_existence(root);
    let results = root.map_or_else(
        || Ok(PageSearchResults::default()),
        |root| {
            let words = words.as_str().unwrap_or_default();
            let component = frame.resource.resource_type();
            let search =
                PageSearch { root: &root, input: words, limit, page_number: number, component };
            search::search_pages(&scope.reader, &scope.query_engine, search)
        },
    );
    let PageSearchResults { hits, has_more, is_index_building } = results.map_err(|error| {
        tracing::warn!(%error, "search of a component failed");
        invalid_call(format!("the search failed: {error}"))
    })?;
    let hits = hits.into_iter().map(|hit| {
        let excerpt = hit.excerpt.map_or(Value::UNDEFINED, Value::from_safe_string);
        Value::from_pairs([
            ("page", PageObject::to_template_value(scope, hit.page)),
            ("excerpt", excerpt),
        ])
    });
    let hits: Vec<Value> = hits.collect();
    Ok(Value::from_pairs([
        ("hits", Value::from(hits)),
        ("more", Value::from(has_more)),
        ("building", Value::from(is_index_building)),
    ]))
}

/// `search_titles(root, term, limit=20)`
fn search_titles(
    state: &mut State<'_, '_>,
    root: &Value,
    term: &Value,
    limit: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let limit = parse_count(argument_or_option(limit, &options, "limit")?.as_ref(), 20)?;
    options.assert_all_used()?;
    let frame = ComponentFrame::from_state(state)?;
    let term = term.as_str().unwrap_or_default();
    let pages = frame
        .find_node_existence(root)
        .map(|root| page::search_titles(&frame.scope.reader, &root, term, limit));
    Ok(NodeListObject::to_template_value(
        &frame.scope,
        pages.unwrap_or_default(),
        PageObject::to_template_value,
    ))
}

/// `data(name, path)`: the value from a back end; undefined if there is none.
fn data(state: &mut State<'_, '_>, name: &str, path: &str) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    let Some(back_ends) = &frame.scope.backends else {
        return Err(invalid_call("no back ends are configured"));
    };
    // Output that shows no value, or an older copy, also has to be rendered again when there may be a new value.
    if let Some(max_age) = back_ends.max_age(name) {
        frame.scope.reader.record_external_data(max_age);
        if frame.scope.request.is_offline {
            return Ok(Value::UNDEFINED);
        }
    }
    let value = back_ends.fetch_value(name, path, Instant::now()).map_err(invalid_call)?;
    Ok(value.unwrap_or(Value::UNDEFINED))
}

/// `send(name, path, value)`: posts a value to a back end and returns its response; undefined if there is none. Only
/// allowed in scripts for POST.
fn send(state: &mut State<'_, '_>, name: &str, path: &str, value: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    if frame.scope.request.method != "POST" {
        return Err(invalid_call(
            "`send` works only in scripts that handle a POST, such as `page.POST.j2`",
        ));
    }
    let Some(back_ends) = &frame.scope.backends else {
        return Err(invalid_call("no back ends are configured"));
    };
    frame.scope.reader.record_external_data(Duration::ZERO);
    let body = serde_json::to_vec(value)
        .map_err(|error| invalid_call(format!("the value cannot be sent: {error}")))?;
    let response = back_ends.post_json(name, path, &body, Instant::now()).map_err(invalid_call)?;
    Ok(response.unwrap_or(Value::UNDEFINED))
}

/// `send_text_picture(text, height=48, color="#000000", background=none, font=none, bold=false)`
fn send_text_picture(
    state: &mut State<'_, '_>,
    text: &Value,
    options: Kwargs,
) -> Result<Value, Error> {
    let height = parse_count(value_option(&options, "height")?.as_ref(), 48)?;
    let text_option = |name| -> Result<Option<String>, Error> {
        Ok(value_option(&options, name)?.map(|value| plain_text_of(&value).into_owned()))
    };
    let (color, background, font) =
        (text_option("color")?, text_option("background")?, text_option("font")?);
    let is_bold = value_option(&options, "bold")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let picture = TextPicture::new(&plain_text_of(text), height)
        .and_then(|picture| picture.with_colors(color.as_deref(), background.as_deref()))
        .map_err(invalid_call)?
        .with_font(font.as_deref(), is_bold);
    ComponentFrame::from_state(state)?.override_response(ResponseOverride::TextPicture(picture));
    Ok(Value::from(""))
}

/// `tags(root)`
fn tags(state: &mut State<'_, '_>, root: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    let tags =
        frame.find_node_existence(root).map(|root| page::tags_below(&frame.scope.reader, &root));
    Ok(TagObject::tag_list_value(tags.unwrap_or_default()))
}

/// `link(path)`
fn link(state: &mut State<'_, '_>, target: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    let href = match target.as_str() {
        Some(text) => text.to_owned(),
        None => frame.resolve_path(target).map(|path| path.to_string()).unwrap_or_default(),
    };
    Ok(Value::from(frame.scope.external_url(page::sanitize_href(&frame.scope.reader, &href))))
}

/// `asset(path)`
fn asset(state: &mut State<'_, '_>, path: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    let Some(node) = frame.find_node(path) else { return Ok(Value::UNDEFINED) };
    // A resource argument was found by existence only, and the original lies in parts that are not recorded
    // individually.
    frame.scope.reader.record_properties(&node);
    frame.scope.reader.record_document(&node);
    Ok(asset_value(&frame.scope, node))
}

/// `clientlib(name)`
fn clientlib(state: &mut State<'_, '_>, name: &str) -> Result<Value, Error> {
    let scope = &ComponentFrame::from_state(state)?.scope;
    let libraries = ClientLibraryResolver {
        script_cache: &scope.script_cache,
        joined_libraries: scope.scripts.client_libraries(),
    };
    Ok(Value::from(libraries.library_url(&scope.reader, name)))
}

/// `clientlibs(categories, css=true, js=true)`: the elements that load client libraries and their dependencies.
fn clientlibs(
    state: &mut State<'_, '_>,
    categories: &Value,
    options: Kwargs,
) -> Result<Value, Error> {
    let wants = |name| -> Result<bool, Error> {
        Ok(value_option(&options, name)?.is_none_or(|value| value.is_true()))
    };
    let requested_kinds =
        [(ClientLibraryKind::Css, wants("css")?), (ClientLibraryKind::Js, wants("js")?)];
    options.assert_all_used()?;
    let scope = &ComponentFrame::from_state(state)?.scope;
    let categories: Vec<String> = match categories.as_str() {
        Some(text) => text.split(',').map(|category| category.trim().to_owned()).collect(),
        None => categories.try_iter()?.map(|item| plain_text_of(&item).into_owned()).collect(),
    };
    // Another file in any library changes the address.
    scope.reader.record_any_script();
    let libraries = scope.scripts.client_libraries();
    if let Some(unknown) = categories.iter().find(|category| !libraries.has_category(category)) {
        let message = format!("no client library has the category `{unknown}`");
        if scope.mode == RenderMode::Author {
            return Err(invalid_call(message));
        }
        tracing::warn!(reason = message, "client library missing");
    }
    let mut text = String::new();
    for kind in
        requested_kinds.into_iter().filter_map(|(kind, is_wanted)| is_wanted.then_some(kind))
    {
        for address in libraries.library_addresses(&categories, kind) {
            let address = escape_html(&address);
            text.push_str(&match kind {
                ClientLibraryKind::Css => format!("<link rel=\"stylesheet\" href=\"{address}\">\n"),
                ClientLibraryKind::Js => format!("<script src=\"{address}\" defer></script>\n"),
            });
        }
    }
    Ok(Value::from_safe_string(text))
}

/// `i18n(key, language=none, …)`: a text in the language of the page; the other arguments replace its placeholders.
fn i18n(state: &mut State<'_, '_>, key: &str, options: Kwargs) -> Result<Value, Error> {
    let scope = &ComponentFrame::from_state(state)?.scope;
    let language = match value_option(&options, "language")? {
        Some(language) => plain_text_of(&language).into_owned(),
        None => requested_page_language(scope),
    };
    let mut arguments = BTreeMap::new();
    for name in options.args() {
        if name != "language" {
            arguments.insert(name.to_owned(), options.get::<Value>(name)?);
        }
    }
    scope.reader.record_any_script();
    let (message, found_in) = scope.scripts.dictionaries().find(&language, key);
    let value = |name: &str| {
        let value = arguments.get(name)?;
        let number = value.as_str().is_none().then(|| f64::try_from(value.clone()).ok()).flatten();
        Some((plain_text_of(value).into_owned(), number))
    };
    message_format::format_message(message, found_in, &value).map(Value::from).map_err(|mistake| {
        invalid_call(format!("the text of `{key}` in `{found_in}` is malformed: {mistake}"))
    })
}

/// `query(statement, limit=100)`: the results of an SQL-2 query that the visitor may read.
fn query(state: &mut State<'_, '_>, statement: &str, options: Kwargs) -> Result<Value, Error> {
    let limit = parse_count(value_option(&options, "limit")?.as_ref(), 100)?;
    let mut parameters = Vec::new();
    for name in options.args() {
        if name != "limit" {
            parameters
                .push((name.to_owned(), plain_text_of(&options.get::<Value>(name)?).into_owned()));
        }
    }
    let frame = ComponentFrame::from_state(state)?;
    let scope = &frame.scope;
    let component = frame.resource.resource_type();
    let result = search::run_component_query(
        &scope.reader,
        &scope.query_engine,
        statement,
        parameters,
        limit,
        component,
        scope.mode,
    );
    let result = result.map_err(|reason| invalid_call(format!("the query failed: {reason}")))?;
    if let Some(reason) = result.warning {
        tracing::warn!(path = %frame.resource.path(), reason, "query of a component has no index");
        scope.add_warning(&format!("a query of `{component}` has no index: it reads {reason}"));
    }
    Ok(NodeListObject::to_template_value(scope, result.nodes, ResourceObject::to_template_value))
}

/// `date(value, format="%Y-%m-%d", language=none, time=false)`
fn write_date(
    state: &mut State<'_, '_>,
    value: &Value,
    format: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let format = argument_or_option(format, &options, "format")?
        .map(|format| plain_text_of(&format).into_owned());
    let language = value_option(&options, "language")?;
    let has_time = value_option(&options, "time")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let Some(style) = format.as_deref().and_then(DateStyle::from_keyword) else {
        if language.is_some() || has_time {
            let message =
                "`language` and `time` work only with the formats short, medium, long and full";
            return Err(invalid_call(message));
        }
        return date::format_date_with(value, format.as_deref());
    };
    let language = match language {
        Some(language) => plain_text_of(&language).into_owned(),
        None => requested_page_language(&ComponentFrame::from_state(state)?.scope),
    };
    style.with_time(has_time).format_date(value, &language)
}

/// `breakpoints()`: the widths at which the page's layout changes, narrowest first.
fn breakpoints(state: &mut State<'_, '_>) -> Result<Value, Error> {
    let scope = &ComponentFrame::from_state(state)?.scope;
    let values =
        scope.requested_page().map(|page| breakpoint::breakpoint_values(&scope.reader, page));
    Ok(values.unwrap_or_else(|| Vec::<Value>::new().into()))
}

/// Returns the language of the requested page.
fn requested_page_language(scope: &RenderScope) -> String {
    scope.requested_page().map(|page| page::page_language(&scope.reader, page)).unwrap_or_default()
}

/// `send_file(path)`
fn send_file(state: &mut State<'_, '_>, path: &Value) -> Result<Value, Error> {
    let frame = ComponentFrame::from_state(state)?;
    let path = frame
        .resolve_path(path)
        .ok_or_else(|| invalid_call(format!("`{path}` is not a file path")))?;
    frame.override_response(ResponseOverride::File(path));
    Ok(Value::from(""))
}

/// `not_found()`
fn not_found(state: &mut State<'_, '_>) -> Result<Value, Error> {
    ComponentFrame::from_state(state)?.override_response(ResponseOverride::NotFound);
    Ok(Value::from(""))
}

/// `redirect(url, status=302, keep_query=false)`
fn redirect(
    state: &mut State<'_, '_>,
    url: &Value,
    status: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let status = argument_or_option(status, &options, "status")?;
    let keeps_query = options.get::<Option<bool>>("keep_query")?.unwrap_or(false);
    options.assert_all_used()?;
    let status = parse_count(status.as_ref(), 302)?;
    let kind = i64::try_from(status).ok().and_then(RedirectKind::from_number).ok_or_else(|| {
        invalid_call(format!("`status` is {status}; it must be 301, 302, 303, 307 or 308"))
    })?;
    let frame = ComponentFrame::from_state(state)?;
    let location = page::sanitize_href(&frame.scope.reader, url.as_str().unwrap_or_default());
    let location = frame.scope.external_url(location);
    if location.is_empty() || location == crate::page::link::BLOCKED_LINK {
        return Err(invalid_call(format!("`{url}` is not an address to redirect to")));
    }
    let location = if keeps_query {
        frame.scope.reader.record_fact(RequestFacts::PARAMETERS);
        let raw = &frame.scope.request.raw_url;
        let query = raw.split_once('?').map_or("", |(_, query)| query);
        crate::page::link::append_query(&location, query)
    } else {
        location
    };
    frame.override_response(ResponseOverride::Redirect { location, kind });
    Ok(Value::from(""))
}

/// `sleep_ms(n)`
fn sleep_ms(milliseconds: &Value) -> Result<Value, Error> {
    std::thread::sleep(parse_wait(milliseconds)?);
    Ok(Value::from(""))
}

/// `burn_cpu_ms(n)`
fn burn_cpu_ms(milliseconds: &Value) -> Result<Value, Error> {
    let (start, length) = (Instant::now(), parse_wait(milliseconds)?);
    let mut number = 0_u64;
    while start.elapsed() < length {
        number =
            std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    Ok(Value::from(""))
}

/// Parses a number of milliseconds within the limit.
fn parse_wait(milliseconds: &Value) -> Result<Duration, Error> {
    let milliseconds = parse_count(Some(milliseconds), 0)?;
    Ok(Duration::from_millis(milliseconds as u64).min(MAX_WAIT))
}

/// Returns a positional or named argument; `none` counts as missing.
fn argument_or_option(
    by_place: Option<Value>,
    options: &Kwargs,
    name: &str,
) -> Result<Option<Value>, Error> {
    let by_name = value_option(options, name)?;
    Ok(by_place.filter(|value| !value.is_none() && !value.is_undefined()).or(by_name))
}

/// Returns a named argument; `none` counts as missing.
fn value_option(options: &Kwargs, name: &str) -> Result<Option<Value>, Error> {
    // Requesting a name marks it as used, which costs more than the rest of most calls.
    if !options.has(name) {
        return Ok(None);
    }
    let value: Option<Value> = options.get(name)?;
    Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
}

/// Parses a count: a number, or a text that contains one, as dialogs store it.
fn parse_count(value: Option<&Value>, default: usize) -> Result<usize, Error> {
    let Some(value) = value else {
        return Ok(default);
    };
    let number = match value.as_str() {
        Some(text) => text.trim().parse::<i64>().ok(),
        None => {
            value.as_i64().or_else(|| f64::try_from(value.clone()).ok().map(|number| number as i64))
        }
    };
    let number = number.ok_or_else(|| invalid_call(format!("`{value}` is not a number")))?;
    Ok(usize::try_from(number.max(0)).unwrap_or(usize::MAX))
}

/// Parses selectors: `"print.a4"` or a list.
fn parse_selectors(value: &Value) -> Result<Arc<[String]>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(split_selectors(text).into());
    }
    let selectors = value.try_iter()?.map(|selector| selector.to_string());
    Ok(selectors.filter(|selector| !selector.is_empty()).collect::<Vec<_>>().into())
}
