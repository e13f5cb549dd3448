//! `fdbroker run --report`: samples the job's fds while it runs, and draws them at its end or
//! writes them as a table. Must never disturb the job: a broker that does not answer ends the
//! sampling, not the job.

mod csv;
mod series;
mod svg;

use crate::admin::Admin;
use crate::error::{Context, Result};
use crate::output::say;
use series::{Sample, Series};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// A file for the report; its name says in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFile {
    path: PathBuf,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Svg,
    /// A table: one line for each look at the broker.
    Csv,
}

impl ReportFile {
    /// Reads the command line's word.
    ///
    /// # Errors
    /// The name ends otherwise than those of the two forms.
    pub fn parse(name: &str) -> std::result::Result<Self, &'static str> {
        let path = PathBuf::from(name);
        let form = match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Form::Svg,
            Some("csv") => Form::Csv,
            _ => return Err("its name must end with .svg (a picture) or with .csv (a table)"),
        };
        Ok(ReportFile { path, form })
    }
}

/// A report that is being made.
#[derive(Debug)]
pub struct Report {
    file: ReportFile,
    /// Whether the file was there before.
    was_there: bool,
    end: SyncSender<()>,
    sampler: JoinHandle<Series>,
}

impl Report {
    /// Samples the broker at `admin_socket` from now on.
    ///
    /// # Errors
    /// The file cannot be written: found before the job begins, not after it.
    pub fn start(file: &ReportFile, admin_socket: PathBuf) -> Result<Report> {
        let was_there = file.path.exists();
        // O_NONBLOCK: a FIFO that nobody reads would hang here, with the signals that end the job
        // blocked.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
        options.open(&file.path).context(|| format!("write {}", file.path.display()))?;
        let (end, ended) = sync_channel(0);
        let begin = Instant::now();
        let sampler = std::thread::Builder::new().name("report".into());
        let sampler = sampler.spawn(move || sample(&admin_socket, begin, &ended));
        let sampler = sampler.context(|| "start a thread for the report")?;
        Ok(Report { file: file.clone(), was_there, end, sampler })
    }

    /// The job is over: writes the samples of it, or says why there is nothing to write.
    pub fn finish(self, command: &str) -> Result<()> {
        // The sampler waits for this; nothing is sent.
        drop(self.end);
        let series = self.sampler.join().unwrap_or_default();
        let path = self.file.path.as_path();
        if let Some(reason) = series.nothing_to_draw() {
            if !self.was_there {
                remove_regular(path);
            }
            say!("fdbroker: nothing to draw in {}: {reason}", path.display());
            return Ok(());
        }
        let text = match self.file.form {
            Form::Svg => svg::draw(&series.samples, command)?,
            Form::Csv => csv::table(&series.samples),
        };
        let written = std::fs::write(path, text);
        if written.is_err() {
            // Half a picture or half a table would pass for a whole one.
            remove_regular(path);
        }
        written.context(|| format!("write {}", path.display()))?;
        say!("fdbroker: {} shows the job's fds over time", path.display());
        Ok(())
    }
}

/// Removes the report if it is a regular file, also behind symbolic links. Devices and FIFOs stay.
/// A file that cannot be removed stays, too: the caller has an error or a reason to tell.
fn remove_regular(path: &Path) {
    let Ok(file) = path.canonicalize() else { return };
    if file.is_file() {
        let _ = std::fs::remove_file(file);
    }
}

/// Looks at the broker again and again, with times since `begin`, until the other end of `ended` is
/// dropped or the broker does not answer any more.
fn sample(admin_socket: &Path, begin: Instant, ended: &Receiver<()>) -> Series {
    let mut series = Series::default();
    let look = |series: &mut Series, admin: &mut Admin| {
        let status = admin.status()?;
        series.push(Sample::new(&status, begin.elapsed()));
        Ok(())
    };
    let mut run = || {
        let mut admin = Admin::connect(admin_socket)?;
        loop {
            look(&mut series, &mut admin)?;
            if ended.recv_timeout(series.interval) == Err(RecvTimeoutError::Disconnected) {
                // So that the series covers the whole job.
                return look(&mut series, &mut admin);
            }
        }
    };
    series.end = run().err();
    series
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn remove_regular_when_a_link_or_no_regular_file_then_only_regular_files_go() {
        let dir = std::env::temp_dir().join("fdbroker-report-XXXXXX");
        let dir = nix::unistd::mkdtemp(&dir).expect("a directory");
        let at = |name: &str| dir.join(name);
        std::fs::write(at("file.csv"), "cut").expect("writable");
        std::os::unix::fs::symlink(at("file.csv"), at("link.csv")).expect("writable");
        nix::unistd::mkfifo(&at("fifo.csv"), Mode::S_IRWXU).expect("a FIFO");
        for name in ["link.csv", "fifo.csv", "missing.csv"] {
            remove_regular(&at(name));
        }
        let mut left: Vec<_> = dir.read_dir().expect("there").flatten().collect();
        left.sort_by_key(std::fs::DirEntry::file_name);
        let left: Vec<_> = left.iter().map(std::fs::DirEntry::file_name).collect();
        assert_eq!(left, ["fifo.csv", "link.csv"]);
        std::fs::remove_dir_all(dir).expect("own");
    }
}
