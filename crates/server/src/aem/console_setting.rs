//! `/system/console/configMgr`: the settings that this program has under the PIDs of AEM's configurations.
//!
//! In: the forms of Felix's web console (`apply`, `propertylist`, `factoryPid`, `delete`). Out: its JSON and redirects.
//! Settings are stored as nodes of type `sling:OsgiConfig`, where packages store them, too. For administrators.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};
use tympan_jobs::{
    JobPriority, MAIN_QUEUE_PID, OsgiConfig, QUEUE_FACTORY, QueueConfig, TopicPattern,
};
use tympan_notation::escape_html;

use super::aem_request::{AemRequest, PendingAemResponse};
use super::console_page::{html_form, html_page, html_table};
use super::refusal::method_not_allowed;
use crate::api::job::JOB_ADMINISTRATION;
use crate::api::job::queue::{QUEUE_PROPERTIES, configuration_path, store_settings};
use crate::failure::{RequestFailure, Result};
use crate::write::sling_post::CREATE_ASSET_SERVLET_PID;

const ADDRESS: &str = "/system/console/configMgr";
const QUEUE_FACTORY_TITLE: &str = "Apache Sling Job Queue Configuration";
/// Stands for the PID of a configuration that is to be created.
const NEW_PID: &str = "[Temporary PID replaced by real PID upon save]";
/// The parameters of a form that are no properties.
const CONTROL_PARAMETERS: [&str; 8] = [
    "apply",
    "action",
    "propertylist",
    "factoryPid",
    "$location",
    "delete",
    ":cq_csrf_token",
    "_charset_",
];
/// Properties of Sling's queues that have no effect here; a form may contain them.
const IGNORED_QUEUE_PROPERTIES: [&str; 2] =
    ["queue.threadPoolSize", "queue.preferRunOnCreationInstance"];

/// The names of AEM's console for the properties of queues.
const PROPERTY_TITLES: [(&str, &str); 10] = [
    ("queue.name", "Name"),
    ("queue.topics", "Topics"),
    ("queue.type", "Type"),
    ("queue.priority", "Priority"),
    ("queue.retries", "Maximum Retries"),
    ("queue.retrydelay", "Retry Delay"),
    ("queue.maxparallel", "Maximum Parallel Jobs"),
    ("queue.keepJobs", "Keep History"),
    ("service.ranking", "Ranking"),
    ("scheduler.period", "Synchronization period"),
];

/// A setting besides the queues: its PID, title and only property.
struct SingleSetting {
    pid: &'static str,
    title: &'static str,
    property: &'static str,
    /// The value that applies without a configuration.
    default: &'static str,
}

const SINGLE_SETTINGS: [SingleSetting; 3] = [
    SingleSetting {
        pid: tympan_mounts::SYNCHRONIZATION_PIDS[0],
        title: "CQ DAM Asset Synchronization Service",
        property: "scheduler.period",
        default: "300",
    },
    SingleSetting {
        pid: tympan_mounts::SYNCHRONIZATION_PIDS[1],
        title: "CQ DAM Asset Synchronization Service (second spelling)",
        property: "scheduler.period",
        default: "300",
    },
    SingleSetting {
        pid: CREATE_ASSET_SERVLET_PID,
        title: "CQ DAM Create Asset",
        property: "detect_duplicate",
        default: "false",
    },
];

/// A configuration as the console shows it.
struct ShownSetting {
    pid: String,
    /// The PID of its factory, if it has one.
    factory: Option<&'static str>,
    title: String,
    /// The node or file that stores it.
    path: Option<String>,
    properties: Vec<ShownProperty>,
}

struct ShownProperty {
    name: &'static str,
    values: Vec<String>,
    is_list: bool,
    /// True if a configuration in content sets it.
    is_set: bool,
}

/// Shows settings, or changes one.
pub(super) fn serve_settings(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        request.instance.require_administrator(&request.viewer(), JOB_ADMINISTRATION)?;
        let pid = requested_pid(&request)?;
        if request.is_read() {
            return match pid {
                Some(pid) if request.path().ends_with(".json") => {
                    let pid = pid.strip_suffix(".json").unwrap_or(&pid);
                    let setting = find_setting(&request, pid)?;
                    Ok(Json(json!([setting_json(&setting)])).into_response())
                }
                Some(pid) => Ok(show_settings(&request, &[find_setting(&request, &pid)?])),
                None => {
                    let mut settings = vec![new_queue()];
                    settings.extend(list_settings(&request));
                    Ok(show_settings(&request, &settings))
                }
            };
        }
        request.require_post()?;
        let Some(pid) = pid else { return method_not_allowed("GET and HEAD; post to a PID") };
        if request.value("apply").is_none() {
            return Ok(Json(setting_json(&find_setting(&request, &pid)?)).into_response());
        }
        if request.value("delete").is_some() {
            return delete_setting(&request, &pid).await;
        }
        let pid = store_setting(&request, &pid).await?;
        let location = format!("{ADDRESS}/{pid}");
        Ok((StatusCode::FOUND, [(header::LOCATION, location)]).into_response())
    })
}

/// Returns the PID in the URL.
fn requested_pid(request: &AemRequest) -> Result<Option<String>> {
    let rest = request.path().strip_prefix(ADDRESS).and_then(|rest| rest.strip_prefix('/'));
    let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { return Ok(None) };
    let decoded = percent_encoding::percent_decode_str(rest).decode_utf8();
    let decoded = decoded.map_err(|_| RequestFailure::bad_request("the PID is not UTF-8"))?;
    Ok(Some(decoded.into_owned()))
}

fn list_settings(request: &AemRequest) -> Vec<ShownSetting> {
    let configurator = &request.instance.configurator;
    let configs = configurator.configs();
    let find_config = |pid: &str| configs.configs.iter().find(|config| config.pid == pid);
    let set = configurator.worker().queue_set();
    let queues = set.iter_configs().map(|queue| shown_queue(queue, find_config(&queue.pid)));
    let singles = SINGLE_SETTINGS.iter().map(|setting| {
        let config = find_config(setting.pid);
        let stored = config.and_then(|config| config.properties.get(setting.property));
        let value = match stored {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => setting.default.to_owned(),
        };
        ShownSetting {
            pid: setting.pid.to_owned(),
            factory: None,
            title: setting.title.to_owned(),
            path: config.map(|config| config.path.clone()),
            properties: vec![ShownProperty {
                name: setting.property,
                values: vec![value],
                is_list: false,
                is_set: stored.is_some(),
            }],
        }
    });
    queues.chain(singles).collect()
}

fn shown_queue(queue: &QueueConfig, config: Option<&OsgiConfig>) -> ShownSetting {
    let property = |name: &'static str| {
        let values = match name {
            "queue.name" => vec![queue.name.clone()],
            "queue.topics" => {
                queue.topics.iter().map(TopicPattern::text).map(str::to_owned).collect()
            }
            "queue.type" => vec![queue.kind.name().to_owned()],
            "queue.maxparallel" => vec![queue.max_parallel.to_number().to_string()],
            "queue.retries" => vec![queue.retries.map_or(-1, i64::from).to_string()],
            "queue.retrydelay" => vec![queue.retry_delay.as_millis().to_string()],
            "queue.priority" => vec![
                match queue.priority {
                    JobPriority::Low => "MIN",
                    JobPriority::Normal => "NORM",
                    JobPriority::High => "MAX",
                }
                .to_owned(),
            ],
            "queue.keepJobs" => vec![queue.keeps_finished_jobs.to_string()],
            _ => vec![queue.ranking.to_string()],
        };
        let is_set = config.is_some_and(|config| config.properties.contains_key(name));
        ShownProperty { name, values, is_list: name == "queue.topics", is_set }
    };
    ShownSetting {
        pid: queue.pid.clone(),
        factory: (queue.pid != MAIN_QUEUE_PID).then_some(QUEUE_FACTORY),
        title: format!("{QUEUE_FACTORY_TITLE}: {}", queue.name),
        path: queue.path.clone(),
        properties: QUEUE_PROPERTIES.iter().copied().map(property).collect(),
    }
}

/// Returns a new queue with its defaults.
fn new_queue() -> ShownSetting {
    let queue = QueueConfig { pid: NEW_PID.to_owned(), ..QueueConfig::new("", &[]) };
    ShownSetting { title: QUEUE_FACTORY_TITLE.to_owned(), ..shown_queue(&queue, None) }
}

/// Finds a setting by its PID; the PID of the factory of queues stands for a new queue.
fn find_setting(request: &AemRequest, pid: &str) -> Result<ShownSetting> {
    if pid == QUEUE_FACTORY || pid == NEW_PID {
        return Ok(new_queue());
    }
    let setting = list_settings(request).into_iter().find(|setting| setting.pid == pid);
    setting.ok_or_else(|| unknown_setting(pid))
}

fn unknown_setting(pid: &str) -> RequestFailure {
    let pid: String = pid.chars().take(200).collect();
    let message = format!("there is no setting `{pid}`; `{ADDRESS}` lists those that exist");
    RequestFailure::new(StatusCode::NOT_FOUND, message)
}

fn setting_json(setting: &ShownSetting) -> Value {
    let properties = setting.properties.iter().map(|property| {
        let mut members = Map::new();
        members.insert("name".to_owned(), property.name.into());
        members.insert("is_set".to_owned(), property.is_set.into());
        members.insert("type".to_owned(), 1.into());
        match property.is_list {
            true => members.insert("values".to_owned(), property.values.clone().into()),
            false => members.insert("value".to_owned(), property.values.concat().into()),
        };
        (property.name.to_owned(), Value::from(members))
    });
    let mut members = Map::new();
    members.insert("pid".to_owned(), setting.pid.clone().into());
    members.insert("title".to_owned(), setting.title.clone().into());
    members.insert("properties".to_owned(), properties.collect::<Map<_, _>>().into());
    if let Some(factory) = setting.factory {
        members.insert("factoryPid".to_owned(), factory.into());
    }
    // Clients take this member as the sign that a configuration is stored.
    if setting.path.is_some() {
        members.insert("bundle_location".to_owned(), "".into());
    }
    members.into()
}

/// Shows settings with a form for each, and the list of them as clients of Felix's console read it.
fn show_settings(request: &AemRequest, settings: &[ShownSetting]) -> Response {
    let csrf = request.identity.csrf_token.as_deref();
    let existing = settings.iter().filter(|setting| setting.pid != NEW_PID);
    let pids = existing.map(|setting| {
        let mut members = json!({
            "id": setting.pid, "name": setting.title, "has_config": setting.path.is_some(),
        });
        if let (Some(factory), Some(members)) = (setting.factory, members.as_object_mut()) {
            members.insert("fpid".to_owned(), factory.into());
        }
        members
    });
    let data = json!({
        "status": true,
        "pids": pids.collect::<Vec<_>>(),
        "factories": [{ "id": QUEUE_FACTORY, "name": QUEUE_FACTORY_TITLE }],
    });
    // A text cannot end the element.
    let data = data.to_string().replace('<', "\\u003c");
    let mut body = format!("<script type=\"text/plain\">configData = {data};\n</script>\n");
    for setting in settings {
        let (title, button) = match setting.pid == NEW_PID {
            true => (format!("New: {}", setting.title), "Create"),
            false => (setting.title.clone(), "Save"),
        };
        let rows: Vec<Vec<String>> = setting.properties.iter().map(property_row).collect();
        let names: Vec<&str> = setting.properties.iter().map(|property| property.name).collect();
        let names = names.join(",");
        let controls =
            format!("{}<button>{button}</button>", html_table(&["Property", "Value"], &rows));
        let hidden = [
            ("apply", "true"),
            ("action", "ajaxConfigManager"),
            ("factoryPid", setting.factory.unwrap_or_default()),
            ("propertylist", &names),
        ];
        let encoded =
            percent_encoding::utf8_percent_encode(&setting.pid, percent_encoding::NON_ALPHANUMERIC);
        let form = html_form(&format!("{ADDRESS}/{encoded}"), csrf, &hidden, &controls);
        let stored = setting.path.as_deref().unwrap_or("not stored: these are the defaults");
        body.push_str(&format!(
            "<h2>{}</h2>\n<p>{}<br>{}</p>\n{form}\n",
            escape_html(&title),
            escape_html(&setting.pid),
            escape_html(stored)
        ));
    }
    html_page("Configuration", &body)
}

/// Returns the row with the input of a property; a list has one input for each value and an empty one.
fn property_row(property: &ShownProperty) -> Vec<String> {
    let more = property.is_list.then(String::new);
    let inputs = property.values.iter().chain(&more).map(|value| {
        format!(
            "<input type=\"text\" name=\"{}\" value=\"{}\">",
            escape_html(property.name),
            escape_html(value)
        )
    });
    let title = PROPERTY_TITLES.iter().find(|(name, _)| *name == property.name);
    let title = title.map(|(_, title)| format!("{title}<br>")).unwrap_or_default();
    let name = format!("{title}<code>{}</code>", escape_html(property.name));
    vec![name, inputs.collect::<Vec<_>>().join("<br>")]
}

/// Stores the properties of a form, and returns the PID.
async fn store_setting(request: &AemRequest, pid: &str) -> Result<String> {
    let is_new = pid.starts_with('[') || pid == QUEUE_FACTORY;
    let factory = request.value("factoryPid");
    if is_new && factory.unwrap_or(pid) != QUEUE_FACTORY {
        return Err(unknown_setting(factory.unwrap_or(pid)));
    }
    let names = property_names(request);
    if is_new || pid.starts_with(QUEUE_FACTORY) || pid == MAIN_QUEUE_PID {
        return store_queue(request, (!is_new).then_some(pid), &names).await;
    }
    let setting = SINGLE_SETTINGS.iter().find(|setting| setting.pid == pid);
    let setting = setting.ok_or_else(|| unknown_setting(pid))?;
    if let Some(other) = names.iter().find(|name| **name != setting.property) {
        let other: String = other.chars().take(100).collect();
        let message = format!("`{other}` is not a property of `{pid}`; use `{}`", setting.property);
        return Err(RequestFailure::unprocessable(message));
    }
    let value = request.required(setting.property)?.trim();
    let value = match (setting.default, value.parse::<u64>()) {
        ("false", _) if matches!(value, "true" | "false") => Value::from(value == "true"),
        ("300", Ok(seconds)) if seconds > 0 => Value::from(value),
        (default, _) => {
            let kind = if default == "false" { "true or false" } else { "a number of seconds" };
            let message = format!("`{}` must be {kind}", setting.property);
            return Err(RequestFailure::unprocessable(message));
        }
    };
    let stored = find_setting(request, pid)?.path;
    let path = match stored {
        Some(path) if is_file(&path) => return Err(file_failure(&path)),
        Some(path) => path,
        None => configuration_path(pid),
    };
    let settings = vec![(setting.property.to_owned(), value)];
    store_settings((&request.instance, &request.viewer()), path, settings).await?;
    Ok(pid.to_owned())
}

/// Returns the names of the properties of a form: those of `propertylist`, or all parameters that are no controls.
fn property_names(request: &AemRequest) -> Vec<&str> {
    let list = request.value("propertylist");
    let mut names: Vec<&str> = match list {
        Some(list) => list.split(',').map(str::trim).collect(),
        None => request.parameters().map(|(name, _)| name).collect(),
    };
    names.retain(|name| !name.is_empty() && !CONTROL_PARAMETERS.contains(name));
    names.sort_unstable();
    names.dedup();
    names
}

/// Creates or changes a queue with the endpoints for queues.
async fn store_queue(request: &AemRequest, pid: Option<&str>, names: &[&str]) -> Result<String> {
    let set = request.instance.configurator.worker().queue_set();
    let stored = pid.and_then(|pid| set.iter_configs().find(|queue| queue.pid == pid));
    let mut settings = Vec::new();
    for name in names.iter().filter(|name| !IGNORED_QUEUE_PROPERTIES.contains(name)) {
        let values: Vec<&str> = request.values(name).collect();
        // An empty input leaves the property as it is.
        if !values.is_empty() && (stored.is_some() || *name != "queue.topics") {
            settings.push(format!("{name}={}", values.join(",")));
        }
    }
    let settings = settings.iter().map(|setting| ("set", setting.as_str()));
    match stored {
        Some(queue) => {
            let mut parameters = vec![("queue", queue.name.as_str())];
            parameters.extend(settings);
            request.call("setJobQueue", &parameters, &Value::Null).await?;
            Ok(queue.pid.clone())
        }
        None => {
            let mut parameters = vec![("name", request.required("queue.name")?)];
            request.required("queue.topics")?;
            parameters.extend(request.values("queue.topics").map(|topic| ("topic", topic)));
            parameters.extend(pid.map(|pid| ("pid", pid)));
            parameters.extend(settings.filter(|(_, setting)| !setting.starts_with("queue.name=")));
            let created = &request.call("addJobQueue", &parameters, &Value::Null).await?;
            Ok(created["pid"].as_str().unwrap_or_default().to_owned())
        }
    }
}

/// Removes a stored configuration, so that the defaults apply.
async fn delete_setting(request: &AemRequest, pid: &str) -> Result<Response> {
    let setting = find_setting(request, pid)?;
    let Some(path) = setting.path else {
        let message = format!("`{pid}` has no stored configuration; its defaults apply");
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
    };
    if is_file(&path) {
        return Err(file_failure(&path));
    }
    request.call("deleteNode", &[("path", &path)], &Value::Null).await?;
    request
        .instance
        .run_work(|instance| {
            instance.configurator.refresh_configs()?;
            Ok(())
        })
        .await?;
    Ok(Json(json!({ "status": true })).into_response())
}

fn is_file(path: &str) -> bool {
    path.ends_with(".config") || path.ends_with(".json")
}

fn file_failure(path: &str) -> RequestFailure {
    let message = format!("the setting is in the file `{path}`; change it there");
    RequestFailure::new(StatusCode::CONFLICT, message)
}
