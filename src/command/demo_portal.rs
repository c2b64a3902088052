//! The portal of the sample site: customers who may log in, and the booking system that stores their orders.
//!
//! Input: JSON requests on a local address that only the demo's instances know. Output: JSON.
//!
//! Invariant: the data that a customer can create is bounded, and lost when the demo ends.
//!
//! Access control is not part of it; the pages of the portal request only the data of the customer who is logged in.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tympan_home::{Home, random_text, write_secret_file};
use tympan_notation::DurationText;
use tympan_render::BackendSection;
use tympan_terminal::{CommandFault, error_chain_text};

use crate::config::TympanConfig;
use crate::home_fault::home_fault;

/// The name of the back end in templates.
const BACKEND_NAME: &str = "portal";
/// The names of the customers.
const CUSTOMER_NAMES: [&str; 10] =
    ["anna", "ben", "clara", "david", "emma", "felix", "greta", "hugo", "ida", "jonas"];
/// The file with the customers' passwords, in the format of load tests: a name and a password per line.
pub(crate) const USERS_FILE: &str = "portal-users.csv";
/// The last step of an order.
const LAST_ORDER_STEP: u8 = 6;
/// The required fields of each step.
const REQUIRED_FIELDS_BY_STEP: [&[&str]; 6] =
    [&["pass"], &["travellers", "names"], &["begin"], &[], &["address", "email"], &["agree"]];
/// The maximum number of customers, and of orders of each customer.
const MAX_CUSTOMERS: usize = 10_000;
const MAX_ORDERS_PER_CUSTOMER: usize = 20;
/// The maximum length of a field value, in characters.
const MAX_VALUE_CHARS: usize = 200;

/// Creates the customers who may log in to a publisher, once; their passwords are written into a file that only its
/// owner can read.
///
/// # Errors
/// If content or the file cannot be written.
pub(crate) fn create_customers(publish: &Home, folder: &Path) -> Result<(), CommandFault> {
    let failed = |error: &dyn std::error::Error| {
        CommandFault::cannot_run(format!(
            "cannot create the customers: {}",
            error_chain_text(error)
        ))
    };
    let file = folder.join(USERS_FILE);
    let first = CUSTOMER_NAMES.first().copied().unwrap_or_default();
    if file.exists()
        || publish.repository.account_path(first).map_err(|error| failed(&error))?.is_some()
    {
        return Ok(());
    }
    let mut session = publish.repository.session("system").map_err(|error| failed(&error))?;
    let mut lines = Vec::new();
    for name in CUSTOMER_NAMES {
        let password = random_text().map_err(home_fault)?.get(..12).unwrap_or_default().to_owned();
        tympan_server::create_user(&mut session, name, &password)
            .map_err(|error| failed(&error))?;
        lines.push(format!("{name},{password}"));
    }
    // The file is written first: otherwise a failure would leave customers with unknown passwords.
    write_secret_file(&file, &lines.join("\n")).map_err(home_fault)?;
    session.commit("create the customers", SystemTime::now()).map_err(|error| failed(&error))?;
    Ok(())
}

/// The booking system, bound but not serving yet.
pub(crate) struct BookingSystem {
    listener: TcpListener,
}

impl BookingSystem {
    /// Binds a free local address, and makes it the back end in the configurations that name no other one.
    ///
    /// # Errors
    /// If no address is free.
    pub(crate) fn bind(configs: &mut [&mut TympanConfig]) -> Result<Self, CommandFault> {
        let failed = |error: std::io::Error| {
            CommandFault::cannot_run(format!("the booking system cannot listen: {error}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let url = format!("http://{}", listener.local_addr().map_err(failed)?);
        for config in configs {
            config.back_ends.entry(BACKEND_NAME.to_owned()).or_insert_with(|| {
                BackendSection {
                    connections: Some(64),
                    // A new order must be visible at once.
                    max_age: Some(DurationText(Duration::ZERO)),
                    ..BackendSection::with_url(url.clone())
                }
            });
        }
        Ok(Self { listener })
    }

    /// Serves until `stopped` turns true.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn serve(
        self,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), CommandFault> {
        let failed = |error: std::io::Error| {
            CommandFault::cannot_run(format!("the booking system failed: {error}"))
        };
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(failed)?;
        let until = async move {
            // The sender lives as long as the demo.
            stopped.wait_for(|stopped| *stopped).await.ok();
        };
        let serving = axum::serve(listener, portal_router()).with_graceful_shutdown(until);
        serving.await.map_err(failed)
    }
}

/// The data of a customer.
#[derive(Debug, Clone)]
struct PortalCustomer {
    customer_since: u16,
    start_page: String,
    orders: Vec<Value>,
    draft: BTreeMap<String, String>,
    /// The next step of the order.
    next_step: u8,
}

#[derive(Debug, Default)]
struct BookingLedger {
    customers_by_id: BTreeMap<String, PortalCustomer>,
    last_order_number: u32,
}

type SharedBookingLedger = Arc<Mutex<BookingLedger>>;

fn portal_router() -> Router {
    Router::new()
        .route("/customers/{id}", get(get_customer))
        .route("/customers/{id}/order/{step}", post(submit_order_step))
        .route("/customers/{id}/start", post(set_start_page))
        .layer(DefaultBodyLimit::max(64 * 1024))
        .with_state(SharedBookingLedger::default())
}

impl BookingLedger {
    /// Returns a customer; creates it if the id is unknown.
    fn customer_mut(&mut self, id: &str) -> &mut PortalCustomer {
        if self.customers_by_id.len() >= MAX_CUSTOMERS && !self.customers_by_id.contains_key(id) {
            self.customers_by_id.pop_first();
        }
        self.customers_by_id.entry(id.to_owned()).or_insert_with(|| PortalCustomer {
            customer_since: 1998 + u16::from(id.bytes().fold(0_u8, u8::wrapping_add) % 25),
            start_page: "slow".to_owned(),
            orders: vec![
                json!({ "number": "W-998", "title": "Seven days of rail", "state": "travelled" }),
            ],
            draft: BTreeMap::new(),
            next_step: 1,
        })
    }
}

async fn get_customer(
    State(books): State<SharedBookingLedger>,
    UrlPath(id): UrlPath<String>,
) -> Json<Value> {
    let mut books = books.lock();
    let customer = books.customer_mut(&id);
    let mut letters = id.chars();
    let name: String =
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    Json(json!({
        "name": name,
        "since": customer.customer_since,
        "start": customer.start_page,
        "orders": customer.orders,
        "draft": customer.draft,
        "step": customer.next_step,
    }))
}

async fn submit_order_step(
    State(books): State<SharedBookingLedger>,
    UrlPath((id, step)): UrlPath<(String, u8)>,
    Json(fields): Json<Map<String, Value>>,
) -> Json<Value> {
    let mut books = books.lock();
    let number = books.last_order_number + 1;
    let customer = books.customer_mut(&id);
    if step == 0 || step > customer.next_step {
        return Json(json!({ "ok": false, "next": customer.next_step }));
    }
    let required = REQUIRED_FIELDS_BY_STEP.get(usize::from(step) - 1).copied().unwrap_or_default();
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().trim();
    if required.iter().any(|name| text(name).is_empty()) {
        return Json(json!({ "ok": false, "next": step }));
    }
    // A checkbox that is not checked is not sent.
    let boxes = [("flexible", 3), ("bicycle", 4)];
    for (name, _) in boxes.iter().filter(|(_, of_step)| *of_step == step) {
        customer.draft.remove(*name);
    }
    for (name, value) in fields.iter().take(20) {
        let value: String =
            value.as_str().unwrap_or_default().chars().take(MAX_VALUE_CHARS).collect();
        if name.len() <= 20 && customer.draft.len() < 50 {
            customer.draft.insert(name.clone(), value);
        }
    }
    if step < LAST_ORDER_STEP {
        customer.next_step = customer.next_step.max(step + 1);
        return Json(json!({ "ok": true, "next": step + 1 }));
    }
    let title = customer.draft.get("pass").cloned().unwrap_or_default();
    let name = format!("W-{}", 1000 + number);
    customer.orders.push(json!({ "number": name, "title": title, "state": "ordered" }));
    if customer.orders.len() > MAX_ORDERS_PER_CUSTOMER {
        customer.orders.remove(0);
    }
    customer.draft.clear();
    customer.next_step = 1;
    books.last_order_number = number;
    Json(json!({ "ok": true, "number": name }))
}

async fn set_start_page(
    State(books): State<SharedBookingLedger>,
    UrlPath(id): UrlPath<String>,
    Json(fields): Json<Map<String, Value>>,
) -> Json<Value> {
    let start = fields.get("start").and_then(Value::as_str).unwrap_or_default();
    let is_name =
        !start.is_empty() && start.len() <= 20 && start.bytes().all(|b| b.is_ascii_lowercase());
    if is_name {
        start.clone_into(&mut books.lock().customer_mut(&id).start_page);
    }
    Json(json!({ "ok": is_name }))
}
