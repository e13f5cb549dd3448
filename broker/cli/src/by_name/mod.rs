//! What the commands for named objects share: the connection of a client, names, times and what is
//! said of them. Must never ask the administrators' socket for an object: objects are those of the
//! user.

pub mod named;
pub mod watch;

use crate::admin::started_socket;
use crate::error::{Error, Result};
use crate::table::{Kind, Value};
use fdbroker_client::{Client, ClientBuilder, Deadline, ErrorCode, ObjectInfo, Objects};
use fdbroker_protocol::is_object_name;
use std::time::Duration;

/// Longest wait for an answer that depends on nobody else. A broker that takes longer hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Connects to the broker of this environment. `of_job`: the names are those of this process's job.
pub fn connect(of_job: bool) -> Result<Objects> {
    connect_within(of_job, soon())
}

/// The same, for a command with a deadline of its own.
pub fn connect_within(of_job: bool, deadline: Deadline) -> Result<Objects> {
    let objects = client().connect_within(deadline)?.objects();
    Ok(if of_job { objects.of_job() } else { objects })
}

/// A client of the broker of this environment, which may be one that programs have started.
fn client() -> ClientBuilder {
    let builder = Client::builder().name("fdbroker");
    // With that the library finds it, and starts it if it has ended.
    let asks_library = std::env::var_os("FDBROKER_START").is_some();
    let started = if asks_library { None } else { started_socket() };
    started.into_iter().fold(builder, ClientBuilder::socket)
}

/// Objects handed on at a time.
const PAGE: usize = 256;

/// Hands those whose names begin so to `take`, page by page, the last one with what is left. For
/// all of them: whoever takes a page may take its time.
pub fn each_page<E: From<fdbroker_client::Error>>(
    objects: &Objects,
    prefix: &str,
    mut take: impl FnMut(&[ObjectInfo]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut page = Vec::with_capacity(PAGE);
    for info in objects.list(prefix, Deadline::longest()) {
        page.push(info?);
        if page.len() == PAGE {
            take(&page)?;
            page.clear();
        }
    }
    take(&page)
}

/// When an answer is to be there.
pub fn soon() -> Deadline {
    Deadline::after(ANSWER_LIMIT)
}

/// Reads the name of an object from the command line.
pub fn name(text: &str) -> std::result::Result<String, String> {
    if is_object_name(text.as_bytes()) {
        Ok(text.to_owned())
    } else {
        Err("a name has 1 to 255 bytes of UTF-8".into())
    }
}

/// Reads a time span from the command line, such as 30s or 5m.
pub fn time(text: &str) -> std::result::Result<Duration, String> {
    match Kind::Time.parse(text)? {
        Value::Time(ms) => Ok(Duration::from_millis(ms)),
        _ => Err("no time".into()),
    }
}

/// Says once that what was to stay ends with the broker, whatever its time.
pub fn say_ends_with_broker() {
    crate::output::say!(
        "fdbroker: it ends with this broker: no service manager stores its fds (a broker of `fdbroker run`, or a unit without FileDescriptorStoreMax)"
    );
}

/// What came of one name of several, in JSON.
#[derive(Debug, serde::Serialize)]
pub struct OutcomeView<'a> {
    name: &'a str,
    done: bool,
    error: Option<&'static str>,
}

/// Says in JSON for which names nothing was done, in the form of [`tell`]; stderr has the error in
/// any case. One that is no word of a broker (a file, no broker at all) is there alone, as with all
/// commands.
pub fn undone<T>(
    outcome: std::result::Result<T, fdbroker_client::Error>,
    names: &[String],
    is_json: bool,
) -> Result<T> {
    use crate::error::exit;
    use crate::output::Output;
    let error = match outcome {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    let code = error.code.name();
    let only = at(&error);
    let error = Error::from(error);
    if is_json && error.exit_status() != exit::NO_BROKER {
        let each = names.iter().enumerate().map(|(index, name)| {
            let error = only.is_none_or(|only| only == index).then_some(code);
            OutcomeView { name, done: false, error }
        });
        let mut out = Output::stdout();
        let written = out
            .json_line(&serde_json::json!({ "objects": each.collect::<Vec<_>>() }))
            .and_then(|()| out.finish());
        // The error counts, not that nobody reads of it.
        drop(written);
    }
    Err(error)
}

/// The error for a prefix of no name.
pub fn none_begins_with(prefix: &str) -> fdbroker_client::Error {
    fdbroker_client::Error::new(ErrorCode::NotFound, crate::output::printable(prefix))
        .because("no object's name begins so; `fdbroker objects` lists all")
}

/// Which of several names an error is about; `None`: about all, or it does not say.
pub fn at(error: &fdbroker_client::Error) -> Option<usize> {
    use ErrorCode::{Exists, NotFound, NotSealed, TimedOut};
    let says = matches!(error.code, Exists | NotFound | NotSealed | TimedOut);
    error.status.filter(|_| says).and_then(|status| usize::try_from(status.value).ok())
}

/// Says what came of each name; `done` says it for people. Gives the exit status.
pub fn tell(
    outcomes: &[(&str, std::result::Result<(), fdbroker_client::Error>)],
    done: &str,
    is_json: bool,
) -> Result<u8> {
    tell_with(outcomes, done, is_json, serde_json::Map::new())
}

/// The same; `more` are further members of the JSON object.
pub fn tell_with(
    outcomes: &[(&str, std::result::Result<(), fdbroker_client::Error>)],
    done: &str,
    is_json: bool,
    mut more: serde_json::Map<String, serde_json::Value>,
) -> Result<u8> {
    use crate::error::exit;
    use crate::output::{Output, printable, say};
    let mut out = Output::stdout();
    if is_json {
        let each = outcomes.iter().map(|(name, outcome)| outcome_view(name, outcome));
        more.insert("objects".into(), serde_json::json!(each.collect::<Vec<_>>()));
        out.json_line(&more)?;
    } else {
        for (name, _) in outcomes.iter().filter(|(_, outcome)| outcome.is_ok()) {
            out.text(&format!("{} {done}\n", printable(name)))?;
        }
    }
    out.finish()?;
    let mut status = exit::OK;
    for (name, outcome) in outcomes {
        if let Err(error) = outcome {
            say!("fdbroker: {}: {}", printable(name), reason(error));
            let its = Error::from(error.clone()).exit_status();
            // Of several, the one that is not only that there is no such object.
            status = if status == exit::OK { its } else { status.min(its) };
        }
    }
    Ok(status)
}

/// What came of one name, in JSON.
pub fn outcome_view<'a>(
    name: &'a str,
    outcome: &std::result::Result<(), fdbroker_client::Error>,
) -> OutcomeView<'a> {
    let error = outcome.as_ref().err().map(|error| error.code.name());
    OutcomeView { name, done: outcome.is_ok(), error }
}

/// The error of one name, whose context would only say the name again.
pub fn reason(error: &fdbroker_client::Error) -> String {
    match error.status {
        Some(status) if error.code == ErrorCode::Version => {
            format!("VERSION: it has version {} now; look at it again", status.value)
        }
        _ if error.code == ErrorCode::NotFound => {
            "NOT_FOUND: no object has this name; `fdbroker objects` lists them".into()
        }
        Some(status) => status.to_string(),
        None => error.to_string(),
    }
}
