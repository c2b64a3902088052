//! The portal of the sample site: customers who may log in, and the booking system that knows their orders.
//!
//! In: requests with JSON on an address of this machine that nobody else is told. Out: JSON.
//!
//! Invariant: what a customer can make it keep is bounded, and gone when the demo ends.
//!
//! Not here: who may ask for which customer; the pages of the portal ask for the one who is logged in.

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

use crate::command::Fault;
use crate::config::{BackEnd, Span};
use crate::home::{Home, chain, random_text, write_secret};

/// The name of the back end in templates.
const NAME: &str = "portal";
/// Who may log in.
const CUSTOMERS: [&str; 10] =
    ["anna", "ben", "clara", "david", "emma", "felix", "greta", "hugo", "ida", "jonas"];
/// The file with their passwords, as load tests read it: a name and a password on each line.
pub(crate) const USERS_FILE: &str = "portal-users.csv";
/// The last step of an order.
const LAST_STEP: u8 = 6;
/// What each step has to tell.
const REQUIRED: [&[&str]; 6] =
    [&["pass"], &["travellers", "names"], &["begin"], &[], &["address", "email"], &["agree"]];
/// How many customers are kept, and how many orders of each.
const MAX_CUSTOMERS: usize = 10_000;
const MAX_ORDERS: usize = 20;
/// The longest value of a field, in characters.
const MAX_VALUE: usize = 200;

/// Makes the customers who may log in to a publisher, once; their passwords go into a file that its owner alone can read.
///
/// # Errors
/// If content or the file cannot be written.
pub(crate) fn create_customers(publish: &Home, folder: &Path) -> Result<(), Fault> {
    let failed = |error: tympan_content::Error| {
        Fault::cannot_run(format!("cannot create the customers: {}", chain(&error)))
    };
    let file = folder.join(USERS_FILE);
    let first = CUSTOMERS.first().copied().unwrap_or_default();
    if file.exists() || publish.repository.account_path(first).map_err(failed)?.is_some() {
        return Ok(());
    }
    let mut session = publish.repository.session("system").map_err(failed)?;
    let mut lines = Vec::new();
    for name in CUSTOMERS {
        let password = random_text()?.get(..12).unwrap_or_default().to_owned();
        tympan_server::create_user(&mut session, name, &password).map_err(failed)?;
        lines.push(format!("{name},{password}"));
    }
    // The file comes first: customers whose passwords nobody knows would stay.
    write_secret(&file, &lines.join("\n"))?;
    session.commit("create the customers", SystemTime::now()).map_err(failed)?;
    Ok(())
}

/// The booking system, bound and not yet serving.
pub(crate) struct BookingSystem {
    listener: TcpListener,
}

impl BookingSystem {
    /// Takes a free address of this machine, and lets the homes ask there unless they are configured otherwise.
    ///
    /// # Errors
    /// If no address is free.
    pub(crate) fn open(homes: &mut [&mut Home]) -> Result<Self, Fault> {
        let failed = |error: std::io::Error| {
            Fault::cannot_run(format!("the booking system finds no address: {error}"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let url = format!("http://{}", listener.local_addr().map_err(failed)?);
        for home in homes {
            home.config.back_ends.entry(NAME.to_owned()).or_insert_with(|| BackEnd {
                connections: Some(64),
                // What somebody ordered a moment ago is there at once.
                max_age: Some(Span(Duration::ZERO)),
                ..BackEnd::at(url.clone())
            });
        }
        Ok(Self { listener })
    }

    /// Answers until it is told to stop.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn serve(self, mut stopped: watch::Receiver<bool>) -> Result<(), Fault> {
        let failed =
            |error: std::io::Error| Fault::cannot_run(format!("the booking system fails: {error}"));
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(failed)?;
        let until = async move {
            // The sender lives as long as the demo.
            stopped.wait_for(|stopped| *stopped).await.ok();
        };
        let serving = axum::serve(listener, router()).with_graceful_shutdown(until);
        serving.await.map_err(failed)
    }
}

/// What is known of a customer.
#[derive(Debug, Clone)]
struct Customer {
    since: u16,
    start: String,
    orders: Vec<Value>,
    draft: BTreeMap<String, String>,
    /// The step that comes next.
    step: u8,
}

#[derive(Debug, Default)]
struct Books {
    customers: BTreeMap<String, Customer>,
    last_number: u32,
}

type Shared = Arc<Mutex<Books>>;

fn router() -> Router {
    Router::new()
        .route("/customers/{id}", get(tell))
        .route("/customers/{id}/order/{step}", post(order))
        .route("/customers/{id}/start", post(choose_start))
        .layer(DefaultBodyLimit::max(64 * 1024))
        .with_state(Shared::default())
}

impl Books {
    /// Returns a customer; whoever is not known is a new one.
    fn customer(&mut self, id: &str) -> &mut Customer {
        if self.customers.len() >= MAX_CUSTOMERS && !self.customers.contains_key(id) {
            self.customers.pop_first();
        }
        self.customers.entry(id.to_owned()).or_insert_with(|| Customer {
            since: 1998 + u16::from(id.bytes().fold(0_u8, u8::wrapping_add) % 25),
            start: "slow".to_owned(),
            orders: vec![
                json!({ "number": "W-998", "title": "Seven days of rail", "state": "travelled" }),
            ],
            draft: BTreeMap::new(),
            step: 1,
        })
    }
}

async fn tell(State(books): State<Shared>, UrlPath(id): UrlPath<String>) -> Json<Value> {
    let mut books = books.lock();
    let customer = books.customer(&id);
    let mut letters = id.chars();
    let name: String =
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    Json(json!({
        "name": name,
        "since": customer.since,
        "start": customer.start,
        "orders": customer.orders,
        "draft": customer.draft,
        "step": customer.step,
    }))
}

async fn order(
    State(books): State<Shared>,
    UrlPath((id, step)): UrlPath<(String, u8)>,
    Json(fields): Json<Map<String, Value>>,
) -> Json<Value> {
    let mut books = books.lock();
    let number = books.last_number + 1;
    let customer = books.customer(&id);
    if step == 0 || step > customer.step {
        return Json(json!({ "ok": false, "next": customer.step }));
    }
    let required = REQUIRED.get(usize::from(step) - 1).copied().unwrap_or_default();
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().trim();
    if required.iter().any(|name| text(name).is_empty()) {
        return Json(json!({ "ok": false, "next": step }));
    }
    // A box that is not ticked is not sent.
    let boxes = [("flexible", 3), ("bicycle", 4)];
    for (name, _) in boxes.iter().filter(|(_, of_step)| *of_step == step) {
        customer.draft.remove(*name);
    }
    for (name, value) in fields.iter().take(20) {
        let value: String = value.as_str().unwrap_or_default().chars().take(MAX_VALUE).collect();
        if name.len() <= 20 && customer.draft.len() < 50 {
            customer.draft.insert(name.clone(), value);
        }
    }
    if step < LAST_STEP {
        customer.step = customer.step.max(step + 1);
        return Json(json!({ "ok": true, "next": step + 1 }));
    }
    let title = customer.draft.get("pass").cloned().unwrap_or_default();
    let name = format!("W-{}", 1000 + number);
    customer.orders.push(json!({ "number": name, "title": title, "state": "ordered" }));
    if customer.orders.len() > MAX_ORDERS {
        customer.orders.remove(0);
    }
    customer.draft.clear();
    customer.step = 1;
    books.last_number = number;
    Json(json!({ "ok": true, "number": name }))
}

async fn choose_start(
    State(books): State<Shared>,
    UrlPath(id): UrlPath<String>,
    Json(fields): Json<Map<String, Value>>,
) -> Json<Value> {
    let start = fields.get("start").and_then(Value::as_str).unwrap_or_default();
    let is_name =
        !start.is_empty() && start.len() <= 20 && start.bytes().all(|b| b.is_ascii_lowercase());
    if is_name {
        start.clone_into(&mut books.lock().customer(&id).start);
    }
    Json(json!({ "ok": is_name }))
}
