//! The command `fdbroker`: picks what to do and turns its outcome into an exit status. Must never hold
//! logic of its own.

mod act_args;
mod acts;
mod admin;
mod again;
mod audit;
mod cli;
mod clients;
mod completions;
mod config;
mod demo;
mod doctor;
mod drain;
mod error;
mod evict;
#[cfg(test)]
mod examples;
mod handle;
mod help;
mod holders;
mod jobs;
mod join;
mod left;
mod level_zero;
mod limits;
mod ls;
mod man;
mod metrics;
mod output;
mod private;
mod records;
mod report;
mod revoke;
mod run;
mod say;
mod show;
mod signals;
mod status;
mod table;
mod terminal;
mod top;
mod watch;

use clap::Parser;
use cli::{Cli, Command, LimitsAction};
use error::{Error, Result, exit};
use say::say;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command),
        Err(answer) => help::say(&answer),
    };
    match outcome {
        Ok(status) => status,
        Err(error) => {
            if !matches!(error, Error::OutputClosed) {
                say!("fdbroker: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}

fn dispatch(command: Command) -> Result<ExitCode> {
    let status = match command {
        Command::Run(args) if args.join => {
            join::run(&args.command, args.max_fds, args.job.as_deref(), layers(&args)?)?
        }
        Command::Run(args) => {
            let report = args.report.as_deref();
            run::run(&args.command, args.max_fds, args.json, report, layers(&args)?)?
        }
        Command::Demo(args) => demo::run(options(&args))?,
        Command::Status { json } => done(status::run(json))?,
        Command::Limits { action: None, json } => done(limits::show(json))?,
        Command::Limits { action: Some(LimitsAction::Set(args)), json } => {
            done(limits::set(&args.assignments, args.dry_run, json || args.json))?
        }
        Command::Metrics { listen: None } => done(metrics::print())?,
        Command::Metrics { listen: Some(listen) } => done(metrics::serve(&listen))?,
        Command::Jobs(list) => done(jobs::run(&list))?,
        Command::Evict(args) => evict::run(args.into())?,
        Command::Revoke(args) => revoke::run(&args.into())?,
        Command::Drain(args) => drain::run(args.into())?,
        Command::Watch { filter, json } => done(watch::run(filter, json))?,
        Command::Ls(list) => done(ls::run(&list))?,
        Command::Clients(list) => done(clients::run(&list))?,
        Command::Holders { subject, list } => done(holders::run(subject, &list))?,
        Command::Show { subject, json } => done(show::run(subject, json))?,
        Command::Top { once, interval } => done(top::run(once, interval))?,
        Command::Config { action } => done(config::run(action))?,
        Command::Completions { shell } => done(completions::run(shell))?,
        Command::Doctor { json } => doctor::run(json)?,
        Command::DoctorProbe { driver } => doctor::probe::main(driver),
        Command::Man { dir } => done(man::run(&dir))?,
        Command::Audit { pid, verbose, json } => audit::run(audit::Options { pid, verbose, json })?,
        Command::Exec { command } => run::exec(&command)?,
        Command::Keeper { dir, max_fds } => join::keeper::main(&dir, max_fds)?,
        Command::DemoRank { number, way, plan } => done(demo::rank::main(number, way, &plan))?,
        Command::Broker { remove, args } => {
            // Before the daemon has it: it closes its lifeline at its end.
            let lifeline = private::Lifeline::of_stdin();
            // The parent has blocked signals that the daemon waits for.
            signals::restore();
            // As `ps` shows it; it would be "exe". Nothing depends on it.
            let _ = nix::sys::prctl::set_name(c"fdbroker-broker");
            let status = fdbrokerd::cli::run(&args);
            if let Some(dir) = remove {
                lifeline?.remove_if_ended(&dir);
            }
            return Ok(status);
        }
    };
    Ok(ExitCode::from(status))
}

/// What enables the layers that `run` was asked for.
fn layers(args: &cli::RunArgs) -> Result<Vec<(&'static str, OsString)>> {
    match args.level_zero {
        true => Ok(level_zero::environment()?.into()),
        false => Ok(Vec::new()),
    }
}

fn done(outcome: Result<()>) -> Result<u8> {
    outcome.map(|()| exit::OK)
}

fn options(args: &cli::DemoArgs) -> demo::Options {
    demo::Options {
        ranks: args.ranks,
        buffers: args.buffers,
        size_bytes: args.size,
        memory: args.memory,
        max_fds: args.max_fds,
        without_broker: args.without_broker,
        hold: Duration::from_secs(args.hold),
        timeout: Duration::from_secs(args.timeout),
        json: args.json,
    }
}
