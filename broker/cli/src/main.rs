//! The program `fdbroker`: runs one command and turns its outcome into an exit status. Must never
//! hold logic of a command.

#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)
)]

mod acts;
mod admin;
mod by_name;
mod cli;
mod commands;
mod error;
mod events;
#[cfg(test)]
#[path = "../tests/unit/examples.rs"]
mod examples;
mod help;
mod joining;
mod layers;
mod mailbox;
mod output;
mod private_broker;
mod records;
mod rooms;
mod signals;
mod std_fds;
mod subject;
mod table;

use clap::Parser;
use cli::{Cli, Command, visible};
use commands::*;
use error::{Error, Result, exit};
use output::say;
use records::{allocations, clients, jobs};
use std::ffi::OsStr;
use std::process::ExitCode;
use table::List;

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command),
        Err(answer) => {
            let word = std::env::args_os().nth(1);
            help::say(&help::hinted(answer, word.as_deref().and_then(OsStr::to_str)))
        }
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
        Command::Run(args) => run::run(args)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::Status(args) => done(status::run(args))?,
        Command::Health(_) => health::run()?,
        Command::Ls(args) => done(List::show(
            "allocations",
            allocations::COLUMNS,
            (&args.list, args.selection()?),
            "SIZE",
        ))?,
        Command::Clients(args) => {
            done(List::show("clients", &clients::COLUMNS, (&args.list, args.selection()?), "FDS"))?
        }
        Command::Holders(args) => done(holders::run(args))?,
        Command::Fd(args) => done(fd::run(&args))?,
        Command::Evict(args) => evict::run(args)?,
        Command::Revoke(args) => revoke::run(args)?,
        Command::Drain(args) => drain::run(&args)?,
        Command::Stop(args) => done(stop::run(&args))?,
        Command::Objects(args) => done(objects::run(&args))?,
        Command::Put(args) => done(put::run(&args))?,
        Command::Get(args) => done(get::run(&args))?,
        Command::Rm(args) => rm::run(&args)?,
        Command::Pin(args) => pin::run(&args)?,
        Command::Watch(args) => done(watch::run(args))?,
        Command::Audit(args) => audit::run(&args)?,
        Command::Jobs(args) => {
            done(List::show("jobs", &jobs::COLUMNS, (&args.list, args.selection()?), "FDS"))?
        }
        Command::Gpus(args) => done(gpus::run(&args))?,
        Command::Limits(args) => done(limits::run(args))?,
        Command::Show(args) => done(show::run(args))?,
        Command::Top(args) => done(top::run(args))?,
        Command::Metrics(args) => done(metrics::run(args))?,
        Command::Config(args) => done(config::run(args))?,
        Command::Completions(args) => done(completions::run(&args, visible()))?,
        Command::Doctor(args) => doctor::run(args)?,
        Command::Man(args) => done(man::run(&args, visible()))?,
        Command::DoctorProbe(args) => doctor::probe::run(args),
        Command::Broker(args) => return broker::run(&args),
        Command::Exec(args) => run::exec::run(&args)?,
        Command::Keeper(args) => joining::keeper::main(args)?,
        Command::Start => start::run()?,
        Command::DemoRank(args) => done(demo::run_rank(&args))?,
    };
    Ok(ExitCode::from(status))
}

fn done(outcome: Result<()>) -> Result<u8> {
    outcome.map(|()| exit::OK)
}
