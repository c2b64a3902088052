//! Fifty templates with captures, branches, loops, macros and includes, and the results of three ways to find the
//! position of an output: the static pass, a tracker that reads the written output (the sink), and no position at all.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use minijinja::{Environment, Value};
use parking_lot::Mutex;

use super::context::EscapeContext;
use super::{OutputEscape, analyze_templates};
use crate::template::template_name::resolve_template_name;

/// The value of the outputs.
const OUTPUT_MARK: &str = "mark";

/// Templates, and the escapes of `v` in output order, or `refused`.
const TEMPLATE_ESCAPES: [(&str, &str); 50] = [
    ("<p>{{ v }}</p>", "Text"),
    ("<p title=\"{{ v }}\">{{ v }}</p>", "Attribute Text"),
    ("<a href=\"{{ v }}\">", "Url(Whole)"),
    ("<a href=\"/x/{{ v }}?q={{ v }}\">", "Url(SchemeSettled) Url(SchemeSettled)"),
    ("<a href=\"{{ v }}.html#{{ v }}\">", "Url(Whole) Url(SchemeSettled)"),
    ("<script>var a = {{ v }}, b = '{{ v }}';</script>{{ v }}", "Script ScriptText Text"),
    ("<style>a { color: {{ v }}; background: url({{ v }}) }</style>", "Style StyleUrl(Whole)"),
    ("<p style=\"width: {{ v }}\">", "Style"),
    ("<title>{{ v }}</title><textarea>{{ v }}</textarea>", "RawText RawText"),
    ("<!-- {{ v }} -->{{ v }}", "RawText Text"),
    ("<img srcset=\"{{ v }} 640w, {{ v }}/b {{ v }}\">", "Srcset SrcsetUrl(Whole) SrcsetSize"),
    ("<h{{ v }}>{{ v }}</h{{ v }}>", "HeadingLevel Text HeadingLevel"),
    ("<input {{ v }}>", "Flag"),
    ("<p data-{{ v }}=\"{{ v }}\">", "NamePart Attribute"),
    ("<p onclick=\"{{ v }}\">", "refused"),
    ("<p class={{ v }}>", "refused"),
    ("<iframe srcdoc=\"{{ v }}\">", "refused"),
    ("<script type=\"text/template\">{{ v }}</script>", "refused"),
    // Branches.
    ("<p{% if v %} class=\"a\"{% endif %}>{{ v }}</p>", "Text"),
    ("<p class=\"{% if v %}a {{ v }}{% else %}b{% endif %}\">", "Attribute"),
    ("<a href=\"{% if v %}/a/{% endif %}{{ v }}\">", "Url(Whole)"),
    ("{% if v %}<a href=\"{% else %}<a title=\"{% endif %}{{ v }}\">", "refused"),
    ("{% if v %}<a href=\"/\">{% else %}<p>{% endif %}{{ v }}", "Text"),
    ("{% if v %}<b title=\"{% endif %}", "refused"),
    ("{% if v %}<script>{% endif %}x = {{ v }}{% if v %}</script>{% endif %}", "refused"),
    ("<p {% if v %}class{% else %}title{% endif %}=\"{{ v }}\">", "Attribute"),
    ("<p {% if v %}onclick{% else %}title{% endif %}=\"{{ v }}\">", "refused"),
    ("<p class=\"{{ 'a' if v else 'b' }} {{ v }}\">", "Attribute"),
    // Loops.
    (
        "{% for i in [1, 2] %}<a href=\"{{ v }}\">{{ v }}</a>{% endfor %}",
        "Url(Whole) Text Url(Whole) Text",
    ),
    ("<p class=\"{% for i in [1, 2] %}{{ v }} {% endfor %}\">", "Attribute Attribute"),
    (
        "<a href=\"?{% for i in [1, 2] %}a={{ v }}&{% endfor %}\">",
        "Url(SchemeSettled) Url(SchemeSettled)",
    ),
    (
        "{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}<b>{{ v }}{% endfor %}{{ v }}",
        "Text Text",
    ),
    ("{% for i in [1, 2] %}<b title=\"{% endfor %}", "refused"),
    (
        "{% for i in [[[]], []] recursive %}{{ v }}{% if i %}{{ loop(i) }}{% endif %}{% endfor %}",
        "Text Text Text",
    ),
    ("{% for i in [] %}<b>{% else %}<a href=\"{{ v }}\">{% endfor %}", "Url(Whole)"),
    // Captures, whose text is written at another position than where it is created.
    ("<a title=\"{% set x %}<b>{{ v }}</b>{% endset %}\">{{ x }}", "Text"),
    ("{% set x %}{{ v }}{% endset %}<a href=\"{{ x }}\">", "Text"),
    ("<script>{% set x %}<a href=\"{{ v }}\">{% endset %}</script>", "Url(Whole)"),
    ("{% set x %}<a href=\"{% endset %}{{ x }}", "refused"),
    ("{% filter upper %}<a href=\"{{ v }}\">{{ v }}</a>{% endfilter %}", "Url(Whole) Text"),
    // Macros and calls.
    (
        "{% macro m(a) %}<a href=\"{{ a }}\">{{ a }}</a>{% endmacro %}<p>{{ m(v) }}</p>",
        "Url(Whole) Text",
    ),
    ("{% macro m(a) %}{{ a }}{% endmacro %}<p title=\"{{ m(v) }}\">", "Text"),
    (
        "{% macro m() %}<p title=\"{{ caller() }}\">{% endmacro %}{% call m() %}{{ v }}{% endcall %}",
        "Text",
    ),
    ("{% macro m(a) %}<a title=\"{{ a }}\"{% endmacro %}{{ m(v) }}", "refused"),
    ("<script>{% macro m(a) %}<i>{{ a }}</i>{% endmacro %}x = {{ m(v) }}</script>", "Text"),
    // Includes and blocks.
    ("{% include 'link' %}{{ v }}", "Url(Whole) Text"),
    (
        "<a title=\"{% include 'value' %}\"><script>x = {% include 'value' %}</script>",
        "Attribute Script",
    ),
    ("<p {% include 'attributes' %}>{{ v }}</p>", "Attribute Url(Whole) Text"),
    ("{% extends 'base' %}{% block title %}{{ v }}{% endblock %}", "RawText Text"),
    ("{% autoescape false %}{{ v }}{% endautoescape %}", "refused"),
];

const INCLUDED_TEMPLATES: [(&str, &str); 4] = [
    ("/link", "<a href=\"{{ v }}\">x</a>"),
    ("/value", "{{ v }}"),
    ("/attributes", "class=\"{{ v }}\" data-src=\"{{ v }}\""),
    ("/base", "<title>{% block title %}{% endblock %}</title>{{ v }}"),
];

type RecordedEscapes = Arc<Mutex<Vec<String>>>;

fn mark_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::Html);
    environment.set_path_join_callback(|name, parent| resolve_template_name(name, parent).into());
    environment
}

fn is_mark(value: &Value) -> bool {
    value.as_str() == Some(OUTPUT_MARK) && !value.is_safe()
}

fn record_escape(escapes: &RecordedEscapes, escape: Result<OutputEscape, &str>) {
    escapes.lock().push(escape.map_or("refused".to_owned(), |escape| format!("{escape:?}")));
}

/// Returns the result of the static pass.
fn escapes_by_pass(template: &str) -> String {
    let mut scripts: BTreeMap<String, String> = BTreeMap::new();
    scripts.extend(INCLUDED_TEMPLATES.map(|(name, text)| (name.to_owned(), text.to_owned())));
    scripts.insert("/t".to_owned(), template.to_owned());
    let mut environment = mark_environment();
    let escapes = RecordedEscapes::default();
    for escape in OutputEscape::ALL_FILTERED {
        let escapes = Arc::clone(&escapes);
        environment.add_filter(escape.filter_name(), move |value: &Value| {
            if is_mark(value) {
                record_escape(&escapes, Ok(escape));
            }
            Value::from_safe_string(value.to_string())
        });
    }
    let formatted = Arc::clone(&escapes);
    environment.set_formatter(move |out, _, value| {
        if is_mark(value) {
            record_escape(&formatted, Ok(OutputEscape::Text));
        }
        Ok(write!(out, "{value}")?)
    });
    for (name, analysis) in analyze_templates(&scripts) {
        match analysis {
            Ok(rewritten) => environment.add_template_owned(name, rewritten.compiled_text).unwrap(),
            Err(_) if name == "/t" => return "refused".to_owned(),
            Err(_) => {}
        }
    }
    let context = Value::from_pairs([("v", OUTPUT_MARK)]);
    environment.get_template("/t").unwrap().render(context).unwrap();
    escapes.lock().join(" ")
}

/// Tracks the written output.
struct EscapeContextSink(Arc<Mutex<EscapeContext>>);

impl io::Write for EscapeContextSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        bytes.iter().for_each(|byte| self.0.lock().read_byte(*byte));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the result of a tracker that reads the written output and is queried when a value is formatted.
fn escapes_by_sink(template: &str) -> String {
    let mut environment = mark_environment();
    let (escapes, context) =
        (RecordedEscapes::default(), Arc::new(Mutex::new(EscapeContext::html())));
    let (formatted, tracked) = (Arc::clone(&escapes), Arc::clone(&context));
    environment.set_formatter(move |out, _, value| {
        if is_mark(value) {
            record_escape(&formatted, tracked.lock().clone().apply_output());
        }
        Ok(write!(out, "{value}")?)
    });
    for (name, text) in INCLUDED_TEMPLATES {
        environment.add_template(name, text).unwrap();
    }
    environment.add_template_owned("/t", template.to_owned()).unwrap();
    let values = Value::from_pairs([("v", OUTPUT_MARK)]);
    let rendered = environment
        .get_template("/t")
        .unwrap()
        .render_captured_to(values, EscapeContextSink(context));
    drop(rendered);
    escapes.lock().join(" ")
}

#[test]
fn the_pass_is_right_where_a_tracker_at_the_sink_is_wrong() {
    let (mut by_sink_wrong, mut without_wrong, mut refused) = (Vec::new(), 0, 0);
    for (template, expected) in TEMPLATE_ESCAPES {
        assert_eq!(escapes_by_pass(template), expected, "{template}");
        refused += usize::from(expected == "refused");
        without_wrong += usize::from(expected.split(' ').any(|escape| escape != "Text"));
        let sink = escapes_by_sink(template);
        // It would refuse at the output, while a page is rendered.
        let refuses = sink.contains("refused") && expected == "refused";
        if sink != expected && !refuses {
            by_sink_wrong.push(template);
        }
    }
    // The figures of docs/decisions/0006. In captures and macros the sink is wrong; elsewhere it differs because it
    // sees only one branch, or a template that ends at the wrong position.
    let is_capture = |template: &&&str| {
        ["{% set", "{% macro", "{% filter"].iter().any(|tag| template.contains(tag))
    };
    let in_captures = by_sink_wrong.iter().filter(is_capture).count();
    assert_eq!((by_sink_wrong.len(), in_captures), (14, 8), "{by_sink_wrong:#?}");
    assert_eq!((without_wrong, refused), (40, 12));
}
