//! API endpoints for the tokens and sessions of users.
//!
//! Invariants
//! * Only administrators create tokens: a token of limited lifetime cannot be used to get a longer one.
//! * A user who is not an administrator lists and ends only their own tokens and sessions; those of others are reported
//!   as missing.

use serde::Deserialize;
use serde_json::json;

use super::{AFTER_PARAMETER, LIMIT_PARAMETER, NAME_PARAMETER, paginate};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::failure::{RequestFailure, Result};
use crate::login::{LoginTokenScope, TokenTerms};

/// The API endpoints that this module defines.
pub(crate) const TOKEN_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/user/tokens",
        id: "listTokens",
        description: "Lists the valid tokens and sessions of a user, page by page, sorted by ID; for administrators \
            also those of all users.",
        parameters: &[
            EndpointParameter::new(
                "name",
                ParameterKind::Name,
                "The user. Without it, all users, for administrators.",
            ),
            AFTER_PARAMETER,
            LIMIT_PARAMETER,
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("LoginTokens", "A page of the tokens and sessions.")],
        handler: EndpointHandler::Async(list_tokens),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/user/tokens",
        id: "createToken",
        description: "Creates a token of a user for a program; it cannot be read again. For administrators.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::Json("NewLoginToken"),
        responses: &[ResponseSpec::created_json("CreatedLoginToken", "The token was created.")],
        handler: EndpointHandler::Async(create_token),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/user/tokens",
        id: "revokeToken",
        description: "Revokes a token or ends a session: one's own, for administrators also those of others.",
        parameters: &[EndpointParameter::required(
            "id",
            ParameterKind::NonEmptyText,
            "The ID of the token or session.",
        )],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The token was revoked.")],
        handler: EndpointHandler::Async(revoke_token),
    },
];

fn list_tokens(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let instance = call.instance.clone();
        let name = call.parameter("name").map(str::to_owned);
        let is_own = name.as_deref() == Some(call.user_name());
        let check = move |_: &Instance| {
            if !is_own {
                call.require_administrator("list the tokens of other users")?;
            }
            Ok(call)
        };
        let call = instance.run_work(check).await?;
        let tokens = instance.logins.tokens(name.as_deref(), call.now).await?;
        let mut tokens: Vec<_> =
            tokens.into_iter().map(|token| (token.id.clone(), token)).collect();
        tokens.sort_by(|(a, _), (b, _)| a.cmp(b));
        let (tokens, next) = paginate(&call, tokens);
        let tokens: Vec<_> = tokens.into_iter().map(|(_, token)| token).collect();
        Ok(ApiResponse::json(json!({ "tokens": tokens, "next": next })))
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLoginToken {
    /// The lifetime, such as `90d`, or `never`.
    #[serde(default = "default_token_lifetime")]
    expires: String,
    #[serde(default)]
    scope: LoginTokenScope,
}

fn default_token_lifetime() -> String {
    "90d".to_owned()
}

fn create_token(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let NewLoginToken { expires, scope } = call.parse_body()?;
        let terms = TokenTerms::parse(&expires, scope).map_err(RequestFailure::unprocessable)?;
        let (instance, now) = (call.instance.clone(), call.now);
        let name = call.parameter("name").unwrap_or_default().to_owned();
        let check = move |_: &Instance| call.require_administrator("create tokens");
        instance.run_work(check).await?;
        let token = instance.logins.issue_user_token(&name, terms, now).await?;
        let missing = || {
            let message = format!("there is no user `{name}` who may log in");
            RequestFailure::new(http::StatusCode::NOT_FOUND, message)
        };
        Ok(ApiResponse::created(json!({ "token": token.ok_or_else(missing)? })))
    })
}

fn revoke_token(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let (instance, user) = (call.instance.clone(), call.user_name().to_owned());
        let id = call.parameter("id").unwrap_or_default().to_owned();
        let check =
            move |instance: &Instance| -> Result<bool> { instance.is_administrator(&call.viewer) };
        let owner = (!instance.run_work(check).await?).then_some(user.as_str());
        if instance.logins.revoke(&id, owner).await? {
            return Ok(ApiResponse::empty());
        }
        let message = format!("there is no token `{id}`");
        Err(RequestFailure::new(http::StatusCode::NOT_FOUND, message))
    })
}
