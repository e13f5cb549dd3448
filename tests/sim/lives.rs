//! The broker's own lives: a restart in order, in which a successor goes on with what was saved; and a crash, after
//! which a new broker knows the generation page alone. Must only do what the daemon does: the model judges.

use crate::action::Action;
use crate::checks;
use crate::judge::{Step, ensure};
use crate::model::Check;
use crate::tally::{Fault, Promise};
use crate::turns::Turns;
use crate::world::World;
use fdbroker_core::{Core, Now};

impl World {
    /// A restart in order: nothing but what is parked and what is being closed may show that there was one.
    pub fn restart(&mut self) -> Check {
        self.stats.fault(Fault::Restart);
        self.feed(Action::Settle)?;
        self.trace.step(|| format!("{} -- restart --", self.now));
        let saved = self.core.save();
        let restored = Core::restore(self.model.config.clone(), saved.clone(), Now(self.now));
        let mut core = restored.map_err(|error| error.to_string())?;
        ensure!(core.save() == saved, "what was restored is not what was saved");
        core.check_invariants();
        self.core = core;
        // Their fds were closed with the process, or are nobody's any more.
        self.closing.clear();
        self.model.tickets.clear();
        self.model.proofs.count(Promise::Lives, 1);
        let step = Step { silent_before: self.model.silent.clone(), ..Step::default() };
        checks::sync(&mut self.model, &self.core, &step, &Action::Poll)?;
        let former = std::mem::replace(&mut self.ledger, self.model.ledger());
        // Nobody waits any more, so that it is nobody's turn.
        self.turns = Turns::default();
        checks::sums(&self.model, &self.core, &self.ledger, &former)?;
        let clients: Vec<u32> = self.agents.keys().copied().collect();
        clients.into_iter().for_each(|client| self.events_are_due(client));
        Ok(())
    }
}
