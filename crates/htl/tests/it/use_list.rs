//! The statements `data-sly-use` of scripts, and what scripts read from their objects.

use tympan_htl::HtlScript;

#[track_caller]
fn check(source: &str, expected: &[&str]) {
    let script = HtlScript::compile("a.html", source).unwrap();
    let uses = script.uses().into_iter().map(|found| {
        let members: Vec<&str> = found.members.iter().map(String::as_str).collect();
        let passed_on = if found.is_passed_on { " and more" } else { "" };
        format!(
            "{} {}={}: {}{passed_on}",
            found.place.line,
            found.identifier,
            found.target.unwrap_or_else(|| "?".to_owned()),
            members.join(" ")
        )
    });
    assert_eq!(uses.collect::<Vec<_>>(), expected, "{source}");
}

#[test]
fn members_of_the_identifier_are_listed() {
    check(
        "<p data-sly-use.hero=\"com.shop.Hero\">${hero.title} ${hero['link'].url @ context=hero.context}</p>",
        &["1 hero=com.shop.Hero: context link.url title"],
    );
    check(
        "<p data-sly-use=\"${'com.shop.A' @ b=1}\">${useBean.c}</p>",
        &["1 usebean=com.shop.A: c"],
    );
    check("<p data-sly-use.a=\"${properties.b}\">${a.c}</p>", &["1 a=?: c"]);
    check("<p>${a.b}</p>", &[]);
    check(
        "<sly data-sly-use.A=\"x.A\"/>\n<sly data-sly-use.b=\"x.B\"/><a href=\"${a.x}-${b.y}\" id=\"${!a.z}\"></a>",
        &["1 a=x.A: x z", "2 b=x.B: y"],
    );
}

#[test]
fn members_are_followed_through_variables_and_loops() {
    check(
        "<sly data-sly-use.m=\"x.M\" data-sly-set.image=\"${m.image}\"/><img src=\"${image.src}\"/>\
         <li data-sly-list.entry=\"${m.entries}\">${entry.title}${entry.tags[0].name}</li>",
        &["1 m=x.M: entries entries[].tags[].name entries[].title image image.src"],
    );
}

#[test]
fn objects_for_templates_are_marked() {
    check(
        "<sly data-sly-use.m=\"x.M\" data-sly-use.t=\"t.html\" data-sly-call=\"${t.show @ model=m}\"/>",
        &["1 m=x.M:  and more", "1 t=t.html: show"],
    );
    // A template has variables of its own.
    check(
        "<sly data-sly-use.m=\"x.M\"/><template data-sly-template.t=\"${@ n}\">${m.a}${n.b}</template>",
        &["1 m=x.M: "],
    );
}
