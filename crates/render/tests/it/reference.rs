//! The reference of what templates can use tells the truth: each of its examples is drawn.

use tympan_render::RenderMode;

use crate::site::Site;

const REFERENCE: &str = include_str!("../../../../docs/reference/templates.md");

#[test]
fn examples_of_the_reference_draw_what_it_says() {
    let site = Site::sample(RenderMode::Publish);
    let mut drawn = 0;
    for part in REFERENCE.split("```jinja\n").skip(1) {
        let (template, rest) = part.split_once("\n```\n").unwrap();
        let expected = rest.strip_prefix("```html\n").and_then(|rest| rest.split_once("\n```"));
        let (expected, _) = expected.unwrap_or_else(|| panic!("no result of {template}"));
        assert_eq!(site.draw(template).trim(), expected, "{template}");
        drawn += 1;
    }
    assert!(drawn > 20);
}

#[test]
fn every_function_is_in_the_reference() {
    let source = include_str!("../../src/template/function.rs");
    let names = source.split("add_function(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    for name in names {
        assert!(REFERENCE.contains(&format!("`{name}(")), "`{name}` is missing in the reference");
    }
}
