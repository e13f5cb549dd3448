//! SIGHUP: the daemon goes on with the caps and the log level that the configuration now has. Must never change anything
//! when the file has an error.

use crate::server::parts::Server;
use crate::settings::reload::{Reloaded, caps_of};
use fdbroker_core::Input;

impl Server {
    /// SIGHUP.
    pub(crate) fn reload(&mut self) {
        let reloaded = match self.settings.reload() {
            Ok(reloaded) => reloaded,
            Err(error) => {
                log::error!("SIGHUP: nothing is changed: {error}");
                return;
            }
        };
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
