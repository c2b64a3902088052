//! C6: 10,000 changes are told exactly once, in order, with their user, while the author is killed again and again.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Outcome;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::process::free_address;
use crate::site::Server;

const ROW: &str = "C6";
const CHANGES: usize = 10_000;
const KILLS: usize = 20;
/// How many changes the follower asks for at once.
const PAGE: usize = 173;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let folder = context.new_folder("changes-")?;
    let home = folder.join("home");
    let program = context.program()?.to_owned();
    let address = free_address()?;
    let start = || -> Outcome<Server> {
        let home = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
        let listen = address.to_string();
        Server::start(&program, &["author", "--home", home, "--listen", &listen], &folder)
    };
    let mut server = start()?;
    let login = login(&home)?;
    save(address, &login, 0)?;
    let mut cursor = text(&ask(address, "GET", "/changes?since=now", &login, "")?, "next")?;
    let mut told = Told::default();
    let mut reading = Duration::ZERO;
    for round in 1..=KILLS {
        for number in 1..=CHANGES / KILLS {
            save(address, &login, round * 1_000_000 + number)?;
        }
        // About half of what is new is read before the kill, so that every second page spans one.
        let begin = Instant::now();
        for _ in 0..(CHANGES / KILLS / PAGE / 2).max(1) {
            cursor = told.read(address, &login, &cursor)?.0;
        }
        reading += begin.elapsed();
        kill(&server)?;
        drop(server);
        server = start()?;
    }
    let begin = Instant::now();
    loop {
        let (next, is_end) = told.read(address, &login, &cursor)?;
        cursor = next;
        if is_end {
            break;
        }
    }
    reading += begin.elapsed();
    drop(server);
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let once = told.sequences.len();
    let note = format!("{KILLS} kills; reading all took {:.2} s", reading.as_secs_f64());
    Ok(vec![
        Figure::value(ROW, format!("changes told of {CHANGES}"), number(once), "changes")
            .goal(Goal::Exactly(number(CHANGES)))
            .note(note),
        Figure::value(
            ROW,
            "told twice, out of order or without the user",
            number(told.faults),
            "changes",
        )
        .goal(Goal::Exactly(0.0)),
    ])
}

/// What a follower was told.
#[derive(Debug, Default)]
struct Told {
    sequences: BTreeSet<u64>,
    faults: usize,
}

impl Told {
    /// Reads a page; gives the next cursor and whether there is no more.
    fn read(&mut self, address: SocketAddr, login: &str, cursor: &str) -> Outcome<(String, bool)> {
        let page =
            ask(address, "GET", &format!("/changes?since={cursor}&limit={PAGE}"), login, "")?;
        let none = Vec::new();
        for revision in page.get("revisions").and_then(Value::as_array).unwrap_or(&none) {
            let sequence = revision.get("sequence").and_then(Value::as_u64).ok_or("no sequence")?;
            let is_later = self.sequences.last().is_none_or(|last| *last < sequence);
            let is_known = revision.get("user").and_then(Value::as_str) == Some("admin");
            self.faults += usize::from(!(is_later && is_known));
            self.sequences.insert(sequence);
        }
        let is_end = page.get("isEnd").and_then(Value::as_bool) == Some(true);
        Ok((text(&page, "next")?, is_end))
    }
}

fn text(value: &Value, name: &str) -> Outcome<String> {
    let text = value.get(name).and_then(Value::as_str);
    Ok(text.ok_or_else(|| format!("there is no `{name}` in {value}"))?.to_owned())
}

fn save(address: SocketAddr, login: &str, value: usize) -> Outcome<()> {
    ask(address, "POST", "/content/counter", login, &format!("./value={value}")).map(drop)
}

fn kill(server: &Server) -> Outcome<()> {
    let pid =
        i32::try_from(server.pid()).ok().and_then(Pid::from_raw).ok_or("it has no process id")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// Returns the Basic credentials of the first user.
pub(super) fn login(home: &Path) -> Outcome<String> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let password = std::fs::read_to_string(home.join("initial-password"))?;
    let mut encoded = String::new();
    for three in format!("admin:{}", password.trim()).as_bytes().chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS.get((bits >> (18 - 6 * place) & 63) as usize);
            let is_there = place <= three.len();
            encoded.push(letter.filter(|_| is_there).map_or('=', |letter| char::from(*letter)));
        }
    }
    Ok(encoded)
}

/// Sends one request and reads the JSON that comes back.
pub(super) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    login: &str,
    form: &str,
) -> Outcome<Value> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: bench\r\nAuthorization: Basic {login}\r\nAccept: application/json\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer has no end")?;
    if !head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
        return Err(format!("{method} {path}: {head}\n{body}").into());
    }
    Ok(serde_json::from_str(body)?)
}
