//! SIGHUP: the daemon goes on with the caps and the log level that the configuration now has. Must
//! never change anything when the file has an error, nor read the file on the loop: it may lie on a
//! disk that takes its time.

use crate::server::parts::Server;
use crate::settings::effective::caps_of;
use crate::settings::reload::Reloaded;
use fdbroker_core::Input;

impl Server {
    /// SIGHUP: has a lane read the configuration, or read it once more when it is at it.
    pub(crate) fn reload(&mut self) {
        match self.rereading.begin(self.settings.config_file.as_deref()) {
            Ok(Some(memfd)) => {
                self.manager.say_reloading();
                self.fds.closers().reread(memfd);
            }
            Ok(None) => {}
            Err(error) => log::error!("SIGHUP: nothing is changed: {error}"),
        }
    }

    /// The configuration has been read: its bytes, or the errno.
    pub(crate) fn take_reloaded(&mut self, found: Result<usize, i32>) {
        let (text, is_asked_again) = self.rereading.end(found);
        match self.settings.reload(text) {
            Ok(reloaded) => self.go_on_as(reloaded),
            Err(error) => {
                log::error!("SIGHUP: nothing is changed: {error}");
                self.settings.refused = Some(error.to_string());
            }
        }
        self.manager.say_ready(&self.settings.summary());
        if is_asked_again {
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
