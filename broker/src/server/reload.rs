//! SIGHUP: the daemon goes on with the caps and the log level that the configuration now has. Must never change anything
//! when the file has an error, nor read the file on the loop: it may lie on a disk that takes its time.

use crate::server::parts::Server;
use crate::settings::config::ConfigError;
use crate::settings::reload::{Reloaded, caps_of};
use fdbroker_core::Input;
use std::sync::{Arc, Mutex, PoisonError};

/// The configuration while a lane reads it again.
#[derive(Default)]
pub(crate) struct Rereading {
    found: Arc<Mutex<Option<Result<Reloaded, ConfigError>>>>,
    is_under_way: bool,
    /// SIGHUP has come meanwhile: what is found may be of before.
    is_asked_again: bool,
}

impl Server {
    /// SIGHUP: has a lane read the configuration, or read it once more when it is at it.
    pub(crate) fn reload(&mut self) {
        if std::mem::replace(&mut self.rereading.is_under_way, true) {
            self.rereading.is_asked_again = true;
            return;
        }
        self.service.manager_mut().say_reloading();
        let (settings, found) = (self.settings.clone(), Arc::clone(&self.rereading.found));
        self.fds.closers().reread(Box::new(move || {
            let reloaded = settings.reload();
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(reloaded);
        }));
    }

    /// The configuration has been read.
    pub(crate) fn take_reloaded(&mut self) {
        let found = self.rereading.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.rereading.is_under_way = false;
        match found {
            Some(Ok(reloaded)) => self.go_on_as(reloaded),
            Some(Err(error)) => log::error!("SIGHUP: nothing is changed: {error}"),
            None => {}
        }
        self.service.manager_mut().say_ready(&self.settings.summary());
        if std::mem::take(&mut self.rereading.is_asked_again) {
            self.reload();
        }
    }

    fn go_on_as(&mut self, reloaded: Reloaded) {
        let Reloaded { settings, changed, after_restart } = reloaded;
        let caps = caps_of(&settings);
        if self.core.caps() != caps_of(&self.settings) {
            log::warn!("SIGHUP: caps that were set at run time are as configured again");
        }
        self.settings = settings;
        // Shown at whichever of the two levels shows more.
        log::set_max_level(log::max_level().max(self.settings.log));
        match (changed.is_empty(), after_restart.is_empty()) {
            (true, true) => log::info!("SIGHUP: the configuration is as it was"),
            (_, true) => log::info!("SIGHUP: changed: {}", changed.join(", ")),
            (true, false) => {
                log::warn!(
                    "SIGHUP: changed: nothing; a restart is needed for: {}",
                    after_restart.join(", ")
                );
            }
            (false, false) => log::warn!(
                "SIGHUP: changed: {}; a restart is needed for: {}",
                changed.join(", "),
                after_restart.join(", ")
            ),
        }
        log::set_max_level(self.settings.log);
        self.step(Input::SetCaps { caps: &caps });
    }
}
