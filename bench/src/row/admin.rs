//! ADMIN: the second listener answers `/health` while idle connections hold every place of the main one.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::http::get;
use crate::process::free_address;
use crate::site::Server;

const ROW: &str = "ADMIN";
const MAX_CONNECTIONS: usize = 64;
const QUESTIONS: usize = 100;
/// An answer that takes longer does not count.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the main listener is given to show that it does not answer.
const SILENCE: Duration = Duration::from_millis(500);

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let folder = context.new_folder("admin-")?;
    let home = folder.join("home");
    std::fs::create_dir_all(&home)?;
    std::fs::write(
        home.join("tympan.toml"),
        format!("[listen]\nmax_connections = {MAX_CONNECTIONS}\n"),
    )?;
    let home = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    let admin = free_address()?;
    let admin_text = admin.to_string();
    let arguments =
        ["publish", "--home", home, "--listen", "127.0.0.1:0", "--admin-listen", &admin_text];
    let server = Server::start(context.program()?, &arguments, &folder)?;
    if get(server.address, "/health")?.status != 200 {
        return Err("the main listener does not answer before it is saturated".into());
    }
    // The accepted ones hold a place each; one more waits in the kernel's queue.
    let held = (0..=MAX_CONNECTIONS)
        .map(|_| TcpStream::connect(server.address))
        .collect::<Result<Vec<_>, _>>()?;
    let main = ask(server.address, 1, SILENCE);
    let answers = ask(admin, QUESTIONS, PATIENCE);
    drop(held);
    let after = ask(server.address, 1, PATIENCE);
    let count = |answers: &[f64]| f64::from(u32::try_from(answers.len()).unwrap_or(u32::MAX));
    let note = format!(
        "{MAX_CONNECTIONS} idle connections hold the main listener; p50 {:.2} ms",
        Spread::of(answers.clone()).median
    );
    Ok(vec![
        Figure::value(
            ROW,
            format!("answers of the admin listener to {QUESTIONS} questions"),
            count(&answers),
            "answers",
        )
        .goal(Goal::Exactly(f64::from(u32::try_from(QUESTIONS)?)))
        .note(note),
        Figure::value(ROW, "answers of the saturated main listener", count(&main), "answers")
            .goal(Goal::Exactly(0.0))
            .note("shows that the main listener was saturated"),
        Figure::value(ROW, "answers of the main listener afterwards", count(&after), "answers")
            .goal(Goal::Exactly(1.0)),
    ])
}

/// Asks for the health, each time on a new connection; gives the milliseconds of every good answer in time.
fn ask(address: SocketAddr, times: usize, patience: Duration) -> Vec<f64> {
    let one = || -> Option<f64> {
        let begin = Instant::now();
        let answer = crate::http::Connection::open(address, patience).ok()?.get("/health").ok()?;
        let elapsed = begin.elapsed();
        (answer.status == 200 && elapsed < patience).then_some(elapsed.as_secs_f64() * 1e3)
    };
    (0..times).filter_map(|_| one()).collect()
}
