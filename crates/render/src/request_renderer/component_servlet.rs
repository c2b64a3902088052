//! What the servlets of the Core Components answer: pictures of image components, downloads, and hits of search fields,
//! at the addresses that the models of these components write.
//!
//! In: a URL without a script. Out: a response; `None` for other URLs, and for those that no model writes, which are not
//! found: nobody fills caches with made-up ones.

use percent_encoding::percent_decode_str;
use tympan_content::{Node, NodePath};

use super::{DraftResponse, RequestRenderer};
use crate::htl::{component_picture, component_search_hits};
use crate::image_address::{ImageAddress, ImageFormatExtension, ImageShape};
use crate::page;
use crate::page::link::encode_path;
use crate::resource::ContentResource;
use crate::response::{RedirectKind, RenderOutcome, RenderResponseBody, media_type};
use crate::url::SlingUrl;

/// The selectors of pictures; the second is that of image v1.
const PICTURE_SELECTORS: [&str; 2] = ["coreimg", "img"];
/// The selector of downloads.
const DOWNLOAD_SELECTOR: &str = "coredownload";
/// The selector, after that of downloads, of files that a browser may show.
const INLINE_SELECTOR: &str = "inline";
/// The selector of the hits of a search field.
const SEARCH_SELECTOR: &str = "searchresults";
/// The width of a picture if neither address nor policy names one, in pixels, as the settings of the servlet have it.
const DEFAULT_PICTURE_WIDTH: u32 = 1280;
/// The node type of assets.
const ASSET_NODE_TYPE: &str = "dam:Asset";
/// The node type of files.
const FILE_NODE_TYPE: &str = "nt:file";

/// Returns true for the selectors of these servlets, whose other parts they check themselves.
pub(super) fn answers(url: &SlingUrl) -> bool {
    url.selectors.first().is_some_and(|selector| {
        ["coreimg", DOWNLOAD_SELECTOR, SEARCH_SELECTOR].contains(&selector.as_str())
    })
}

impl RequestRenderer<'_> {
    /// Renders what a servlet of the Core Components answers.
    pub(super) fn render_component_servlet(
        &self,
        url: &SlingUrl,
        resource: &ContentResource,
        node: &Node,
    ) -> Option<DraftResponse> {
        match url.selectors.first()?.as_str() {
            selector if PICTURE_SELECTORS.contains(&selector) => {
                self.render_picture(url, resource, node)
            }
            DOWNLOAD_SELECTOR => self.render_download(url, node),
            SEARCH_SELECTOR => self.render_search_hits(url, node),
            _ => None,
        }
    }

    /// Renders the file of a download: `terms.pdf.coredownload.pdf`, and `terms.pdf.coredownload.inline.pdf` for one that
    /// a browser may show.
    fn render_download(&self, url: &SlingUrl, node: &Node) -> Option<DraftResponse> {
        let is_inline = match url.selectors.get(1..)? {
            [] => false,
            [selector] if selector == INLINE_SELECTOR => true,
            _ => return None,
        };
        let name = match node.primary_type() {
            ASSET_NODE_TYPE => node.name().to_owned(),
            FILE_NODE_TYPE => {
                let component = self.reader.resource_at(node.path().parent()?.as_str())?;
                let name = self.reader.text_property(&component, "fileName");
                name.filter(|name| !name.is_empty()).unwrap_or_else(|| node.name().to_owned())
            }
            _ => return None,
        };
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        if url.suffix.is_some() || url.extension.as_deref() != extension {
            return None;
        }
        let mut response = DraftResponse::from_uploaded_file(&self.find_stored_file(node)?);
        if !is_inline {
            response.headers.retain(|(header, _)| *header != "content-disposition");
            // RFC 6266, appendix D: the name in UTF-8.
            let name = encode_path(&name).replace('\'', "%27");
            let disposition = format!("attachment; filename*=UTF-8''{name}");
            response.headers.push(("content-disposition", disposition));
        }
        Some(response)
    }

    /// Renders the hits of the search component that the suffix names, below the page or in the structure of its
    /// template: `page.searchresults.json/_jcr_content/root/search?fulltext=words&resultsOffset=10`.
    fn render_search_hits(&self, url: &SlingUrl, page: &Node) -> Option<DraftResponse> {
        let suffix = url.suffix.as_deref()?;
        if url.selectors.len() != 1 || url.extension.as_deref() != Some("json") || !page.is_page() {
            return None;
        }
        let content = ContentResource::from_node(page::page_content(&self.reader, page)?);
        let inner = suffix.replace("/_jcr_content/", "/jcr:content/");
        let own = format!("{}{inner}", page.path());
        let in_page = NodePath::new(&own).ok().and_then(|path| self.reader.node_existence(&path));
        let path = match in_page {
            Some(_) => own,
            None => format!("{}/structure{inner}", self.template_of(page)?),
        };
        let scope = self.new_scope(url, "json", content.path(), None);
        let hits = component_search_hits(&scope, &content, &path)?;
        Some(DraftResponse::new(RenderOutcome::Ok, media_type("json"), hits))
    }

    /// Returns the path of the template of a page.
    fn template_of(&self, page: &Node) -> Option<String> {
        let content = page::page_content(&self.reader, page)?;
        self.reader.text_property(&content, "cq:template")
    }

    /// Renders the picture of an image component, at an address as its model writes it:
    /// `image.coreimg.82.1200.jpeg/1577836800000/name.jpeg`. Another date, name or quality leads to that address, so that
    /// nobody fills caches with made-up ones. `None` without a picture, and for a width that the policy does not list.
    fn render_picture(
        &self,
        url: &SlingUrl,
        resource: &ContentResource,
        node: &Node,
    ) -> Option<DraftResponse> {
        let (selector, sizes) = url.selectors.split_first()?;
        let scope = self.new_scope(url, url.extension.as_deref()?, resource.path(), None);
        let picture = match node.is_page() {
            true => self.structure_paths(url, node).find_map(|path| {
                component_picture(&scope, resource, &path)
                    .filter(|picture| picture.suffix.is_some())
            }),
            false => component_picture(&scope, resource, node.path().as_str()),
        }?;
        let number = |text: &String| text.parse::<u32>().ok();
        let (quality, width) = match sizes {
            [] => (None, None),
            [size] => match number(size)? {
                quality if quality == picture.quality => (Some(quality), None),
                width => (None, Some(width)),
            },
            [quality, width] => (Some(number(quality)?), Some(number(width)?)),
            _ => return None,
        };
        if width.is_some_and(|width| !picture.widths.contains(&width)) {
            return None;
        }
        let suffix =
            picture.suffix.as_deref().map(|suffix| percent_decode_str(suffix).decode_utf8());
        let suffix = suffix.transpose().ok()?;
        let is_own_quality = match (quality, width) {
            (Some(quality), _) => quality == picture.quality,
            (None, width) => width.is_none(),
        };
        if !is_own_quality
            || selector != picture.selector
            || url.extension.as_deref() != Some(picture.extension)
            || url.suffix.as_deref() != suffix.as_deref()
        {
            let address = picture.address(width);
            return Some(self.redirect_with_query(&address, RedirectKind::Found));
        }
        let file_node = self.reader.resource_at(&picture.path)?;
        let file = self.find_stored_file(&file_node)?;
        // What cannot be made smaller, and what a component holds itself, is sent as it is stored.
        let format = ImageFormatExtension::parse(picture.extension);
        let Some(extension) = format.filter(|_| file_node.primary_type() == ASSET_NODE_TYPE) else {
            return Some(DraftResponse::from_uploaded_file(&file));
        };
        let address = ImageAddress {
            asset: file_node.path().as_str().to_owned(),
            shape: ImageShape::Width(width.unwrap_or(DEFAULT_PICTURE_WIDTH)),
            extension,
            hash: None,
            signature: None,
        };
        let address = match &self.image_key {
            Some(key) => address.sign(key),
            None => address,
        };
        let body = RenderResponseBody::Image(address);
        Some(DraftResponse::new(RenderOutcome::Ok, media_type(extension.name()), body))
    }

    /// Returns the paths of components in the structure of a page's template that the suffix may name: a date and a name
    /// follow the path, or one of them, or neither.
    fn structure_paths<'u>(
        &self,
        url: &'u SlingUrl,
        page: &Node,
    ) -> impl Iterator<Item = String> + use<'u> {
        let template = self.template_of(page);
        let inner = url.suffix.as_deref().filter(|suffix| suffix.starts_with("/structure/"));
        let inner = inner.zip(url.extension.as_deref()).map(|(inner, extension)| {
            let end = inner.len() - extension.len().min(inner.len());
            match inner.split_at_checked(end) {
                Some((before, last)) if last == extension => before.trim_end_matches('.'),
                _ => inner,
            }
        });
        let parts = template.zip(inner);
        std::iter::successors(parts, |(template, inner)| {
            Some((template.clone(), inner.rsplit_once('/')?.0))
        })
        .take(4)
        .map(|(template, inner)| format!("{template}{inner}"))
    }
}
