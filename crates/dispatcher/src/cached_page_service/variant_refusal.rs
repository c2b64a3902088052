//! Responses to requests for too many variants of a page (`/x-variantLimit`): a refusal, or the page without its query.

use std::time::Instant;

use http::{HeaderValue, StatusCode, header};

use crate::cache::CacheFileLookup;
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::outcome::CacheOutcome;
use crate::cache::page_variant;
use crate::cache::response_memory::DispatcherResponse;
use crate::cache::variant_limiter::RequestedVariant;
use crate::cached_page_service::CachedPageService;
use crate::config::OverLimitAction;
use crate::edge::own_response::own_response;
use crate::farm_state::FarmState;
use crate::observe::log::LogLevel;
use crate::observe::metrics::DispatcherCounter;
use crate::request::decision::{RequestAction, decide_in_farm};
use crate::request::exchange::RequestExchange;
use crate::request::view::RequestView;

/// Returns true if the query of a request, if any, makes a separate cache file.
fn makes_variant_file(farm: &FarmState, view: &RequestView) -> bool {
    let (Some(query), Some(cache)) = (&view.query, &farm.config.cache) else { return true };
    page_variant::variant_key(cache, Some(query)).is_ok_and(|key| !key.is_empty())
}

impl CachedPageService {
    /// Responds to a visitor over the variant limit, before a render is asked.
    pub(crate) async fn limit_variants(
        &self,
        exchange: &mut RequestExchange<'_>,
    ) -> Option<DispatcherResponse> {
        let limiter =
            exchange.farm.variant_limiter.as_ref().filter(|_| exchange.is_visitor_request)?;
        let view = exchange.view;
        let is_query_counted =
            limiter.limit().counts_queries || makes_variant_file(exchange.farm, view);
        let without_query;
        let counted_view = if is_query_counted {
            view
        } else {
            without_query = RequestView { query: None, ..view.clone() };
            &without_query
        };
        let wait = limiter.charge_variant(view.client, counted_view, Instant::now()).err()?;
        self.runtime.write_log(LogLevel::Warn, || {
            format!("Too many variants of the page: {} from {}", view.request_line(), view.client)
        });
        if limiter.limit().over_limit_action == OverLimitAction::ServeWithoutQuery
            && let Some(response) = self.serve_page_without_query(exchange).await
        {
            self.metrics.increment(DispatcherCounter::VariantsReplaced);
            return Some(response);
        }
        self.metrics.increment(DispatcherCounter::VariantsRefused);
        exchange.cache_info = format!("not cacheable: {}", NotCacheableReason::TooManyVariants);
        exchange.outcome = CacheOutcome::Refused(NotCacheableReason::TooManyVariants);
        let mut response = own_response(StatusCode::TOO_MANY_REQUESTS);
        let seconds = HeaderValue::from(wait.as_secs().saturating_add(1));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
        Some(response)
    }

    /// Responds with the page without its query, if that is cached and the visitor may see it.
    async fn serve_page_without_query(
        &self,
        exchange: &mut RequestExchange<'_>,
    ) -> Option<DispatcherResponse> {
        let (farm, view) = (exchange.farm, exchange.view);
        view.query.as_ref()?;
        let view_without_query = RequestView { query: None, ..view.clone() };
        if RequestedVariant::from_request(&view_without_query).is_some() {
            return None;
        }
        let RequestAction::Cache(file) = decide_in_farm(&farm.config, &view_without_query) else {
            return None;
        };
        let wants_ttl = farm.config.cache.as_ref().is_some_and(|cache| cache.enable_ttl);
        let lookup = farm.docroot.as_ref()?.docroot_for_reading().look_up_file(&file, wants_ttl);
        if !matches!(lookup, Ok(CacheFileLookup::File(_))) {
            return None;
        }
        let mut inner = RequestExchange::new(farm, &view_without_query);
        let mut response = Box::pin(self.serve_from_docroot(&mut inner, &file)).await;
        exchange.cache_label = inner.cache_label;
        exchange.render = inner.render;
        exchange.cache_info = inner.cache_info;
        exchange.outcome = inner.outcome;
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response)
    }
}
