//! AEM's Assets HTTP API (`/api/assets`): folders, assets, metadata and renditions below `/content/dam`.
//!
//! In: GET, POST, PUT, DELETE, COPY and MOVE, with JSON, forms or bytes. Out: Siren JSON. Uploads are stored as by
//! Sling's `createasset`; everything else is a batch of the JSON API.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;
use tympan_content::{JCR_CONTENT, NodePath, Snapshot};
use tympan_web::body_limit::limit_body;

use super::aem_request::{authenticate, complete_response, read_content};
use super::asset_siren::{
    ASSETS_ADDRESS, ASSETS_FOLDER, EntityClass, EntityRange, entity_class, entity_response,
    rendition_response, write_response,
};
use super::refusal::not_implemented;
use crate::Instance;
use crate::api::{MAX_JSON_BYTES, WriteCondition, call_endpoint};
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_csrf_token};
use crate::observe::metrics::increment;
use crate::write::form::{FormField, FormFieldValue, FormUpload, parse_urlencoded_form, read_form};
use crate::write::incoming_blob::spool_body;
use crate::write::resource_put::store_put_file;
use crate::write::sling_post::{PostFields, run_post_operation};

/// The folder of an asset's renditions.
const RENDITIONS: &str = "jcr:content/renditions";

/// A request to the API, whose user is known.
struct AssetApiRequest {
    instance: Arc<Instance>,
    identity: RequestIdentity,
    parts: Parts,
    target: AssetTarget,
}

/// What a URL of the API names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AssetTarget {
    /// A folder or an asset.
    Entity(NodePath),
    /// A new entity in a folder, whose name is in the body: `/*`.
    NewEntity(NodePath),
    /// A rendition of an asset; its name is in the body if it is `None`.
    Rendition { asset: NodePath, name: Option<String> },
    /// A comment of an asset, which this program does not have.
    Comment,
}

impl AssetTarget {
    /// Parses the path of a URL.
    fn parse(address: &str) -> Result<Self> {
        let decoded = percent_encoding::percent_decode_str(address)
            .decode_utf8()
            .map_err(|_| RequestFailure::bad_request("the path is not UTF-8"))?;
        let rest = decoded.strip_prefix(ASSETS_ADDRESS).unwrap_or_default();
        let rest = rest.strip_suffix(".json").unwrap_or(rest);
        let named = |rest: &str| NodePath::new(&format!("{ASSETS_FOLDER}{rest}"));
        if rest.contains("/comments/") || rest.ends_with("/comments") {
            return Ok(Self::Comment);
        }
        Ok(match rest.rsplit_once("/renditions/") {
            Some((asset, name)) if !name.contains('/') => Self::Rendition {
                asset: named(asset)?,
                name: Some(name).filter(|name| *name != "*").map(str::to_owned),
            },
            _ => match rest.strip_suffix("/*") {
                Some(folder) => Self::NewEntity(named(folder)?),
                None => Self::Entity(named(rest.trim_end_matches('/'))?),
            },
        })
    }

    /// Returns the path of a new entity; `None` for a rendition.
    fn created_path(&self, name: Option<&str>) -> Result<Option<NodePath>> {
        Ok(match self {
            Self::Entity(path) => Some(path.clone()),
            Self::NewEntity(folder) => Some(folder.child(name.ok_or_else(missing_name)?)?),
            Self::Rendition { .. } | Self::Comment => None,
        })
    }

    /// Returns the path of an existing entity or rendition.
    ///
    /// # Errors
    /// If the URL stands for something new.
    fn existing_path(&self) -> Result<NodePath> {
        match self {
            Self::Entity(path) => Ok(path.clone()),
            Self::Rendition { asset, name: Some(name) } => {
                Ok(asset.resolve(RENDITIONS)?.child(name)?)
            }
            Self::NewEntity(_) | Self::Rendition { name: None, .. } | Self::Comment => {
                Err(RequestFailure::bad_request("`*` stands for something new; use POST"))
            }
        }
    }
}

fn missing_name() -> RequestFailure {
    RequestFailure::bad_request("the name is missing; send `name`")
}

/// Handles a request to the API.
pub(super) async fn serve_assets(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let (identity, is_token_missing) = match authenticate(&instance, &parts).await {
        Ok(authenticated) => authenticated,
        Err(failure) => return failure.into_response(),
    };
    let result = async {
        let is_form = parts.method == Method::POST && is_form(&parts.headers);
        // A form contains the token as a field; other bodies have none.
        if is_token_missing && !is_form {
            check_csrf_token(&identity, None)?;
        }
        let target = AssetTarget::parse(parts.uri.path())?;
        let request = AssetApiRequest {
            instance: Arc::clone(&instance),
            identity: identity.clone(),
            parts,
            target,
        };
        request.handle(body, is_token_missing).await
    };
    let result = result.await;
    complete_response(result, identity)
}

fn media_type(headers: &HeaderMap) -> &str {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

fn is_form(headers: &HeaderMap) -> bool {
    matches!(media_type(headers), "" | "multipart/form-data" | "application/x-www-form-urlencoded")
}

fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).eq_ignore_ascii_case("application/json")
}

/// An entity in a JSON body.
#[derive(Debug, Deserialize)]
struct SubmittedEntity {
    #[serde(default)]
    class: Value,
    #[serde(default)]
    properties: Map<String, Value>,
}

impl SubmittedEntity {
    /// Returns true if one of its classes has this name.
    fn is_of_class(&self, name: &str) -> bool {
        match &self.class {
            Value::String(class) => class.ends_with(name),
            Value::Array(classes) => {
                classes.iter().filter_map(Value::as_str).any(|class| class.ends_with(name))
            }
            _ => false,
        }
    }
}

/// The fields of a form that creates something.
struct CreationForm {
    name: Option<String>,
    title: Option<String>,
    upload: Option<FormUpload>,
}

impl AssetApiRequest {
    async fn handle(self, body: Body, is_token_missing: bool) -> Result<Response> {
        match (self.parts.method.as_str(), &self.target) {
            (_, AssetTarget::Comment) => not_implemented("comments of assets are not supported"),
            ("GET" | "HEAD", _) => self.read().await,
            ("POST", _) => self.create(body, is_token_missing).await,
            ("PUT", _) => self.update(body).await,
            ("DELETE", _) => self.delete().await,
            ("COPY", _) => self.relocate("copy").await,
            ("MOVE", _) => self.relocate("move").await,
            _ => super::refusal::method_not_allowed("GET, HEAD, POST, PUT, DELETE, COPY and MOVE"),
        }
    }

    async fn read_content<T, F>(&self, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Snapshot) -> Result<T> + Send + 'static,
    {
        read_content((&self.instance, &self.identity), read).await
    }

    async fn run_batch(&self, operations: &[Value]) -> Result<()> {
        let body = json!({ "operations": operations });
        call_endpoint((&self.instance, &self.identity), "batch", &[], &body).await.map(drop)
    }

    async fn read(self) -> Result<Response> {
        let query = self.parts.uri.query().unwrap_or_default().as_bytes().to_vec();
        let fields = parse_urlencoded_form(&query.into())?;
        let text = |name: &str| {
            let field = fields.iter().find(|field| field.name == name);
            field.and_then(|field| match &field.value {
                FormFieldValue::Text(text) => Some(text.as_str()),
                FormFieldValue::File(_) => None,
            })
        };
        let range = EntityRange::parse(text("offset"), text("limit"))?;
        let target = self.target.clone();
        let describe = move |snapshot: &Snapshot| {
            let path = target.existing_path()?;
            let node = snapshot.node(&path)?;
            let node = node.ok_or_else(|| RequestFailure::not_found(path.as_str()))?;
            match target {
                AssetTarget::Entity(_) => entity_response(&node, range),
                _ => Ok(rendition_response(&node)),
            }
        };
        self.read_content(describe).await
    }

    /// POST: creates a folder, an asset or a rendition.
    async fn create(self, body: Body, is_token_missing: bool) -> Result<Response> {
        if is_json(&self.parts.headers) {
            let entity = read_entity(body).await?;
            if !entity.is_of_class("assetFolder") && !entity.is_of_class("assets/folder") {
                let message = "JSON creates folders: send `\"class\": \"assetFolder\"`";
                return Err(RequestFailure::bad_request(message));
            }
            let text = |name: &str| entity.properties.get(name).and_then(Value::as_str);
            let title = text("title").or(text("dc:title")).or(text("jcr:title"));
            let path = self.target.created_path(text("name"))?;
            let path = path.ok_or_else(|| {
                RequestFailure::bad_request("a rendition is sent as bytes or as a form")
            })?;
            return self.create_folder(&path, title).await;
        }
        if !is_form(&self.parts.headers) {
            let AssetTarget::Rendition { asset, name: Some(name) } = &self.target else {
                let message = "send an asset as a form with the field `file`";
                return Err(RequestFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
            };
            let file = spool_body(&self.instance.spool_folder, body).await?;
            return self.store_rendition(asset, name, file, None, RenditionRule::MustBeNew).await;
        }
        let form = read_form(&self.parts.headers, body, &self.instance.spool_folder).await?;
        let CreationForm { name, title, upload } = self.creation_form(form, is_token_missing)?;
        match (&self.target, upload) {
            (AssetTarget::Rendition { asset, name: own }, Some(upload)) => {
                let FormUpload { file, name: file_name, media_type } = upload;
                let name = own.clone().or(name).unwrap_or(file_name);
                let rule = RenditionRule::MustBeNew;
                self.store_rendition(asset, &name, file, media_type, rule).await
            }
            (target, Some(upload)) => {
                let name = name.unwrap_or_else(|| upload.name.clone());
                let path = target.created_path(Some(&name))?.ok_or_else(missing_name)?;
                self.create_asset(path, upload).await
            }
            (target, None) => {
                let path = target.created_path(name.as_deref())?;
                let missing = || RequestFailure::bad_request("the field `file` is missing");
                self.create_folder(&path.ok_or_else(missing)?, title.as_deref()).await
            }
        }
    }

    fn creation_form(
        &self,
        fields: Vec<FormField>,
        is_token_missing: bool,
    ) -> Result<CreationForm> {
        let (mut form, mut token) = (CreationForm { name: None, title: None, upload: None }, None);
        for FormField { name, value } in fields {
            match (name.as_str(), value) {
                ("name", FormFieldValue::Text(text)) => form.name = Some(text),
                ("title", FormFieldValue::Text(text)) => form.title = Some(text),
                (":cq_csrf_token", FormFieldValue::Text(text)) => token = Some(text),
                (_, FormFieldValue::File(upload)) => form.upload = Some(upload),
                _ => {}
            }
        }
        if is_token_missing {
            check_csrf_token(&self.identity, token.as_deref())?;
        }
        Ok(form)
    }

    /// Refuses a new entity if its folder is missing, or if there is something at its path.
    async fn check_new(&self, path: &NodePath) -> Result<()> {
        let path = path.clone();
        let check = move |snapshot: &Snapshot| {
            require_folder(snapshot, &path.parent().unwrap_or_else(NodePath::root))?;
            match snapshot.node(&path)? {
                Some(_) => Err(taken_path(StatusCode::CONFLICT, &path)),
                None => Ok(()),
            }
        };
        self.read_content(check).await
    }

    async fn create_folder(&self, path: &NodePath, title: Option<&str>) -> Result<Response> {
        self.check_new(path).await?;
        let mut node = json!({ "type": "sling:Folder" });
        if let (Some(title), Some(members)) = (title, node.as_object_mut()) {
            let properties = json!({ "jcr:title": title });
            let content = json!({ "type": "nt:unstructured", "properties": properties });
            members.insert("children".to_owned(), json!({ "jcr:content": content }));
        }
        let put = json!({
            "op": "put", "path": path.as_str(), "node": node, "ifNoneMatch": "*",
        });
        self.run_batch(&[put]).await?;
        Ok(write_response(StatusCode::CREATED, path))
    }

    async fn create_asset(&self, path: NodePath, upload: FormUpload) -> Result<Response> {
        self.check_new(&path).await?;
        let viewer = self.identity.viewer();
        let folder = path.parent().unwrap_or_else(NodePath::root);
        let upload = FormUpload { name: path.name().to_owned(), ..upload };
        let field = FormField { name: "file".to_owned(), value: FormFieldValue::File(upload) };
        let work = move |instance: &Instance| {
            let fields = PostFields::from_form_fields(vec![field]);
            let none = WriteCondition::None;
            run_post_operation(instance, "createasset", folder.as_str(), &fields, &viewer, &none)
        };
        self.instance.run_work(work).await?;
        increment(&self.instance.metrics.commits);
        Ok(write_response(StatusCode::CREATED, &path))
    }

    async fn store_rendition(
        &self,
        asset: &NodePath,
        name: &str,
        file: NamedTempFile,
        media_type: Option<String>,
        rule: RenditionRule,
    ) -> Result<Response> {
        let path = asset.resolve(RENDITIONS)?.child(name)?;
        let (asset, checked_path) = (asset.clone(), path.clone());
        let check = move |snapshot: &Snapshot| {
            require_asset(snapshot, &asset)?;
            match (rule, snapshot.node(&checked_path)?.is_some()) {
                (RenditionRule::MustBeNew, true) => {
                    Err(taken_path(StatusCode::CONFLICT, &checked_path))
                }
                (RenditionRule::MustExist, false) => {
                    Err(RequestFailure::not_found(checked_path.as_str()))
                }
                (_, is_there) => Ok(is_there),
            }
        };
        let is_there = self.read_content(check).await?;
        self.store_bytes(path.clone(), file, media_type).await?;
        let status = if is_there { StatusCode::OK } else { StatusCode::CREATED };
        Ok(write_response(status, &path))
    }

    /// Stores bytes as a file, as a PUT to its path does.
    async fn store_bytes(
        &self,
        path: NodePath,
        file: NamedTempFile,
        media_type: Option<String>,
    ) -> Result<()> {
        let mut headers = HeaderMap::new();
        let sent = self.parts.headers.get(header::CONTENT_TYPE).cloned();
        let declared = media_type.and_then(|media_type| media_type.parse().ok());
        let is_bytes = !is_form(&self.parts.headers);
        if let Some(media_type) = declared.or(sent.filter(|_| is_bytes)) {
            headers.insert(header::CONTENT_TYPE, media_type);
        }
        let identity = self.identity.clone();
        self.instance
            .run_work(move |instance| store_put_file(instance, &path, &headers, (&identity, &file)))
            .await?;
        increment(&self.instance.metrics.commits);
        Ok(())
    }

    /// PUT: replaces the bytes of an asset or a rendition, or sets metadata.
    async fn update(self, body: Body) -> Result<Response> {
        match self.target.clone() {
            AssetTarget::Rendition { asset, name: Some(name) } => {
                let file = spool_body(&self.instance.spool_folder, body).await?;
                self.store_rendition(&asset, &name, file, None, RenditionRule::MustExist).await
            }
            AssetTarget::Entity(path) if is_json(&self.parts.headers) => {
                let entity = read_entity(body).await?;
                self.update_properties(&path, entity).await
            }
            AssetTarget::Entity(path) => {
                let asset = path.clone();
                self.read_content(move |snapshot| require_asset(snapshot, &asset)).await?;
                let file = spool_body(&self.instance.spool_folder, body).await?;
                let original = path.resolve(RENDITIONS)?.child("original")?;
                self.store_bytes(original, file, None).await?;
                Ok(write_response(StatusCode::OK, &path))
            }
            target => {
                target.existing_path().and_then(|_| super::refusal::method_not_allowed("POST"))
            }
        }
    }

    /// Sets metadata of an asset, or properties of a folder; null removes one.
    async fn update_properties(
        &self,
        path: &NodePath,
        entity: SubmittedEntity,
    ) -> Result<Response> {
        let entity_path = path.clone();
        let find_class = move |snapshot: &Snapshot| {
            let class = snapshot.node(&entity_path)?.as_ref().and_then(entity_class);
            class.ok_or_else(|| RequestFailure::not_found(entity_path.as_str()))
        };
        let class = self.read_content(find_class).await?;
        let mut properties = Map::new();
        for (name, value) in entity.properties {
            let name = match (class, name.as_str()) {
                (EntityClass::Folder, "title" | "dc:title") => "jcr:title".to_owned(),
                (EntityClass::Folder, "dc:description") => "jcr:description".to_owned(),
                // The name is the last segment of the path.
                (_, "name") => continue,
                _ => name,
            };
            let is_metadata = class == EntityClass::Asset && name == "metadata";
            match value {
                Value::Object(members) if is_metadata => properties.extend(members),
                value => drop(properties.insert(name, value)),
            }
        }
        let content = match class {
            EntityClass::Asset => {
                json!({ "children": { "metadata": { "properties": properties } } })
            }
            EntityClass::Folder => json!({ "properties": properties }),
        };
        let patch = json!({ "children": { JCR_CONTENT: content } });
        self.run_batch(&[json!({ "op": "patch", "path": path.as_str(), "patch": patch })]).await?;
        Ok(write_response(StatusCode::OK, path))
    }

    async fn delete(self) -> Result<Response> {
        let path = self.target.existing_path()?;
        if path.as_str() == ASSETS_FOLDER {
            let message = "the folder of all assets cannot be deleted";
            return Err(RequestFailure::new(StatusCode::FORBIDDEN, message));
        }
        self.run_batch(&[json!({ "op": "delete", "path": path.as_str() })]).await?;
        Ok(write_response(StatusCode::OK, &path))
    }

    /// COPY and MOVE: `X-Destination` names the new path, `X-Overwrite: F` keeps what is there, `X-Depth: 0` copies a
    /// folder without its children.
    async fn relocate(self, operation: &'static str) -> Result<Response> {
        let AssetTarget::Entity(from) = &self.target else {
            return not_implemented("only folders and assets are copied and moved");
        };
        let text = |name: &str| self.parts.headers.get(name).and_then(|value| value.to_str().ok());
        let missing = || {
            let message = "the header `X-Destination` is missing";
            RequestFailure::new(StatusCode::PRECONDITION_FAILED, message)
        };
        let destination = text("x-destination").ok_or_else(missing)?;
        // A complete URL is allowed, too.
        let destination = match destination.split_once("://") {
            Some((_, rest)) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default(),
            None => destination,
        };
        if !destination.starts_with(&format!("{ASSETS_ADDRESS}/")) {
            let message = format!("`X-Destination` must be below `{ASSETS_ADDRESS}`");
            return Err(RequestFailure::bad_request(message));
        }
        let AssetTarget::Entity(to) = AssetTarget::parse(destination)? else {
            return not_implemented("only folders and assets are copied and moved");
        };
        let is_replacing = !text("x-overwrite").is_some_and(|flag| flag.eq_ignore_ascii_case("f"));
        let relocation = AssetRelocation {
            operation,
            from: from.clone(),
            to: to.clone(),
            is_replacing,
            is_shallow: operation == "copy" && text("x-depth") == Some("0"),
        };
        let plan = move |snapshot: &Snapshot| relocation.operations(snapshot);
        let (operations, is_there) = self.read_content(plan).await?;
        self.run_batch(&operations).await?;
        let status = if is_there { StatusCode::NO_CONTENT } else { StatusCode::CREATED };
        match is_there {
            true => Ok(status.into_response()),
            false => Ok(write_response(status, &to)),
        }
    }
}

/// A copy or a move of a folder or an asset.
struct AssetRelocation {
    /// The name of the operation in the JSON API.
    operation: &'static str,
    from: NodePath,
    to: NodePath,
    /// True if something at the target is replaced.
    is_replacing: bool,
    /// True if a folder is copied without its children.
    is_shallow: bool,
}

impl AssetRelocation {
    /// Returns the operations, and whether something is at the target.
    fn operations(&self, snapshot: &Snapshot) -> Result<(Vec<Value>, bool)> {
        let Self { operation, from, to, is_replacing, is_shallow } = self;
        let node = snapshot.node(from)?;
        let node = node.ok_or_else(|| RequestFailure::not_found(from.as_str()))?;
        require_folder(snapshot, &to.parent().unwrap_or_else(NodePath::root))?;
        let is_there = snapshot.node(to)?.is_some();
        if is_there && !is_replacing {
            return Err(taken_path(StatusCode::PRECONDITION_FAILED, to));
        }
        if !is_shallow || entity_class(&node) != Some(EntityClass::Folder) {
            let whole = json!({
                "op": operation, "from": from.as_str(), "to": to.as_str(), "replace": is_replacing,
            });
            return Ok((vec![whole], is_there));
        }
        let folder = json!({ "type": node.primary_type() });
        let mut operations = vec![json!({ "op": "put", "path": to.as_str(), "node": folder })];
        if let Some(content) = node.child(JCR_CONTENT)? {
            let target = to.child(JCR_CONTENT)?;
            operations.push(json!({
                "op": "copy",
                "from": content.path().as_str(),
                "to": target.as_str(),
                "replace": true,
            }));
        }
        Ok((operations, is_there))
    }
}

/// Returns the failure for a path at which there is something already.
fn taken_path(status: StatusCode, path: &NodePath) -> RequestFailure {
    RequestFailure::new(status, format!("there is already something at `{path}`"))
}

/// Determines whether a rendition may exist before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenditionRule {
    MustBeNew,
    MustExist,
}

/// Refuses a write below a folder that is not there, with AEM's status.
fn require_folder(snapshot: &Snapshot, path: &NodePath) -> Result<()> {
    if snapshot.node(path)?.is_some() {
        return Ok(());
    }
    let message = format!("there is no folder at `{path}`");
    Err(RequestFailure::new(StatusCode::PRECONDITION_FAILED, message))
}

fn require_asset(snapshot: &Snapshot, path: &NodePath) -> Result<()> {
    let node = snapshot.node(path)?.ok_or_else(|| RequestFailure::not_found(path.as_str()))?;
    if entity_class(&node) == Some(EntityClass::Asset) {
        return Ok(());
    }
    let message = format!("`{path}` is not an asset");
    Err(RequestFailure::new(StatusCode::CONFLICT, message))
}

async fn read_entity(body: Body) -> Result<SubmittedEntity> {
    let collected = Body::new(limit_body(body, MAX_JSON_BYTES)).collect().await;
    let bytes = collected.map_err(|error| RequestFailure::unreadable_body(&error))?.to_bytes();
    serde_json::from_slice(&bytes)
        .map_err(|error| RequestFailure::bad_request(format!("invalid body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_folders_assets_and_renditions() {
        let check = |address: &str, expected: &str| {
            let target = match AssetTarget::parse(address) {
                Ok(AssetTarget::Entity(path)) => path.to_string(),
                Ok(AssetTarget::NewEntity(folder)) => format!("{folder} new"),
                Ok(AssetTarget::Rendition { asset, name }) => {
                    format!("{asset} {}", name.unwrap_or_default())
                }
                Ok(AssetTarget::Comment) => "comment".to_owned(),
                Err(failure) => failure.status.to_string(),
            };
            assert_eq!(target, expected, "{address}");
        };
        check("/api/assets", "/content/dam");
        check("/api/assets.json", "/content/dam");
        check("/api/assets/a%20b/c.png.json", "/content/dam/a b/c.png");
        check("/api/assets/a/*", "/content/dam/a new");
        check("/api/assets/*", "/content/dam new");
        check("/api/assets/c.png/renditions/*", "/content/dam/c.png ");
        check("/api/assets/c.png/renditions/web", "/content/dam/c.png web");
        check("/api/assets/c.png/comments/*", "comment");
        check("/api/assets/../hidden", "400 Bad Request");
        check("/api/assets/%2e%2e/hidden.json", "400 Bad Request");
        check("/api/assets/%ff", "400 Bad Request");
    }
}
