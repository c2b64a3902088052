//! Components of a page alone, beside the page.

use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_tools::component_profile::ComponentProfileOptions;
use tympan_lab_tools::isolated_component;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

const PROFILE: &str = "<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n\
    9000 1000 1 41 0  /apps/page.html.j2 /content/en/jcr:content\n\
    5000 5000 2 31 2    /apps/nav.html.j2 /content/en/jcr:content/nav\n\
    1000 1000 1  3 0      /apps/link.html.j2 /content/en/jcr:content/nav/link\n\
    3000 3000 1  3 0    /apps/gone.html.j2 /content/en/jcr:content/gone\n\
    hit=0 -->\n";

fn profile(url: String, login: Option<&str>) -> ComponentProfileOptions {
    ComponentProfileOptions {
        url,
        headers: Vec::new(),
        authorization: login.map(RequestAuthorization::basic),
        request_count: 3,
    }
}

#[test]
fn each_component_is_drawn_alone_and_held_against_the_page() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/content/en.html?tympan-profile=1" => OriginResponse::html(PROFILE),
        "/content/en.html?_flex=nocache" => {
            OriginResponse::html("x").with_header("Server-Timing", "render;dur=9")
        }
        "/content/en/_jcr_content/nav.html?_flex=nocache" => {
            OriginResponse::html("x").with_header("Server-Timing", "render;dur=6")
        }
        _ => OriginResponse::with_status(404),
    });
    let url = format!("http://{}/content/en.html", origin.addr());
    let sheet =
        isolated_component::measure_components_alone(&profile(url, Some("admin:x"))).unwrap();
    let text = sheet.to_plain_text();
    assert!(
        text.contains(
            "the page takes 9.00 ms, its components requested alone 12 ms in total: 3.00 ms more"
        ),
        "{text}"
    );
    assert!(text.contains("by the server's clock"), "{text}");
    // What the page itself includes: the link is the navigation's.
    let components = sheet.json_result["components"].as_array().unwrap();
    assert_eq!(components.len(), 2, "{}", sheet.json_result);
    assert_eq!((&components[0]["alone_us"], &components[0]["calls"]), (&6000.into(), &2.into()));
    assert_eq!(components[1]["failure"], "status 404");
    assert!(sheet.is_doubtful(), "{text}");
    assert_eq!(origin.request_count_for("/content/en/_jcr_content/nav.html?_flex=nocache"), 3);
}

#[test]
fn a_page_that_names_no_components_is_refused() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("x").with_header("Server-Timing", "render;dur=9"),
    );
    let error = isolated_component::measure_components_alone(&profile(
        format!("http://{}/", origin.addr()),
        None,
    ))
    .unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("--login"), "{error}");
}
